/* SPDX-License-Identifier: Apache-2.0 */
/* Decide whether a history is one that the promises of gaia.h allow; rules.c says which are.
 *
 * usage: checker FOLDER          the logs of a run of driver
 *        checker --page FOLDER FILE PAGE    everything that was done to a page
 *        checker --cases FILE    histories by hand (cases.txt): each must be accepted, or rejected by its
 * rule
 *
 * Exit status: 0, all allowed (all cases judged as they say); 1, not; 2, the log can't be read. */
#include "checker.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REPORTS_MAX 3u
#define CASE_OPS_MAX 200u

static const char *const names[OPERATIONS] = {[OP_WRITE] = "write",
                                              [OP_APPEND] = "append",
                                              [OP_STORE] = "store",
                                              [OP_READ] = "read",
                                              [OP_LOAD] = "load",
                                              [OP_DEVICE_STORE] = "device-store",
                                              [OP_DEVICE_LOAD] = "device-load",
                                              [OP_ACQUIRE] = "acquire",
                                              [OP_RELEASE] = "release",
                                              [OP_TRUNCATE] = "truncate",
                                              [OP_OTHER] = "other"};

const char *op_name(const struct op *op)
{
    return names[op->operation];
}

void print_op(const struct op *op)
{
    printf("%" PRIu64 "..", op->invoked);
    if (op->answered != NEVER)
        printf("%" PRIu64, op->answered);
    printf(" worker %u.%u", op->worker, op->incarnation);
    if (op->node)
        printf(" node %u", op->node);
    printf(" %s", op_name(op));
    if (op->operation == OP_ACQUIRE || op->operation == OP_RELEASE || op->operation == OP_DEVICE_STORE ||
        op->operation == OP_DEVICE_LOAD)
        printf(" soft:%u", op->device);
    if (op->operation == OP_TRUNCATE)
        printf(" to %" PRIu64, op->length);
    else if (op->offset == NEVER)
        printf(" somewhere, %" PRIu64 " bytes", op->length);
    else
        printf(" %" PRIu64 "+%" PRIu64, op->offset, op->length);
    if (op->result != (int64_t)op->length && op->result != 0)
        printf(" = %" PRId64, op->result);
    printf("%s%s\n", op->flags & ENTRY_KILLED ? " (killed)" : "",
           op->flags & ENTRY_SIGBUS ? " (SIGBUS)" : "");
}

static void fail(const char *what, const char *path)
{
    fprintf(stderr, "checker: %s: %s\n", path, what);
    exit(2);
}

static void *grow(void *memory, size_t count, size_t size)
{
    memory = realloc(memory, count * size);
    if (!memory)
        fail("no memory", "checker");
    return memory;
}

/* --- logs ------------------------------------------------------------------------------------------------
 */

static const void *map_file(const char *path, size_t least)
{
    struct stat status;
    int fd = open(path, O_RDONLY);

    if (fd < 0 || fstat(fd, &status) || (size_t)status.st_size < least)
        fail(fd < 0 ? strerror(errno) : "too short", path);
    void *memory = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (memory == MAP_FAILED)
        fail(strerror(errno), path);
    close(fd);
    return memory;
}

static void add_entry(struct history *history, size_t *room, const struct entry *entry)
{
    if (history->count == *room) {
        *room = *room ? 2 * *room : 1024;
        history->ops = grow(history->ops, *room, sizeof *history->ops);
    }
    history->ops[history->count++] = (struct op){.invoked = entry->invoked,
                                                 .answered = entry->answered ? entry->answered : NEVER,
                                                 .offset = entry->offset,
                                                 .length = entry->length,
                                                 .result = entry->result,
                                                 .bytes = (const uint8_t *)(entry + 1),
                                                 .worker = entry->worker,
                                                 .incarnation = entry->incarnation,
                                                 .node = entry->node,
                                                 .operation = entry->operation,
                                                 .device = entry->device,
                                                 .file = entry->file,
                                                 .flags = entry->flags};
}

static bool entry_is_good(const struct entry *entry, uint64_t room)
{
    return room >= sizeof *entry && entry->size >= sizeof *entry && entry->size <= room &&
           entry->size % 8 == 0 && entry->operation > 0 && entry->operation < OPERATIONS &&
           entry->device < DEVICES_MAX && entry->file < FILES_MAX && entry->node < NODES_MAX &&
           entry->invoked &&
           entry->result <= (int64_t)(entry->operation == OP_READ || entry->operation == OP_LOAD ||
                                              entry->operation == OP_DEVICE_LOAD
                                          ? entry->size - sizeof *entry
                                          : UINT32_MAX);
}

static void read_log(struct history *history, size_t *room, const char *path)
{
    const struct log_header *log = map_file(path, sizeof *log);
    const uint8_t *bytes = (const uint8_t *)(log + 1);
    uint64_t used = log->used;

    for (uint64_t at = 0; at < used;) {
        const struct entry *entry = (const struct entry *)(bytes + at);
        if (!entry_is_good(entry, used - at))
            fail("malformed entry", path);
        add_entry(history, room, entry);
        at += entry->size;
    }
}

static int compare_invoked(const void *a, const void *b)
{
    const struct op *x = a, *y = b;

    return x->invoked < y->invoked ? -1 : x->invoked > y->invoked;
}

static const struct control *read_run(const char *folder, struct history *history)
{
    char path[4096];
    size_t room = 0;

    snprintf(path, sizeof path, "%s/control", folder);
    const struct control *control = map_file(path, sizeof *control);
    if (control->magic != HISTORY_MAGIC || control->files > FILES_MAX)
        fail("not a control file", path);
    history->files = control->files;
    history->nodes = control->nodes;
    memcpy(history->file, control->file, sizeof history->file);
    for (unsigned i = 0; i <= WORKERS_MAX; i++) {
        snprintf(path, sizeof path, "%s/log.%u", folder, i);
        if (!access(path, F_OK))
            read_log(history, &room, path);
    }
    qsort(history->ops, history->count, sizeof *history->ops, compare_invoked);
    return control;
}

static int check_run(const char *folder)
{
    struct history history = {0};
    struct summary summary;
    const struct control *control = read_run(folder, &history);
    uint64_t killed = 0, done[OPERATIONS] = {0};

    check_history(&history, REPORTS_MAX, &summary);
    for (size_t i = 0; i < history.count; i++) {
        killed += history.ops[i].flags & ENTRY_KILLED;
        done[history.ops[i].operation]++;
    }
    printf("operations %zu (answered never: %" PRIu64 "), stores %" PRIu64 ", truncations %" PRIu64
           ", kills %u, inside %u, ",
           history.count, killed, done[OP_STORE], done[OP_TRUNCATE], control->kills, control->kills_inside);
    printf("reads %" PRIu64 ", cells %" PRIu64 ", bytes %" PRIu64 ", races open %" PRIu64
           ", races settled %" PRIu64 ", most values %" PRIu64 ", undone %" PRIu64 ", violations %" PRIu64
           "\n",
           summary.reads, summary.cells, summary.bytes, summary.open_cells, summary.settled,
           summary.most_live, summary.undone, summary.violations);
    if (summary.violations)
        printf("first: rule %s, %s\n", summary.first_rule, summary.first);
    return summary.violations != 0;
}

/* Everything that was done to a page, for whoever looks into a failure. */
static int show_page(const char *folder, unsigned file, uint64_t page)
{
    struct history history = {0};

    read_run(folder, &history);
    for (size_t i = 0; i < history.count; i++) {
        const struct op *op = &history.ops[i];
        if (op->file != file || (op->operation == OP_OTHER && !strchr(SYNCS, (int)op->length)) ||
            (op->operation != OP_TRUNCATE && op->operation != OP_OTHER && op->offset != NEVER &&
             (op->offset / PAGE > page || op->offset + op->length <= page * PAGE)))
            continue;
        print_op(op);
    }
    return 0;
}

/* --- histories by hand -----------------------------------------------------------------------------------
 */

static const struct {
    const char *name;
    enum operation operation;
    bool device;
} words[] = {
    {"write", OP_WRITE, false},       {"append", OP_APPEND, false},  {"store", OP_STORE, false},
    {"read", OP_READ, false},         {"load", OP_LOAD, false},      {"dstore", OP_DEVICE_STORE, true},
    {"dload", OP_DEVICE_LOAD, true},  {"acquire", OP_ACQUIRE, true}, {"release", OP_RELEASE, true},
    {"truncate", OP_TRUNCATE, false}, {"sync", OP_OTHER, false}};

/* WORD, WORD@NODE; of a device: WORDn, whose node is n. */
static bool parse_word(struct op *op, char *word, bool nodes)
{
    char *at = strchr(word, '@');

    if (at) {
        *at = 0;
        op->node = (uint32_t)strtoul(at + 1, NULL, 10);
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i].name);
        if (strncmp(word, words[i].name, length) || strlen(word) != length + words[i].device)
            continue;
        op->operation = (uint8_t)words[i].operation;
        op->device = words[i].device ? (uint8_t)(word[length] - '0') : 0;
        if (words[i].device && nodes)
            op->node = op->device;
        if (op->operation == OP_OTHER)
            op->length = SYNCS[0];
        return op->device < DEVICES_MAX && op->node < NODES_MAX;
    }
    return false;
}

/* "3", "3/5" (bytes of both in turn), "0" (zeros), "garbage": what a read of the case saw. */
static uint8_t *parse_seen(const struct op *op, const char *text, const struct op *ops, size_t count)
{
    uint64_t ids[8] = {0};
    size_t used = 0;
    uint8_t *bytes = grow(NULL, op->length ? op->length : 1, 1);

    if (!strcmp(text, "garbage")) {
        value_fill(bytes, 987654321, op->offset, op->length, 0);
        return bytes;
    }
    for (const char *at = text; at && used < 8; at = strchr(at, '/') ? strchr(at, '/') + 1 : NULL)
        ids[used++] = strtoull(at, NULL, 10);
    for (uint64_t i = 0; i < op->length; i++) {
        uint64_t id = ids[i % used], at = op->offset + i;
        for (size_t j = 0; j < count; j++)
            if (ops[j].invoked == id && ops[j].operation == OP_APPEND)
                at %= GRAIN_MAX;
        bytes[i] = id ? value_byte(id, at) : 0;
    }
    return bytes;
}

/* INVOKED ANSWERED OPERATION OFFSET LENGTH [sees VALUE] [done COUNT] [sigbus COUNT]. ANSWERED: a number, k
 * and a number (killed then). */
static bool parse_op(char *line, struct history *history)
{
    char answered[32], word[32], *rest;
    unsigned long long invoked, offset, length;
    int used;
    struct op *op = &history->ops[history->count];

    if (sscanf(line, "%llu %31s %31s %llu %llu%n", &invoked, answered, word, &offset, &length, &used) != 5)
        return false;
    *op = (struct op){.invoked = invoked, .offset = offset, .length = length, .result = (int64_t)length};
    if (!parse_word(op, word, history->nodes > 1))
        return false;
    if (answered[0] == 'k')
        op->flags |= ENTRY_KILLED;
    op->answered = strtoull(answered + (answered[0] == 'k'), NULL, 10);
    rest = line + used;
    for (char *key = strtok(rest, " \n"); key; key = strtok(NULL, " \n")) {
        char *value = strtok(NULL, " \n");
        if (!value)
            return false;
        if (!strcmp(key, "sees"))
            op->bytes = parse_seen(op, value, history->ops, history->count);
        else
            op->result = strtoll(value, NULL, 10);
        if (!strcmp(key, "sigbus"))
            op->flags |= ENTRY_SIGBUS;
    }
    history->count++;
    return history->count < CASE_OPS_MAX;
}

static bool judge(struct history *history, const char *name, const char *verdict, bool *good)
{
    struct summary summary;
    char found[160] = "accept";

    qsort(history->ops, history->count, sizeof *history->ops, compare_invoked);
    check_history(history, 0, &summary);
    if (summary.violations)
        snprintf(found, sizeof found, "reject %s", summary.first_rule);
    *good = !strcmp(found, verdict);
    printf("%s %s: %s%s%s\n", *good ? "ok  " : "FAIL", name, found, *good ? "" : ", not ",
           *good ? "" : verdict);
    history->count = 0;
    return *good;
}

static int check_cases(const char *path)
{
    char line[512], name[256] = "";
    struct history history = {.files = 1};
    unsigned passed = 0, failed = 0;
    FILE *file = fopen(path, "r");

    if (!file)
        fail(strerror(errno), path);
    history.ops = grow(NULL, CASE_OPS_MAX, sizeof *history.ops);
    while (fgets(line, sizeof line, file)) {
        bool good;
        line[strcspn(line, "\n")] = 0;
        if (!line[0] || line[0] == '#')
            continue;
        if (sscanf(line, "case %255[^\n]", name) == 1)
            history.file[0] = (struct history_file){PAGE, PAGE, 0}, history.nodes = 1;
        else if (sscanf(line, "nodes %" SCNu32, &history.nodes) == 1)
            continue;
        else if (!strncmp(line, "accept", 6) || !strncmp(line, "reject ", 7))
            judge(&history, name, line, &good) ? passed++ : failed++;
        else if (sscanf(line, "size %" SCNu64 " most %" SCNu64, &history.file[0].size,
                        &history.file[0].most) == 2)
            history.file[0].varies = 1;
        else if (!parse_op(line, &history))
            fail(line, path);
    }
    fclose(file);
    printf("%u cases passed, %u failed\n", passed, failed);
    return failed || !passed;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--cases"))
        return check_cases(argv[2]);
    if (argc == 5 && !strcmp(argv[1], "--page"))
        return show_page(argv[2], (unsigned)strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
    if (argc == 2 && argv[1][0] != '-')
        return check_run(argv[1]);
    fprintf(stderr, "usage: %s FOLDER, %s --cases FILE\n", argv[0], argv[0]);
    return 2;
}
