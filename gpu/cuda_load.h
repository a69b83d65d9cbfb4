/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver, if this machine has one: opened while the program runs, so that the same binary works
 * where there is none. */
#ifndef GAIAFS_GPU_CUDA_LOAD_H
#define GAIAFS_GPU_CUDA_LOAD_H

#include "gpu/cuda_api.h"

#define CUDA_WHY_SIZE 160u

/* The oldest driver whose interface this is: that of CUDA 12.0, as 1000 * major + 10 * minor. */
#define CUDA_VERSION_LEAST 12000

/* Opens the driver and initializes it, once in a process; later calls give the same answer, except where
 * there was no driver, none that started, or no descriptor: then they look again. Any thread.
 *
 * api_out: the entry points, for the rest of the process. why_out: when there is no CUDA, a sentence for
 * people that says why, of at most CUDA_WHY_SIZE bytes. 0; -ENODEV: no driver, or one that is too old, or no
 * device; -EIO: the driver is there and does not start; -EMFILE, -ENFILE: no descriptor is left to open it
 * with; -ECHILD: it was started in the process that forked this one, and works only there. */
int cuda_load(const struct cuda_api **api_out, char why_out[CUDA_WHY_SIZE]);

/* Whether next to no descriptor is left: 0, -EMFILE or -ENFILE. For callers to whom the driver has refused
 * something that takes a descriptor, as the driver does not say why. */
int cuda_lacks_descriptors(void);

/* The driver's name of an error, for messages: a static string. */
const char *cuda_error_name(const struct cuda_api *api, CUresult error);

#endif
