/* SPDX-License-Identifier: Apache-2.0 */
/* File handles: how a file is found again without a descriptor of it. Each filesystem that is mounted in the
 * data directory (a volume) has one descriptor, through which its handles are opened.
 *
 * A handle is only ever made of a descriptor that was resolved beneath the data directory, so opening one
 * leads nowhere else; but as a descriptor would, it goes on leading to a file that was moved out of it. */
#ifndef GAIAFS_FS_VOLUME_H
#define GAIAFS_FS_VOLUME_H

#include <fcntl.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>

#include "base/lock.h"

struct volume;

struct volumes {
    pthread_mutex_t lock; /* guards the list and what is in it; a leaf */
    LIST_HEAD(, volume) list;
    dev_t top; /* the root's; set before anybody else asks */
};

/* What the mount refuses that a file is on (nosuid, nodev). */
#define REFUSES_SET_IDS 1u
#define REFUSES_DEVICES 2u

/* Which file it is: an inode number is used again for another file, a handle is not. */
struct file_key {
    dev_t dev;
    ino_t ino;
    struct volume *volume; /* with a reference; or NULL, and no handle */
    int handle_type;
    unsigned handle_bytes; /* 0: there is none, or none that can be opened */
    unsigned char handle[MAX_HANDLE_SZ];
    /* Without a handle: the time of birth tells a file from a later one with its inode number. */
    bool has_birth;
    struct timespec birth;
    unsigned refuses; /* REFUSES_*; without a volume nothing where the root is, too */
};

void volumes_init(struct volumes *volumes);
void volumes_destroy(struct volumes *volumes);

/* The key of fd (O_PATH will do), whose fstat() is st. 0 or a negative errno, when there may be a handle
 * but it can't be had now. */
int file_key_make(struct volumes *volumes, int fd, const struct stat *st, struct file_key *key_out);
/* When the file was made, or what stands for that on overlayfs. An error: the filesystem does not know. */
int file_birth(int fd, struct timespec *birth_out);
/* Whether it is on a filesystem that reports nothing at close(), and knows every change of a file at once:
 * NFS, CIFS, FUSE and others don't. */
bool file_is_local(int fd);
bool volume_is_local(const struct volume *volume); /* NULL: no */
/* Whether a file may get the inode number of one that is deleted, though we have a descriptor of that: of an
 * O_PATH one an NFS server does not know. */
bool volume_reuses_numbers(const struct volume *volume);
void volume_put(struct volumes *volumes, struct volume *volume);

/* The file of a handle as O_PATH: a descriptor or a negative errno, -ESTALE when it was deleted. */
int volume_open(const struct volume *volume, int handle_type, const unsigned char *handle,
                unsigned handle_bytes);

#endif
