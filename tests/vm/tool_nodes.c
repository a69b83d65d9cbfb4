/* SPDX-License-Identifier: Apache-2.0 */
/* What programs on two nodes see of each other: two mounts A and B of one data directory, nodes a and b.
 *
 * tool_nodes check A B DATA SEED [DATA OF B]   the tests; DATA: the data directory as node a has it
 * tool_nodes acquire A B DATA COUNT   how long an acquire takes on b when nothing has changed, and what it
 *                                     costs on the wire: one line of JSON
 * tool_nodes name DATA a|b WHAT       makes a file with that home, and prints its name */
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "base/kernel.h"
#include "gaia.h"
#include "nodes_tool.h"
#include "tests/gate.h"

#define PAGES 48u
#define BYTES (PAGES * PAGE)
#define BIG ((size_t)8 << 20)
#define BIG_UNIT ((size_t)65536)
#define BIG_THREADS 3u

static const char *mounts[2], *data, *datas[2]; /* the last: as each node has it */
static struct gaia_device *device;
static uint64_t seed;
static unsigned failures;
static char problem[200];

/* A file, as both nodes have it. */
struct pair {
    unsigned home;
    char name[64];
    size_t bytes;
    int fd[2];
    uint8_t *mapped[2]; /* soft:0 */
    uint8_t *cpu[2];
};

__attribute__((format(printf, 1, 2))) static bool wrong(const char *format, ...)
{
    va_list arguments;

    if (*problem)
        return false;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    return false;
}

/* After which step that was. */
static bool wrong_round(const char *step, unsigned round)
{
    size_t length = strlen(problem);

    snprintf(problem + length, sizeof problem - length, ", after %s, round %u", step, round);
    return false;
}

static bool said(const char *what)
{
    return wrong("%s: %s", what, strerror(errno));
}

static bool same(const uint8_t *found, const uint8_t *expected, size_t length, const char *where)
{
    for (size_t i = 0; i < length; i++)
        if (found[i] != expected[i])
            return wrong("%s: byte %zu of page %zu is %02x, not %02x", where, i % PAGE, i / PAGE, found[i],
                         expected[i]);
    return true;
}

static uint8_t *map_device(int fd, size_t bytes)
{
    uint8_t *mapped = gaia_mmap(device, bytes, PROT_READ | PROT_WRITE, 0, fd, 0);

    if (mapped == MAP_FAILED)
        fail("gaia_mmap");
    return mapped;
}

static void pair_open(struct pair *pair, unsigned home, const char *what, size_t bytes,
                      const uint8_t *content)
{
    char prefix[40];

    *pair = (struct pair){.home = home, .bytes = bytes};
    snprintf(prefix, sizeof prefix, "%s-%c", what, "ab"[home]);
    make_homed(data, home, prefix, pair->name);
    int fd = open_in(data, pair->name, O_RDWR);
    if (pwrite(fd, content, bytes, 0) != (ssize_t)bytes)
        fail(pair->name);
    close(fd);
    for (unsigned i = 0; i < 2; i++) {
        pair->fd[i] = open_in(mounts[i], pair->name, O_RDWR);
        pair->mapped[i] = map_device(pair->fd[i], bytes);
        pair->cpu[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pair->fd[i], 0);
        if (pair->cpu[i] == MAP_FAILED)
            fail("mmap");
    }
}

static void pair_close(struct pair *pair)
{
    for (unsigned i = 0; i < 2; i++) {
        munmap(pair->cpu[i], pair->bytes);
        gaia_munmap(pair->mapped[i], pair->bytes);
        close(pair->fd[i]);
    }
}

/* What a program that opens the file anew reads there. */
static bool reads(const char *folder, const struct pair *pair, const uint8_t *expected)
{
    uint8_t *bytes = malloc(pair->bytes);
    int fd = open_in(folder, pair->name, O_RDONLY);
    ssize_t n = bytes ? pread(fd, bytes, pair->bytes, 0) : -1;

    close(fd);
    bool good = n == (ssize_t)pair->bytes ? same(bytes, expected, pair->bytes, folder)
                                          : wrong("%s: %zd bytes were read", folder, n);
    free(bytes);
    return good;
}

/* Everybody reads the same at the end: both nodes, and, synced, the data directory as its home has it. (An
 * NFS client that has a file open for writing, as an agent has, keeps what pages it holds of it.) */
static bool reads_everywhere(const struct pair *pair, const uint8_t *expected)
{
    for (unsigned i = 0; i < 2; i++) {
        if (gaia_mrelease(pair->mapped[i], pair->bytes, device))
            return said("the last release");
        if (fsync(pair->fd[i]))
            return said("fsync");
    }
    return reads(mounts[0], pair, expected) && reads(mounts[1], pair, expected) &&
           reads(datas[pair->home], pair, expected);
}

static uint8_t *random_bytes(size_t length, uint64_t *state)
{
    uint8_t *bytes = malloc(length);

    if (!bytes)
        fail("memory");
    for (size_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)draw(state, 256);
    return bytes;
}

static bool acquired(const struct pair *pair, unsigned node, const uint8_t *expected)
{
    if (gaia_macquire(pair->mapped[node], pair->bytes, device))
        return said("gaia_macquire");
    return same(pair->mapped[node], expected, pair->bytes, node ? "soft:0 of b" : "soft:0 of a");
}

/* ---- one writes on one node, one reads on the other ---- */

/* The CPU of one node writes, by write() and by stores, and the device of the other reads: stores that nobody
 * has flushed, too, which the acquire has that node's kernel write back. */
static bool cpu_to_device(struct pair *pair, unsigned from, uint8_t *expected, uint64_t *state)
{
    size_t at, length;

    for (unsigned round = 0; round < 24; round++) {
        change_some(expected, BYTES, state, &at, &length);
        if (round % 3 == 2) {
            memcpy(pair->cpu[from] + at, expected + at, length);
            if (round % 2 && fsync(pair->fd[from]))
                return said("fsync");
        } else if (pwrite(pair->fd[from], expected + at, length, (off_t)at) != (ssize_t)length) {
            return said("pwrite");
        }
        if (!acquired(pair, !from, expected))
            return wrong_round(round % 3 == 2 ? "a store" : "write()", round);
    }
    return reads_everywhere(pair, expected);
}

/* The device of one node writes, and the CPU of the other reads, by read() and by loads. */
static bool device_to_cpu(struct pair *pair, unsigned from, uint8_t *expected, uint64_t *state)
{
    static uint8_t bytes[BYTES];
    size_t at, length;

    for (unsigned round = 0; round < 24; round++) {
        change_some(expected, BYTES, state, &at, &length);
        memcpy(pair->mapped[from] + at, expected + at, length);
        if (gaia_mrelease(pair->mapped[from] + at / PAGE * PAGE, length + at % PAGE, device))
            return said("gaia_mrelease");
        if (round % 2 == 0 && pread(pair->fd[!from], bytes, BYTES, 0) != (ssize_t)BYTES)
            return said("pread");
        if (!same(round % 2 ? pair->cpu[!from] : bytes, expected, BYTES, "the CPU"))
            return wrong_round(round % 2 ? "loads" : "read()", round);
    }
    return reads_everywhere(pair, expected);
}

/* From device to device, there and back. */
static bool device_to_device(struct pair *pair, unsigned from, uint8_t *expected, uint64_t *state)
{
    size_t at, length;

    for (unsigned round = 0; round < 24; round++, from = !from) {
        if (!acquired(pair, from, expected))
            return false;
        change_some(expected, BYTES, state, &at, &length);
        memcpy(pair->mapped[from] + at, expected + at, length);
        if (gaia_mrelease(pair->mapped[from], BYTES, device))
            return said("gaia_mrelease");
        if (!acquired(pair, !from, expected))
            return false;
    }
    return reads_everywhere(pair, expected);
}

/* ---- many write to the same pages ---- */

#define WRITERS_MAX 6u
#define SHARED_PAGES 12u
enum how { BY_DEVICE, BY_WRITE, BY_STORE };

/* Every count-th byte is his. */
struct writer {
    struct pair *pair;
    unsigned node, number, count, rounds;
    enum how how;
    uint8_t *expected;
    uint64_t state;
    bool reopens;
};

static bool own_bytes(const struct writer *w, const uint8_t *page, size_t offset)
{
    for (size_t i = w->number; i < PAGE; i += w->count)
        if (page[i] != w->expected[offset + i])
            return wrong("writer %u: its own byte %zu of page %zu is %02x, not %02x", w->number, i,
                         offset / PAGE, page[i], w->expected[offset + i]);
    return true;
}

static bool write_some(struct writer *w, size_t offset)
{
    uint8_t *to = w->how == BY_DEVICE ? w->pair->mapped[w->node] : w->pair->cpu[w->node];

    for (unsigned n = 0; n < 8; n++) {
        size_t at = offset + draw(&w->state, PAGE / w->count) * w->count + w->number;
        w->expected[at] = (uint8_t)draw(&w->state, 256);
        if (w->how != BY_WRITE)
            to[at] = w->expected[at];
        else if (pwrite(w->pair->fd[w->node], &w->expected[at], 1, (off_t)at) != 1)
            return said("pwrite");
    }
    return true;
}

/* Its own bytes, whatever neighbours do; and now and then the file is closed and opened. */
static bool look(struct writer *w, size_t offset)
{
    uint8_t bytes[PAGE];

    if (w->how == BY_DEVICE) {
        if (gaia_mrelease(w->pair->mapped[w->node] + offset, PAGE, device))
            return said("gaia_mrelease");
        if (draw(&w->state, 2) && gaia_macquire(w->pair->mapped[w->node] + offset, PAGE, device))
            return said("gaia_macquire");
        return own_bytes(w, w->pair->mapped[w->node] + offset, offset);
    }
    if (w->how == BY_STORE)
        return own_bytes(w, w->pair->cpu[w->node] + offset, offset);
    int fd = w->reopens ? open_in(mounts[w->node], w->pair->name, O_RDONLY) : w->pair->fd[w->node];
    ssize_t n = pread(fd, bytes, PAGE, (off_t)offset);
    if (w->reopens)
        close(fd);
    return n == (ssize_t)PAGE ? own_bytes(w, bytes, offset) : said("pread");
}

/* In tests/run.sh: an emulator takes its time. */
static unsigned half_of(unsigned rounds)
{
    return in_the_gate() ? rounds / 2 : rounds;
}

static void *writes(void *argument)
{
    struct writer *w = argument;

    for (unsigned round = 0; round < w->rounds && !*problem; round++) {
        size_t offset = draw(&w->state, SHARED_PAGES) * PAGE;
        if (!write_some(w, offset) || !look(w, offset))
            break;
    }
    return NULL;
}

static bool all_write(struct pair *pair, uint8_t *expected, uint64_t *state, const enum how *hows,
                      unsigned count, unsigned rounds)
{
    struct writer writers[WRITERS_MAX];
    pthread_t threads[WRITERS_MAX];

    for (unsigned i = 0; i < count; i++) {
        writers[i] = (struct writer){.pair = pair,
                                     .node = i % 2,
                                     .number = i,
                                     .count = count,
                                     .rounds = rounds,
                                     .how = hows[i / 2],
                                     .expected = expected,
                                     .state = draw(state, UINT64_MAX),
                                     .reopens = hows[i / 2] == BY_WRITE && rounds % 2};
        if (pthread_create(&threads[i], NULL, writes, &writers[i]))
            fail("pthread_create");
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return !*problem;
}

/* Bytes of the same pages: soft:0 of both nodes, and write() on both. */
static bool false_sharing(struct pair *pair, unsigned from, uint8_t *expected, uint64_t *state)
{
    (void)from;
    return all_write(pair, expected, state, (const enum how[]){BY_DEVICE, BY_WRITE}, 4, half_of(40)) &&
           reads_everywhere(pair, expected) && acquired(pair, 0, expected) && acquired(pair, 1, expected);
}

/* Programs of both nodes, no device among them: write() and stores, then close(), and each reads the other's.
 * The maps of soft:0 are there all the same: from the first of them on the home is asked. */
static bool cpus_share(struct pair *pair, unsigned from, uint8_t *expected, uint64_t *state)
{
    (void)from;
    for (unsigned turn = 0; turn < 2; turn++) {
        if (!all_write(pair, expected, state, (const enum how[]){BY_WRITE, BY_STORE}, 4, half_of(31)))
            return false;
        for (unsigned node = 0; node < 2; node++) { /* close() writes back what was stored */
            munmap(pair->cpu[node], pair->bytes);
            if (close(pair->fd[node]))
                return said("close");
        }
        if (!reads(mounts[0], pair, expected) || !reads(mounts[1], pair, expected))
            return false;
        for (unsigned node = 0; node < 2; node++) {
            pair->fd[node] = open_in(mounts[node], pair->name, O_RDWR);
            pair->cpu[node] = mmap(NULL, pair->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pair->fd[node], 0);
            if (pair->cpu[node] == MAP_FAILED)
                fail("mmap");
        }
    }
    return reads_everywhere(pair, expected);
}

/* ---- more is touched than the device holds ---- */

static struct {
    struct pair pair;
    uint8_t *expected;
} big;

/* Each has units of its own. */
static void *touches(void *argument)
{
    unsigned thread = (unsigned)(uintptr_t)argument;
    uint64_t state = seed + thread;

    for (unsigned round = 0; round < half_of(60) && !*problem; round++) {
        size_t unit = draw(&state, BIG / BIG_UNIT / BIG_THREADS) * BIG_THREADS + thread;
        size_t at = unit * BIG_UNIT + draw(&state, BIG_UNIT - PAGE), length = 1 + draw(&state, PAGE);
        uint8_t *device_bytes = big.pair.mapped[!big.pair.home] + at;

        if (!same(device_bytes, big.expected + at, length, "a load of the agent's soft:0"))
            break;
        for (size_t i = 0; i < length; i++)
            device_bytes[i] = big.expected[at + i] = (uint8_t)draw(&state, 256);
        if (round % 4 == 0 && gaia_mrelease(device_bytes - at % PAGE, length + at % PAGE, device))
            said("gaia_mrelease");
    }
    return NULL;
}

static bool oversubscribed(unsigned home, uint64_t *state)
{
    pthread_t threads[BIG_THREADS];

    big.expected = random_bytes(BIG, state);
    pair_open(&big.pair, home, "big", BIG, big.expected);
    for (unsigned i = 0; i < BIG_THREADS; i++)
        if (pthread_create(&threads[i], NULL, touches, (void *)(uintptr_t)i))
            fail("pthread_create");
    for (unsigned i = 0; i < BIG_THREADS; i++)
        pthread_join(threads[i], NULL);
    bool good = !*problem && reads_everywhere(&big.pair, big.expected);
    pair_close(&big.pair);
    free(big.expected);
    return good;
}

/* ---- the wire ---- */

static bool wired; /* there are RDMA devices: else the local carrier is tried */

static uint64_t counter(const char *path)
{
    char text[32] = "";
    int fd = wired ? open(path, O_RDONLY) : -1;

    if (!wired)
        return 0;
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
        fail(path);
    close(fd);
    return strtoull(text, NULL, 10);
}

struct wire {
    uint64_t sends[2]; /* messages */
    uint64_t bytes;    /* both ways */
};

static struct wire wire_now(void)
{
    return (struct wire){
        .sends = {counter("/sys/class/infiniband/rxe0/ports/1/hw_counters/rdma_sends"),
                  counter("/sys/class/infiniband/rxe1/ports/1/hw_counters/rdma_sends")},
        .bytes = counter("/sys/class/net/veth0/statistics/rx_bytes") +
                 counter("/sys/class/net/veth0/statistics/tx_bytes"),
    };
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *one = a, *other = b;

    return (*one > *other) - (*one < *other);
}

static uint64_t median(uint64_t *took_us, unsigned count)
{
    qsort(took_us, count, sizeof *took_us, by_value);
    return took_us[count / 2];
}

struct acquires {
    double sends[2], bytes; /* of one acquire */
    double closes[2];       /* messages of a close(), which acquires need before Linux 6.16 */
    uint64_t p50_us, closes_p50_us;
};

static void close_often(const struct pair *pair, unsigned count, uint64_t *took_us, struct acquires *out)
{
    if (!kernel_writes_back_late())
        return;
    struct wire before = wire_now();
    for (unsigned i = 0; i < count; i++) {
        uint64_t since = now_us();
        int fd = dup(pair->fd[1]);
        if (fd < 0)
            fail("dup");
        close(fd);
        took_us[i] = now_us() - since;
    }
    struct wire after = wire_now();
    for (unsigned i = 0; i < 2; i++)
        out->closes[i] = (double)(after.sends[i] - before.sends[i]) / count;
    out->closes_p50_us = median(took_us, count);
}

/* b acquires a file of a's again and again, all of it resident and unchanged. */
static void acquire_often(unsigned count, struct acquires *out)
{
    uint64_t state = seed, *took_us = calloc(count, sizeof *took_us);
    uint8_t *content = random_bytes(BYTES, &state);
    struct pair pair;

    if (!took_us)
        fail("memory");
    pair_open(&pair, 0, "acquired", BYTES, content);
    for (unsigned i = 0; i < 2; i++) /* all of it comes, and the first acquires settle what that was */
        if (!acquired(&pair, 1, content))
            fail(problem);
    struct wire before = wire_now();
    for (unsigned i = 0; i < count; i++) {
        uint64_t since = now_us();
        if (gaia_macquire(pair.mapped[1], BYTES, device))
            fail("gaia_macquire");
        took_us[i] = now_us() - since;
    }
    struct wire after = wire_now();
    same(pair.mapped[1], content, BYTES, "after the acquires");
    *out = (struct acquires){.p50_us = median(took_us, count)};
    close_often(&pair, count, took_us, out);
    pair_close(&pair);
    for (unsigned i = 0; i < 2; i++)
        out->sends[i] = (double)(after.sends[i] - before.sends[i]) / count;
    out->bytes = (double)(after.bytes - before.bytes) / count;
    free(took_us);
    free(content);
}

/* ---- */

static void conclude(const char *name, unsigned home, uint64_t since_us)
{
    char full[80];

    snprintf(full, sizeof full, "%s, home %c", name, "ab"[home]);
    if (*problem)
        printf("node test %s: failed: %s\n", full, problem);
    else
        printf("node test %s: ok (%.1f s)\n", full, (double)(now_us() - since_us) / 1e6);
    fflush(stdout);
    failures += *problem != '\0';
    *problem = '\0';
}

static const struct test {
    const char *name;
    bool (*run)(struct pair *pair, unsigned from, uint8_t *expected, uint64_t *state);
    unsigned from;
} tests[] = {
    {"CPU of a to soft:0 of b", cpu_to_device, 0},
    {"CPU of b to soft:0 of a", cpu_to_device, 1},
    {"soft:0 of a to CPU of b", device_to_cpu, 0},
    {"soft:0 of b to CPU of a", device_to_cpu, 1},
    {"soft:0 of a and of b", device_to_device, 0},
    {"bytes of one page, devices and write()", false_sharing, 0},
    {"bytes of one page, CPUs", cpus_share, 0},
};

static void run_pairs(unsigned home, uint64_t *state)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        uint8_t *expected = random_bytes(BYTES, state);
        uint64_t since = now_us();
        char what[16];
        struct pair pair;

        snprintf(what, sizeof what, "t%zu", i);
        pair_open(&pair, home, what, BYTES, expected);
        tests[i].run(&pair, tests[i].from, expected, state);
        pair_close(&pair);
        free(expected);
        conclude(tests[i].name, home, since);
    }
}

/* One round trip, and no page. KEEPALIVEs come on top, a few a second. */
static void check_acquires(void)
{
    uint64_t since = now_us();
    struct acquires found;

    acquire_often(100, &found);
    double there = found.sends[1] - found.closes[1], back = found.sends[0] - found.closes[0];
    printf("an acquire of %u pages with nothing changed: %.2f messages there, %.2f back, %.0f bytes; of "
           "these %.2f "
           "and %.2f because write-backs are late before Linux 6.16\n",
           PAGES, found.sends[1], found.sends[0], found.bytes, found.closes[1], found.closes[0]);
    if (wired && (there < 0.9 || there > 1.3 || back < 0.9 || back > 1.3))
        wrong("%.2f messages there, %.2f back", there, back);
    else if (found.bytes > PAGE)
        wrong("%.0f bytes for one acquire", found.bytes);
    conclude("an acquire is one round trip", 0, since);
}

static int check(void)
{
    uint64_t state = seed;

    printf("seed %llu\n", (unsigned long long)seed);
    for (unsigned home = 0; home < 2; home++) {
        if (home == 0 || !in_the_gate())
            run_pairs(home, &state);
        uint64_t since = now_us();
        struct wire before = wire_now();
        oversubscribed(home, &state);
        uint64_t moved = wire_now().bytes - before.bytes;
        printf("more than the device holds: %llu KiB over the wire\n", (unsigned long long)moved >> 10);
        if (wired && moved < BIG) /* nothing came from anywhere else */
            wrong("only %llu KiB over the wire", (unsigned long long)moved >> 10);
        conclude("more than the agent's device holds", home, since);
    }
    check_acquires();
    return failures != 0;
}

int main(int argc, char **argv)
{
    struct acquires found;
    char name[64];

    if (argc == 5 && !strcmp(argv[1], "name")) {
        make_homed(argv[2], *argv[3] == 'b', argv[4], name);
        puts(name);
        return 0;
    }
    if (argc != 6 && argc != 7)
        return 2;
    mounts[0] = argv[2];
    mounts[1] = argv[3];
    data = datas[0] = argv[4];
    datas[1] = argv[argc == 7 ? 6 : 4];
    wired = access("/sys/class/infiniband/rxe0", F_OK) == 0;
    if (gaia_device_open("soft:0", &device))
        fail("gaia_device_open");
    if (!strcmp(argv[1], "acquire")) {
        acquire_often((unsigned)strtoul(argv[5], NULL, 0), &found);
        printf("{\"p50_us\": %llu, \"late_us\": %llu, \"there\": %.3f, \"back\": %.3f, \"late_there\": %.3f, "
               "\"bytes\": %.0f}\n",
               (unsigned long long)found.p50_us, (unsigned long long)found.closes_p50_us, found.sends[1],
               found.sends[0], found.closes[1], found.bytes);
        return *problem != '\0';
    }
    seed = strtoull(argv[5], NULL, 0);
    return check();
}
