/* SPDX-License-Identifier: Apache-2.0 */
/* gaiactl: ask a mount's daemon what it does. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/escape.h"
#include "fs/gaiactl.h"
#include "io/message.h"
#include "io/reach.h"

static void usage(FILE *to)
{
    fputs("usage: gaiactl stat [--json] MOUNTPOINT\n"
          "       gaiactl devices [--json]\n"
          "       gaiactl --help | --version\n"
          "\n"
          "stat     what is resident on each device, for each file, and what was moved; how open files are "
          "open\n"
          "devices  what there is to map files on, and what NVIDIA's driver says of its GPUs\n",
          to);
}

int printed(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    fputs("gaiactl: the answer can't be written\n", stderr);
    return 1;
}

int command_options(int argc, char **argv, bool *json_out)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
    int option;

    *json_out = false;
    while ((option = getopt_long(argc, argv, "", options, NULL)) == 'j')
        *json_out = true;
    if (option == -1)
        return -1;
    usage(option == 'h' ? stdout : stderr);
    return option == 'h' ? printed() : 2;
}

#define ANSWER_S 10
#define LINGERS_MS 1000

/* What came of it: value[0] of the message in which it is passed on, whose error says why. */
enum outcome { ANSWERED, CANT_OPEN, NO_MOUNT, OTHER_VERSION, NO_ANSWER, OTHER_DAEMON };

/* The daemon's statistics: a descriptor with JSON. */
static enum outcome ask(const char *mountpoint, int *fd_out, int *error_out)
{
    struct gaia_ioctl_token token = {0};
    struct gaia_message message = {.op = GAIA_OP_DUMP};
    int fds[GAIA_MESSAGE_FDS];
    int directory = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (directory < 0) {
        *error_out = -errno;
        return CANT_OPEN;
    }
    int error = ioctl(directory, GAIA_IOCTL_TOKEN, &token) ? -errno : 0;
    if (error || token.version != GAIA_PROTOCOL_VERSION) {
        close(directory);
        return error ? NO_MOUNT : OTHER_VERSION;
    }
    token.socket[sizeof token.socket - 1] = '\0';
    int socket = reach_daemon(directory, &token, NULL);
    close(directory);
    error = socket < 0 ? socket : gaia_message_send(socket, &message, NULL, 0);
    if (!error || error == -EPIPE) /* who is one too many is told so before it has spoken */
        error = gaia_message_receive(socket, &message, fds);
    if (socket >= 0)
        close(socket);
    if (!error)
        error = message.error;
    *error_out = error ? error : fds[0] < 0 ? -EPROTO : 0;
    if (*error_out)
        return NO_ANSWER;
    /* Only memory has seals. No filesystem is asked for them: one in user space may answer nothing, not even
     * fstat(). */
    if (fcntl(fds[0], F_GET_SEALS) < 0)
        return OTHER_DAEMON;
    *fd_out = fds[0];
    return ANSWERED;
}

/* The process that asks, and may have to be left behind. It holds nothing of the caller's: a program that
 * reads gaiactl's output up to its end must not wait for it. */
static _Noreturn void ask_apart(const char *mountpoint, int answer)
{
    struct gaia_message message = {.op = GAIA_OP_DUMP};
    int fd = -1;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* when nobody waits for the answer any more */
    if (dup2(answer, STDIN_FILENO) < 0)
        _exit(1);
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    syscall(SYS_close_range, STDERR_FILENO + 1u, ~0u, 0u);
    message.value[0] = ask(mountpoint, &fd, &message.error);
    _exit(gaia_message_send(STDIN_FILENO, &message, &fd, fd >= 0) != 0);
}

static void say(const char *mountpoint, enum outcome outcome, int error)
{
    fprintf(stderr, "gaiactl: %s: ", mountpoint);
    switch (outcome) {
    case NO_MOUNT:
        fprintf(stderr, "not a gaiafs mount\n");
        break;
    case OTHER_VERSION:
        fprintf(stderr, "not a gaiafs mount of this version\n");
        break;
    case CANT_OPEN:
        fprintf(stderr, "%s\n", strerror(-error));
        break;
    case OTHER_DAEMON:
        fprintf(stderr, "what has answered is no daemon of gaiafs\n");
        break;
    default:
        if (error == -EPERM)
            fprintf(stderr, "not permitted: root and who has mounted it may ask, not from a container\n");
        else
            fprintf(stderr, "the daemon does not answer: %s\n", strerror(-error));
    }
}

/* Else what it had open, its folder too, might still be in use when gaiactl has ended. But another daemon may
 * have sent it what can't be closed: a file of a filesystem in user space, which is told of it. */
static void await_end(pid_t child)
{
    struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, child, 0u), .events = POLLIN};

    poll(&end, 1, LINGERS_MS);
    if (end.fd >= 0)
        close(end.fd);
    waitpid(child, NULL, WNOHANG);
}

/* The statistics' descriptor, or -1 after a message. This process touches nothing of the mount: nothing, not
 * even SIGKILL, ends a process that waits for a request that the daemon has read, and the daemon may wait for
 * a disk. */
static int statistics_of(const char *mountpoint)
{
    int pair[2], fds[GAIA_MESSAGE_FDS], ready;
    struct gaia_message message;
    pid_t child = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) ? -1 : fork();

    if (child < 0) {
        fprintf(stderr, "gaiactl: %s\n", strerror(errno));
        return -1;
    }
    if (child == 0)
        ask_apart(mountpoint, pair[1]);
    close(pair[1]);
    struct pollfd answer = {.fd = pair[0], .events = POLLIN};
    do
        ready = poll(&answer, 1, ANSWER_S * 1000);
    while (ready < 0 && errno == EINTR);
    if (ready < 1) {
        fprintf(stderr, "gaiactl: %s: the daemon has not answered for %d s\n", mountpoint, ANSWER_S);
        return -1;
    }
    int error = gaia_message_receive(pair[0], &message, fds);
    await_end(child);
    if (error)
        message.value[0] = NO_ANSWER;
    if (message.value[0] == ANSWERED)
        return fds[0];
    say(mountpoint, (enum outcome)message.value[0], error ? error : message.error);
    return -1;
}

static long long field(json_t *object, const char *name)
{
    return (long long)json_integer_value(json_object_get(object, name));
}

const char *human(long long bytes, char text[16])
{
    static const char units[] = "BKMGTP";
    double n = (double)bytes;
    unsigned unit = 0;

    while (n >= 1000 && unit < sizeof units - 2) {
        n /= 1024;
        unit++;
    }
    snprintf(text, 16, unit && n < 10 ? "%.1f%c" : "%.0f%c", n, units[unit]);
    return text;
}

static void print_device(const char *indent, json_t *d)
{
    char resident[16], capacity[16], in[16], out[16];

    printf("%s%-8s %8s %8s %9lld %9lld %8s %8s %9lld %8lld %8lld %9lld %9lld %8lld\n", indent,
           json_string_value(json_object_get(d, "device")), human(field(d, "resident_bytes"), resident),
           human(field(d, "capacity_bytes"), capacity), field(d, "faults"), field(d, "write_faults"),
           human(field(d, "bytes_in"), in), human(field(d, "bytes_out"), out), field(d, "collects"),
           field(d, "merges"), field(d, "pages_merged"), field(d, "peer_reads"), field(d, "evictions"),
           field(d, "twins"));
}

/* The way of faults, where it is not the daemon that copies. */
static void print_fault(json_t *f)
{
    char bytes[16];

    const char *path = json_string_value(json_object_get(f, "path"));
    if (!path || !strcmp(path, "copy"))
        return;
    long long copied = field(f, "failed") + field(f, "refused"); /* what failed was copied then */
    printf("  faults: path %s (%s at %s), ", path, json_string_value(json_object_get(f, "device")),
           json_string_value(json_object_get(f, "address")));
    if (!json_is_true(json_object_get(f, "connected"))) {
        printf("broken, the daemon copies; %lld failed, %lld copied\n", field(f, "failed"), copied);
        return;
    }
    printf("%lld queues of %lld, %lld outstanding (at most %lld), %lld reads (%lld bounced), %s, p50 %.1f "
           "us, p99 %.1f us, %lld failed, %lld copied\n",
           field(f, "queues"), field(f, "depth"), field(f, "outstanding"), field(f, "outstanding_max"),
           field(f, "reads"), field(f, "bounced"), human(field(f, "bytes"), bytes),
           (double)field(f, "latency_p50_ns") / 1000, (double)field(f, "latency_p99_ns") / 1000,
           field(f, "failed"), copied);
}

static double microseconds(json_t *object, const char *name)
{
    return (double)field(object, name) / 1000;
}

/* The other nodes, and the way of bytes between them and this one. */
static void print_nodes(json_t *nodes)
{
    const char *self = json_string_value(json_object_get(nodes, "self"));
    json_t *node, *t = json_object_get(nodes, "transfers");
    char in[16], out[16];
    size_t i;

    if (!self || !*self)
        return;
    printf("  node %s of %zu\n", self, json_array_size(json_object_get(nodes, "nodes")));
    json_array_foreach (json_object_get(nodes, "nodes"), i, node) {
        const char *name = json_string_value(json_object_get(node, "name"));
        if (!name || !strcmp(name, self))
            continue;
        printf("  node %s: %s%s%s%s\n", name, json_is_true(json_object_get(node, "down")) ? "down" : "up",
               json_is_true(json_object_get(node, "listed")) ? "" : ", not listed",
               json_is_true(json_object_get(node, "home")) ? ", home" : "",
               json_is_true(json_object_get(node, "agent")) ? ", agent" : "");
    }
    if (!t)
        return;
    printf("  transfers: path %s (%s), %lld queues of %lld, %lld outstanding (at most %lld), %lld reads, %s, "
           "%lld writes, %s, p50 "
           "%.1f us, p99 %.1f us, max %.1f us, %lld failed\n",
           json_string_value(json_object_get(t, "path")), json_string_value(json_object_get(t, "device")),
           field(t, "queues"), field(t, "depth"), field(t, "outstanding"), field(t, "outstanding_max"),
           field(t, "reads"), human(field(t, "bytes_read"), in), field(t, "writes"),
           human(field(t, "bytes_written"), out), microseconds(t, "latency_p50_ns"),
           microseconds(t, "latency_p99_ns"), microseconds(t, "latency_max_ns"), field(t, "failed"));
}

/* The daemon has escaped what its users have named; but a user who may mount may run another daemon, and
 * root's terminal must not obey that one. */
static void escape_strings(json_t *node)
{
    json_t *child;
    const char *key;
    size_t i;

    if (json_is_string(node)) {
        size_t size = ESCAPED_SIZE(json_string_length(node));
        char *text = malloc(size);
        if (text)
            escape(json_string_value(node), text, size, false);
        json_string_set(node, text ? text : "?");
        free(text);
    }
    json_object_foreach(node, key, child) escape_strings(child);
    json_array_foreach (node, i, child)
        escape_strings(child);
}

static int print_text(json_t *root)
{
    json_t *device, *file, *open;
    size_t i, j;

    printf("%s on %s\n", json_string_value(json_object_get(root, "data")),
           json_string_value(json_object_get(root, "mount")));
    printf("  %-8s %8s %8s %9s %9s %8s %8s %9s %8s %8s %9s %9s %8s\n", "device", "resident", "capacity",
           "faults", "wr.faults", "in", "out", "collects", "merges", "pg.mrgd", "peer.rds", "evictions",
           "twins");
    json_array_foreach (json_object_get(root, "devices"), i, device) {
        print_device("  ", device);
        if (json_object_get(device, "failure"))
            printf("           its driver has reported %s\n",
                   json_string_value(json_object_get(device, "failure")));
    }
    print_fault(json_object_get(root, "fault"));
    print_nodes(json_object_get(root, "nodes"));
    json_array_foreach (json_object_get(root, "files"), i, file) {
        char size[16], metadata[16];
        printf("%s: %s, %s of metadata\n", json_string_value(json_object_get(file, "path")),
               human(field(file, "size"), size), human(field(file, "metadata_bytes"), metadata));
        json_array_foreach (json_object_get(file, "devices"), j, device)
            print_device("  ", device);
    }
    if (json_array_size(json_object_get(root, "open")))
        printf("open files:\n");
    json_array_foreach (json_object_get(root, "open"), i, open)
        printf("  %-11s %6lld %s\n", json_string_value(json_object_get(open, "mode")), field(open, "opens"),
               json_string_value(json_object_get(open, "path")));
    return printed();
}

static int print_json(json_t *root)
{
    /* Names of members are not escaped above: ASCII has no control characters beyond those that JSON escapes.
     */
    int failed = json_dumpf(root, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);

    putchar('\n');
    return printed() || failed;
}

/* What the daemon has sent, as long as it was when it came: another daemon than ours may go on writing. */
struct statistics {
    int fd;
    off_t left;
};

#define STATISTICS_MOST ((off_t)1 << 30) /* a million open files with long names */

/* Ours sends memory of its own. */
static bool is_memory(struct statistics *statistics)
{
    struct statfs filesystem;
    struct stat st;

    if (fstat(statistics->fd, &st) || fstatfs(statistics->fd, &filesystem))
        return false;
    statistics->left = st.st_size;
    return S_ISREG(st.st_mode) && filesystem.f_type == TMPFS_MAGIC && st.st_size <= STATISTICS_MOST;
}

static size_t read_statistics(void *buffer, size_t size, void *data)
{
    struct statistics *statistics = data;
    size_t wanted = (off_t)size < statistics->left ? size : (size_t)statistics->left;
    ssize_t n = read(statistics->fd, buffer, wanted);

    statistics->left -= n > 0 ? n : 0;
    return n < 0 ? (size_t)-1 : (size_t)n;
}

/* As text or as JSON. */
static int print_statistics(int fd, bool json)
{
    struct statistics statistics = {.fd = fd};
    json_error_t trouble;
    char why[ESCAPED_SIZE(JSON_ERROR_TEXT_LENGTH)];

    if (!is_memory(&statistics)) {
        fprintf(stderr, "gaiactl: what has answered is no daemon of gaiafs\n");
        return 1;
    }
    json_t *root = json_load_callback(read_statistics, &statistics, 0, &trouble);
    if (!root) { /* it has some of what is no JSON */
        escape(trouble.text, why, sizeof why, false);
        fprintf(stderr, "gaiactl: %s\n", why);
        return 1;
    }
    escape_strings(root);
    int status = json ? print_json(root) : print_text(root);
    json_decref(root);
    return status;
}

static int stat_command(int argc, char **argv)
{
    bool json;
    int status = command_options(argc, argv, &json);

    if (status >= 0)
        return status;
    if (optind + 1 != argc) {
        usage(stderr);
        return 2;
    }
    int fd = statistics_of(argv[optind]);
    if (fd < 0)
        return 1;
    status = print_statistics(fd, json);
    close(fd);
    return status;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--help")) {
        usage(stdout);
        return printed();
    }
    if (argc > 1 && !strcmp(argv[1], "--version")) {
        printf("gaiactl %s\n", GAIAFS_VERSION);
        return printed();
    }
    const char *command = argc > 1 ? argv[1] : "";
    if (argc > 1)
        argv[1] = argv[0]; /* whose name getopt_long() says with what is wrong */
    if (!strcmp(command, "stat"))
        return stat_command(argc - 1, argv + 1);
    if (!strcmp(command, "devices"))
        return devices_command(argc - 1, argv + 1);
    usage(stderr);
    return 2;
}
