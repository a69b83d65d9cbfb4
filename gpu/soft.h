/* SPDX-License-Identifier: Apache-2.0 */
/* The soft device, the client's half: addresses are an ordinary mapping of the frames' memfd, registered with
 * userfaultfd. */
#ifndef GAIAFS_GPU_SOFT_H
#define GAIAFS_GPU_SOFT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Open a descriptor for this process's faults. traps_out: first stores can be trapped (Linux 6.4 and newer).
 * 0; -EPERM (no userfaultfd for this process), -ENOSYS (not in this kernel), or another negative errno. */
int gaia_soft_open_faults(int *faults_out, bool *traps_out);

/* Map length bytes (whole pages) of frames at offset and register them. 0 or a negative errno. */
int gaia_soft_reserve(int faults, int frames, size_t length, off_t offset, bool writable, void **address_out);

/* Unmap for good. */
void gaia_soft_free(void *address, size_t length);

/* Unmap, but keep the addresses from being used for something else; touches that wait get SIGSEGV. */
void gaia_soft_block(int faults, void *address, size_t length);

/* Whatever touches the range gets SIGBUS, now and later, also touches that wait for the daemon. */
void gaia_soft_kill(int faults, void *address, size_t length);

/* Touches that were refused are tried again (pages stay, first stores are trapped as before). */
void gaia_soft_refresh(void *address, size_t length);

#endif
