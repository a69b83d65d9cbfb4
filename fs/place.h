/* SPDX-License-Identifier: Apache-2.0 */
/* Where a file was found last: how it is opened again where there are no file handles (a filesystem without,
 * or a daemon that may not open them). What is there now may be another file: then it is not opened. */
#ifndef GAIAFS_FS_PLACE_H
#define GAIAFS_FS_PLACE_H

#include <stdbool.h>
#include <time.h>

struct file_key;
struct inode;
struct place;

/* key: of the file. NULL when memory is short, or the file can't be told from a later one. */
struct place *place_new(const struct inode *parent, const char *name, const struct file_key *key);
void place_free(struct place *place);
/* With the lock of the inode's shard held. Returns the one that is to be freed. */
struct place *place_set(struct inode *inode, struct place *place);

bool place_is_born(const struct place *place, const struct timespec *birth);

/* O_PATH, or a negative errno. -ESTALE: the file is not there any more; a lookup by its name finds it.
 */
int place_open(struct inode *inode);

#endif
