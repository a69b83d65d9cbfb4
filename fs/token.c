/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/token.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/thread.h"
#include "fs/inode.h"

static time_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

void token_table_init(struct token_table *table)
{
    memset(table, 0, sizeof *table);
    lock_init(&table->lock, LOCK_TOKENS);
}

void token_table_free(struct token_table *table)
{
    for (unsigned i = 0; i < TOKENS_MAX; i++)
        if (table->slots[i].inode)
            inode_put(table->slots[i].inode);
    pthread_mutex_destroy(&table->lock);
}

int token_make(struct token_table *table, const struct token *wish, uint8_t secret_out[16])
{
    struct token token = *wish, old = {0};
    struct token *slot = &table->slots[0];

    if (getrandom(token.secret, sizeof token.secret, 0) != (ssize_t)sizeof token.secret)
        return -EIO;
    token.born = now();
    inode_get(token.inode);
    pthread_mutex_lock(&table->lock);
    for (unsigned i = 0; i < TOKENS_MAX; i++) {
        if (!table->slots[i].inode || token.born - table->slots[i].born > TOKEN_LIFE_S) {
            slot = &table->slots[i];
            break;
        }
        if (table->slots[i].born < slot->born)
            slot = &table->slots[i];
    }
    old = *slot;
    *slot = token;
    pthread_mutex_unlock(&table->lock);
    if (old.inode)
        inode_put(old.inode);
    memcpy(secret_out, token.secret, sizeof token.secret);
    return 0;
}

/* No early end: how long this takes says nothing of the secret. */
static bool same_secret(const uint8_t a[16], const uint8_t b[16])
{
    unsigned differ = 0;

    for (unsigned i = 0; i < 16; i++)
        differ |= a[i] ^ b[i];
    return !differ;
}

int token_take(struct token_table *table, const uint8_t secret[16], pid_t pid, uid_t uid,
               struct token *token_out)
{
    struct token token = {0};

    pthread_mutex_lock(&table->lock);
    for (unsigned i = 0; i < TOKENS_MAX; i++) {
        struct token *slot = &table->slots[i];
        if (slot->inode && same_secret(slot->secret, secret)) {
            token = *slot;
            slot->inode = NULL;
            break;
        }
    }
    pthread_mutex_unlock(&table->lock);
    if (!token.inode)
        return -EACCES;
    /* FUSE says which thread made the ioctl, the socket says which process connected. */
    if (token.uid != uid || now() - token.born > TOKEN_LIFE_S || !thread_is_of(pid, token.thread)) {
        inode_put(token.inode);
        return -EACCES;
    }
    *token_out = token;
    return 0;
}

void token_forget(struct token_table *table, const struct handle *handle)
{
    for (unsigned i = 0; i < TOKENS_MAX; i++) {
        struct inode *inode = NULL;
        pthread_mutex_lock(&table->lock);
        if (table->slots[i].inode && table->slots[i].handle == handle) {
            inode = table->slots[i].inode;
            table->slots[i].inode = NULL;
        }
        pthread_mutex_unlock(&table->lock);
        if (inode)
            inode_put(inode);
    }
}
