/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that libgaia has for longer than a moment, or while it waits for a daemon, besides those of
 * sessions: copies of a program's descriptors, and those that a daemon has sent. The child of a fork closes
 * its copies of them: each is in the list exactly as long as it exists. */
#ifndef GAIAFS_GPU_DESCRIPTORS_H
#define GAIAFS_GPU_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "io/message.h"

/* What a descriptor is for. A program may close all of its descriptors, ours with them, and open others,
 * which have got their numbers then: these we neither use nor close. All zero: not known, and taken to be
 * ours. */
struct descriptor_mark {
    uint32_t major, minor;
    uint64_t file; /* of a file that the program can open, others may be the same */
};

/* None of an fd that is negative. */
struct descriptor_mark descriptor_mark(int fd);
/* A negative fd is not. */
bool descriptor_is_ours(int fd, const struct descriptor_mark *mark);

/* On the heap, where a child finds it. All but the link belongs to its owner. */
struct descriptors {
    LIST_ENTRY(descriptors) link;
    int fds[GAIA_MESSAGE_FDS];                /* -1: none */
    struct descriptor_mark mark, beside_mark; /* of the first, and of beside: descriptors_keep() */
    int beside;                               /* -1: all are taken to be ours */
};

/* There are none, and it is in no list; end() does nothing then. */
static inline void descriptors_begin(struct descriptors *own)
{
    own->fds[0] = own->fds[1] = own->beside = -1;
}

/* The first becomes one of the file of fd. 0 or a negative errno. */
int descriptors_copy(struct descriptors *own, int fd);

/* It will be there for long. By then the program may have closed it: it is closed only if it is ours, and so
 * is beside, of which no other can be the same. */
void descriptors_keep(struct descriptors *own, int beside, const struct descriptor_mark *beside_mark);

/* gaia_message_receive(), for an owner that has none yet. After an error there are none. */
int descriptors_receive(struct descriptors *own, int socket, struct gaia_message *message_out);

/* Closes them. Waits for the file's daemon, with no lock held. other: one of our descriptors whose closing
 * waits for nobody; it takes the number until that is known to be free. -1: there is none, and a fork in
 * between leaves the child its copy. */
void descriptors_end(struct descriptors *own, int other);

/* Around a fork: nothing is opened or closed. */
void descriptors_before_fork(void);
void descriptors_after_fork(bool child);

#endif
