// SPDX-License-Identifier: Apache-2.0
// The end of programs that have mapped something on demand (test_demand_ends.py):
//
//   tool_demand_end destructor FILE   stores a K, which the destructor of a static object releases
//   tool_demand_end exit FILE         when a line has come: a request whose warp has gone, and then the end
//   tool_demand_end last FILE [few]   a load, and, when a line has come, another; few: with no descriptor
//   left
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gpu/gaia.h"
#include "gpu/gaia_device.cuh"

static const size_t LENGTH = 4 << 20;

struct Owner {
    gaia_device *device = nullptr;
    void *address = MAP_FAILED;
    bool releases = false;

    Owner()
    {
        if (gaia_device_open("cuda:0", &device)) {
            perror("gaia_device_open");
            _exit(3);
        }
    }
    ~Owner()
    {
        if (!releases)
            return;
        int error = gaia_mrelease(address, LENGTH, device) ? errno : 0;
        gaia_device_close(device);
        printf("released: %s\n", error ? strerror(error) : "ok");
        fflush(stdout);
    }
};

static void wait_for_a_line(const char *said)
{
    printf("%s\n", said);
    fflush(stdout);
    (void)getchar();
}

int main(int argc, char **argv)
{
    static Owner owner;
    gaia_demand shape;
    const gaia_demand *there;

    if (argc < 3)
        return 2;
    int fd = open(argv[2], O_RDWR);
    owner.address = gaia_mmap(owner.device, LENGTH, PROT_READ | PROT_WRITE, GAIA_DEMAND, fd, 0);
    if (owner.address == MAP_FAILED || gaia_demand_parameters(owner.address, &shape, &there)) {
        perror("gaia_mmap");
        return 4;
    }
    gaia_view<uint8_t> view(shape, there);
    if (!strcmp(argv[1], "destructor")) {
        owner.releases = true;
        view.store(5, 'K');
    } else if (!strcmp(argv[1], "exit")) {
        wait_for_a_line("mapped");
        volatile uint64_t *request = reinterpret_cast<volatile uint64_t *>(shape.requests); // ticket 0
        request[0] = 20;
        request[1] = GAIA_DEMAND_FETCH;
        request[2] = request[3] = 0;
        usleep(300000); // it is being answered
    } else {
        struct rlimit few = {64, 64};
        if (argc > 3 && !setrlimit(RLIMIT_NOFILE, &few))
            while (dup(0) >= 0)
                ;
        printf("%d ", view.load(5));
        wait_for_a_line("loaded");
        int value = view.load(3 << 20);
        printf("%d, error %u\n", value, view.error());
    }
    return 0;
}
