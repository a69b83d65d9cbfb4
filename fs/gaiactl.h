/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands of gaiactl share. */
#ifndef GAIAFS_FS_GAIACTL_H
#define GAIAFS_FS_GAIACTL_H

#include <stdbool.h>

/* 0; 1: not all that was printed is written. */
int printed(void);

/* The options of a command, getopt_long()'s way. -1: go on from optind; else the exit status: help was asked
 * for and is printed, or one is wrong. */
int command_options(int argc, char **argv, bool *json_out);

/* Bytes for people: three digits and a unit, in text, which is returned. */
const char *human(long long bytes, char text[16]);

/* gaiactl devices, with the arguments from there on. Returns the exit status: 0, 1 (it can't be printed) or 2
 * (wrong arguments). */
int devices_command(int argc, char **argv);

#endif
