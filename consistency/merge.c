/* SPDX-License-Identifier: Apache-2.0 */
/* See merge.h. The loops are in merge_loops.h: for any CPU with 16-byte vectors (SSE2, NEON), and once more
 * for AVX2. Which one runs is a plain branch at each call, not target_clones: those are resolved before the
 * sanitizers' run-time is up, and a build with -fsanitize=thread crashes at start. So, too, the sanitizers
 * check the code that users run. */
#include "consistency/merge.h"

#include <assert.h>
#include <string.h>

/* An offset of a run may be GAIA_PAGE_SIZE - 1, its length GAIA_PAGE_SIZE. */
_Static_assert(GAIA_PAGE_SIZE <= UINT16_MAX, "a run's length would overflow");

typedef uint8_t lanes_any __attribute__((vector_size(16)));
#define LANES lanes_any
#define NAME(x) x##_any
#define TARGET
#include "consistency/merge_loops.h"
#undef LANES
#undef NAME
#undef TARGET

/* tests/consistency/test_merge.c asks for the portable loops alone, to check them on CPUs that have more. */
#if defined(__x86_64__) && !defined(GAIA_MERGE_PORTABLE)
typedef uint8_t lanes_avx2 __attribute__((vector_size(32)));
#define LANES lanes_avx2
#define NAME(x) x##_avx2
#define TARGET __attribute__((target("avx2")))
#include "consistency/merge_loops.h"
#undef LANES
#undef NAME
#undef TARGET
#define PICK(x) (__builtin_cpu_supports("avx2") ? x##_avx2 : x##_any)
#else
#define PICK(x) x##_any
#endif

size_t gaia_merge(uint8_t *home, const uint8_t *twin, const uint8_t *mine, size_t n)
{
    assert(n <= GAIA_PAGE_SIZE);
    return PICK(merge)(home, twin, mine, n);
}

bool gaia_differs(const uint8_t *a, const uint8_t *b, size_t n)
{
    assert(n <= GAIA_PAGE_SIZE);
    return PICK(differs)(a, b, n);
}

/* The differences of the 8 bytes at a and b: a byte of it is 0 where they are equal. */
static inline uint64_t differences(const uint8_t *a, const uint8_t *b)
{
    uint64_t x, y;

    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return x ^ y;
}

/* The first byte from i on in which the two differ, or n. */
static size_t next_difference(const uint8_t *a, const uint8_t *b, size_t i, size_t n)
{
    while (i + sizeof(uint64_t) <= n && differences(a + i, b + i) == 0)
        i += sizeof(uint64_t);
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static inline bool has_zero_byte(uint64_t x)
{
    return ((x - 0x0101010101010101u) & ~x & 0x8080808080808080u) != 0;
}

/* The first byte from i on in which the two are equal, or n. */
static size_t next_equal(const uint8_t *a, const uint8_t *b, size_t i, size_t n)
{
    while (i + sizeof(uint64_t) <= n && !has_zero_byte(differences(a + i, b + i)))
        i += sizeof(uint64_t);
    while (i < n && a[i] != b[i])
        i++;
    return i;
}

size_t gaia_diff_runs(const uint8_t *twin, const uint8_t *mine, size_t n, struct gaia_diff_run *runs,
                      size_t max)
{
    size_t count = 0;
    size_t start, end;

    assert(n <= GAIA_PAGE_SIZE);
    for (start = next_difference(twin, mine, 0, n); start < n; start = next_difference(twin, mine, end, n)) {
        /* From start + 1: were mine stored to meanwhile, a run would still not be empty. */
        end = next_equal(twin, mine, start + 1, n);
        if (count < max)
            runs[count] =
                (struct gaia_diff_run){.offset = (uint16_t)start, .length = (uint16_t)(end - start)};
        count++;
    }
    return count;
}
