/* SPDX-License-Identifier: Apache-2.0 */
/* generate: write a graph file (see graph.h) of 2^SCALE vertices and 2^SCALE × DEGREE edges.
 *
 *   generate [--scale N] [--degree N] [--seed N] FILE
 *
 * An R-MAT graph: few vertices with very many edges and many with few, as the web has them. The same
 * arguments give the same file everywhere. Vertex 0 has the most edges, and is the source to start at.
 */
#include <getopt.h>

#include "graph.h"

struct edge {
    uint32_t from;
    uint32_t to;
};

/* Fall into one quarter of the matrix at a time, by 57, 19, 19 and 5 %. */
static struct edge random_edge(unsigned scale, uint64_t *state)
{
    struct edge edge = {0, 0};

    for (unsigned bit = 0; bit < scale; bit++) {
        uint64_t percent = random_number(state) % 100;

        edge.from = edge.from << 1 | (percent >= 76);
        edge.to = edge.to << 1 | ((percent >= 57 && percent < 76) || percent >= 95);
    }
    return edge;
}

/* The same edges come again from the same seed: once to count each row, once to place them. */
static void fill(char *file, unsigned scale, uint64_t seed)
{
    const struct graph_header *header = (const struct graph_header *)file;
    uint64_t *rows = (uint64_t *)(file + header->rows_at);
    uint32_t *columns = (uint32_t *)(file + header->columns_at);
    uint32_t *weights = (uint32_t *)(file + header->weights_at);
    uint64_t *next = allocate(header->vertices, sizeof(*next));
    uint64_t state = seed;

    for (uint64_t i = 0; i < header->edges; i++)
        rows[random_edge(scale, &state).from + 1]++;
    for (uint64_t v = 0; v < header->vertices; v++) {
        rows[v + 1] += rows[v];
        next[v] = rows[v];
    }
    state = seed;
    for (uint64_t i = 0; i < header->edges; i++) {
        struct edge edge = random_edge(scale, &state);

        columns[next[edge.from]++] = edge.to;
    }
    for (uint64_t i = 0; i < header->edges; i++)
        weights[i] = graph_random_weight(&state);
    free(next);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"scale", required_argument, NULL, 's'},
                                            {"degree", required_argument, NULL, 'd'},
                                            {"seed", required_argument, NULL, 'r'},
                                            {NULL, 0, NULL, 0}};
    uint64_t scale = 16;
    uint64_t degree = 16;
    uint64_t seed = 1;
    struct graph_header header;
    const char *path;
    char *file;
    int option;
    int fd;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 's')
            scale = parse_number("--scale", optarg, GRAPH_SCALE_MOST);
        else if (option == 'd')
            degree = parse_number("--degree", optarg, 1024);
        else if (option == 'r')
            seed = parse_number("--seed", optarg, UINT64_MAX);
        else
            break;
    }
    if (option == '?' || optind != argc - 1)
        fail(0, "usage: generate [--scale N] [--degree N] [--seed N] FILE");

    path = argv[optind];
    header = graph_layout(UINT64_C(1) << scale, (UINT64_C(1) << scale) * degree);
    file = allocate(header.file_bytes, 1);
    memcpy(file, &header, sizeof(header));
    fill(file, (unsigned)scale, seed);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        fail(errno, "%s", path);
    write_fully(fd, path, file, header.file_bytes, 0);
    if (close(fd) != 0)
        fail(errno, "%s", path);
    free(file);
    printf("vertices=%ju edges=%ju bytes=%ju\n", (uintmax_t)header.vertices, (uintmax_t)header.edges,
           (uintmax_t)header.file_bytes);
    finish_output();
    return EXIT_SUCCESS;
}
