/* SPDX-License-Identifier: Apache-2.0 */
/* Names of any bytes as text: what is shown as it is, what is escaped, and that no two names are the same
 * text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fs/escape.h"

static void test_what_is_escaped(void **state)
{
    static const struct {
        const char *name, *text;
    } names[] = {
        {"", ""},
        {"plain name.txt", "plain name.txt"},
        {"\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"a\nb\tc\x1b[31m\x7f", "a\\012b\\011c\\033[31m\\177"},
        {"back\\slash", "back\\134slash"},
        {"\\012", "\\134012"},
        {"\xc2\x9b" /* CSI, one character */, "\\302\\233"},
        {"\xc2\xa0", "\xc2\xa0"},
        {"\xff\xfe", "\\377\\376"},
        {"\x80", "\\200"},
        {"\xc3", "\\303"},            /* ends too early, */
        {"\xe2\x82x", "\\342\\202x"}, /* is cut short, */
        {"\xc0\xaf", "\\300\\257"},   /* longer than it need be, */
        {"\xe0\x80\xaf", "\\340\\200\\257"},
        {"\xed\xa0\x80", "\\355\\240\\200"},          /* a surrogate, */
        {"\xf4\x90\x80\x80", "\\364\\220\\200\\200"}, /* beyond the last */
        {"\xf8\x88\x80\x80\x80", "\\370\\210\\200\\200\\200"},
    };
    char text[64];

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t length = escape(names[i].name, text, sizeof text, true);
        assert_string_equal(text, names[i].text);
        assert_int_equal(length, strlen(text));
        escape(names[i].text, text, sizeof text, false); /* once more changes nothing */
        assert_string_equal(text, names[i].text);
    }
}

static void test_a_short_buffer(void **state)
{
    static const char name[] = "a\xc3\xbc\nb", text[] = "a\xc3\xbc\\012b";
    static const size_t ends[] = {0, 1, 3, 7, 8}; /* of whole characters */

    (void)state;
    for (size_t size = 1; size <= ESCAPED_SIZE(sizeof name); size++) {
        char *out = malloc(size); /* of its own, for AddressSanitizer */
        size_t length = escape(name, out, size, true), most = 0;
        for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
            most = ends[i] < size ? ends[i] : most;
        assert_int_equal(length, most);
        assert_int_equal(out[length], '\0');
        assert_memory_equal(out, text, length);
        free(out);
    }
}

/* What /proc/mounts' readers do. */
static void unescape(const char *text, char *name_out)
{
    while (*text) {
        unsigned byte = (unsigned char)*text++;
        if (byte == '\\') {
            byte = (unsigned)((text[0] - '0') << 6 | (text[1] - '0') << 3 | (text[2] - '0'));
            text += 3;
        }
        *name_out++ = (char)byte;
    }
    *name_out = '\0';
}

static void test_nothing_is_lost(void **state)
{
    char name[8], text[ESCAPED_SIZE(sizeof name)], again[sizeof text];
    unsigned number = 1;

    (void)state;
    for (unsigned i = 0; i < 200000; i++) {
        for (size_t at = 0; at < sizeof name - 1; at++) {
            number = number * 1103515245 + 12345;
            unsigned byte = number >> 16 & 0xff;
            name[at] = (char)(byte ? byte : '\\');
        }
        name[sizeof name - 1] = '\0';
        escape(name, text, sizeof text, true);
        for (const char *at = text; *at; at++)
            assert_true((unsigned char)*at >= 0x20 && *at != 0x7f);
        unescape(text, again);
        assert_string_equal(again, name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_escaped),
                                       cmocka_unit_test(test_a_short_buffer),
                                       cmocka_unit_test(test_nothing_is_lost)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
