/* SPDX-License-Identifier: Apache-2.0 */
/* The soft device, the client's half: addresses are an ordinary mapping of the frames' memfd, registered with
 * userfaultfd. The rest of it is behind gpu/driver.h. */
#ifndef GAIAFS_GPU_SOFT_H
#define GAIAFS_GPU_SOFT_H

#include <stdbool.h>

/* Open a descriptor for this process's faults. traps_out: first stores can be trapped (Linux 6.4 and newer).
 * 0; -EPERM (no userfaultfd for this process), -ENOSYS (not in this kernel), or another negative errno. */
int gaia_soft_open_faults(int *faults_out, bool *traps_out);

#endif
