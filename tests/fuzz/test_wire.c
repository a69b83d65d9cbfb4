/* SPDX-License-Identifier: Apache-2.0 */
/* What peers send to a node that listens, over the local carrier: the input is four of them. They greet, or
 * say anything else, on queues of sessions of their own and of others; they read and write what was exposed
 * to them and what was not, and store to the shared stage meanwhile. Nothing reaches memory but by a key and
 * a right to it, and a peer that sends nonsense ends its own link only. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "io/transport_internal.h"
#include "io/transport_local.h"
#include "tests/fuzz/fuzz.h"

const unsigned fuzz_runs = 800;

#define PEERS 4u
#define REGION 8192u

struct peer {
    int fd; /* -1: none */
    uint8_t *stage;
    uint64_t keys[8]; /* that it was told of */
    unsigned key_count;
};

struct world {
    struct gaia_transport *transport;
    char address[32];
    struct peer peers[PEERS];
    uint8_t token[16]; /* the last that was said */
    struct gaia_link *links[PEERS];
    unsigned link_count, messages;
    uint8_t *read_only, *writable; /* exposed to all who arrive */
    int refuse;
};

static const char FILL = 0x5a;

/* ---- the node ---- */

static int arrived(void *context, struct gaia_link *link, const char *peer)
{
    struct world *w = context;
    uint32_t region;

    MUST(*peer);
    if (w->refuse || w->link_count == PEERS)
        return w->refuse ? -w->refuse : -ENOBUFS;
    w->links[w->link_count++] = link;
    (void)gaia_link_expose(link, &(struct gaia_span){w->read_only, REGION, -1}, false, &region);
    (void)gaia_link_expose(link, &(struct gaia_span){w->writable, REGION, -1}, true, &region);
    return 0;
}

static void message(void *context, struct gaia_link *link, const void *bytes, size_t length)
{
    struct world *w = context;
    uint8_t copy[GAIA_LINK_MESSAGE_MAX];

    MUST(length && length <= sizeof copy && link);
    memcpy(copy, bytes, length);
    w->messages++;
}

static void start(struct world *w)
{
    static unsigned number;

    for (unsigned i = 0; i < PEERS; i++)
        w->peers[i].fd = -1;
    w->read_only = malloc(REGION);
    w->writable = malloc(REGION);
    MUST(w->read_only && w->writable);
    memset(w->read_only, FILL, REGION);
    memset(w->writable, 0, REGION);
    snprintf(w->address, sizeof w->address, "fuzz-%d-%u", getpid(), number++);
    struct gaia_transport_config config = {.carrier = GAIA_CARRIER_LOCAL,
                                           .address = w->address,
                                           .listen = true,
                                           .timeout_ms = 600000,
                                           .calls = {.arrived = arrived, .message = message},
                                           .context = w};
    MUST(!gaia_transport_open(&config, &w->transport));
}

/* ---- peers ---- */

static void leave(struct peer *peer)
{
    if (peer->fd >= 0)
        close(peer->fd);
    if (peer->stage)
        munmap(peer->stage, STAGE_LENGTH);
    *peer = (struct peer){.fd = -1};
}

static void come(struct world *w, struct peer *peer)
{
    struct sockaddr_un address;
    socklen_t length;

    leave(peer);
    MUST(!local_address(w->address, &address, &length));
    peer->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    MUST(peer->fd >= 0);
    if (connect(peer->fd, (struct sockaddr *)&address, length))
        leave(peer);
}

static void say(struct peer *peer, const void *bytes, size_t length)
{
    if (peer->fd >= 0 && length && send(peer->fd, bytes, length, MSG_NOSIGNAL) < 0 && errno != EAGAIN)
        leave(peer);
}

static void greet(struct world *w, struct peer *peer, struct input *in)
{
    uint8_t odd = take_u8(in);
    struct gaia_wire_hello hello = {.head = {sizeof hello, GAIA_WIRE_VERSION, GAIA_WIRE_HELLO, 0},
                                    .queue = take_u8(in) % 4,
                                    .queues = take_u8(in) % 3 + 1,
                                    .depth = 4,
                                    .timeout_ms = 60000};
    if (hello.queue || odd & 64)
        memcpy(hello.token, w->token, sizeof hello.token);
    switch (odd % 16) {
    case 0:
        hello.queue = (uint32_t)take_odd(in);
        break;
    case 1:
        hello.queues = (uint32_t)take_odd(in);
        break;
    case 2:
        hello.depth = (uint32_t)take_odd(in);
        break;
    case 3:
        hello.timeout_ms = (uint32_t)take_odd(in);
        break;
    case 4:
        hello.error = (int32_t)take_odd(in);
        hello.head.op = take_u8(in);
        break;
    case 5:
        hello.head.version = (uint16_t)take_odd(in);
        hello.head.length = (uint32_t)take_odd(in);
        break;
    default:
        break;
    }
    say(peer, &hello, odd % 16 == 6 ? take_u8(in) % sizeof hello : sizeof hello);
}

static void say_anything(struct peer *peer, struct input *in)
{
    uint8_t bytes[GAIA_WIRE_MAX + 200], odd = take_u8(in);
    size_t length = sizeof(struct gaia_wire_head) + (odd & 1 ? 8 : odd & 2 ? 32 : take_u16(in) % 4700);
    struct gaia_wire_head head = {(uint32_t)length, GAIA_WIRE_VERSION, take_u8(in) % 12, take_u8(in) % 4};

    memset(bytes, 0, sizeof bytes);
    take_bytes(in, bytes + sizeof head, odd & 4 ? 4 : length % 40);
    if (odd >> 3 == 0)
        head.length = (uint32_t)take_odd(in);
    if (odd >> 3 == 1)
        head.version = (uint16_t)take_odd(in);
    if (odd >> 3 == 2)
        head.credits = take_u8(in);
    memcpy(bytes, &head, sizeof head);
    say(peer, bytes, length);
}

static void move_bytes(struct world *w, struct peer *peer, struct input *in)
{
    struct {
        struct gaia_wire_head head;
        struct gaia_wire_transfer entries[6];
    } message = {.head = {0, GAIA_WIRE_VERSION, GAIA_WIRE_TRANSFERS, 0}};
    unsigned count = take_u8(in) % 6 + 1;

    for (unsigned i = 0; i < count; i++) {
        uint8_t odd = take_u8(in);
        const struct peer *whose = odd & 32 ? &w->peers[odd % PEERS] : peer;
        message.entries[i] = (struct gaia_wire_transfer){
            .key = whose->key_count ? whose->keys[take_u8(in) % whose->key_count] + (odd & 16) : take_u64(in),
            .address = odd & 8 ? take_odd(in) : take_u16(in) % REGION,
            .length = odd & 4 ? (uint32_t)take_odd(in) : take_u8(in) + 1u,
            .stage = odd & 2 ? (uint32_t)take_odd(in) : take_u16(in),
            .write = odd & 1 ? (uint32_t)take_odd(in) % 3 : 0};
    }
    message.head.length = (uint32_t)(sizeof message.head + count * sizeof *message.entries);
    say(peer, &message, message.head.length);
}

/* What the node has said to it. */
static void hear(struct world *w, struct peer *peer)
{
    uint8_t bytes[GAIA_WIRE_MAX + 1];
    struct gaia_wire_hello hello;
    struct gaia_wire_expose expose;
    ssize_t n;
    int stage;

    while (peer->fd >= 0 && (n = datagram_receive(peer->fd, bytes, &stage)) != -EAGAIN) {
        if (n <= 0) {
            leave(peer);
            break;
        }
        if (stage >= 0 && !peer->stage) {
            void *memory = mmap(NULL, STAGE_LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, stage, 0);
            peer->stage = memory == MAP_FAILED ? NULL : memory;
        }
        if (stage >= 0)
            close(stage);
        memcpy(&hello, bytes, n < (ssize_t)sizeof hello ? (size_t)n : sizeof hello);
        memcpy(&expose, bytes, n < (ssize_t)sizeof expose ? (size_t)n : sizeof expose);
        if (n == sizeof hello && hello.head.op == GAIA_WIRE_HELLO)
            memcpy(w->token, hello.token, sizeof w->token);
        if (n == sizeof expose && expose.head.op == GAIA_WIRE_EXPOSE)
            peer->keys[peer->key_count++ % 8] = expose.key;
        peer->key_count = peer->key_count > 8 ? 8 : peer->key_count;
    }
}

/* ---- */

/* The node's own part. */
static void act(struct world *w, struct input *in)
{
    uint8_t what = take_u8(in);
    uint32_t region;

    if (!w->link_count)
        return;
    struct gaia_link **place = &w->links[what / 8 % w->link_count], *link = *place;
    switch (what % 8) {
    case 0:
        (void)gaia_link_send(link, w->address, sizeof w->address);
        break;
    case 1:
    case 2:
        (void)gaia_link_expose(link, &(struct gaia_span){w->writable, REGION, -1}, true, &region);
        break;
    case 3:
        w->refuse = w->refuse ? 0 : EMFILE;
        break;
    case 4:
        w->link_count--;
        *place = w->links[w->link_count];
        gaia_link_close(link);
        break;
    default:
        gaia_transport_poll(w->transport, 0);
    }
}

static void step(struct world *w, struct input *in)
{
    uint8_t op = take_u8(in);
    struct peer *peer = &w->peers[op / 8 % PEERS];

    switch (op % 8) {
    case 0: /* as it should be, up to the first answer */
        come(w, peer);
        greet(w, peer, in);
        gaia_transport_poll(w->transport, 0);
        gaia_transport_poll(w->transport, 0);
        hear(w, peer);
        break;
    case 1:
        greet(w, peer, in);
        break;
    case 2:
        say_anything(peer, in);
        break;
    case 3:
        move_bytes(w, peer, in);
        if (peer->stage && op & 128)
            memset(peer->stage, op, 4096);
        break;
    case 4:
        hear(w, peer);
        break;
    case 5:
        if (op & 64)
            leave(peer);
        else
            come(w, peer);
        break;
    case 6:
        act(w, in);
        break;
    default:
        gaia_transport_poll(w->transport, 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    struct world *w = calloc(1, sizeof *w);

    MUST(w);
    start(w);
    for (unsigned steps = 0; in.left && steps < 100; steps++) {
        step(w, &in);
        if (steps % 4 == 3)
            gaia_transport_poll(w->transport, 0);
    }
    gaia_transport_poll(w->transport, 0);
    for (unsigned i = 0; i < REGION; i++)
        MUST(w->read_only[i] == FILL);
    gaia_transport_close(w->transport);
    for (unsigned i = 0; i < PEERS; i++)
        leave(&w->peers[i]);
    free(w->read_only);
    free(w->writable);
    free(w);
    return 0;
}
