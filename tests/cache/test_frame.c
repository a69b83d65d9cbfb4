/* SPDX-License-Identifier: Apache-2.0 */
/* Twins' frames: nobody gets one that somebody has, and memory goes back while some are still out. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "cache/frame.h"
#include "tests/gate.h"

#define CHUNK_BYTES (FRAME_CHUNK * GAIA_PAGE_SIZE)

static void mark(struct frame_pool *pool, uint32_t frame, uint64_t value)
{
    uint64_t *words = (uint64_t *)(void *)frame_bytes(pool, frame);

    words[0] = value;
    words[GAIA_PAGE_SIZE / sizeof *words - 1] = ~value;
}

static void assert_marked(struct frame_pool *pool, uint32_t frame, uint64_t value)
{
    const uint64_t *words = (const uint64_t *)(void *)frame_bytes(pool, frame);

    assert_int_equal(words[0], value);
    assert_int_equal(words[GAIA_PAGE_SIZE / sizeof *words - 1], ~value);
}

/* Frames of the pool's area that have memory. */
static size_t with_memory(const struct frame_pool *pool)
{
    size_t n = (size_t)pool->used * FRAME_CHUNK, found = 0;
    unsigned char *state = calloc(n ? n : 1, 1);

    assert_non_null(state);
    assert_int_equal(mincore(pool->area, n * GAIA_PAGE_SIZE, state), 0);
    for (size_t i = 0; i < n; i++)
        found += state[i] & 1;
    free(state);
    return found;
}

static void wait_for_memory(const struct frame_pool *pool, size_t most)
{
    for (unsigned ms = 0; with_memory(pool) > most && ms < 10000; ms++)
        usleep(1000);
    assert_in_range(with_memory(pool), 0, most);
}

/* Every frame of a small pool once, and no more. */
static void test_all_of_them(void **state)
{
    static uint32_t frames[4 * FRAME_CHUNK];
    struct frame_pool pool;
    uint32_t frame;
    size_t n = 0;

    (void)state;
    assert_int_equal(frame_pool_init(&pool, 2 * CHUNK_BYTES + 1), 0);
    while (!frame_get(&pool, &frame)) {
        assert_in_range(n, 0, 4 * FRAME_CHUNK - 1);
        frames[n] = frame;
        mark(&pool, frame, n++);
    }
    assert_int_equal(frame_get(&pool, &frame), -ENOMEM);
    assert_int_equal(n, 3 * FRAME_CHUNK);
    assert_int_equal(frame_pool_held(&pool), n);
    for (size_t i = 0; i < n; i++)
        assert_marked(&pool, frames[i], i);
    frame_put(&pool, frames[700]);
    assert_int_equal(frame_get(&pool, &frame), 0);
    assert_int_equal(frame, frames[700]);
    for (size_t i = 0; i < n; i++)
        frame_put(&pool, frames[i]);
    assert_int_equal(frame_pool_held(&pool), 0);
    frame_pool_free(&pool);
    frame_pool_free(&pool); /* nothing is left of it */
}

/* All but one come back: so does their memory, but for what the next ones find warm, and for the chunk of the
 * one that stays. */
static void test_memory_goes_back(void **state)
{
    enum { CHUNKS = 40 };
    static uint32_t frames[CHUNKS * FRAME_CHUNK];
    struct frame_pool pool;
    const size_t n = sizeof frames / sizeof *frames, stays = 17 * FRAME_CHUNK + 5;

    (void)state;
    assert_int_equal(frame_pool_init(&pool, 2 * CHUNKS * CHUNK_BYTES), 0);
    for (unsigned round = 0; round < 3; round++) {
        for (size_t i = 0; i < n; i++) {
            if (round && i == stays)
                continue;
            assert_int_equal(frame_get(&pool, &frames[i]), 0);
            mark(&pool, frames[i], i);
        }
        assert_int_equal(with_memory(&pool), n);
        for (size_t i = 0; i < n; i++)
            assert_marked(&pool, frames[i], i);
        for (size_t i = 0; i < n; i++)
            if (i != stays)
                frame_put(&pool, frames[i]);
        wait_for_memory(&pool, (FRAME_CHUNKS_WARM + 1) * FRAME_CHUNK);
        assert_in_range(with_memory(&pool), FRAME_CHUNKS_WARM * FRAME_CHUNK, n); /* not all of it */
        assert_int_equal(pool.used, CHUNKS); /* what was given back is used again before new addresses are */
        assert_marked(&pool, frames[stays], stays);
    }
    frame_put(&pool, frames[stays]);
    frame_pool_free(&pool);
}

#define OWNERS 3u
#define OWNED (20u * FRAME_CHUNK)

struct owner {
    struct frame_pool *pool;
    unsigned seed;
    uint64_t name;
    size_t wrong;
};

/* Takes and puts back at random, some thousands at a time, so that chunks run empty and are trimmed beside
 * the others. A frame that two have would lose a mark, and so would one that is trimmed while it is out. */
static void *own(void *argument)
{
    struct owner *owner = argument;
    uint32_t *frames = calloc(OWNED, sizeof *frames);
    size_t n = 0;

    for (unsigned round = 0; frames && round < so_many(60); round++) {
        size_t wish = (size_t)rand_r(&owner->seed) % OWNED;
        for (; n < wish && !frame_get(owner->pool, &frames[n]); n++)
            mark(owner->pool, frames[n], owner->name + frames[n]);
        for (; n > wish; n--) {
            const uint64_t *word = (const uint64_t *)(void *)frame_bytes(owner->pool, frames[n - 1]);
            owner->wrong += *word != owner->name + frames[n - 1];
            frame_put(owner->pool, frames[n - 1]);
        }
    }
    for (; n; n--)
        frame_put(owner->pool, frames[n - 1]);
    owner->wrong += !frames;
    free(frames);
    return NULL;
}

static void test_several_owners(void **state)
{
    struct owner owners[OWNERS];
    pthread_t threads[OWNERS];
    struct frame_pool pool;
    unsigned seed = (unsigned)time(NULL);

    (void)state;
    print_message("seed %u\n", seed);
    assert_int_equal(frame_pool_init(&pool, OWNERS * OWNED * GAIA_PAGE_SIZE), 0);
    for (unsigned i = 0; i < OWNERS; i++) {
        owners[i] = (struct owner){.pool = &pool, .seed = seed + i, .name = (uint64_t)(i + 1) << 32};
        assert_int_equal(pthread_create(&threads[i], NULL, own, &owners[i]), 0);
    }
    for (unsigned i = 0; i < OWNERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(owners[i].wrong, 0);
    }
    assert_int_equal(frame_pool_held(&pool), 0);
    wait_for_memory(&pool, FRAME_CHUNKS_WARM * FRAME_CHUNK);
    frame_pool_free(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_of_them),
        cmocka_unit_test(test_memory_goes_back),
        cmocka_unit_test(test_several_owners),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
