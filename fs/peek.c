/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/peek.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PEEK_MAX 4096u
/* The answer needs a free worker: no more than PEEKS_MAX of them wait here. */
#define WAIT_MS 2000
#define PEEKS_MAX 6

struct peek {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t answered;
    bool done;
    unsigned references; /* the asker and the answer */
    size_t count;
    uint8_t bytes[PEEK_MAX];
};

static void peek_put(struct peek *peek)
{
    pthread_mutex_lock(&peek->lock);
    unsigned left = --peek->references;
    pthread_mutex_unlock(&peek->lock);
    if (left)
        return;
    pthread_cond_destroy(&peek->answered);
    pthread_mutex_destroy(&peek->lock);
    free(peek);
}

void op_retrieve_reply(fuse_req_t req, void *cookie, fuse_ino_t nodeid, off_t offset,
                       struct fuse_bufvec *data)
{
    struct peek *peek = cookie;
    struct fuse_bufvec to = FUSE_BUFVEC_INIT(PEEK_MAX);

    (void)nodeid;
    (void)offset;
    pthread_mutex_lock(&peek->lock);
    to.buf[0].mem = peek->bytes;
    ssize_t n = fuse_buf_copy(&to, data, 0);
    peek->count = n > 0 ? (size_t)n : 0;
    peek->done = true;
    pthread_cond_signal(&peek->answered);
    pthread_mutex_unlock(&peek->lock);
    peek_put(peek);
    fuse_reply_none(req);
}

static ssize_t wait_answer(struct peek *peek, void *bytes_out, size_t length)
{
    struct timespec until;
    ssize_t n = -ETIMEDOUT;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += WAIT_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&peek->lock);
    while (!peek->done && pthread_cond_timedwait(&peek->answered, &peek->lock, &until) != ETIMEDOUT)
        ;
    if (peek->done) {
        n = (ssize_t)(peek->count < length ? peek->count : length);
        memcpy(bytes_out, peek->bytes, (size_t)n);
    }
    pthread_mutex_unlock(&peek->lock);
    return n;
}

ssize_t peek_kernel(void *context, void *file_context, off_t offset, size_t length, void *bytes_out)
{
    static atomic_int peeks;
    struct fs *fs = context;
    struct peek *peek;
    ssize_t n = -ENOTCONN;

    if (length > PEEK_MAX)
        return -EINVAL;
    peek = calloc(1, sizeof(*peek));
    if (!peek)
        return -ENOMEM;
    peek->references = 2;
    lock_init(&peek->lock, LOCK_PEEK);
    pthread_cond_init(&peek->answered, NULL);
    /* At the end somebody waits to close the gate, and perhaps for this WRITE too: not being let in is no
     * answer. */
    if (!pthread_rwlock_tryrdlock(&fs->notify_gate)) {
        if (fs->serving)
            n = fuse_lowlevel_notify_retrieve(fs->session, nodeid_of(file_context), length, offset, peek);
        pthread_rwlock_unlock(&fs->notify_gate);
    }
    if (n < 0) {
        peek->references--; /* nobody will answer */
    } else {
        n = -EBUSY;
        if (atomic_fetch_add(&peeks, 1) < PEEKS_MAX)
            n = wait_answer(peek, bytes_out, length);
        atomic_fetch_sub(&peeks, 1);
    }
    peek_put(peek);
    return n;
}
