/* SPDX-License-Identifier: Apache-2.0 */
/* update: the legacy program. It gives new weights to a part of a graph file's edges with plain pwrite().
 *
 *   update [--part PERCENT] [--places N] [--seed N] FILE
 *
 * It knows nothing of devices and synchronizes with nobody. The edges lie in N places spread over the file
 * (the districts whose traffic has changed). It prints how many edges it changed, and how many bytes the
 * units of 64 KiB have that they lie in: the most that a device should need to see the new weights.
 */
#include <getopt.h>

#include "graph.h"

struct change {
    uint64_t edges;
    uint64_t units; /* of GRAPH_ALIGNMENT bytes, with a change in them */
    uint64_t last;  /* the last such unit, plus 1 */
};

static void change_place(int fd, const char *path, uint64_t offset, uint64_t edges, uint64_t *state)
{
    uint32_t *weights = allocate(edges, sizeof(*weights));

    for (uint64_t i = 0; i < edges; i++)
        weights[i] = graph_random_weight(state);
    write_fully(fd, path, weights, edges * sizeof(*weights), (off_t)offset);
    free(weights);
}

/* Count the units of a place; places come in ascending order, and two may end and begin in one unit. */
static void count_units(struct change *change, uint64_t offset, uint64_t bytes)
{
    uint64_t first = offset / GRAPH_ALIGNMENT;
    uint64_t end = (offset + bytes - 1) / GRAPH_ALIGNMENT + 1;

    if (first < change->last)
        first = change->last;
    change->units += end - first;
    change->last = end;
}

static struct change change_weights(int fd, const char *path, const struct graph_header *header, double part,
                                    uint64_t places, uint64_t seed)
{
    struct change change = {0};
    uint64_t state = seed;

    for (uint64_t i = 0; i < places; i++) {
        uint64_t begin = header->edges * i / places;
        uint64_t room = header->edges * (i + 1) / places - begin;
        uint64_t edges = (uint64_t)((double)room * part / 100 + 0.5);
        uint64_t offset;

        edges = edges == 0 ? 1 : edges;
        if (room == 0)
            continue;
        offset = header->weights_at + (begin + random_number(&state) % (room - edges + 1)) * sizeof(uint32_t);
        change_place(fd, path, offset, edges, &state);
        count_units(&change, offset, edges * sizeof(uint32_t));
        change.edges += edges;
    }
    return change;
}

static double parse_percent(const char *text)
{
    char *end;
    double percent = strtod(text, &end);

    if (end == text || *end != '\0' || !(percent > 0 && percent <= 100))
        fail(0, "--part: percent, more than 0 and up to 100, are needed, not '%s'", text);
    return percent;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"part", required_argument, NULL, 'p'},
                                            {"places", required_argument, NULL, 'n'},
                                            {"seed", required_argument, NULL, 'r'},
                                            {NULL, 0, NULL, 0}};
    double part = 1;
    uint64_t places = 16;
    uint64_t seed = 1;
    struct graph_header header;
    struct change change;
    struct stat status;
    int option;
    int fd;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'p')
            part = parse_percent(optarg);
        else if (option == 'n')
            places = parse_number("--places", optarg, UINT32_MAX);
        else if (option == 'r')
            seed = parse_number("--seed", optarg, UINT64_MAX);
        else
            break;
    }
    if (option == '?' || optind != argc - 1 || places == 0)
        fail(0, "usage: update [--part PERCENT] [--places N] [--seed N] FILE");

    fd = open_regular(argv[optind], O_RDWR, &status);
    header = graph_read_header(fd, argv[optind], (uint64_t)status.st_size);
    change = change_weights(fd, argv[optind], &header, part, places, seed);
    if (close(fd) != 0)
        fail(errno, "%s", argv[optind]);
    printf("edges=%ju unit_bytes=%ju\n", (uintmax_t)change.edges,
           (uintmax_t)(change.units * GRAPH_ALIGNMENT));
    finish_output();
    return EXIT_SUCCESS;
}
