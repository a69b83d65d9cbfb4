/* SPDX-License-Identifier: Apache-2.0 */
/* A node that does as it is told, which no daemon would do (member.py): tool_member PEERS SELF
 * OTHER connects to the other and reads orders, one a line; each is answered with a line, the result. It has
 * one page of a file, in its own memory.
 *
 * hello LATE MS     as SELF; LATE: its kernel is one before 6.16; its clock is so far ahead
 * track PATH        the file of the data directory; open PATH: as file 1
 * many PATH         opens it under a hundred more numbers; how many were let
 * follow PATH       says that it is home of the file; take_over PATH: of another, which has died
 * unfollow PATH     that it is not any more what it has said by `follow`
 * give_up           ends the session in which it is a home
 * opened, sync, read_end    of file 1; read: its first page is the page now
 * set INDEX VALUE   a byte of the page
 * sync_later        as sync, and nobody waits
 * write             the page, as a kernel's write-back; write_later: 100 bytes of it, and nobody waits
 * cut BYTES, fallocate BYTES   of file 1, to that length
 * map               its first page, on a device of ours, where nothing is ever stored
 * acquire, release  by that map; leave: as a node that unmounts
 * said N            the first (0) or second (1) number that the other has answered to one of the last two
 *                   lines, to open or to write, the last time
 * invalidate        has the other drop its kernel's pages of the file that it opened last, and nobody waits
 * answer OP RESULT  what the other's calls of this kind are answered from now on
 * value OP N       and the first number of the reply; second OP N: and the second
 * home MEMBER       TRACK and OPEN are answered with this one, by its place in the list
 * is MEMBER         whether the other's last answer was so
 * living MEMBERS    with which it has a session, a bit for each, it says when it is asked (PING)
 * frames DEVICE FLAGS    has the other make frames of a device of its own; their number is 1 + FLAGS
 * pause OP MS       how long they take; negative: the next one alone
 * asked OP          how many have come; flags OP: of the last
 * aged OP           how many ms its clock was behind when it came */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/cache.h"
#include "tests/mount/member.h"

#define PAGE 4096u
#define MEMBER_FILE 1u
#define MEMBER_SLOT 1u
#define MEMBER_CLIENT 1u

static struct members *members;
static struct call_session *home, *_Atomic agent; /* that we have connected; that has connected to us */
static _Atomic unsigned flagged[NODE_OP_LAST + 1];
static _Atomic int answers[NODE_OP_LAST + 1], pauses_ms[NODE_OP_LAST + 1], asked[NODE_OP_LAST + 1];
static _Atomic int aged_ms[NODE_OP_LAST + 1];
static _Atomic uint64_t values[NODE_OP_LAST + 1], seconds[NODE_OP_LAST + 1];
static _Atomic uint32_t opened; /* by the other: its number of the file */
static uint32_t mapped;         /* by us: the home's number of the map */
static unsigned char page[PAGE];
static struct node_reply said;

static int arrived(void *context, struct call_session *session)
{
    (void)context;
    agent = session;
    return 0;
}

static int serve(void *context, struct call_session *session, unsigned op, const void *bytes, size_t length,
                 void *reply, size_t *reply_length)
{
    (void)context;
    (void)session;
    memset(reply, 0, sizeof(struct node_reply));
    *reply_length = sizeof(struct node_reply);
    if (op > NODE_OP_LAST)
        return -EPROTO;
    ((struct node_reply *)reply)->value[0] = values[op];
    ((struct node_reply *)reply)->value[1] = seconds[op];
    if (length == sizeof(struct node_request)) {
        const struct node_request *request = bytes;
        flagged[op] = request->flags;
        aged_ms[op] = (int)((clock_read_ns(CLOCK_REALTIME) - request->address) / 1000000);
        if (op == NODE_OPEN)
            opened = request->file;
    }
    asked[op]++;
    int pause_ms = pauses_ms[op];
    if (pause_ms < 0)
        pauses_ms[op] = 0;
    usleep((useconds_t)abs(pause_ms) * 1000);
    return answers[op];
}

static int ask(enum node_class class, enum node_op op, struct node_request *request)
{
    size_t length = sizeof said;

    request->file = MEMBER_FILE;
    return call(home, class, op, request, sizeof *request, &said, &length, 0);
}

static int hello(bool late, long ahead_ms)
{
    struct node_request request = member_hello(members, late ? NODE_LATE_KERNEL : 0);

    request.address += (uint64_t)ahead_ms * 1000000;
    return ask(NODE_CALLS, NODE_HELLO, &request);
}

static int named(struct call_session *to, enum node_class class, enum node_op op, const char *path,
                 uint64_t value)
{
    struct node_request request = {.file = MEMBER_FILE, .value = value};
    size_t length = sizeof said;
    int error = member_name(path, &request.name);

    if (error)
        return error;
    return to ? call(to, class, op, &request, sizeof request, &said, &length, 0) : -ENOTCONN;
}

/* A generation: the clock's, of nanoseconds, a minute from now. */
static uint64_t later_than_all(void)
{
    return ((uint64_t)time(NULL) + 60) * 1000000000;
}

static int read_page(void)
{
    int n = ask(NODE_IO, NODE_READ, &(struct node_request){.length = PAGE, .slot = MEMBER_SLOT, .value = 1});

    if (n > 0 && !call_slot_read(home, MEMBER_SLOT, 0, (size_t)n))
        memcpy(page, call_slot(home, MEMBER_SLOT), (size_t)n);
    return n;
}

static int write_page(size_t length, unsigned flags, unsigned slot)
{
    memcpy(call_slot(home, slot), page, length);
    int error = call_slot_write(home, slot, 0, length);
    return error ? error
                 : ask(NODE_IO, NODE_WRITE,
                       &(struct node_request){.length = length, .slot = slot, .flags = flags});
}

/* Each with a slot of its own, as long as there are no more than slots. */
static void *write_later(void *argument)
{
    static _Atomic unsigned number;

    write_page(100, 0, number++ % CALL_SLOTS);
    return argument;
}

static void *sync_later(void *argument)
{
    struct node_request request = {.file = MEMBER_FILE};

    call(home, NODE_SYNCS, NODE_SYNC, &request, sizeof request, NULL, NULL, 0);
    return argument;
}

static void *invalidate(void *argument)
{
    struct node_request request = {.file = opened};

    call(agent, NODE_KERNEL, NODE_INVALIDATE, &request, sizeof request, NULL, NULL, 0);
    return argument;
}

static int tell_size(long size, long truncations)
{
    struct node_request request = {
        .file = opened, .offset = -1, .length = (uint64_t)size, .value = (uint64_t)truncations};

    return agent ? call(agent, NODE_KERNEL, NODE_INVALIDATE, &request, sizeof request, NULL, NULL, 0)
                 : -ENOTCONN;
}

static int open_many(const char *path)
{
    struct node_request request = {0};
    struct node_reply reply;
    int error = member_name(path, &request.name), count = 0;

    for (unsigned i = 1; i <= 100 && !error; i++) {
        size_t length = sizeof reply;
        request.file = MEMBER_FILE + i;
        count += !call(home, NODE_IO, NODE_OPEN, &request, sizeof request, &reply, &length, 0);
    }
    return error ? error : count;
}

static int make_frames(unsigned device, unsigned flags)
{
    struct node_request request = {.frames = 1 + flags, .device = device, .length = 16, .flags = flags};

    return agent ? call(agent, NODE_FRAMES, NODE_FRAMES_OPEN, &request, sizeof request, NULL, NULL, 0)
                 : -ENOTCONN;
}

/* Clients are numbered by their node, and where they have mapped it is theirs. */
static int map_page(void)
{
    int error = ask(NODE_CALLS, NODE_MAP,
                    &(struct node_request){.client = MEMBER_CLIENT,
                                           .length = PAGE,
                                           .flags = NODE_MAP_WRITABLE,
                                           .value = NODE_DEVICE_PAGES_MIN});

    mapped = (uint32_t)said.value[0];
    return error ? error
                 : ask(NODE_CALLS, NODE_ATTACH,
                       &(struct node_request){
                           .client = MEMBER_CLIENT, .map = mapped, .address = PAGE, .flags = NODE_TRAPS});
}

static int of_map(enum node_class class, enum node_op op)
{
    return ask(class, op, &(struct node_request){.client = MEMBER_CLIENT, .map = mapped, .length = PAGE});
}

static int say_living(uint64_t living)
{
    values[NODE_PING] = living;
    seconds[NODE_PING] = members->epoch;
    return 0;
}

static int say_home(long member)
{
    if (member < 0 || member >= members->count)
        return -EINVAL;
    values[NODE_TRACK] = values[NODE_OPEN] = member_hash(members->list[member].name);
    seconds[NODE_TRACK] = seconds[NODE_OPEN] = later_than_all();
    return 0;
}

static int order(const char *word, const char *path, long one, long two)
{
    pthread_t thread;

    if (!strcmp(word, "hello"))
        return hello(one, two);
    if (!strcmp(word, "track"))
        return named(home, NODE_CALLS, NODE_TRACK, path, 0);
    if (!strcmp(word, "open"))
        return named(home, NODE_IO, NODE_OPEN, path, 0);
    if (!strcmp(word, "many"))
        return open_many(path);
    if (!strcmp(word, "follow")) /* we say that we are the home, and were it before */
        return named(agent, NODE_CALLS, NODE_FOLLOW, path, 1);
    if (!strcmp(word, "take_over")) /* and from now on */
        return named(agent, NODE_CALLS, NODE_FOLLOW, path, later_than_all());
    if (!strcmp(word, "unfollow")) /* we were it before */
        return named(agent, NODE_CALLS, NODE_UNFOLLOW, path, 1);
    if (!strcmp(word, "give_up")) {
        call_session_abort(agent);
        return 0;
    }
    if (!strcmp(word, "opened"))
        return ask(NODE_IO, NODE_OPENED, &(struct node_request){0});
    if (!strcmp(word, "sync"))
        return ask(NODE_SYNCS, NODE_SYNC, &(struct node_request){0});
    if (!strcmp(word, "sync_later"))
        return -pthread_create(&thread, NULL, sync_later, NULL);
    if (!strcmp(word, "read"))
        return read_page();
    if (!strcmp(word, "read_end"))
        return ask(NODE_HEALS, NODE_READ_END, &(struct node_request){.value = 1});
    if (!strcmp(word, "write"))
        return write_page(PAGE, CACHE_IO_WRITEBACK, MEMBER_SLOT);
    if (!strcmp(word, "cut"))
        return ask(NODE_IO, NODE_TRUNCATE, &(struct node_request){.length = (uint64_t)one});
    if (!strcmp(word, "fallocate"))
        return ask(NODE_IO, NODE_FALLOCATE, &(struct node_request){.length = (uint64_t)one});
    if (!strcmp(word, "map"))
        return map_page();
    if (!strcmp(word, "acquire"))
        return of_map(NODE_ACQUIRES, NODE_ACQUIRE);
    if (!strcmp(word, "release"))
        return of_map(NODE_CALLS, NODE_RELEASE);
    if (!strcmp(word, "leave"))
        return ask(NODE_CALLS, NODE_LEAVE, &(struct node_request){0});
    if (!strcmp(word, "said"))
        return (int)said.value[one & 1];
    if (!strcmp(word, "write_later"))
        return -pthread_create(&thread, NULL, write_later, NULL);
    if (!strcmp(word, "invalidate"))
        return agent ? -pthread_create(&thread, NULL, invalidate, NULL) : -ENOTCONN;
    if (!strcmp(word, "size"))
        return tell_size(one, two);
    if (!strcmp(word, "frames"))
        return make_frames((unsigned)one, (unsigned)two);
    if (!strcmp(word, "set") && one >= 0 && one < (long)PAGE)
        return page[one] = (unsigned char)two;
    if (!strcmp(word, "living"))
        return say_living((uint64_t)one);
    if (!strcmp(word, "home"))
        return say_home(one);
    if (!strcmp(word, "is") && one >= 0 && one < members->count)
        return said.value[0] == member_hash(members->list[one].name) && said.value[1];
    if (one < 0 || one > NODE_OP_LAST)
        return -EINVAL;
    if (!strcmp(word, "answer"))
        answers[one] = (int)two;
    else if (!strcmp(word, "value"))
        values[one] = (uint64_t)two;
    else if (!strcmp(word, "second"))
        seconds[one] = (uint64_t)two;
    else if (!strcmp(word, "pause"))
        pauses_ms[one] = (int)two;
    else
        return !strcmp(word, "asked")   ? asked[one]
               : !strcmp(word, "flags") ? (int)flagged[one]
               : !strcmp(word, "aged")  ? aged_ms[one]
                                        : -EINVAL;
    return 0;
}

int main(int argc, char **argv)
{
    char why[CALL_WHY], line[4200], word[32];
    struct calls *calls;

    if (argc != 4 || members_parse(argv[1], argv[2], &members, why))
        return 2;
    const char *to = member_address(members, argv[3]);
    if (!to || member_calls(members, arrived, serve, &calls) || call_connect(calls, to, &home))
        return 3;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char path[4100] = "";
        long one = 0, two = 0;
        if (sscanf(line, "%31s /%4095s", word, path + 1) == 2)
            path[0] = '/';
        else if (sscanf(line, "%31s %ld %ld", word, &one, &two) < 1)
            continue;
        printf("%d\n", order(word, path, one, two));
    }
    _exit(0); /* as one that dies: what it has under way is not ended */
}
