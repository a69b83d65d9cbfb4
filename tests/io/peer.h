/* SPDX-License-Identifier: Apache-2.0 */
/* A peer in another process, which can be killed and stopped. It is the same program anew: the kernel lets no
 * child use a device that its parent has opened. */
#ifndef GAIAFS_TESTS_IO_PEER_H
#define GAIAFS_TESTS_IO_PEER_H

#include "tests/io/transport_fixture.h"

struct peer {
    pid_t pid; /* 0: it is no more */
    struct peer_shared {
        char address[128]; /* where it listens */
        unsigned timeout_ms;
        _Atomic bool ready;
        _Atomic bool deaf;        /* it is to do nothing that it is asked for */
        _Atomic unsigned waiting; /* calls that wait for it */
    } * shared;
};

static inline struct peer_shared *peer_map(int fd)
{
    struct peer_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    assert_ptr_not_equal(shared, MAP_FAILED);
    return shared;
}

/* In a program that was started as a peer: calls run(), until it is killed. */
static inline void peer_run(int argc, char **argv, void (*run)(struct peer_shared *shared))
{
    if (argc < 3 || strcmp(argv[argc - 2], "--child") != 0)
        return;
    alarm(TIME_LIMIT_S);
    run(peer_map(atoi(argv[argc - 1])));
    _exit(3);
}

enum { PEER_FRAMES = 1 << 20 };

/* A run() for peer_run(): listens, and exposes its frames to whoever comes. */
static inline void peer_serve(struct peer_shared *shared)
{
    static struct side side;
    struct gaia_transport_config config;
    uint8_t *frames = new_frames(PEER_FRAMES);
    unsigned exposed = 0;
    uint32_t region;

    fill(frames, PEER_FRAMES, 10);
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
            gaia_link_expose(side.links[exposed], &(struct gaia_span){frames, PEER_FRAMES, -1}, false,
                             &region);
        transport_test.deaf = shared->deaf;
    }
}

/* A peer that is ready. */
static inline void peer_start(struct peer *peer, unsigned timeout_ms)
{
    int fd = memfd_create("shared", 0);
    char number[16];

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, sizeof *peer->shared), 0);
    peer->shared = peer_map(fd);
    new_address(peer->shared->address, true);
    peer->shared->timeout_ms = timeout_ms;
    snprintf(number, sizeof number, "%d", fd);
    peer->pid = fork();
    assert_true(peer->pid >= 0);
    if (!peer->pid && carrier == GAIA_CARRIER_RDMA)
        execl("/proc/self/exe", "child", "--carrier", "rdma", here, there, "--child", number, NULL);
    else if (!peer->pid)
        execl("/proc/self/exe", "child", "--child", number, NULL);
    if (!peer->pid)
        _exit(4);
    close(fd);
    while (!peer->shared->ready) {
        assert_int_equal(waitpid(peer->pid, NULL, WNOHANG), 0);
        nap_ms(5);
    }
}

/* SIGKILL or SIGSTOP, and it has been killed or has stopped when this returns. */
static inline void peer_signal(struct peer *peer, int signal_number)
{
    int status;

    assert_int_equal(kill(peer->pid, signal_number), 0);
    assert_int_equal(waitpid(peer->pid, &status, WUNTRACED), peer->pid);
    if (signal_number == SIGSTOP) {
        assert_true(WIFSTOPPED(status));
        return;
    }
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signal_number);
    peer->pid = 0;
}

static inline void peer_end(struct peer *peer)
{
    if (peer->pid)
        peer_signal(peer, SIGKILL);
    munmap(peer->shared, sizeof *peer->shared);
}

#endif
