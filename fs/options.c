/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/options.h"

#define FUSE_USE_VERSION 314
#include <assert.h>
#include <errno.h>
#include <fuse_lowlevel.h>
#include <fuse_opt.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "fs/log.h"
#include "fs/options_cache.h"
#include "fs/options_nodes.h"
#include "fs/options_value.h"

#define INODES_LEAST 1024u
#define REMEMBER_DEFAULT 65536u
#define TIMEOUT_MOST_S 1e9 /* for ever */
/* A file that a device maps is better not passed through (an acquire compares then), so it is not done
 * unasked where no other filesystem can do it either. */
#define PASSTHROUGH_DEFAULT (FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17))

static int parse_inodes(struct fs_options *options, const char *option)
{
    return option_number(option, INODES_LEAST, &options->inodes);
}

static int parse_remember(struct fs_options *options, const char *option)
{
    return option_number(option, 0, &options->remember);
}

static int parse_timeout(struct fs_options *options, const char *option)
{
    const char *text = option_value(option);
    char *end;

    options->timeout_s = strtod(text, &end);
    if (end == text || *end != '\0' || strpbrk(text, "xX") || !isfinite(options->timeout_s) ||
        options->timeout_s < 0) {
        fs_log(LOG_ERR, "option %s: not a number of seconds", option);
        return -1;
    }
    if (options->timeout_s > TIMEOUT_MOST_S)
        options->timeout_s = TIMEOUT_MOST_S;
    return 0;
}

static int parse_fsname(struct fs_options *options, const char *option)
{
    if (!*option_value(option)) { /* mount(2) would refuse it, and not say why */
        fs_log(LOG_ERR, "option %s: no name", option);
        return -1;
    }
    return option_set_text(&options->fsname, option_value(option));
}

static int parse_subtype(struct fs_options *options, const char *option)
{
    return option_set_text(&options->subtype, option_value(option));
}

static int parse_log(struct fs_options *options, const char *option)
{
    return option_choice(option, "stderr", "syslog", &options->log_syslog);
}

static int parse_passthrough(struct fs_options *options, const char *option)
{
    const char *text = option_value(option);

    options->passthrough_all = !strcmp(text, "all");
    options->passthrough = options->passthrough_all || !strcmp(text, "on");
    if (options->passthrough || !strcmp(text, "off"))
        return 0;
    fs_log(LOG_ERR, "option %s: none of off, on and all", option);
    return -1;
}

/* Of a word and its opposite the last one counts. */
static int parse_read_only(struct fs_options *options, const char *option)
{
    options->read_only = !strcmp(option, "ro") || !strcmp(option, "-r");
    return 0;
}

/* Not for libfuse, whose newer versions know noatime only. */
static int parse_atime(struct fs_options *options, const char *option)
{
    options->no_atime = option[0] == 'n';
    return 0;
}

/* Nor this: libfuse does not know it, and the daemon is who reads. */
static int parse_diratime(struct fs_options *options, const char *option)
{
    options->no_diratime = option[0] == 'n';
    return 0;
}

/* A flag of the kernel's, for libfuse. */
static int pass_on(struct fs_options *options, const char *option)
{
    return fuse_opt_add_opt(&options->mount_options, option);
}

/* Those of the mount as a whole. */
static const struct mount_option general[] = {
    {.text = "-h", .flag = OPTION_FLAG(help)},
    {.text = "--help", .flag = OPTION_FLAG(help)},
    {.text = "-V", .flag = OPTION_FLAG(version)},
    {.text = "--version", .flag = OPTION_FLAG(version)},
    {.text = "-f", .flag = OPTION_FLAG(foreground)},
    {.text = "-d", .flag = OPTION_FLAG(debug)},
    {.text = "debug", .flag = OPTION_FLAG(debug)},
    {.text = "-r", .parse = parse_read_only},
    {.text = "ro", .parse = parse_read_only},
    {.text = "-w", .parse = parse_read_only},
    {.text = "rw", .parse = parse_read_only},
    {.text = "allow_other", .flag = OPTION_FLAG(allow_other)},
    {.text = "timeout=", .parse = parse_timeout},
    {.text = "inodes=", .parse = parse_inodes},
    {.text = "remember=", .parse = parse_remember},
    {.text = "fsname=", .parse = parse_fsname},
    {.text = "subtype=", .parse = parse_subtype},
    {.text = "log=", .parse = parse_log, .flag = OPTION_FLAG(log_given)},
    {.text = "passthrough=", .parse = parse_passthrough},
    {.text = "remount", .flag = OPTION_FLAG(remount)},
    {.text = NULL},
};

static const struct mount_option kernel_flags[] = {
    {.text = "exec", .parse = pass_on},
    {.text = "noexec", .parse = pass_on},
    {.text = "suid", .parse = pass_on},
    {.text = "nosuid", .parse = pass_on},
    {.text = "dev", .parse = pass_on},
    {.text = "nodev", .parse = pass_on},
    {.text = "sync", .parse = pass_on},
    {.text = "async", .parse = pass_on},
    {.text = "dirsync", .parse = pass_on},
    {.text = "atime", .parse = parse_atime},
    {.text = "noatime", .parse = parse_atime},
    {.text = "diratime", .parse = parse_diratime},
    {.text = "nodiratime", .parse = parse_diratime},
    {.text = NULL},
};

static const struct mount_option ignored[] = {
    /* what mount(8) says to a helper */
    {.text = "-s"},
    {.text = "-n"},
    {.text = "-v"},
    {.text = "-t "},
    /* fstab's own words, defaults, and what is always on */
    {.text = "defaults"},
    {.text = "auto"},
    {.text = "noauto"},
    {.text = "user"},
    {.text = "user="},
    {.text = "nouser"},
    {.text = "users"},
    {.text = "owner"},
    {.text = "group"},
    {.text = "_netdev"},
    {.text = "nofail"},
    {.text = "comment="},
    {.text = "relatime"},
    {.text = "norelatime"},
    {.text = "strictatime"},
    {.text = "nostrictatime"},
    {.text = "lazytime"},
    {.text = "nolazytime"},
    {.text = "loud"},
    {.text = "silent"},
    {.text = "iversion"},
    {.text = "noiversion"},
    {.text = "mand"},
    {.text = "nomand"},
    {.text = "default_permissions"},
    /* what the mount table has of us besides, which mount(8) says again to remount */
    {.text = "user_id="},
    {.text = "group_id="},
    {.text = "max_read="},
    {.text = "blksize="},
    {.text = NULL},
};

static int parse_positional(struct fs_options *options, const char *text)
{
    if (!options->data)
        return option_set_text(&options->data, text);
    if (!options->mountpoint)
        return option_set_text(&options->mountpoint, text);
    fs_log(LOG_ERR, "one argument too many: %s", text);
    return -1;
}

#define OPTIONS_MAX 128

/* What is parsed, and the options by their keys. */
struct parsing {
    struct fs_options *options;
    const struct mount_option *by_key[OPTIONS_MAX];
    struct fuse_opt templates[OPTIONS_MAX + 1]; /* the last one is empty */
    int count;
};

static void add_table(struct parsing *parsing, const struct mount_option *table)
{
    for (; table->text; table++) {
        assert(parsing->count < OPTIONS_MAX);
        parsing->by_key[parsing->count] = table;
        parsing->templates[parsing->count] = (struct fuse_opt){table->text, -1U, parsing->count};
        parsing->count++;
    }
}

static int parse_unknown(const char *text)
{
    if (!*text) /* ro,,rw, or -o of a variable that is empty: to mount(8) no option either */
        return 0;
    if (strncmp(text, "x-", 2) == 0 || strncmp(text, "X-", 2) == 0)
        return 0;
    fs_log(LOG_ERR, "unknown option %s (see mount.gaiafs --help)", text);
    return -1;
}

/* For fuse_opt_parse(): -1 an error, 0 dealt with. */
static int parse_one(void *data, const char *text, int key, struct fuse_args *args)
{
    struct parsing *parsing = data;
    const struct mount_option *option;

    (void)args;
    if (key == FUSE_OPT_KEY_NONOPT)
        return parse_positional(parsing->options, text);
    if (key < 0)
        return parse_unknown(text);
    option = parsing->by_key[key];
    if (option->flag)
        *(bool *)((char *)parsing->options + option->flag) = true;
    return option->parse ? option->parse(parsing->options, text) : 0;
}

/* mount(8) and people put flags together: -sv, -df. fuse_opt knows only single ones. */
static int add_argument(struct fuse_args *args, const char *argument)
{
    char flag[3] = "-?";

    if (argument[0] != '-' || argument[1] == '-' || strlen(argument) < 3 ||
        strspn(argument + 1, "sdfnvwr") != strlen(argument + 1))
        return fuse_opt_add_arg(args, argument);
    for (const char *letter = argument + 1; *letter; letter++) {
        flag[1] = *letter;
        if (fuse_opt_add_arg(args, flag))
            return -1;
    }
    return 0;
}

bool options_ask_for(const struct fs_options *options, const char *word)
{
    const char *list = options->mount_options ? options->mount_options : "";

    for (size_t length; *list; list += length + (list[length] == ',')) {
        length = strcspn(list, ",");
        if (length == strlen(word) && strncmp(list, word, length) == 0)
            return true;
    }
    return false;
}

/* The flags of a remount are all that hold after it. */
static unsigned long flags_of(const struct fs_options *options)
{
    static const struct {
        const char *word;
        unsigned long flag;
    } words[] = {{"nosuid", MS_NOSUID},
                 {"nodev", MS_NODEV},
                 {"noexec", MS_NOEXEC},
                 {"sync", MS_SYNCHRONOUS},
                 {"dirsync", MS_DIRSYNC}};
    unsigned long flags = (options->read_only ? MS_RDONLY : 0) | (options->no_atime ? MS_NOATIME : 0) |
                          (options->no_diratime ? MS_NODIRATIME : 0);

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (options_ask_for(options, words[i].word))
            flags |= words[i].flag;
    return flags;
}

static int check(struct fs_options *options)
{
    if (options->help || options->version)
        return 0;
    options->remount_flags = flags_of(options);
    if (!options->data || !options->mountpoint) {
        fs_log(LOG_ERR, "%s missing (see mount.gaiafs --help)",
               options->data ? "mount point" : "data directory");
        return -EINVAL;
    }
    if (geteuid() == 0)
        options->allow_other = true;
    if (!options->log_given)
        options->log_syslog = !options->foreground;
    if (!options->remount && options_nodes_check(options)) /* that changes flags only */
        return -EINVAL;
    return options_cache_check(options);
}

int options_parse(struct fs_options *options_out, int argc, char **argv)
{
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    struct parsing parsing = {.options = options_out};
    int rc = -EINVAL;

    memset(options_out, 0, sizeof(*options_out));
    options_out->timeout_s = 1.0;
    options_out->remember = REMEMBER_DEFAULT;
    options_out->passthrough = PASSTHROUGH_DEFAULT;
    options_cache_defaults(&options_out->cache);
    add_table(&parsing, general);
    add_table(&parsing, kernel_flags);
    add_table(&parsing, ignored);
    add_table(&parsing, options_cache);
    add_table(&parsing, options_nodes);
    for (int i = 0; i < argc; i++) {
        if (add_argument(&args, argv[i]))
            goto out;
    }
    if (fuse_opt_parse(&args, &parsing, parsing.templates, parse_one) == 0)
        rc = check(options_out);
out:
    fuse_opt_free_args(&args);
    if (rc < 0)
        options_free(options_out);
    return rc;
}

void options_free(struct fs_options *options)
{
    members_free(options->members);
    options->members = NULL;
    free(options->data);
    free(options->mountpoint);
    free(options->fsname);
    free(options->subtype);
    free(options->mount_options);
    free(options->peers);
    options->data = options->mountpoint = options->fsname = options->subtype = options->mount_options = NULL;
    options->peers = NULL;
}

void options_print_help(void)
{
    printf(
        "usage: mount.gaiafs DATADIR MOUNTPOINT [-f] [-o OPTION[,OPTION...]]\n"
        "       mount -t gaiafs DATADIR MOUNTPOINT [-o OPTION[,OPTION...]]\n"
        "\n"
        "Mounts the files of DATADIR so that GPU programs can map them (see gaia.h). MOUNTPOINT may be "
        "DATADIR\n"
        "itself. Goes to the background once the mount answers; umount, SIGTERM or SIGINT end it.\n"
        "\n"
        "    -f                        stay in the foreground, log to stderr\n"
        "    -r                        mount read-only\n"
        "    -h, --help                print this\n"
        "    -V, --version             print the versions\n"
        "    -s -n -v -w -t TYPE       accepted, as mount(8) gives them\n"
        "\n"
        "Options:\n"
        "    device_cache=SIZE         capacity of every device (here by default %llu MiB; at least 256K)\n"
        "    device_cache=soft:N=SIZE  capacity of one device; may be repeated\n"
        "    device_cache=cuda:N=SIZE  the same of a GPU (default: seven eighths of its memory)\n"
        "    soft_devices=N            how many there are: soft:0 to soft:(N-1), at most 64 (default 8)\n"
        "    evict=lra|fifo|clock      what goes first when a device is full: lra: least recently allocated; "
        "fifo:\n"
        "                              first allocated; clock: FIFO, but pages faulted on since get a second "
        "round\n"
        "                              (default lra)\n"
        "    unit=4K|64K|2M            what is placed for one touch of a device (default 64K)\n"
        "    fault_threads=N           threads that serve the touches of each program, 1 to 16 (default: a "
        "quarter "
        "of the\n"
        "                              processors, at least 1 and at most 4)\n"
        "    io=uring|threads          how devices read the data directory (default uring)\n"
        "    fault=copy|local|rdma     how a fault's bytes come into a device: copied by the daemon "
        "(default), or "
        "by\n"
        "                              one-sided reads; rdma@HOST[:PORT]: through the RDMA device with that "
        "address\n"
        "    gpudirect=auto|off        whether those reads, and bytes of other nodes, are written straight "
        "into "
        "a\n"
        "                              GPU's memory where that can be done (default auto)\n"
        "    queues=N,depth=N          of those reads, and of reads from each other node: queues, and reads "
        "under "
        "way on\n"
        "                              each (default: as the device needs)\n"
        "    peer_timeout=SECONDS      when an unanswered read has failed, 1 to 600 (default 5)\n"
        "    shared                    other mounts may have DATADIR, too, here or on other machines: each "
        "file is on\n"
        "                              the devices of one of them at a time\n"
        "    node=NAME                 which of peers= this node is\n"
        "    peers=NAME@HOST:PORT/...  the nodes that mount DATADIR with one page cache, and their addresses "
        "in numbers\n"
        "                              (or, on one machine, NAME@local:SOCKET); turns passthrough off\n"
        "    peers=PATH                the same from a file (PATH begins with /), a node a line\n"
        "    timeout=SECONDS           how long the kernel may keep names and attributes (default 1)\n"
        "    inodes=N                  most inodes the daemon keeps (default: as memory allows)\n"
        "    remember=N                how many NFS file handles stay valid after the kernel has forgotten "
        "their files\n"
        "                              (default 65536)\n"
        "    log=stderr|syslog         where to log (default syslog, with -f stderr)\n"
        "    passthrough=on|off|all    whether the kernel may read and write files by itself where Linux is "
        "6.9 or\n"
        "                              newer (default on with libfuse 3.17 or newer, else off); all: those, "
        "too, that\n"
        "                              programs open which have opened a device\n"
        "    -d, debug                 log every request\n"
        "    fsname=NAME               the source in the mount table (default DATADIR)\n"
        "    subtype=NAME              the type there is fuse.NAME, or plain fuse without NAME (default "
        "gaiafs)\n"
        "    allow_other               let other users in (always on for root)\n"
        "    remount                   change ro, noexec, nosuid, nodev, sync of what is mounted; "
        "other\n"
        "                              options are ignored\n"
        "    ro, noexec, nosuid, nodev, noatime, nodiratime, sync, dirsync and their opposites, as for "
        "mount(8)\n"
        "\n"
        "SIZE is a number with K, M, G or T. The kernel checks permissions by mode and owner, always.\n",
        (unsigned long long)(options_cache_default_capacity() >> 20));
}
