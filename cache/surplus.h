/* SPDX-License-Identifier: Apache-2.0 */
/* What clients have put into a replica's frames beside what was placed there. Who may store to a soft
 * device's frames has a descriptor of their memory, and fallocate(), write() or a mapping that nobody serves
 * fill what is absent, or what is past the end of the file: memory that no capacity counts, and that would
 * stay for as long as the file is known. While somebody maps the file it is left alone: who does it can do it
 * again at once. Frames on other nodes are not looked at: there it is not known what was placed. */
#ifndef GAIAFS_CACHE_SURPLUS_H
#define GAIAFS_CACHE_SURPLUS_H

#include "cache/replica.h"

/* The replica's last client has gone; others may come meanwhile. What is more than what is present or about
 * to be is freed, and counted in cache->surplus. No lock is held. */
void surplus_free(struct replica *replica);

#endif
