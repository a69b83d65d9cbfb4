/* SPDX-License-Identifier: Apache-2.0 */
/* What merging and hashing a page costs, in ns a page, in cache and out of it, with a plain copy for
 * comparison. Prints one JSON object. Never fails because of a time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "consistency/digest.h"
#include "consistency/merge.h"
#include "consistency/page.h"
#include "tests/bench/bench.h"

#define GOAL_NS 1400 /* what GAIA's authors measured for a 4 KiB page */
#define REPETITIONS 9
#define HOT_CALLS 50000u
#define COLD_PAGES ((size_t)16384) /* in each of three areas: 64 MiB */
#define HOT_PAGES 4u               /* home, twin, and two versions of mine */

static volatile uint64_t sink; /* keeps results, so that no call is left out */
static uint64_t state = 1;

static uint8_t *page_of(uint8_t *area, size_t i)
{
    return area + i * GAIA_PAGE_SIZE;
}

/* count pages of random bytes; the caller frees them. */
static uint8_t *new_area(size_t count)
{
    uint8_t *area = aligned_alloc(GAIA_PAGE_SIZE, count * GAIA_PAGE_SIZE);

    if (!area) {
        fprintf(stderr, "bench_merge: no memory for %zu pages\n", count);
        exit(1);
    }
    for (size_t i = 0; i < count * GAIA_PAGE_SIZE; i++)
        area[i] = (uint8_t)random_next(&state);
    return area;
}

/* Changes alternate bytes, from the one numbered first on, or about one of 16 that are picked at random. */
static void write_page(uint8_t *page, bool alternate, size_t first)
{
    for (size_t i = 0; i < GAIA_PAGE_SIZE; i++) {
        if (alternate ? i % 2 == first : random_next(&state) % 16 == 0)
            page[i] = (uint8_t)(page[i] + 1 + random_next(&state) % 255);
    }
}

/* The work that is timed, on one page of each area. */
typedef uint64_t work(uint8_t *home, uint8_t *twin, uint8_t *mine);

static uint64_t work_merge(uint8_t *home, uint8_t *twin, uint8_t *mine)
{
    return gaia_merge(home, twin, mine, GAIA_PAGE_SIZE);
}

static uint64_t work_copy(uint8_t *home, uint8_t *twin, uint8_t *mine)
{
    (void)twin;
    memcpy(home, mine, GAIA_PAGE_SIZE);
    /* The copy must be made: nobody may say that its bytes are not looked at. */
    __asm__ volatile("" : : "r"(home) : "memory");
    return 0;
}

static uint64_t work_digest(uint8_t *home, uint8_t *twin, uint8_t *mine)
{
    (void)home;
    (void)twin;
    return gaia_digest_of(mine, GAIA_PAGE_SIZE).low;
}

/* A few pages again and again. mine is one of two versions in turn, so that each merge changes bytes of home.
 */
static double time_hot(work *f, bool alternate)
{
    uint8_t *area = new_area(HOT_PAGES);
    uint8_t *home = area, *twin = page_of(area, 1), *mine[2] = {page_of(area, 2), page_of(area, 3)};
    double times[REPETITIONS];

    memcpy(home, twin, GAIA_PAGE_SIZE);
    write_page(home, alternate, 0);
    for (size_t i = 0; i < 2; i++) {
        memcpy(mine[i], twin, GAIA_PAGE_SIZE);
        write_page(mine[i], alternate, 1);
    }
    for (size_t r = 0; r < REPETITIONS; r++) {
        uint64_t start = now_ns(), sum = 0;

        for (size_t i = 0; i < HOT_CALLS; i++)
            sum += f(home, twin, mine[i % 2]);
        times[r] = (double)(now_ns() - start) / HOT_CALLS;
        sink = sum;
    }
    free(area);
    return median(times, REPETITIONS);
}

struct cold {
    uint8_t *home, *twin, *mine;
    uint32_t *order; /* of the pages, random: no prefetch from one into the next */
};

static void cold_start(struct cold *cold)
{
    cold->home = new_area(COLD_PAGES);
    cold->twin = new_area(COLD_PAGES);
    cold->mine = new_area(COLD_PAGES);
    cold->order = malloc(COLD_PAGES * sizeof(cold->order[0]));
    if (!cold->order)
        exit(1);
    memcpy(cold->home, cold->twin, COLD_PAGES * GAIA_PAGE_SIZE);
    memcpy(cold->mine, cold->twin, COLD_PAGES * GAIA_PAGE_SIZE);
    for (size_t i = 0; i < COLD_PAGES; i++) {
        size_t other = random_next(&state) % (i + 1);

        write_page(page_of(cold->home, i), false, 0);
        write_page(page_of(cold->mine, i), false, 1);
        cold->order[i] = cold->order[other];
        cold->order[other] = (uint32_t)i;
    }
}

static double time_cold(const struct cold *cold, work *f)
{
    double times[REPETITIONS];

    for (size_t r = 0; r < REPETITIONS; r++) {
        uint64_t start = now_ns(), sum = 0;

        for (size_t i = 0; i < COLD_PAGES; i++) {
            size_t page = cold->order[i];

            sum += f(page_of(cold->home, page), page_of(cold->twin, page), page_of(cold->mine, page));
        }
        times[r] = (double)(now_ns() - start) / (double)COLD_PAGES;
        sink = sum;
    }
    return median(times, REPETITIONS);
}

int main(void)
{
    double merge = time_hot(work_merge, false), alternate = time_hot(work_merge, true);
    double copy = time_hot(work_copy, false), digest = time_hot(work_digest, false);
    double cold_merge, cold_copy, cold_digest;
    struct cold cold;

    cold_start(&cold);
    cold_merge = time_cold(&cold, work_merge);
    cold_copy = time_cold(&cold, work_copy);
    cold_digest = time_cold(&cold, work_digest);
    printf("{\"merge_page_ns\": %.1f, \"merge_alternate_ns\": %.1f, \"memcpy_page_ns\": %.1f, "
           "\"ratio_to_memcpy\": %.2f, \"digest_page_ns\": %.1f, ",
           merge, alternate, copy, merge / copy, digest);
    printf("\"merge_page_cold_ns\": %.1f, \"memcpy_page_cold_ns\": %.1f, \"digest_page_cold_ns\": %.1f, ",
           cold_merge, cold_copy, cold_digest);
    printf("\"cold_bytes\": %zu, \"goal_ns\": %d}\n", 3 * COLD_PAGES * GAIA_PAGE_SIZE, GOAL_NS);
    free(cold.home);
    free(cold.twin);
    free(cold.mine);
    free(cold.order);
    return 0;
}
