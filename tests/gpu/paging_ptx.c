/* SPDX-License-Identifier: Apache-2.0 */
/* paging_kernels.ptx, as a string of the program: see paging_program.h. */
extern const char paging_kernels_ptx[];

__asm__(".pushsection .rodata\n"
        ".globl paging_kernels_ptx\n"
        ".hidden paging_kernels_ptx\n"
        ".type paging_kernels_ptx, @object\n"
        "paging_kernels_ptx:\n"
        ".incbin \"tests/gpu/paging_kernels.ptx\"\n"
        ".byte 0\n"
        ".size paging_kernels_ptx, . - paging_kernels_ptx\n"
        ".popsection\n");
