/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of the GPU's own tests: processes that were given memory of the daemon's half.
 *
 *   zeros   says "zeros" if all bytes are, else "not zeros at N"
 *   store   stores OWN_STORED, and says "stored"
 *   spin    stores it, gives the GPU work for minutes, says "started", and, were the work ever done, "done"
 *   wild    stores it, and runs a kernel that stores where nothing is; says the error that it had
 */
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu/kernels.h"
#include "tests/gpu/own.h"

extern char **environ;

#define SPIN_LAUNCHES 4000u
/* No address of anybody's: the first pages of an address space are never mapped. */
#define NOWHERE UINT64_C(0x1000)

/* --- the client --- */

struct memory {
    struct cuda_device device;
    CUdeviceptr at;
    size_t bytes;
    CUstream stream;
};

static void need(CUresult error, const char *what)
{
    if (error == CUDA_SUCCESS)
        return;
    printf("%s: error %d\n", what, error);
    fflush(stdout);
    exit(2);
}

static void import_memory(struct memory *memory, int fd, size_t bytes)
{
    CUmemGenericAllocationHandle handle;
    char why[CUDA_WHY_SIZE];

    if (cuda_device_open(0, &memory->device, why)) {
        printf("no device: %s\n", why);
        exit(2);
    }
    const struct cuda_api *api = memory->device.api;
    CUmemAccessDesc access = cuda_memory_access(&memory->device, true);
    need(cuda_enter(&memory->device) ? 1 : 0, "the context");
    need(api->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
         "cuMemImportFromShareableHandle");
    need(api->cuMemAddressReserve(&memory->at, bytes, 0, 0, 0), "cuMemAddressReserve");
    need(api->cuMemMap(memory->at, bytes, 0, handle, 0), "cuMemMap");
    need(api->cuMemSetAccess(memory->at, bytes, &access, 1), "cuMemSetAccess");
    need(api->cuMemRelease(handle), "cuMemRelease");
    need(api->cuStreamCreate(&memory->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    memory->bytes = bytes;
}

static void wait_for(const struct memory *memory, const char *what)
{
    need(memory->device.api->cuStreamSynchronize(memory->stream), what);
}

static int say_whether_zeros(const struct memory *memory)
{
    uint8_t *bytes = malloc(memory->bytes);

    if (!bytes)
        return 2;
    need(memory->device.api->cuMemcpyDtoHAsync(bytes, memory->at, memory->bytes, memory->stream), "a copy");
    wait_for(memory, "a copy");
    for (size_t i = 0; i < memory->bytes; i++)
        if (bytes[i]) {
            printf("not zeros at %zu\n", i);
            return 0;
        }
    printf("zeros\n");
    free(bytes);
    return 0;
}

static void store(const struct memory *memory)
{
    need(memory->device.api->cuMemcpyHtoDAsync(memory->at + OWN_STORED_AT, OWN_STORED, strlen(OWN_STORED),
                                               memory->stream),
         "a store");
    wait_for(memory, "a store");
}

static CUfunction find_kernel(const struct memory *memory, const char *name)
{
    CUfunction function;
    CUmodule module;

    need(memory->device.api->cuModuleLoadData(&module, gaia_kernels_ptx), "cuModuleLoadData");
    need(memory->device.api->cuModuleGetFunction(&function, module, name), name);
    return function;
}

static void say_done(void *context)
{
    (void)context;
    printf("done\n");
    fflush(stdout);
}

/* One warp hashes all pages, again and again: the rest of the GPU is free, and this does not end. */
static int spin(struct memory *memory)
{
    const struct cuda_api *api = memory->device.api;
    CUfunction hash = find_kernel(memory, "gaia_hash_pages");
    uint64_t count = memory->bytes / 4096;
    CUdeviceptr digests;

    store(memory);
    need(api->cuMemAlloc(&digests, count * sizeof(struct gaia_digest)), "cuMemAlloc");
    void *parameters[] = {&memory->at, &count, &digests};
    need(api->cuLaunchKernel(hash, 1, 1, 1, 32, 1, 1, 0, memory->stream, parameters, NULL), "a launch");
    printf("started\n");
    fflush(stdout);
    for (unsigned i = 1; i < SPIN_LAUNCHES; i++)
        need(api->cuLaunchKernel(hash, 1, 1, 1, 32, 1, 1, 0, memory->stream, parameters, NULL), "a launch");
    need(api->cuLaunchHostFunc(memory->stream, say_done, NULL), "cuLaunchHostFunc");
    wait_for(memory, "the kernels");
    return 0;
}

static int run_wild(struct memory *memory)
{
    const struct cuda_api *api = memory->device.api;
    CUfunction zero = find_kernel(memory, "gaia_zero_pages");
    CUdeviceptr nowhere = NOWHERE, list = memory->at + 16 * 4096; /* zeros: page 0 of nowhere */
    uint64_t count = 1;

    store(memory);
    need(api->cuMemsetD8Async(list, 0, 4096, memory->stream), "cuMemsetD8Async");
    printf("stored\n");
    fflush(stdout);
    void *parameters[] = {&nowhere, &list, &count};
    CUresult error = api->cuLaunchKernel(zero, 1, 1, 1, 32, 1, 1, 0, memory->stream, parameters, NULL);
    if (error == CUDA_SUCCESS)
        error = api->cuStreamSynchronize(memory->stream);
    printf("error %d\n", error);
    return 0;
}

int client_main(const char *mode, int fd, size_t bytes)
{
    struct memory memory = {.bytes = 0};

    import_memory(&memory, fd, bytes);
    if (!strcmp(mode, "zeros"))
        return say_whether_zeros(&memory);
    if (!strcmp(mode, "spin"))
        return spin(&memory);
    if (!strcmp(mode, "wild"))
        return run_wild(&memory);
    store(&memory);
    printf("stored\n");
    return 0;
}

/* --- who starts it --- */

int client_start(const struct own *own, const char *mode, int fd, size_t bytes, struct client *client_out)
{
    posix_spawn_file_actions_t actions;
    char number[24];
    int ends[2];

    if (pipe(ends))
        return -1;
    snprintf(number, sizeof number, "%zu", bytes);
    char *words[] = {(char *)(uintptr_t)own->self, (char *)(uintptr_t) "--client", (char *)(uintptr_t)mode,
                     number, NULL};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 3);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    int error = posix_spawn(&client_out->pid, own->self, &actions, NULL, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    client_out->says = ends[0];
    if (error)
        close(ends[0]);
    return error ? -1 : 0;
}

bool client_line(const struct client *client, char line[128], int ms)
{
    struct pollfd wait = {.fd = client->says, .events = POLLIN};
    size_t used = 0;

    while (used < 127 && poll(&wait, 1, ms) == 1 && read(client->says, line + used, 1) == 1) {
        if (line[used] == '\n') {
            line[used] = 0;
            return true;
        }
        used++;
    }
    line[used] = 0;
    return false;
}

int client_end(struct client *client)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    int status = -1;
    pid_t ended = 0;

    for (int i = 0; i < 3000 && !(ended = waitpid(client->pid, &status, WNOHANG)); i++)
        nanosleep(&moment, NULL);
    if (!ended) {
        kill(client->pid, SIGKILL);
        waitpid(client->pid, &status, 0);
        status = -1;
    }
    close(client->says);
    return status;
}
