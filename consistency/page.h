/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes and the names of replicas that everything else is built on (docs/design.md, section 1). */
#ifndef GAIAFS_CONSISTENCY_PAGE_H
#define GAIAFS_CONSISTENCY_PAGE_H

#include <stdint.h>

#define GAIA_PAGE_SHIFT 12
#define GAIA_PAGE_SIZE 4096u /* bytes: the unit of versions and merging */
#define GAIA_UNIT_PAGES 16u  /* pages: the unit of metadata, and the default unit of a device fault */

/* Replicas: the holders of copies of a file's pages. */
#define GAIA_REPLICA_STORAGE 0u
#define GAIA_REPLICA_CPU 1u
#define GAIA_REPLICA_DEVICE 2u /* the first device; device k is replica 2 + k */

#define GAIA_SOFT_MAX 64u /* devices 0 to 63: soft:0 ... soft:63 */
#define GAIA_CUDA_MAX 16u /* devices 64 to 79: cuda:0 ... cuda:15 */
#define GAIA_NODE_MAX 64u /* devices 80 to 143: of other nodes, in the order in which they came */
#define GAIA_NODE_FIRST (GAIA_SOFT_MAX + GAIA_CUDA_MAX)
#define GAIA_DEVICES_MAX (GAIA_NODE_FIRST + GAIA_NODE_MAX)
/* A GPU may have two copies of a file: one that clients can write to, and one that they can't. */
#define GAIA_REPLICAS_MAX (GAIA_REPLICA_DEVICE + GAIA_DEVICES_MAX + GAIA_CUDA_MAX + GAIA_NODE_MAX)

#endif
