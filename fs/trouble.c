/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/trouble.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/lock.h"
#include "cache/stat.h"
#include "fs/escape.h"
#include "fs/fs.h"
#include "fs/log.h"

#define PAUSE_NS UINT64_C(30000000000)

static struct kind {
    int error;
    const char *advice;
    unsigned most; /* lines in PAUSE_NS; 0: one */
    /* Guarded by trouble_lock: */
    uint64_t until_ns; /* of this PAUSE_NS */
    unsigned said;     /* lines in it */
    unsigned unsaid;
} kinds[] = {
    {.error = EIO,
     .advice = "the kernel's log (dmesg) says what is wrong with the disk; with peers= another node, or its "
               "kernel, may not answer"},
    {.error = EUCLEAN, .advice = "its filesystem is damaged: unmount it and run fsck"},
    {.error = ESHUTDOWN, .advice = "its filesystem has shut itself down: see the kernel's log (dmesg)"},
    {.error = ENOTCONN, .advice = "its filesystem's own daemon has died: mount that anew, and then this one"},
    {.error = EMFILE, .advice = "raise the daemon's limit of open files (ulimit -n, systemd: LimitNOFILE=)"},
    {.error = ENFILE, .advice = "raise the machine's limit of open files (sysctl fs.file-max)"},
    {.error = ENOMEM, .advice = "the daemon needs more memory, or its cgroup a higher memory.max"},
};

/* What the kernel can't write back: whoever has stored it may have gone, and then nobody asks. */
#define LOST_STORES "it is lost unless it is stored again (fsync() and msync() say so to who asks)"
static struct kind stores[] = {{.error = ENOSPC, .advice = LOST_STORES},
                               {.error = EDQUOT, .advice = LOST_STORES},
                               {.error = EFBIG, .advice = LOST_STORES}};

/* Of files that this node was the home of. */
static struct kind taken_over = {.advice = "is another node now, as this one was not heard: maps of it fail"},
                   lost = {.most = 100,
                           .advice =
                               "is another node now, as this one was not heard: maps of it fail, and what "
                               "programs here had released and nobody had collected is lost"};

static pthread_mutex_t trouble_lock = LOCK_INITIALIZER(LOCK_TROUBLE);

static bool is_due(struct kind *kind, unsigned *unsaid_out)
{
    uint64_t now_ns = clock_now_ns();

    pthread_mutex_lock(&trouble_lock);
    if (now_ns >= kind->until_ns) {
        kind->until_ns = now_ns + PAUSE_NS;
        kind->said = 0;
    }
    bool due = !kind->said || kind->said < kind->most;
    kind->said += due;
    *unsaid_out = due ? kind->unsaid : 0;
    kind->unsaid = due ? 0 : kind->unsaid + 1;
    pthread_mutex_unlock(&trouble_lock);
    return due;
}

/* The end of a line, if there were any. */
static const char *others(unsigned unsaid, char text[48])
{
    text[0] = '\0';
    if (unsaid > 0)
        snprintf(text, 48, "; %u more like it before", unsaid);
    return text;
}

static void tell(struct kind *kind, struct inode *inode, const char *doing)
{
    char path[PATH_MAX], name[512] = "its root", more[48]; /* of a longer name the advice would be cut off */
    unsigned unsaid;

    if (!is_due(kind, &unsaid))
        return;
    inode_name(inode, path, sizeof(path)); /* without descriptors /proc says no path */
    if (path[0])
        escape(path, name, sizeof(name), true);
    fs_log(LOG_ERR, "data directory %s: %s %s: %s%s%s%s", inode->fs->data_path, doing, name,
           kind->error ? strerror(kind->error) : "", kind->error ? ": " : "", kind->advice,
           others(unsaid, more));
}

void trouble_of_stores(struct inode *inode, int error)
{
    for (size_t i = 0; i < sizeof(stores) / sizeof(stores[0]); i++)
        if (stores[i].error == -error)
            tell(&stores[i], inode, "writing back what a program stored through a mapping of");
}

void trouble_of_a_home(struct inode *inode, bool has_lost)
{
    tell(has_lost ? &lost : &taken_over, inode, "the home of");
}

/* Of what any user can do, a few are enough to see it. */
#define CLIENTS_TOLD 10u

void trouble_of_a_message(const struct ucred *client)
{
    static struct kind kind = {.most = CLIENTS_TOLD};
    unsigned unsaid;
    char more[48];

    if (is_due(&kind, &unsaid))
        fs_log(LOG_WARNING,
               "client %d (uid %d) sent what is no message: disconnected (another version of libgaia?)%s",
               (int)client->pid, (int)client->uid, others(unsaid, more));
}

void trouble_of_a_device(const struct ucred *client, const char *device, const char *why)
{
    static struct kind kind = {.most = CLIENTS_TOLD};
    unsigned unsaid;
    char more[48];

    if (is_due(&kind, &unsaid))
        fs_log(LOG_WARNING, "a client (process %d) wants device %s: %s%s", (int)client->pid, device, why,
               others(unsaid, more));
}

/* What a GPU's driver has reported, and the log has. It has hundreds of words, and uses few. */
#define SAID_MAX 16u
struct said {
    _Atomic(const char *) words[SAID_MAX]; /* of gaia_cuda_failure(): one address for each */
};

static bool is_new(struct said *said, const char *word)
{
    for (unsigned i = 0; i < SAID_MAX; i++) {
        const char *there = NULL;
        if (atomic_compare_exchange_strong(&said->words[i], &there, word))
            return true;
        if (there == word)
            return false;
    }
    return false;
}

void trouble_of_devices(struct fs *fs)
{
    static struct said said[GAIA_CUDA_MAX];
    char name[32];

    for (unsigned i = 0; i < GAIA_CUDA_MAX; i++) {
        const char *failure = cache_device_failure(fs->cache, GAIA_SOFT_MAX + i);
        if (!failure || !is_new(&said[i], failure))
            continue;
        cache_device_name(GAIA_SOFT_MAX + i, name);
        fs_log(LOG_ERR,
               "%s: its driver reports %s: what needs the GPU fails (EIO) meanwhile; if that goes on, mount "
               "anew, and "
               "see nvidia-smi and the kernel's log (dmesg)",
               name, failure);
    }
}

/* Whether there was one. */
static bool tell_shortage(struct fs *fs, unsigned gpu)
{
    static struct kind shortages[GAIA_CUDA_MAX];
    const char *words = cache_device_shortage(fs->cache, GAIA_SOFT_MAX + gpu);
    unsigned unsaid;
    char name[32];

    if (!words || !is_due(&shortages[gpu], &unsaid))
        return words;
    cache_device_name(GAIA_SOFT_MAX + gpu, name);
    fs_log(LOG_WARNING, "%s: no memory for what a program has mapped (ENOMEM): %s", name, words);
    return true;
}

static bool tell_shortages(struct fs *fs)
{
    bool any = false;

    for (unsigned i = 0; i < GAIA_CUDA_MAX; i++)
        any |= tell_shortage(fs, i);
    return any;
}

static void tell_lack_of_descriptors(int error)
{
    unsigned unsaid;

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i].error == error && is_due(&kinds[i], &unsaid))
            fs_log(LOG_ERR, "a program's map on a GPU: %s: %s (%u more were not told)", strerror(error),
                   kinds[i].advice, unsaid);
}

void trouble_of_room(struct fs *fs, int error)
{
    if (error == -EMFILE || error == -ENFILE)
        tell_lack_of_descriptors(-error);
    if (error == -ENOMEM)
        tell_shortages(fs);
}

/* It works, at the price of a copy; somebody who has bought a NIC for it wants to know. */
static void tell_reach(struct fs *fs, unsigned device, enum gaia_path path)
{
    static atomic_bool told[GAIA_CUDA_MAX][GAIA_PATHS][2];
    const char *reach = cache_device_reach(fs->cache, device, path);
    const char *what = path == GAIA_PATH_FAULTS ? "fault=" : "peers=";
    bool refused = reach && strcmp(reach, "refused") == 0;
    char name[32];

    if (!reach || (!refused && strcmp(reach, "unreachable") != 0) ||
        atomic_exchange(&told[device - GAIA_SOFT_MAX][path][refused], true))
        return;
    cache_device_name(device, name);
    if (refused)
        fs_log(
            LOG_WARNING,
            "%s: its memory can't be registered for what %s brings, which goes by way of the host's "
            "meanwhile: is there too little memory to lock (ulimit -l), or is the window too small that the "
            "GPU has on the bus?",
            name, what);
    else
        fs_log(
            LOG_WARNING,
            "%s: what %s brings does not arrive in its memory, and goes by way of the host's from now on; "
            "is there nvidia-peermem, or does the NIC take dma-bufs? An IOMMU, or ACS of PCI bridges, may be "
            "in the way, too",
            name, what);
}

void trouble_of_reach(struct fs *fs)
{
    for (unsigned i = 0; i < GAIA_CUDA_MAX; i++)
        for (enum gaia_path path = 0; path < GAIA_PATHS; path++)
            tell_reach(fs, GAIA_SOFT_MAX + i, path);
}

#define SURPLUS_TOLD (UINT64_C(1) << 20) /* bytes; less is no harm */

void trouble_of_frames(struct fs *fs)
{
    static atomic_bool told;
    uint64_t bytes = cache_surplus(fs->cache);

    if (bytes >= SURPLUS_TOLD && !atomic_exchange(&told, true))
        fs_log(LOG_WARNING,
               "a program had filled a soft device's memory with %llu MiB beside what was placed there: they "
               "are "
               "freed (this is told once)",
               (unsigned long long)(bytes >> 20));
}

ssize_t trouble(struct inode *inode, const char *doing, ssize_t rc)
{
    int saved = errno;

    if (rc == -EIO)
        trouble_of_devices(inode->fs);
    bool of_a_gpu = rc == -ENOMEM && tell_shortages(inode->fs); /* the daemon has enough */
    for (size_t i = 0; rc < 0 && !of_a_gpu && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i].error == -rc)
            tell(&kinds[i], inode, doing);
    }
    errno = saved;
    return rc;
}

static void tell_unsaid(struct fs *fs, struct kind *kind)
{
    pthread_mutex_lock(&trouble_lock);
    unsigned unsaid = kind->unsaid;
    kind->unsaid = 0;
    pthread_mutex_unlock(&trouble_lock);
    if (unsaid > 0)
        fs_log(LOG_ERR, "data directory %s: %u more of these were not logged: %s%s%s", fs->data_path, unsaid,
               kind->error ? strerror(kind->error) : "a file whose home", kind->error ? ": " : " ",
               kind->advice);
}

void trouble_end(struct fs *fs)
{
    tell_unsaid(fs, &taken_over);
    tell_unsaid(fs, &lost);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        tell_unsaid(fs, &kinds[i]);
    for (size_t i = 0; i < sizeof(stores) / sizeof(stores[0]); i++)
        tell_unsaid(fs, &stores[i]);
}
