/* SPDX-License-Identifier: Apache-2.0 */
/* io/members.c: lists of members, as an option and as a file, by people who err. What is taken is a list that
 * is read again as the same one, in any order. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/members.h"
#include "tests/fuzz/fuzz.h"

const unsigned fuzz_runs = 6000;

static const char *const words[] = {"a",
                                    "b",
                                    "node-1",
                                    "@",
                                    "/",
                                    ":",
                                    "local:",
                                    "socket",
                                    "10.0.0.1:7471",
                                    "10.0.0.2:1",
                                    "[fd00::1]:7471",
                                    "[fd00:0::2]:65535",
                                    "[::]:1",
                                    "0.0.0.0:1",
                                    "]",
                                    "[",
                                    "7471",
                                    ":0",
                                    "65536",
                                    "a@local:x",
                                    "/d@local:x",
                                    "b@local:y",
                                    "a@10.0.0.1:7471",
                                    "b@10.0.0.2:7471",
                                    "/c@[fd00::3]:9",
                                    "\n",
                                    "#",
                                    "0123456789012345678901234567890123456789012345678901234567890123",
                                    "\t",
                                    "\r",
                                    " ",
                                    "010.0.0.1:1"};
#define WORDS (sizeof words / sizeof *words)

/* Of a list that was refused: a sentence, for a terminal. */
static void check_why(const char *why)
{
    size_t length = strnlen(why, MEMBERS_WHY);

    MUST(length && length < MEMBERS_WHY);
    for (size_t i = 0; i < length; i++)
        MUST(why[i] >= ' ' && why[i] <= '~');
}

/* Backwards: the order of a list says nothing. */
static void check_again(const struct members *members)
{
    char text[MEMBERS_MAX * 220], why[MEMBERS_WHY];
    struct members *again;
    size_t length = 0;

    for (unsigned i = members->count; i--;) {
        const struct member *member = &members->list[i];
        length += (size_t)snprintf(text + length, sizeof text - length, "%s@%s%s%s", member->name,
                                   member->carrier == GAIA_CARRIER_LOCAL ? "local:" : "", member->address,
                                   i ? "/" : "");
    }
    MUST(!members_parse(text, members->list[0].name, &again, why));
    MUST(again->count == members->count && again->epoch == members->epoch && !again->self);
    MUST(!memcmp(again->list, members->list, sizeof members->list));
    members_free(again);
}

static void check_list(const struct members *members, const char *self)
{
    MUST(members->count && members->count <= MEMBERS_MAX && members->self < members->count);
    MUST(!strcmp(members->list[members->self].name, self));
    for (unsigned i = 1; i < members->count; i++) {
        MUST(strcmp(members->list[i - 1].name, members->list[i].name) < 0);
        MUST(members->list[i].carrier == members->list[0].carrier);
        for (unsigned j = 0; j < i; j++)
            MUST(strcmp(members->list[j].address, members->list[i].address) != 0);
    }
    check_again(members);
}

/* A home dies: only its files move. */
static void check_homes(const struct members *members, struct input *in)
{
    uint32_t all = members->count == 32 ? UINT32_MAX : (UINT32_C(1) << members->count) - 1;
    uint32_t alive = ((uint32_t)take_u64(in) & all) | 1u;
    uint64_t identity = take_u64(in);
    unsigned home = members_home(members, alive, &identity, sizeof identity);

    MUST(home < members->count && alive >> home & 1);
    for (unsigned i = 1; i < members->count; i++)
        if (alive >> i & 1 && i != home)
            MUST(members_home(members, alive & ~(UINT32_C(1) << i), &identity, sizeof identity) == home);
}

static int parse(const char *text, const char *self, struct members **members_out)
{
    char why[MEMBERS_WHY] = "";
    int error = members_parse(text, self, members_out, why);

    MUST(!error || error == -EINVAL);
    if (error)
        check_why(why);
    else
        check_list(*members_out, self);
    return error;
}

/* The same as a file, with NULs and all. */
static int read_file(const char *text, size_t length, const char *self, struct members **members_out)
{
    char path[64], why[MEMBERS_WHY] = "";
    int fd = memfd_create("members", MFD_CLOEXEC);

    MUST(fd >= 0 && write(fd, text, length) == (ssize_t)length);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int error = members_read(path, self, members_out, why);
    close(fd);
    if (error)
        check_why(why);
    else
        check_list(*members_out, self);
    return error;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    struct members *members, *of_file;
    const char *self = words[take_u8(&in) % 3];
    size_t length;

    /* The numbers of check_homes() are taken from the end. */
    struct input homes = {bytes + (size > 16 ? size - 16 : 0), size > 16 ? 16 : size};
    char *text = take_text(&in, words, WORDS, 16000, &length);
    int error = parse(text, self, &members), file_error = read_file(text, length, self, &of_file);
    if (!file_error)
        check_homes(of_file, &homes);
    /* A list of one line without an end is the same in both when it has one member and nothing else. */
    if (!error && members->count == 1)
        MUST(!file_error && of_file->epoch == members->epoch);
    if (!error)
        members_free(members);
    if (!file_error)
        members_free(of_file);
    free(text);
    return 0;
}
