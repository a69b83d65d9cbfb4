/* SPDX-License-Identifier: Apache-2.0 */
/* What a node answers that was connected to, over the local carrier: the input is that node. It greets,
 * exposes regions, says that transfers are done which are and which are not, and stores to the
 * shared stage meanwhile. Each transfer ends once, and no byte reaches memory that none was asked for. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/mman.h>
#include <sys/un.h>
#include <unistd.h>

#include "io/transport_internal.h"
#include "io/transport_local.h"
#include "tests/fuzz/fuzz.h"

const unsigned fuzz_runs = 300;

#define QUEUES 2u
#define TRANSFERS 24u
#define MEMORY 65536u
#define WAIT_MS 100

struct far_end {
    int listening, fds[QUEUES];
    unsigned char *stages[QUEUES];
    unsigned queues;
    uint8_t script[16]; /* how it greets */
};

struct world {
    struct gaia_transport *transport;
    struct gaia_link *link;
    struct gaia_memory *memory;
    uint8_t *bytes;
    struct far_end far;
    struct gaia_transfer transfers[TRANSFERS];
    bool under_way[TRANSFERS];
    unsigned closed;
};

/* ---- the far end ---- */

/* An answer on one queue: as it should be, but for one thing. */
static void greet(struct far_end *far, unsigned number, struct input *in)
{
    struct gaia_wire_hello hello = {0};
    unsigned char bytes[GAIA_WIRE_MAX + 1];
    int extra, stage = -1;
    uint8_t odd = take_u8(in);
    struct pollfd ready = {.fd = far->fds[number], .events = POLLIN};

    if (poll(&ready, 1, WAIT_MS) != 1 || datagram_receive(far->fds[number], bytes, &extra) != sizeof hello)
        return;
    memcpy(&hello, bytes, sizeof hello);
    memset(hello.token, 7, sizeof hello.token);
    if (odd % 16 == 0)
        hello.queue += take_u8(in);
    else if (odd % 16 == 1)
        hello.timeout_ms = (uint32_t)take_odd(in);
    else if (odd % 16 == 2) {
        hello.head.op = GAIA_WIRE_REFUSED;
        hello.error = (int32_t)take_odd(in);
    } else if (odd % 16 == 3) {
        hello.head.version = take_u8(in);
    }
    if (odd % 16 != 4 && stage_new(&stage, &far->stages[number]))
        stage = -1;
    datagram_send(far->fds[number], &hello, odd % 16 == 5 ? odd % sizeof hello + 1 : sizeof hello, stage);
    if (stage >= 0)
        close(stage);
}

static void *accept_all(void *argument)
{
    struct far_end *far = argument;
    struct input in = {far->script, sizeof far->script};
    struct pollfd ready = {.fd = far->listening, .events = POLLIN};

    for (unsigned i = 0; i < far->queues; i++) {
        if (poll(&ready, 1, WAIT_MS) != 1)
            break;
        far->fds[i] = accept4(far->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (far->fds[i] < 0)
            break;
        greet(far, i, &in);
    }
    close(far->listening);
    return NULL;
}

static void say(struct world *w, unsigned queue, const void *bytes, size_t length)
{
    if (w->far.fds[queue % w->far.queues] >= 0)
        datagram_send(w->far.fds[queue % w->far.queues], bytes, length, -1);
}

static void expose(struct world *w, struct input *in)
{
    uint8_t odd = take_u8(in);
    struct gaia_wire_expose message = {.head = {sizeof message, GAIA_WIRE_VERSION, GAIA_WIRE_EXPOSE, odd & 1},
                                       .region = odd & 2 ? (uint32_t)take_odd(in) : take_u8(in) % 4,
                                       .writable = odd & 4 ? take_u8(in) % 3 : 1,
                                       .address = odd & 8 ? take_odd(in) : 0,
                                       .length = odd & 16 ? take_odd(in) : 1 << 20,
                                       .key = take_u8(in)};
    say(w, odd >> 7, &message, sizeof message);
}

static void say_done(struct world *w, struct input *in)
{
    struct gaia_wire_done done = {.head = {sizeof done, GAIA_WIRE_VERSION, GAIA_WIRE_DONE, 0}};
    uint8_t odd = take_u8(in);

    done.count = odd & 1 ? (uint32_t)take_odd(in) : odd / 4 % 4 + 1u;
    done.error = odd & 2 ? (int32_t)take_odd(in) : 0;
    say(w, odd >> 7, &done, sizeof done);
}

static void say_anything(struct world *w, struct input *in)
{
    uint8_t bytes[GAIA_WIRE_MAX + 8] = {0}, odd = take_u8(in);
    size_t length = sizeof(struct gaia_wire_head) + (odd & 1 ? 8 : take_u16(in) % 4700);
    struct gaia_wire_head head = {(uint32_t)length, GAIA_WIRE_VERSION, take_u8(in) % 12, take_u8(in) % 4};

    length = length > sizeof bytes ? sizeof bytes : length;
    take_bytes(in, bytes + sizeof head, length % 24);
    if (odd >> 3 == 0)
        head.length = (uint32_t)take_odd(in);
    memcpy(bytes, &head, sizeof head);
    say(w, odd & 4 ? 1 : 0, bytes, length);
}

/* ---- this end ---- */

static void closed(void *context, struct gaia_link *link, int error)
{
    struct world *w = context;

    MUST(link && error <= 0);
    w->closed++;
}

static void message(void *context, struct gaia_link *link, const void *bytes, size_t length)
{
    (void)context;
    (void)bytes;
    MUST(link && length && length <= GAIA_LINK_MESSAGE_MAX);
}

static struct world *world; /* done() has no other way to it */

static void done(struct gaia_transfer *transfer, int error)
{
    size_t i = (size_t)(transfer - world->transfers);

    MUST(world->under_way[i] && error <= 0);
    world->under_way[i] = false;
}

static void post(struct world *w, struct input *in)
{
    struct gaia_transfer *list[4];
    unsigned count = 0, queue = take_u8(in) % (QUEUES + 1);

    for (unsigned i = 0; i < TRANSFERS && count < 4; i++) {
        if (w->under_way[i])
            continue;
        uint8_t odd = take_u8(in);
        w->transfers[i] =
            (struct gaia_transfer){.memory = w->memory,
                                   .memory_offset = odd & 8 ? take_odd(in) : take_u16(in) % 4096,
                                   .offset = take_u16(in),
                                   .region = odd & 16 ? (uint32_t)take_odd(in) : odd % 4,
                                   .length = odd & 32 ? (uint32_t)take_odd(in) : take_u8(in) * 16u + 1,
                                   .write = odd & 64,
                                   .cuttable = odd & 128,
                                   .done = done};
        list[count++] = &w->transfers[i];
    }
    if (!count)
        return;
    for (unsigned i = 0; i < count; i++)
        w->under_way[list[i] - w->transfers] = true;
    int posted = gaia_link_post(w->link, queue, list, count);
    MUST(posted <= (int)count);
    for (unsigned i = posted < 0 ? 0 : (unsigned)posted; i < count; i++)
        w->under_way[list[i] - w->transfers] = false;
}

static void step(struct world *w, struct input *in)
{
    uint8_t op = take_u8(in);

    switch (op % 8) {
    case 0:
        expose(w, in);
        break;
    case 1:
    case 2:
        post(w, in);
        break;
    case 3:
        say_done(w, in);
        break;
    case 4:
        say_anything(w, in);
        break;
    case 5:
        if (w->far.stages[op / 8 % QUEUES])
            memset(w->far.stages[op / 8 % QUEUES], op, 16384);
        break;
    case 6:
        (void)gaia_link_send(w->link, w->bytes, op + 1u);
        break;
    default:
        gaia_transport_poll(w->transport, 0);
    }
}

/* ---- */

static bool start(struct world *w, struct input *in)
{
    static unsigned number;
    struct sockaddr_un address;
    socklen_t length;
    char name[32], address_here[32];
    pthread_t thread;

    snprintf(name, sizeof name, "fuzz-a-%d-%u", getpid(), number++);
    snprintf(address_here, sizeof address_here, "fuzz-h-%d", getpid());
    w->far.queues = take_u8(in) % QUEUES + 1;
    take_bytes(in, w->far.script, sizeof w->far.script);
    w->far.fds[0] = w->far.fds[1] = -1;
    MUST(!local_address(name, &address, &length) && !local_socket(&w->far.listening));
    MUST(!bind(w->far.listening, (struct sockaddr *)&address, length) && !listen(w->far.listening, 8));
    struct gaia_transport_config config = {.carrier = GAIA_CARRIER_LOCAL,
                                           .address = address_here,
                                           .timeout_ms = WAIT_MS,
                                           .calls = {.message = message, .closed = closed},
                                           .context = w};
    MUST(!gaia_transport_open(&config, &w->transport));
    w->bytes = malloc(MEMORY);
    MUST(w->bytes);
    memset(w->bytes, 0, MEMORY);
    MUST(!gaia_memory_register(w->transport, &(struct gaia_span){w->bytes, MEMORY, -1}, &w->memory));
    MUST(!pthread_create(&thread, NULL, accept_all, &w->far));
    struct gaia_link_options options = {.queues = w->far.queues, .depth = 8};
    bool up = !gaia_link_connect(w->transport, name, &options, &w->link);
    pthread_join(thread, NULL);
    return up;
}

static void end(struct world *w)
{
    if (w->link)
        gaia_link_close(w->link);
    for (unsigned i = 0; i < TRANSFERS; i++)
        MUST(!w->under_way[i]);
    gaia_memory_release(w->memory);
    gaia_transport_close(w->transport);
    for (unsigned i = 0; i < QUEUES; i++) {
        if (w->far.fds[i] >= 0)
            close(w->far.fds[i]);
        if (w->far.stages[i])
            munmap(w->far.stages[i], STAGE_LENGTH);
    }
    free(w->bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};

    world = calloc(1, sizeof *world);
    MUST(world);
    bool up = start(world, &in);
    for (unsigned steps = 0; up && in.left && steps < 80; steps++) {
        step(world, &in);
        if (steps % 3 == 2)
            gaia_transport_poll(world->transport, 0);
    }
    MUST(world->closed <= 1);
    end(world);
    free(world);
    return 0;
}
