/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/peek.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define PEEK_MAX 4096u
/* The answer needs a free worker: no more than PEEKS_MAX of them wait here. */
#define WAIT_MS 2000
#define PEEKS_MAX 6

struct peek {
    LIST_ENTRY(peek) link;
    pthread_cond_t answered;
    bool done;
    unsigned references; /* the asker and the answer */
    size_t count;
    uint8_t bytes[PEEK_MAX];
};

static pthread_mutex_t lock = LOCK_INITIALIZER(LOCK_PEEK); /* guards what follows, and all of each peek */
static LIST_HEAD(, peek) peeks = LIST_HEAD_INITIALIZER(peeks);
static unsigned waiting;

/* Lock held. */
static void peek_put(struct peek *peek, unsigned references)
{
    peek->references -= references;
    if (peek->references)
        return;
    LIST_REMOVE(peek, link);
    pthread_cond_destroy(&peek->answered);
    free(peek);
}

void op_retrieve_reply(fuse_req_t req, void *cookie, fuse_ino_t nodeid, off_t offset,
                       struct fuse_bufvec *data)
{
    struct peek *peek = cookie;
    struct fuse_bufvec to = FUSE_BUFVEC_INIT(PEEK_MAX);

    (void)nodeid;
    (void)offset;
    pthread_mutex_lock(&lock);
    to.buf[0].mem = peek->bytes;
    ssize_t n = fuse_buf_copy(&to, data, 0);
    peek->count = n > 0 ? (size_t)n : 0;
    peek->done = true;
    pthread_cond_signal(&peek->answered);
    peek_put(peek, 1);
    pthread_mutex_unlock(&lock);
    fuse_reply_none(req);
}

/* Lock held. */
static ssize_t wait_answer(struct peek *peek, void *bytes_out, size_t length)
{
    struct timespec until = lock_wait_until(WAIT_MS);

    if (waiting == PEEKS_MAX)
        return -EBUSY;
    waiting++;
    while (!peek->done && pthread_cond_timedwait(&peek->answered, &lock, &until) != ETIMEDOUT)
        ;
    waiting--;
    if (!peek->done)
        return -ETIMEDOUT;
    ssize_t n = (ssize_t)(peek->count < length ? peek->count : length);
    memcpy(bytes_out, peek->bytes, (size_t)n);
    return n;
}

static struct peek *peek_new(void)
{
    struct peek *peek = calloc(1, sizeof(*peek));

    if (!peek)
        return NULL;
    peek->references = 2;
    lock_condition_init(&peek->answered);
    pthread_mutex_lock(&lock);
    LIST_INSERT_HEAD(&peeks, peek, link);
    pthread_mutex_unlock(&lock);
    return peek;
}

ssize_t peek_kernel(void *context, void *file_context, off_t offset, size_t length, void *bytes_out)
{
    struct fs *fs = context;
    ssize_t n = -ENOTCONN;

    if (length > PEEK_MAX)
        return -EINVAL;
    struct peek *peek = peek_new();
    if (!peek)
        return -ENOMEM;
    /* At the end somebody waits to close the gate, and perhaps for this WRITE too: not being let in is no
     * answer. */
    if (!pthread_rwlock_tryrdlock(&fs->notify_gate)) {
        if (fs->serving)
            n = fuse_lowlevel_notify_retrieve(fs->session, nodeid_of(file_context), length, offset, peek);
        pthread_rwlock_unlock(&fs->notify_gate);
    }
    bool asked = n >= 0; /* else nobody will answer */
    pthread_mutex_lock(&lock);
    if (asked)
        n = wait_answer(peek, bytes_out, length);
    peek_put(peek, asked ? 1 : 2);
    pthread_mutex_unlock(&lock);
    return n;
}

unsigned peek_end(void)
{
    unsigned count = 0;

    pthread_mutex_lock(&lock);
    for (struct peek *peek = LIST_FIRST(&peeks), *next; peek; peek = next, count++) {
        next = LIST_NEXT(peek, link);
        peek_put(peek, 1);
    }
    pthread_mutex_unlock(&lock);
    return count;
}
