/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/demand_server.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/process.h"
#include "gpu/touch.h"
#include "io/protocol.h"

#define PAGE 4096u
#define NO_UNIT UINT32_MAX
#define SPINS 2000u /* looks at an empty ring before the thread sleeps */

/* What one thread is at. */
struct service {
    struct demand_server *server;
    unsigned thread;
    struct gaia_demand_asked asked;
    uint32_t grant; /* of the answer */
};

static size_t unit_bytes(const struct demand_server *server)
{
    return (size_t)1 << server->host.unit_shift;
}

/* ---- the end of the process ---- */

/* The driver takes its memory back when the process ends, while threads run yet. Who waits for the soft
 * mapping meanwhile, which may be for as long as its daemon likes, has nothing to do with that memory. */
#define ENDING_MS 1000u

static _Atomic bool ending;
static _Atomic unsigned serving; /* threads that may use the driver's memory */
static uint64_t owner;           /* of them: a child of fork() has none */

static void end_serving(void)
{
    if (process_here() != owner)
        return;
    atomic_store(&ending, true);
    for (unsigned ms = 0; ms < ENDING_MS && atomic_load(&serving); ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void expect_the_end(void)
{
    owner = process_here();
    atexit(end_serving);
}

void demand_servers_expect_the_end(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, expect_the_end);
}

bool demand_servers_are_ending(void)
{
    return atomic_load(&ending);
}

/* The thread leaves that memory alone until it comes back, and for ever if that is false. */
static void step_out(void)
{
    atomic_fetch_sub(&serving, 1);
}

static bool step_in(void)
{
    atomic_fetch_add(&serving, 1);
    return !atomic_load(&ending);
}

/* ---- the soft mapping ---- */

/* Where in the mapping the file ends. -EIO: nobody says (the daemon is gone). */
static int find_end(const struct demand_server *server, uint64_t *end_out)
{
    struct stat st;

    if (fstat(server->fd, &st))
        return -EIO;
    uint64_t end = st.st_size > server->offset ? (uint64_t)(st.st_size - server->offset) : 0;
    *end_out = end < server->length ? end : server->length;
    return 0;
}

/* Where in the mapping the file ended at the least, by all cuts since there were so many. What they have cut
 * off is no part of the file, however long it is now. */
static uint64_t cut_since(const struct demand_server *server, uint64_t seen)
{
    const struct gaia_shared_state *state = server->state;
    uint64_t cuts = atomic_load(&state->cuts), end = UINT64_MAX;

    for (uint64_t i = seen; i != cuts && i - seen < GAIA_CUTS_KEPT; i++) {
        uint64_t one = atomic_load(&state->cut_ends[i % GAIA_CUTS_KEPT]);
        end = one < end ? one : end;
    }
    /* Not all of them are there any more; the place of one is perhaps being taken. */
    if (atomic_load(&state->cuts) - seen >= GAIA_CUTS_KEPT)
        end = atomic_load(&state->cut_most);
    uint64_t offset = (uint64_t)server->offset;
    return end == UINT64_MAX ? end : end > offset ? end - offset : 0;
}

/* Of a unit, the bytes before the end. */
static size_t bytes_before(const struct demand_server *server, uint32_t unit, uint64_t end)
{
    uint64_t from = (uint64_t)unit << server->host.unit_shift, most = unit_bytes(server);

    return end <= from ? 0 : end - from < most ? (size_t)(end - from) : (size_t)most;
}

/* The same in whole pages: touching those past the end is an error. */
static size_t readable(const struct demand_server *server, uint32_t unit, uint64_t end)
{
    return bytes_before(server, unit, (end + PAGE - 1) / PAGE * PAGE);
}

/* What is only read is never given back: nothing is kept, so that data that is larger than the host's memory
 * can be read. */
static uint64_t twin_units(const struct demand_server *server)
{
    return server->writable ? server->host.units : 0;
}

static size_t twin_bytes(const struct demand_server *server)
{
    return (size_t)(twin_units(server) + DEMAND_SERVERS_MAX) << server->host.unit_shift;
}

/* Where the thread has a unit's bytes on their way. */
static uint8_t *buffer_of(const struct service *service)
{
    const struct demand_server *server = service->server;

    return server->twins + ((twin_units(server) + service->thread) << server->host.unit_shift);
}

static uint8_t *twin_of(const struct service *service)
{
    const struct demand_server *server = service->server;

    return server->writable ? server->twins + ((uint64_t)service->asked.unit << server->host.unit_shift)
                            : buffer_of(service);
}

static uint8_t *home_of(const struct service *service)
{
    return service->server->home + ((uint64_t)service->asked.unit << service->server->host.unit_shift);
}

/* Page by page, as not all of it can be touched: what the file has grown by since the last acquire, perhaps,
 * which the soft mapping may not have yet, or what it was cut by meanwhile. That is past its end. */
static int read_pages(const struct service *service, size_t *bytes)
{
    const struct demand_server *server = service->server;
    uint64_t from = (uint64_t)service->asked.unit << server->host.unit_shift, end;
    size_t at = 0;

    while (at < *bytes && !touch_copy(twin_of(service) + at, home_of(service) + at, PAGE))
        at += PAGE;
    if (at < *bytes &&
        (find_end(server, &end) || from + at < (end < server->acquired_end ? end : server->acquired_end)) &&
        from + at < cut_since(server, server->twin_cuts[service->asked.unit]))
        return -EIO;
    *bytes = at;
    return 0;
}

/* The unit's twin becomes what the soft mapping has now. */
static int read_home(const struct service *service)
{
    struct demand_server *server = service->server;
    uint32_t unit = service->asked.unit;
    uint8_t *twin = twin_of(service);
    uint64_t end;

    server->twin_cuts[unit] = atomic_load(&server->state->cuts); /* first: what is cut from now on is found */
    int error = find_end(server, &end);
    if (error)
        return error;
    size_t n = readable(server, unit, end), is_file = bytes_before(server, unit, end);
    if (n && touch_copy(twin, home_of(service), n))
        error = read_pages(service, &n);
    memset(twin + n, 0, unit_bytes(server) - n);
    server->twin_end[unit] = (uint32_t)(is_file < n ? is_file : n);
    return error;
}

/* Of a unit, what was granted and has been the file's all the time since then. */
static size_t leave_out_cuts(const struct service *service)
{
    struct demand_server *server = service->server;
    uint32_t unit = service->asked.unit;
    uint64_t cuts = atomic_load(&server->state->cuts);
    size_t left = bytes_before(server, unit, cut_since(server, server->twin_cuts[unit]));

    if (left < server->twin_end[unit])
        server->twin_end[unit] = (uint32_t)left;
    server->twin_cuts[unit] = cuts;
    return server->twin_end[unit];
}

/* Store the bytes that differ from the twin, and no others, to the soft mapping. What was past the end of the
 * file when the unit was granted, or was at any time since, is so still, whatever the file has there by now.
 * What was cut off just now can't be touched, but need not be. */
static int store_home(const struct service *service, const uint8_t *bytes)
{
    const struct demand_server *server = service->server;
    uint32_t unit = service->asked.unit;
    size_t n = SIZE_MAX, before;
    uint64_t end;
    int error;

    do {
        before = n;
        error = find_end(server, &end);
        if (error)
            return error;
        size_t is_file = readable(server, unit, end), granted = leave_out_cuts(service);
        n = is_file < granted ? is_file : granted;
        error = n < before ? touch_store_changed(home_of(service), bytes, twin_of(service), n) : -EIO;
    } while (error && n < before);
    return error;
}

/* ---- the arena: the lock is held ---- */

/* A kernel may have written over the words of the arena: a slot is a unit's if it is so here, too. */
static bool is_its(const struct demand_server *server, uint32_t unit, uint32_t slot)
{
    return slot < server->host.arena_slots && server->arena_unit[slot] == unit;
}

static void free_slot(struct demand_server *server, uint32_t slot)
{
    server->arena_unit[slot] = NO_UNIT;
    server->arena_free[server->free_slots++] = slot;
}

/* The unit is not in the arena, and its number has counted up. */
static void take(struct demand_server *server, uint32_t unit)
{
    uint32_t slot = gaia_demand_arena_take(&server->host, unit);

    if (is_its(server, unit, slot))
        free_slot(server, slot);
}

/* The unit in the next slot that has one, in turn, goes. If the unit's word names another slot, or none, it
 * was written over, and this one would never be free again: who needs it would wait for ever. */
static void make_room(struct demand_server *server)
{
    for (uint32_t i = 0; i < server->host.arena_slots; i++) {
        uint32_t slot = server->hand, unit = server->arena_unit[slot];

        server->hand = (slot + 1) % server->host.arena_slots;
        if (unit == NO_UNIT)
            continue;
        take(server, unit);
        if (server->arena_unit[slot] == unit)
            free_slot(server, slot);
        return;
    }
}

/* A slot to write to. Where all are being written: when one of them is. */
static uint32_t take_slot(struct demand_server *server)
{
    while (!server->free_slots) {
        make_room(server);
        if (!server->free_slots)
            pthread_cond_wait(&server->changed, &server->lock);
    }
    return server->arena_free[--server->free_slots];
}

/* The twin goes into the arena. The lock is let go meanwhile. The grant. */
static uint32_t put(const struct service *service)
{
    struct demand_server *server = service->server;

    take(server, service->asked.unit);
    uint32_t slot = take_slot(server);
    pthread_mutex_unlock(&server->lock);
    gaia_demand_arena_write(&server->host, slot, 0, twin_of(service), unit_bytes(server));
    pthread_mutex_lock(&server->lock);
    server->arena_unit[slot] = service->asked.unit; /* answer() says so to who waits for one */
    return gaia_demand_arena_put(&server->host, service->asked.unit, slot);
}

static bool is_in_arena(const struct demand_server *server, uint32_t unit)
{
    return is_its(server, unit, GAIA_DEMAND_ARENA_SLOT(server->host.arena_state[unit]) - 1);
}

static uint32_t number_of(const struct demand_server *server, uint32_t unit)
{
    return GAIA_DEMAND_ARENA_SEQUENCE(server->host.arena_state[unit]);
}

/* ---- answers: the unit is this thread's; the lock is held, and let go while bytes move ---- */

#define OVER UINT32_MAX /* nobody is to be answered: the process ends */

static uint32_t over(struct demand_server *server)
{
    pthread_mutex_lock(&server->lock);
    return OVER;
}

/* Nobody has the unit in a frame, so its last twin is not needed any more. */
static uint32_t fetch(struct service *service)
{
    struct demand_server *server = service->server;
    const struct gaia_demand_asked *asked = &service->asked;

    if (asked->operation == GAIA_DEMAND_FETCH && is_in_arena(server, asked->unit))
        return GAIA_DEMAND_PULL; /* it has come meanwhile */
    take(server, asked->unit);
    server->twin_grant[asked->unit] = 0;
    pthread_mutex_unlock(&server->lock);
    step_out();
    int error = read_home(service);
    if (!step_in())
        return over(server);
    if (!error && asked->operation == GAIA_DEMAND_FETCH_HERE)
        memcpy(gaia_demand_stage(&server->host, asked->ticket), twin_of(service), unit_bytes(server));
    pthread_mutex_lock(&server->lock);
    if (error)
        return (uint32_t)-error;
    if (asked->operation == GAIA_DEMAND_FETCH) {
        server->twin_grant[asked->unit] = put(service);
        return GAIA_DEMAND_PULL;
    }
    service->grant = server->twin_grant[asked->unit] = number_of(server, asked->unit);
    return 0;
}

static uint32_t give(struct service *service)
{
    struct demand_server *server = service->server;
    const uint8_t *stage = gaia_demand_stage(&server->host, service->asked.ticket);
    uint32_t unit = service->asked.unit;

    if (!server->writable)
        return EACCES;
    if (!server->twin_grant[unit] || server->twin_grant[unit] != service->asked.grant)
        return EINVAL; /* no grant of ours */
    pthread_mutex_unlock(&server->lock);
    memcpy(buffer_of(service), stage, unit_bytes(server));
    step_out();
    int error = store_home(service, buffer_of(service));
    if (!error)
        memcpy(twin_of(service), buffer_of(service), unit_bytes(server));
    if (!step_in())
        return over(server);
    pthread_mutex_lock(&server->lock);
    if (error)
        return (uint32_t)-error;
    bool was_there = is_in_arena(server, unit);
    take(server, unit);
    service->grant = server->twin_grant[unit] = was_there ? put(service) : number_of(server, unit);
    return 0;
}

static bool is_served(const struct demand_server *server, uint64_t first, uint64_t count)
{
    for (unsigned i = 0; i < server->count; i++)
        if (server->serves[i] != NO_UNIT && server->serves[i] - first < count)
            return true;
    return false;
}

/* A GPU asks for a unit once at a time; what else writes to the ring waits. */
static void answer(struct service *service)
{
    struct demand_server *server = service->server;
    const struct gaia_demand_asked *asked = &service->asked;

    pthread_mutex_lock(&server->lock);
    while (is_served(server, asked->unit, 1))
        pthread_cond_wait(&server->changed, &server->lock);
    server->serves[service->thread] = asked->unit;
    service->grant = 0;
    uint32_t status = OVER; /* who waited for the unit may have done so beyond the end */
    if (!demand_servers_are_ending())
        status = asked->operation == GAIA_DEMAND_GIVE ? give(service) : fetch(service);
    server->serves[service->thread] = NO_UNIT;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
    if (status != OVER)
        gaia_demand_reply(&server->host, asked->ticket, status, service->grant);
}

/* ---- threads ---- */

static bool is_over(const struct demand_server *server)
{
    return atomic_load(&server->stop) || atomic_load(&ending);
}

/* Looks at the ring without pause while there is something to do, and less often the longer there is nothing.
 * The ring is held. */
static bool look(struct demand_server *server, struct gaia_demand_asked *asked_out)
{
    unsigned idle = 0;

    while (!is_over(server)) {
        if (gaia_demand_next(&server->host, asked_out))
            return true;
        if (++idle < SPINS) {
            sched_yield();
            continue;
        }
        unsigned sleeps = idle - SPINS;
        struct timespec pause = {.tv_nsec = sleeps < 20 ? 50000 : sleeps < 200 ? 200000 : 1000000};
        nanosleep(&pause, NULL);
    }
    return false;
}

static int start_thread(struct demand_server *server);

/* The next request, for this thread; somebody else looks at the ring then. */
static bool next(struct demand_server *server, struct gaia_demand_asked *asked_out)
{
    atomic_fetch_add(&server->looking, 1);
    pthread_mutex_lock(&server->ring);
    bool is_there = look(server, asked_out);
    pthread_mutex_unlock(&server->ring);
    if (atomic_fetch_sub(&server->looking, 1) == 1 && is_there)
        (void)start_thread(server); /* without it this thread looks when it has answered */
    return is_there;
}

static void *serve(void *argument)
{
    struct service *service = argument;

    while (next(service->server, &service->asked))
        answer(service);
    free(service);
    atomic_fetch_sub(&serving, 1);
    return NULL;
}

/* The lock is held. */
static int add_thread(struct demand_server *server)
{
    struct service *service = malloc(sizeof *service);

    if (!service)
        return -ENOMEM;
    *service = (struct service){.server = server, .thread = server->count};
    server->serves[server->count] = NO_UNIT;
    atomic_fetch_add(&serving, 1);
    int error = -pthread_create(&server->threads[server->count], NULL, serve, service);
    if (error) {
        atomic_fetch_sub(&serving, 1);
        free(service);
    } else {
        server->count++;
    }
    return error;
}

/* 0 when there are enough. */
static int start_thread(struct demand_server *server)
{
    int error = 0;

    pthread_mutex_lock(&server->lock);
    if (server->count < DEMAND_SERVERS_MAX && !is_over(server))
        error = add_thread(server);
    pthread_mutex_unlock(&server->lock);
    return error;
}

int demand_server_start(struct demand_server *server)
{
    sigset_t all, old;

    if (demand_servers_are_ending())
        return -EIO;
    /* The program's signal handlers are for the program's threads; SIGBUS is for what these touch. */
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = start_thread(server);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}

void demand_server_stop(struct demand_server *server)
{
    pthread_mutex_lock(&server->lock);
    atomic_store(&server->stop, true); /* from now on there are no more of them */
    unsigned count = server->count;
    pthread_mutex_unlock(&server->lock);
    for (unsigned i = 0; i < count; i++)
        pthread_join(server->threads[i], NULL);
    server->count = 0;
}

/* ---- begin and end ---- */

static void free_tables(struct demand_server *server)
{
    if (server->twins)
        munmap(server->twins, twin_bytes(server));
    free(server->twin_grant);
    free(server->twin_end);
    free(server->twin_cuts);
    free(server->arena_unit);
    free(server->arena_free);
}

/* Where that can't be found out, all that fails is an error. */
static void note_end(struct demand_server *server)
{
    uint64_t end;

    server->acquired_end = find_end(server, &end) ? server->length : end;
}

static int make_tables(struct demand_server *server)
{
    const struct gaia_demand_host *host = &server->host;
    void *twins = mmap(NULL, twin_bytes(server), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    server->twins = twins == MAP_FAILED ? NULL : twins;
    server->twin_grant = calloc(host->units, sizeof *server->twin_grant);
    server->twin_end = calloc(host->units, sizeof *server->twin_end);
    server->twin_cuts = calloc(host->units, sizeof *server->twin_cuts);
    server->arena_unit = malloc(host->arena_slots * sizeof *server->arena_unit);
    server->arena_free = malloc(host->arena_slots * sizeof *server->arena_free);
    if (!server->twins || !server->twin_grant || !server->twin_end || !server->twin_cuts ||
        !server->arena_unit || !server->arena_free)
        return -ENOMEM;
    note_end(server);
    memset(server->arena_unit, 0xff, host->arena_slots * sizeof *server->arena_unit);
    while (server->free_slots < host->arena_slots) {
        server->arena_free[server->free_slots] = host->arena_slots - 1 - server->free_slots;
        server->free_slots++;
    }
    return 0;
}

int demand_server_open(struct demand_server *server)
{
    int error = make_tables(server);

    if (error) {
        free_tables(server);
        return error;
    }
    lock_init(&server->ring, LOCK_DEMAND_RING);
    lock_init(&server->lock, LOCK_DEMAND);
    lock_condition_init(&server->changed);
    return 0;
}

void demand_server_close(struct demand_server *server)
{
    free_tables(server);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    pthread_mutex_destroy(&server->ring);
}

void demand_server_forget(struct demand_server *server, uint64_t first, uint64_t count)
{
    pthread_mutex_lock(&server->lock);
    note_end(server);
    while (is_served(server, first, count))
        pthread_cond_wait(&server->changed, &server->lock);
    for (uint64_t unit = first; unit < first + count; unit++) {
        take(server, (uint32_t)unit);
        server->twin_grant[unit] = 0;
    }
    if (server->writable)
        madvise(server->twins + (first << server->host.unit_shift), count << server->host.unit_shift,
                MADV_DONTNEED);
    pthread_mutex_unlock(&server->lock);
}
