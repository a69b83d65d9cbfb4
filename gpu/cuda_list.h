/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of this machine and what they can do, for `gaiactl devices`. */
#ifndef GAIAFS_GPU_CUDA_LIST_H
#define GAIAFS_GPU_CUDA_LIST_H

#include <jansson.h>

#include "gpu/cuda_load.h"

/* An array with an object for each GPU: device ("cuda:N"), name, pci ("" when the driver does not say),
 * total_bytes, compute_capability ("9.0"), multiprocessors, and `can`: an object of booleans by ability; and,
 * where files can't be mapped on it, not_used: a sentence. What could not be asked is missing, and `error`
 * says why. Returns a new reference; NULL: there is no CUDA, or no memory, and why_out says so. Any
 * thread. */
json_t *cuda_list(char why_out[CUDA_WHY_SIZE]);

#endif
