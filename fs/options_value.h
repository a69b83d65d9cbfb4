/* SPDX-License-Identifier: Apache-2.0 */
/* Options and their values, for the files that have tables of them. What is wrong is logged here. */
#ifndef GAIAFS_FS_OPTIONS_VALUE_H
#define GAIAFS_FS_OPTIONS_VALUE_H

#include <stdbool.h>
#include <stddef.h>

#include "fs/options.h"

/* What an option does; one with neither is accepted and means nothing. */
struct mount_option {
    const char *text; /* a template of fuse_opt.h: ends with '=' where a value follows */
    /* option: as given, "unit=4K". 0, or -1 after the reason was logged. */
    int (*parse)(struct fs_options *options, const char *option);
    size_t flag; /* where in struct fs_options the bool is that it sets; 0: none */
};

#define OPTION_FLAG(member) offsetof(struct fs_options, member)

/* What follows the '='. */
const char *option_value(const char *option);
/* These give 0, or -1 after the reason was logged. */
int option_number(const char *option, size_t least, size_t *number_out);
int option_count(const char *option, unsigned least, unsigned most, unsigned *number_out);
/* One of two words. */
int option_choice(const char *option, const char *first, const char *second, bool *is_second);
/* A copy of the text instead of what stood there. */
int option_set_text(char **text, const char *value);

#endif
