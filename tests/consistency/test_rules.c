/* SPDX-License-Identifier: Apache-2.0 */
/* The rules against an oracle of sets: random programs of one page, in which every copy is the set of the
 * writes that it includes. Every write is to a byte of its own, so that a merge is the union of two sets. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "consistency/rules.h"
#include "tests/consistency/seed.h"

#define DEVICES_MAX 5u
#define ENTRIES_MAX (1u + DEVICES_MAX)
#define STEPS 400u /* in a program; each writes at most once */
#define PROGRAMS 4000

/* A set of writes. */
struct set {
    uint64_t words[(STEPS + 63) / 64];
};

static void set_add(struct set *set, unsigned write)
{
    set->words[write / 64] |= (uint64_t)1 << write % 64;
}

static void set_unite(struct set *set, const struct set *other)
{
    for (size_t i = 0; i < sizeof(set->words) / sizeof(set->words[0]); i++)
        set->words[i] |= other->words[i];
}

static bool set_includes(const struct set *set, const struct set *other)
{
    for (size_t i = 0; i < sizeof(set->words) / sizeof(set->words[0]); i++) {
        if (other->words[i] & ~set->words[i])
            return false;
    }
    return true;
}

struct device {
    gaia_version v[ENTRIES_MAX];
    bool holds;       /* a copy of the page */
    struct set bytes; /* what that includes */
    struct set own;   /* the device's stores to it */
    struct set twin;  /* those of its stores that have been collected */
    /* Its copy includes writes of the CPU that were not released when it was granted. */
    bool granted_early;
};

struct program {
    gaia_version released_v[ENTRIES_MAX], home_v[ENTRIES_MAX];
    struct gaia_page_versions page;
    size_t devices;
    bool release_at_grant; /* a grant does the CPU's release too, not only an acquire */
    struct device device[DEVICES_MAX];
    struct set home;         /* what the home copy includes */
    struct set released;     /* all that was released, by whomever */
    struct set cpu_writes;   /* the CPU's */
    bool cpu_modified;       /* the mark of rule 4 */
    unsigned writes;         /* so far */
    unsigned stale, current; /* answers, to see that both were met */
};

static uint32_t replica_of(size_t d)
{
    return GAIA_REPLICA_DEVICE + (uint32_t)d;
}

/* Whether the home copy lacks what a replica has released. */
static bool is_pending(const struct gaia_page_versions *page, uint32_t replica)
{
    size_t entry = gaia_version_entry(replica);

    return page->home[entry] != page->released[entry];
}

static void program_start(struct program *p, size_t devices, bool release_at_grant)
{
    memset(p, 0, sizeof(*p));
    p->devices = devices;
    p->release_at_grant = release_at_grant;
    p->page = (struct gaia_page_versions){.released = p->released_v, .home = p->home_v, .n = 1 + devices};
    /* Some programs pass the wrap. */
    for (size_t j = 0; j < p->page.n; j++) {
        p->released_v[j] = seed_below(2) ? 0 : (gaia_version)(0u - seed_below(20));
        p->home_v[j] = p->released_v[j];
        for (size_t d = 0; d < devices; d++)
            p->device[d].v[j] = p->released_v[j];
    }
}

/* Rule 1. */
static void device_release(struct program *p, size_t d)
{
    struct device *device = &p->device[d];

    set_unite(&p->released, &device->own);
    if (set_includes(&device->twin, &device->own))
        return; /* its bytes do not differ from its twin: what it stored has been collected early */
    gaia_rule_release(&p->page, replica_of(d), device->v);
    assert_true(is_pending(&p->page, replica_of(d)));
}

/* Rule 2: whatever is pending, in ascending replica number; stores that are not released yet go with it. */
static void collect(struct program *p)
{
    for (size_t d = 0; d < p->devices; d++) {
        struct device *device = &p->device[d];

        if (!is_pending(&p->page, replica_of(d)))
            continue;
        device->twin = device->own;
        set_unite(&p->home, &device->own);
        gaia_rule_collected(&p->page, replica_of(d));
        assert_false(is_pending(&p->page, replica_of(d)));
    }
    assert_true(set_includes(&p->home, &p->released));
}

/* Rules 3 and 4. */
static void cpu_write(struct program *p)
{
    collect(p);
    set_add(&p->cpu_writes, p->writes);
    set_add(&p->home, p->writes++);
    p->cpu_modified = true;
}

static void cpu_release(struct program *p)
{
    if (!p->cpu_modified)
        return;
    p->cpu_modified = false;
    gaia_rule_cpu_release(&p->page);
    set_unite(&p->released, &p->cpu_writes);
}

/* A device's touch: a grant where it has no copy, then perhaps a store. */
static void device_touch(struct program *p, size_t d, bool store)
{
    struct device *device = &p->device[d];

    if (!device->holds) {
        collect(p);
        if (p->release_at_grant)
            cpu_release(p);
        gaia_rule_grant(&p->page, device->v);
        assert_memory_equal(device->v, p->home_v, p->page.n * sizeof(device->v[0]));
        device->holds = true;
        device->granted_early = p->cpu_modified;
        device->bytes = p->home;
        memset(&device->own, 0, sizeof(device->own));
        memset(&device->twin, 0, sizeof(device->twin));
    }
    if (store) {
        set_add(&device->bytes, p->writes);
        set_add(&device->own, p->writes++);
    }
}

/* Eviction: an early release. */
static void drop(struct program *p, size_t d)
{
    device_release(p, d);
    collect(p);
    p->device[d].holds = false;
}

/* The line: a copy is stale when something released is missing from it, and else it is not. */
static bool check_stale(struct program *p, size_t d)
{
    const struct device *device = &p->device[d];
    bool missing = !set_includes(&device->bytes, &p->released);
    bool stale = gaia_rule_stale(&p->page, replica_of(d), device->v);

    if (missing)
        assert_true(stale);
    else if (!device->granted_early)
        assert_false(stale);
    p->stale += stale;
    p->current += !stale;
    return stale;
}

/* Rule 5. What the device itself has stored since is not lost: it is released first. */
static void device_acquire(struct program *p, size_t d)
{
    cpu_release(p);
    if (p->device[d].holds && check_stale(p, d))
        drop(p, d);
    device_touch(p, d, false);
    assert_true(set_includes(&p->device[d].bytes, &p->released));
}

/* The pending mark and the copies that exist, after each step. */
static void check_all(struct program *p)
{
    for (size_t d = 0; d < p->devices; d++) {
        struct device *device = &p->device[d];
        struct set released_own = device->own;

        for (size_t i = 0; i < sizeof(released_own.words) / sizeof(released_own.words[0]); i++)
            released_own.words[i] &= p->released.words[i];
        assert_int_equal(is_pending(&p->page, replica_of(d)), !set_includes(&p->home, &released_own));
        if (device->holds)
            check_stale(p, d);
    }
    assert_false(is_pending(&p->page, GAIA_REPLICA_CPU));
}

static void step(struct program *p)
{
    size_t d = seed_below(p->devices);

    switch (seed_below(8)) {
    case 0:
        cpu_write(p);
        break;
    case 1: /* a CPU's read */
        collect(p);
        break;
    case 2:
        device_acquire(p, d);
        break;
    case 3:
        if (p->device[d].holds)
            drop(p, d);
        break;
    case 4:
    case 5:
        if (p->device[d].holds)
            device_release(p, d);
        break;
    default:
        device_touch(p, d, true);
        break;
    }
}

static void run_programs(bool release_at_grant)
{
    unsigned stale = 0, current = 0;

    for (int i = 0; i < PROGRAMS; i++) {
        static struct program p;

        program_start(&p, 1 + seed_below(DEVICES_MAX), release_at_grant);
        for (unsigned n = seed_below(STEPS + 1); n > 0; n--) {
            step(&p);
            check_all(&p);
        }
        stale += p.stale;
        current += p.current;
    }
    assert_true(stale > PROGRAMS && current > PROGRAMS);
}

/* When a grant does the CPU's release too, the versions are exact. */
static void test_programs(void **state)
{
    (void)state;
    run_programs(true);
}

/* When only acquires do, a copy that was granted while the CPU's mark was set may be called stale for
 * nothing. Nothing that is missing goes unseen. */
static void test_programs_release_at_acquire_only(void **state)
{
    (void)state;
    run_programs(false);
}

/* Two devices and the CPU, step by step. */
static void test_by_hand(void **state)
{
    gaia_version released[3] = {0}, home[3] = {0}, a[3] = {0}, b[3] = {0};
    struct gaia_page_versions page = {.released = released, .home = home, .n = 3};

    (void)state;
    gaia_rule_grant(&page, a);
    gaia_rule_grant(&page, b);
    gaia_rule_release(&page, 2, a);
    assert_true(is_pending(&page, 2));
    assert_false(is_pending(&page, 3));
    assert_int_equal(a[1], 1);
    assert_false(gaia_rule_stale(&page, 2, a)); /* its own writes */
    assert_true(gaia_rule_stale(&page, 3, b));

    gaia_rule_collected(&page, 2);
    assert_false(is_pending(&page, 2));
    assert_true(gaia_rule_stale(&page, 3, b));
    gaia_rule_grant(&page, b);
    assert_false(gaia_rule_stale(&page, 3, b));

    gaia_rule_cpu_release(&page);
    assert_false(is_pending(&page, GAIA_REPLICA_CPU));
    assert_true(gaia_rule_stale(&page, 2, a));
    assert_true(gaia_rule_stale(&page, 3, b));
}

/* In a child: whether granting v ends in an assertion. */
static bool grant_aborts(const struct gaia_page_versions *page, gaia_version *v)
{
    int status;
    pid_t child;

    fflush(stdout);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit none = {0, 0};

        /* Neither a core file, nor the assertion's message in the test's output, nor cmocka's handler. */
        setrlimit(RLIMIT_CORE, &none);
        if (!freopen("/dev/null", "w", stderr))
            _exit(2);
        signal(SIGABRT, SIG_DFL);
        gaia_rule_grant(page, v);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        assert_int_equal(WTERMSIG(status), SIGABRT);
    else
        assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status);
}

static void test_grant_while_pending(void **state)
{
    gaia_version released[3] = {0}, home[3] = {0}, a[3] = {0}, b[3] = {0};
    struct gaia_page_versions page = {.released = released, .home = home, .n = 3};

    (void)state;
    gaia_rule_release(&page, 2, a);
    assert_true(grant_aborts(&page, b));
    assert_false(grant_aborts(&page, a)); /* pending at the one that is granted */

    /* It gets the home's bytes, which do not include what is pending; its own entry then counts for nothing.
     */
    gaia_rule_grant(&page, a);
    assert_int_equal(a[1], 0);
    assert_false(gaia_rule_stale(&page, 2, a));
    assert_true(gaia_rule_stale(&page, 3, b));

    gaia_rule_collected(&page, 2);
    assert_false(grant_aborts(&page, b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_programs_release_at_acquire_only),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_grant_while_pending),
    };

    seed_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
