/* SPDX-License-Identifier: Apache-2.0 */
/* What is read of FUSE_INIT, and written into its answer, for passthrough. The answers to OPEN and CREATE are
 * the mount tests' (test_passthrough.py). */
#include "fs/open_reply.h"

#include <errno.h>
#include <linux/fuse.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define PASSTHROUGH (1u << 5) /* bit 37 */

struct init {
    struct fuse_in_header header;
    struct fuse_init_in in;
};

struct answer {
    struct fuse_out_header header;
    struct fuse_init_out out;
};

/* max_stack_depth, which Debian 12's linux/fuse.h does not have. */
#define DEPTH_AT (offsetof(struct answer, out.flags2) + sizeof(uint32_t))

static struct init make_init(void)
{
    return (struct init){.header = {.len = sizeof(struct init), .opcode = FUSE_INIT},
                         .in = {.major = 7, .minor = 45, .flags = FUSE_INIT_EXT, .flags2 = PASSTHROUGH}};
}

static void test_an_offer(void **state)
{
    struct init init = make_init();
    const size_t least = offsetof(struct init, in.flags2) + sizeof(init.in.flags2);

    (void)state;
    assert_true(open_reply_is_offered(&init, sizeof(init)));
    assert_true(open_reply_is_offered(&init, least));
    for (size_t size = 0; size < least; size++)
        assert_false(open_reply_is_offered(&init, size));
    init.in.flags2 = ~PASSTHROUGH;
    assert_false(open_reply_is_offered(&init, sizeof(init)));
    init = make_init();
    init.in.flags = ~FUSE_INIT_EXT; /* flags2 is not the kernel's word then */
    assert_false(open_reply_is_offered(&init, sizeof(init)));
    init = make_init();
    init.header.opcode = FUSE_OPEN;
    assert_false(open_reply_is_offered(&init, sizeof(init)));
}

/* flags2 of a libfuse that never heard of it may be anything, and what else it said stays. */
static void test_it_is_taken(void **state)
{
    struct answer before = {
        .out = {.major = 7, .minor = 38, .flags = FUSE_ASYNC_READ, .flags2 = 3, .max_write = 4096}};
    struct answer after = before;
    uint32_t depth;

    (void)state;
    assert_true(open_reply_take_offer(&after, sizeof(after)));
    assert_int_equal(after.out.flags, FUSE_ASYNC_READ | FUSE_INIT_EXT);
    assert_int_equal(after.out.flags2, PASSTHROUGH);
    memcpy(&depth, (char *)&after + DEPTH_AT, sizeof(depth));
    assert_int_equal(depth, 1);
    memset((char *)&after + DEPTH_AT, 0, sizeof(depth));
    after.out.flags = before.out.flags;
    after.out.flags2 = before.out.flags2;
    assert_memory_equal(&after, &before, sizeof(after));

    before.out.flags |= FUSE_INIT_EXT;
    after = before;
    assert_true(open_reply_take_offer(&after, sizeof(after)));
    assert_int_equal(after.out.flags2, 3 | PASSTHROUGH);
}

static void test_it_is_not_taken(void **state)
{
    const size_t least = DEPTH_AT + sizeof(uint32_t);
    struct answer before, after;

    (void)state;
    memset(&before, 0, sizeof(before));
    for (size_t size = 0; size < least; size++) {
        after = before;
        assert_false(open_reply_take_offer(&after, size));
        assert_memory_equal(&after, &before, sizeof(after));
    }
    before.header.error = -EPROTO;
    after = before;
    assert_false(open_reply_take_offer(&after, sizeof(after)));
    assert_memory_equal(&after, &before, sizeof(after));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_offer),
        cmocka_unit_test(test_it_is_taken),
        cmocka_unit_test(test_it_is_not_taken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
