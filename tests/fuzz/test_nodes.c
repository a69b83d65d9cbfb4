/* SPDX-License-Identifier: Apache-2.0 */
/* What another node says to the home of a file, and answers to it: the input is that node, with calls of its
 * own (io/call.h) in this process; the home is a cache with members, and one file. It enters, opens the file
 * more or less often, reads and writes and cuts it, has clients that map and touch it, with fields that are
 * right, nearly right and wrong, and what the home asks of its devices it does, or fails at. Each call
 * returns; what is read is no more than was asked for; and the other member's file stays as it is. */
#include <errno.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "cache/internal.h"
#include "fs/fs.h"
#include "tests/fuzz/host.h"
#include "tests/io/session_close.h"

const unsigned fuzz_runs = 200;

#define LENGTH_MOST (1 << 26) /* a peer may make the file longer; not for ever */

/* Once: the home. */
static struct cache *cache;
static struct durable durables[2];
static struct cache_file *files[2]; /* that other nodes can name, and that they can't */
static int backings[2];
static struct members *members;
static struct node_name name = {.type = 1, .length = 8, .bytes = "the file"};

/* The other node. */
static struct calls *calls;
static char address[32];
static _Atomic uint32_t fails; /* bit i: what the home asks by operation i modulo 32 it can't do */
static _Atomic uint8_t fills;
/* How often it still can't drop its kernel's pages: until it does, a FLUSH waits, for half a minute. */
static _Atomic int refusals;

/* ---- the home ---- */

static int write_back(void *context, void *file_context, off_t offset, off_t length)
{
    return host_invalidate(context, file_context, offset, length);
}

static int grow(void *context, void *file_context, off_t size)
{
    return host_invalidate(context, file_context, 0, size);
}

static int find(void *context, const struct node_name *asked, struct cache_file **file_out)
{
    (void)context;
    MUST(asked->length <= NODE_NAME_MAX);
    if (asked->length != name.length || memcmp(asked->bytes, name.bytes, name.length) != 0)
        return -ESTALE;
    file_use(files[0]);
    *file_out = files[0];
    return 0;
}

static int follow(void *context, const struct node_name *asked, uint64_t generation,
                  const struct cache_told *told)
{
    (void)context;
    (void)told;
    MUST(asked && generation);
    return 0;
}

static bool keep(void *context, void *file_context)
{
    (void)context;
    (void)file_context;
    return true;
}

static void moved(void *context, void *file_context)
{
    (void)context;
    (void)file_context;
}

static void sync_all(void *context)
{
    (void)context;
}

static void warn(void *context, const char *text)
{
    (void)context;
    MUST(*text);
}

static bool stops(void *context)
{
    (void)context;
    return false;
}

static void open_home(void)
{
    struct cache_config config = {.device_capacity = 512 << 10,
                                  .soft_devices = 2,
                                  .evict = "lra",
                                  .unit_pages = GAIA_UNIT_PAGES,
                                  .io_threads = true,
                                  .fault = {.timeout_ms = 2000},
                                  .behind_timeout_ns = 1000000000};
    const struct cache_host host = {.invalidate = host_invalidate,
                                    .write_back = write_back,
                                    .grow = grow,
                                    .peek = host_peek,
                                    .pin = host_pin,
                                    .find = find,
                                    .track = find,
                                    .follow = follow,
                                    .keep = keep,
                                    .moved = moved,
                                    .sync = sync_all,
                                    .warn = warn,
                                    .stops = stops};
    char text[128], why[CACHE_WHY];

    snprintf(address, sizeof address, "fuzz-home-%d", getpid());
    snprintf(text, sizeof text, "home@local:%s/other@local:fuzz-none-%d", address, getpid());
    MUST(!members_parse(text, "home", &members, why));
    config.members = members;
    MUST(!cache_open(&config, &host, &cache, why));
    for (unsigned i = 0; i < 2; i++) {
        backings[i] = host_open_file(cache, &durables[i], &files[i]);
        cache_file_hold(files[i]);
    }
    MUST(!cache_join(cache, why));
}

/* ---- the other node's devices ---- */

static int serve(void *context, struct call_session *session, unsigned op, const void *bytes, size_t length,
                 void *reply, size_t *reply_length)
{
    struct node_request request;

    (void)context;
    MUST(length >= sizeof request && op && op <= NODE_OP_LAST);
    memcpy(&request, bytes, sizeof request);
    memset(reply, fills, sizeof(struct node_reply));
    *reply_length = sizeof(struct node_reply);
    if (fails >> op % 32 & 1 && (op != NODE_INVALIDATE || atomic_fetch_sub(&refusals, 1) > 0))
        return fills % 3 ? -EIO : (int)fills - 128;
    if (op != NODE_FETCH && op != NODE_DIGESTS && op != NODE_PEEK)
        return 0;
    uint8_t *slot = call_slot_serve(session, request.slot);
    if (!slot)
        return -EINVAL;
    size_t n = op == NODE_PEEK ? request.length : request.length * PAGE;
    n = n < CALL_SLOT_BYTES ? n : CALL_SLOT_BYTES;
    memset(slot, fills, n);
    int error = call_slot_write(session, request.slot, 0, n);
    call_slot_served(session, request.slot);
    return error ? error : op == NODE_PEEK ? (int)n : 0;
}

static int arrived(void *context, struct call_session *session)
{
    (void)context;
    (void)session;
    return -EACCES;
}

static void ended(void *context, struct call_session *session, int error)
{
    (void)context;
    MUST(session && error < 0);
}

static void open_other(void)
{
    char own[32], why[CALL_WHY];

    snprintf(own, sizeof own, "fuzz-other-%d", getpid());
    struct calls_config config = {.carrier = GAIA_CARRIER_LOCAL,
                                  .address = own,
                                  .timeout_ms = 20000,
                                  .arrived = arrived,
                                  .serve = serve,
                                  .ended = ended};
    MUST(!calls_open(&config, &calls, why));
}

/* ---- what it says ---- */

struct node {
    struct call_session *session;
    bool entered;
    uint32_t opens[4], maps[2]; /* numbers */
};

static unsigned class_of(unsigned op)
{
    switch (op) {
    case NODE_FAULT:
        return NODE_FAULTS;
    case NODE_ACQUIRE:
        return NODE_ACQUIRES;
    case NODE_SYNC:
    case NODE_FLUSH:
        return NODE_SYNCS;
    case NODE_READ_END:
        return NODE_HEALS;
    case NODE_PING:
        return NODE_PINGS;
    default:
        return op >= NODE_OPEN ? NODE_IO : NODE_CALLS;
    }
}

static int say(struct node *node, unsigned op, const struct node_request *request, struct node_reply *reply)
{
    size_t length = sizeof *reply;

    *reply = (struct node_reply){{0}};
    int result = call(node->session, class_of(op), op, request, sizeof *request, reply, &length, 0);
    MUST(result < 0 || node->entered || op == NODE_HELLO); /* a stranger is told nothing */
    return result;
}

static void enter(struct node *node, struct input *in)
{
    struct node_request hello = {.offset = NODE_VERSION,
                                 .value = members->epoch,
                                 .address = clock_read_ns(CLOCK_REALTIME),
                                 .flags = take_u8(in) % 2,
                                 .name = {.length = 5, .bytes = "other"}};
    struct node_reply reply;
    uint8_t odd = take_u8(in);

    if (odd == 0)
        hello.name.length = (uint32_t)take_odd(in) | 8;
    else if (odd == 1)
        hello.value ^= take_odd(in);
    else if (odd == 2)
        hello.address = take_odd(in);
    else if (odd == 3)
        memcpy(hello.name.bytes, "home!", 5);
    if (say(node, NODE_HELLO, &hello, &reply))
        return;
    MUST(!node->entered && odd != 0 && odd != 3 && hello.value == members->epoch);
    node->entered = true;
}

static void open_file(struct node *node, struct input *in)
{
    struct node_request request = {.file = take_u8(in) % 4 + 1, .name = name};
    struct node_reply reply;
    uint8_t odd = take_u8(in);

    if (odd == 0)
        request.name.bytes[odd % 8]++;
    else if (odd == 1)
        request.file = (uint32_t)take_odd(in);
    if (!say(node, NODE_OPEN, &request, &reply))
        node->opens[request.file % 4] = request.file;
}

static void open_map(struct node *node, struct input *in)
{
    uint8_t odd = take_u8(in);
    struct node_request request = {.file = node->opens[odd % 4],
                                   .client = odd / 4 % 2 + 1,
                                   .device = odd / 8 % 2,
                                   .offset = odd > 8 ? 0 : (int64_t)take_odd(in),
                                   .length = odd > 16 ? PAGES * PAGE : take_odd(in),
                                   .value = odd > 24 ? 128 : take_odd(in),
                                   .flags = NODE_MAP_WRITABLE};
    struct node_reply reply;

    if (say(node, NODE_MAP, &request, &reply))
        return;
    node->maps[request.client - 1] = (uint32_t)reply.value[0];
    request.map = (uint32_t)reply.value[0];
    request.address = UINT64_C(1) << 30;
    request.flags = NODE_TRAPS;
    if (odd < 250)
        (void)say(node, NODE_ATTACH, &request, &reply);
}

/* Of a file, or of a map of it. */
static void do_something(struct node *node, struct input *in)
{
    static const uint8_t ops[] = {NODE_ATTACH,   NODE_UNMAP,    NODE_GONE,     NODE_FAULT,     NODE_ACQUIRE,
                                  NODE_RELEASE,  NODE_MAP_SYNC, NODE_ADVISE,   NODE_SYNC,      NODE_FLUSH,
                                  NODE_LEAVE,    NODE_ROOM,     NODE_CLOSE,    NODE_OPENED,    NODE_WRITERS,
                                  NODE_READ,     NODE_WRITE,    NODE_TRUNCATE, NODE_FALLOCATE, NODE_SEEK,
                                  NODE_READ_END, NODE_PING,     NODE_TRACK,    NODE_FAULT,     NODE_FAULT,
                                  NODE_RELEASE,  NODE_READ,     NODE_WRITE,    NODE_ACQUIRE};
    unsigned op = ops[take_u8(in) % sizeof ops];
    uint8_t odd = take_u8(in);
    uint32_t client = odd / 4 % 2 + 1;
    struct node_request request = {.file = node->opens[odd % 4],
                                   .client = client,
                                   .map = node->maps[client - 1],
                                   .flags = take_u8(in) % 8,
                                   .offset = take_u8(in) % PAGES * PAGE,
                                   .length = take_u8(in) % 8 * PAGE,
                                   .value = take_u8(in)};
    struct node_reply reply;

    bool of_map = op <= NODE_ADVISE;
    if (of_map && odd & 8) { /* all of it */
        request.offset = 0;
        request.length = PAGES * PAGE;
    } else if (of_map) {
        request.length += PAGE;
    } else {
        request.offset += odd & 8 ? take_u16(in) : 0;
        request.length += odd & 16 ? take_u16(in) : 0;
    }
    request.address = (UINT64_C(1) << 30) + (uint64_t)request.offset;
    if (odd >= 248)
        request.offset = (int64_t)take_odd(in);
    else if (odd >= 240)
        request.length = take_odd(in);
    else if (odd >= 232)
        request.address = take_odd(in);
    else if (odd >= 224)
        request.flags = (uint32_t)take_odd(in);
    if (op == NODE_TRACK)
        request.name = name;
    if ((op == NODE_TRUNCATE && request.length > LENGTH_MOST) ||
        ((op == NODE_WRITE || op == NODE_FALLOCATE) &&
         (uint64_t)request.offset + request.length > LENGTH_MOST && request.offset >= 0 &&
         request.length < INT64_MAX))
        return; /* no memory for that */
    int slot = call_slot_get(node->session);
    if (slot < 0)
        return;
    request.slot = odd < 220 ? (uint32_t)slot : odd;
    if (op == NODE_WRITE) {
        memset(call_slot(node->session, (unsigned)slot), odd, CALL_SLOT_BYTES);
        (void)call_slot_write(node->session, (unsigned)slot, 0,
                              request.length < CALL_SLOT_BYTES ? request.length : CALL_SLOT_BYTES);
    }
    int result = say(node, op, &request, &reply);
    if (op == NODE_READ || op == NODE_WRITE)
        MUST(result <= 0 || ((uint64_t)result <= request.length && (unsigned)result <= CALL_SLOT_BYTES));
    call_slot_put(node->session, (unsigned)slot);
}

/* No request, or one that is for an agent. */
static void say_anything(struct node *node, struct input *in)
{
    uint8_t bytes[sizeof(struct node_page_request)] = {0}, reply[512];
    size_t length = take_u8(in) % 4 ? sizeof(struct node_request) : take_u16(in) % sizeof bytes,
           n = sizeof reply;
    unsigned op = take_u8(in) % (NODE_OP_LAST + 3), class = take_u8(in) % (NODE_PINGS + 1);

    take_bytes(in, bytes, 64);
    int result = call(node->session, class, op, bytes, length, reply, &n, 0);
    MUST(result < 0 || node->entered);
}

static void step(struct node *node, struct input *in)
{
    uint8_t op = take_u8(in);

    switch (op % 8) {
    case 0:
        open_file(node, in);
        break;
    case 1:
        open_map(node, in);
        break;
    case 2:
        fails = take_u8(in) % 4 ? 0 : (uint32_t)take_u64(in);
        fills = take_u8(in);
        break;
    case 3:
        if (op == 3)
            say_anything(node, in);
        else if (op == 11)
            enter(node, in);
        else
            do_something(node, in);
        break;
    default:
        do_something(node, in);
    }
}

static void check_other_file(void)
{
    uint8_t bytes[PAGE], zeros[PAGE] = {0};
    struct stat st;

    MUST(!fstat(backings[1], &st) && st.st_size == PAGES * PAGE);
    MUST(pread(backings[1], bytes, PAGE, PAGE) == PAGE && !memcmp(bytes, zeros, PAGE));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    struct node node = {0};

    if (!cache) {
        open_home();
        open_other();
    }
    fails = 0;
    fills = 0;
    refusals = 4;
    MUST(!ftruncate(backings[0], PAGES * PAGE));
    int error = call_connect(calls, address, &node.session);
    MUST(!error || error == -EBUSY);
    if (error)
        return 0;
    enter(&node, &in);
    fills = take_u8(&in);
    if (take_u8(&in) % 8) {
        open_file(&node, &in);
        open_map(&node, &in);
    }
    for (unsigned steps = 0; in.left && steps < 40 && !call_session_error(node.session); steps++)
        step(&node, &in);
    session_close(node.session);
    call_session_put(node.session);
    check_other_file();
    return 0;
}
