/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/inode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache/cache.h"
#include "fs/content.h"
#include "fs/fs.h"
#include "fs/nodes.h"
#include "fs/place.h"

void inode_free(struct inode *inode)
{
    struct content *content = inode_content(inode);

    order_after(inode->fs); /* what was asked of it is answered */
    if (content)
        content_free(inode->fs, content);
    if (inode->open) {
        close(inode->open->fd);
        free(inode->open);
    }
    place_free(inode->place);
    volume_put(&inode->fs->volumes, inode->volume);
    free(inode);
}

static struct inode *inode_new(struct fs *fs, const struct stat *st, const struct file_key *key)
{
    struct inode *inode = calloc(1, sizeof(*inode) + key->handle_bytes);

    if (!inode)
        return NULL;
    inode->fs = fs;
    inode->dev = key->dev;
    inode->ino = key->ino;
    inode->type = st->st_mode & S_IFMT;
    inode->volume = key->volume;
    inode->handle_type = key->handle_type;
    inode->handle_bytes = (uint8_t)key->handle_bytes;
    inode->refuses = (uint8_t)key->refuses;
    memcpy(inode->handle, key->handle, key->handle_bytes);
    return inode;
}

struct inode *inode_new_gone(struct fs *fs)
{
    return inode_new(fs, &(struct stat){0}, &(struct file_key){0});
}

/* A new inode in the shard, whose lock is held. It has taken over the key's reference, and fd if the result
 * is not NULL. */
static struct inode *add(struct inode_shard *shard, struct fs *fs, int fd, const struct stat *st,
                         const struct file_key *key, bool placed)
{
    /* The root's is the way to all: it must not depend on a free descriptor. */
    enum descriptor_kind kind =
        (key->handle_bytes || placed) && fs->root ? DESCRIPTOR_CACHED : DESCRIPTOR_KEPT;
    struct inode *inode = inode_new(fs, st, key);

    if (inode && !shard_insert(&fs->inodes, shard, inode)) {
        free(inode);
        return NULL;
    }
    if (inode && descriptors_add(shard, inode, fd, kind)) {
        shard_remove(&fs->inodes, shard, inode);
        free(inode);
        return NULL;
    }
    return inode;
}

/* Only for a file that is not known yet: when too many are in use, those must go on being found at once. */
static void make_room(struct fs *fs, struct inode_shard *shard, uint64_t hash, const struct file_key *key)
{
    bool is_known;

    if (!pruner_is_needed(fs))
        return;
    pthread_mutex_lock(&shard->lock);
    is_known = shard_find(shard, hash, key);
    pthread_mutex_unlock(&shard->lock);
    if (!is_known)
        pruner_make_room(fs);
}

int inode_lookup(struct fs *fs, int fd, const struct stat *st, const struct inode *parent, const char *name,
                 struct inode **inode_out)
{
    uint64_t hash = file_hash(st->st_dev, st->st_ino);
    struct inode_shard *shard = shard_of_hash(&fs->inodes, hash);
    struct descriptor_list closing = TAILQ_HEAD_INITIALIZER(closing);
    struct place *place = NULL;
    struct file_key key;
    struct inode *inode;
    int rc = file_key_make(&fs->volumes, fd, st, &key);

    if (rc < 0 && descriptors_shed(fs, -rc)) /* to try the handles of another filesystem */
        rc = file_key_make(&fs->volumes, fd, st, &key);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    make_room(fs, shard, hash, &key);
    if (parent)
        place = place_new(parent, name, &key);
    pthread_mutex_lock(&shard->lock);
    inode = shard_find(shard, hash, &key);
    if (inode) {
        if (!inode->open && !descriptors_add(shard, inode, fd, DESCRIPTOR_CACHED))
            fd = -1;
    } else {
        inode = add(shard, fs, fd, st, &key, place);
        if (inode) {
            key.volume = NULL;
            fd = -1;
        }
    }
    if (inode) {
        inode->lookups++;
        shard->lookups++;
        place = place_set(inode, place);
        /* Made without one (O_TMPFILE): its filesystem frees it when nobody has it open. */
        if (inode->open && st->st_nlink == 0 && !S_ISDIR(st->st_mode))
            descriptors_mark(shard, inode, true);
    }
    descriptors_trim(shard, &closing);
    pthread_mutex_unlock(&shard->lock);
    descriptors_close(&closing);
    volume_put(&fs->volumes, key.volume);
    place_free(place);
    if (fd >= 0)
        close(fd);
    if (!inode)
        return -ENOMEM;
    order_before(inode); /* see inode_of() */
    *inode_out = inode;
    return 0;
}

int inode_get_id(struct fs *fs, uint64_t id, struct inode **inode_out)
{
    struct inode_shard *shard = id == FUSE_ROOT_ID ? shard_of_inode(fs->root) : shard_of_id(&fs->inodes, id);
    struct inode *inode;

    pthread_mutex_lock(&shard->lock);
    inode = id == FUSE_ROOT_ID ? fs->root : shard_find_id(shard, id);
    if (inode)
        inode->references++;
    pthread_mutex_unlock(&shard->lock);
    *inode_out = inode;
    return inode ? 0 : -ESTALE;
}

int inode_lookup_id(struct fs *fs, uint64_t id, struct inode **inode_out)
{
    struct inode_shard *shard;
    int rc = inode_get_id(fs, id, inode_out);

    if (rc < 0)
        return rc;
    shard = shard_of_inode(*inode_out);
    pthread_mutex_lock(&shard->lock);
    (*inode_out)->lookups++;
    shard->lookups++;
    inode_put_locked(shard, *inode_out);
    return 0;
}

struct inode *inode_find(struct fs *fs, uint64_t id)
{
    struct inode_shard *shard = shard_of_id(&fs->inodes, id);
    struct inode *inode;

    if (id == FUSE_ROOT_ID)
        return fs->root;
    pthread_mutex_lock(&shard->lock);
    inode = shard_find_id(shard, id);
    pthread_mutex_unlock(&shard->lock);
    return inode ? inode : fs->inodes.gone;
}

/* The inode has no name: it keeps a descriptor, fd if it has none. What of fd is left to the caller: fd or
 * -1. Shard's lock held. */
static int keep_last(struct inode_shard *shard, struct inode *inode, int fd, struct descriptor_list *closing)
{
    if (!inode->open && fd >= 0 && !descriptors_add(shard, inode, fd, DESCRIPTOR_CACHED))
        fd = -1;
    if (inode->open)
        descriptors_mark(shard, inode, true);
    descriptors_trim(shard, closing);
    return fd;
}

struct inode *inode_get_known(struct fs *fs, int fd)
{
    struct inode_shard *shard;
    struct inode *inode;
    struct file_key key;
    struct stat st;

    if (fstat(fd, &st) || file_key_make(&fs->volumes, fd, &st, &key))
        return NULL;
    shard = shard_of_hash(&fs->inodes, file_hash(st.st_dev, st.st_ino));
    pthread_mutex_lock(&shard->lock);
    inode = shard_find(shard, file_hash(st.st_dev, st.st_ino), &key);
    if (inode)
        inode->references++;
    pthread_mutex_unlock(&shard->lock);
    volume_put(&fs->volumes, key.volume);
    order_after(inode);
    return inode;
}

int inode_unlinked(struct inode *inode, int fd)
{
    struct descriptor_list closing = TAILQ_HEAD_INITIALIZER(closing);
    struct inode_shard *shard = shard_of_inode(inode);
    struct stat st;

    /* A folder has one name, whatever the filesystem says of its links. */
    if (fstat(fd, &st) || (st.st_nlink > 0 && !S_ISDIR(st.st_mode)))
        return fd;
    pthread_mutex_lock(&shard->lock);
    fd = keep_last(shard, inode, fd, &closing);
    pthread_mutex_unlock(&shard->lock);
    descriptors_close(&closing);
    return fd;
}

bool inode_note_deleted(struct inode *inode)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    bool news = inode->open && inode->open->kind == DESCRIPTOR_CACHED;
    if (news)
        descriptors_mark(shard, inode, true);
    pthread_mutex_unlock(&shard->lock);
    return news;
}

void inode_linked(struct inode *inode)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    inode->bared = false;
    if (inode->open)
        descriptors_mark(shard, inode, false);
    pthread_mutex_unlock(&shard->lock);
}

/* Has it no name any more? Not if that can't be found out now. */
static bool is_deleted(struct inode *inode)
{
    BORROWED file = inode_borrow(inode);
    struct stat st;

    return file.fd < 0 ? file.fd == -ESTALE : fstat(file.fd, &st) == 0 && st.st_nlink == 0;
}

bool inode_is_used(const struct inode *inode)
{
    return inode->lookups > 0 || inode->references > 0 || inode->pins > 0;
}

/* Nobody uses the inode, but somebody who has a file handle of it may come back: for that only its node id
 * and its own handle are needed. What was allocated for its bytes goes into *content_out. Shard's lock held.
 */
static struct inode *remember(struct inode_shard *shard, struct inode *inode, struct descriptor_list *closing,
                              struct content **content_out)
{
    struct inode_table *table = &inode->fs->inodes;
    bool deleted = inode->open && inode->open->kind == DESCRIPTOR_LAST;

    descriptors_remove(shard, inode, closing);
    /* Nor what is on another filesystem below: it could not be unmounted as long. */
    if (!table->remember_most || !inode->handle_bytes || deleted || inode_file(inode) ||
        inode->volume != inode->fs->root->volume) {
        shard_remove(table, shard, inode);
        return inode;
    }
    *content_out = atomic_exchange(&inode->content, NULL);
    return shard_remember(table, shard, inode);
}

/* Unlocks the shard and frees the inode, or an older one in its place, if nothing holds it any more. */
static void unlock_and_free_if_unused(struct inode_shard *shard, struct inode *inode)
{
    struct descriptor_list closing = TAILQ_HEAD_INITIALIZER(closing);
    struct content *content = inode_content(inode);
    struct fs *fs = inode->fs;

    if (inode_is_used(inode)) {
        pthread_mutex_unlock(&shard->lock);
        return;
    }
    bool asked = inode->fs->options.members && content && durable_is_asked(&content->durable);
    if (asked || (content && durable_is_written(&content->durable)))
        shard_note_unsynced(shard, file_hash(inode->dev, inode->ino));
    content = NULL;
    inode = remember(shard, inode, &closing, &content);
    pthread_mutex_unlock(&shard->lock);
    descriptors_close(&closing);
    if (content)
        content_free(fs, content);
    if (inode)
        inode_free(inode);
}

bool inode_is_lost(struct inode *inode)
{
    struct content *content = inode_content(inode);

    return content && durable_is_lost(&content->durable);
}

void inode_put_locked(struct inode_shard *shard, struct inode *inode)
{
    struct inode_table *table = &inode->fs->inodes;
    bool kept = false;

    if (inode->references == 1 && !inode->lookups && !inode->pins && inode_is_lost(inode)) {
        pthread_mutex_unlock(&shard->lock);
        kept = !is_deleted(inode);
        pthread_mutex_lock(&shard->lock);
    }
    inode->references--;
    if (kept) {
        pthread_mutex_unlock(&shard->lock);
        atomic_fetch_add(&table->kept, 1);
    } else {
        unlock_and_free_if_unused(shard, inode);
    }
}

void inode_forget(struct inode *inode, uint64_t lookups)
{
    struct inode_shard *shard = shard_of_inode(inode);

    if (inode == inode->fs->inodes.gone)
        return;
    pthread_mutex_lock(&shard->lock);
    /* The root keeps one, that of the start: it stays until the end, however often the kernel forgets it. */
    uint64_t most = inode->lookups - (inode == inode->fs->root ? 1 : 0);
    if (lookups > most && inode != inode->fs->root)
        inode_miscounted("forgotten more often than it was looked up", inode);
    lookups = lookups < most ? lookups : most;
    inode->lookups -= lookups;
    shard->lookups -= lookups;
    inode->references++;
    if (inode->lookups || !inode_content(inode)) {
        inode_put_locked(shard, inode);
        return;
    }
    pthread_mutex_unlock(&shard->lock);
    passthrough_forget(inode->fs, inode);
    /* The last name of a deleted file, and nobody has it open: what devices still hold of it is of no use to
     * anybody. */
    if (inode_file(inode) && is_deleted(inode))
        cache_file_discard(inode_file(inode));
    inode_put(inode);
}

bool inode_is_known(struct inode *inode)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    bool known = inode->lookups > 0;
    pthread_mutex_unlock(&shard->lock);
    return known;
}

static void get(struct inode *inode, unsigned handles)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    inode->references++;
    inode->handles += handles;
    pthread_mutex_unlock(&shard->lock);
}

void inode_get(struct inode *inode)
{
    get(inode, 0);
}

void inode_get_opened(struct inode *inode)
{
    get(inode, 1);
}

bool inode_get_if_used(struct inode *inode)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    bool used = inode_is_used(inode);
    inode->references += used;
    pthread_mutex_unlock(&shard->lock);
    return used;
}

void inode_put(struct inode *inode)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    inode_put_locked(shard, inode);
}

void inode_closing(struct inode *inode, int fd)
{
    struct descriptor_list closing = TAILQ_HEAD_INITIALIZER(closing);
    struct inode_shard *shard = shard_of_inode(inode);
    int path_fd = -1;

    pthread_mutex_lock(&shard->lock);
    bool last = --inode->handles == 0 && inode->bared;
    if (last && !inode->open) {
        pthread_mutex_unlock(&shard->lock);
        path_fd = descriptors_openat(inode->fs, AT_FDCWD, proc_path(fd).text, O_PATH | O_CLOEXEC, 0);
        pthread_mutex_lock(&shard->lock);
    }
    if (last) {
        inode->bared = false;
        path_fd = keep_last(shard, inode, path_fd, &closing);
    }
    pthread_mutex_unlock(&shard->lock);
    descriptors_close(&closing);
    if (path_fd >= 0)
        close(path_fd);
}

void inode_pin(struct inode *inode, bool pinned)
{
    struct inode_shard *shard = shard_of_inode(inode);

    pthread_mutex_lock(&shard->lock);
    if (pinned)
        inode->pins++;
    else if (inode->pins > 0)
        inode->pins--;
    inode->references++;
    inode_put_locked(shard, inode);
}

ssize_t inode_path(struct inode *inode, char *path_out, size_t size)
{
    BORROWED file = inode_borrow(inode);
    const char *data = inode->fs->data_path;
    size_t prefix = strlen(data), length;
    ssize_t got;

    if (size == 0)
        return -EINVAL;
    if (file.fd < 0)
        return file.fd;
    got = readlink(proc_path(file.fd).text, path_out, size - 1);
    if (got < 0)
        return -errno;
    path_out[got] = '\0';
    length = (size_t)got;
    if (length == 1 && prefix > 1) /* it was opened by its handle, and the kernel knows no name of it */
        return -ENOENT;
    if (prefix == 1) /* the data directory is "/" */
        prefix = 0;
    if (strncmp(path_out, data, prefix) != 0 || (path_out[prefix] != '/' && path_out[prefix] != '\0'))
        return got;
    if (path_out[prefix] == '/')
        prefix++;
    memmove(path_out, path_out + prefix, length - prefix + 1);
    return (ssize_t)(length - prefix);
}

void inode_name(struct inode *inode, char *name_out, size_t size)
{
    if (inode_path(inode, name_out, size) < 0)
        snprintf(name_out, size, "(inode %llu)", (unsigned long long)inode->ino);
}
