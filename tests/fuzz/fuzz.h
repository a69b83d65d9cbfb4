/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzzers share. Each is one function over bytes, which it reads as operations and their numbers:
 * libFuzzer calls it (make fuzz), or main.c with bytes of a random generator. */
#ifndef GAIAFS_TESTS_FUZZ_FUZZ_H
#define GAIAFS_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* How many inputs main.c tries without arguments: about a second's worth. */
extern const unsigned fuzz_runs;

/* In any thread. */
#define MUST(condition)                                                             \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                \
        }                                                                           \
    } while (0)

struct input {
    const uint8_t *at;
    size_t left;
};

static inline void take_bytes(struct input *input, void *out, size_t n)
{
    size_t there = n < input->left ? n : input->left;

    memcpy(out, input->at, there);
    memset((uint8_t *)out + there, 0, n - there); /* behind the end all is zero */
    input->at += there;
    input->left -= there;
}

static inline uint8_t take_u8(struct input *input)
{
    uint8_t value;

    take_bytes(input, &value, sizeof value);
    return value;
}

static inline uint32_t take_u16(struct input *input)
{
    uint16_t value;

    take_bytes(input, &value, sizeof value);
    return value;
}

static inline uint64_t take_u64(struct input *input)
{
    uint64_t value;

    take_bytes(input, &value, sizeof value);
    return value;
}

/* A number such as programs that err, or lie, say: a small one, one beside a power of two, or any. */
static inline uint64_t take_odd(struct input *input)
{
    uint8_t kind = take_u8(input);

    if (kind < 128)
        return kind % 32;
    if (kind < 224) {
        uint64_t power = UINT64_C(1) << (take_u8(input) & 63);
        return power - 2 + kind % 4;
    }
    return take_u64(input);
}

/* Text: a byte is one of the words, while there are so many, or itself. *length_out bytes, and a NUL behind
 * them; the caller frees: so a checker of memory sees who reads on. */
static inline char *take_text(struct input *input, const char *const *words, unsigned count, size_t most,
                              size_t *length_out)
{
    char *text = malloc(most + 1), *exact;
    size_t length = 0;

    MUST(text);
    while (input->left) {
        uint8_t byte = take_u8(input);
        const char *piece = byte < count ? words[byte] : (const char[]){(char)byte, 0};
        size_t more = strlen(piece);
        if (length + more > most)
            break;
        memcpy(text + length, piece, more);
        length += more;
    }
    text[length] = '\0';
    exact = realloc(text, length + 1);
    MUST(exact);
    *length_out = length;
    return exact;
}

#endif
