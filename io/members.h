/* SPDX-License-Identifier: Apache-2.0 */
/* The members: the nodes that mount one data directory, their addresses, and which of them is the home of a
 * file. Plain data: nothing here waits or locks; a list does not change once it is made. */
#ifndef GAIAFS_IO_MEMBERS_H
#define GAIAFS_IO_MEMBERS_H

#include <stddef.h>
#include <stdint.h>

#include "io/transport.h"

#define MEMBERS_MAX 32u
#define MEMBER_NAME_MAX 64u     /* bytes, the NUL included; letters, digits, '.', '_', '-' */
#define MEMBER_ADDRESS_MAX 128u /* bytes, the NUL included */
#define MEMBERS_WHY 200u

struct member {
    char name[MEMBER_NAME_MAX];
    enum gaia_carrier carrier;
    char address[MEMBER_ADDRESS_MAX]; /* as transport.h wants it, in the spelling of inet_ntop(3) */
};

struct members {
    unsigned count; /* 1 to MEMBERS_MAX */
    unsigned self;  /* which of them this node is */
    /* XXH3-64 of the list's text, in the order of the names: the same on all nodes that have the same list.
     */
    uint64_t epoch;
    struct member list[MEMBERS_MAX]; /* sorted by name */
};

/* text: NAME@HOST:PORT/NAME@HOST:PORT/... with RDMA addresses in numbers ("[fd00::1]:7471" for IPv6), or, on
 * one machine, NAME@local:SOCKET (the local carrier: a name in the abstract namespace, of the characters of a
 * member's name). All members have one carrier, and addresses of one family.
 * self: this node's name, which must be in the list. 0, -EINVAL or -ENOMEM; why_out: a sentence that names
 * the member (listed twice, no address, an address twice, a name of other characters, too many, a node that
 * is not in its own list, carriers mixed, port 0, ...). */
int members_parse(const char *text, const char *self, struct members **members_out,
                  char why_out[MEMBERS_WHY]);
/* The same from a file, one member per line; blank lines and lines that begin with '#' are ignored; why_out
 * names the line (not the path). Also -ENOENT, -EACCES, -EIO, -EFBIG (over 64 KiB) ... */
int members_read(const char *path, const char *self, struct members **members_out, char why_out[MEMBERS_WHY]);
void members_free(struct members *members);

/* Whether a member may have this name, which somebody else has said. */
bool member_is_name(const char *text, size_t length);
/* XXH3-64 of a member's name. */
uint64_t member_hash(const char *name);
/* The home of a file: rendezvous hashing, the member with the highest XXH3-64 of (identity, seed: XXH3 of the
 * member's name). alive: bit i says that list[i] may be chosen; at least one bit within count is set. The
 * same on all nodes; if a member is added or removed, only the files move whose home it becomes or was. */
unsigned members_home(const struct members *members, uint32_t alive, const void *identity, size_t length);

#endif
