/* SPDX-License-Identifier: Apache-2.0 */
/* A page of the daemon's memory that clients may read but not write. */
#ifndef GAIAFS_BASE_SHARED_PAGE_H
#define GAIAFS_BASE_SHARED_PAGE_H

#include <sys/types.h>

#define SHARED_PAGE_SIZE 4096u

/* page_out: the page, zeroed, for who makes it; munmap()ed by the caller. fd_out: a descriptor for clients,
 * open for reading only; closed by the caller. name: what /proc shows. 0, or -ENOMEM, -EMFILE, -ENFILE or
 * another errno of memfd_create(), ftruncate(), fchmod(), mmap() and open(); nothing is kept then. */
int shared_page_make(const char *name, void **page_out, int *fd_out);

/* The client's side: the page, mapped for reading only, or NULL with errno set. munmap()ed by the caller. */
void *shared_page_look(int fd);

/* The mode of a memfd that clients get read-only descriptors of. The daemon opens it anew: as root, whatever
 * the mode; as another user as the owner, whose programs could do anything to the daemon anyway. */
mode_t shared_memory_mode(void);

#endif
