/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.ptx, as a string of the program: see kernels.h. */
#include "gpu/kernels.h"

__asm__(".pushsection .rodata\n"
        ".globl gaia_kernels_ptx\n"
        ".hidden gaia_kernels_ptx\n"
        ".type gaia_kernels_ptx, @object\n"
        "gaia_kernels_ptx:\n"
        ".incbin \"gpu/kernels.ptx\"\n"
        ".byte 0\n"
        ".size gaia_kernels_ptx, . - gaia_kernels_ptx\n"
        ".popsection\n");
