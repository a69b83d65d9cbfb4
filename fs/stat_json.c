/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/stat_json.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "base/memory_file.h"
#include "cache/nodes.h"
#include "cache/stat.h"
#include "fs/escape.h"
#include "fs/fs.h"
#include "fs/passthrough.h"

static json_t *integer(uint64_t n)
{
    return json_integer((json_int_t)n);
}

static json_t *device_json(const struct cache_device_stat *d)
{
    const struct gaia_stat *s = &d->stat;
    char name[32];
    json_t *o = json_object();

    cache_device_name(d->device, name);
    json_object_set_new(o, "device", json_string(name));
    if (d->read_only)
        json_object_set_new(o, "read_only", json_true());
    json_object_set_new(o, "capacity_bytes", integer(s->capacity_bytes));
    json_object_set_new(o, "resident_bytes", integer(s->resident_bytes));
    json_object_set_new(o, "faults", integer(s->faults));
    json_object_set_new(o, "write_faults", integer(s->write_faults));
    json_object_set_new(o, "bytes_in", integer(s->bytes_in));
    json_object_set_new(o, "bytes_out", integer(s->bytes_out));
    json_object_set_new(o, "collects", integer(s->collects));
    json_object_set_new(o, "merges", integer(s->merges));
    json_object_set_new(o, "pages_merged", integer(s->pages_merged));
    json_object_set_new(o, "peer_reads", integer(s->peer_reads));
    json_object_set_new(o, "evictions", integer(s->evictions));
    json_object_set_new(o, "drops", integer(s->drops));
    json_object_set_new(o, "unchanged_pages", integer(d->unchanged_pages));
    json_object_set_new(o, "readahead_pages", integer(d->readahead_pages));
    json_object_set_new(o, "twins", integer(s->twins));
    return o;
}

/* A device as a whole, of all files. */
static json_t *whole_device_json(struct cache *cache, const struct cache_device_stat *d)
{
    const char *failure = cache_device_failure(cache, d->device);
    const char *faults = cache_device_reach(cache, d->device, GAIA_PATH_FAULTS);
    const char *nodes = cache_device_reach(cache, d->device, GAIA_PATH_CALLS);
    json_t *o = device_json(d);

    if (failure)
        json_object_set_new(o, "failure", json_string(failure));
    if (faults)
        json_object_set_new(o, "gpudirect_faults", json_string(faults));
    if (nodes)
        json_object_set_new(o, "gpudirect_nodes", json_string(nodes));
    return o;
}

/* A name may be any bytes; JSON wants UTF-8, and gaiactl prints it. */
static json_t *name_json(const char *name)
{
    char text[ESCAPED_SIZE(PATH_MAX)];

    escape(name, text, sizeof text, true);
    return json_string(text);
}

static void add_path(json_t *o, struct inode *inode)
{
    char path[PATH_MAX];

    inode_name(inode, path, sizeof path);
    json_object_set_new(o, "path", name_json(path));
}

/* Each file that is open. */
static int add_open(struct inode *inode, void *context)
{
    struct passthrough_mode mode;

    passthrough_look(inode->fs, inode, &mode);
    if (!mode.opens)
        return 0;
    json_t *o = json_object();
    add_path(o, inode);
    json_object_set_new(o, "mode", json_string(mode.name));
    json_object_set_new(o, "opens", integer(mode.opens));
    json_array_append_new(context, o);
    return 0;
}

static void add_file(void *context, void *file_context, const struct cache_file_stat *stat)
{
    struct inode *inode = file_context;
    struct passthrough_mode mode;
    json_t *file = json_object(), *devices = json_array();

    passthrough_look(inode->fs, inode, &mode);
    add_path(file, inode);
    json_object_set_new(file, "mode", json_string(mode.name));
    json_object_set_new(file, "size", integer((uint64_t)stat->size));
    json_object_set_new(file, "leaves", integer(stat->leaves));
    json_object_set_new(file, "metadata_bytes", integer(stat->metadata_bytes));
    for (unsigned i = 0; i < stat->devices; i++)
        json_array_append_new(devices, device_json(&stat->device[i]));
    json_object_set_new(file, "devices", devices);
    json_array_append_new(context, file);
}

static json_t *io_json(const struct cache *cache)
{
    struct gaia_io_stat s;
    bool registered;
    json_t *o = json_object();

    cache_stat_io(cache, &s, &registered);
    json_object_set_new(o, "registered", json_boolean(registered));
    json_object_set_new(o, "reads", integer(s.reads));
    json_object_set_new(o, "direct_reads", integer(s.direct_reads));
    json_object_set_new(o, "bytes_read", integer(s.bytes_read));
    json_object_set_new(o, "resubmits", integer(s.resubmits));
    json_object_set_new(o, "in_flight_max", integer(s.in_flight_max));
    return o;
}

/* How the bytes of faults go into device frames. */
static json_t *fault_json(struct cache *cache)
{
    struct fault_path_stat s;
    json_t *o = json_object();

    if (!cache_stat_path(cache, &s)) {
        json_object_set_new(o, "path", json_string("copy"));
        return o;
    }
    json_object_set_new(o, "path", json_string(s.pull.path));
    json_object_set_new(o, "device", json_string(s.pull.device));
    json_object_set_new(o, "address", json_string(s.address));
    json_object_set_new(o, "connected", json_boolean(s.connected));
    json_object_set_new(o, "connects", integer(s.connects));
    json_object_set_new(o, "queues", integer(s.pull.queues));
    json_object_set_new(o, "depth", integer(s.pull.depth));
    json_object_set_new(o, "outstanding", integer(s.pull.outstanding));
    json_object_set_new(o, "outstanding_max", integer(s.pull.outstanding_max));
    json_object_set_new(o, "waiting", integer(s.pull.waiting));
    json_object_set_new(o, "reads", integer(s.pull.reads));
    json_object_set_new(o, "bytes", integer(s.pull.bytes));
    json_object_set_new(o, "doorbells", integer(s.pull.doorbells));
    json_object_set_new(o, "bounced", integer(s.bounced));
    json_object_set_new(o, "failed", integer(s.failed));
    json_object_set_new(o, "refused", integer(s.refused));
    json_object_set_new(o, "latency_p50_ns", integer(s.pull.latency_p50_ns));
    json_object_set_new(o, "latency_p90_ns", integer(s.pull.latency_p90_ns));
    json_object_set_new(o, "latency_p99_ns", integer(s.pull.latency_p99_ns));
    json_object_set_new(o, "latency_p999_ns", integer(s.pull.latency_p999_ns));
    json_object_set_new(o, "latency_max_ns", integer(s.pull.latency_max_ns));
    return o;
}

/* How bytes move between this node and the homes that it is an agent of. */
static json_t *transfers_json(const struct calls_stat *s)
{
    json_t *o = json_object();

    json_object_set_new(o, "path", json_string(s->path));
    json_object_set_new(o, "device", json_string(s->device));
    json_object_set_new(o, "queues", integer(s->queues));
    json_object_set_new(o, "depth", integer(s->depth));
    json_object_set_new(o, "outstanding", integer(s->outstanding));
    json_object_set_new(o, "outstanding_max", integer(s->outstanding_max));
    json_object_set_new(o, "reads", integer(s->reads));
    json_object_set_new(o, "writes", integer(s->writes));
    json_object_set_new(o, "failed", integer(s->failed));
    json_object_set_new(o, "bytes_read", integer(s->bytes_read));
    json_object_set_new(o, "bytes_written", integer(s->bytes_written));
    json_object_set_new(o, "latency_p50_ns", integer(s->latency_p50_ns));
    json_object_set_new(o, "latency_p90_ns", integer(s->latency_p90_ns));
    json_object_set_new(o, "latency_p99_ns", integer(s->latency_p99_ns));
    json_object_set_new(o, "latency_p999_ns", integer(s->latency_p999_ns));
    json_object_set_new(o, "latency_max_ns", integer(s->latency_max_ns));
    return o;
}

/* The other nodes, and what they have asked this one for. */
static json_t *nodes_json(struct cache *cache)
{
    json_t *o = json_object(), *list = json_array(), *served = json_object();
    struct nodes_stat s;

    nodes_stat(cache, &s); /* none: there are none */
    for (unsigned i = 0; i < s.count; i++) {
        json_t *node = json_object();
        json_object_set_new(node, "name", name_json(s.node[i].name));
        json_object_set_new(node, "listed", json_boolean(s.node[i].listed));
        json_object_set_new(node, "down", json_boolean(s.node[i].down));
        json_object_set_new(node, "home", json_boolean(s.node[i].home));
        json_object_set_new(node, "agent", json_boolean(s.node[i].agent));
        json_array_append_new(list, node);
    }
    for (unsigned op = 1; op <= NODE_OP_LAST; op++)
        if (s.served[op])
            json_object_set_new(served, nodes_op_name(op), integer(s.served[op]));
    json_object_set_new(o, "self", name_json(s.node[s.self].name)); /* "": one node */
    json_object_set_new(o, "nodes", list);
    json_object_set_new(o, "far_files", integer(s.far_files));
    json_object_set_new(o, "followed", integer(s.followed));
    json_object_set_new(o, "served", served);
    json_object_set_new(o, "pages_placed", integer(s.placed));
    json_object_set_new(o, "pages_placed_by_copy", integer(s.placed_by_copy));
    if (s.transfers.path)
        json_object_set_new(o, "transfers", transfers_json(&s.transfers));
    return o;
}

static json_t *inodes_json(struct fs *fs)
{
    struct inode_table_stat stat;
    json_t *o = json_object();

    inode_table_stat(&fs->inodes, &stat);
    json_object_set_new(o, "known", integer(stat.inodes));
    json_object_set_new(o, "most", integer(fs->inodes.most));
    json_object_set_new(o, "descriptors_cached", integer(stat.descriptors[DESCRIPTOR_CACHED]));
    json_object_set_new(o, "descriptors_last", integer(stat.descriptors[DESCRIPTOR_LAST]));
    json_object_set_new(o, "descriptors_kept", integer(stat.descriptors[DESCRIPTOR_KEPT]));
    return o;
}

/* What the kernel knows and has open: what should shrink again when memory is short, or files are closed. */
static json_t *kernel_json(struct fs *fs)
{
    json_t *o = json_object();
    struct inode_table_stat stat;
    uint64_t open = 0;

    inode_table_stat(&fs->inodes, &stat);
    pthread_mutex_lock(&fs->handles_lock);
    for (const struct handle *handle = fs->handles; handle; handle = handle->next)
        open++;
    pthread_mutex_unlock(&fs->handles_lock);
    json_object_set_new(o, "inodes", integer(stat.used));
    json_object_set_new(o, "lookups", integer(stat.lookups));
    json_object_set_new(o, "open", integer(open));
    return o;
}

int stat_json(struct fs *fs)
{
    json_t *root = json_object(), *devices = json_array(), *files = json_array(), *open = json_array();
    uint64_t heals, late;

    for (unsigned i = 0; i < GAIA_DEVICES_MAX; i++) {
        struct cache_device_stat stat;
        /* A soft device that nobody has used is not worth a line, but for the first; a GPU is there when it
         * was. */
        if (!cache_stat_device(fs->cache, i, &stat) &&
            (i == 0 || i >= GAIA_SOFT_MAX || stat.stat.faults || stat.stat.resident_bytes))
            json_array_append_new(devices, whole_device_json(fs->cache, &stat));
    }
    json_t *inodes = inodes_json(fs); /* before a look at each of them lets some go */
    cache_stat_files(fs->cache, add_file, files);
    fs_each_inode(fs, add_open, open);
    json_object_set_new(root, "version", json_string(GAIAFS_VERSION));
    json_object_set_new(root, "pid", integer((uint64_t)getpid()));
    json_object_set_new(root, "data", name_json(fs->data_path));
    json_object_set_new(root, "mount", name_json(fs->mount_path));
    json_object_set_new(root, "devices", devices);
    json_object_set_new(root, "files", files);
    json_object_set_new(root, "inodes", inodes);
    json_object_set_new(root, "kernel", kernel_json(fs));
    json_object_set_new(root, "open", open);
    json_object_set_new(root, "passthrough", json_boolean(fs->passes));
    json_object_set_new(root, "io", io_json(fs->cache));
    json_object_set_new(root, "fault", fault_json(fs->cache));
    json_object_set_new(root, "nodes", nodes_json(fs->cache));
    cache_stat_heals(fs->cache, &heals, &late);
    json_object_set_new(root, "heals", integer(heals));
    json_object_set_new(root, "heals_late", integer(late));
    int fd = memory_file("gaiafs:stat", 0);
    int error = fd < 0 ? -errno : 0;
    if (!error && (json_dumpfd(root, fd, JSON_INDENT(2)) || lseek(fd, 0, SEEK_SET))) {
        error = -EIO;
        close(fd);
    }
    json_decref(root);
    return error ? error : fd;
}
