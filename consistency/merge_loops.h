/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of merge.c for one width of vectors. Included once for each; private to merge.c, so without a
 * guard. LANES: the vector's type. NAME(x): x's name for this width. TARGET: attributes of every function.
 * Nothing branches on the bytes, so that a page in which two wrote alternate bytes costs no more than
 * another. */

/* Counters have a byte for each lane, and there is one for every second vector. */
_Static_assert(GAIA_PAGE_SIZE / (2 * sizeof(LANES)) <= UINT8_MAX, "a lane's counter would overflow");

TARGET static inline LANES NAME(load)(const uint8_t *bytes)
{
    LANES v;

    memcpy(&v, bytes, sizeof(v));
    return v;
}

TARGET static inline size_t NAME(sum_of_lanes)(LANES v)
{
    const uint64_t even = 0x00ff00ff00ff00ffu;
    uint64_t words[sizeof(v) / sizeof(uint64_t)];
    uint64_t sums = 0; /* four of 16 bits */

    memcpy(words, &v, sizeof(v));
    for (size_t i = 0; i < sizeof(v) / sizeof(words[0]); i++)
        sums += (words[i] & even) + ((words[i] >> 8) & even);
    return (sums * 0x0001000100010001u) >> 48;
}

/* Merges one vector; adds 1 to each lane of kept whose byte of home stays as it is. */
TARGET static inline void NAME(merge_lanes)(uint8_t *home, const uint8_t *twin, const uint8_t *mine,
                                            LANES *kept)
{
    LANES old = NAME(load)(home);
    LANES m = NAME(load)(mine);
    LANES same = (LANES)(m == NAME(load)(twin)); /* lanes for which it holds are all ones, which is -1 */
    LANES merged = (old & same) | (m & ~same);

    *kept -= (LANES)(merged == old);
    memcpy(home, &merged, sizeof(merged));
}

TARGET static size_t NAME(merge)(uint8_t *home, const uint8_t *twin, const uint8_t *mine, size_t n)
{
    const size_t width = sizeof(LANES);
    LANES even = {0}, odd = {0};
    size_t changed, i;

    for (i = 0; i + 2 * width <= n; i += 2 * width) {
        NAME(merge_lanes)(home + i, twin + i, mine + i, &even);
        NAME(merge_lanes)(home + i + width, twin + i + width, mine + i + width, &odd);
    }
    changed = i - NAME(sum_of_lanes)(even) - NAME(sum_of_lanes)(odd);
    for (; i < n; i++) {
        uint8_t merged = mine[i] == twin[i] ? home[i] : mine[i];

        changed += merged != home[i];
        home[i] = merged;
    }
    return changed;
}

/* The bits in which the 4 vectors at a and b differ, laid over each other. */
TARGET static inline LANES NAME(differing_bits)(const uint8_t *a, const uint8_t *b)
{
    const size_t width = sizeof(LANES);

    return (NAME(load)(a) ^ NAME(load)(b)) | (NAME(load)(a + width) ^ NAME(load)(b + width)) |
           (NAME(load)(a + 2 * width) ^ NAME(load)(b + 2 * width)) |
           (NAME(load)(a + 3 * width) ^ NAME(load)(b + 3 * width));
}

/* Not memcmp(): it may rely on bytes that keep still, and a device may be storing to a page that is looked
 * at. */
TARGET static bool NAME(differs)(const uint8_t *a, const uint8_t *b, size_t n)
{
    const size_t width = sizeof(LANES);
    size_t i;

    for (i = 0; i + 4 * width <= n; i += 4 * width) {
        LANES bits = NAME(differing_bits)(a + i, b + i);
        uint64_t words[sizeof(bits) / sizeof(uint64_t)];
        uint64_t any = 0;

        memcpy(words, &bits, sizeof(bits));
        for (size_t j = 0; j < sizeof(bits) / sizeof(words[0]); j++)
            any |= words[j];
        if (any)
            return true;
    }
    for (; i < n; i++) {
        if (a[i] != b[i])
            return true;
    }
    return false;
}
