/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GAIAFS_FS_MEMORY_H
#define GAIAFS_FS_MEMORY_H

#include <stdint.h>

/* How many bytes of memory the daemon may use: the machine's, or what its control groups leave it. Who uses
 * more of those is not refused, but killed. */
uint64_t memory_available(void);

#endif
