/* SPDX-License-Identifier: Apache-2.0 */
/* Which history do the promises of gaia.h allow?
 *
 * Everything is decided cell by cell (history.h), and in a cell byte by byte. The agents that look at a cell
 * are the CPU (all processes, read() and mappings: one kernel) and each device (all processes that map
 * through it: gaia.h speaks of "the device"). Times are numbers of the run's one clock.
 *
 * A write is PUBLISHED at
 *     the answer of write() or truncate(), or the end of a store through a CPU mapping;
 *     for a device's store: the first answer of a release or acquire of that device, by any process, that
 * covers the cell and was invoked after the store had ended (an acquire publishes, for "stores that are not
 * released yet in an acquired range are collected as if released"). Until then others may see it, and need
 * not.
 *
 * A write w is SEEN at a point (a read, or the beginning of another write) of
 *     the CPU      if w was published before the point began;                      [rules coherence, release]
 *     device d     if w is d's own store and had ended before the point began;     [rule own]
 *                  or if w was published before the begin of an acquire of d that covers the cell and was
 *                  answered before the point began.                                [rules acquire,
 * release-acquire] This relation is transitive.
 *
 * Of several nodes each has a CPU of its own. To the CPU of another node a CPU's write is published at the
 * answer of the first fsync(), msync() or close() of the file on its own node that was invoked after it had
 * ended; to devices of all nodes at once. [rules coherence, acquire] A race is over when all its writes are
 * published to all. Files keep their size there.
 *
 * A read may find w if w began before the read's answer [rule future] and w is not OVERWRITTEN at it: that
 * is, there is no write v that has surely happened, is seen at the read, and at whose beginning w is seen. So
 * writes of which neither is seen by the other race, and each byte may have either value. Bytes of no write
 * of the cell are rule garbage.
 *
 * "The same for every reader" [rule same]: when every value that a read of the CPU may find was published
 * before it began, or every one that a load of a device may find before the begin of its last acquire, then
 * the race is over since the last of these publications, and the bytes that the read shows are the outcome:
 * from there on it counts as a write by the CPU of just these bytes, published at that time, that has seen
 * all the others.
 *
 * A write whose caller was killed before the answer may or may not have happened, in part too: its end is the
 * death of its process; it overwrites nothing. (Of a write() the kernel may hold bytes that it never sent,
 * until it drops the page: they may come and go until they are overwritten.) A store that had ended before
 * its process was killed is like any other ("program killed: kept"). So is a call that failed, or did less
 * than it was asked for.
 *
 * The end of the file: truncate(n) writes zeros from n on; a device must see them once it has acquired the
 * growth that made them bytes of the file again. Whether a cell lies before the end is a value of its own,
 * written by truncate() and by write()s at or behind the cell, and found by read() (a short count), by loads
 * and stores through mappings (SIGBUS where a whole page lies past the end), and by appends (which begin at
 * the end): always as the CPU sees it, for devices too [rule end]. A store that may have hit the part of a
 * page past the end may or may not have happened, and its outcome counts as open until somebody overwrites
 * it.
 *
 * Allowed, though it is wrong: that a write() undoes a byte which was stored through a CPU mapping after it,
 * if that byte is what the write() had replaced (was_brought_back()); how often is said.
 *
 * Not checked: what a device's load finds in the part of a page past the end (it is zeros once the file has
 * grown and the device has acquired that); the order in which writes that have not been published become
 * visible (a later read may show an older value of a race than an earlier one did); that a read() or write()
 * is atomic over more than a byte; that appends which overlap in time get different places; that a touch
 * wholly past the end does raise SIGBUS; sizes by stat(); times; what a killed daemon leaves.
 */
#include "rules.h"

#include <stdlib.h>
#include <string.h>

static bool is_cpu(int agent)
{
    return agent <= CPU;
}

/* To whom looks from there. */
static uint64_t published_to(const struct write *w, const struct point *at)
{
    return w->node == at->node || !is_cpu(at->agent) ? w->published : w->far;
}

static bool visible(const struct write *w, const struct point *at)
{
    uint64_t published = published_to(w, at);

    if (is_cpu(at->agent))
        return at->settled ? published <= at->invoked : published < at->invoked;
    return (w->agent == at->agent && w->answered < at->invoked) || published < at->acquired;
}

static struct point point_of(const struct write *w)
{
    return (struct point){w->agent, w->node, w->invoked, w->acquired, w->settled};
}

bool overwrites(const struct write *v, const struct write *w, const struct point *at)
{
    struct point begin = point_of(v);

    return v != w && v->certain && visible(v, at) && visible(w, &begin);
}

/* --- one cell's operations -------------------------------------------------------------------------------
 */

bool is_read(const struct op *op)
{
    return op->operation == OP_READ || op->operation == OP_LOAD || op->operation == OP_DEVICE_LOAD;
}

/* Whether an operation says something about a whole file: where it ends. */
static bool concerns_end(const struct op *op)
{
    return op->operation == OP_TRUNCATE || op->operation == OP_APPEND || op->operation == OP_WRITE;
}

static bool is_write(const struct op *op)
{
    return concerns_end(op) || op->operation == OP_STORE || op->operation == OP_DEVICE_STORE;
}

static bool is_mapped(const struct op *op)
{
    return op->operation == OP_LOAD || op->operation == OP_STORE || op->operation == OP_DEVICE_LOAD ||
           op->operation == OP_DEVICE_STORE;
}

static int agent_of(const struct op *op)
{
    return op->operation == OP_DEVICE_LOAD || op->operation == OP_DEVICE_STORE ? op->device
                                                                               : CPU - (int)op->node;
}

static unsigned view_of(int agent)
{
    return is_cpu(agent) ? (unsigned)(CPU - agent) : NODES_MAX + (unsigned)agent;
}

static bool in_full(const struct op *op)
{
    return op->answered != NEVER && !(op->flags & (ENTRY_KILLED | ENTRY_SIGBUS)) &&
           op->result == (int64_t)op->length;
}

static bool succeeded(const struct op *op)
{
    return op->answered != NEVER && !(op->flags & ENTRY_KILLED) && op->result >= 0;
}

static bool covers(const struct op *op, const struct cell *cell)
{
    if (op->operation == OP_TRUNCATE)
        return op->length <= cell->offset;
    if (op->offset == NEVER)
        return true;
    return op->offset <= cell->offset && cell->offset + cell->size <= op->offset + op->length;
}

/* The page where a touch raised SIGBUS. */
static bool sigbus_in_page(const struct op *op, uint64_t page)
{
    return is_mapped(op) && op->flags & ENTRY_SIGBUS && (op->offset + (uint64_t)op->result) / PAGE == page;
}

static int compare_answered(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;

    return x->answered < y->answered ? -1 : x->answered > y->answered;
}

/* The first answer of one that was invoked after a time. */
static uint64_t published(const struct intervals *releases, uint64_t ended)
{
    size_t low = 0, high = releases->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (releases->of[middle].invoked > ended)
            high = middle;
        else
            low = middle + 1;
    }
    return low < releases->count && ended != NEVER ? releases->of[low].answered : NEVER;
}

/* The latest begin of an acquire by a device that was answered before a time. 1: none; what was there at the
 * start, at 0, everybody has seen. */
static uint64_t acquired(const struct cell *cell, int device, uint64_t time)
{
    const struct intervals *acquires = &cell->acquires[device < 0 ? 0 : device];
    size_t low = 0, high = device < 0 ? 0 : acquires->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        if (acquires->of[middle].answered < time)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? acquires->of[low - 1].invoked : 1;
}

static void add_write(struct cell *cell, const struct op *op)
{
    struct write *w = &cell->writes[cell->write_count++];
    int agent = agent_of(op);
    uint64_t now = is_cpu(agent) ? op->answered : published(&cell->releases[agent], op->answered);

    *w = (struct write){.op = op,
                        .id = op->invoked,
                        .invoked = op->invoked,
                        .answered = op->answered,
                        .published = now,
                        .far = is_cpu(agent) ? published(&cell->syncs[op->node], op->answered) : now,
                        .acquired = acquired(cell, agent, op->invoked),
                        .agent = agent,
                        .node = op->node,
                        .certain = op->operation == OP_TRUNCATE ? succeeded(op) : in_full(op),
                        .zeros = op->operation == OP_TRUNCATE,
                        .unstable = concerns_end(op) && op->flags & ENTRY_KILLED,
                        .periodic = op->operation == OP_APPEND};
}

static void add_end(struct cell *cell, const struct op *op)
{
    bool truncates = op->operation == OP_TRUNCATE;

    if (!truncates && op->offset != NEVER && op->offset + op->length <= cell->offset)
        return;
    cell->ends[cell->end_count++] = (struct write){.op = op,
                                                   .id = op->invoked,
                                                   .invoked = op->invoked,
                                                   .answered = op->answered,
                                                   .published = op->answered,
                                                   .agent = CPU,
                                                   .certain = truncates ? succeeded(op) : in_full(op),
                                                   .exists = !truncates || op->length > cell->offset};
}

static void find_ends(struct cell *cell)
{
    cell->ends[cell->end_count++] = (struct write){
        .agent = CPU, .certain = true, .exists = cell->offset < cell->history->file[cell->file].size};
    for (size_t i = 0; i < cell->count; i++)
        if (concerns_end(cell->ops[i]))
            add_end(cell, cell->ops[i]);
}

static void find_writes(struct cell *cell)
{
    cell->writes[cell->write_count++] = (struct write){.agent = CPU, .certain = true, .zeros = true};
    for (size_t i = 0; i < cell->count; i++)
        if (is_write(cell->ops[i]) && covers(cell->ops[i], cell))
            add_write(cell, cell->ops[i]);
}

/* --- what may be found -----------------------------------------------------------------------------------
 */

/* Bring a view to a point: take in what began before the answer, drop what is overwritten. */
static void advance(struct live *live, struct write *writes, size_t count, const struct point *at,
                    uint64_t answered)
{
    size_t kept = 0, seen = 0;

    while (live->next < count && writes[live->next].invoked < answered)
        live->writes[live->count++] = &writes[live->next++];
    struct write **candidates = live->writes;
    /* Those that may overwrite others go to the front, so that what is dropped is found soon. */
    for (size_t i = 0; i < live->count; i++)
        if (candidates[i]->certain && visible(candidates[i], at)) {
            struct write *w = candidates[i];
            candidates[i] = candidates[seen];
            candidates[seen++] = w;
        }
    for (size_t i = 0; i < live->count; i++) {
        bool dead = false;
        for (size_t j = 0; j < seen && !dead; j++)
            dead = candidates[j] && overwrites(candidates[j], candidates[i], at);
        if (dead)
            candidates[i] = NULL;
    }
    for (size_t i = 0; i < live->count; i++)
        if (candidates[i])
            candidates[kept++] = candidates[i];
    live->count = kept;
}

static bool may_exist(struct cell *cell, const struct op *op, bool exists)
{
    struct point at = {CPU, 0, op->invoked, 0, false}; /* files of several nodes keep their size */

    advance(&cell->exists, cell->ends, cell->end_count, &at, op->answered);
    for (size_t i = 0; i < cell->exists.count; i++) {
        const struct write *w = cell->exists.writes[i];
        if (w->invoked < op->answered && w->op != op && w->exists == exists)
            return true;
    }
    return false;
}

/* By invoked: who asks for one after a time wants the first answer of all that were. */
static void first_answers(struct intervals *intervals)
{
    for (size_t i = intervals->count; i-- > 1;)
        if (intervals->of[i].answered < intervals->of[i - 1].answered)
            intervals->of[i - 1].answered = intervals->of[i].answered;
}

/* The acquires and releases that say something about the cell. */
static void find_intervals(struct cell *cell)
{
    for (size_t i = 0; i < cell->count; i++) {
        const struct op *op = cell->ops[i];
        struct interval of = {op->invoked, op->answered};
        if ((op->operation != OP_ACQUIRE && op->operation != OP_RELEASE) || !succeeded(op) ||
            !covers(op, cell) || may_exist(cell, op, false))
            continue;
        struct intervals *releases = &cell->releases[op->device], *acquires = &cell->acquires[op->device];
        releases->of[releases->count++] = of;
        if (op->operation == OP_ACQUIRE)
            acquires->of[acquires->count++] = of;
    }
    cell->exists.count = cell->exists.next = 0;
    for (unsigned d = 0; d < DEVICES_MAX; d++) {
        struct intervals *releases = &cell->releases[d], *acquires = &cell->acquires[d];
        first_answers(releases);
        qsort(acquires->of, acquires->count, sizeof *acquires->of, compare_answered);
        for (size_t i = 1; i < acquires->count; i++)
            if (acquires->of[i].invoked < acquires->of[i - 1].invoked)
                acquires->of[i].invoked = acquires->of[i - 1].invoked;
    }
}

static void value_of(const struct cell *cell, const struct write *w, uint8_t *bytes)
{
    if (w->literal)
        memcpy(bytes, w->literal, cell->size);
    else if (w->zeros)
        memset(bytes, 0, cell->size);
    else
        value_fill(bytes, w->id, cell->offset, cell->size, w->periodic);
}

/* Mark the bytes that have a write's value in `found`; returns whether all have. */
bool match(const struct cell *cell, const struct write *w, const uint8_t *seen, bool *found)
{
    uint8_t value[GRAIN_MAX];
    bool all = true;

    value_of(cell, w, value);
    for (size_t i = 0; i < cell->size; i++)
        if (value[i] == seen[i])
            found[i] = true;
        else
            all = false;
    return all;
}

bool all_found(const struct cell *cell, const bool *found)
{
    for (size_t i = 0; i < cell->size; i++)
        if (!found[i])
            return false;
    return true;
}

/* A race that is over: the bytes seen are its outcome. */
static void settle(struct cell *cell, const struct live *live, const struct op *op, uint64_t limit,
                   const uint8_t *seen, struct summary *summary)
{
    uint64_t last = 0;
    size_t open = 0;

    for (size_t i = 0; i < live->count; i++) {
        const struct write *w = live->writes[i];
        if (w->invoked >= op->answered)
            continue;
        uint64_t everywhere = cell->history->nodes > 1 && w->far > w->published ? w->far : w->published;
        if (everywhere >= limit || w->unstable)
            return;
        if (everywhere > last)
            last = everywhere;
        open++;
    }
    if (open < 2)
        return;
    struct write *w = &cell->writes[cell->write_count + cell->settled_count++];
    *w = (struct write){.op = NULL,
                        .id = op->invoked,
                        .invoked = last,
                        .answered = last,
                        .published = last,
                        .far = last,
                        .literal = seen,
                        .agent = CPU,
                        .certain = true,
                        .settled = true};
    for (unsigned v = 0; v < VIEWS; v++)
        cell->views[v].writes[cell->views[v].count++] = w;
    summary->settled++;
}

/* --- checks ----------------------------------------------------------------------------------------------
 */

static bool is_of(const struct write *write, enum operation operation)
{
    return write->op && write->op->operation == operation;
}

/* Whether a store through a mapping may have been in the page before a write() took what it wrote from there
 * to the daemon. */
static bool went_along(const struct write *store, const struct write *write)
{
    return is_of(store, OP_STORE) && store->invoked < write->answered && store->answered > write->invoked;
}

/* Whether a store brings a byte back to what it may have been before a write() began or while it was under
 * way, and may have come after what was seen: then it is of no account whether it overwrites that, or what
 * does so. */
static bool brings_back(const struct cell *cell, const struct point *at, size_t i, const struct write *write,
                        const struct write *seen, const struct write *store)
{
    uint8_t value[GRAIN_MAX];

    if (store == seen || !is_of(store, OP_STORE) || overwrites(seen, store, at))
        return false;
    value_of(cell, store, value);
    uint8_t stored = value[i];
    for (const struct write *before = cell->writes; before < cell->writes + cell->write_count; before++) {
        if (before == store || before == seen || before == write || before->invoked >= write->answered)
            continue;
        value_of(cell, before, value);
        if (value[i] == stored)
            return true;
    }
    return false;
}

/* The one thing that cache/heal.h can't tell from a stale page (docs/limits.md): a store through a CPU
 * mapping that brings back the very value which a write() has just replaced may be undone: what is there then
 * is what came with the write(). Whether the byte that was seen is such a one. */
static bool was_brought_back(const struct cell *cell, const struct point *at, size_t i, uint8_t byte)
{
    const struct write *end = cell->writes + cell->write_count;
    uint8_t value[GRAIN_MAX];

    for (const struct write *write = cell->writes; write < end; write++) {
        if (!is_of(write, OP_WRITE))
            continue;
        for (const struct write *seen = cell->writes; seen < end; seen++) {
            if (seen != write && !went_along(seen, write))
                continue;
            value_of(cell, seen, value);
            if (value[i] != byte)
                continue;
            for (const struct write *store = cell->writes; store < end; store++)
                if (brings_back(cell, at, i, write, seen, store))
                    return true;
        }
    }
    return false;
}

static void check_bytes(struct cell *cell, const struct op *op, bool at_end, const struct report *report)
{
    struct point at = {agent_of(op), op->node, op->invoked, acquired(cell, agent_of(op), op->invoked), false};
    struct live *live = &cell->views[view_of(at.agent)];
    const uint8_t *seen = op->bytes + (cell->offset - op->offset);
    bool found[GRAIN_MAX] = {false}, good = false;
    size_t open = 0;

    advance(live, cell->writes, cell->write_count, &at, op->answered);
    for (size_t i = live->count; i-- > 0;) {
        if (live->writes[i]->invoked >= op->answered)
            continue;
        open++;
        if (!good)
            good = match(cell, live->writes[i], seen, found);
    }
    report->summary->cells++;
    report->summary->bytes += cell->size;
    report->summary->open_cells += open > 1;
    if (open > report->summary->most_live)
        report->summary->most_live = open;
    bool undone = false;
    for (size_t i = 0; !good && i < cell->size; i++)
        if (!found[i] && was_brought_back(cell, &at, i, seen[i]))
            undone = found[i] = true;
    report->summary->undone += undone;
    if (undone && all_found(cell, found))
        return;
    if (!good && !all_found(cell, found))
        bad_bytes(cell, live, op, &at, seen, report);
    else if (!at_end)
        settle(cell, live, op, is_cpu(at.agent) ? at.invoked : at.acquired, seen, report->summary);
}

static void check_read(struct cell *cell, const struct op *op, const struct report *report)
{
    bool within = cell->offset + cell->size <= op->offset + (uint64_t)op->result;
    bool may_end = may_exist(cell, op, false);

    if (op->operation == OP_READ && within && !may_exist(cell, op, true))
        bad_end(cell, op, "read, but it lies past the end", report);
    if (op->operation == OP_READ && !within && !may_end)
        bad_end(cell, op, "not read, but it lies before the end", report);
    if (within && !(may_end && op->operation == OP_DEVICE_LOAD))
        check_bytes(cell, op, may_end, report);
}

/* A store that may lie past the end, or an append. */
static void check_store(struct cell *cell, const struct op *op, const struct report *report)
{
    if (is_mapped(op) && may_exist(cell, op, false)) {
        for (size_t i = 0; i < cell->write_count; i++)
            if (cell->writes[i].op == op) {
                cell->writes[i].certain = false;
                cell->writes[i].unstable = true;
            }
    }
    if (op->operation == OP_APPEND && succeeded(op) && op->offset == cell->offset && op->result > 0 &&
        !may_exist(cell, op, false))
        bad_end(cell, op, "appended to, but it lies before the end", report);
}

static void check_cell(struct cell *cell, const struct report *report)
{
    find_ends(cell);
    find_intervals(cell);
    find_writes(cell);
    for (size_t i = 0; i < cell->count; i++) {
        const struct op *op = cell->ops[i];
        if (cell->offset % PAGE == 0 && sigbus_in_page(op, cell->offset / PAGE) &&
            !may_exist(cell, op, false))
            bad_end(cell, op, "SIGBUS, but the page lies before the end", report);
        if (!covers(op, cell))
            continue;
        if (is_read(op) && succeeded(op))
            check_read(cell, op, report);
        else if (!is_read(op))
            check_store(cell, op, report);
    }
}

/* --- all cells -------------------------------------------------------------------------------------------
 */

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);

    if (!memory) {
        fprintf(stderr, "no memory\n");
        exit(2);
    }
    return memory;
}

/* Room for a cell of a page with so many operations, reused from cell to cell. */
static void make_room(struct cell *cell, size_t count)
{
    cell->ops = allocate(count, sizeof *cell->ops);
    cell->writes = allocate(2 * count + 1, sizeof *cell->writes);
    cell->ends = allocate(count + 1, sizeof *cell->ends);
    cell->exists.writes = allocate(count + 1, sizeof *cell->exists.writes);
    for (unsigned v = 0; v < VIEWS; v++)
        cell->views[v].writes = allocate(2 * count + 1, sizeof *cell->views[v].writes);
    for (unsigned d = 0; d < DEVICES_MAX; d++) {
        cell->releases[d].of = allocate(count, sizeof *cell->releases[d].of);
        cell->acquires[d].of = allocate(count, sizeof *cell->acquires[d].of);
    }
}

static void free_room(struct cell *cell)
{
    free(cell->ops);
    free(cell->writes);
    free(cell->ends);
    free(cell->exists.writes);
    for (unsigned v = 0; v < VIEWS; v++)
        free(cell->views[v].writes);
    for (unsigned d = 0; d < DEVICES_MAX; d++) {
        free(cell->releases[d].of);
        free(cell->acquires[d].of);
    }
}

static void empty_cell(struct cell *cell)
{
    cell->count = cell->write_count = cell->settled_count = cell->end_count = 0;
    cell->exists.count = cell->exists.next = 0;
    for (unsigned v = 0; v < VIEWS; v++)
        cell->views[v].count = cell->views[v].next = 0;
    for (unsigned d = 0; d < DEVICES_MAX; d++)
        cell->releases[d].count = cell->acquires[d].count = 0;
}

static bool concerns_page(const struct history *history, const struct op *op, uint32_t file, uint64_t page)
{
    if (op->operation == OP_OTHER || op->file != file)
        return false;
    if (history->file[file].varies && concerns_end(op))
        return true;
    return op->offset / PAGE <= page && op->offset + op->length > page * PAGE;
}

static void check_page(const struct history *history, const struct op **ops, size_t count, uint32_t file,
                       uint64_t page, const struct intervals *syncs, const struct report *report)
{
    struct cell cell = {.history = history, .file = file, .syncs = syncs};
    uint64_t end = (page + 1) * PAGE;

    make_room(&cell, count);
    if (end > history->file[file].most)
        end = (history->file[file].most + GRAIN_MAX - 1) / GRAIN_MAX * GRAIN_MAX;
    for (cell.offset = page * PAGE; cell.offset < end; cell.offset += cell.size) {
        cell.size = cell_size(cell.offset);
        empty_cell(&cell);
        for (size_t i = 0; i < count; i++)
            if (covers(ops[i], &cell) || (history->file[file].varies && concerns_end(ops[i])) ||
                (cell.offset % PAGE == 0 && sigbus_in_page(ops[i], page)))
                cell.ops[cell.count++] = ops[i];
        check_cell(&cell, report);
    }
    free_room(&cell);
}

static void find_syncs(const struct history *history, uint32_t file, struct intervals syncs[NODES_MAX])
{
    for (uint32_t node = 0; node < NODES_MAX; node++)
        syncs[node].count = 0;
    for (size_t i = 0; i < history->count; i++) {
        const struct op *op = &history->ops[i];
        struct intervals *of = &syncs[op->node];
        if (op->operation == OP_OTHER && op->file == file && op->length < 128 && op->length &&
            strchr(SYNCS, (int)op->length) && succeeded(op))
            of->of[of->count++] = (struct interval){op->invoked, op->answered};
    }
    for (uint32_t node = 0; node < NODES_MAX; node++)
        first_answers(&syncs[node]);
}

void check_history(const struct history *history, unsigned reports, struct summary *summary)
{
    const struct op **ops = allocate(history->count, sizeof *ops);
    struct report report = {summary, reports};
    struct intervals syncs[NODES_MAX];

    memset(summary, 0, sizeof *summary);
    for (size_t i = 0; i < history->count; i++)
        summary->reads += is_read(&history->ops[i]) && succeeded(&history->ops[i]);
    for (uint32_t node = 0; node < NODES_MAX; node++)
        syncs[node].of = allocate(history->count, sizeof *syncs[node].of);
    for (uint32_t file = 0; file < history->files; file++) {
        find_syncs(history, file, syncs);
        for (uint64_t page = 0; page * PAGE < history->file[file].most; page++) {
            size_t count = 0;
            for (size_t i = 0; i < history->count; i++)
                if (concerns_page(history, &history->ops[i], file, page))
                    ops[count++] = &history->ops[i];
            check_page(history, ops, count, file, page, syncs, &report);
        }
    }
    for (uint32_t node = 0; node < NODES_MAX; node++)
        free(syncs[node].of);
    free(ops);
}
