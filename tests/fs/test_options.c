/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a mount of several nodes: what they set, and what is said of bad ones. */
#define FUSE_USE_VERSION 314
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fuse_lowlevel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/options.h"

#define TIME_LIMIT_S 240 /* a machine may have other work */
#define TWO "node=b,peers=a@10.0.0.1:7471/b@10.0.0.2:7471"

static char said[4096]; /* by the last parse() */

/* mount.gaiafs DATA MOUNT -f -o given; said has what it wrote to stderr. */
static int parse(struct fs_options *options, const char *given)
{
    char name[] = "mount.gaiafs", data[] = "/data", mount[] = "/mnt", stay[] = "-f", flag[] = "-o";
    char *words[] = {name, data, mount, stay, flag, strdup(given), NULL};
    FILE *file = tmpfile();
    int rc, kept = dup(STDERR_FILENO);

    assert_true(file && kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    rc = options_parse(options, 6, words);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = '\0';
    fclose(file);
    free(words[5]);
    return rc;
}

static void good(struct fs_options *options, const char *given)
{
    if (parse(options, given))
        fail_msg("%s: %s", given, said);
    assert_string_equal(said, "");
}

static void bad(const char *given, const char *expected)
{
    struct fs_options options;
    int rc = parse(&options, given);

    if (rc != -EINVAL || !strstr(said, expected))
        fail_msg("%s: %d, '%s' instead of '%s'", given, rc, said, expected);
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); /* one sentence */
    assert_null(options.members);
    assert_null(options.peers);
}

static void test_one_node(void **state)
{
    struct fs_options options;

    (void)state;
    good(&options, "ro");
    assert_null(options.members);
    assert_null(options.peers);
    assert_string_equal(options.node, "");
    assert_int_equal(options.passthrough, FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17));
    assert_false(options_share_directory(&options));
    options_free(&options);
    good(&options, "passthrough=on,passthrough=off");
    assert_false(options.passthrough);
    options_free(&options);
    good(&options, "passthrough=all");
    assert_true(options.passthrough && options.passthrough_all);
    options_free(&options);
    good(&options, "passthrough=all,passthrough=on");
    assert_true(options.passthrough && !options.passthrough_all);
    options_free(&options);
    good(&options, "shared,passthrough=on");
    assert_true(options.cache.shared && options.passthrough && options_share_directory(&options));
    assert_null(options.members);
    options_free(&options);
}

static void test_members(void **state)
{
    static const char *const orders[] = {TWO, "peers=a@10.0.0.1:7471/b@10.0.0.2:7471,node=b",
                                         "passthrough=on," TWO, TWO ",passthrough=on"};
    struct fs_options options;

    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        good(&options, orders[i]);
        assert_non_null(options.members);
        assert_int_equal(options.members->count, 2);
        assert_int_equal(options.members->self, 1);
        assert_string_equal(options.members->list[0].address, "10.0.0.1:7471");
        assert_string_equal(options.node, "b");
        assert_false(options.passthrough);
        assert_false(options.cache.shared);
        assert_true(options_share_directory(&options));
        assert_int_equal(options.cache.fault.timeout_ms, 0);
        options_free(&options);
        options_free(&options); /* nothing is left of it */
    }
    good(&options, TWO ",gpudirect=off,gpudirect=auto");
    assert_false(options.cache.no_gpudirect);
    options_free(&options);
    good(&options, TWO ",peer_timeout=7,fault=local,gpudirect=off");
    assert_true(options.cache.no_gpudirect);
    assert_int_equal(options.cache.fault.timeout_ms, 7000);
    assert_int_equal(options.cache.fault.carrier, FAULT_LOCAL);
    options_free(&options);
    good(&options, "node=x,peers=x@local:s," TWO); /* the last ones count, as with other options */
    assert_string_equal(options.members->list[options.members->self].name, "b");
    options_free(&options);
}

static void test_file(void **state)
{
    const char *folder = getenv("GAIA_TEST_DIR");
    char path[200], given[300];
    struct fs_options options;
    FILE *file;

    (void)state;
    snprintf(path, sizeof path, "%s/gaiafs-options-%d", folder ? folder : "/var/tmp", (int)getpid());
    snprintf(given, sizeof given, "node=b,peers=%s", path);
    bad(given, ": No such file or directory");
    bad(given, path);
    file = fopen(path, "w");
    assert_non_null(file);
    fputs("# two\na@local:x\nb@local:y\n", file);
    fclose(file);
    good(&options, given);
    assert_int_equal(options.members->count, 2);
    assert_int_equal(options.members->list[0].carrier, GAIA_CARRIER_LOCAL);
    options_free(&options);
    file = fopen(path, "a");
    assert_non_null(file);
    fputs("c@local:y\n", file);
    fclose(file);
    bad(given, ": line 4: members b and c have the same address");
    unlink(path);
    bad("node=b,peers=/", "option peers=/: Is a directory");
}

static void test_errors(void **state)
{
    char given[10000] = "node=a,peers=a@10.0.0.1:7471";

    (void)state;
    bad("node=a", "option node=a: peers= is missing");
    bad("peers=a@10.0.0.1:7471", "option peers=: node= is missing");
    bad("peers=/etc/members", "option peers=: node= is missing");
    bad("node=a,peers=", "option peers=: no members");
    bad("node=,peers=a@10.0.0.1:7471", "option node=: a name has 1 to 63 bytes");
    bad("node=a/b,peers=a@10.0.0.1:7471", "option peers=: node a/b: a name has");
    bad("node=c,peers=a@10.0.0.1:7471/b@10.0.0.2:7471", "option peers=: node c is not among the members");
    bad("node=a,peers=a@10.0.0.1:7471/a@10.0.0.2:7471", "option peers=: member a is listed twice");
    bad("node=a,peers=a@10.0.0.1", "option peers=: member a: 10.0.0.1 has no port");
    bad("node=a,peers=a", "option peers=: member a has no address");
    bad("node=a,peers=a@10.0.0.1:1,b@10.0.0.2:1", "unknown option b@10.0.0.2:1"); /* a comma ends an option */
    bad("node", "unknown option node");
    bad("peers", "unknown option peers");
    bad(TWO ",peer_timeout=0", "option peer_timeout=0: not a number from 1 to 600");
    snprintf(given, sizeof given, "node=%0*d,peers=a@10.0.0.1:7471", 64, 0);
    bad(given, "a name has 1 to 63 bytes");
    /* Of a list longer than a line of the log one sees what is wrong all the same. */
    snprintf(given, sizeof given, "node=a,peers=a@10.0.0.1:7471/%0*d", 8000, 0);
    bad(given, "has no address");
}

/* Remounting changes flags of the kernel's: fstab's line may name a file that is gone. */
static void test_remount(void **state)
{
    struct fs_options options;

    (void)state;
    good(&options, "remount,ro,node=a,peers=/nonexistent/members");
    assert_true(options.remount && !options.members);
    options_free(&options);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node), cmocka_unit_test(test_members), cmocka_unit_test(test_file),
        cmocka_unit_test(test_errors),   cmocka_unit_test(test_remount),
    };

    alarm(TIME_LIMIT_S);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
