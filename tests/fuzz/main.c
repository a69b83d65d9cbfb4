/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzzer without libFuzzer: so many inputs of a random generator, in the form that tests/check.py
 * counts. NAME [--seconds N] [--seed N] [FILE...]: for so long; or these inputs, once each. An input that
 * ends the program is named by its number and the seed. */
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/gate.h"
#include "tests/random.h"

#define SIZE_MOST 4096u
#define LIMIT_S 60u /* for one input */

static uint64_t seed = 20261;
static volatile unsigned long number;

/* Bytes of one kind: any, small, few different ones, or long runs of one. */
static size_t make(uint8_t *bytes, uint64_t *state)
{
    size_t size = draw(state, draw(state, 4) ? 256 : SIZE_MOST) + 1;
    uint64_t below = draw(state, 2) ? 256 : draw(state, 40) + 1;
    uint8_t last = 0;
    bool runs = draw(state, 4) == 0;

    for (size_t i = 0; i < size; i++) {
        if (!runs || draw(state, 8) == 0)
            last = (uint8_t)draw(state, draw(state, 16) ? below : 256);
        bytes[i] = last;
    }
    return size;
}

static void say_where(int signal_number)
{
    char text[96];
    int length = snprintf(text, sizeof text, "input %lu of seed %llu, signal %d\n", number,
                          (unsigned long long)seed, signal_number);

    if (write(STDERR_FILENO, text, (size_t)length) < 0)
        _exit(2);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void run_one(void)
{
    uint64_t state = mix(seed) ^ mix(number);
    uint8_t made[SIZE_MOST], *bytes;
    size_t size = make(made, &state);

    bytes = malloc(size); /* of this very length */
    MUST(bytes);
    memcpy(bytes, made, size);
    alarm(LIMIT_S);
    LLVMFuzzerTestOneInput(bytes, size);
    alarm(0);
    free(bytes);
}

static int run_file(const char *path)
{
    FILE *file = fopen(path, "re");
    uint8_t *bytes = malloc(1 << 20);
    size_t size;

    MUST(file && bytes);
    size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    return 0;
}

static time_t now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

int main(int argc, char **argv)
{
    unsigned long runs = so_many(fuzz_runs), seconds = 0;
    const char *text = getenv("GAIA_TEST_SEED");
    bool files = false;

    seed = text ? strtoull(text, NULL, 0) : seed;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
            seconds = strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 0);
        else
            files = !run_file(argv[i]);
    }
    if (files)
        return 0;
    /* A sanitizer's own handlers say more, and end the program. */
    signal(SIGABRT, say_where);
    signal(SIGALRM, say_where);
    time_t end = now_s() + (time_t)seconds;
    for (number = 0; seconds ? now_s() < end : number < runs; number++)
        run_one();
    printf("%lu inputs of seed %llu\n[  PASSED  ] 1 test(s).\n", number, (unsigned long long)seed);
    return 0;
}
