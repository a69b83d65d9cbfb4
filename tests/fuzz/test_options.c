/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a mount, sizes, and names that are escaped for a terminal: words of people, of fstab and of
 * whoever names a file. */
#include <errno.h>

#include "base/size.h"
#include "fs/escape.h"
#include "fs/log.h"
#include "fs/options.h"
#include "tests/fuzz/fuzz.h"

const unsigned fuzz_runs = 4000;

static const char *const words[] = {"\x01",
                                    "-o",
                                    ",",
                                    "=",
                                    "/data",
                                    "/mnt",
                                    "-f",
                                    "-sv",
                                    "ro",
                                    "rw",
                                    "sync",
                                    "noexec",
                                    "device_cache=",
                                    "soft:",
                                    "cuda:",
                                    "1",
                                    "63",
                                    "64",
                                    "K",
                                    "G",
                                    "T",
                                    "256K",
                                    "200K",
                                    "device_cache=200K",
                                    "64K",
                                    "2M",
                                    "unit=",
                                    "evict=",
                                    "lra",
                                    "clock",
                                    "fault=",
                                    "rdma",
                                    "local",
                                    "@",
                                    "queues=",
                                    "depth=",
                                    "timeout=",
                                    "inodes=",
                                    "remember=",
                                    "log=",
                                    "stderr",
                                    "node=",
                                    "peers=",
                                    "a@local:x",
                                    "/b@local:y",
                                    "a",
                                    "shared",
                                    "passthrough=",
                                    "on",
                                    "all",
                                    "fsname=",
                                    "subtype=",
                                    "18446744073709551615",
                                    "-1",
                                    "99999999999999999999",
                                    "peer_timeout=",
                                    "\\",
                                    ":",
                                    "fault_threads=",
                                    "soft_devices=",
                                    "io=",
                                    "threads",
                                    "gpudirect=",
                                    "off",
                                    "\xc3\xa9",
                                    "remount",
                                    "noatime",
                                    "nodiratime",
                                    "x-systemd.automount",
                                    "\x1b[2J",
                                    "\xf0\x9f\x98\x80",
                                    "\xed\xa0\x80",
                                    "0",
                                    "1.5"};
#define WORDS (sizeof words / sizeof *words)

/* Lines of the log are made, and thrown away: most inputs have some. */
void __wrap_fs_log(int priority, const char *format, ...);
void __wrap_fs_log(int priority, const char *format, ...)
{
    char line[1024];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    MUST(priority <= LOG_DEBUG && *line);
}

#define ARGUMENTS 24

/* Cut at each \x01, and copied: each has an end of its own. */
static int split(const char *text, char *argv[ARGUMENTS])
{
    int argc = 0;

    while (argc < ARGUMENTS) {
        size_t length = strcspn(text, "\x01");
        argv[argc++] = strndup(text, length);
        if (!text[length])
            break;
        text += length + 1;
    }
    return argc;
}

static void check_options(const struct fs_options *options)
{
    const struct cache_config *cache = &options->cache;

    if (options->help || options->version)
        return;
    MUST(options->data && options->mountpoint && options->timeout_s >= 0);
    MUST(cache->unit_pages == 1 || cache->unit_pages == 16 || cache->unit_pages == 512);
    MUST(cache->device_capacity >= 256 << 10 && cache->device_capacity >= cache->unit_pages * GAIA_PAGE_SIZE);
    MUST(cache->soft_devices >= 1 && cache->soft_devices <= GAIA_SOFT_MAX);
    MUST(cache->fault.queues <= GAIA_LINK_QUEUES_MAX && cache->fault.depth <= GAIA_LINK_DEPTH_MAX);
    MUST(!options->members || options->remount || (options->node[0] && !options->passthrough));
    MUST(!strcmp(cache->evict, "lra") || !strcmp(cache->evict, "fifo") || !strcmp(cache->evict, "clock"));
}

static void try_options(const char *text)
{
    struct fs_options options;
    char *argv[ARGUMENTS];
    int argc = split(text, argv);
    int error = options_parse(&options, argc, argv);

    MUST(!error || error == -EINVAL || error == -ENOMEM);
    if (!error)
        check_options(&options);
    options_free(&options);
    while (argc)
        free(argv[--argc]);
}

/* What is shown has no control character, and ends where a character does. */
static void try_escape(const char *text, size_t room, bool backslashes)
{
    char *out = malloc(room);

    MUST(out);
    size_t used = escape(text, out, room, backslashes);
    MUST(used < room && strlen(out) == used);
    for (size_t i = 0; i < used; i++) {
        uint8_t byte = (uint8_t)out[i];
        MUST(byte >= 0x20 && byte != 0x7f);
        if (byte == 0xc2) /* C1 in UTF-8 */
            MUST((uint8_t)out[i + 1] >= 0xa0);
        if (byte >= 0xc0) /* whole characters */
            MUST(((uint8_t)out[i + 1] & 0xc0) == 0x80);
    }
    free(out);
}

static void try_size(const char *text)
{
    uint64_t bytes = size_parse(text);
    char again[32];

    snprintf(again, sizeof again, "%llu", (unsigned long long)bytes);
    MUST(size_parse(again) == bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    size_t length, room = take_u8(&in) + 1u;
    char *text = take_text(&in, words, WORDS, 4000, &length);

    try_options(text);
    try_escape(text, room, room % 2);
    try_size(text);
    free(text);
    return 0;
}
