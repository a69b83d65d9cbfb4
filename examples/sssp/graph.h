/* SPDX-License-Identifier: Apache-2.0 */
/* The graph file: a directed graph with weighted edges in compressed sparse rows, numbers in the machine's
 * byte order. C and C++.
 *
 *  - at 0: struct graph_header
 *  - at rows_at: uint64_t rows[vertices + 1]; the edges of vertex v are those from rows[v] to before
 *    rows[v + 1]
 *  - at columns_at: uint32_t columns[edges]; the vertex that an edge leads to
 *  - at weights_at: uint32_t weights[edges]; its weight, 1 to GRAPH_WEIGHT_MOST: all that an updater ever
 *    changes
 *
 * Each part begins at a multiple of 64 KiB, what is moved into a device at a time: new weights move nothing
 * else.
 *
 * The result file: uint64_t distances[vertices], GRAPH_UNREACHED where there is no path from the source.
 */
#ifndef GAIAFS_EXAMPLES_SSSP_GRAPH_H
#define GAIAFS_EXAMPLES_SSSP_GRAPH_H

#include "../common.h"

#define GRAPH_MAGIC "GAIACSR1"
#define GRAPH_ALIGNMENT UINT64_C(65536)
#define GRAPH_UNREACHED UINT64_MAX
enum { GRAPH_WEIGHT_MOST = 1000, GRAPH_SCALE_MOST = 30 };

struct graph_header {
    char magic[8];
    uint64_t vertices;
    uint64_t edges;
    uint64_t rows_at;
    uint64_t columns_at;
    uint64_t weights_at;
    uint64_t file_bytes;
};

/* A graph whose file is in memory: read there by a CPU, or mapped into a device. */
struct graph {
    const struct graph_header *header;
    const uint64_t *rows;
    const uint32_t *columns;
    const uint32_t *weights;
};

static inline uint64_t graph_align(uint64_t offset)
{
    return (offset + GRAPH_ALIGNMENT - 1) / GRAPH_ALIGNMENT * GRAPH_ALIGNMENT;
}

/* The parts' places follow from the numbers of vertices and edges. */
static inline struct graph_header graph_layout(uint64_t vertices, uint64_t edges)
{
    struct graph_header header;

    memset(&header, 0, sizeof(header));
    header.vertices = vertices;
    header.edges = edges;
    memcpy(header.magic, GRAPH_MAGIC, sizeof(header.magic));
    header.rows_at = graph_align(sizeof(header));
    header.columns_at = graph_align(header.rows_at + (vertices + 1) * sizeof(uint64_t));
    header.weights_at = graph_align(header.columns_at + edges * sizeof(uint32_t));
    header.file_bytes = header.weights_at + edges * sizeof(uint32_t);
    return header;
}

/* Read and check the header of an open file. */
static inline struct graph_header graph_read_header(int fd, const char *path, uint64_t file_bytes)
{
    const uint64_t most = UINT64_C(1) << 40; /* keeps the sums below from running over */
    struct graph_header header;
    struct graph_header expected;

    if (file_bytes < sizeof(header))
        fail(0, "%s: too short for a graph file", path);
    read_fully(fd, path, &header, sizeof(header), 0);
    if (memcmp(header.magic, GRAPH_MAGIC, sizeof(header.magic)) != 0)
        fail(0, "%s: not a graph file", path);
    if (header.vertices == 0 || header.vertices > UINT32_MAX || header.edges > most)
        fail(0, "%s: a graph of %ju vertices and %ju edges is not possible", path, (uintmax_t)header.vertices,
             (uintmax_t)header.edges);
    expected = graph_layout(header.vertices, header.edges);
    if (memcmp(&header, &expected, sizeof(header)) != 0 || file_bytes != header.file_bytes)
        fail(0, "%s: damaged: its header does not fit its size", path);
    return header;
}

static inline struct graph graph_at(const void *file, const struct graph_header *header)
{
    const char *bytes = (const char *)file;
    struct graph graph;

    graph.header = header;
    graph.rows = (const uint64_t *)(bytes + header->rows_at);
    graph.columns = (const uint32_t *)(bytes + header->columns_at);
    graph.weights = (const uint32_t *)(bytes + header->weights_at);
    return graph;
}

/* Where the header can be read in place, too. */
static inline struct graph graph_view(const void *file)
{
    return graph_at(file, (const struct graph_header *)file);
}

/* The rows and columns stay within the graph, so that no one needs to look again. */
static inline void graph_check(const struct graph *graph, const char *path)
{
    uint64_t vertices = graph->header->vertices;
    uint64_t edges = graph->header->edges;

    if (graph->rows[0] != 0 || graph->rows[vertices] != edges)
        fail(0, "%s: damaged: its rows do not cover its edges", path);
    for (uint64_t v = 0; v < vertices; v++) {
        if (graph->rows[v] > graph->rows[v + 1])
            fail(0, "%s: damaged: row %ju", path, (uintmax_t)v);
    }
    for (uint64_t edge = 0; edge < edges; edge++) {
        if (graph->columns[edge] >= vertices)
            fail(0, "%s: damaged: edge %ju", path, (uintmax_t)edge);
    }
}

static inline uint32_t graph_random_weight(uint64_t *state)
{
    return (uint32_t)(random_number(state) % GRAPH_WEIGHT_MOST) + 1;
}

/* One number for all distances, to compare runs with. */
static inline uint64_t graph_checksum(const uint64_t *distances, uint64_t vertices)
{
    uint64_t sum = 0;

    for (uint64_t v = 0; v < vertices; v++) {
        uint64_t state = distances[v] ^ (v << 40);

        sum += random_number(&state);
    }
    return sum;
}

#endif
