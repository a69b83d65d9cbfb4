/* SPDX-License-Identifier: Apache-2.0 */
/* Files of memory. */
#ifndef GAIAFS_BASE_MEMORY_FILE_H
#define GAIAFS_BASE_MEMORY_FILE_H

/* A memfd, closed by exec(), that nobody can execute: Linux 6.3 to 6.5 give no other kind with
 * vm.memfd_noexec=2, later ones complain in their log of programs that do not say which kind; earlier kernels
 * know no difference. Such a memfd can be sealed, also without MFD_ALLOW_SEALING, by whoever can open it for
 * writing. flags: further ones. The descriptor, or -1 and memfd_create()'s errno. Any thread. */
int memory_file(const char *name, unsigned flags);

#endif
