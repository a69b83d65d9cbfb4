/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/token.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/thread.h"
#include "fs/inode.h"

static time_t now(void)
{
    return (time_t)(clock_now_ns() / 1000000000);
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

/* What a user has of a full table. */
struct share {
    uid_t uid;
    unsigned tokens;
    struct token *oldest;
};

static struct share *share_of(struct share *shares, unsigned *count, uid_t uid)
{
    for (unsigned i = 0; i < *count; i++)
        if (shares[i].uid == uid)
            return &shares[i];
    shares[*count] = (struct share){.uid = uid};
    return &shares[(*count)++];
}

/* The user with most tokens is first; of users with as many, the one who has had one for longest. By the slot
 * it would be the same user again and again: the newest. */
static bool is_taken_from_first(const struct share *a, const struct share *b)
{
    if (a->tokens != b->tokens)
        return a->tokens > b->tokens;
    return a->oldest->number < b->oldest->number;
}

/* Lock held. Users are few, and the table is full only when somebody wants it so. */
static struct token *oldest_of_who_has_most(struct token_table *table)
{
    struct share shares[TOKENS_MAX], *most = &shares[0];
    unsigned users = 0;

    for (unsigned i = 0; i < TOKENS_MAX; i++) {
        struct token *token = &table->slots[i];
        struct share *share = share_of(shares, &users, token->uid);
        share->tokens++;
        if (!share->oldest || token->number < share->oldest->number)
            share->oldest = token;
    }
    for (unsigned i = 1; i < users; i++)
        if (is_taken_from_first(&shares[i], most))
            most = &shares[i];
    return most->oldest;
}

/* Lock held. */
static struct token *slot_for(struct token_table *table, const struct token *token)
{
    for (unsigned i = 0; i < TOKENS_MAX; i++)
        if (!table->slots[i].inode || token->born - table->slots[i].born > TOKEN_LIFE_S)
            return &table->slots[i];
    return oldest_of_who_has_most(table);
}

int token_make(struct token_table *table, const struct token *wish, uint8_t secret_out[16])
{
    struct token token = *wish;

    if (getrandom(token.secret, sizeof token.secret, 0) != (ssize_t)sizeof token.secret)
        return -EIO;
    token.born = now();
    inode_get(token.inode);
    pthread_mutex_lock(&table->lock);
    token.number = table->made++;
    struct token *slot = slot_for(table, &token), old = *slot;
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
        return -EKEYEXPIRED;
    bool expired = now() - token.born > TOKEN_LIFE_S;
    /* FUSE says which thread made the ioctl, the socket says which process connected. */
    if (expired || token.uid != uid || !thread_is_of(pid, token.thread)) {
        inode_put(token.inode);
        return expired ? -EKEYEXPIRED : -EACCES;
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
