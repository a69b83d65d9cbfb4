/* SPDX-License-Identifier: Apache-2.0 */
/* A program in which every call that can fail does (tests/faults): the 1st time, the 2nd ..., once or from
 * then on, while an exercise runs again and again. For programs that are linked with tests/faults/table.c. */
#ifndef GAIAFS_TESTS_IO_FAULT_WALK_H
#define GAIAFS_TESTS_IO_FAULT_WALK_H

#include "tests/io/transport_fixture.h"

#define ROWS_MAX 128
#define CALLS_MAX 12  /* of a row, that are made to fail one by one */
#define LIMIT_MS 300u /* the exercise's timeout */

/* As in tests/faults/table.c. */
struct plan {
    _Atomic int32_t row;
    _Atomic int32_t error;
    _Atomic int64_t countdown;
    _Atomic int32_t sticky;
    _Atomic int32_t landed;
    _Atomic int64_t calls[ROWS_MAX];
    char names[ROWS_MAX][32];
    _Atomic int32_t kill, victim;
    _Atomic int64_t only;
    _Atomic int32_t signal;
};
static struct plan *plan;

struct fault_row {
    const char *name;
    int errors[3];
};

static int row_number(const char *name)
{
    for (int i = 0; i < ROWS_MAX; i++)
        if (!strcmp(plan->names[i], name))
            return i;
    return -1;
}

static const char *walking = "nothing";
static int walking_call, walking_error, walking_sticky;

/* Said when an assertion fails. */
static int tell(void **state)
{
    if (plan->row >= 0)
        print_message("%s() number %d: %s%s\n", walking, walking_call, strerror(walking_error),
                      walking_sticky ? ", from then on" : "");
    plan->row = -1;
    return end(state);
}

static unsigned walk(int row, int error, bool sticky, bool (*exercise)(void))
{
    unsigned landed = 0;

    for (int call = 1; call <= CALLS_MAX; call++) {
        unsigned before = descriptors();

        walking_call = call;
        walking_error = error;
        walking_sticky = sticky;
        plan->error = error;
        plan->countdown = call;
        plan->sticky = sticky;
        plan->landed = 0;
        plan->row = row;
        exercise();
        plan->row = -1;
        if (!plan->landed)
            break;
        landed++;
        if (carrier == GAIA_CARRIER_LOCAL)
            assert_int_equal(descriptors(), before);
        if (sticky)
            break;
    }
    return landed;
}

/* How many faults landed. */
static unsigned walk_row(const struct fault_row *fault, bool (*exercise)(void))
{
    int row = row_number(fault->name);
    unsigned landed = 0;

    assert_true(row >= 0);
    alarm(TIME_LIMIT_S);
    walking = fault->name;
    for (unsigned k = 0; k < 3 && fault->errors[k]; k++) {
        int error = fault->errors[k];

        landed += walk(row, error, false, exercise);
        if (error != EINTR && error != EAGAIN)
            landed += walk(row, error, true, exercise);
    }
    alarm(0);
    if (landed)
        print_message("%s %u ", fault->name, landed);
    return landed;
}

/* All of them; at least so many must land. The exercise says whether all of it went well. */
static void walk_rows(const struct fault_row *rows, unsigned count, unsigned least, bool (*exercise)(void))
{
    unsigned rows_landed = 0, faults = 0;

    assert_true(exercise());
    for (unsigned i = 0; i < count; i++) {
        unsigned landed = walk_row(&rows[i], exercise);

        rows_landed += landed > 0;
        faults += landed;
    }
    print_message("\n%u faults of %u rows\n", faults, rows_landed);
    alarm(TIME_LIMIT_S);
    assert_true(exercise()); /* nothing is left of it */
    assert_in_range(rows_landed, least, count);
}

/* Whether no step of an exercise has failed. */
static bool all_well;

/* What a step gives: an error that may be, a negative errno, ends the steps. */
static bool is_well(int result)
{
    if (result < 0) {
        all_well = false;
        assert_in_range(-result, 1, 4095);
    }
    return result >= 0;
}

/* The table looks for its plan before main(): make one, and begin anew. */
static void begin_anew(char **argv)
{
    char path[] = "/tmp/gaiafs-calls-XXXXXX";
    int fd = mkstemp(path);

    if (fd < 0 || ftruncate(fd, sizeof *plan) || setenv("GAIAFS_FAULTS", path, 1))
        exit(1);
    close(fd);
    execv("/proc/self/exe", argv);
    exit(1);
}

static void find_plan(char **argv)
{
    const char *path = getenv("GAIAFS_FAULTS");

    if (!path)
        begin_anew(argv);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    plan = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (plan == MAP_FAILED)
        exit(1);
    plan->row = -1;
    close(fd);
    unlink(path);
}

/* main() of a program whose one test is such a walk. */
static int walk_main(int argc, char **argv, const char *name, void (*test_calls)(void **state))
{
    const struct CMUnitTest tests[] = {{"test_calls", test_calls, begin, tell, NULL}};

    find_plan(argv);
    take_arguments(argc, argv);
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

#endif
