/* SPDX-License-Identifier: Apache-2.0 */
/* What a cache has in place of its mount, for the fuzzers that have one: a kernel without pages, and files in
 * memory, all zeros. */
#ifndef GAIAFS_TESTS_FUZZ_HOST_H
#define GAIAFS_TESTS_FUZZ_HOST_H

#include <sys/mman.h>
#include <unistd.h>

#include "cache/cache.h"
#include "tests/fuzz/fuzz.h"

#define PAGE 4096u
#define PAGES 64u /* of a file */

static int host_invalidate(void *context, void *file_context, off_t offset, off_t length)
{
    (void)context;
    (void)file_context;
    MUST(length >= 0 && (offset >= 0 || offset == -1));
    return 0;
}

static ssize_t host_peek(void *context, void *file_context, off_t offset, size_t length, void *bytes_out)
{
    (void)context;
    (void)file_context;
    (void)bytes_out;
    MUST(offset >= 0 && length);
    return 0;
}

static _Atomic int host_pins;

static void host_pin(void *context, void *file_context, bool pinned)
{
    (void)context;
    (void)file_context;
    host_pins += pinned ? 1 : -1;
}

/* Its backing file. */
static int host_open_file(struct cache *cache, struct durable *durable, struct cache_file **file_out)
{
    int backing = memfd_create("fuzz", MFD_CLOEXEC);

    MUST(backing >= 0 && !ftruncate(backing, PAGES * PAGE));
    durable_init(durable);
    MUST(!cache_file_open(cache, backing, file_out, durable, file_out));
    return backing;
}

#endif
