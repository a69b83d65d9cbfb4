/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/options_nodes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "fs/log.h"

static int parse_node(struct fs_options *options, const char *option)
{
    const char *name = option_value(option);

    if (!*name || strlen(name) >= sizeof options->node) {
        fs_log(LOG_ERR, "option %s: a name has 1 to %zu bytes", option, sizeof options->node - 1);
        return -1;
    }
    snprintf(options->node, sizeof options->node, "%s", name);
    return 0;
}

static int parse_peers(struct fs_options *options, const char *option)
{
    return option_set_text(&options->peers, option_value(option));
}

const struct mount_option options_nodes[] = {
    {.text = "shared", .flag = OPTION_FLAG(cache.shared)},
    {.text = "node=", .parse = parse_node},
    {.text = "peers=", .parse = parse_peers},
    {.text = NULL},
};

/* The list may be longer than a line of the log. */
int options_nodes_check(struct fs_options *options)
{
    bool in_file = options->peers && options->peers[0] == '/';
    char why[MEMBERS_WHY];
    int rc;

    if (!options->node[0] && !options->peers)
        return 0;
    if (!options->peers) {
        fs_log(LOG_ERR, "option node=%s: peers= is missing: who the nodes are, and their addresses",
               options->node);
        return -EINVAL;
    }
    if (!options->node[0]) {
        fs_log(LOG_ERR, "option peers=: node= is missing: which of them this one is");
        return -EINVAL;
    }
    rc = in_file ? members_read(options->peers, options->node, &options->members, why)
                 : members_parse(options->peers, options->node, &options->members, why);
    if (rc < 0) {
        fs_log(LOG_ERR, "option peers=%.300s: %s", in_file ? options->peers : "", why);
        return -EINVAL;
    }
    options->passthrough = false; /* what the kernel reads and writes by itself the other nodes don't see */
    return 0;
}

bool options_has_peers_file(const struct fs_options *options)
{
    return options->members && options->peers[0] == '/';
}

bool options_share_directory(const struct fs_options *options)
{
    return options->cache.shared || options->members;
}
