/* SPDX-License-Identifier: Apache-2.0 */
/* cache/ranges.c against an array of booleans: sets of byte ranges, full ones and ones without memory
 * among them. */
#include "cache/ranges.h"
#include "tests/fuzz/fuzz.h"

const unsigned fuzz_runs = 3000;

#define POINTS 4096
#define SETS 2

struct set {
    struct ranges ranges;
    bool must[POINTS]; /* in it */
    bool exact;        /* and nothing else */
};

static int64_t base; /* the first point */

static const struct range *items(const struct ranges *ranges)
{
    return ranges->many ? ranges->many : ranges->few;
}

static void check(const struct set *set)
{
    const struct range *at = items(&set->ranges);
    bool there[POINTS] = {false};

    MUST(set->ranges.count <= RANGES_MAX);
    for (unsigned i = 0; i < set->ranges.count; i++) {
        MUST(at[i].start < at[i].end && at[i].start >= base && at[i].end - base <= POINTS);
        MUST(!i || at[i - 1].end < at[i].start);
        memset(there + (at[i].start - base), true, (size_t)(at[i].end - at[i].start));
    }
    for (int i = 0; i < POINTS; i++)
        MUST(there[i] == set->must[i] || (there[i] && !set->exact));
}

/* One that is as good as full may hold more from now on. */
static void note_room(struct set *set, bool bounded)
{
    set->exact &= !bounded && set->ranges.count < RANGES_MAX / 2;
}

static void add(struct set *set, int start, int end)
{
    ranges_add(&set->ranges, base + start, base + end);
    for (int i = start; i < end; i++)
        set->must[i] = true;
}

static void drop(struct set *set, int start, int end)
{
    ranges_remove(&set->ranges, base + start, base + end);
    for (int i = start; i < end; i++)
        set->must[i] = false;
}

static void look(const struct set *set, int start, int end)
{
    struct ranges *ranges = (struct ranges *)&set->ranges;
    bool any = false;

    for (int i = start; i < end; i++)
        any |= set->must[i];
    bool said = ranges_touch(ranges, base + start, base + end);
    MUST(said == any || (said && !set->exact));
}

static void copy(struct set *to, const struct set *from, int start, int end)
{
    if (to == from)
        return;
    ranges_add_part(&to->ranges, &from->ranges, base + start, base + end);
    to->exact &= from->exact;
    for (int i = start; i < end; i++)
        to->must[i] |= from->must[i];
}

/* Every second, or so. */
static void comb(struct set *set, int start, int step)
{
    for (int at = start; at < POINTS - 1; at += step + 2)
        add(set, at, at + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const int64_t bases[] = {0, INT64_MAX - POINTS, -POINTS / 2, INT64_C(1) << 40};
    struct input in = {bytes, size};
    struct set sets[SETS] = {{.exact = true}, {.exact = true}};
    bool bounded = false;

    base = bases[take_u8(&in) % 4];
    ranges_bound(SIZE_MAX);
    for (unsigned steps = 0; in.left && steps < 400; steps++) {
        uint8_t op = take_u8(&in);
        struct set *set = &sets[op >> 7];
        int start = (int)(take_u16(&in) % POINTS), length = (int)(take_u8(&in) % 40), end = start + length;

        end = end < POINTS ? end : POINTS;
        note_room(set, bounded);
        switch (op % 8) {
        case 0:
        case 1:
            add(set, start, end);
            break;
        case 2:
            drop(set, start, end);
            break;
        case 3:
            look(set, start, end);
            break;
        case 4:
            copy(set, &sets[!(op >> 7)], start, POINTS - start < 1000 ? POINTS : start + 1000);
            break;
        case 5:
            set->exact = false; /* as many as that are too many */
            comb(set, start, length);
            break;
        case 6:
            ranges_bound(length < 20 ? ranges_allocated() : SIZE_MAX);
            bounded = length < 20;
            set->exact &= !bounded;
            break;
        default:
            ranges_clear(&set->ranges);
            memset(set->must, 0, sizeof set->must);
            set->exact = true;
        }
        note_room(set, bounded);
        check(set);
    }
    for (unsigned i = 0; i < SETS; i++)
        ranges_clear(&sets[i].ranges);
    MUST(ranges_allocated() == 0);
    return 0;
}
