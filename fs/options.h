/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of mount.gaiafs, as people, mount(8) and fstab write it. */
#ifndef GAIAFS_FS_OPTIONS_H
#define GAIAFS_FS_OPTIONS_H

#include <stdbool.h>

#include "cache/cache.h"
#include "io/members.h"

struct fs_options {
    struct cache_config cache;
    size_t inodes;    /* so many may be known; 0: as memory allows */
    size_t remember;  /* so many stay known after the kernel has forgotten them */
    double timeout_s; /* of the kernel's attributes and names */
    bool foreground;
    bool debug;
    bool read_only;
    bool no_atime, no_diratime;
    bool remount;
    unsigned long remount_flags; /* MS_* of mount(2) */
    bool allow_other;
    bool passthrough;     /* where the kernel and libfuse can, */
    bool passthrough_all; /* and what programs open that use devices, too (fs/programs.h) */
    bool log_syslog, log_given;
    bool unit_given;
    bool help, version;
    char *data;                 /* DATADIR as given */
    char *mountpoint;           /* as given */
    char *fsname;               /* NULL: data's path */
    char *subtype;              /* NULL: gaiafs; empty: none */
    char *mount_options;        /* comma-separated, for libfuse; NULL: none */
    char node[MEMBER_NAME_MAX]; /* which of the members this one is; "": one node */
    char *peers;                /* the list, or the path of its file, as given; NULL: one node */
    struct members *members;    /* what is in it; NULL: one node */
};

/* 0, or -EINVAL after the reason was logged. */
int options_parse(struct fs_options *options_out, int argc, char **argv);
/* The members are in a file, which can be read again. */
bool options_has_peers_file(const struct fs_options *options);
/* Other mounts may have the data directory, too. */
bool options_share_directory(const struct fs_options *options);
/* Whether a word is among the flags for libfuse. */
bool options_ask_for(const struct fs_options *options, const char *word);
void options_free(struct fs_options *options);
void options_print_help(void);

#endif
