/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that libgaia has for longer than a moment, or while it waits for a daemon, besides those of
 * sessions: copies of a program's descriptors, and those that a daemon has sent. The child of a fork closes
 * its copies of them: each is in the list exactly as long as it exists. */
#ifndef GAIAFS_GPU_DESCRIPTORS_H
#define GAIAFS_GPU_DESCRIPTORS_H

#include <stdbool.h>
#include <sys/queue.h>

#include "io/message.h"

/* On the heap, where a child finds it. All but the link belongs to its owner. */
struct descriptors {
    LIST_ENTRY(descriptors) link;
    int fds[GAIA_MESSAGE_FDS]; /* -1: none */
};

/* There are none, and it is in no list; end() does nothing then. */
static inline void descriptors_begin(struct descriptors *own)
{
    own->fds[0] = own->fds[1] = -1;
}

/* The first becomes one of the file of fd. 0 or a negative errno. */
int descriptors_copy(struct descriptors *own, int fd);

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
