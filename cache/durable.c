/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/proc_path.h"
#include "consistency/page.h"

void durable_init(struct durable *durable)
{
    *durable = (struct durable){.fd = -1};
    lock_init(&durable->lock, LOCK_DURABLE);
    pthread_cond_init(&durable->synced, NULL);
}

void durable_destroy(struct durable *durable)
{
    if (durable->fd >= 0)
        close(durable->fd);
    ranges_clear(&durable->written);
    ranges_clear(&durable->merged);
    ranges_clear(&durable->lost);
    ranges_clear(&durable->unwritten);
    ranges_clear(&durable->gone);
    pthread_cond_destroy(&durable->synced);
    pthread_mutex_destroy(&durable->lock);
}

void durable_open(struct durable *durable, bool map, struct durable_seen *seen_out)
{
    pthread_mutex_lock(&durable->lock);
    durable->users++;
    *seen_out = (struct durable_seen){
        .map = map, .errors = durable->told, .write_back_errors = durable->write_back_errors};
    pthread_mutex_unlock(&durable->lock);
}

void durable_open_elsewhere(struct durable *durable, struct durable_seen *seen_out)
{
    durable_open(durable, true, seen_out);
    pthread_mutex_lock(&durable->lock);
    if (seen_out->errors < durable->each)
        seen_out->errors = durable->each;
    pthread_mutex_unlock(&durable->lock);
}

void durable_close(struct durable *durable)
{
    int fd = -1;

    pthread_mutex_lock(&durable->lock);
    if (!--durable->users) { /* what goes wrong from now on the next description is told */
        fd = durable->fd;
        durable->fd = -1;
    }
    pthread_mutex_unlock(&durable->lock);
    if (fd >= 0)
        close(fd);
}

/* The description for syncs, opened before the first change: it is told of no error that another one was told
 * of before. Else fd itself. */
static int sync_fd(struct durable *durable, int fd)
{
    pthread_mutex_lock(&durable->lock);
    bool used = durable->users;
    int own = durable->fd;
    pthread_mutex_unlock(&durable->lock);
    if (own >= 0 || !used) /* of a file that nobody has open, the next description is told all */
        return own >= 0 ? own : fd;
    own = open(proc_path(fd).text, O_RDONLY | O_CLOEXEC);
    if (own < 0) /* it may be written and not read, or descriptors are short */
        return fd;
    pthread_mutex_lock(&durable->lock);
    bool first = durable->fd < 0 && durable->users;
    if (first)
        durable->fd = own;
    else if (durable->fd >= 0)
        fd = durable->fd;
    pthread_mutex_unlock(&durable->lock);
    if (first)
        return own;
    close(own);
    return fd;
}

unsigned durable_begin(struct durable *durable, int fd)
{
    sync_fd(durable, fd);
    return atomic_load(&durable->failures);
}

/* Those of from in [start, end) alone stay in it and in lost. The lock is held. */
static void keep(struct durable *durable, struct ranges *of, const struct ranges *from, off_t start,
                 off_t end)
{
    struct ranges kept = {.count = 0};

    ranges_add_part(&kept, from, start, end);
    ranges_remove(of, start, end);
    ranges_add_all(of, &kept);
    ranges_add_all(&durable->lost, &kept);
    ranges_clear(&kept);
}

/* The backing file may lack these lost bytes, from now on or some time later. The lock is held. */
static void lack(struct durable *durable, off_t start, off_t end)
{
    ranges_add(&durable->unwritten, start, end);
    atomic_store(&durable->any_unwritten, true);
}

void durable_wrote(struct durable *durable, unsigned begun, off_t offset, off_t length,
                   enum durable_source source)
{
    static const struct ranges nothing;
    off_t end;

    if (length <= 0)
        return;
    end = offset > INT64_MAX - length ? INT64_MAX : offset + length;
    pthread_mutex_lock(&durable->lock);
    ranges_add(source == DURABLE_MERGED ? &durable->merged : &durable->written, offset, end);
    /* A sync that has failed since may have lost them already. */
    bool late = atomic_load(&durable->failures) != begun;
    if (late)
        ranges_add(&durable->lost, offset, end);
    else if (source != DURABLE_SOMEWHERE)
        ranges_remove(&durable->lost, offset, end);
    if (source == DURABLE_STORED)
        keep(durable, &durable->gone, &nothing, offset, end);
    if (source == DURABLE_STORED || source == DURABLE_WRITTEN_BACK)
        keep(durable, &durable->unwritten, &durable->gone, offset, end);
    else if (source == DURABLE_MERGED)
        ranges_add_part(&durable->lost, &durable->unwritten, offset, end);
    if (late && source != DURABLE_MERGED)
        lack(durable, offset, end);
    pthread_mutex_unlock(&durable->lock);
}

void durable_appended(struct durable *durable, unsigned begun, int fd, off_t offset, off_t length)
{
    struct stat st;

    if (length <= 0)
        return;
    if (fstat(fd, &st) || st.st_size < length || st.st_size - length == offset) {
        durable_wrote(durable, begun, offset, length, DURABLE_STORED);
        return;
    }
    /* Somewhere between where its kernel took the end to be and where it is now. */
    off_t first = st.st_size - length < offset ? st.st_size - length : offset,
          end = st.st_size > offset + length ? st.st_size : offset + length;
    durable_wrote(durable, begun, first, end - first, DURABLE_SOMEWHERE);
}

void durable_read(struct durable *durable, off_t offset, off_t length)
{
    off_t end = offset > INT64_MAX - length ? INT64_MAX : offset + length;

    if (!atomic_load(&durable->any_unwritten))
        return;
    pthread_mutex_lock(&durable->lock);
    ranges_add_part(&durable->gone, &durable->unwritten, offset, end);
    pthread_mutex_unlock(&durable->lock);
}

void durable_tried(struct durable *durable, off_t offset, off_t length)
{
    pthread_mutex_lock(&durable->lock);
    ranges_add(&durable->written, offset, offset > INT64_MAX - length ? INT64_MAX : offset + length);
    pthread_mutex_unlock(&durable->lock);
}

void durable_blind(struct durable *durable, int fd, bool blind)
{
    if (blind)
        sync_fd(durable, fd);
    pthread_mutex_lock(&durable->lock);
    durable->blind = blind;
    if (blind)
        ranges_add(&durable->merged, 0, INT64_MAX);
    pthread_mutex_unlock(&durable->lock);
}

void durable_cut(struct durable *durable, off_t size)
{
    off_t rest = -size & (off_t)(GAIA_PAGE_SIZE - 1);

    pthread_mutex_lock(&durable->lock);
    ranges_remove(&durable->written, size, INT64_MAX);
    ranges_remove(&durable->merged, size, INT64_MAX);
    ranges_remove(&durable->lost, size, INT64_MAX);
    ranges_remove(&durable->unwritten, size, INT64_MAX);
    ranges_remove(&durable->gone, size, INT64_MAX);
    /* What the last page has behind it has become zeros: part of the file when that grows again. */
    ranges_add(&durable->written, size, size > INT64_MAX - rest ? INT64_MAX : size + rest);
    if (durable->blind) /* it may grow again, unseen */
        ranges_add(&durable->merged, 0, INT64_MAX);
    pthread_mutex_unlock(&durable->lock);
}

void durable_lose(struct durable *durable, off_t offset, off_t length, int error)
{
    pthread_mutex_lock(&durable->lock);
    ranges_add(&durable->lost, offset, offset + length);
    lack(durable, offset, offset + length);
    durable->write_back_errors++;
    durable->error = error;
    pthread_mutex_unlock(&durable->lock);
}

void durable_fail(struct durable *durable, int error)
{
    pthread_mutex_lock(&durable->lock);
    durable->errors++;
    durable->error = error;
    pthread_mutex_unlock(&durable->lock);
}

void durable_fail_elsewhere(struct durable *durable, int error)
{
    pthread_mutex_lock(&durable->lock);
    bool only = durable->errors == durable->told || durable->errors == durable->each;
    durable->errors++;
    durable->each = only ? durable->errors : durable->each; /* else there is one that nobody was told */
    durable->error = error;
    pthread_mutex_unlock(&durable->lock);
}

static int sync_backing(int fd, bool data_only)
{
    int error;

    do
        error = (data_only ? fdatasync(fd) : fsync(fd)) ? -errno : 0;
    while (error == -EINTR);
    return error;
}

/* It, and not what it was to bring to storage. */
static bool cannot_sync(int error)
{
    return error == -EINVAL || error == -EBADF || error == -ENOSYS || error == -EOPNOTSUPP;
}

/* Everything that was written counts as lost. The lock is held. */
static void lose_all(struct durable *durable)
{
    ranges_add_all(&durable->lost, &durable->written);
    ranges_add_all(&durable->lost, &durable->merged);
    ranges_add_all(&durable->unwritten, &durable->written);
    atomic_store(&durable->any_unwritten, true);
    ranges_clear(&durable->written);
    ranges_clear(&durable->merged);
}

/* A sync has failed. The lock is held. */
static void failed(struct durable *durable, int fd, int error)
{
    struct stat st;
    bool known = !fstat(fd, &st);

    atomic_fetch_add(&durable->failures, 1);
    durable->errors++;
    durable->error = error;
    lose_all(durable);
    if (known) { /* what was cut off meanwhile is no part of the file */
        ranges_remove(&durable->lost, st.st_size, INT64_MAX);
        ranges_remove(&durable->unwritten, st.st_size, INT64_MAX);
        ranges_remove(&durable->gone, st.st_size, INT64_MAX);
    }
    /* Written before the daemon knew the file, or behind the mount; or the file itself, which may be empty.
     */
    if (ranges_empty(&durable->lost))
        ranges_add(&durable->lost, 0, !known ? INT64_MAX : st.st_size ? st.st_size : 1);
}

/* What to say to a descriptor, and that it was said. The lock is held. */
static int tell(struct durable *durable, struct durable_seen *seen)
{
    bool told = seen->errors == durable->errors &&
                (!seen->map || seen->write_back_errors == durable->write_back_errors);

    seen->errors = durable->told = durable->errors;
    seen->write_back_errors = durable->write_back_errors;
    return told && ranges_empty(&durable->lost) ? 0 : durable->error;
}

/* Waits for its turn to sync. False: another sync, which has begun since, has done it. The lock is held. */
static bool begin_sync(struct durable *durable, bool data_only)
{
    uint64_t begun = durable->begun;

    for (;;) {
        if (durable->done > begun && (data_only || !durable->data_only))
            return false;
        if (durable->done == durable->begun)
            break;
        pthread_cond_wait(&durable->synced, &durable->lock);
    }
    durable->begun++;
    return true;
}

/* The lock is held on entry and exit, not in between. */
static void sync_written(struct durable *durable, int fd, bool data_only)
{
    struct ranges written = durable->written, merged = durable->merged;

    durable->written = durable->merged = (struct ranges){.count = 0};
    pthread_mutex_unlock(&durable->lock);
    int error = sync_backing(fd, data_only);
    pthread_mutex_lock(&durable->lock);
    if (error) {
        ranges_add_all(&durable->written, &written);
        ranges_add_all(&durable->merged, &merged);
    }
    if (error && !cannot_sync(error)) /* if it can't be synced nothing has been lost by trying */
        failed(durable, fd, error);
    ranges_clear(&written);
    ranges_clear(&merged);
    if (durable->blind) /* also while the sync was under way */
        ranges_add(&durable->merged, 0, INT64_MAX);
    durable->result = error;
    durable->data_only = data_only;
    durable->done++;
    pthread_cond_broadcast(&durable->synced);
}

int durable_sync(struct durable *durable, int fd, bool data_only, struct durable_seen *seen)
{
    fd = sync_fd(durable, fd);
    pthread_mutex_lock(&durable->lock);
    if (begin_sync(durable, data_only))
        sync_written(durable, fd, data_only);
    int said = tell(durable, seen), error = durable->result;
    pthread_mutex_unlock(&durable->lock);
    return said ? said : error;
}

int durable_told(struct durable *durable, struct durable_seen *seen)
{
    pthread_mutex_lock(&durable->lock);
    int said = tell(durable, seen);
    pthread_mutex_unlock(&durable->lock);
    return said;
}

int durable_store(struct durable *durable, int fd)
{
    pthread_mutex_lock(&durable->lock);
    bool used = durable->users; /* else fd is of a description that may tell an error once more */
    durable->users += used;     /* the caller is none: what sync_fd() gives stays open meanwhile */
    pthread_mutex_unlock(&durable->lock);
    if (!used)
        return 0;
    fd = sync_fd(durable, fd);
    pthread_mutex_lock(&durable->lock);
    if (begin_sync(durable, false))
        sync_written(durable, fd, false);
    int error = cannot_sync(durable->result) ? 0 : durable->result;
    pthread_mutex_unlock(&durable->lock);
    durable_close(durable);
    return error;
}

void durable_ask(struct durable *durable)
{
    atomic_fetch_add(&durable->asked, 1);
}

uint64_t durable_asked(struct durable *durable)
{
    return atomic_load(&durable->asked);
}

void durable_asked_synced(struct durable *durable, uint64_t asked)
{
    uint64_t synced = atomic_load(&durable->asked_synced);

    while (synced < asked && !atomic_compare_exchange_weak(&durable->asked_synced, &synced, asked))
        ;
}

bool durable_is_asked(struct durable *durable)
{
    return atomic_load(&durable->asked) != atomic_load(&durable->asked_synced);
}

bool durable_is_lost_in(struct durable *durable, off_t offset, off_t length)
{
    off_t end = offset > INT64_MAX - length ? INT64_MAX : offset + length;

    pthread_mutex_lock(&durable->lock);
    bool lost = ranges_touch(&durable->lost, offset, end);
    pthread_mutex_unlock(&durable->lock);
    return lost;
}

bool durable_is_lost(struct durable *durable)
{
    pthread_mutex_lock(&durable->lock);
    bool lost = !ranges_empty(&durable->lost);
    pthread_mutex_unlock(&durable->lock);
    return lost;
}

bool durable_is_written(struct durable *durable)
{
    pthread_mutex_lock(&durable->lock);
    bool written = !ranges_empty(&durable->written) || !ranges_empty(&durable->merged);
    pthread_mutex_unlock(&durable->lock);
    return written;
}
