/* SPDX-License-Identifier: Apache-2.0 */
/* The options of several mounts of a data directory: whether there are others, who they are, and which one
 * this is. */
#ifndef GAIAFS_FS_OPTIONS_NODES_H
#define GAIAFS_FS_OPTIONS_NODES_H

#include "fs/options_value.h"

extern const struct mount_option options_nodes[]; /* the last one has no text */

/* Who the members are, and which of them this one is. 0, or -EINVAL after the reason was logged. */
int options_nodes_check(struct fs_options *options);

#endif
