/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/options_cache.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "cache/evict.h"
#include "cache/fault_threads.h"
#include "fs/log.h"
#include "fs/memory.h"

#define CAPACITY_MIN ((uint64_t)256 << 10) /* bytes: a few units of 64 KiB */

/* The soft devices' memory is the machine's: each may take an eighth, all together a quarter (struct
 * cache_pool), and it is taken only as files are touched. With a twin for every page that is half of it. */
uint64_t options_cache_default_capacity(void)
{
    uint64_t eighth = memory_available() / 8;

    return eighth > CAPACITY_MIN ? eighth : CAPACITY_MIN;
}

void options_cache_defaults(struct cache_config *cache)
{
    cache->device_capacity = cache->soft_pool = options_cache_default_capacity();
    cache->soft_devices = CACHE_SOFT_DEVICES;
    cache->evict = "lra";
    cache->unit_pages = GAIA_UNIT_PAGES;
}

/* device_cache=SIZE or device_cache=soft:N=SIZE */
static int parse_capacity(struct fs_options *options, const char *option)
{
    const char *text = option_value(option);
    uint64_t *capacity = &options->cache.device_capacity;
    unsigned device;
    int used = 0;

    bool cuda = !strncmp(text, "cuda:", 5);
    if (sscanf(text, cuda ? "cuda:%9u=%n" : "soft:%9u=%n", &device, &used) == 1 && used > 0) {
        unsigned most = cuda ? GAIA_CUDA_MAX : GAIA_SOFT_MAX;
        if (device >= most) {
            fs_log(LOG_ERR, "option %s: there are no more than %u devices", option, most);
            return -1;
        }
        capacity = &options->cache.device_capacity_of[device + (cuda ? GAIA_SOFT_MAX : 0)];
        text += used;
    } else if (strchr(text, '=')) {
        fs_log(LOG_ERR, "option %s: no device is called so (soft:N=SIZE or cuda:N=SIZE)", option);
        return -1;
    }
    *capacity = size_parse(text);
    if (capacity == &options->cache.device_capacity) {
        options->cache.gpu_capacity = *capacity;
        options->cache.soft_pool = 0; /* who has said it knows what there is */
    }
    if (*capacity == 0) {
        fs_log(LOG_ERR, "option %s: not a size above 0 (a number, then K, M, G or T)", option);
        return -1;
    }
    if (*capacity < CAPACITY_MIN) {
        fs_log(LOG_ERR, "option %s: less than the minimum of 256K", option);
        return -1;
    }
    if (!cuda && *capacity > memory_available()) {
        fs_log(LOG_ERR, "option %s: more than the %llu MiB of memory of this machine", option,
               (unsigned long long)(memory_available() >> 20));
        return -1;
    }
    return 0;
}

static int parse_soft_devices(struct fs_options *options, const char *option)
{
    return option_count(option, 1, GAIA_SOFT_MAX, &options->cache.soft_devices);
}

static int parse_evict(struct fs_options *options, const char *option)
{
    const struct evict_policy *policy = evict_policy_find(option_value(option));

    if (!policy) {
        fs_log(LOG_ERR, "option %s: none of lra, fifo, clock", option);
        return -1;
    }
    options->cache.evict = policy->name;
    return 0;
}

static int parse_unit(struct fs_options *options, const char *option)
{
    uint64_t bytes = size_parse(option_value(option)), pages = bytes / GAIA_PAGE_SIZE;

    if (bytes != 4 << 10 && bytes != 64 << 10 && bytes != 2 << 20) {
        fs_log(LOG_ERR, "option %s: none of 4K, 64K, 2M", option);
        return -1;
    }
    if (options->unit_given && pages != options->cache.unit_pages) {
        fs_log(LOG_ERR, "option %s: another unit was given before; all devices have one", option);
        return -1;
    }
    options->cache.unit_pages = pages;
    options->unit_given = true;
    return 0;
}

static int parse_fault_threads(struct fs_options *options, const char *option)
{
    return option_count(option, 1, FAULT_THREADS_MAX, &options->cache.fault_threads);
}

static int parse_io(struct fs_options *options, const char *option)
{
    return option_choice(option, "uring", "threads", &options->cache.io_threads);
}

/* fault=copy, fault=local, fault=rdma or fault=rdma@HOST[:PORT] */
static int parse_carrier(struct fs_options *options, const char *option)
{
    struct fault_path_config *fault = &options->cache.fault;
    const char *text = option_value(option), *host = strchr(text, '@');
    size_t length = host ? (size_t)(host - text) : strlen(text);
    static const char *const words[] = {"copy", "local", "rdma"}; /* as enum fault_carrier has them */

    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        if (length != strlen(words[i]) || strncmp(text, words[i], length) != 0 ||
            (host && (i != FAULT_RDMA || !host[1])))
            continue;
        if (host && strlen(host + 1) >= sizeof fault->address) {
            fs_log(LOG_ERR, "option %s: the host is longer than %zu bytes", option,
                   sizeof fault->address - 1);
            return -1;
        }
        fault->carrier = (enum fault_carrier)i;
        snprintf(fault->address, sizeof fault->address, "%s", host ? host + 1 : "");
        return 0;
    }
    fs_log(LOG_ERR, "option %s: none of copy, local, rdma, rdma@HOST[:PORT]", option);
    return -1;
}

static int parse_gpudirect(struct fs_options *options, const char *option)
{
    return option_choice(option, "auto", "off", &options->cache.no_gpudirect);
}

static int parse_queues(struct fs_options *options, const char *option)
{
    return option_count(option, 1, GAIA_LINK_QUEUES_MAX, &options->cache.fault.queues);
}

static int parse_depth(struct fs_options *options, const char *option)
{
    return option_count(option, 1, GAIA_LINK_DEPTH_MAX, &options->cache.fault.depth);
}

static int parse_peer_timeout(struct fs_options *options, const char *option)
{
    unsigned seconds;

    if (option_count(option, 1, 600, &seconds))
        return -1;
    options->cache.fault.timeout_ms = seconds * 1000;
    return 0;
}

const struct mount_option options_cache[] = {
    {.text = "device_cache=", .parse = parse_capacity},
    {.text = "soft_devices=", .parse = parse_soft_devices},
    {.text = "evict=", .parse = parse_evict},
    {.text = "unit=", .parse = parse_unit},
    {.text = "fault_threads=", .parse = parse_fault_threads},
    {.text = "io=", .parse = parse_io},
    {.text = "fault=", .parse = parse_carrier},
    {.text = "gpudirect=", .parse = parse_gpudirect},
    {.text = "queues=", .parse = parse_queues},
    {.text = "depth=", .parse = parse_depth},
    {.text = "peer_timeout=", .parse = parse_peer_timeout},
    {.text = NULL},
};

int options_cache_check(const struct fs_options *options)
{
    const struct cache_config *cache = &options->cache;
    uint64_t unit = cache->unit_pages * GAIA_PAGE_SIZE, least = cache->device_capacity;

    for (unsigned i = 0; i < GAIA_DEVICES_MAX; i++) {
        uint64_t capacity = cache->device_capacity_of[i];
        if (capacity && i < GAIA_SOFT_MAX && i >= cache->soft_devices) {
            fs_log(LOG_ERR, "device_cache=soft:%u=: there are no more than %u devices (see soft_devices=)", i,
                   cache->soft_devices);
            return -EINVAL;
        }
        if (capacity && capacity < least)
            least = capacity;
    }
    if (least >= unit)
        return 0;
    fs_log(LOG_ERR, "a device of %llu KiB can't hold one unit of %llu KiB (see device_cache= and unit=)",
           (unsigned long long)(least >> 10), (unsigned long long)(unit >> 10));
    return -EINVAL;
}
