/* SPDX-License-Identifier: Apache-2.0 */
/* The options of the cache: its devices, and how bytes come into them. */
#ifndef GAIAFS_FS_OPTIONS_CACHE_H
#define GAIAFS_FS_OPTIONS_CACHE_H

#include "fs/options_value.h"

extern const struct mount_option options_cache[]; /* the last one has no text */

/* What holds when nothing is said. */
void options_cache_defaults(struct cache_config *cache);
/* Of a device, in bytes. */
uint64_t options_cache_default_capacity(void);
/* Every device must exist and hold a unit. 0, or -EINVAL after the reason was logged. */
int options_cache_check(const struct fs_options *options);

#endif
