/* SPDX-License-Identifier: Apache-2.0 */
/* See members.h. */
#include "io/members.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#define FILE_MAX ((size_t)64 << 10)
#define SOCKET_MAX 80u /* bytes of a local address (transport.h) */
#define LOCAL "local:"
#define FORM "NAME@HOST:PORT or NAME@local:SOCKET"

/* Of the text; no NUL behind it. */
struct piece {
    const char *start;
    size_t length;
};

/* For "%.*s": so much of it as leaves room for the sentence. */
#define SHOWN(piece) ((piece).length < 50 ? (int)(piece).length : 50), (piece).start

/* A terminal or a log gets it. */
static int make_printable(char *why_out)
{
    for (char *byte = why_out; *byte; byte++)
        if (*byte < ' ' || *byte > '~')
            *byte = '?';
    return -EINVAL;
}

#define say(why_out, ...) (snprintf(why_out, MEMBERS_WHY, __VA_ARGS__), make_printable(why_out))

static bool is_name(struct piece text)
{
    for (size_t i = 0; i < text.length; i++) {
        char c = text.start[i], letter = (char)(c | 0x20);
        if (!(letter >= 'a' && letter <= 'z') && !(c >= '0' && c <= '9') && c != '.' && c != '_' && c != '-')
            return false;
    }
    return true;
}

bool member_is_name(const char *text, size_t length)
{
    return length && length < MEMBER_NAME_MAX && is_name((struct piece){text, length});
}

/* ---- one member ---- */

static int parse_name(struct member *member, struct piece text, char *why_out)
{
    if (!text.length)
        return say(why_out, "a member without a name (" FORM ")");
    if (text.length >= sizeof member->name)
        return say(why_out, "member %.*s: a name of more than %u bytes", SHOWN(text), MEMBER_NAME_MAX - 1);
    if (!is_name(text))
        return say(why_out, "member %.*s: a name has letters, digits, '.', '_' and '-'", SHOWN(text));
    memcpy(member->name, text.start, text.length);
    member->name[text.length] = '\0';
    return 0;
}

static int parse_local(struct member *member, struct piece socket, char *why_out)
{
    if (!socket.length)
        return say(why_out, "member %s: no socket behind local: (a name, and no path)", member->name);
    if (socket.length > SOCKET_MAX)
        return say(why_out, "member %s: a socket's name of more than %u bytes", member->name, SOCKET_MAX);
    if (!is_name(socket))
        return say(why_out, "member %s: a socket's name has letters, digits, '.', '_' and '-'", member->name);
    member->carrier = GAIA_CARRIER_LOCAL;
    memcpy(member->address, socket.start, socket.length);
    member->address[socket.length] = '\0';
    return 0;
}

/* 1 to 65535; 0: it is none. */
static unsigned parse_port(const char *text)
{
    unsigned long port;

    if (!*text || text[strspn(text, "0123456789")])
        return 0;
    port = strtoul(text, NULL, 10);
    return port <= 65535 ? (unsigned)port : 0;
}

/* In the spelling of inet_ntop(3), so that one address has one text, and a list one epoch. */
static int parse_rdma(struct member *member, struct piece text, char *why_out)
{
    char host[MEMBER_ADDRESS_MAX], plain[INET6_ADDRSTRLEN], *colon;
    struct in_addr v4;
    struct in6_addr v6;
    bool brackets;
    unsigned port;

    if (text.length >= sizeof host)
        return say(why_out, "member %s: an address of more than %zu bytes", member->name, sizeof host - 1);
    memcpy(host, text.start, text.length);
    host[text.length] = '\0';
    colon = strrchr(host, ':');
    if (!colon || strlen(host) != text.length || strchr(colon, ']'))
        return say(why_out, "member %s: %.*s has no port (HOST:PORT)", member->name, SHOWN(text));
    port = parse_port(colon + 1);
    if (!port)
        return say(why_out, "member %s: the port of %.*s is not a number from 1 to 65535", member->name,
                   SHOWN(text));
    *colon = '\0';
    brackets = host[0] == '[' && colon[-1] == ']';
    if (brackets)
        colon[-1] = '\0';
    member->carrier = GAIA_CARRIER_RDMA;
    if (brackets && inet_pton(AF_INET6, host + 1, &v6) == 1) {
        if (IN6_IS_ADDR_UNSPECIFIED(&v6))
            return say(why_out, "member %s: %s] is the address of no machine", member->name, host);
        /* Linux connects to none without the number of a link, which is each machine's own. */
        if (IN6_IS_ADDR_LINKLOCAL(&v6))
            return say(why_out, "member %s: %s] is an address of one link only", member->name, host);
        inet_ntop(AF_INET6, &v6, plain, sizeof plain);
        snprintf(member->address, sizeof member->address, "[%s]:%u", plain, port);
    } else if (inet_pton(AF_INET, host, &v4) == 1) {
        if (v4.s_addr == htonl(INADDR_ANY))
            return say(why_out, "member %s: %s is the address of no machine", member->name, host);
        inet_ntop(AF_INET, &v4, plain, sizeof plain);
        snprintf(member->address, sizeof member->address, "%s:%u", plain, port);
    } else {
        return say(why_out, "member %s: %.*s is not an address in numbers (10.0.0.1:7471, [fd00::1]:7471)",
                   member->name, SHOWN(text));
    }
    return 0;
}

/* Against those that came before. */
static int check_alone(const struct members *members, const struct member *new, char *why_out)
{
    for (unsigned i = 0; i < members->count; i++) {
        const struct member *old = &members->list[i];
        if (!strcmp(old->name, new->name))
            return say(why_out, "member %s is listed twice", new->name);
        if (old->carrier != new->carrier)
            return say(why_out, "members %s and %s: one has a local address, the other has not", old->name,
                       new->name);
        if (!strcmp(old->address, new->address))
            return say(why_out, "members %s and %s have the same address", old->name, new->name);
        if (new->carrier == GAIA_CARRIER_RDMA && (old->address[0] == '[') != (new->address[0] == '['))
            return say(why_out, "members %s and %s: one address is IPv4, the other IPv6", old->name,
                       new->name);
    }
    return 0;
}

static int add(struct members *members, struct piece text, char *why_out)
{
    const char *at = memchr(text.start, '@', text.length);
    struct piece name = {text.start, at ? (size_t)(at - text.start) : 0};
    struct piece address = {at ? at + 1 : NULL, at ? text.length - name.length - 1 : 0};
    struct member member = {0};
    int error;

    if (members->count == MEMBERS_MAX)
        return say(why_out, "more than %u members", MEMBERS_MAX);
    if (!text.length)
        return say(why_out, "member %u of the list is empty", members->count + 1);
    if (!at)
        return say(why_out, "member %.*s has no address (" FORM ")", SHOWN(text));
    error = parse_name(&member, name, why_out);
    if (error)
        return error;
    if (!address.length)
        return say(why_out, "member %s has no address (" FORM ")", member.name);
    if (address.length >= strlen(LOCAL) && !memcmp(address.start, LOCAL, strlen(LOCAL))) {
        address.start += strlen(LOCAL);
        address.length -= strlen(LOCAL);
        error = parse_local(&member, address, why_out);
    } else {
        error = parse_rdma(&member, address, why_out);
    }
    if (!error)
        error = check_alone(members, &member, why_out);
    if (!error)
        members->list[members->count++] = member;
    return error;
}

/* ---- the list ---- */

static int by_name(const void *a, const void *b)
{
    const struct member *one = a, *other = b;

    return strcmp(one->name, other->name);
}

/* Of the list as members_parse() reads it, in the order of the names. */
static uint64_t epoch_of(const struct members *members)
{
    char text[MEMBERS_MAX * (MEMBER_NAME_MAX + MEMBER_ADDRESS_MAX + sizeof LOCAL)];
    size_t length = 0;

    for (unsigned i = 0; i < members->count; i++) {
        const struct member *member = &members->list[i];
        length +=
            (size_t)snprintf(text + length, sizeof text - length, "%s%s@%s%s", i ? "/" : "", member->name,
                             member->carrier == GAIA_CARRIER_LOCAL ? LOCAL : "", member->address);
    }
    return XXH3_64bits(text, length);
}

/* All of them are in. */
static int finish(struct members *members, const char *self, char *why_out)
{
    struct piece name = {self, strlen(self)};

    if (!members->count)
        return say(why_out, "no members (" FORM ")");
    if (!member_is_name(self, name.length))
        return say(why_out, "node %.*s: a name has 1 to %u letters, digits, '.', '_' and '-'", SHOWN(name),
                   MEMBER_NAME_MAX - 1);
    qsort(members->list, members->count, sizeof *members->list, by_name);
    members->epoch = epoch_of(members);
    for (members->self = 0; members->self < members->count; members->self++)
        if (!strcmp(members->list[members->self].name, self))
            return 0;
    return say(why_out, "node %s is not among the members", self);
}

/* Takes what is before the separator off the front of *rest; false: nothing was left. */
static bool next_piece(struct piece *rest, char separator, struct piece *piece_out)
{
    const char *end = rest->start ? memchr(rest->start, separator, rest->length) : NULL;

    if (!rest->start)
        return false;
    *piece_out = (struct piece){rest->start, end ? (size_t)(end - rest->start) : rest->length};
    rest->length -= piece_out->length + (end ? 1 : 0);
    rest->start = end ? end + 1 : NULL;
    return true;
}

static int hand_out(int error, struct members *members, struct members **members_out)
{
    if (error)
        members_free(members);
    else
        *members_out = members;
    return error;
}

static struct members *make(char *why_out)
{
    struct members *members = calloc(1, sizeof *members);

    if (!members)
        say(why_out, "no memory for the members");
    return members;
}

int members_parse(const char *text, const char *self, struct members **members_out, char why_out[MEMBERS_WHY])
{
    struct piece piece, rest = {*text ? text : NULL, strlen(text)};
    struct members *members = make(why_out);
    int error = 0;

    if (!members)
        return -ENOMEM;
    while (!error && next_piece(&rest, '/', &piece))
        error = add(members, piece, why_out);
    if (!error)
        error = finish(members, self, why_out);
    return hand_out(error, members, members_out);
}

/* ---- a file of them ---- */

/* All of it into memory that the caller frees. No FIFO holds the mount up. */
static int read_all(const char *path, struct piece *text_out, char *why_out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), error = 0;
    char *bytes = malloc(FILE_MAX + 1);
    size_t length = 0;
    ssize_t n = 1;

    if (fd < 0)
        error = -errno;
    else if (!bytes)
        error = -ENOMEM;
    while (!error && n && length <= FILE_MAX) {
        n = read(fd, bytes + length, FILE_MAX + 1 - length);
        if (n > 0)
            length += (size_t)n;
        else if (n < 0 && errno != EINTR)
            error = -errno;
    }
    if (!error && length > FILE_MAX)
        error = -EFBIG;
    if (fd >= 0)
        close(fd);
    if (error) {
        free(bytes);
        if (error == -EFBIG)
            say(why_out, "the file has more than %zu KiB", FILE_MAX >> 10);
        else
            say(why_out, "%s", strerror(-error));
        return error;
    }
    *text_out = (struct piece){bytes, length};
    return 0;
}

static struct piece trimmed(struct piece line)
{
    while (line.length && strchr(" \t\r", line.start[line.length - 1]) && line.start[line.length - 1])
        line.length--;
    for (; line.length && (*line.start == ' ' || *line.start == '\t'); line.length--)
        line.start++;
    return line;
}

int members_read(const char *path, const char *self, struct members **members_out, char why_out[MEMBERS_WHY])
{
    struct piece text, rest, line;
    struct members *members;
    char why[MEMBERS_WHY];
    unsigned number = 0;
    int error = read_all(path, &text, why_out);

    if (error)
        return error;
    members = make(why_out);
    error = members ? 0 : -ENOMEM;
    for (rest = text; !error && next_piece(&rest, '\n', &line);) {
        number++;
        line = trimmed(line);
        if (!line.length || *line.start == '#')
            continue;
        error = add(members, line, why);
        if (error)
            say(why_out, "line %u: %.180s", number, why);
    }
    if (!error)
        error = finish(members, self, why_out);
    free((char *)text.start);
    return hand_out(error, members, members_out);
}

void members_free(struct members *members)
{
    free(members);
}

/* ---- homes ---- */

uint64_t member_hash(const char *name)
{
    return XXH3_64bits(name, strlen(name));
}

unsigned members_home(const struct members *members, uint32_t alive, const void *identity, size_t length)
{
    unsigned home = MEMBERS_MAX;
    uint64_t highest = 0;

    for (unsigned i = 0; i < members->count; i++) {
        uint64_t score;

        if (!(alive >> i & 1))
            continue;
        score = XXH3_64bits_withSeed(identity, length, member_hash(members->list[i].name));
        if (home == MEMBERS_MAX || score > highest) { /* of equal ones the first name, everywhere */
            home = i;
            highest = score;
        }
    }
    assert(home < members->count);
    return home;
}
