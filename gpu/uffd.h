/* SPDX-License-Identifier: Apache-2.0 */
/* What newer kernels' userfaultfd has and Debian 12's headers lack (include/uapi/linux/userfaultfd.h). */
#ifndef GAIAFS_GPU_UFFD_H
#define GAIAFS_GPU_UFFD_H

#include <linux/userfaultfd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1 /* Linux 5.11 */
#endif

#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP ((__u64)1 << 1) /* Linux 6.4 */
#endif

#ifndef UFFDIO_POISON /* Linux 6.6 */
struct uffdio_poison {
    struct uffdio_range range;
    __u64 mode;
    __s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

#endif
