/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of members: what is wrong with one, the epoch, who is the home of a file. The vectors are not of
 * libxxhash: members_vectors.py has XXH3 of its own and prints them. GAIA_TEST_SEED repeats random choices.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/members.h"
#include "tests/consistency/seed.h"

#define TIME_LIMIT_S 240 /* a machine may have other work */
#define FILES 100000u
#define ALL UINT32_MAX

static struct members *parsed(const char *text, const char *self)
{
    struct members *members = NULL;
    char why[MEMBERS_WHY] = "";
    int error = members_parse(text, self, &members, why);

    if (error)
        fail_msg("%s: %d, %s", text, error, why);
    assert_non_null(members);
    return members;
}

/* The first n of host-0 to host-31, in an order of the seed's, but for one (skip, n: none). */
static struct members *hosts(unsigned n, unsigned skip)
{
    char text[MEMBERS_MAX * 48], self[16];
    unsigned order[MEMBERS_MAX];
    size_t length = 0;

    for (unsigned i = 0; i < n; i++) {
        unsigned at = (unsigned)seed_below(i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    for (unsigned i = 0; i < n; i++)
        if (order[i] != skip)
            length += (size_t)sprintf(text + length, "%shost-%u@10.0.0.%u:%u", length ? "/" : "", order[i],
                                      order[i] + 1, 7000 + order[i]);
    snprintf(self, sizeof self, "host-%u", skip ? 0 : 1);
    return parsed(text, self);
}

/* ---- lists ---- */

static void test_list(void **state)
{
    struct members *members = parsed("zoe@10.0.0.3:7471/A.b_c-9@10.0.0.1:1/adam@10.0.0.2:065535", "adam");

    (void)state;
    assert_int_equal(members->count, 3);
    assert_int_equal(members->self, 1);
    assert_string_equal(members->list[0].name, "A.b_c-9");
    assert_string_equal(members->list[0].address, "10.0.0.1:1");
    assert_string_equal(members->list[1].address, "10.0.0.2:65535"); /* one spelling */
    assert_string_equal(members->list[2].name, "zoe");
    assert_int_equal(members->list[2].carrier, GAIA_CARRIER_RDMA);
    members_free(members);
    members_free(NULL);

    members = parsed("a@[FD00:0:0::1]:7471/b@[fd00::2]:7471", "b");
    assert_string_equal(members->list[0].address, "[fd00::1]:7471");
    assert_string_equal(members->list[1].address, "[fd00::2]:7471");
    members_free(members);

    members = parsed("only@local:7471", "only");
    assert_int_equal(members->list[0].carrier, GAIA_CARRIER_LOCAL);
    assert_string_equal(members->list[0].address, "7471");
    members_free(members);
}

#define NAME_63 "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijk"
#define SOCKET_80                                                            \
    "0123456789012345678901234567890123456789012345678901234567890123456789" \
    "0123456789"

static void test_bounds(void **state)
{
    struct members *members = parsed(NAME_63 "@local:" SOCKET_80, NAME_63);

    (void)state;
    assert_string_equal(members->list[0].name, NAME_63);
    assert_string_equal(members->list[0].address, SOCKET_80);
    members_free(members);
    members = hosts(MEMBERS_MAX, MEMBERS_MAX);
    assert_int_equal(members->count, MEMBERS_MAX);
    members_free(members);
}

static void refused(const char *text, const char *self, const char *expected)
{
    struct members *members = (void *)1;
    char why[MEMBERS_WHY] = "";
    int error = members_parse(text, self, &members, why);

    if (error != -EINVAL || !strstr(why, expected))
        fail_msg("%s, node %s: %d, '%s' instead of '%s'", text, self, error, why, expected);
    assert_ptr_equal(members, (void *)1); /* written on success only */
}

static void test_errors(void **state)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", "no members (NAME@HOST:PORT"},
        {"/", "member 1 of the list is empty"},
        {"a@10.0.0.1:1/", "member 2 of the list is empty"},
        {"a@10.0.0.1:1//b@10.0.0.2:1", "member 2 of the list is empty"},
        {"a@10.0.0.1:1/b", "member b has no address"},
        {"a@10.0.0.1:1/b@", "member b has no address"},
        {"a", "member a has no address"},
        {"@10.0.0.1:1", "a member without a name"},
        {"@", "a member without a name"},
        {NAME_63 "l@10.0.0.1:1", "a name of more than 63 bytes"},
        {"a b@10.0.0.1:1", "member a b: a name has letters"},
        {"a,b@10.0.0.1:1", "member a,b: a name has letters"},
        {"\xc3\xa9@10.0.0.1:1", "member ??: a name has letters"},
        {"a\n@10.0.0.1:1", "member a?: a name has letters"},
        {"a@10.0.0.1:1/b@10.0.0.2:1/a@10.0.0.3:1", "member a is listed twice"},
        {"a@local:x/a@local:x", "member a is listed twice"},
        {"a@10.0.0.1:1/b@10.0.0.1:1", "members a and b have the same address"},
        {"a@10.0.0.1:1/b@10.0.0.1:01", "members a and b have the same address"},
        {"a@[fd00::1]:1/b@[FD00:0::0:1]:1", "members a and b have the same address"},
        {"a@local:x/b@local:x", "members a and b have the same address"},
        {"a@10.0.0.1:1/b@local:x", "members a and b: one has a local address, the other has not"},
        {"a@local:x/b@10.0.0.1:1", "members a and b: one has a local address, the other has not"},
        {"a@10.0.0.1:1/b@[fd00::1]:1", "members a and b: one address is IPv4, the other IPv6"},
        {"a@10.0.0.1", "member a: 10.0.0.1 has no port"},
        {"a@[fd00::1]", "member a: [fd00::1] has no port"},
        {"a@10.0.0.1:", "member a: the port of 10.0.0.1: is not a number from 1 to 65535"},
        {"a@10.0.0.1:0", "the port of 10.0.0.1:0 is not"},
        {"a@10.0.0.1:65536", "the port of 10.0.0.1:65536 is not"},
        {"a@10.0.0.1:99999999999999999999999", "is not a number from 1 to 65535"},
        {"a@10.0.0.1:+1", "is not a number from 1 to 65535"},
        {"a@10.0.0.1:7x", "is not a number from 1 to 65535"},
        {"a@:1", "member a: :1 is not an address in numbers"},
        {"a@host:1", "member a: host:1 is not an address in numbers"},
        {"a@10.0.0:1", "not an address in numbers"},
        {"a@10.0.0.256:1", "not an address in numbers"},
        {"a@fd00::1:1", "member a: fd00::1:1 is not an address in numbers"},
        {"a@[fd00::1:1", "not an address in numbers"},
        {"a@[10.0.0.1]:1", "not an address in numbers"},
        {"a@[]:1", "not an address in numbers"},
        {"a@[:1", "not an address in numbers"},
        {"a@b@10.0.0.1:1", "not an address in numbers"},
        {"a@0.0.0.0:1", "member a: 0.0.0.0 is the address of no machine"},
        {"a@[::]:1", "member a: [::] is the address of no machine"},
        {"a@[fe80::1]:1", "member a: [fe80::1] is an address of one link only"},
        {"a@[fd00::1]:1/b@[febf::2]:1", "member b: [febf::2] is an address of one link only"},
        {"a@local:", "member a: no socket behind local: (a name, and no path)"},
        {"a@local:/run/a", "member a: no socket behind local: (a name, and no path)"},
        {"a@local:" SOCKET_80 "0", "member a: a socket's name of more than 80 bytes"},
        {"a@local:x@y", "member a: a socket's name has letters"},
        {"a@Local:1", "not an address in numbers"},
        {"b@10.0.0.1:1", "node a is not among the members"},
        {"A@10.0.0.1:1/aa@10.0.0.2:1", "node a is not among the members"},
    };
    char text[2000] = "a@" SOCKET_80 SOCKET_80 ":1";

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(cases[i].text, "a", cases[i].why);
    refused(text, "a", "member a: an address of more than 127 bytes");
    refused("a@10.0.0.1:1", "", "node : a name has 1 to 63 letters");
    refused("a@10.0.0.1:1", "a/b", "node a/b: a name has 1 to 63 letters");
    refused("a@10.0.0.1:1", NAME_63 "l", "a name has 1 to 63 letters");
    *text = '\0';
    for (unsigned i = 0; i <= MEMBERS_MAX; i++)
        sprintf(text + strlen(text), "%sm%u@local:%u", i ? "/" : "", i, i);
    refused(text, "m0", "more than 32 members");
    /* The longest sentence has its end. */
    sprintf(text, "%s@[%s", NAME_63, SOCKET_80 ":1");
    refused(text, "a", "(10.0.0.1:7471, [fd00::1]:7471)");
}

/* ---- files ---- */

static char path[200];

static void write_text(const char *text, size_t length)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static int read_members(const char *text, size_t length, const char *self, struct members **members_out,
                        char *why_out)
{
    write_text(text, length);
    return members_read(path, self, members_out, why_out);
}

static void test_file(void **state)
{
    static const char text[] = "# who is there\n\n  b@10.0.0.2:7471\t\r\n\t# and\n \t\na@10.0.0.1:7471";
    struct members *members, *same = parsed("a@10.0.0.1:7471/b@10.0.0.2:7471", "b");
    char why[MEMBERS_WHY];

    (void)state;
    assert_int_equal(read_members(text, strlen(text), "b", &members, why), 0);
    assert_int_equal(members->count, 2);
    assert_int_equal(members->self, 1);
    assert_memory_equal(members, same, sizeof *members);
    members_free(members);
    members_free(same);
}

static void test_file_errors(void **state)
{
    static const struct {
        const char *text, *why;
        size_t length;
    } cases[] = {
        {"", "no members", 0},
        {"\n\n# a@local:x\n", "no members", 0},
        {"# x\na@local:x\n\nb@local:x\n", "line 4: members a and b have the same address", 0},
        {"a@local:x\na@local:y", "line 2: member a is listed twice", 0},
        {"a@local:x\nb@local:y # b\n", "line 2: member b: a socket's name has", 0},
        {"a@local:x/b@local:y\n", "line 1: member a: a socket's name has", 0},
        {"a@10.0.0.1:0\n", "line 1: member a: the port of", 0},
        {"b@local:x\n", "node a is not among the members", 0},
        {"a@local:\0x\n", "line 1: member a: a socket's name has", 11},
        {"a\0@local:x\n", "line 1: member a", 11},
        {"a@10.0.0.1:1\0\n", "line 1: member a: ", 14},
    };
    struct members *members = (void *)1;
    char why[MEMBERS_WHY], *large = malloc((64 << 10) + 1);

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length = cases[i].length ? cases[i].length : strlen(cases[i].text);
        int error = read_members(cases[i].text, length, "a", &members, why);
        if (error != -EINVAL || !strstr(why, cases[i].why))
            fail_msg("%s: %d, '%s' instead of '%s'", cases[i].text, error, why, cases[i].why);
    }
    assert_ptr_equal(members, (void *)1);
    memset(large, '\n', (64 << 10) + 1);
    memcpy(large, "a@local:x", 9);
    assert_int_equal(read_members(large, (64 << 10) + 1, "a", &members, why), -EFBIG);
    assert_string_equal(why, "the file has more than 64 KiB");
    assert_int_equal(read_members(large, 64 << 10, "a", &members, why), 0);
    members_free(members);
    free(large);
    unlink(path);
    assert_int_equal(members_read(path, "a", &members, why), -ENOENT);
    assert_string_equal(why, "No such file or directory");
    assert_int_equal(members_read("/", "a", &members, why), -EISDIR);
    assert_string_equal(why, "Is a directory");
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes: it is not waited for */
    assert_int_equal(members_read(path, "a", &members, why), -EINVAL);
    unlink(path);
}

/* Bytes that nobody has thought of, and lists that somebody has mangled: an answer, a sentence, no crash. */
static void test_noise(void **state)
{
    static const char alphabet[] = "ab@@@//::..[]10local:\n# \t\r-";
    static const char list[] = "a@10.0.0.1:7471/b@10.0.0.2:7471/c@10.0.0.3:7471";
    unsigned good = 0, bad = 0;

    (void)state;
    for (unsigned round = 0; round < 60000; round++) {
        size_t length = seed_below(round % 3 ? 60 : 200);
        char *text = malloc(length + 1), why[MEMBERS_WHY], self[2] = {'a', '\0'}; /* ASan sees its end */
        struct members *members = NULL;
        int error;

        if (round % 3 == 0) {
            seed_fill((uint8_t *)text, length);
        } else if (round % 3 == 1) {
            for (size_t i = 0; i < length; i++)
                text[i] = alphabet[seed_below(sizeof alphabet - 1)];
        } else {
            length = length < sizeof list - 1 ? length : sizeof list - 1;
            memcpy(text, list, length);
            for (size_t i = seed_below(3); length && i; i--)
                text[seed_below(length)] = alphabet[seed_below(sizeof alphabet - 1)];
        }
        text[length] = '\0';
        memset(why, 'x', sizeof why);
        error = round % 16 ? members_parse(text, self, &members, why)
                           : read_members(text, length, self, &members, why);
        assert_true(error ? error == -EINVAL && !members && strnlen(why, sizeof why) < sizeof why && *why
                          : members && members->count >= 1 && members->count <= MEMBERS_MAX &&
                                !strcmp(members->list[members->self].name, self));
        error ? bad++ : good++;
        members_free(members);
        free(text);
    }
    unlink(path);
    printf("%u lists, %u of them good\n", good + bad, good);
    assert_true(good > 100 && bad > 10000); /* else this has looked at one side only */
}

/* ---- epochs and homes ---- */

static void test_epoch(void **state)
{
    struct members *first = hosts(20, 20), *less = hosts(20, 7), *other;

    (void)state;
    for (unsigned round = 0; round < 200; round++) {
        struct members *again = hosts(20, 20);
        assert_memory_equal(first, again, sizeof *first);
        members_free(again);
    }
    assert_int_not_equal(first->epoch, less->epoch);
    members_free(less);
    members_free(first);
    /* Nor with another name, address, port, carrier; the same on every node. */
    first = parsed("a@10.0.0.1:1/b@10.0.0.2:1", "a");
    static const char *const lists[] = {"a@10.0.0.1:1/c@10.0.0.2:1", "a@10.0.0.1:1/b@10.0.0.3:1",
                                        "a@10.0.0.1:1/b@10.0.0.2:2", "a@local:x/b@local:y",
                                        "a@10.0.0.2:1/b@10.0.0.1:1", "a@10.0.0.1:1"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        other = parsed(lists[i], "a");
        assert_int_not_equal(first->epoch, other->epoch);
        members_free(other);
    }
    other = parsed("b@10.0.0.2:1/a@10.0.0.1:1", "b");
    assert_int_equal(first->epoch, other->epoch);
    assert_int_not_equal(first->self, other->self);
    members_free(other);
    members_free(first);
}

static void test_vectors(void **state)
{
    static const size_t lengths[] = {1, 3, 4, 8, 9, 16, 17, 24, 64, 128, 129, 240};
    static const struct {
        const char *text;
        uint64_t epoch;
        unsigned homes[12];
    } vectors[] = {
        /* python3 tests/io/members_vectors.py */
        {"a@local:x", 0x1a3b5965efbf6fc8, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
        {"a@local:x/b@local:y", 0x3f818bb5b0d1576b, {0, 0, 1, 0, 1, 1, 1, 0, 1, 0, 0, 0}},
        {"node1@10.0.0.1:7471/node2@10.0.0.2:7471", 0x6621d2bea02f4544, {1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0}},
        {"one@[fd00::1]:7471/three@[fd00::3]:7471/two@[fd00::2]:7471",
         0xd6c611de41cca9ad,
         {1, 0, 1, 0, 0, 2, 0, 1, 0, 0, 0, 2}},
        {"host-01.example@10.1.2.1:7401/host-02.example@10.1.2.2:7402/host-03.example@10.1.2.3:7403/"
         "host-04.example@10.1.2.4:7404/host-05.example@10.1.2.5:7405/host-06.example@10.1.2.6:7406",
         0x7ed8fc9ddab57cea,
         {5, 1, 4, 1, 3, 0, 2, 4, 5, 5, 3, 0}},
    };

    (void)state;
    for (size_t v = 0; v < sizeof vectors / sizeof *vectors; v++) {
        char self[MEMBER_NAME_MAX];
        struct members *members;

        snprintf(self, sizeof self, "%.*s", (int)strcspn(vectors[v].text, "@"), vectors[v].text);
        members = parsed(vectors[v].text, self);
        assert_int_equal(members->epoch, vectors[v].epoch);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            uint8_t identity[240];
            for (size_t i = 0; i < lengths[l]; i++)
                identity[i] = (uint8_t)(7 * lengths[l] + i);
            assert_int_equal(members_home(members, ALL, identity, lengths[l]), vectors[v].homes[l]);
        }
        members_free(members);
    }
}

/* As handles are: a filesystem, and numbers one after the other. */
struct identity {
    uint64_t filesystem, file;
};

static struct identity identity_of(unsigned number)
{
    return (struct identity){0x5ca1ab1e, 1000000 + number};
}

static unsigned home_of(const struct members *members, uint32_t alive, unsigned number)
{
    struct identity identity = identity_of(number);

    return members_home(members, alive, &identity, sizeof identity);
}

/* Every member has its share of the files, within six standard deviations of chance. */
static void test_shares(void **state)
{
    static const unsigned counts[] = {1, 2, 3, 5, 16, MEMBERS_MAX};

    (void)state;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        struct members *members = hosts(counts[c], counts[c]);
        unsigned share[MEMBERS_MAX] = {0}, n = counts[c], least = FILES, most = 0;
        uint64_t variance = (uint64_t)FILES * (n - 1) / n / n;

        for (unsigned i = 0; i < FILES; i++)
            share[home_of(members, ALL, i)]++;
        for (unsigned i = 0; i < n; i++) {
            int64_t off = (int64_t)share[i] - FILES / n;
            least = share[i] < least ? share[i] : least;
            most = share[i] > most ? share[i] : most;
            assert_true((uint64_t)(off * off) <= 36 * variance + 36);
        }
        printf("%2u members: %u to %u of %u files each\n", n, least, most, FILES);
        members_free(members);
    }
}

/* A member goes: its files go to the others, about as many to each, and no other file moves. Read backwards:
 * a member comes, and files move to it alone. A member that is not alive is as one that is not there. */
static void test_moves(void **state)
{
    for (unsigned n = 2; n <= 12; n += 5) {
        unsigned gone = (unsigned)seed_below(n);
        struct members *before = hosts(n, n), *after = hosts(n, gone);
        unsigned index = 0, moved = 0, got[MEMBERS_MAX] = {0};
        char name[16];

        (void)state;
        snprintf(name, sizeof name, "host-%u", gone);
        while (strcmp(before->list[index].name, name) != 0)
            index++;
        assert_int_equal(after->count, n - 1);
        for (unsigned i = 0; i < FILES; i++) {
            unsigned old = home_of(before, ALL, i), new = home_of(after, ALL, i);
            unsigned masked = home_of(before, ALL & ~(UINT32_C(1) << index), i);

            assert_string_equal(before->list[masked].name, after->list[new].name);
            if (old == index) {
                moved++;
                got[new]++;
            } else {
                assert_string_equal(before->list[old].name, after->list[new].name);
            }
        }
        assert_in_range(moved, FILES / n - FILES / n / 10, FILES / n + FILES / n / 10);
        for (unsigned i = 0; i < n - 1; i++)
            assert_in_range(got[i], moved / (n - 1) * 8 / 10, moved / (n - 1) * 12 / 10 + 1);
        members_free(before);
        members_free(after);
    }
}

/* Who is alive: the home is one of them, the same as that of the whole list where that one lives, and bits
 * past the last member say nothing. Alone alive, a member has every file. */
static void test_alive(void **state)
{
    struct members *members = hosts(9, 9);

    (void)state;
    for (unsigned i = 0; i < FILES; i++) {
        unsigned all = home_of(members, ALL, i), home;
        uint32_t alive = (uint32_t)seed_next() & 0x1ff;

        if (!alive)
            continue;
        home = home_of(members, alive, i);
        assert_true(alive >> home & 1);
        if (alive >> all & 1)
            assert_int_equal(home, all);
        assert_int_equal(home_of(members, alive | 0xfffffe00, i), home);
        assert_int_equal(home_of(members, UINT32_C(1) << (i % 9), i), i % 9);
    }
    members_free(members);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),  cmocka_unit_test(test_bounds),      cmocka_unit_test(test_errors),
        cmocka_unit_test(test_file),  cmocka_unit_test(test_file_errors), cmocka_unit_test(test_noise),
        cmocka_unit_test(test_epoch), cmocka_unit_test(test_vectors),     cmocka_unit_test(test_shares),
        cmocka_unit_test(test_moves), cmocka_unit_test(test_alive),
    };
    const char *folder = getenv("GAIA_TEST_DIR");

    alarm(TIME_LIMIT_S);
    seed_start();
    snprintf(path, sizeof path, "%s/gaiafs-members-%d", folder ? folder : "/var/tmp", (int)getpid());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
