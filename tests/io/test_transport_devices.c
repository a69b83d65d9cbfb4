/* SPDX-License-Identifier: Apache-2.0 */
/* The transport at addresses and on devices that are not there, go away, or have their limits. */
#include "io/call_internal.h"
#include "io/transport_rdma.h"
#include "tests/io/transport_fixture.h"

#include <dlfcn.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>

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

/* A NIC that was taken away leaves nothing behind in this process: libibverbs lets go of what its kernel has
 * let go of. (Its own switch, which it sets when it is first used: there is no other way to ask it.) */
static void test_nothing_of_a_device_that_has_gone(void **state)
{
    (void)state;
    open_at("127.0.0.1:0", false, GAIA_CARRIER_RDMA);
    const bool *lets_go = dlsym(RTLD_DEFAULT, "verbs_allow_disassociate_destroy");
    if (!lets_go)
        skip(); /* of a libibverbs that has no such switch */
    assert_true(*lets_go);
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

/* What a rejection says of the peer, by its reason and by what came along: of InfiniBand 148 bytes always,
 * zeros where the peer's kernel has rejected. A peer that lives must not be taken for one that does not run.
 */
static void test_rejections(void **state)
{
    struct gaia_wire_hello refusal = link_refusal(-ENOBUFS);
    unsigned char bytes[148] = {0};

    (void)state;
    assert_int_equal(rdma_rejection(8, bytes, sizeof bytes), -ECONNREFUSED); /* no such service */
    assert_int_equal(rdma_rejection(10, bytes, sizeof bytes), -EAGAIN);      /* stale connection */
    assert_int_equal(rdma_rejection(3, bytes, sizeof bytes), -EAGAIN);       /* no resources */
    assert_int_equal(rdma_rejection(28, bytes, sizeof bytes), -EAGAIN);      /* no program has said this */
    assert_int_equal(rdma_rejection(28, NULL, 0), -EAGAIN);
    assert_int_equal(rdma_rejection(-ECONNREFUSED, NULL, 0), -ECONNREFUSED); /* iWARP */
    memcpy(bytes, &refusal, sizeof refusal);
    assert_int_equal(rdma_rejection(28, bytes, sizeof bytes), 0);
    assert_int_equal(rdma_rejection(-ECONNRESET, bytes, sizeof refusal), 0);
    assert_int_equal(rdma_rejection(10, bytes, sizeof bytes), -EAGAIN); /* not the program's bytes */
}

/* What a peer is told, and what a connection ends with, when this end's own device or kernel refuses: that it
 * is not to be had now. By any other error one would take the other for one that does not run. */
static void test_refusals_of_the_own_device(void **state)
{
    static const int errors[] = {EINVAL, EIO, EFAULT, EACCES, EPERM, ENODEV, EBUSY, EREMOTEIO, ENOSYS};
    static const int lacks[] = {ENOMEM, EMFILE, ENFILE, ENOBUFS, ENOSPC, EAGAIN};

    (void)state;
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        assert_true(call_is_short(gaia_own_error(-errors[i])));
    for (unsigned i = 0; i < sizeof lacks / sizeof *lacks; i++)
        assert_int_equal(gaia_own_error(-lacks[i]), -lacks[i]);
}

/* Nobody else can write to what is read into, but where a NIC could not read otherwise. */
static void test_rights_of_what_is_read_into(void **state)
{
    (void)state;
    assert_int_equal(rdma_sink_access(IBV_TRANSPORT_IB), IBV_ACCESS_LOCAL_WRITE);
    assert_int_equal(rdma_sink_access(IBV_TRANSPORT_IWARP), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(test_nobody_listens),
        CASE(test_port_in_use),
        CASE(test_bad_addresses),
        CASE(test_no_device),
        CASE(test_nothing_of_a_device_that_has_gone),
        CASE(test_device_without_address),
        CASE(test_rejections),
        CASE(test_refusals_of_the_own_device),
        CASE(test_rights_of_what_is_read_into),
        CASE(test_memlock),
        CASE(test_dmabuf),
        CASE(test_dead_device),
    };
    const struct CMUnitTest alone[] = {CASE(limited)};

    take_arguments(argc, argv);
    if (!strcmp(argv[argc - 1], "--limited"))
        return cmocka_run_group_tests_name("with little memory to lock", alone, NULL, NULL);
    return cmocka_run_group_tests_name("transport, addresses and devices", tests, NULL, NULL);
}
