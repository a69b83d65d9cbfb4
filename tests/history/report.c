/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of a read that no order allows: what it saw, why not, and what happened to its cell. */
#include "rules.h"

#include <string.h>

static const char *rule_of(const struct write *killer, const struct point *at)
{
    if (killer->settled)
        return "same";
    if (at->agent <= CPU)
        return killer->agent <= CPU ? "coherence" : "release";
    if (killer->agent == at->agent)
        return "own";
    return killer->agent <= CPU ? "acquire" : "release-acquire";
}

static void print_write(const char *what, const struct write *w)
{
    printf("  %s ", what);
    if (w->settled)
        printf("the outcome of a race, shown by the read %llu, settled since %llu\n",
               (unsigned long long)w->id, (unsigned long long)w->published);
    else if (!w->op)
        printf("the zeros at the start\n");
    else
        print_op(w->op);
    if (w->op && (w->agent > CPU || w->far != w->published))
        printf("      (published %lld, to CPUs of other nodes %lld)\n", (long long)w->published,
               (long long)w->far);
}

/* Which write is what was seen, and why not; returns the rule. */
static const char *explain(const struct cell *cell, const struct live *live, const struct op *op,
                           const struct point *at, const uint8_t *seen, bool quiet)
{
    const char *rule = "garbage";
    bool allowed[GRAIN_MAX] = {false};

    for (size_t i = 0; i < live->count; i++)
        if (live->writes[i]->invoked < op->answered)
            match(cell, live->writes[i], seen, allowed);
    for (size_t i = cell->write_count + cell->settled_count; i-- > 0;) {
        const struct write *w = &cell->writes[i];
        bool found[GRAIN_MAX];
        memcpy(found, allowed, sizeof found);
        match(cell, w, seen, found);
        if (w->settled || !all_found(cell, found))
            continue;
        if (w->invoked >= op->answered) {
            rule = "future";
            if (!quiet)
                print_write("seen, but it began later:", w);
            continue;
        }
        for (size_t j = 0; j < cell->write_count + cell->settled_count; j++) {
            if (!overwrites(&cell->writes[j], w, at))
                continue;
            rule = rule_of(&cell->writes[j], at);
            if (!quiet) {
                print_write("seen:", w);
                print_write("but it was overwritten by", &cell->writes[j]);
            }
            return rule;
        }
    }
    return rule;
}

static void print_cell(const struct cell *cell, const struct op *op)
{
    size_t end = 0, begin;

    while (end < cell->count && cell->ops[end]->invoked <= op->answered)
        end++;
    begin = end > 40 ? end - 40 : 0;
    printf("  what happened to this cell, the last %zu:\n", end - begin);
    for (size_t i = begin; i < end; i++)
        if (!(is_read(cell->ops[i]) && cell->ops[i] != op && i + 15 < end)) {
            printf("  %s ", cell->ops[i] == op ? "=>" : "  ");
            print_op(cell->ops[i]);
        }
}

static void violation(const struct cell *cell, const struct op *op, const char *rule,
                      const struct report *report)
{
    struct summary *summary = report->summary;

    if (summary->violations++ == 0) {
        snprintf(summary->first_rule, sizeof summary->first_rule, "%s", rule);
        snprintf(summary->first, sizeof summary->first, "file %u, bytes %llu+%llu, %s %llu", cell->file,
                 (unsigned long long)cell->offset, (unsigned long long)cell->size, op_name(op),
                 (unsigned long long)op->invoked);
    }
}

static bool reporting(const struct report *report)
{
    return report->summary->violations <= report->most;
}

/* The bytes; those that no write explains in brackets. */
static void print_seen(const struct cell *cell, const struct live *live, const struct op *op,
                       const uint8_t *seen)
{
    bool allowed[GRAIN_MAX] = {false};
    size_t bad = 0;

    for (size_t i = 0; i < live->count; i++)
        if (live->writes[i]->invoked < op->answered)
            match(cell, live->writes[i], seen, allowed);
    printf("  bytes:");
    for (size_t i = 0; i < cell->size; i++) {
        printf(allowed[i] ? " %02x" : " [%02x]", seen[i]);
        bad += !allowed[i];
    }
    printf(" (%zu of %llu not allowed)\n", bad, (unsigned long long)cell->size);
}

void bad_bytes(const struct cell *cell, const struct live *live, const struct op *op, const struct point *at,
               const uint8_t *seen, const struct report *report)
{
    violation(cell, op, explain(cell, live, op, at, seen, true), report);
    if (!reporting(report))
        return;
    printf("NOT ALLOWED (rule %s): file %u, bytes %llu to %llu (page %llu + %llu)\n",
           explain(cell, live, op, at, seen, true), cell->file, (unsigned long long)cell->offset,
           (unsigned long long)(cell->offset + cell->size - 1), (unsigned long long)(cell->offset / PAGE),
           (unsigned long long)(cell->offset % PAGE));
    printf("  by ");
    print_op(op);
    print_seen(cell, live, op, seen);
    explain(cell, live, op, at, seen, false);
    for (size_t i = 0; i < live->count && i < 8; i++)
        if (live->writes[i]->invoked < op->answered)
            print_write("allowed:", live->writes[i]);
    print_cell(cell, op);
}

void bad_end(const struct cell *cell, const struct op *op, const char *what, const struct report *report)
{
    violation(cell, op, "end", report);
    if (!reporting(report))
        return;
    printf("NOT ALLOWED (rule end): file %u, byte %llu: %s\n  by ", cell->file,
           (unsigned long long)cell->offset, what);
    print_op(op);
    for (size_t i = 0; i < cell->exists.count; i++) {
        printf("  the end may be %s: ", cell->exists.writes[i]->exists ? "behind it" : "before it");
        print_write("", cell->exists.writes[i]);
    }
    print_cell(cell, op);
}
