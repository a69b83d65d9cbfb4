/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that tell where they belong: by a salt and their offset. Eight of them are made at a time, as a
 * sanitizer and an emulated processor count each step. */
#ifndef GAIAFS_TESTS_BYTES_H
#define GAIAFS_TESTS_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/random.h"

/* The eight that one at this offset is one of. */
static inline uint64_t word_at(uint64_t salt, uint64_t offset)
{
    return htole64(mix(salt ^ (offset >> 3)));
}

static inline uint8_t byte_at(uint64_t salt, uint64_t offset)
{
    uint64_t word = word_at(salt, offset);

    return ((const uint8_t *)&word)[offset & 7];
}

static inline void fill_at(uint8_t *bytes, size_t length, uint64_t salt, uint64_t offset)
{
    for (size_t i = 0, part; i < length; i += part) {
        size_t within = (offset + i) & 7;
        uint64_t word = word_at(salt, offset + i);

        part = length - i < 8 - within ? length - i : 8 - within;
        memcpy(bytes + i, (const uint8_t *)&word + within, part);
    }
}

static inline bool matches(const uint8_t *bytes, size_t length, uint64_t salt, uint64_t offset)
{
    for (size_t i = 0, part; i < length; i += part) {
        size_t within = (offset + i) & 7;
        uint64_t word = word_at(salt, offset + i);

        part = length - i < 8 - within ? length - i : 8 - within;
        if (memcmp(bytes + i, (const uint8_t *)&word + within, part) != 0)
            return false;
    }
    return true;
}

#endif
