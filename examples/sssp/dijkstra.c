/* SPDX-License-Identifier: Apache-2.0 */
/* dijkstra: check shortest paths that a device computed, on the CPU, in another way, and with plain read()
 * only.
 *
 *   dijkstra [--source V] GRAPH RESULT
 *
 * Prints "vertices=N checksum=X wrong=0"; exit code 1 if a distance in RESULT is another one.
 */
#include <getopt.h>

#include "graph.h"

struct entry {
    uint64_t distance;
    uint32_t vertex;
};

/* A binary heap, the nearest vertex at 0. A vertex is in it once for each time that it got nearer. */
struct heap {
    struct entry *entries;
    size_t used;
    size_t room;
};

static void heap_push(struct heap *heap, struct entry entry)
{
    size_t at = heap->used++;

    if (heap->used > heap->room) {
        heap->room = heap->room * 2 + 1024;
        heap->entries = reallocarray(heap->entries, heap->room, sizeof(entry));
        if (heap->entries == NULL)
            fail(errno, "no memory for %zu entries", heap->room);
    }
    while (at > 0 && entry.distance < heap->entries[(at - 1) / 2].distance) {
        heap->entries[at] = heap->entries[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->entries[at] = entry;
}

static struct entry heap_pop(struct heap *heap)
{
    struct entry top = heap->entries[0];
    struct entry last = heap->entries[--heap->used];
    size_t at = 0;

    for (;;) {
        size_t child = 2 * at + 1;

        if (child + 1 < heap->used && heap->entries[child + 1].distance < heap->entries[child].distance)
            child++;
        if (child >= heap->used || heap->entries[child].distance >= last.distance)
            break;
        heap->entries[at] = heap->entries[child];
        at = child;
    }
    heap->entries[at] = last;
    return top;
}

static uint64_t *dijkstra(const struct graph *graph, uint32_t source)
{
    uint64_t *distances = allocate(graph->header->vertices, sizeof(*distances));
    struct heap heap = {0};

    for (uint64_t v = 0; v < graph->header->vertices; v++)
        distances[v] = GRAPH_UNREACHED;
    distances[source] = 0;
    heap_push(&heap, (struct entry){0, source});
    while (heap.used > 0) {
        struct entry near = heap_pop(&heap);

        if (near.distance != distances[near.vertex])
            continue;
        for (uint64_t edge = graph->rows[near.vertex]; edge < graph->rows[near.vertex + 1]; edge++) {
            struct entry next = {near.distance + graph->weights[edge], graph->columns[edge]};

            if (next.distance < distances[next.vertex]) {
                distances[next.vertex] = next.distance;
                heap_push(&heap, next);
            }
        }
    }
    free(heap.entries);
    return distances;
}

static void *read_file(int fd, const char *path, size_t length)
{
    void *file = allocate(length, 1);

    read_fully(fd, path, file, length, 0);
    close(fd);
    return file;
}

static uint64_t compare(const uint64_t *expected, const char *path, uint64_t vertices)
{
    struct stat status;
    int fd = open_regular(path, O_RDONLY, &status);
    uint64_t wrong = 0;
    uint64_t *found;

    if ((uint64_t)status.st_size != vertices * sizeof(*found))
        fail(0, "%s: %ju bytes are not the distances of %ju vertices", path, (uintmax_t)status.st_size,
             (uintmax_t)vertices);
    found = read_file(fd, path, vertices * sizeof(*found));
    for (uint64_t v = 0; v < vertices; v++) {
        if (found[v] == expected[v])
            continue;
        if (wrong++ == 0)
            fprintf(stderr, "dijkstra: %s: vertex %ju: %ju, but the shortest path is %ju long\n", path,
                    (uintmax_t)v, (uintmax_t)found[v], (uintmax_t)expected[v]);
    }
    free(found);
    return wrong;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"source", required_argument, NULL, 's'}, {NULL, 0, NULL, 0}};
    uint64_t source = 0;
    struct graph_header header;
    struct graph graph;
    struct stat status;
    uint64_t *distances;
    uint64_t wrong;
    void *file;
    int option;
    int fd;

    while ((option = getopt_long(argc, argv, "", options, NULL)) == 's')
        source = parse_number("--source", optarg, UINT32_MAX);
    if (option == '?' || optind != argc - 2)
        fail(0, "usage: dijkstra [--source V] GRAPH RESULT");

    fd = open_regular(argv[optind], O_RDONLY, &status);
    header = graph_read_header(fd, argv[optind], (uint64_t)status.st_size);
    if (source >= header.vertices)
        fail(0, "--source: the graph has %ju vertices", (uintmax_t)header.vertices);
    file = read_file(fd, argv[optind], header.file_bytes);
    graph = graph_view(file);
    graph_check(&graph, argv[optind]);
    distances = dijkstra(&graph, (uint32_t)source);
    wrong = compare(distances, argv[optind + 1], header.vertices);
    printf("vertices=%ju checksum=%016jx wrong=%ju\n", (uintmax_t)header.vertices,
           (uintmax_t)graph_checksum(distances, header.vertices), (uintmax_t)wrong);
    finish_output();
    free(distances);
    free(file);
    return wrong == 0 ? EXIT_SUCCESS : EXIT_WRONG;
}
