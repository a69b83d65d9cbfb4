/* SPDX-License-Identifier: Apache-2.0 */
/* The mount's statistics as JSON: what `gaiactl stat` prints. */
#ifndef GAIAFS_FS_STAT_JSON_H
#define GAIAFS_FS_STAT_JSON_H

struct fs;

/* A descriptor of a file in memory that holds the text, from its start. Negative errno. */
int stat_json(struct fs *fs);

#endif
