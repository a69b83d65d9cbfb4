/* SPDX-License-Identifier: Apache-2.0 */
/* The transport and peers that are killed, stop, or do not do what they should; addresses and devices that
 * are not there, limits. Each ends in an error within the set time. */
#include "io/transport_local.h"
#include "io/transport_rdma.h"
#include "tests/io/peer.h"

#include <linux/capability.h>
#include <linux/kcmp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* ---- a peer in another process ---- */

enum { FRAMES = 1 << 20 };

/* Listens, and exposes its frames to whoever comes. */
static void run_peer(struct peer_shared *shared)
{
    static struct side side;
    struct gaia_transport_config config;
    uint8_t *frames = new_frames(FRAMES);
    unsigned exposed = 0;
    uint32_t region;

    fill(frames, FRAMES, 10);
    side_init(&side, true);
    memcpy(side.address, shared->address, sizeof side.address);
    config = side_config(&side, true, shared->timeout_ms);
    if (gaia_transport_open(&config, &side.transport)) {
        print_error("peer: %s\n", gaia_transport_why());
        return;
    }
    shared->ready = true;
    for (;;) {
        gaia_transport_poll(side.transport, 50);
        for (; exposed < side.arrived; exposed++)
            gaia_link_expose(side.links[exposed], &(struct gaia_span){frames, FRAMES, -1}, false, &region);
        transport_test.deaf = shared->deaf;
    }
}

struct parent {
    struct peer peer;
    struct side client;
    struct gaia_link *link;
    uint8_t *local;
    struct gaia_memory *memory;
    struct shot shots[8];
};

static void parent_open(struct parent *p)
{
    struct gaia_link_options options = {.queues = 1, .depth = 8};

    memset(p, 0, sizeof *p);
    peer_start(&p->peer, SHORT_MS);
    side_open(&p->client, false, SHORT_MS);
    p->local = new_frames(FRAMES);
    p->memory = new_memory(&p->client, p->local, FRAMES);
    must(gaia_link_connect(p->client.transport, p->peer.shared->address, &options, &p->link));
    await(&p->client, &p->client.exposed, 1);
    struct shot first = new_shot(p->memory, 0, p->client.region, 0, 4096, false);
    assert_int_equal(shoot(&p->client, p->link, &first), 0);
    assert_true(matches(p->local, 4096, 10, 0));
}

static void parent_close(struct parent *p)
{
    gaia_link_close(p->link);
    gaia_memory_release(p->memory);
    side_close(&p->client);
    peer_end(&p->peer);
    munmap(p->local, FRAMES);
}

/* Reads without pause until the link ends: each ends once, well or with EIO, and all in time. */
static void read_until_end(struct parent *p, unsigned limit_ms)
{
    uint64_t began = now_ms();
    unsigned good = 0, bad = 0;

    while (!p->client.closed && now_ms() - began < limit_ms) {
        unsigned posted = 0;

        for (; posted < 8; posted++) {
            p->shots[posted] =
                new_shot(p->memory, posted * 64 * KIB, p->client.region, posted * 64 * KIB, 64 * KIB, false);
            if (post_one(p->link, 0, &p->shots[posted]) != 1)
                break;
        }
        for (unsigned i = posted; i < 8; i++)
            p->shots[i].calls = 1;
        assert_true(gaia_transport_wait(p->client.transport, all_shots_done, p->shots, limit_ms));
        for (unsigned i = 0; i < posted; i++) {
            assert_int_equal(p->shots[i].calls, 1);
            assert_true(!p->shots[i].error || p->shots[i].error == -EIO);
            good += !p->shots[i].error;
            bad += p->shots[i].error != 0;
        }
        if (!posted)
            gaia_transport_poll(p->client.transport, 10);
    }
    print_message("%u reads went well, %u failed, %u ms: %s\n", good, bad, (unsigned)(now_ms() - began),
                  p->client.closed_why);
    assert_int_equal(p->client.closed, 1);
    assert_int_equal(p->client.closed_error, -EIO);
    assert_in_range(now_ms() - began, 0, limit_ms);
}

static void test_peer_killed(void **state)
{
    static struct parent p;

    (void)state;
    parent_open(&p);
    for (unsigned i = 0; i < 8; i++) {
        p.shots[i] = new_shot(p.memory, i * 64 * KIB, p.client.region, i * 64 * KIB, 64 * KIB, false);
        assert_int_equal(post_one(p.link, 0, &p.shots[i]), 1);
    }
    peer_signal(&p.peer, SIGKILL);
    assert_true(gaia_transport_wait(p.client.transport, all_shots_done, p.shots, SHORT_MS + SLACK_MS));
    read_until_end(&p, SHORT_MS + SLACK_MS);
    parent_close(&p);
}

static void test_peer_stops(void **state)
{
    static struct parent p;

    (void)state;
    parent_open(&p);
    peer_signal(&p.peer, SIGSTOP);
    read_until_end(&p, SHORT_MS + SLACK_MS);
    parent_close(&p);
}

/* The same, and nothing is asked of it. */
static void test_idle_peer_stops(void **state)
{
    static struct parent p;

    (void)state;
    parent_open(&p);
    peer_signal(&p.peer, SIGSTOP);
    assert_true(await_ms(&p.client, &p.client.closed, 1, SHORT_MS + SLACK_MS));
    assert_int_equal(p.client.closed_error, -EIO);
    assert_non_null(strstr(p.client.closed_why, "has said nothing"));
    parent_close(&p);
}

/* It lives and says so, but does not do what it is asked. (On RDMA the NIC does.) */
static void test_peer_ignores_transfers(void **state)
{
    static struct parent p;

    (void)state;
    if (carrier == GAIA_CARRIER_RDMA)
        skip();
    parent_open(&p);
    p.peer.shared->deaf = true;
    nap_ms(200);
    gaia_transport_poll(p.client.transport, 0);
    read_until_end(&p, SHORT_MS + SLACK_MS);
    assert_non_null(strstr(p.client.closed_why, "has not answered a transfer"));
    parent_close(&p);
}

/* A region that is not given back: the stopped peer does not answer DROP. Here the test is the server. */
static void test_drop_unanswered(void **state)
{
    static struct pair pair;
    uint8_t *remote = new_frames(4 * KIB);

    (void)state;
    pair_open(&pair, 1, 4, SHORT_MS);
    uint32_t region = expose_to(&pair, 0, remote, 4 * KIB, false);
    must(gaia_link_drop(pair.server.links[0], region));
    /* The client, in this thread, does not poll. */
    uint64_t began = now_ms();
    while (!pair.server.closed && now_ms() - began < SHORT_MS + SLACK_MS)
        nap_ms(10);
    assert_int_equal(pair.server.closed, 1);
    assert_int_equal(pair.server.closed_error, -EIO);
    assert_int_equal(pair.server.concealed, 0);
    gaia_link_close(pair.link);
    pair_close(&pair);
    munmap(remote, 4 * KIB);
}

/* One that lives and says so, and keeps it: a transfer of the region does not end. */
static void test_drop_kept(void **state)
{
    static struct pair pair;
    uint8_t *remote = new_frames(4 * KIB), *local = new_frames(4 * KIB);
    struct gaia_link_options options = {.queues = 1, .depth = 4};

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip(); /* a NIC ends its transfers */
    side_open(&pair.server, true, SHORT_MS);
    side_open(&pair.client, false, 20 * SHORT_MS);
    must(gaia_link_connect(pair.client.transport, pair.server.address, &options, &pair.link));
    await(&pair.server, &pair.server.arrived, 1);
    struct gaia_memory *memory = new_memory(&pair.client, local, 4 * KIB);
    uint32_t region = expose_to(&pair, 0, remote, 4 * KIB, false);
    struct shot shot = new_shot(memory, 0, region, 0, 4096, false);
    transport_test.deaf = true;
    assert_int_equal(post_one(pair.link, 0, &shot), 1);
    must(gaia_link_drop(pair.server.links[0], region));
    assert_true(await_ms(&pair.client, &pair.client.closed, 1, SHORT_MS + SLACK_MS));
    await(&pair.server, &pair.server.closed, 1);
    assert_int_equal(pair.server.closed_error, -EIO);
    assert_non_null(strstr(pair.server.closed_why, "has not let go"));
    assert_int_equal(shot.calls, 1);
    assert_int_equal(shot.error, -EIO);
    gaia_link_close(pair.link);
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(remote, 4 * KIB);
    munmap(local, 4 * KIB);
}

static void test_connect_to_stopped_peer(void **state)
{
    struct peer peer;
    static struct side client;
    struct gaia_link_options options = {.queues = 1, .depth = 8};
    struct gaia_link *link = NULL;

    (void)state;
    peer_start(&peer, SHORT_MS);
    peer_signal(&peer, SIGSTOP);
    side_open(&client, false, SHORT_MS);
    uint64_t began = now_ms();
    assert_int_equal(gaia_link_connect(client.transport, peer.shared->address, &options, &link), -ETIMEDOUT);
    assert_in_range(now_ms() - began, SHORT_MS - 100, SHORT_MS + SLACK_MS);
    side_close(&client);
    peer_end(&peer);
}

/* ---- addresses and resources ---- */

static void test_nobody_listens(void **state)
{
    static struct side client;
    char address[128];
    struct gaia_link_options options = {.queues = 1, .depth = 8};
    struct gaia_link *link = NULL;

    (void)state;
    side_open(&client, false, TIMEOUT_MS);
    new_address(address, true);
    assert_int_equal(gaia_link_connect(client.transport, address, &options, &link), -ECONNREFUSED);
    assert_non_null(strstr(gaia_transport_why(), address));
    assert_int_equal(gaia_link_connect(client.transport, "", &options, &link), -EINVAL);
    options.queues = GAIA_LINK_QUEUES_MAX + 1;
    assert_int_equal(gaia_link_connect(client.transport, address, &options, &link), -EINVAL);
    options = (struct gaia_link_options){1, GAIA_LINK_DEPTH_MAX + 1};
    assert_int_equal(gaia_link_connect(client.transport, address, &options, &link), -EINVAL);
    side_close(&client);
}

static int open_at(const char *address, bool listen, enum gaia_carrier which)
{
    struct gaia_transport_config config = {
        .carrier = which, .address = address, .listen = listen, .timeout_ms = TIMEOUT_MS};
    struct gaia_transport *transport = NULL;
    int error = gaia_transport_open(&config, &transport);

    if (!error)
        gaia_transport_close(transport);
    return error;
}

static void test_port_in_use(void **state)
{
    static struct side server;

    (void)state;
    side_open(&server, true, TIMEOUT_MS);
    assert_int_equal(open_at(server.address, true, carrier), -EADDRINUSE);
    assert_non_null(strstr(gaia_transport_why(), server.address));
    side_close(&server);
}

static void test_bad_addresses(void **state)
{
    static const char *const bad[] = {
        "",       "nonsense",    "10.0.0.1", "10.0.0.1:", "10.0.0.1:99999", "10.0.0.1:1x", "host.example:1",
        "[::1:5", "10.0.0.256:1"};

    (void)state;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(open_at(bad[i], false, GAIA_CARRIER_RDMA), -EINVAL);
    char longest[100];
    memset(longest, 'x', sizeof longest);
    longest[99] = 0;
    assert_int_equal(open_at(longest, true, GAIA_CARRIER_LOCAL), -EINVAL);
    struct gaia_transport_config config = {.carrier = carrier, .address = "x", .timeout_ms = 49};
    struct gaia_transport *transport;
    assert_int_equal(gaia_transport_open(&config, &transport), -EINVAL);
}

/* Where there is none; the machine in which the others run has one, so this one runs before it gets it. */
static void test_no_device(void **state)
{
    (void)state;
    if (carrier == GAIA_CARRIER_RDMA || access("/sys/class/infiniband", F_OK) == 0) {
        DIR *folder = opendir("/sys/class/infiniband");
        int count = 0;
        while (folder && readdir(folder))
            count++;
        if (folder)
            closedir(folder);
        if (count > 2)
            skip();
    }
    assert_int_equal(open_at("127.0.0.1:0", false, GAIA_CARRIER_RDMA), -ENODEV);
    assert_non_null(strstr(gaia_transport_why(), "no RDMA device"));
}

/* Addresses that no RDMA device has: this machine's own, and nobody's. */
static void test_device_without_address(void **state)
{
    (void)state;
    if (carrier != GAIA_CARRIER_RDMA)
        skip();
    assert_int_equal(open_at("127.0.0.1:0", true, carrier), -EADDRNOTAVAIL);
    assert_non_null(strstr(gaia_transport_why(), "127.0.0.1"));
    assert_int_equal(open_at("192.0.2.77:7471", true, carrier), -EADDRNOTAVAIL);
    assert_int_equal(open_at("0.0.0.0:0", true, carrier), -EADDRNOTAVAIL);
}

/* In a process of its own: the kernel lets nobody use a device whose rights have changed since it was opened.
 */
static void limited(void **state)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    static struct pair pair;
    const size_t length = 32 * MIB;
    uint8_t *frames = new_frames(length);
    struct gaia_span span = {frames, length, -1};
    struct gaia_memory *memory = NULL;
    uint32_t region;

    (void)state;
    assert_int_equal(syscall(SYS_capget, &head, data), 0);
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    assert_int_equal(syscall(SYS_capset, &head, data), 0);
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){8 * MIB, 8 * MIB}), 0);
    pair_open(&pair, 1, 4, TIMEOUT_MS);
    assert_int_equal(gaia_memory_register(pair.client.transport, &span, &memory), -ENOMEM);
    print_message("%s\n", gaia_transport_why());
    assert_non_null(strstr(gaia_transport_why(), "RLIMIT_MEMLOCK allows 8388608 bytes"));
    assert_int_equal(gaia_link_expose(pair.server.links[0], &span, false, &region), -ENOMEM);
    assert_non_null(strstr(gaia_transport_why(), "RLIMIT_MEMLOCK"));
    /* The link has not noticed. */
    memory = new_memory(&pair.client, frames, MIB);
    region = expose_to(&pair, 0, frames + MIB, MIB, false);
    struct shot shot = new_shot(memory, 0, region, 0, 4096, false);
    assert_int_equal(shoot(&pair.client, pair.link, &shot), 0);
    gaia_link_close(pair.link);
    gaia_memory_release(memory);
    pair_close(&pair);
    munmap(frames, length);
}

static void test_memlock(void **state)
{
    int status;

    (void)state;
    if (carrier != GAIA_CARRIER_RDMA)
        skip(); /* nothing is locked */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        execl("/proc/self/exe", "limited", "--carrier", "rdma", here, there, "--limited", NULL);
        _exit(4);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Another device's memory, where the carrier takes none. */
static void test_dmabuf(void **state)
{
    static struct pair pair;
    struct gaia_transport_limits limits;
    struct gaia_memory *memory = NULL;
    uint32_t region;
    struct gaia_span span = {NULL, 4096, 0}; /* standard input is no dmabuf anyway */

    (void)state;
    pair_open(&pair, 1, 4, TIMEOUT_MS);
    gaia_transport_limits(pair.client.transport, &limits);
    print_message("device %s, %u reads of a queue, %llu MB/s, dmabuf: %s\n", limits.device,
                  limits.reads_per_queue, (unsigned long long)limits.bytes_per_second / 1000000,
                  limits.dmabuf ? "yes" : "no");
    if (limits.dmabuf)
        skip();
    assert_int_equal(gaia_memory_register(pair.client.transport, &span, &memory), -EOPNOTSUPP);
    assert_int_equal(gaia_link_expose(pair.server.links[0], &span, false, &region), -EOPNOTSUPP);
    span.dmabuf = -1;
    assert_int_equal(gaia_memory_register(pair.client.transport, &span, &memory), -EINVAL);
    pair_close(&pair);
}

static unsigned cpu_ms(pthread_t thread)
{
    struct timespec time;
    clockid_t clock;

    assert_int_equal(pthread_getcpuclockid(thread, &clock), 0);
    assert_int_equal(clock_gettime(clock, &time), 0);
    return (unsigned)(time.tv_sec * 1000 + time.tv_nsec / 1000000);
}

/* A device that was taken away: the descriptor of its completions has an error for good. Links end, and no
 * processor is kept busy. */
static void test_dead_device(void **state)
{
    static struct pair pair;
    struct gaia_link_options options = {.queues = 1, .depth = 4};
    struct gaia_link *link = NULL;
    int ends[2];

    (void)state;
    if (carrier != GAIA_CARRIER_RDMA)
        skip();
    pair_open(&pair, 1, 4, SHORT_MS);
    const struct rdma *rdma = pair.server.transport->own;
    int fd = rdma->completions->fd;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(close(ends[1]), 0);
    assert_int_equal(dup2(ends[0], fd), fd);
    must(transport_watch(pair.server.transport, fd, QUEUE_EVENTS));
    await(&pair.server, &pair.server.closed, 1);
    assert_int_equal(pair.server.closed_error, -EIO);
    assert_non_null(strstr(pair.server.closed_why, "has gone"));
    unsigned before = cpu_ms(pair.server.thread);
    nap_ms(500);
    assert_in_range(cpu_ms(pair.server.thread) - before, 0, 150);
    assert_int_not_equal(gaia_link_connect(pair.client.transport, pair.server.address, &options, &link), 0);
    gaia_link_close(pair.link);
    pair_close(&pair);
    close(ends[0]);
}

static int new_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    return fd;
}

/* A connection of the local carrier's, by who says nothing. */
static int try_to_come(const struct side *server, int fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(server->address);

    memcpy(address.sun_path + 1, server->address, length);
    return connect(fd, (struct sockaddr *)&address,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length));
}

static void come_to(const struct side *server, int fd)
{
    assert_int_equal(try_to_come(server, fd), 0);
}

/* Who connects and says nothing keeps nobody out. */
static void test_silent_crowd(void **state)
{
    static struct pair pair;
    int crowd[80];

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    pair_open(&pair, 1, 4, SHORT_MS);
    for (unsigned i = 0; i < 80; i++) {
        crowd[i] = new_socket();
        come_to(&pair.server, crowd[i]);
    }
    struct gaia_link *link = connect_to(&pair.client, &pair.server, 2, 4);
    await(&pair.server, &pair.server.arrived, 2);
    gaia_link_close(link);
    for (unsigned i = 0; i < 80; i++)
        close(crowd[i]);
    pair_close(&pair);
}

enum { STRANGERS = 40 };

/* Processes of another user's; go: when they are to come, arrived: that they have. */
static int come_as_strangers(const struct side *server, int go, int arrived)
{
    char word;

    if (read(go, &word, 1) != 1 || setresuid(65534, 65534, 65534))
        return 1;
    for (unsigned i = 0; i < STRANGERS; i++)
        if (try_to_come(server, socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)))
            return 1;
    return write(arrived, &word, 1) != 1 || read(go, &word, 1); /* until the test has ended */
}

struct newcomer {
    struct side *client;
    const char *address;
    struct gaia_link *link;
    _Atomic int error; /* 1: not known yet */
};

static void *run_newcomer(void *argument)
{
    struct newcomer *newcomer = argument;
    struct gaia_link_options options = {.queues = 1, .depth = 4};

    newcomer->error =
        gaia_link_connect(newcomer->client->transport, newcomer->address, &options, &newcomer->link);
    return NULL;
}

/* Strangers, more than there are places for who has not said HELLO, come behind a node that has not been
 * looked at: they take no place of its. */
static void test_crowd_of_strangers(void **state)
{
    static struct side server, client;
    struct newcomer newcomer = {&client, server.address, NULL, 1};
    pthread_t thread;
    int go[2], arrived[2], status;
    char word = '!';

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL || geteuid())
        skip();
    side_init(&server, true);
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(arrived), 0);
    pid_t pid = fork(); /* before there is a thread */
    assert_true(pid >= 0);
    if (!pid) {
        close(go[1]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(come_as_strangers(&server, go[0], arrived[1]));
    }
    const struct gaia_transport_config config = side_config(&server, true, TIMEOUT_MS);
    must(gaia_transport_open(&config, &server.transport));
    side_open(&client, false, TIMEOUT_MS);
    assert_int_equal(pthread_create(&thread, NULL, run_newcomer, &newcomer), 0);
    nap_ms(200);
    assert_int_equal(write(go[1], &word, 1), 1);
    assert_int_equal(read(arrived[0], &word, 1), 1);
    while (newcomer.error == 1)
        gaia_transport_poll(server.transport, 10);
    pthread_join(thread, NULL);
    must(newcomer.error);
    gaia_link_close(newcomer.link);
    close(go[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(go[0]);
    close(arrived[0]);
    close(arrived[1]);
    side_close(&client);
    side_close(&server);
}

/* What is kept to refuse who comes frees a place in the system's table of files, too. */
static void test_what_is_kept_is_a_file(void **state)
{
    static struct side side;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    side_open(&side, true, SHORT_MS);
    const struct local *local = side.transport->own;
    long order = syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, local->kept, side.transport->wake);
    assert_true(local->kept >= 0);
    assert_int_not_equal(order, 0);
    side_close(&side);
}

/* Where no descriptor is to be had, not even that which is kept to say so, who comes waits. Others are
 * served, and no processor is kept busy. */
static void test_no_descriptor_for_who_comes(void **state)
{
    static struct pair pair;
    struct rlimit limit, none;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    pair_open(&pair, 1, 4, SHORT_MS);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    int fd = new_socket();
    none = (struct rlimit){0, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    come_to(&pair.server, fd);
    unsigned before = cpu_ms(pair.server.thread);
    for (unsigned turn = 1; turn <= 10; turn++) {
        nap_ms(50);
        must(gaia_link_send(pair.link, "word", 4));
        await(&pair.server, &pair.server.messages, turn);
    }
    unsigned busy_ms = cpu_ms(pair.server.thread) - before;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    print_message("%u ms of 500\n", busy_ms);
    assert_in_range(busy_ms, 0, 150);
    struct gaia_link *link = connect_to(&pair.client, &pair.server, 1, 4);
    await(&pair.server, &pair.server.arrived, 2);
    gaia_link_close(link);
    close(fd);
    pair_close(&pair);
}

/* The limit by which a process may have so many descriptors more than it has now. */
static struct rlimit room_for(pid_t pid, unsigned more)
{
    struct rlimit limit;
    char path[64], target[64];

    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, NULL, &limit), 0);
    for (limit.rlim_cur = 0;; limit.rlim_cur++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%u", pid, (unsigned)limit.rlim_cur);
        if (readlink(path, target, sizeof target) < 0 && !more--)
            return limit;
    }
}

/* It is short of them at any moment of a connection, at the first queue or the second: the other hears so. */
static void test_peer_short_of_descriptors(void **state)
{
    static struct side client;
    struct gaia_link_options options = {.queues = 2, .depth = 4};
    struct gaia_link *link = NULL;
    struct rlimit usual, few[3];
    struct peer peer;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    peer_start(&peer, TIMEOUT_MS);
    side_open(&client, false, TIMEOUT_MS);
    assert_int_equal(prlimit(peer.pid, RLIMIT_NOFILE, NULL, &usual), 0);
    for (unsigned more = 0; more < 3; more++)
        few[more] = room_for(peer.pid, more);
    for (unsigned more = 0; more < 3; more++) {
        assert_int_equal(prlimit(peer.pid, RLIMIT_NOFILE, &few[more], NULL), 0);
        assert_int_equal(gaia_link_connect(client.transport, peer.shared->address, &options, &link), -EMFILE);
        assert_non_null(strstr(gaia_transport_why(), "refuses"));
    }
    assert_int_equal(prlimit(peer.pid, RLIMIT_NOFILE, &usual, NULL), 0);
    must(gaia_link_connect(client.transport, peer.shared->address, &options, &link));
    gaia_link_close(link);
    side_close(&client);
    peer_end(&peer);
}

/* The same of this end: for the socket, or for the memory that comes by it. */
static void test_short_of_descriptors_here(void **state)
{
    static struct side client;
    struct gaia_link_options options = {.queues = 1, .depth = 4};
    struct gaia_link *link = NULL;
    struct rlimit usual, few;
    struct peer peer;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    peer_start(&peer, TIMEOUT_MS);
    side_open(&client, false, TIMEOUT_MS);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
    for (unsigned more = 0; more < 2; more++) {
        few = room_for(getpid(), more);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        int error = gaia_link_connect(client.transport, peer.shared->address, &options, &link);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
        assert_int_equal(error, -EMFILE);
    }
    side_close(&client);
    peer_end(&peer);
}

/* The other end of test_unsealed_stage(): answers with the very HELLO that it gets, and memory that is not
 * sealed. */
static int answer_unsealed(int listening, int stage)
{
    struct gaia_wire_hello hello;
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = {.iov_base = &hello, .iov_len = sizeof hello};
    struct msghdr header = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    int fd = accept(listening, NULL, NULL);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &stage, sizeof(int));
    return recv(fd, &hello, sizeof hello, 0) == sizeof hello && sendmsg(fd, &header, 0) == sizeof hello &&
           recv(fd, &hello, 1, 0) == 0;
}

/* A peer whose shared memory could be cut short under who copies out of it. */
static void test_unsealed_stage(void **state)
{
    static struct side client;
    struct gaia_link_options options = {.queues = 1, .depth = 1};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct gaia_link *link = NULL;
    char name[100];
    int status;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    snprintf(name, sizeof name, "gaiafs-test-%d-unsealed", getpid());
    memcpy(address.sun_path + 1, name, strlen(name));
    int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int stage = memfd_create("unsealed", MFD_CLOEXEC);
    assert_int_equal(bind(listening, (struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))),
                     0);
    assert_int_equal(listen(listening, 1), 0);
    assert_int_equal(ftruncate(stage, 4 * MIB), 0);
    pid_t pid = fork();
    if (!pid)
        _exit(answer_unsealed(listening, stage) ? 0 : 1);
    side_open(&client, false, TIMEOUT_MS);
    assert_int_equal(gaia_link_connect(client.transport, name, &options, &link), -EPROTO);
    assert_non_null(strstr(gaia_transport_why(), "not sealed"));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    side_close(&client);
    close(listening);
    close(stage);
}

/* Listens at a name as a user who is nobody's node: 0, when whoever connects has gone without a word. */
static int listen_as_nobody(const struct side *side, int ready)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(side->address);
    struct gaia_wire_hello hello;
    int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path + 1, side->address, length);
    if (setresuid(65534, 65534, 65534) ||
        bind(listening, (struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) ||
        listen(listening, 1) || write(ready, "!", 1) != 1)
        return 2;
    int fd = accept(listening, NULL, NULL);
    return recv(fd, &hello, sizeof hello, 0) > 0;
}

/* Whoever likes may have the name of a node that does not run: it is not taken for the node, and hears
 * nothing. */
static void test_another_users_name(void **state)
{
    static struct side client, named;
    struct gaia_link_options options = {.queues = 1, .depth = 1};
    struct gaia_link *link = NULL;
    int status, ready[2];
    char byte;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL || geteuid())
        skip();
    side_init(&named, true);
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (!pid)
        _exit(listen_as_nobody(&named, ready[1]));
    assert_int_equal(close(ready[1]), 0);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    side_open(&client, false, SHORT_MS);
    assert_int_equal(gaia_link_connect(client.transport, named.address, &options, &link), -EPERM);
    assert_non_null(strstr(gaia_transport_why(), "of user 65534"));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    side_close(&client);
    close(ready[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_peer_killed),
        CASE(test_peer_stops),
        CASE(test_idle_peer_stops),
        CASE(test_peer_ignores_transfers),
        CASE(test_drop_unanswered),
        CASE(test_drop_kept),
        CASE(test_connect_to_stopped_peer),
        CASE(test_nobody_listens),
        CASE(test_port_in_use),
        CASE(test_bad_addresses),
        CASE(test_no_device),
        CASE(test_device_without_address),
        CASE(test_memlock),
        CASE(test_dmabuf),
        CASE(test_dead_device),
        CASE(test_silent_crowd),
        CASE(test_crowd_of_strangers),
        CASE(test_what_is_kept_is_a_file),
        CASE(test_no_descriptor_for_who_comes),
        CASE(test_peer_short_of_descriptors),
        CASE(test_short_of_descriptors_here),
        CASE(test_unsealed_stage),
        CASE(test_another_users_name),
    };
    const struct CMUnitTest alone[] = {CASE(limited)};

    take_arguments(argc, argv);
    peer_run(argc, argv, run_peer);
    if (!strcmp(argv[argc - 1], "--limited"))
        return cmocka_run_group_tests_name("with little memory to lock", alone, NULL, NULL);
    return cmocka_run_group_tests_name("transport, peers and devices", tests, NULL, NULL);
}
