/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in driver's streams. A stream is a thread that does one thing after the other. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "gpu/kernels.h"
#include "tests/cuda/standin_work.h"

struct CUstream_st {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    STAILQ_HEAD(, standin_work) queue;
    bool busy, capturing, globally;
    bool gone;                          /* destroyed: what it was given before it still does. It stays here */
    bool apart;                         /* it waits for no other, and nobody for it: CU_STREAM_NON_BLOCKING */
    bool of_thread;                     /* CU_STREAM_PER_THREAD */
    const struct standin_work *current; /* what it is at, while busy */
    CUcontext context;                  /* NULL: it is the default stream, of each */
    LIST_ENTRY(CUstream_st) link;
};

static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER; /* guards streams and standard */
static LIST_HEAD(, CUstream_st) streams;
static __thread CUstream threads_own; /* what CU_STREAM_PER_THREAD means; NULL: nothing was put into it yet */
static CUstream standard;             /* what NULL means */
static atomic_uint_fast64_t given;    /* work, ever */
static pthread_mutex_t host_turn = PTHREAD_MUTEX_INITIALIZER; /* of the thread that runs host functions */

/* --- captures: nothing is recorded, and no graph made of it --- */

enum { CAPTURE_GLOBAL, CAPTURE_INVALIDATED = 901 };
static atomic_uint captures, global_captures; /* streams that are captured */
static atomic_bool spoilt;                    /* what was not allowed beside one was done */
static __thread int capture_mode;             /* what this thread says of captures that it has not begun */

static CUresult spoil(CUresult error)
{
    spoilt = true;
    return error;
}

/* Whether one is that the default stream would have to wait for: nothing may be done with that then. */
static bool is_captured(void)
{
    CUstream stream;
    bool captured = false;

    pthread_mutex_lock(&streams_lock);
    LIST_FOREACH (stream, &streams, link)
        captured |= stream->capturing && !stream->apart;
    pthread_mutex_unlock(&streams_lock);
    return captured;
}

/* --- streams --- */

/* from NULL: value is stored. False: the memory may only be read. */
static bool move(void *to, const void *from, unsigned char value, size_t bytes)
{
    bool writable, unused;
    void *there = standin_see(to, bytes, &writable);

    if (!writable)
        return false;
    if (from)
        memcpy(there, standin_see(from, bytes, &unused), bytes);
    else
        memset(there, value, bytes);
    return true;
}

#define FREE_BYTES 65536u /* what is less is copied: lists, and what says which pages were stored to */

/* What takes no time with free=N. Whether it is all that there is to do. */
static bool is_free(const struct standin_work *work)
{
    long long n = standin_number("free", -1);

    if (n < 0 || work->what == HOST)
        return false;
    if (work->what == COPY)
        return work->bytes >= FREE_BYTES;
    if (work->what == KERNEL && !gaia_kernel_find(work->kernel->name))
        return false;
    if (work->what == KERNEL && !strcmp(work->kernel->name, "gaia_find_modified"))
        memset((void *)(uintptr_t)work->arguments[4], (1 << n) - 1, work->arguments[1] / 8);
    if (work->what == KERNEL && !strcmp(work->kernel->name, "gaia_any_modified") && n)
        *(uint32_t *)(uintptr_t)work->arguments[6] = 1;
    return true;
}

static void be_slow(void)
{
    long long slow = standin_number("slow", 0);
    const char *path = standin_word("while");

    if (slow && (!path || !access(path, F_OK))) /* even a sleep of nothing takes 50 us */
        usleep((useconds_t)slow);
}

static void run(const struct standin_work *work)
{
    void *arguments[GAIA_KERNEL_PARAMETERS_MAX];
    uint64_t seen[GAIA_KERNEL_PARAMETERS_MAX];

    if (is_free(work))
        return;
    switch (work->what) {
    case COPY:
        if (work->owned)
            usleep((useconds_t)standin_number("late", 0));
        if (work->is_slow)
            be_slow();
        if (!move(work->to, work->from, 0, work->bytes))
            abort();
        free(work->owned);
        break;
    case SET:
        if (!move(work->to, NULL, work->value, work->bytes))
            abort();
        break;
    case KERNEL:
        for (size_t i = 0; i < GAIA_KERNEL_PARAMETERS_MAX; i++) {
            bool unused;
            seen[i] = (uintptr_t)standin_see((void *)(uintptr_t)work->arguments[i], 1, &unused);
            arguments[i] = &seen[i];
        }
        standin_run_kernel(work, arguments);
        break;
    case HOST: /* one after the other, as they may be: none may wait for another stream's */
        pthread_mutex_lock(&host_turn);
        standin_in_host_function = true;
        work->function(work->context);
        standin_in_host_function = false;
        pthread_mutex_unlock(&host_turn);
        break;
    }
}

/* Whether the stream has work to do yet that was given before this. */
static bool is_behind(CUstream stream, uint64_t number)
{
    pthread_mutex_lock(&stream->lock);
    const struct standin_work *next = STAILQ_FIRST(&stream->queue);
    bool behind = stream->busy ? stream->current->number < number : next && next->number < number;
    pthread_mutex_unlock(&stream->lock);
    return behind;
}

/* What the default stream is given waits for all that the others were given before, but for those that are
 * apart, and they for it. Whether it still has to wait. */
static bool must_wait(CUstream stream, uint64_t number)
{
    CUstream other;
    bool waits = false;

    pthread_mutex_lock(&streams_lock);
    LIST_FOREACH (other, &streams, link)
        waits |= other != stream && (stream == standard ? !other->apart : other == standard) &&
                 is_behind(other, number);
    pthread_mutex_unlock(&streams_lock);
    return waits;
}

static void *serve(void *argument)
{
    struct CUstream_st *stream = argument;

    pthread_mutex_lock(&stream->lock);
    for (;;) {
        struct standin_work *work = STAILQ_FIRST(&stream->queue);
        if (!work && stream->gone)
            break;
        if (!work) {
            pthread_cond_wait(&stream->changed, &stream->lock);
            continue;
        }
        STAILQ_REMOVE_HEAD(&stream->queue, link);
        stream->busy = true;
        stream->current = work;
        pthread_mutex_unlock(&stream->lock);
        while (!stream->apart && must_wait(stream, work->number))
            usleep(100);
        run(work);
        pthread_mutex_lock(&stream->lock);
        stream->busy = false;
        free(work);
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static CUstream new_stream(bool apart)
{
    CUstream stream = calloc(1, sizeof *stream);
    sigset_t all, old;

    if (!stream)
        abort();
    stream->apart = apart;
    pthread_mutex_init(&stream->lock, NULL);
    pthread_cond_init(&stream->changed, NULL);
    STAILQ_INIT(&stream->queue);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&stream->thread, NULL, serve, stream))
        abort();
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    LIST_INSERT_HEAD(&streams, stream, link);
    return stream;
}

static bool is_handle(CUstream stream)
{
    return stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
}

/* streams_lock held. */
static void expect(CUstream stream)
{
    CUstream one;

    LIST_FOREACH (one, &streams, link)
        if (one == stream && !stream->gone)
            return;
    standin_misused("a stream that there is not, or not any more");
}

CUresult standin_expect_own(CUstream stream)
{
    pthread_mutex_lock(&streams_lock);
    if (is_handle(stream))
        expect(stream);
    bool own = !is_handle(stream) || stream->context == standin_context();
    pthread_mutex_unlock(&streams_lock);
    return own ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static bool overlaps(const void *one, size_t one_bytes, const void *other, size_t other_bytes)
{
    return (const char *)one < (const char *)other + other_bytes &&
           (const char *)other < (const char *)one + one_bytes;
}

static bool uses(const struct standin_work *work, const void *address, size_t bytes)
{
    bool is_argument = false;

    if (work->what == COPY || work->what == SET)
        return overlaps(work->to, work->bytes, address, bytes) ||
               (work->from && overlaps(work->from, work->bytes, address, bytes));
    for (unsigned i = 0; work->what == KERNEL && i < work->kernel->parameters; i++)
        is_argument |= overlaps((void *)(uintptr_t)work->arguments[i], 1, address, bytes);
    return is_argument;
}

bool standin_in_use(const void *address, size_t bytes)
{
    const struct standin_work *work;
    CUstream stream;
    bool used = false;

    pthread_mutex_lock(&streams_lock);
    LIST_FOREACH (stream, &streams, link) {
        pthread_mutex_lock(&stream->lock);
        used |= stream->busy && uses(stream->current, address, bytes);
        STAILQ_FOREACH (work, &stream->queue, link)
            used |= uses(work, address, bytes);
        pthread_mutex_unlock(&stream->lock);
    }
    pthread_mutex_unlock(&streams_lock);
    return used;
}

static CUstream find(CUstream stream)
{
    pthread_mutex_lock(&streams_lock);
    if ((!stream || stream == CU_STREAM_LEGACY) && !standard)
        standard = new_stream(false);
    if (stream == CU_STREAM_PER_THREAD && !threads_own) {
        threads_own = new_stream(false);
        threads_own->of_thread = true;
    }
    stream = stream == CU_STREAM_PER_THREAD         ? threads_own
             : stream && stream != CU_STREAM_LEGACY ? stream
                                                    : standard;
    expect(stream);
    pthread_mutex_unlock(&streams_lock);
    return stream;
}

void standin_put(CUstream stream, const struct standin_work *work)
{
    struct standin_work *copy = malloc(sizeof *copy);

    if (!copy)
        abort();
    *copy = *work;
    stream = find(stream);
    pthread_mutex_lock(&stream->lock);
    copy->number = ++given;
    STAILQ_INSERT_TAIL(&stream->queue, copy, link);
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
}

static void wait_for(CUstream stream)
{
    pthread_mutex_lock(&stream->lock);
    while (stream->busy || !STAILQ_EMPTY(&stream->queue))
        pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

static CUresult stream_create(CUstream *stream_out, unsigned flags)
{
    *stream_out = (CUstream)STANDIN_NOTHING;
    ENTER_CONTEXT("cuStreamCreate");
    if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&streams_lock);
    *stream_out = new_stream(flags & CU_STREAM_NON_BLOCKING);
    (*stream_out)->context = standin_context();
    pthread_mutex_unlock(&streams_lock);
    return CUDA_SUCCESS;
}

/* It waits for nothing. */
static CUresult stream_destroy(CUstream stream)
{
    ENTER_CONTEXT("cuStreamDestroy");
    pthread_mutex_lock(&streams_lock);
    expect(stream);
    pthread_mutex_lock(&stream->lock);
    stream->gone = true;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_unlock(&streams_lock);
    pthread_detach(stream->thread);
    return CUDA_SUCCESS;
}

static bool is_default(CUstream stream)
{
    return !stream || stream == CU_STREAM_LEGACY;
}

/* Nothing may be asked of a stream then, but whether it is. */
static bool is_captured_itself(CUstream stream)
{
    if (is_default(stream) || (stream == CU_STREAM_PER_THREAD && !threads_own))
        return false;
    return find(stream)->capturing;
}

static bool is_idle(CUstream stream)
{
    pthread_mutex_lock(&stream->lock);
    bool idle = !stream->busy && STAILQ_EMPTY(&stream->queue);
    pthread_mutex_unlock(&stream->lock);
    return idle;
}

/* of: NULL, of all contexts. Else than all of them: those that a wait for the default stream waits for. No
 * word of NVIDIA's says that threads' own are among these. */
static void wait_for_all(bool all_of_them, CUcontext of)
{
    CUstream all[64];
    size_t n = 0;
    CUstream stream;

    pthread_mutex_lock(&streams_lock);
    LIST_FOREACH (stream, &streams, link)
        if ((all_of_them || (!stream->apart && !stream->of_thread)) &&
            (!of || !stream->context || stream->context == of) && !is_idle(stream) &&
            n < sizeof all / sizeof all[0])
            all[n++] = stream;
    pthread_mutex_unlock(&streams_lock);
    while (n)
        wait_for(all[--n]);
}

void standin_wait_for_all(void)
{
    wait_for_all(true, NULL);
}

static CUresult stream_synchronize(CUstream stream)
{
    ENTER_QUIETLY();
    if (!standin_has_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (is_default(stream) && is_captured())
        return spoil(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (is_captured_itself(stream))
        return spoil(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (is_default(stream))
        wait_for_all(false, standin_context());
    else if (stream != CU_STREAM_PER_THREAD || threads_own)
        wait_for(find(stream)); /* also where it fails: a stream whose work failed does nothing more */
    ENTER("cuStreamSynchronize");
    return CUDA_SUCCESS;
}

/* --- captures --- */

/* What real ones refuse beside a capture in global mode, and what it ends with. The list is of calls that may
 * wait for the GPU by themselves. */
CUresult standin_beside_captures(const char *name)
{
    bool unsafe = !strcmp(name, "cuStreamQuery") || !strncmp(name, "cuModule", 8) ||
                  (!strncmp(name, "cuMem", 5) && !strstr(name, "Async"));

    if (!unsafe || capture_mode != CAPTURE_GLOBAL || !global_captures)
        return CUDA_SUCCESS;
    return spoil(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

static CUresult exchange_mode(int *mode)
{
    int old = capture_mode;

    ENTER("cuThreadExchangeStreamCaptureMode");
    capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

static CUresult context_synchronize(void)
{
    ENTER_CONTEXT("cuCtxSynchronize");
    if (captures) /* whatever the thread says */
        return spoil(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    wait_for_all(true, standin_context()); /* for no other context's */
    return CUDA_SUCCESS;
}

static CUresult stream_query(CUstream stream)
{
    ENTER_CONTEXT("cuStreamQuery");
    if (is_captured_itself(stream))
        return spoil(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (stream == CU_STREAM_PER_THREAD && !threads_own)
        return CUDA_SUCCESS;
    return is_idle(find(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult is_capturing(CUstream stream, int *status_out)
{
    ENTER_CONTEXT("cuStreamIsCapturing");
    *status_out = is_captured_itself(stream) ? 1 : CU_STREAM_CAPTURE_STATUS_NONE;
    return is_default(stream) && is_captured() ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

static CUresult launch_host(CUstream stream, CUhostFn function, void *context)
{
    ENTER_CONTEXT("cuLaunchHostFunc");
    if (is_default(stream) && is_captured())
        return spoil(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CUresult error = standin_expect_own(stream);
    if (error != CUDA_SUCCESS)
        return error;
    standin_put(stream, &(struct standin_work){.what = HOST, .function = function, .context = context});
    return CUDA_SUCCESS;
}

/* Of a copy into a stream, or a fill (host_side NULL). A driver looks at its memory at once, and goes by what
 * is mapped, and registered, now. */
static CUresult check_copy(CUstream stream, CUdeviceptr device_side, const void *host_side, size_t bytes)
{
    CUresult error = standin_expect_own(stream);

    if (error != CUDA_SUCCESS || standin_number("free", -1) >= 0)
        return error;
    return bytes && standin_reaches((void *)(uintptr_t)device_side, bytes, standin_device()) &&
                   !(host_side && standin_is_pinned_in_part(host_side, bytes))
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER_CONTEXT("cuMemcpyHtoDAsync");
    CUresult error = check_copy(stream, to, from, bytes);
    if (error != CUDA_SUCCESS)
        return error;
    standin_put(
        stream,
        &(struct standin_work){
            .what = COPY, .to = (void *)(uintptr_t)to, .from = from, .bytes = bytes, .is_slow = true});
    return CUDA_SUCCESS;
}

static CUresult copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER_CONTEXT("cuMemcpyDtoHAsync");
    CUresult error = check_copy(stream, from, to, bytes);
    if (error != CUDA_SUCCESS)
        return error;
    standin_put(stream, &(struct standin_work){
                            .what = COPY, .to = to, .from = (void *)(uintptr_t)from, .bytes = bytes});
    return CUDA_SUCCESS;
}

static CUresult set(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    ENTER_CONTEXT("cuMemsetD8Async");
    CUresult error = check_copy(stream, to, NULL, bytes);
    if (error != CUDA_SUCCESS)
        return error;
    standin_put(stream, &(struct standin_work){
                            .what = SET, .to = (void *)(uintptr_t)to, .value = value, .bytes = bytes});
    return CUDA_SUCCESS;
}

/* --- what tests call by their names, as a program that is linked with the driver would --- */

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes);
CUresult cuStreamCreate(CUstream *stream_out, unsigned flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *context);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, void **graph_out);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    ENTER_QUIETLY();
    if (standin_number("late", 0))
        wait_for(find(NULL));
    return move(to, (void *)(uintptr_t)from, 0, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult copy_in_at_once(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER_QUIETLY();
    if (standin_number("late", 0)) { /* it has been read, and that is all that is known */
        void *copy = malloc(bytes);
        if (!copy)
            return CUDA_ERROR_OUT_OF_MEMORY;
        standin_put(stream, &(struct standin_work){.what = COPY,
                                                   .to = (void *)(uintptr_t)to,
                                                   .from = memcpy(copy, from, bytes),
                                                   .bytes = bytes,
                                                   .owned = copy});
        return CUDA_SUCCESS;
    }
    return move((void *)(uintptr_t)to, from, 0, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy_in_at_once(to, from, bytes, NULL);
}

/* What a program calls that was made with a default stream for each thread. */
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy_in_at_once(to, from, bytes, CU_STREAM_PER_THREAD);
}

CUresult cuStreamCreate(CUstream *stream_out, unsigned flags)
{
    return stream_create(stream_out, flags);
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return stream_synchronize(stream);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *context)
{
    return launch_host(stream, function, context);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    ENTER_QUIETLY();
    if (is_default(stream))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream = find(stream);
    stream->capturing = true;
    stream->globally = mode == CAPTURE_GLOBAL;
    spoilt = false;
    captures++;
    global_captures += stream->globally;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, void **graph_out)
{
    ENTER_QUIETLY();
    *graph_out = NULL;
    stream = find(stream);
    stream->capturing = false;
    captures--;
    global_captures -= stream->globally;
    return spoilt ? CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    return exchange_mode(mode);
}

const struct standin_row standin_run_rows[] = {
    ROW("cuCtxSynchronize", 2000, context_synchronize),
    ROW("cuStreamCreate", 2000, stream_create),
    ROW("cuStreamDestroy", 4000, stream_destroy),
    ROW("cuStreamSynchronize", 2000, stream_synchronize),
    ROW("cuStreamQuery", 2000, stream_query),
    ROW("cuStreamIsCapturing", 10000, is_capturing),
    ROW("cuThreadExchangeStreamCaptureMode", 10010, exchange_mode),
    ROW("cuLaunchHostFunc", 10000, launch_host),
    ROW("cuMemcpyHtoDAsync", 3020, copy_in),
    ROW("cuMemcpyDtoHAsync", 3020, copy_out),
    ROW("cuMemsetD8Async", 3020, set),
    {NULL, 0, NULL},
};
