/* SPDX-License-Identifier: Apache-2.0 */
/* A node that says anything (test_nodes_babble.py): tool_babble PEERS SELF OTHER SEED SECONDS PATH... meets
 * the other, tracks, opens and maps the files at PATH, and says that it is their home; then several threads
 * send requests of every kind with fields that are right, nearly right and wrong, in both directions, and
 * what the other asks is answered likewise. When its session has ended it meets the other again. What of each
 * kind was taken (a result that is no error) and refused is printed as JSON, and how long the slowest took.
 *
 * Its numbers are those that it was told, or has told itself, so that many get past the first check; and maps
 * that programs on the other make of its files mostly work: frames are opened, faults are answered. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "consistency/page.h"
#include "tests/io/session_close.h"
#include "tests/mount/member.h"

#define THREADS 8u
#define NAMES_MAX 8u
#define POOL 8u
#define SLOW_MS 15000u /* a call that takes longer has hung */
#define PAGE UINT64_C(4096)

static struct members *members;
static const char *peer; /* its address */
static struct calls *calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards sessions */
static struct call_session *home, *agent; /* we have connected; the other has. One reference each, for good */
static struct node_name names[NAMES_MAX];
static unsigned name_count;
static _Atomic bool over;
static _Atomic unsigned taken[NODE_OP_LAST + 1], refused[NODE_OP_LAST + 1], answered[NODE_OP_LAST + 1], hung,
    meetings;
static _Atomic unsigned slowest_of[NODE_OP_LAST + 1]; /* in ms */

/* Maps of the other's programs, of files that are ours: by the number that we gave them. */
static struct far_map {
    _Atomic uint64_t client, address, first;
} far_maps[64];
#define FAR_MAPS (sizeof far_maps / sizeof *far_maps)

/* Numbers that the other has told, or that we have. */
static _Atomic uint64_t files[POOL], clients[POOL], maps[POOL], frames[POOL], addresses[POOL];

static uint64_t random_of(uint64_t *state) /* xorshift64* */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

static uint64_t below(uint64_t *state, uint64_t n)
{
    return random_of(state) % n;
}

static bool one_in(uint64_t *state, unsigned n)
{
    return below(state, n) == 0;
}

static void keep(_Atomic uint64_t *pool, uint64_t value)
{
    static _Atomic unsigned next;

    pool[next++ % POOL] = value;
}

static uint64_t number(uint64_t *state, const _Atomic uint64_t *pool)
{
    if (one_in(state, 16))
        return random_of(state);
    return one_in(state, 3) ? 1 + below(state, 4) : pool[below(state, POOL)];
}

static uint64_t amount(uint64_t *state)
{
    static const uint64_t odd[] = {0,
                                   1,
                                   4095,
                                   4096,
                                   4097,
                                   1 << 18,
                                   (1 << 18) + 1,
                                   UINT64_C(1) << 31,
                                   UINT64_C(1) << 32,
                                   UINT64_C(1) << 40,
                                   (uint64_t)INT64_MAX / 4096,
                                   (uint64_t)INT64_MAX - 4096,
                                   (uint64_t)INT64_MAX - 4095,
                                   INT64_MAX,
                                   (uint64_t)INT64_MAX + 1,
                                   UINT64_MAX - 4095,
                                   UINT64_MAX};

    switch (below(state, 6)) {
    case 0:
        return odd[below(state, sizeof odd / sizeof *odd)];
    case 1:
        return below(state, 64); /* pages, of frames */
    case 2:
        return below(state, 64 * PAGE);
    default:
        return below(state, 64) * PAGE;
    }
}

static enum node_class class_of(enum node_op op)
{
    if (op == NODE_FAULT)
        return NODE_FAULTS;
    if (op == NODE_SYNC || op == NODE_FLUSH)
        return NODE_SYNCS;
    if (op == NODE_ACQUIRE)
        return NODE_ACQUIRES;
    if (op < NODE_OPEN || op == NODE_FOLLOW || op == NODE_UNFOLLOW || op == NODE_HANDED)
        return NODE_CALLS;
    if (op < NODE_READ_END)
        return NODE_IO;
    if (op == NODE_READ_END || op == NODE_PEEK)
        return NODE_HEALS;
    if (op == NODE_INVALIDATE)
        return NODE_KERNEL;
    if (op == NODE_WRITE_BACK)
        return NODE_FLUSHES;
    if (op == NODE_RESIZE || op == NODE_DROP)
        return NODE_HOLDS;
    return op < NODE_PROTECT ? NODE_FRAMES : NODE_CLIENTS;
}

static struct node_request request_of(uint64_t *state, enum node_op op)
{
    struct node_request request = {.file = (uint32_t)number(state, files),
                                   .frames = (uint32_t)number(state, frames),
                                   .client = (uint32_t)number(state, clients),
                                   .map = (uint32_t)number(state, maps),
                                   .device = (uint32_t)(one_in(state, 8)   ? random_of(state)
                                                        : one_in(state, 3) ? GAIA_SOFT_MAX
                                                                           : below(state, 9)),
                                   .flags = (uint32_t)(one_in(state, 4) ? random_of(state) : below(state, 8)),
                                   .slot =
                                       (uint32_t)(one_in(state, 16) ? random_of(state) : below(state, 34)),
                                   .thread = (uint32_t)(one_in(state, 2) ? below(state, 100000) : 0),
                                   .offset = (int64_t)amount(state),
                                   .length = amount(state),
                                   .address = number(state, addresses),
                                   .value = amount(state),
                                   .name = names[below(state, name_count)]};
    unsigned half = name_count / 2; /* the first are the other's, the last ours; seldom mixed up */

    if (!one_in(state, 300))
        request.name = names[(op == NODE_FOLLOW || op == NODE_UNFOLLOW ? half : 0) + below(state, half)];

    if (one_in(state, 2))
        request.address += below(state, 64) * PAGE;
    if (one_in(state, 16))
        request.name.length =
            (uint32_t)(one_in(state, 2) ? random_of(state) : below(state, NODE_NAME_MAX + 2));
    if (one_in(state, 16))
        request.name.bytes[below(state, NODE_NAME_MAX)] ^= (uint8_t)(1 + below(state, 255));
    if (one_in(state, 32))
        request.name.type = (int32_t)random_of(state);
    if (op == NODE_FALLOCATE) { /* the disk is not ours to fill */
        request.offset = (int64_t)below(state, 1 << 20);
        request.length = one_in(state, 4) ? UINT64_MAX - below(state, 8) : below(state, 1 << 20);
    }
    if ((op == NODE_GATHER || op == NODE_PATCH) && !one_in(state, 8))
        request.length = below(state, 40);
    return request;
}

/* So that what they end stays for a while. */
static bool is_rare(enum node_op op)
{
    return op == NODE_LEAVE || op == NODE_HELLO || op == NODE_HANDED || op == NODE_CLOSE || op == NODE_GONE ||
           op == NODE_UNMAP || op == NODE_FRAMES_CLOSE;
}

static void learn(enum node_op op, const struct node_request *request, const struct node_reply *reply)
{
    if (op == NODE_MAP && reply) {
        keep(clients, request->client);
        keep(maps, reply->value[0]);
    } else if (op == NODE_FRAMES_OPEN) {
        keep(frames, request->frames);
    } else if (op == NODE_ATTACH) {
        keep(addresses, request->address);
        keep(maps, request->map);
        keep(clients, request->client);
    } else if (op == NODE_OPEN) {
        keep(files, request->file);
    }
}

static enum node_op op_of(uint64_t *state, bool to_agent)
{
    enum node_op first = to_agent ? NODE_FOLLOW : NODE_HELLO;
    enum node_op last = to_agent ? NODE_OP_LAST : NODE_READ_END;
    enum node_op op = first + (enum node_op)below(state, last - first + 1);

    return is_rare(op) && !one_in(state, op == NODE_LEAVE ? 200 : 20) ? op_of(state, to_agent) : op;
}

static unsigned now_ms(void)
{
    return (unsigned)(clock_now_ns() / 1000000);
}

static void say(struct call_session *session, bool to_agent, uint64_t *state)
{
    enum node_op op = op_of(state, to_agent);
    struct node_request request = request_of(state, op);
    uint8_t bytes[CALL_BYTES_MAX] = {0};
    struct node_reply reply = {0};
    size_t length = sizeof request, reply_length = sizeof reply;

    memcpy(bytes, &request, sizeof request);
    if (op == NODE_PLACE && one_in(state, 2)) /* with a page */
        length = sizeof(struct node_page_request);
    if (one_in(state, 40))
        length = one_in(state, 2) ? below(state, sizeof bytes + 1) : sizeof request - 1 + 2 * below(state, 2);
    unsigned began = now_ms();
    int result = call(session, class_of(op), op, bytes, length, &reply, &reply_length, SLOW_MS);
    unsigned took = now_ms() - began, most = slowest_of[op];
    while (took > most && !atomic_compare_exchange_weak(&slowest_of[op], &most, took))
        ;
    hung += took >= SLOW_MS;
    if (result >= 0) {
        taken[op]++;
        learn(op, &request, reply_length == sizeof reply ? &reply : NULL);
        if (op == NODE_READ && !one_in(state, 1000)) /* else WRITEs wait for it, as long as they do */
            call(session, NODE_HEALS, NODE_READ_END, &request, sizeof request, NULL, NULL, SLOW_MS);
    } else {
        refused[op]++;
    }
}

/* A map of one of our files, with frames of the same number. */
static int serve_map(struct call_session *session, const struct node_request *asked, struct node_reply *reply)
{
    static _Atomic uint32_t last;
    uint32_t next = ++last;
    bool writable = asked->flags & NODE_MAP_WRITABLE || next % 64 == 0;
    struct node_request request = {.frames = next,
                                   .device = asked->device,
                                   .length = 1024,
                                   .flags = writable ? 0 : NODE_FRAMES_READ_ONLY};

    if (call(session, NODE_FRAMES, NODE_FRAMES_OPEN, &request, sizeof request, NULL, NULL, SLOW_MS))
        return -EIO;
    keep(frames, request.frames);
    keep(clients, asked->client);
    far_maps[request.frames % FAR_MAPS].client = asked->client;
    far_maps[request.frames % FAR_MAPS].first = (uint64_t)asked->offset / PAGE;
    reply->value[0] = reply->value[1] = request.frames;
    return 0;
}

/* Brings what is touched, or lets the store through; or SIGBUS; seldom nothing. */
static int serve_fault(struct call_session *session, const struct node_request *asked, uint64_t *state)
{
    uint64_t found = 0;

    for (uint64_t i = 1; i < FAR_MAPS; i++)
        if (far_maps[i].client == asked->client && far_maps[i].address <= asked->address &&
            asked->address - far_maps[i].address < 1024 * PAGE)
            found = i;
    if (!found || one_in(state, 1000))
        return 0;
    struct node_request request = {
        .frames = (uint32_t)found, /* of the first FAR_MAPS; later ones wait for what is said at random */
        .client = asked->client,
        .address = far_maps[found].address,
        .offset = (int64_t)(far_maps[found].first + (asked->address - far_maps[found].address) / PAGE),
        .length = 1,
        .slot = (uint32_t)below(state, CALL_SLOTS),
        .flags = NODE_PLACE_EXPOSES,
        .thread = asked->thread};
    enum node_op op = asked->flags & NODE_FAULT_PROTECTION ? NODE_UNPROTECT : NODE_PLACE;
    if (one_in(state, 40))
        op = asked->flags & NODE_FAULT_PROTECTION ? NODE_REFUSE : NODE_POISON;
    int result = call(session, NODE_CLIENTS, op, &request, sizeof request, NULL, NULL, SLOW_MS);
    taken[op] += result >= 0;
    refused[op] += result < 0;
    if (result < 0)
        call(session, NODE_CLIENTS, NODE_POISON, &request, sizeof request, NULL, NULL, SLOW_MS);
    return 0;
}

/* What the other asks: mostly something that can be right. */
static int serve(void *context, struct call_session *session, unsigned op, const void *bytes, size_t length,
                 void *reply, size_t *reply_length)
{
    static _Atomic uint64_t seeds;
    uint64_t state = (seeds += UINT64_C(0x9E3779B97F4A7C15)) | 1;
    struct node_reply said = {{number(&state, maps), number(&state, frames)}};

    (void)context, (void)session;
    if (op > NODE_OP_LAST || length != sizeof(struct node_request))
        return -EPROTO;
    answered[op]++;
    learn((enum node_op)op, bytes, NULL);
    memcpy(reply, &said, sizeof said);
    *reply_length = one_in(&state, 16) ? below(&state, CALL_BYTES_MAX + 1) : sizeof said;
    if (one_in(&state, 16))
        usleep((useconds_t)below(&state, 20000));
    if (one_in(&state, 8))
        return one_in(&state, 2) ? (int)random_of(&state) : -(int)below(&state, 140);
    const struct node_request *asked = bytes;
    if (op == NODE_READ || op == NODE_WRITE || op == NODE_PEEK)
        return (int)asked->length;
    if (op == NODE_ATTACH)
        far_maps[asked->map % FAR_MAPS].address = asked->address;
    if (op == NODE_FAULT)
        return serve_fault(session, asked, &state);
    if (op == NODE_MAP) {
        int error = serve_map(session, asked, &said);
        memcpy(reply, &said, sizeof said);
        *reply_length = sizeof said;
        return error;
    }
    return 0;
}

static int arrived(void *context, struct call_session *session)
{
    (void)context;
    call_session_get(session);
    for (unsigned i = 0; i < 2 * CALL_SLOTS; i++) { /* pages that a GATHER and a PATCH can name */
        uint64_t *list = call_slot(session, i);
        for (uint64_t page = 0; page < 64; page++)
            list[page] = page * (1 + i % 8);
    }
    pthread_mutex_lock(&lock);
    agent = session;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Until the other takes us again: it may not have cleared away the last session. */
static struct call_session *meet(void)
{
    struct node_request request = member_hello(members, 0);
    struct call_session *session;

    while (!over) {
        if (!call_connect(calls, peer, &session)) {
            if (!call(session, NODE_CALLS, NODE_HELLO, &request, sizeof request, NULL, NULL, SLOW_MS)) {
                meetings++;
                return session;
            }
            session_close(session);
        }
        usleep(50000);
    }
    return NULL;
}

/* The files as files 1, 2 ... of a session, a map of each, and the other as agent of them. */
static void begin(struct call_session *session, uint64_t *state)
{
    for (unsigned i = 0; i < name_count / 2; i++) {
        struct node_request request = {.file = i + 1, .name = names[i]};
        struct node_reply reply;
        size_t length = sizeof reply;
        call(session, NODE_CALLS, NODE_TRACK, &request, sizeof request, NULL, NULL, SLOW_MS);
        call(session, NODE_IO, NODE_OPEN, &request, sizeof request, NULL, NULL, SLOW_MS);
        request = (struct node_request){.file = i + 1,
                                        .client = 1 + (uint32_t)below(state, 3),
                                        .length = 32 * PAGE,
                                        .value = 256,
                                        .flags = NODE_MAP_WRITABLE};
        if (!call(session, NODE_CALLS, NODE_MAP, &request, sizeof request, &reply, &length, SLOW_MS)) {
            learn(NODE_MAP, &request, &reply);
            request.map = (uint32_t)reply.value[0];
            request.address = (i + 1) * 1024 * PAGE;
            request.flags = NODE_TRAPS;
            call(session, NODE_CALLS, NODE_ATTACH, &request, sizeof request, NULL, NULL, SLOW_MS);
            learn(NODE_ATTACH, &request, NULL);
        }
    }
}

/* The session of a direction, or NULL. */
static struct call_session *session_now(bool to_agent, uint64_t *state)
{
    static pthread_mutex_t meeting = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&lock);
    struct call_session *session = to_agent ? agent : home;
    pthread_mutex_unlock(&lock);
    if (to_agent || (session && !call_session_error(session)))
        return session;
    pthread_mutex_lock(&meeting); /* the first to notice does it for all */
    if (session == home) {
        session = meet();
        if (session)
            begin(session, state);
        pthread_mutex_lock(&lock);
        home = session ? session : home;
        pthread_mutex_unlock(&lock);
    }
    pthread_mutex_unlock(&meeting);
    return session;
}

static void *babble(void *argument)
{
    uint64_t state = *(const uint64_t *)argument;

    while (!over) {
        bool to_agent = one_in(&state, 2);
        struct call_session *session = session_now(to_agent, &state);
        if (session && !call_session_error(session))
            say(session, to_agent, &state);
        else
            usleep(1000);
    }
    return NULL;
}

static void print_counts(const char *title, const _Atomic unsigned *counts)
{
    printf("\"%s\": [", title);
    for (unsigned op = 1; op <= NODE_OP_LAST; op++)
        printf("%s%u", op > 1 ? ", " : "", counts[op]);
    printf("], ");
}

int main(int argc, char **argv)
{
    char why[CALL_WHY];
    pthread_t threads[THREADS];
    uint64_t seeds[THREADS];

    if (argc < 7 || members_parse(argv[1], argv[2], &members, why))
        return 2;
    peer = member_address(members, argv[3]);
    for (int i = 6; i < argc && name_count < NAMES_MAX; i++)
        if (member_name(argv[i], &names[name_count++]))
            return 4;
    if (!peer || member_calls(members, arrived, serve, &calls))
        return 3;
    for (unsigned i = 0; i < THREADS; i++) {
        seeds[i] = (strtoull(argv[4], NULL, 0) + i + 1) * UINT64_C(0x9E3779B97F4A7C15) | 1;
        if (pthread_create(&threads[i], NULL, babble, &seeds[i]))
            return 5;
    }
    usleep((useconds_t)(strtod(argv[5], NULL) * 1e6));
    over = true;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("{");
    print_counts("taken", taken);
    print_counts("refused", refused);
    print_counts("answered", answered);
    print_counts("slowest_ms", slowest_of);
    printf("\"hung\": %u, \"meetings\": %u}\n", hung, meetings);
    fflush(stdout);
    _exit(0); /* as one that dies: what it has under way is not ended */
}
