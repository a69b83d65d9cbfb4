/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens: what lets a process map a file. One is given by an ioctl on the process's own open descriptor,
 * carries that descriptor's access mode, is good for that process and user, once, and for a short time. */
#ifndef GAIAFS_FS_TOKEN_H
#define GAIAFS_FS_TOKEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/lock.h"

struct handle;
struct inode;

#define TOKENS_MAX 1024u
#define TOKEN_LIFE_S 30

struct token {
    uint8_t secret[16];
    struct inode *inode; /* a reference; NULL: the slot is free */
    bool readable, writable;
    const struct handle *handle; /* of the descriptor it was asked with: it lives no longer than that */
    pid_t thread;                /* that asked, as FUSE tells it */
    uid_t uid;
    time_t born;
    uint64_t number; /* counts all that were made: the lowest is the oldest */
};

struct token_table {
    pthread_mutex_t lock; /* guards all below; inode_put() is called without it */
    struct token slots[TOKENS_MAX];
    uint64_t made;
};

void token_table_init(struct token_table *table);
void token_table_free(struct token_table *table);

/* Make a token. When the table is full another one is removed for it: the oldest of the user who has most, so
 * that a user who asks for many does not take those of others. Takes a reference of the inode. 0 or a
 * negative errno. */
int token_make(struct token_table *table, const struct token *wish, uint8_t secret_out[16]);
/* Take a token out of the table, if process `pid` of user `uid` may use it: its inode's reference goes to the
 * caller. 0, -EKEYEXPIRED (there is none, or none any more: a process that still has the descriptor may ask
 * for another) or -EACCES (it is somebody else's). */
int token_take(struct token_table *table, const uint8_t secret[16], pid_t pid, uid_t uid,
               struct token *token_out);
/* The descriptor is closed: nobody will use its tokens, and what they hold must not wait for the next client.
 */
void token_forget(struct token_table *table, const struct handle *handle);

#endif
