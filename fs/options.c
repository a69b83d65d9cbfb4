/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/options.h"

#define FUSE_USE_VERSION 314
#include <errno.h>
#include <fuse_opt.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "cache/evict.h"
#include "fs/log.h"
#include "fs/memory.h"

#define INODES_LEAST 1024u
#define REMEMBER_DEFAULT 65536u

#define CAPACITY_MIN ((uint64_t)256 << 10) /* bytes: a few units of 64 KiB */

enum key {
    KEY_HELP,
    KEY_VERSION,
    KEY_FOREGROUND,
    KEY_DEBUG,
    KEY_READ_ONLY,
    KEY_ALLOW_OTHER,
    KEY_CAPACITY,
    KEY_SOFT_DEVICES,
    KEY_EVICT,
    KEY_UNIT,
    KEY_IO,
    KEY_FAULT,
    KEY_QUEUES,
    KEY_DEPTH,
    KEY_PEER_TIMEOUT,
    KEY_INODES,
    KEY_REMEMBER,
    KEY_TIMEOUT,
    KEY_FSNAME,
    KEY_SUBTYPE,
    KEY_NOATIME,
    KEY_NODIRATIME,
    KEY_REMOUNT,
    KEY_LOG,
    KEY_PASSTHROUGH,
    KEY_SHARED,
    KEY_PASS_ON,
    KEY_IGNORE,
};

#define OPTION(text, key) \
    {                     \
        text, -1U, key    \
    }

static const struct fuse_opt templates[] = {
    OPTION("-h", KEY_HELP),
    OPTION("--help", KEY_HELP),
    OPTION("-V", KEY_VERSION),
    OPTION("--version", KEY_VERSION),
    OPTION("-f", KEY_FOREGROUND),
    OPTION("-d", KEY_DEBUG),
    OPTION("debug", KEY_DEBUG),
    OPTION("-r", KEY_READ_ONLY),
    OPTION("ro", KEY_READ_ONLY),
    OPTION("allow_other", KEY_ALLOW_OTHER),
    OPTION("device_cache=", KEY_CAPACITY),
    OPTION("soft_devices=", KEY_SOFT_DEVICES),
    OPTION("evict=", KEY_EVICT),
    OPTION("unit=", KEY_UNIT),
    OPTION("io=", KEY_IO),
    OPTION("fault=", KEY_FAULT),
    OPTION("queues=", KEY_QUEUES),
    OPTION("depth=", KEY_DEPTH),
    OPTION("peer_timeout=", KEY_PEER_TIMEOUT),
    OPTION("timeout=", KEY_TIMEOUT),
    OPTION("inodes=", KEY_INODES),
    OPTION("remember=", KEY_REMEMBER),
    OPTION("fsname=", KEY_FSNAME),
    OPTION("subtype=", KEY_SUBTYPE),
    OPTION("log=", KEY_LOG),
    OPTION("passthrough=", KEY_PASSTHROUGH),
    OPTION("shared", KEY_SHARED),
    /* what mount(8) says to a helper */
    OPTION("-s", KEY_IGNORE),
    OPTION("-n", KEY_IGNORE),
    OPTION("-v", KEY_IGNORE),
    OPTION("-w", KEY_IGNORE),
    OPTION("-t ", KEY_IGNORE),
    /* flags of the kernel that libfuse hands on */
    OPTION("exec", KEY_PASS_ON),
    OPTION("noexec", KEY_PASS_ON),
    OPTION("suid", KEY_PASS_ON),
    OPTION("nosuid", KEY_PASS_ON),
    OPTION("dev", KEY_PASS_ON),
    OPTION("nodev", KEY_PASS_ON),
    OPTION("sync", KEY_PASS_ON),
    OPTION("async", KEY_PASS_ON),
    OPTION("dirsync", KEY_PASS_ON),
    OPTION("atime", KEY_PASS_ON),
    OPTION("noatime", KEY_NOATIME),
    OPTION("nodiratime", KEY_NODIRATIME),
    OPTION("remount", KEY_REMOUNT),
    /* fstab's own words, defaults, and what is always on */
    OPTION("rw", KEY_IGNORE),
    OPTION("defaults", KEY_IGNORE),
    OPTION("auto", KEY_IGNORE),
    OPTION("noauto", KEY_IGNORE),
    OPTION("user", KEY_IGNORE),
    OPTION("user=", KEY_IGNORE),
    OPTION("nouser", KEY_IGNORE),
    OPTION("users", KEY_IGNORE),
    OPTION("owner", KEY_IGNORE),
    OPTION("group", KEY_IGNORE),
    OPTION("_netdev", KEY_IGNORE),
    OPTION("nofail", KEY_IGNORE),
    OPTION("comment=", KEY_IGNORE),
    OPTION("relatime", KEY_IGNORE),
    OPTION("norelatime", KEY_IGNORE),
    OPTION("strictatime", KEY_IGNORE),
    OPTION("nostrictatime", KEY_IGNORE),
    OPTION("diratime", KEY_IGNORE),
    OPTION("lazytime", KEY_IGNORE),
    OPTION("nolazytime", KEY_IGNORE),
    OPTION("loud", KEY_IGNORE),
    OPTION("silent", KEY_IGNORE),
    OPTION("iversion", KEY_IGNORE),
    OPTION("noiversion", KEY_IGNORE),
    OPTION("mand", KEY_IGNORE),
    OPTION("nomand", KEY_IGNORE),
    OPTION("default_permissions", KEY_IGNORE),
    FUSE_OPT_END,
};

static uint64_t machine_memory(void)
{
    return memory_available();
}

/* The soft devices' memory is the machine's: each may take an eighth, and it is taken only as files are
 * touched. */
static uint64_t default_capacity(void)
{
    uint64_t eighth = machine_memory() / 8;

    return eighth > CAPACITY_MIN ? eighth : CAPACITY_MIN;
}

/* SIZE: digits and an optional K, M, G or T. 0 on anything else, and on what does not fit. */
static uint64_t parse_size(const char *text)
{
    static const char suffixes[] = "KMGT";
    unsigned long long value;
    const char *suffix;
    unsigned shift = 0;
    char *end;

    if (*text < '0' || *text > '9')
        return 0;
    errno = 0;
    value = strtoull(text, &end, 10);
    if (errno)
        return 0;
    if (*end != '\0') {
        suffix = strchr(suffixes, *end & ~0x20);
        if (!suffix || end[1] != '\0')
            return 0;
        shift = 10 * ((unsigned)(suffix - suffixes) + 1);
    }
    return value > (UINT64_MAX >> shift) ? 0 : (uint64_t)value << shift;
}

/* device_cache=SIZE or device_cache=soft:N=SIZE */
static int parse_capacity(struct fs_options *options, const char *option)
{
    const char *text = option + strlen("device_cache=");
    uint64_t *capacity = &options->cache.device_capacity;
    unsigned device;
    int used = 0;

    bool cuda = !strncmp(text, "cuda:", 5);
    if (sscanf(text, cuda ? "cuda:%3u=%n" : "soft:%3u=%n", &device, &used) == 1 && used > 0) {
        unsigned most = cuda ? GAIA_CUDA_MAX : GAIA_SOFT_MAX;
        if (device >= most) {
            fs_log(LOG_ERR, "option %s: there are no more than %u devices", option, most);
            return -1;
        }
        capacity = &options->cache.device_capacity_of[device + (cuda ? GAIA_SOFT_MAX : 0)];
        text += used;
    }
    *capacity = parse_size(text);
    if (capacity == &options->cache.device_capacity)
        options->cache.gpu_capacity = *capacity;
    if (*capacity == 0) {
        fs_log(LOG_ERR, "option %s: not a size above 0 (a number, then K, M, G or T)", option);
        return -1;
    }
    if (*capacity < CAPACITY_MIN) {
        fs_log(LOG_ERR, "option %s: less than the minimum of 256K", option);
        return -1;
    }
    if (!cuda && *capacity > machine_memory()) {
        fs_log(LOG_ERR, "option %s: more than the %llu MiB of memory of this machine", option,
               (unsigned long long)(machine_memory() >> 20));
        return -1;
    }
    return 0;
}

static int parse_soft_devices(struct fs_options *options, const char *option)
{
    const char *text = option + strlen("soft_devices=");
    char *end;
    unsigned long number = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end || !number || number > GAIA_SOFT_MAX) {
        fs_log(LOG_ERR, "option %s: not a number from 1 to %u", option, GAIA_SOFT_MAX);
        return -1;
    }
    options->cache.soft_devices = (unsigned)number;
    return 0;
}

static int parse_evict(struct fs_options *options, const char *option)
{
    const struct evict_policy *policy = evict_policy_find(option + strlen("evict="));

    if (!policy) {
        fs_log(LOG_ERR, "option %s: none of lra, fifo, clock", option);
        return -1;
    }
    options->cache.evict = policy->name;
    return 0;
}

static int parse_unit(struct fs_options *options, const char *option)
{
    uint64_t bytes = parse_size(option + strlen("unit=")), pages = bytes / GAIA_PAGE_SIZE;

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

static int parse_number(const char *option, size_t least, size_t *number_out)
{
    const char *text = strchr(option, '=') + 1;
    char *end;
    unsigned long long number = strtoull(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0' || number < least || number > UINT32_MAX) {
        fs_log(LOG_ERR, "option %s: not a number of at least %zu", option, least);
        return -1;
    }
    *number_out = number;
    return 0;
}

static int parse_timeout(struct fs_options *options, const char *option)
{
    const char *text = option + strlen("timeout=");
    char *end;

    options->timeout_s = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(options->timeout_s) || options->timeout_s < 0) {
        fs_log(LOG_ERR, "option %s: not a number of seconds", option);
        return -1;
    }
    return 0;
}

/* One of two words. */
static int parse_choice(const char *option, const char *first, const char *second, bool *is_second)
{
    const char *text = strchr(option, '=') + 1;

    if (strcmp(text, first) != 0 && strcmp(text, second) != 0) {
        fs_log(LOG_ERR, "option %s: neither %s nor %s", option, first, second);
        return -1;
    }
    *is_second = strcmp(text, second) == 0;
    return 0;
}

static int parse_count(const char *option, unsigned least, unsigned most, unsigned *number_out)
{
    size_t number;

    if (parse_number(option, least, &number))
        return -1;
    if (number > most) {
        fs_log(LOG_ERR, "option %s: more than %u", option, most);
        return -1;
    }
    *number_out = (unsigned)number;
    return 0;
}

static int parse_peer_timeout(struct fault_path_config *fault, const char *option)
{
    unsigned seconds;

    if (parse_count(option, 1, 600, &seconds))
        return -1;
    fault->timeout_ms = seconds * 1000;
    return 0;
}

/* fault=copy, fault=local, fault=rdma or fault=rdma@HOST[:PORT] */
static int parse_carrier(struct fault_path_config *fault, const char *option)
{
    const char *text = option + strlen("fault="), *host = strchr(text, '@');
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

static int parse_fault(struct fault_path_config *fault, const char *option, int key)
{
    switch (key) {
    case KEY_QUEUES:
        return parse_count(option, 1, GAIA_LINK_QUEUES_MAX, &fault->queues);
    case KEY_DEPTH:
        return parse_count(option, 1, GAIA_LINK_DEPTH_MAX, &fault->depth);
    case KEY_PEER_TIMEOUT:
        return parse_peer_timeout(fault, option);
    default:
        return parse_carrier(fault, option);
    }
}

static int set_text(char **text, const char *value)
{
    free(*text);
    *text = strdup(value);
    if (!*text)
        fs_log(LOG_ERR, "options: %s", strerror(errno));
    return *text ? 0 : -1;
}

static int parse_positional(struct fs_options *options, const char *text)
{
    if (!options->data)
        return set_text(&options->data, text);
    if (!options->mountpoint)
        return set_text(&options->mountpoint, text);
    fs_log(LOG_ERR, "one argument too many: %s", text);
    return -1;
}

/* For fuse_opt_parse(): -1 an error, 0 dealt with. */
static int parse_one(void *data, const char *text, int key, struct fuse_args *args)
{
    struct fs_options *options = data;

    (void)args;
    switch (key) {
    case KEY_HELP:
        options->help = true;
        return 0;
    case KEY_VERSION:
        options->version = true;
        return 0;
    case KEY_FOREGROUND:
        options->foreground = true;
        return 0;
    case KEY_DEBUG:
        options->debug = true;
        return 0;
    case KEY_READ_ONLY:
        options->read_only = true;
        return 0;
    case KEY_ALLOW_OTHER:
        options->allow_other = true;
        return 0;
    case KEY_CAPACITY:
        return parse_capacity(options, text);
    case KEY_SOFT_DEVICES:
        return parse_soft_devices(options, text);
    case KEY_EVICT:
        return parse_evict(options, text);
    case KEY_UNIT:
        return parse_unit(options, text);
    case KEY_IO:
        return parse_choice(text, "uring", "threads", &options->cache.io_threads);
    case KEY_FAULT:
    case KEY_QUEUES:
    case KEY_DEPTH:
    case KEY_PEER_TIMEOUT:
        return parse_fault(&options->cache.fault, text, key);
    case KEY_INODES:
        return parse_number(text, INODES_LEAST, &options->inodes);
    case KEY_REMEMBER:
        return parse_number(text, 0, &options->remember);
    case KEY_TIMEOUT:
        return parse_timeout(options, text);
    case KEY_FSNAME:
        return set_text(&options->fsname, text + strlen("fsname="));
    case KEY_SUBTYPE:
        return set_text(&options->subtype, text + strlen("subtype="));
    case KEY_LOG:
        options->log_given = true;
        return parse_choice(text, "stderr", "syslog", &options->log_syslog);
    case KEY_NOATIME:
        options->no_atime = true;
        return fuse_opt_add_opt(&options->mount_options, text);
    case KEY_NODIRATIME: /* libfuse does not know it, and the daemon is who reads */
        options->no_diratime = true;
        return 0;
    case KEY_REMOUNT:
        options->remount = true;
        return 0;
    case KEY_PASSTHROUGH:
        return parse_choice(text, "off", "on", &options->passthrough);
    case KEY_SHARED:
        options->cache.shared = true;
        return 0;
    case KEY_PASS_ON:
        return fuse_opt_add_opt(&options->mount_options, text);
    case KEY_IGNORE:
        return 0;
    case FUSE_OPT_KEY_NONOPT:
        return parse_positional(options, text);
    default:
        if (strncmp(text, "x-", 2) == 0 || strncmp(text, "X-", 2) == 0)
            return 0;
        fs_log(LOG_ERR, "unknown option %s (see mount.gaiafs --help)", text);
        return -1;
    }
}

/* mount(8) may put flags together: -sv. fuse_opt knows only single ones. */
static int add_argument(struct fuse_args *args, const char *argument)
{
    char flag[3] = "-?";

    if (argument[0] != '-' || argument[1] == '-' || strlen(argument) < 3 ||
        strspn(argument + 1, "sfnvwr") != strlen(argument + 1))
        return fuse_opt_add_arg(args, argument);
    for (const char *letter = argument + 1; *letter; letter++) {
        flag[1] = *letter;
        if (fuse_opt_add_arg(args, flag))
            return -1;
    }
    return 0;
}

/* Every device must exist and hold a unit. */
static int check_capacities(const struct fs_options *options)
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

/* The flags of a remount are all that hold after it. */
static unsigned long flags_of(const struct fs_options *options)
{
    static const struct {
        const char *word;
        unsigned long flag;
    } words[] = {{"nosuid", MS_NOSUID},    {"nodev", MS_NODEV},     {"noexec", MS_NOEXEC},
                 {"sync", MS_SYNCHRONOUS}, {"dirsync", MS_DIRSYNC}, {"noatime", MS_NOATIME}};
    unsigned long flags = (options->read_only ? MS_RDONLY : 0) | (options->no_diratime ? MS_NODIRATIME : 0);
    const char *list = options->mount_options ? options->mount_options : "";

    for (size_t length; *list; list += length + (list[length] == ',')) {
        length = strcspn(list, ",");
        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
            if (strlen(words[i].word) == length && strncmp(list, words[i].word, length) == 0)
                flags |= words[i].flag;
        }
    }
    return flags;
}

static int check(struct fs_options *options)
{
    if (options->help || options->version)
        return 0;
    options->remount_flags = flags_of(options);
    if (!options->data || !options->mountpoint) {
        fs_log(LOG_ERR, "%s missing (see mount.gaiafs --help)",
               options->data ? "mount point" : "data directory");
        return -EINVAL;
    }
    if (geteuid() == 0)
        options->allow_other = true;
    if (!options->log_given)
        options->log_syslog = !options->foreground;
    return check_capacities(options);
}

int options_parse(struct fs_options *options_out, int argc, char **argv)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    int rc = -EINVAL;

    memset(options_out, 0, sizeof(*options_out));
    options_out->timeout_s = 1.0;
    options_out->remember = REMEMBER_DEFAULT;
    options_out->passthrough = true;
    options_out->cache.device_capacity = default_capacity();
    options_out->cache.soft_devices = CACHE_SOFT_DEVICES;
    options_out->cache.evict = "lra";
    options_out->cache.unit_pages = GAIA_UNIT_PAGES;
    for (int i = 0; i < argc; i++) {
        if (add_argument(&args, argv[i]))
            goto out;
    }
    if (fuse_opt_parse(&args, options_out, templates, parse_one) == 0)
        rc = check(options_out);
out:
    fuse_opt_free_args(&args);
    if (rc < 0)
        options_free(options_out);
    return rc;
}

void options_free(struct fs_options *options)
{
    free(options->data);
    free(options->mountpoint);
    free(options->fsname);
    free(options->subtype);
    free(options->mount_options);
    options->data = options->mountpoint = options->fsname = options->subtype = options->mount_options = NULL;
}

void options_print_help(void)
{
    printf(
        "usage: mount.gaiafs DATADIR MOUNTPOINT [-f] [-o OPTION[,OPTION...]]\n"
        "       mount -t gaiafs DATADIR MOUNTPOINT [-o OPTION[,OPTION...]]\n"
        "\n"
        "Mounts the files of DATADIR so that GPU programs can map them (see gaia.h). MOUNTPOINT may be "
        "DATADIR\n"
        "itself. Goes to the background once the mount answers; umount, SIGTERM or SIGINT end it.\n"
        "\n"
        "    -f                        stay in the foreground, log to stderr\n"
        "    -r                        mount read-only\n"
        "    -h, --help                print this\n"
        "    -V, --version             print the versions\n"
        "    -s -n -v -w -t TYPE       accepted, as mount(8) gives them\n"
        "\n"
        "Options:\n"
        "    device_cache=SIZE         capacity of every device (here by default %llu MiB; at least 256K)\n"
        "    device_cache=soft:N=SIZE  capacity of one device; may be repeated\n"
        "    device_cache=cuda:N=SIZE  the same of a GPU (default: seven eighths of its memory)\n"
        "    soft_devices=N            how many there are: soft:0 to soft:(N-1), at most 64 (default 8)\n"
        "    evict=lra|fifo|clock      what goes first when a device is full (default lra)\n"
        "    unit=4K|64K|2M            what is placed for one touch of a device (default 64K)\n"
        "    io=uring|threads          how devices read the data directory (default uring)\n"
        "    fault=copy|local|rdma     how a fault's bytes come into a device: copied by the daemon "
        "(default), or "
        "by\n"
        "                              one-sided reads; rdma@HOST[:PORT]: through the RDMA device with that "
        "address\n"
        "    queues=N,depth=N          of those reads: queues, and reads under way on each (default: as the "
        "device needs)\n"
        "    peer_timeout=SECONDS      when an unanswered read has failed, 1 to 600 (default 5)\n"
        "    shared                    other mounts may have DATADIR, too, here or on other machines: each "
        "file is on\n"
        "                              the devices of one of them at a time\n"
        "    timeout=SECONDS           how long the kernel may keep names and attributes (default 1)\n"
        "    inodes=N                  how many files may be known at a time (default: as memory allows)\n"
        "    remember=N                how many forgotten ones file handles (NFS) still lead to (default "
        "65536)\n"
        "    log=stderr|syslog         where to log (default syslog, with -f stderr)\n"
        "    passthrough=on|off        whether the kernel may read and write files by itself (default on, "
        "where\n"
        "                              libfuse is 3.17 or newer and Linux 6.9 or newer)\n"
        "    debug                     log every request\n"
        "    fsname=NAME               the source in the mount table (default DATADIR)\n"
        "    subtype=NAME              the type there is fuse.NAME, or plain fuse without NAME (default "
        "gaiafs)\n"
        "    allow_other               let other users in (always on for root)\n"
        "    remount                   change ro, noexec, nosuid, nodev, noatime, sync of what is mounted\n"
        "    ro, noexec, nosuid, nodev, noatime, sync and their opposites, as for mount(8)\n"
        "\n"
        "SIZE is a number with K, M, G or T. The kernel checks permissions by mode and owner, always.\n",
        (unsigned long long)(default_capacity() >> 20));
}
