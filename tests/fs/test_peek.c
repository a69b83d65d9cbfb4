/* SPDX-License-Identifier: Apache-2.0 */
/* Peeks that are answered in time, late, and never: nothing is left of any (with a sanitizer that looks for
 * leaks). The kernel and libfuse are stood in for. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "fs/peek.h"

static enum { AT_ONCE, LATER, REFUSED } manner;
static void *asked;

static void answer(const char *text)
{
    struct fuse_bufvec bytes = FUSE_BUFVEC_INIT(strlen(text));

    bytes.buf[0].mem = (void *)(uintptr_t)text;
    op_retrieve_reply(NULL, asked, 0, 0, &bytes);
    asked = NULL;
}

static pthread_t answerer;

static void *answer_at_once(void *argument)
{
    answer("bytes");
    return argument;
}

int fuse_lowlevel_notify_retrieve(struct fuse_session *session, fuse_ino_t nodeid, size_t size, off_t offset,
                                  void *cookie)
{
    (void)session;
    (void)nodeid;
    (void)size;
    (void)offset;
    if (manner == REFUSED)
        return -ENODEV;
    asked = cookie;
    if (manner == AT_ONCE)
        assert_int_equal(pthread_create(&answerer, NULL, answer_at_once, NULL), 0);
    return 0;
}

void fuse_reply_none(fuse_req_t req)
{
    (void)req;
}

static ssize_t peek(char bytes_out[16])
{
    static struct fs fs;
    static struct inode inode = {.fs = &fs};

    if (!fs.serving)
        lock_rw_init(&fs.notify_gate, LOCK_NOTIFY, true);
    fs.serving = true;
    return peek_kernel(&fs, &inode, 0, 16, bytes_out);
}

static void test_answers(void **state)
{
    char bytes[16];

    (void)state;
    manner = AT_ONCE;
    assert_int_equal(peek(bytes), 5);
    assert_memory_equal(bytes, "bytes", 5);
    pthread_join(answerer, NULL);
    manner = REFUSED;
    assert_int_equal(peek(bytes), -ENODEV);
    manner = LATER;
    assert_int_equal(peek(bytes), -ETIMEDOUT);
    answer("late");
    assert_int_equal(peek(bytes), -ETIMEDOUT); /* and never answered */
    asked = NULL;
    assert_int_equal(peek_end(), 1);
    assert_int_equal(peek_end(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
