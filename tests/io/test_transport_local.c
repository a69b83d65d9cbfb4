/* SPDX-License-Identifier: Apache-2.0 */
/* Who comes to the local carrier, and who is found there: crowds, strangers, who is short of descriptors or
 * has another's name. */
#include "io/transport_local.h"
#include "tests/io/peer.h"
#include "tests/io/stopped.h"

#include <linux/kcmp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

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

/* of: the queue, of how many, and the token. */
static void say_hello(int fd, const struct gaia_wire_hello *of)
{
    struct gaia_wire_hello hello = *of;

    hello.head = (struct gaia_wire_head){sizeof hello, GAIA_WIRE_VERSION, GAIA_WIRE_HELLO, 0};
    hello.depth = 1;
    hello.timeout_ms = 60000;
    assert_int_equal(send(fd, &hello, sizeof hello, 0), sizeof hello);
}

/* The answer, and the token in it. */
static void hear_hello(int fd, struct gaia_wire_hello *of)
{
    struct gaia_wire_hello answer = {0};

    assert_int_equal(recv(fd, &answer, sizeof answer, MSG_DONTWAIT), sizeof answer);
    assert_int_equal(answer.head.op, GAIA_WIRE_HELLO);
    memcpy(of->token, answer.token, sizeof of->token);
}

/* A node that stood still finds who has said HELLO meanwhile; who has said nothing for so long goes. */
static void test_hello_to_who_stood_still(void **state)
{
    static struct side server;
    struct gaia_wire_hello hello = {.head = {sizeof hello, GAIA_WIRE_VERSION, GAIA_WIRE_HELLO, 0},
                                    .queues = 1,
                                    .depth = 1,
                                    .timeout_ms = 60000};

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    int node = new_socket(), silent = new_socket();
    open_still(&server, LONG_MS);
    come_to(&server, node);
    come_to(&server, silent);
    gaia_transport_poll(server.transport, 0);
    look_on(&server, 15);
    assert_int_equal(send(node, &hello, sizeof hello, 0), sizeof hello);
    clock_on(2 * LONG_MS);
    gaia_transport_poll(server.transport, 0);
    assert_int_equal(server.arrived, 1);
    assert_int_equal(recv(node, &hello, sizeof hello, MSG_DONTWAIT), sizeof hello);
    assert_int_equal(recv(silent, &hello, sizeof hello, MSG_DONTWAIT), 0);
    close(node);
    close(silent);
    side_close(&server);
}

enum { COMERS = 60 };

/* A crowd of nodes that have all said HELLO, more than there are places for who has not, is let in. early:
 * so many have come, and been seen, before any of them says it. */
static void crowd_comes(unsigned early)
{
    static struct side server;
    int crowd[COMERS];

    open_still(&server, SHORT_MS);
    for (unsigned i = 0; i < COMERS; i++) {
        if (i == early)
            gaia_transport_poll(server.transport, 0);
        crowd[i] = new_socket();
        come_to(&server, crowd[i]);
    }
    for (unsigned i = 0; i < COMERS; i++)
        say_hello(crowd[i], &(struct gaia_wire_hello){.queues = 1});
    for (unsigned i = 0; i < 5; i++)
        gaia_transport_poll(server.transport, 0);
    assert_int_equal(server.arrived, COMERS);
    for (unsigned i = 0; i < COMERS; i++)
        close(crowd[i]);
    side_close(&server);
}

static void test_crowd_that_has_said_hello(void **state)
{
    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    crowd_comes(COMERS);
    crowd_comes(HALF_MAX);
}

static struct {
    struct side server;
    struct gaia_wire_hello hello;
    int fd[3];
} growing;

static void next_queue_comes(void)
{
    int fd = growing.fd[growing.hello.queue] = new_socket();

    come_to(&growing.server, fd);
    say_hello(fd, &growing.hello);
}

/* A link of three queues, of which the second comes after this look of a poll. */
static void queue_comes_after(int look)
{
    struct side *server = &growing.server;

    open_still(server, LONG_MS);
    growing.hello = (struct gaia_wire_hello){.queues = 3};
    for (unsigned *queue = &growing.hello.queue; *queue < 3; ++*queue) {
        if (*queue == 1) {
            look_on(server, 15);
            stop_after(server, look, next_queue_comes);
        } else {
            next_queue_comes();
        }
        gaia_transport_poll(server->transport, 0);
        gaia_transport_poll(server->transport, 0);
        hear_hello(growing.fd[*queue], &growing.hello);
    }
    assert_int_equal(server->arrived, 1);
    for (unsigned i = 0; i < 3; i++)
        close(growing.fd[i]);
    side_close(server);
}

/* A link of which one queue after another comes up does not end because this side stood still. Here it is
 * accepted: before what comes is heard, and between that and the look at the clock. */
static void test_queue_to_who_stood_still(void **state)
{
    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    queue_comes_after(0);
    queue_comes_after(1);
}

enum { MANY = 20 };

static struct gaia_link *many[MANY];

static void all_queues_speak(void)
{
    const struct gaia_wire_head nothing = {sizeof nothing, GAIA_WIRE_VERSION, GAIA_WIRE_TRANSFERS, 0};

    for (unsigned i = 0; i < MANY; i++)
        for (unsigned n = 0; n < GAIA_LINK_QUEUES_MAX; n++) {
            const struct local_queue *queue = many[i]->queues[n].own;
            assert_int_equal(send(queue->fd, &nothing, sizeof nothing, 0), sizeof nothing);
        }
}

/* All peers are heard before one of them is late, also when they speak on all of their queues. */
static void test_many_queues_to_who_stood_still(void **state)
{
    static struct pair pair;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    side_open(&pair.server, true, LONG_MS);
    side_open(&pair.client, false, LONG_MS);
    for (unsigned i = 0; i < MANY; i++)
        many[i] = connect_to(&pair.client, &pair.server, GAIA_LINK_QUEUES_MAX, 1);
    await(&pair.server, &pair.server.arrived, MANY);
    side_pause(&pair.server);
    look_on(&pair.server, 15);
    stop_after(&pair.server, 1, all_queues_speak);
    gaia_transport_poll(pair.server.transport, 0);
    assert_true(stopped.looks < 0);
    assert_int_equal(pair.server.closed, 0);
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
    unsigned queues;
    struct gaia_link *link;
    _Atomic int error; /* 1: not known yet */
};

static void *run_newcomer(void *argument)
{
    struct newcomer *newcomer = argument;
    struct gaia_link_options options = {.queues = newcomer->queues, .depth = 4};

    newcomer->error =
        gaia_link_connect(newcomer->client->transport, newcomer->address, &options, &newcomer->link);
    return NULL;
}

/* And connected here. */
static void test_who_stood_still_connecting(void **state)
{
    const struct sigaction action = {.sa_handler = stand_still};
    static struct side server, client;
    struct newcomer newcomer = {&client, server.address, 3, NULL, 1};
    pthread_t thread;

    (void)state;
    if (carrier != GAIA_CARRIER_LOCAL)
        skip();
    open_still(&server, 60000);
    side_open(&client, false, SHORT_MS);
    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    assert_int_equal(pthread_create(&thread, NULL, run_newcomer, &newcomer), 0);
    for (unsigned i = 0; i < 2; i++) { /* one after the other: for longer than anybody waits for a link */
        nap_ms(SHORT_MS / 8);
        assert_int_equal(pthread_kill(thread, SIGUSR1), 0);
    }
    nap_ms(SHORT_MS / 8);
    while (newcomer.error == 1)
        gaia_transport_poll(server.transport, 10);
    pthread_join(thread, NULL);
    must(newcomer.error);
    gaia_link_close(newcomer.link);
    side_close(&client);
    side_close(&server);
}

/* Strangers, more than there are places for who has not said HELLO, come behind a node that has not been
 * looked at, and another that was, before it said HELLO: they take no place of theirs. */
static void test_crowd_of_strangers(void **state)
{
    static struct side server, client;
    struct newcomer newcomer = {&client, server.address, 1, NULL, 1};
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
    int slow = new_socket();
    come_to(&server, slow);
    gaia_transport_poll(server.transport, 0);
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
    say_hello(slow, &(struct gaia_wire_hello){.queues = 1});
    await(&server, &server.arrived, 2);
    close(slow);
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
        CASE(test_silent_crowd),
        CASE(test_hello_to_who_stood_still),
        CASE(test_crowd_that_has_said_hello),
        CASE(test_queue_to_who_stood_still),
        CASE(test_who_stood_still_connecting),
        CASE(test_many_queues_to_who_stood_still),
        CASE(test_crowd_of_strangers),
        CASE(test_what_is_kept_is_a_file),
        CASE(test_no_descriptor_for_who_comes),
        CASE(test_peer_short_of_descriptors),
        CASE(test_short_of_descriptors_here),
        CASE(test_unsealed_stage),
        CASE(test_another_users_name),
    };

    take_arguments(argc, argv);
    peer_run(argc, argv, peer_serve);
    return cmocka_run_group_tests_name("transport, who comes to the local carrier", tests, NULL, NULL);
}
