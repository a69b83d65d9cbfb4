/* SPDX-License-Identifier: Apache-2.0 */
/* consistency/ against bytes one by one: devices store to their copies of a page, a CPU to the home, and what
 * devices have stored is collected (rule 2); with the rules of versions beside it. Pages of any length, at
 * any address, and nothing behind them. */
#include "consistency/merge.h"
#include "consistency/rules.h"
#include "tests/fuzz/fuzz.h"

const unsigned fuzz_runs = 6000;

#define DEVICES 3
#define ENTRIES (DEVICES + 1)

struct copy {
    uint8_t *memory, *mine, *twin, *twin_memory;
    gaia_version v[ENTRIES];
    bool stored[GAIA_PAGE_SIZE]; /* to the byte, since it was granted or taken */
};

struct world {
    size_t n;
    uint8_t *memory, *home;
    uint8_t expected[GAIA_PAGE_SIZE];
    struct copy copies[DEVICES];
    gaia_version released[ENTRIES], home_v[ENTRIES];
    struct gaia_page_versions versions;
};

/* n bytes at an odd address, and the end of the memory behind them. */
static uint8_t *new_bytes(struct input *in, size_t n, uint8_t **memory_out)
{
    size_t before = take_u8(in) % 64;

    *memory_out = malloc(before + n + !n);
    MUST(*memory_out);
    return *memory_out + before;
}

static void grant(struct world *w, struct copy *copy)
{
    memcpy(copy->mine, w->home, w->n);
    memcpy(copy->twin, w->home, w->n);
    memset(copy->stored, 0, sizeof copy->stored);
    gaia_rule_grant(&w->versions, copy->v);
}

/* How many bytes differ from the twin, by runs and by one. */
static size_t check_runs(const struct world *w, const struct copy *copy)
{
    struct gaia_diff_run runs[GAIA_PAGE_SIZE / 2 + 1];
    size_t count = gaia_diff_runs(copy->twin, copy->mine, w->n, runs, w->n / 2 + 1), at = 0, differ = 0;

    MUST(count <= w->n / 2 + 1);
    for (size_t i = 0; i < count; i++) {
        MUST(runs[i].length && runs[i].offset + runs[i].length <= w->n && (!i || runs[i].offset > at));
        for (; at < runs[i].offset; at++)
            MUST(copy->twin[at] == copy->mine[at]);
        for (; at < (size_t)runs[i].offset + runs[i].length; at++, differ++)
            MUST(copy->twin[at] != copy->mine[at]);
    }
    for (; at < w->n; at++)
        MUST(copy->twin[at] == copy->mine[at]);
    MUST(gaia_differs(copy->twin, copy->mine, w->n) == (count > 0));
    return differ;
}

static void collect(struct world *w, unsigned device)
{
    struct copy *copy = &w->copies[device];
    size_t differ = check_runs(w, copy), changed = 0;
    uint32_t replica = GAIA_REPLICA_DEVICE + device;

    if (differ) {
        gaia_rule_release(&w->versions, replica, copy->v);
        MUST(!gaia_rule_stale(&w->versions, replica, w->released));
    }
    for (size_t i = 0; i < w->n; i++)
        if (copy->mine[i] != copy->twin[i]) {
            MUST(copy->stored[i]);
            changed += w->expected[i] != copy->mine[i];
            w->expected[i] = copy->mine[i];
        }
    MUST(gaia_merge(w->home, copy->twin, copy->mine, w->n) == changed);
    memcpy(copy->twin, copy->mine, w->n); /* what was taken */
    memset(copy->stored, 0, sizeof copy->stored);
    gaia_rule_collected(&w->versions, replica);
    MUST(!memcmp(w->home, w->expected, w->n));
}

static void store(struct world *w, struct copy *copy, size_t at, size_t length, uint8_t value)
{
    for (size_t i = at; i < at + length && i < w->n; i++) {
        copy->mine[i] = value;
        copy->stored[i] = true;
    }
}

/* A device whose copy is current by its versions has, but for its own stores, the home's bytes. */
static void check_current(const struct world *w, unsigned device)
{
    const struct copy *copy = &w->copies[device];

    if (gaia_rule_stale(&w->versions, GAIA_REPLICA_DEVICE + device, copy->v))
        return;
    for (size_t i = 0; i < w->n; i++)
        MUST(copy->stored[i] || copy->mine[i] == w->home[i]);
}

static void step(struct world *w, struct input *in)
{
    uint8_t op = take_u8(in), value;
    unsigned device = op / 8 % DEVICES;
    size_t at = take_u16(in) % (w->n + 1), length = take_u8(in);

    value = (uint8_t)(length % 4);
    switch (op % 8) {
    case 0:
    case 1:
    case 2:
        store(w, &w->copies[device], at, length % 70, value);
        break;
    case 3: /* a CPU writes: what is pending is collected before (rule 3) */
        for (unsigned i = 0; i < DEVICES; i++)
            collect(w, i);
        for (size_t i = at; i < at + length && i < w->n; i++)
            w->home[i] = w->expected[i] = value;
        gaia_rule_cpu_release(&w->versions);
        break;
    case 4:
        for (unsigned i = 0; i < DEVICES; i++)
            collect(w, i);
        grant(w, &w->copies[device]);
        break;
    default:
        collect(w, device);
    }
    check_current(w, device);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    struct world *w = calloc(1, sizeof *w);

    MUST(w);
    w->n = take_u8(&in) < 128 ? GAIA_PAGE_SIZE : take_u16(&in) % (GAIA_PAGE_SIZE + 1);
    w->versions = (struct gaia_page_versions){w->released, w->home_v, ENTRIES};
    w->home = new_bytes(&in, w->n, &w->memory);
    memset(w->home, 0, w->n);
    for (unsigned i = 0; i < DEVICES; i++) {
        w->copies[i].mine = new_bytes(&in, w->n, &w->copies[i].memory);
        w->copies[i].twin = new_bytes(&in, w->n, &w->copies[i].twin_memory);
        grant(w, &w->copies[i]);
    }
    for (unsigned steps = 0; in.left && steps < 60; steps++)
        step(w, &in);
    for (unsigned i = 0; i < DEVICES; i++) {
        collect(w, i);
        free(w->copies[i].memory);
        free(w->copies[i].twin_memory);
    }
    free(w->memory);
    free(w);
    return 0;
}
