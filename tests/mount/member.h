/* SPDX-License-Identifier: Apache-2.0 */
/* What tools share that take part as a node of a cache (tool_member.c, tool_babble.c): names, a HELLO, and
 * calls of their own; and programs that choose a file's home (tests/vm/nodes_tool.h). */
#ifndef GAIAFS_TESTS_MOUNT_MEMBER_H
#define GAIAFS_TESTS_MOUNT_MEMBER_H

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/clock.h"
#include "io/call.h"
#include "io/members.h"
#include "io/node.h"

/* A file of the data directory, as nodes call it. */
static inline int member_name(const char *path, struct node_name *name_out)
{
    union {
        struct file_handle handle;
        char bytes[sizeof(struct file_handle) + NODE_NAME_MAX];
    } found = {.handle.handle_bytes = NODE_NAME_MAX};
    int mount_id;

    if (name_to_handle_at(AT_FDCWD, path, &found.handle, &mount_id, 0))
        return -errno;
    *name_out =
        (struct node_name){.type = found.handle.handle_type, .length = (uint32_t)found.handle.handle_bytes};
    memcpy(name_out->bytes, found.handle.f_handle, name_out->length);
    return 0;
}

static inline struct node_request member_hello(const struct members *members, uint32_t flags)
{
    const char *self = members->list[members->self].name;
    struct node_request request = {.offset = NODE_VERSION,
                                   .value = members->epoch,
                                   .flags = flags,
                                   .address = clock_read_ns(CLOCK_REALTIME),
                                   .name.length = (uint32_t)strlen(self)};

    memcpy(request.name.bytes, self, request.name.length);
    return request;
}

/* NULL: not a member. */
static inline const char *member_address(const struct members *members, const char *name)
{
    for (unsigned i = 0; i < members->count; i++)
        if (!strcmp(members->list[i].name, name))
            return members->list[i].address;
    return NULL;
}

static inline void member_ended(void *context, struct call_session *session, int error)
{
    (void)context, (void)session, (void)error;
}

/* Open what is called by the others, where the list says that we are. */
static inline int
member_calls(const struct members *members, int (*arrived)(void *context, struct call_session *session),
             int (*serve)(void *context, struct call_session *session, unsigned op, const void *request,
                          size_t length, void *reply, size_t *reply_length),
             struct calls **calls_out)
{
    const struct member *self = &members->list[members->self];
    struct calls_config config = {.carrier = self->carrier,
                                  .address = self->address,
                                  .timeout_ms = 5000,
                                  .arrived = arrived,
                                  .serve = serve,
                                  .ended = member_ended};
    char why[CALL_WHY];

    return calls_open(&config, calls_out, why);
}

#endif
