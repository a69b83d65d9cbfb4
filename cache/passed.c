/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/passed.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cache/fit.h"
#include "cache/home_bytes.h"
#include "cache/internal.h"
#include "consistency/merge.h"

void cache_file_pass(struct cache_file *file, const struct cache_passed *how)
{
    struct replica *replica;
    struct stat st;

    pthread_mutex_lock(&file->lock);
    if (how->number < file->pass_number) {
        pthread_mutex_unlock(&file->lock);
        return;
    }
    file->pass_number = how->number;
    file->direct = how->direct;
    file->elsewhere = how->elsewhere;
    if (file->passed != how->passed || file->written != how->written) {
        if (passed_is_compared(file) && !how->passed) { /* the last look at what CPUs did unseen */
            if (!fstat(file->fd, &st)) {
                file_resized(file, st.st_size);
                file->ctime = st.st_ctim;
            }
            file_all_modified(file);
        }
        file->passed = how->passed;
        file->written = how->written;
        SLIST_FOREACH (replica, &file->replicas, link)
            replica_checked(replica); /* how often acquires ask */
    }
    pthread_mutex_unlock(&file->lock);
    fit_frames(file);
}

void passed_look_at_size(struct cache_file *file)
{
    struct stat st;

    if (passed_is_unheard(file) && !fstat(file->fd, &st))
        file_resized(file, st.st_size);
}

/* --- acquire --- */

struct leaves {
    const struct replica *replica;
    uint64_t first, count;
    uint64_t *numbers;
    size_t n;
};

static void list_leaf(struct leaf *leaf, void *context)
{
    struct leaves *leaves = context;

    if (page_range_mask(leaf->number, leaves->first, leaves->count) && leaf_find_copy(leaf, leaves->replica))
        leaves->numbers[leaves->n++] = leaf->number;
}

/* Which of a run of pages differ from the home's, at most a unit of them. What can't be fetched counts as
 * different: it is to be dropped. Lock held. */
static int compare_run(struct leaf_copy *copy, unsigned first, unsigned length, page_mask *modified)
{
    struct cache_file *file = copy->replica->file;
    uint8_t home[GAIA_UNIT_PAGES * GAIA_PAGE_SIZE], device[GAIA_UNIT_PAGES * GAIA_PAGE_SIZE];
    uint64_t base = (copy->leaf->number << LEAF_SHIFT) + first;
    void *places[GAIA_UNIT_PAGES];

    for (unsigned i = 0; i < length; i++)
        places[i] = device + i * GAIA_PAGE_SIZE;
    int error = home_read(file, home, length * GAIA_PAGE_SIZE, (off_t)(base * GAIA_PAGE_SIZE));
    if (error)
        return error;
    bool lost = replica_fetch_run(copy->replica, base, length, places);
    for (unsigned i = 0; i < length; i++)
        if (lost || gaia_differs(home + i * GAIA_PAGE_SIZE, device + i * GAIA_PAGE_SIZE,
                                 file_page_bytes(file->size, base + i)))
            *modified |= UINT64_C(1) << (first + i);
    return 0;
}

/* One leaf's pages of the range. A page that is being placed was perhaps read before the change: it is waited
 * for, as find_stale() does. Lock held, let go while waiting. */
static int compare_leaf(struct replica *replica, uint64_t number, uint64_t first, uint64_t count)
{
    struct cache_file *file = replica->file;
    page_mask range = page_range_mask(number, first, count), modified = 0;
    struct leaf_copy *copy;
    int error = 0;

    for (;;) {
        copy = replica_find_copy(replica, number);
        if (!copy)
            return 0;
        if (!(copy->busy & ~copy->present & range))
            break;
        pthread_cond_wait(&file->changed, &file->lock);
    }
    for (page_mask left = copy->present & range; left && !error;) {
        page_mask rest = left;
        unsigned length, at = page_mask_run(&rest, &length);
        length = length < GAIA_UNIT_PAGES ? length : GAIA_UNIT_PAGES;
        error = compare_run(copy, at, length, &modified);
        left &= ~page_range_mask(0, at, length);
    }
    if (modified)
        file_cpu_modified(copy->leaf, modified);
    return error;
}

int passed_compare(struct replica *replica, uint64_t first, uint64_t count)
{
    struct cache_file *file = replica->file;
    struct leaves leaves = {.replica = replica, .first = first, .count = count};
    int error = 0;

    leaves.numbers = malloc((file->index.leaves.count + 1) * sizeof *leaves.numbers);
    if (!leaves.numbers)
        return -ENOMEM;
    index_each(&file->index, list_leaf, &leaves);
    for (size_t i = 0; i < leaves.n && !error; i++) {
        error = compare_leaf(replica, leaves.numbers[i], first, count);
        pthread_mutex_unlock(&file->lock); /* handlers of FUSE may wait for it */
        pthread_mutex_lock(&file->lock);
    }
    free(leaves.numbers);
    return error;
}

/* --- collect --- */

/* A thread that stores to a mapping of a file, which may be cut behind the mount, or be on a filesystem that
 * finds no room for what it has promised: where to go on then. */
static __thread sigjmp_buf *volatile store_failed;

static void on_bus_error(int signal)
{
    if (store_failed)
        siglongjmp(*store_failed, 1);
    sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL); /* it comes again, and ends us */
}

static void install_handler(void)
{
    sigaction(SIGBUS, &(struct sigaction){.sa_handler = on_bus_error, .sa_flags = SA_NODEFER}, NULL);
}

/* Many runs of one page, by stores through a mapping: hundreds of times as fast as a write() for each. The
 * page is in the host's memory and has its place on storage: the first run was written. But a direct write of
 * a CPU's to the page could not drop it while it is mapped; and what other mounts do is not known, nor
 * whether their page is this one (NFS writes back all of it). False: not done. */
static bool store_runs(struct cache_file *file, off_t start, const uint8_t *mine,
                       const struct gaia_diff_run *runs, size_t count)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigjmp_buf failed;
    volatile bool done = false;

    if (file->direct || claim_is_shared(file))
        return false;
    pthread_once(&once, install_handler);
    uint8_t *page = mmap(NULL, GAIA_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, start);
    if (page == MAP_FAILED)
        return false;
    unsigned begun = durable_begin(file->durable, file->fd);
    if (sigsetjmp(failed, 1) == 0) { /* with the mask of signals: a sanitizer blocks them all in a handler */
        store_failed = &failed;
        atomic_signal_fence(memory_order_seq_cst);
        for (size_t i = 0; i < count; i++)
            memcpy(page + runs[i].offset, mine + runs[i].offset, runs[i].length);
        atomic_signal_fence(memory_order_seq_cst);
        done = true;
    }
    store_failed = NULL;
    munmap(page, GAIA_PAGE_SIZE);
    if (!done)
        return false;
    if (!durable_is_lost(file->durable)) /* else what lies between the runs stays so */
        durable_wrote(file->durable, begun, start, (off_t)GAIA_PAGE_SIZE, DURABLE_STORED);
    else
        for (size_t i = 0; i < count; i++)
            durable_wrote(file->durable, begun, start + runs[i].offset, runs[i].length, DURABLE_STORED);
    return true;
}

#define STORE_RUNS 16u /* from how many on */

int passed_write(struct cache_file *file, uint64_t page, const uint8_t *twin, const uint8_t *mine, size_t n,
                 size_t *homed_out)
{
    struct gaia_diff_run runs[GAIA_PAGE_SIZE / 2];
    off_t start = (off_t)(page * GAIA_PAGE_SIZE);
    size_t count = gaia_diff_runs(twin, mine, n, runs, GAIA_PAGE_SIZE / 2), written = 0;
    int error = 0;

    while (written < count && !error) {
        const struct gaia_diff_run *run = &runs[written];
        size_t done;
        error = home_write(file, mine + run->offset, run->length, start + run->offset, DURABLE_STORED, &done);
        if (error)
            *homed_out = run->offset + done;
        written++;
        if (!error && written == 1 && count >= STORE_RUNS &&
            store_runs(file, start, mine, runs + 1, count - 1))
            break;
    }
    return error;
}
