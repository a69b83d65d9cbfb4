/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda_load.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/process.h"

static const struct {
    const char *name;
    int version;
    int required;
    size_t offset; /* of its pointer in struct cuda_api */
} entry_points[] = {
#define X(name, version, required, parameters) {#name, version, required, offsetof(struct cuda_api, name)},
    CUDA_ENTRY_POINTS(X)
#undef X
};

static pthread_mutex_t lock =
    LOCK_INITIALIZER(LOCK_CUDA_LOAD); /* guards what is below `settled`, until that is */
static _Atomic uint64_t starter;      /* the process whose driver it is, once somebody has asked for it */
static atomic_bool settled;           /* it stays as it is */
static struct cuda_api api;
static int outcome;
static char why[CUDA_WHY_SIZE];

/* "12.4" */
static const char *version_text(int version, char text[16])
{
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
    return text;
}

static int say_too_old(int version)
{
    char has[16], least[16];

    snprintf(why, sizeof why, "the driver is of CUDA %s, and %s is needed", version_text(version, has),
             version_text(CUDA_VERSION_LEAST, least));
    return -ENODEV;
}

/* A driver from before 11.3 has no cuGetProcAddress, one from before 12.0 no second version of it: all that
 * can be asked of it is how old it is. */
static int too_old(void *library)
{
    CUresult (*get_version)(int *) = (CUresult(*)(int *))(uintptr_t)dlsym(library, "cuDriverGetVersion");
    int version = 0;

    if (get_version && get_version(&version) == CUDA_SUCCESS)
        return say_too_old(version);
    snprintf(why, sizeof why, "libcuda.so.1 is no driver of NVIDIA's: it has no cuDriverGetVersion");
    return -ENODEV;
}

static int find_entry_points(cuGetProcAddress_v2_type *find)
{
    char text[16];

    for (size_t i = 0; i < sizeof entry_points / sizeof entry_points[0]; i++) {
        void *function = NULL;
        int status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        CUresult error = find(entry_points[i].name, &function, entry_points[i].version, 0, &status);

        if (error != CUDA_SUCCESS || status != CU_GET_PROC_ADDRESS_SUCCESS)
            function = NULL;
        if (!function && entry_points[i].required) {
            snprintf(why, sizeof why, "the driver has no %s of version %s", entry_points[i].name,
                     version_text(entry_points[i].version, text));
            return -ENODEV;
        }
        memcpy((char *)&api + entry_points[i].offset, &function, sizeof function);
    }
    return 0;
}

static int start_driver(void)
{
    int version = 0, count = 0;

    CUresult error = api.cuDriverGetVersion(&version);
    if (error == CUDA_SUCCESS && version < CUDA_VERSION_LEAST)
        return say_too_old(version);
    if (error == CUDA_SUCCESS)
        error = api.cuInit(0);
    if (error == CUDA_SUCCESS)
        error = api.cuDeviceGetCount(&count);
    if (error == CUDA_ERROR_NO_DEVICE || (error == CUDA_SUCCESS && count < 1)) {
        snprintf(why, sizeof why, "the driver finds no GPU (or CUDA_VISIBLE_DEVICES hides them)");
        return -ENODEV;
    }
    if (error == CUDA_SUCCESS)
        return 0;
    snprintf(why, sizeof why, "the driver does not start: %s", cuda_error_name(&api, error));
    return -EIO;
}

/* is_there_out: whether there is a driver. */
static int open_driver(bool *is_there_out)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* never closed: it has threads */
    cuGetProcAddress_v2_type *find = NULL;

    *is_there_out = library;
    if (!library) {
        const char *said = dlerror();
        snprintf(why, sizeof why, "no driver: %s", said ? said : "libcuda.so.1 can't be opened");
        return -ENODEV;
    }
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    memcpy(&find, &symbol, sizeof find);
    int error = find ? find_entry_points(find) : too_old(library);
    return error ? error : start_driver();
}

/* A driver opens several at a time, and other threads close some: whoever just misses one may find one now.
 */
#define DESCRIPTORS_SPARE 8

int cuda_lacks_descriptors(void)
{
    int fds[DESCRIPTORS_SPARE], count = 0, error = 0;

    while (count < DESCRIPTORS_SPARE && !error) {
        fds[count] = eventfd(0, EFD_CLOEXEC);
        if (fds[count] < 0)
            error = errno;
        else
            count++;
    }
    while (count > 0)
        close(fds[--count]);
    return error == EMFILE || error == ENFILE ? -error : 0;
}

static int recall(char why_out[CUDA_WHY_SIZE])
{
    memcpy(why_out, why, CUDA_WHY_SIZE);
    return outcome;
}

/* What there was no descriptor for, or did not start, may do so another time. So may what was not found: for
 * want of a descriptor that somebody has let go of since. Not without one: the loader would not look at its
 * cache, and never again. */
static int load(char why_out[CUDA_WHY_SIZE])
{
    bool is_there = false;

    pthread_mutex_lock(&lock);
    if (!settled) {
        starter = process_here();
        why[0] = '\0';
        int lack = cuda_lacks_descriptors(), error = lack ? lack : open_driver(&is_there);
        if (error)
            lack = cuda_lacks_descriptors();
        outcome = lack ? lack : error;
        settled = is_there && !lack && error != -EIO;
        if (!is_there) /* nothing was started that a child could not have */
            starter = 0;
    }
    int error = recall(why_out);
    pthread_mutex_unlock(&lock);
    return error;
}

int cuda_load(const struct cuda_api **api_out, char why_out[CUDA_WHY_SIZE])
{
    const uint64_t here = process_here();
    uint64_t other = 0;

    /* Who may have held the lock at the fork is not here, either. */
    if (!atomic_compare_exchange_strong(&starter, &other, here) && other != here && !(settled && outcome)) {
        snprintf(
            why_out, CUDA_WHY_SIZE,
            "CUDA does not work in a child of fork() when the parent has started it (exec, or fork before)");
        return -ECHILD;
    }
    int error = settled ? recall(why_out) : load(why_out);
    if (!error)
        *api_out = &api;
    return error;
}

const char *cuda_error_name(const struct cuda_api *of, CUresult error)
{
    const char *name = NULL;

    return of->cuGetErrorName(error, &name) == CUDA_SUCCESS && name ? name : "an error without a name";
}
