/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes as people write them: in options of a mount, and in the environment of a program. */
#ifndef GAIAFS_BASE_SIZE_H
#define GAIAFS_BASE_SIZE_H

#include <stdint.h>

/* Bytes of digits and an optional K, M, G or T, of either case. 0 on anything else, and on what does not fit:
 * none of those who ask has a use for 0 bytes. Any thread. */
uint64_t size_parse(const char *text);

#endif
