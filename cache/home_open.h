/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent has open at its home, and what its programs do to it. */
#ifndef GAIAFS_CACHE_HOME_OPEN_H
#define GAIAFS_CACHE_HOME_OPEN_H

#include "cache/home.h"

/* OPEN: the file of a name, by the agent's number; -EEXIST: it has that already; -EMFILE: it has the file
 * open HOME_OPENS_MAX times (one that closes and opens again may have it a few times for a moment). */
#define HOME_OPENS_MAX 8u
int home_open_make(struct home_session *agent, const struct node_request *request, struct node_reply *reply);
/* CLOSE: takes it off the session's list; -ENOENT: somebody has done so before, or it never was there. */
int home_open_close(struct home_session *agent, uint32_t number);

/* With a reference, which home_open_put() ends; NULL: there is none. */
struct home_open *home_open_get(struct home_session *agent, uint32_t number);
void home_open_put(struct home_open *open);

/* What the agent is told of an operation on it: that the file was given up, and what the data directory says
 * with the same word is EIO. */
int home_open_said(const struct home_open *open, int result);

/* An operation on an open file, READ to SEEK and SYNC, FLUSH. */
int home_open_serve(struct home_session *agent, enum node_op op, const struct node_request *request,
                    struct node_reply *reply);

#endif
