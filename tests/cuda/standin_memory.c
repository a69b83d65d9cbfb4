/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver's memory: allocations are memfds, so that another process can have them. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cuda/standin.h"

#define NAME "stand-in GPU" /* of an allocation's memfd, and the GPU's number on the machine */

struct allocation {
    LIST_ENTRY(allocation) link;
    int fd;
    size_t bytes;
    unsigned references; /* the handle, and places where it is mapped */
    bool held;           /* the handle has not been released */
    bool imported;       /* not of this process's making: not charged to it */
    CUdevice device;
};

struct place {
    LIST_ENTRY(place) link;
    uint8_t *address;
    size_t bytes;
    struct allocation *allocation; /* NULL: reserved only, or plain */
    uint8_t *seen;                 /* of a reserved one: where its memory is */
    bool allowed, writable;        /* of a mapped one: what its GPU may do */
    CUdevice device;               /* of a plain one */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static LIST_HEAD(, allocation) allocations;
static LIST_HEAD(, place) reserved, mapped, plain;
static size_t used, made; /* bytes; allocations that this process has created */

/* Lock held. */
static bool charge(size_t bytes)
{
    size_t limit = (size_t)standin_number("memory", (long long)80 << 30);

    if (used + bytes > limit)
        return false;
    used += bytes;
    return true;
}

static void put(struct allocation *allocation)
{
    if (--allocation->references)
        return;
    if (!allocation->imported) {
        used -= allocation->bytes;
        made--;
    }
    LIST_REMOVE(allocation, link);
    close(allocation->fd);
    free(allocation);
}

/* The handle of what is filled in. Lock held. */
static CUmemGenericAllocationHandle give(const struct allocation *filled_in)
{
    struct allocation *allocation = malloc(sizeof *allocation);

    if (!allocation)
        abort();
    *allocation = *filled_in;
    allocation->references = 1;
    allocation->held = true;
    LIST_INSERT_HEAD(&allocations, allocation, link);
    return (uintptr_t)allocation;
}

/* Lock held. */
static struct allocation *find(CUmemGenericAllocationHandle handle)
{
    struct allocation *allocation;

    LIST_FOREACH (allocation, &allocations, link)
        if ((uintptr_t)allocation == handle && allocation->held)
            return allocation;
    standin_misused("a handle of memory that there is not, or not any more");
}

static CUresult granularity(size_t *bytes_out, const CUmemAllocationProp *properties, int option)
{
    (void)option;
    ENTER("cuMemGetAllocationGranularity");
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !standin_is_device(properties->location.id))
        return CUDA_ERROR_INVALID_VALUE;
    *bytes_out = STANDIN_GRANULARITY;
    return CUDA_SUCCESS;
}

static int machine_number(CUdevice device)
{
    return device - STANDIN_FIRST_DEVICE + (int)standin_number("first", 0);
}

static int new_descriptor(CUdevice device)
{
    char name[32];

    snprintf(name, sizeof name, NAME " %d", machine_number(device));
    return memfd_create(name, MFD_CLOEXEC);
}

/* Whose memory a descriptor is of, by its name; -1: it is none of a driver's, or of a GPU that this process
 * has not got. */
static CUdevice device_of(int fd)
{
    char path[32], name[64];
    int machine;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, name, sizeof name - 1);
    if (length < 0)
        return STANDIN_FIRST_DEVICE; /* no /proc */
    name[length] = '\0';
    if (sscanf(name, "/memfd:" NAME " %d", &machine) != 1)
        return -1;
    CUdevice device = machine - (int)standin_number("first", 0) + STANDIN_FIRST_DEVICE;
    return standin_is_device(device) ? device : -1;
}

static CUresult create(CUmemGenericAllocationHandle *handle_out, size_t bytes,
                       const CUmemAllocationProp *properties, unsigned long long flags)
{
    size_t unit;

    *handle_out = STANDIN_NOTHING;
    ENTER("cuMemCreate");
    if (flags || !bytes || granularity(&unit, properties, 0) || bytes % unit ||
        properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        properties->allocFlags.gpuDirectRDMACapable !=
            (standin_number("can", -1) == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        return CUDA_ERROR_INVALID_VALUE;
    CUdevice device = properties->location.id;
    struct allocation new = {.bytes = bytes, .device = device, .fd = new_descriptor(device)};
    pthread_mutex_lock(&lock);
    bool fits = new.fd >= 0 && (long long)made < standin_number("handles", LLONG_MAX) &&
                !ftruncate(new.fd, (off_t)bytes) && charge(bytes);
    made += fits;
    pthread_mutex_unlock(&lock);
    if (!fits) {
        if (new.fd >= 0)
            close(new.fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* What a GPU's memory holds is what its last owner left: who does not clear it is found out. */
    void *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, new.fd, 0);
    if (all != MAP_FAILED) {
        for (size_t i = 0; i < bytes && standin_number("free", -1) < 0; i += 65536)
            memset((uint8_t *)all + i, 0xdb, 64);
        munmap(all, bytes);
    }
    pthread_mutex_lock(&lock);
    *handle_out = give(&new);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    ENTER("cuMemRelease");
    pthread_mutex_lock(&lock);
    struct allocation *allocation = find(handle);
    allocation->held = false;
    put(allocation);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult export_handle(void *handle_out, CUmemGenericAllocationHandle handle, int type,
                              unsigned long long flags)
{
    ENTER("cuMemExportToShareableHandle");
    if (flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int fd = dup(find(handle)->fd);
    pthread_mutex_unlock(&lock);
    if (fd < 0)
        return CUDA_ERROR_UNKNOWN;
    memcpy(handle_out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}

static CUresult import_handle(CUmemGenericAllocationHandle *handle_out, void *os_handle, int type)
{
    struct stat st;

    *handle_out = STANDIN_NOTHING;
    ENTER("cuMemImportFromShareableHandle");
    int fd = (int)(intptr_t)os_handle;
    CUdevice device = device_of(fd);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || device < 0 || fstat(fd, &st) || st.st_size <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    int ours = dup(fd);
    if (ours < 0)
        return CUDA_ERROR_UNKNOWN;
    pthread_mutex_lock(&lock);
    *handle_out = give(
        &(struct allocation){.bytes = (size_t)st.st_size, .imported = true, .fd = ours, .device = device});
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Of what is mapped as a whole, by one allocation: the descriptor of that. */
static CUresult address_range(void *handle_out, CUdeviceptr pointer, size_t bytes, int type,
                              unsigned long long flags)
{
    struct place *place;
    int fd = -1;

    ENTER_CONTEXT("cuMemGetHandleForAddressRange");
    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &mapped, link)
        if ((uintptr_t)place->address == pointer && place->bytes == bytes)
            fd = dup(place->allocation->fd);
    pthread_mutex_unlock(&lock);
    if (flags || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || fd < 0) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(handle_out, &fd, sizeof fd);
    return CUDA_SUCCESS;
}

static CUresult flush_writes(int target, int scope)
{
    ENTER_CONTEXT("cuFlushGPUDirectRDMAWrites");
    return target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
                   scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static uint8_t *reserve_memory(size_t bytes)
{
    uint8_t *area = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return area == MAP_FAILED ? NULL : area;
}

static CUresult reserve(CUdeviceptr *pointer_out, size_t bytes, size_t alignment, CUdeviceptr wish,
                        unsigned long long flags)
{
    *pointer_out = STANDIN_NOTHING;
    ENTER("cuMemAddressReserve");
    if (!bytes || bytes % STANDIN_GRANULARITY || alignment || wish || flags)
        return CUDA_ERROR_INVALID_VALUE;
    size_t room = bytes + STANDIN_GRANULARITY;
    uint8_t *area = reserve_memory(room), *seen = standin_number("opaque", 0) ? reserve_memory(bytes) : area;
    if (!area || !seen)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (standin_number("opaque", 0) == 2)
        mprotect(area, room, PROT_READ | PROT_WRITE);
    size_t before = (STANDIN_GRANULARITY - (uintptr_t)area % STANDIN_GRANULARITY) % STANDIN_GRANULARITY;
    if (before)
        munmap(area, before);
    munmap(area + before + bytes, STANDIN_GRANULARITY - before);
    if (seen == area)
        seen += before;
    struct place *place = calloc(1, sizeof *place);
    if (!place)
        abort();
    *place = (struct place){.address = area + before, .bytes = bytes, .seen = seen};
    pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&reserved, place, link);
    pthread_mutex_unlock(&lock);
    *pointer_out = (uintptr_t)place->address;
    return CUDA_SUCCESS;
}

/* The reserved place that has the range, or NULL. Lock held. */
static struct place *find_reserved(const uint8_t *address, size_t bytes)
{
    struct place *place;

    LIST_FOREACH (place, &reserved, link)
        if (place->address <= address && address + bytes <= place->address + place->bytes)
            break;
    return place;
}

void *standin_see(const void *address, size_t bytes, bool *writable_out)
{
    uint8_t *at = (uint8_t *)(uintptr_t)address;
    struct place *place;

    *writable_out = true;
    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &mapped, link)
        if (place->address < at + bytes && at < place->address + place->bytes)
            *writable_out &= place->writable;
    place = find_reserved(at, bytes);
    pthread_mutex_unlock(&lock);
    return place ? place->seen + (at - place->address) : at;
}

/* How many bytes of the range are of a place. */
static size_t shared_bytes(const struct place *place, const uint8_t *address, size_t bytes)
{
    const uint8_t *from = place->address > address ? place->address : address;
    const uint8_t *place_end = place->address + place->bytes, *end = address + bytes;

    end = place_end < end ? place_end : end;
    return from < end ? (size_t)(end - from) : 0;
}

bool standin_reaches(const void *address, size_t bytes, CUdevice device)
{
    struct place *place;
    size_t all = 0;

    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &mapped, link)
        if (place->allowed && place->allocation->device == device)
            all += shared_bytes(place, address, bytes);
    LIST_FOREACH (place, &plain, link)
        if (place->device == device)
            all += shared_bytes(place, address, bytes);
    pthread_mutex_unlock(&lock);
    return all == bytes;
}

CUdevice standin_owner(const void *address)
{
    struct place *place;
    CUdevice device = -1;

    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &mapped, link)
        if (shared_bytes(place, address, 1))
            device = place->allocation->device;
    LIST_FOREACH (place, &plain, link)
        if (shared_bytes(place, address, 1))
            device = place->device;
    pthread_mutex_unlock(&lock);
    return device;
}

/* Whether something is mapped in the range. Lock held. */
static bool is_mapped(const uint8_t *address, size_t bytes)
{
    struct place *place;

    LIST_FOREACH (place, &mapped, link)
        if (place->address < address + bytes && address < place->address + place->bytes)
            return true;
    return false;
}

static CUresult address_free(CUdeviceptr pointer, size_t bytes)
{
    uint8_t *address = (uint8_t *)(uintptr_t)pointer;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct place *place;

    ENTER("cuMemAddressFree");
    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &reserved, link)
        if (place->address == address && place->bytes == bytes)
            break;
    if (place && !is_mapped(address, bytes)) {
        LIST_REMOVE(place, link);
        munmap(address, bytes);
        if (place->seen != address)
            munmap(place->seen, bytes);
        free(place);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult map(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                    unsigned long long flags)
{
    uint8_t *address = (uint8_t *)(uintptr_t)pointer;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct place *place;

    ENTER("cuMemMap");
    pthread_mutex_lock(&lock);
    struct allocation *allocation = find(handle);
    place = find_reserved(address, bytes);
    if (place && !flags && !offset && bytes == allocation->bytes &&
        (uintptr_t)address % STANDIN_GRANULARITY == 0 && !is_mapped(address, bytes) &&
        mmap(place->seen + (address - place->address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
             allocation->fd, 0) != MAP_FAILED) {
        place = calloc(1, sizeof *place);
        if (!place)
            abort();
        *place = (struct place){.address = address, .bytes = bytes, .allocation = allocation};
        allocation->references++;
        LIST_INSERT_HEAD(&mapped, place, link);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult unmap(CUdeviceptr pointer, size_t bytes)
{
    uint8_t *address = (uint8_t *)(uintptr_t)pointer;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct place *place;

    ENTER("cuMemUnmap");
    if (standin_in_use(address, bytes))
        standin_misused("memory is unmapped that a stream uses yet");
    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &mapped, link)
        if (place->address == address && place->bytes == bytes)
            break;
    if (place) {
        const struct place *room = find_reserved(address, bytes);
        mmap(room->seen + (address - room->address), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        LIST_REMOVE(place, link);
        put(place->allocation);
        free(place);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult set_access(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    ENTER("cuMemSetAccess");
    if (count != 1 || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !standin_is_device(access->location.id))
        return CUDA_ERROR_INVALID_VALUE;
    bool writable = access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    uint8_t *address = (uint8_t *)(uintptr_t)pointer;
    struct place *place;
    size_t all = 0;
    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &mapped, link)
        if (address <= place->address && place->address + place->bytes <= address + bytes &&
            place->allocation->device == access->location.id) /* there are no peers */
            all += place->bytes;
    struct place *room = find_reserved(address, bytes);
    bool good = room && all == bytes && /* it is mapped, from one end to the other */
                !mprotect(room->seen + (address - room->address), bytes,
                          writable ? PROT_READ | PROT_WRITE : PROT_READ);
    LIST_FOREACH (place, &mapped, link)
        if (good && address <= place->address && place->address + place->bytes <= address + bytes) {
            place->allowed = true;
            place->writable = writable;
        }
    pthread_mutex_unlock(&lock);
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_info(size_t *free_out, size_t *total_out)
{
    ENTER_CONTEXT("cuMemGetInfo");
    *total_out = (size_t)standin_number("memory", (long long)80 << 30);
    pthread_mutex_lock(&lock);
    *free_out = *total_out > used ? *total_out - used : 0;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *pointer_out, size_t bytes)
{
    *pointer_out = STANDIN_NOTHING;
    ENTER_CONTEXT("cuMemAlloc");
    pthread_mutex_lock(&lock);
    bool fits = bytes && charge(bytes);
    pthread_mutex_unlock(&lock);
    uint8_t *area = fits ? aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : NULL;
    struct place *place = area ? malloc(sizeof *place) : NULL;
    if (!place)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(area, 0xdb, bytes);
    *place = (struct place){.address = area, .bytes = bytes, .device = standin_device()};
    pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&plain, place, link);
    pthread_mutex_unlock(&lock);
    *pointer_out = (uintptr_t)area;
    return CUDA_SUCCESS;
}

static CUresult free_memory(CUdeviceptr pointer)
{
    struct place *place;

    ENTER_CONTEXT("cuMemFree");
    standin_wait_for_all();
    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &plain, link)
        if ((uintptr_t)place->address == pointer)
            break;
    if (!place)
        standin_misused("memory is freed that there is not, or not any more");
    LIST_REMOVE(place, link);
    used -= place->bytes;
    pthread_mutex_unlock(&lock);
    free(place->address);
    free(place);
    return CUDA_SUCCESS;
}

static struct place last_pinned;
static LIST_HEAD(, place) pinned, registered; /* under the lock, too */

/* At this address, out of its list; or NULL. Lock held. */
static struct place *take(struct place *place, const void *address)
{
    for (; place; place = LIST_NEXT(place, link))
        if (place->address == address)
            break;
    if (place)
        LIST_REMOVE(place, link);
    return place;
}

static struct place *new_place(uint8_t *address, size_t bytes)
{
    struct place *place = calloc(1, sizeof *place);

    if (!place)
        abort();
    *place = (struct place){.address = address, .bytes = bytes};
    return place;
}

bool standin_is_pinned_in_part(const void *address, size_t bytes)
{
    struct place *place;
    size_t all = 0;

    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &pinned, link)
        all += shared_bytes(place, address, bytes);
    LIST_FOREACH (place, &registered, link)
        all += shared_bytes(place, address, bytes);
    pthread_mutex_unlock(&lock);
    return all && all != bytes;
}

static CUresult host_alloc(void **pointer_out, size_t bytes, unsigned flags)
{
    (void)flags;
    *pointer_out = (void *)STANDIN_NOTHING;
    ENTER_CONTEXT("cuMemHostAlloc");
    bytes = (bytes + 4095) / 4096 * 4096;
    void *area = aligned_alloc(4096, bytes);
    if (!area)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct place *place = new_place(area, bytes);
    pthread_mutex_lock(&lock);
    last_pinned = *place;
    LIST_INSERT_HEAD(&pinned, place, link);
    pthread_mutex_unlock(&lock);
    *pointer_out = area;
    return CUDA_SUCCESS;
}

/* "exits=MS": the process ends, and the driver takes back the memory that it gave last, as a real one does
 * with all. For so long that somebody who still looks there is seen. */
__attribute__((destructor)) static void take_back(void)
{
    if (!standin_word("exits") || !last_pinned.bytes)
        return;
    mprotect(last_pinned.address, last_pinned.bytes, PROT_NONE);
    usleep((useconds_t)standin_number("exits", 0) * 1000);
}

static CUresult host_free(void *pointer)
{
    ENTER_CONTEXT("cuMemFreeHost");
    standin_wait_for_all();
    pthread_mutex_lock(&lock);
    struct place *place = take(LIST_FIRST(&pinned), pointer);
    pthread_mutex_unlock(&lock);
    if (!place)
        standin_misused("pinned memory is freed that there is not, or not any more");
    free(place);
    free(pointer);
    return CUDA_SUCCESS;
}

/* Of all GPUs together, with CU_MEMHOSTREGISTER_PORTABLE. */
static CUresult host_register(void *pointer, size_t bytes, unsigned flags)
{
    uint8_t *address = pointer;
    struct place *place;

    ENTER_CONTEXT("cuMemHostRegister");
    if (!address || !bytes || flags != CU_MEMHOSTREGISTER_PORTABLE)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    LIST_FOREACH (place, &registered, link)
        if (place->address < address + bytes && address < place->address + place->bytes)
            break;
    if (!place) {
        struct place *fresh = new_place(address, bytes);
        LIST_INSERT_HEAD(&registered, fresh, link);
    }
    pthread_mutex_unlock(&lock);
    return place ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_SUCCESS;
}

/* Whether the program has all of it still. A driver has its pages as they were when it was registered: what
 * is mapped there later, GPUs do not see. */
static bool is_still_there(const struct place *place)
{
    unsigned char *unused = malloc(place->bytes / 4096 + 1);
    uintptr_t from = (uintptr_t)place->address / 4096 * 4096;

    if (!unused)
        abort();
    bool is_there = !mincore((void *)from, place->bytes, unused);
    free(unused);
    return is_there;
}

static CUresult host_unregister(void *pointer)
{
    ENTER_CONTEXT("cuMemHostUnregister");
    standin_wait_for_all();
    pthread_mutex_lock(&lock);
    struct place *place = take(LIST_FIRST(&registered), pointer);
    pthread_mutex_unlock(&lock);
    if (place && !is_still_there(place))
        standin_misused("memory was unmapped that is registered yet");
    free(place);
    return place ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

const struct standin_row standin_memory_rows[] = {
    ROW("cuMemGetAllocationGranularity", 10020, granularity),
    ROW("cuMemCreate", 10020, create),
    ROW("cuMemRelease", 10020, release),
    ROW("cuMemExportToShareableHandle", 10020, export_handle),
    ROW("cuMemImportFromShareableHandle", 10020, import_handle),
    ROW("cuMemAddressReserve", 10020, reserve),
    ROW("cuMemAddressFree", 10020, address_free),
    ROW("cuMemMap", 10020, map),
    ROW("cuMemUnmap", 10020, unmap),
    ROW("cuMemSetAccess", 10020, set_access),
    ROW("cuMemGetHandleForAddressRange", 11070, address_range),
    ROW("cuFlushGPUDirectRDMAWrites", 11030, flush_writes),
    ROW("cuMemGetInfo", 3020, get_info),
    ROW("cuMemAlloc", 3020, allocate),
    ROW("cuMemFree", 3020, free_memory),
    ROW("cuMemHostAlloc", 2020, host_alloc),
    ROW("cuMemFreeHost", 2000, host_free),
    ROW("cuMemHostRegister", 6050, host_register),
    ROW("cuMemHostUnregister", 4000, host_unregister),
    {NULL, 0, NULL},
};
