/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/escape.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Of the character at text, as UTF-8 has it: no surrogates, none that is longer than it need be, nor beyond
 * the last. 0: there is none. */
static size_t utf8_length(const unsigned char *text, uint32_t *character_out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80             ? 1
                    : (text[0] & 0xe0) == 0xc0 ? 2
                    : (text[0] & 0xf0) == 0xe0 ? 3
                    : (text[0] & 0xf8) == 0xf0 ? 4
                                               : 0;
    uint32_t character = length < 2 ? text[0] : text[0] & (0x7fu >> length);

    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) /* the end of the text is none of these */
            return 0;
        character = character << 6 | (text[i] & 0x3f);
    }
    if (character < least[length] || character > 0x10ffff || (character >= 0xd800 && character <= 0xdfff))
        return 0;
    *character_out = character;
    return length;
}

/* C0, DEL and C1: terminals obey both kinds. */
static bool is_control(uint32_t character)
{
    return character < 0x20 || (character >= 0x7f && character < 0xa0);
}

size_t escape(const char *text, char *out, size_t size, bool backslashes)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t used = 0;

    while (*at) {
        uint32_t character = 0;
        size_t length = utf8_length(at, &character);
        bool plain = length && !is_control(character) && !(backslashes && character == '\\');
        size_t bytes = length ? length : 1, wanted = plain ? bytes : 4 * bytes;

        if (wanted >= size - used)
            break;
        if (plain)
            memcpy(out + used, at, bytes);
        for (size_t i = 0; i < bytes && !plain; i++)
            snprintf(out + used + 4 * i, 5, "\\%03o", at[i]);
        at += bytes;
        used += wanted;
    }
    out[used] = '\0';
    return used;
}
