/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/descriptors.h"

#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/lock.h"

/* Guards the list; a fork takes it, so nobody is waited for while it is held. */
static pthread_mutex_t lock = LOCK_INITIALIZER(LOCK_DESCRIPTORS);
static LIST_HEAD(, descriptors) list = LIST_HEAD_INITIALIZER(list);

/* Nobody is asked for it, as the server of the file may not answer. 0 or an errno. */
static int look(int fd, struct descriptor_mark *mark_out)
{
    struct statx st;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &st))
        return errno;
    *mark_out = (struct descriptor_mark){st.stx_dev_major, st.stx_dev_minor, st.stx_ino};
    return 0;
}

struct descriptor_mark descriptor_mark(int fd)
{
    struct descriptor_mark mark = {0};

    if (fd >= 0)
        (void)look(fd, &mark);
    return mark;
}

static bool is_known(const struct descriptor_mark *mark)
{
    return mark->major || mark->minor || mark->file;
}

bool descriptor_is_ours(int fd, const struct descriptor_mark *mark)
{
    struct descriptor_mark now = {0};

    if (fd < 0)
        return false;
    int error = look(fd, &now);
    if (error || !is_known(mark))
        return error != EBADF;
    return now.major == mark->major && now.minor == mark->minor && now.file == mark->file;
}

static bool has_any(const struct descriptors *own)
{
    return own->fds[0] >= 0 || own->fds[1] >= 0;
}

int descriptors_copy(struct descriptors *own, int fd)
{
    pthread_mutex_lock(&lock);
    own->fds[0] = duplicate_above_standard(fd);
    int error = own->fds[0] < 0 ? -errno : 0;
    if (!error)
        LIST_INSERT_HEAD(&list, own, link);
    pthread_mutex_unlock(&lock);
    return error;
}

void descriptors_keep(struct descriptors *own, int beside, const struct descriptor_mark *beside_mark)
{
    struct descriptor_mark mark = descriptor_mark(own->fds[0]);

    pthread_mutex_lock(&lock); /* a child of a fork looks at it */
    own->mark = mark;
    own->beside_mark = *beside_mark;
    own->beside = beside;
    pthread_mutex_unlock(&lock);
}

/* Those that are not ours: the program has closed them. */
static void forget_others(struct descriptors *own)
{
    if (own->beside >= 0 &&
        (!descriptor_is_ours(own->fds[0], &own->mark) || !descriptor_is_ours(own->beside, &own->beside_mark)))
        own->fds[0] = own->fds[1] = -1;
}

int descriptors_receive(struct descriptors *own, int socket, struct gaia_message *message_out)
{
    struct pollfd wait = {.fd = socket, .events = POLLIN};
    int error, held[STDERR_FILENO + 1];

    do {
        while (poll(&wait, 1, -1) < 0 && errno == EINTR)
            ;
        pthread_mutex_lock(&lock);
        standard_hold(held);
        error = gaia_message_receive_now(socket, message_out, own->fds);
        standard_leave(held);
        if (has_any(own))
            LIST_INSERT_HEAD(&list, own, link);
        pthread_mutex_unlock(&lock);
    } while (error == -EAGAIN);
    return error;
}

void descriptors_end(struct descriptors *own, int other)
{
    bool replaced[GAIA_MESSAGE_FDS];

    if (!has_any(own))
        return;
    if (own->beside >= 0) {
        pthread_mutex_lock(&lock);
        forget_others(own);
        pthread_mutex_unlock(&lock);
    }
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        replaced[i] = own->fds[i] >= 0 && other >= 0 && dup3(other, own->fds[i], O_CLOEXEC) >= 0;
    pthread_mutex_lock(&lock);
    LIST_REMOVE(own, link);
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        if (replaced[i])
            close(own->fds[i]);
    pthread_mutex_unlock(&lock);
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        if (own->fds[i] >= 0 && !replaced[i])
            close(own->fds[i]);
    descriptors_begin(own);
}

void descriptors_before_fork(void)
{
    pthread_mutex_lock(&lock);
}

void descriptors_after_fork(bool child)
{
    struct descriptors *own;

    if (!child) {
        pthread_mutex_unlock(&lock);
        return;
    }
    lock_init(&lock, LOCK_DESCRIPTORS);
    while ((own = LIST_FIRST(&list))) {
        LIST_REMOVE(own, link);
        forget_others(own);
        for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
            if (own->fds[i] >= 0)
                close(own->fds[i]);
        descriptors_begin(own);
    }
}
