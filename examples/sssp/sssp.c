/* SPDX-License-Identifier: Apache-2.0 */
/* sssp: shortest paths from one vertex of a graph file to all others, on a device.
 *
 *   sssp [--device NAME] [--source V] [--serve] GRAPH RESULT
 *
 * GRAPH is mapped for reading, RESULT (made if it is not there, see graph.h) for writing: both lie on a
 * gaiafs mount.
 * --serve computes again for every line that comes on standard input, and keeps both mapped in between; what
 * a legacy program wrote to the weights meanwhile is seen after gaia_macquire(), and only that has to be
 * moved. Prints "reached=N passes=N checksum=X moved=N" for each computation; moved: bytes moved into the
 * device for it.
 */
#include <getopt.h>

#include "graph.h"

struct problem {
    struct gaia_device *device;
    const char *graph_path;
    const char *result_path;
    void *graph_map;
    size_t graph_bytes;
    uint64_t *distances; /* the result file, on the device */
    size_t result_bytes;
    uint64_t source;
    bool checked;             /* the graph, once: an updater changes nothing but weights */
    unsigned char *active[2]; /* which vertices got nearer: in the last pass, in this one */
};

static void set_up_kernel(uint64_t *distances, uint64_t vertices, uint64_t source)
{
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (uint64_t v = 0; v < vertices; v++)
        distances[v] = v == source ? 0 : GRAPH_UNREACHED;
}

/* distances[v] = min(distances[v], distance), with other threads at it too. Whether it got smaller. */
static bool lower(uint64_t *distances, uint32_t v, uint64_t distance)
{
    uint64_t old = __atomic_load_n(&distances[v], __ATOMIC_RELAXED);

    while (distance < old) {
        if (__atomic_compare_exchange_n(&distances[v], &old, distance, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
            return true;
    }
    return false;
}

static uint64_t relax_vertex(const struct graph *graph, uint64_t *distances, uint64_t v, unsigned char *next)
{
    uint64_t distance = __atomic_load_n(&distances[v], __ATOMIC_RELAXED);
    uint64_t lowered = 0;

    for (uint64_t edge = graph->rows[v]; edge < graph->rows[v + 1]; edge++) {
        uint32_t to = graph->columns[edge];

        if (lower(distances, to, distance + graph->weights[edge])) {
            __atomic_store_n(&next[to], 1, __ATOMIC_RELAXED);
            lowered++;
        }
    }
    return lowered;
}

/* One pass of Bellman and Ford over the edges of the vertices that got nearer. How many distances got
 * smaller. */
static uint64_t relax_kernel(const struct graph *graph, uint64_t *distances, unsigned char *active,
                             unsigned char *next)
{
    uint64_t vertices = graph->header->vertices;
    uint64_t lowered = 0;

#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1024) reduction(+ : lowered)
#endif
    for (uint64_t v = 0; v < vertices; v++) {
        if (active[v] == 0)
            continue;
        active[v] = 0;
        lowered += relax_vertex(graph, distances, v, next);
    }
    return lowered;
}

static uint64_t compute(struct problem *problem)
{
    struct graph graph = graph_view(problem->graph_map);
    unsigned which = 0;
    uint64_t passes = 0;

    if (!problem->checked)
        graph_check(&graph, problem->graph_path);
    problem->checked = true;
    set_up_kernel(problem->distances, graph.header->vertices, problem->source);
    problem->active[0][problem->source] = 1;
    for (;;) {
        passes++;
        if (relax_kernel(&graph, problem->distances, problem->active[which], problem->active[1 - which]) == 0)
            return passes;
        which = 1 - which;
    }
}

static uint64_t count_reached(const struct problem *problem)
{
    uint64_t vertices = problem->result_bytes / sizeof(uint64_t);
    uint64_t reached = 0;

    for (uint64_t v = 0; v < vertices; v++)
        reached += problem->distances[v] != GRAPH_UNREACHED;
    return reached;
}

static void run(struct problem *problem)
{
    uint64_t before = bytes_moved_in(problem->device);
    uint64_t passes;

    if (gaia_macquire(problem->graph_map, problem->graph_bytes, problem->device) != 0)
        fail(errno, "%s: acquire", problem->graph_path);
    if (gaia_macquire(problem->distances, problem->result_bytes, problem->device) != 0)
        fail(errno, "%s: acquire", problem->result_path);
    passes = compute(problem);
    printf("reached=%ju passes=%ju checksum=%016jx", (uintmax_t)count_reached(problem), (uintmax_t)passes,
           (uintmax_t)graph_checksum(problem->distances, problem->result_bytes / sizeof(uint64_t)));
    if (gaia_mrelease(problem->distances, problem->result_bytes, problem->device) != 0)
        fail(errno, "%s: release", problem->result_path);
    printf(" moved=%ju\n", (uintmax_t)(bytes_moved_in(problem->device) - before));
    finish_output();
}

static void map_graph(struct problem *problem)
{
    struct stat status;
    int fd = open_regular(problem->graph_path, O_RDONLY, &status);
    struct graph_header header = graph_read_header(fd, problem->graph_path, (uint64_t)status.st_size);

    if (problem->source >= header.vertices)
        fail(0, "--source: the graph has %ju vertices", (uintmax_t)header.vertices);
    problem->graph_bytes = header.file_bytes;
    problem->result_bytes = header.vertices * sizeof(uint64_t);
    problem->graph_map =
        map_on_device(problem->device, fd, problem->graph_path, header.file_bytes, PROT_READ);
    close(fd);
    for (unsigned i = 0; i < 2; i++)
        problem->active[i] = allocate(header.vertices, 1);
}

static void map_result(struct problem *problem)
{
    int fd = open(problem->result_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);

    if (fd < 0)
        fail(errno, "%s", problem->result_path);
    if (ftruncate(fd, (off_t)problem->result_bytes) != 0)
        fail(errno, "%s", problem->result_path);
    problem->distances = map_on_device(problem->device, fd, problem->result_path, problem->result_bytes,
                                       PROT_READ | PROT_WRITE);
    close(fd);
}

static void unmap_all(struct problem *problem)
{
    if (gaia_munmap(problem->graph_map, problem->graph_bytes) != 0)
        fail(errno, "%s: cannot unmap it", problem->graph_path);
    if (gaia_munmap(problem->distances, problem->result_bytes) != 0)
        fail(errno, "%s: cannot unmap it", problem->result_path);
    for (unsigned i = 0; i < 2; i++)
        free(problem->active[i]);
    gaia_device_close(problem->device);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"source", required_argument, NULL, 's'},
                                            {"serve", no_argument, NULL, 'l'},
                                            {NULL, 0, NULL, 0}};
    struct problem problem = {0};
    const char *name = NULL;
    bool as_server = false;
    int character;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'd')
            name = optarg;
        else if (option == 's')
            problem.source = parse_number("--source", optarg, UINT32_MAX);
        else if (option == 'l')
            as_server = true;
        else
            break;
    }
    if (option == '?' || optind != argc - 2)
        fail(0, "usage: sssp [--device NAME] [--source V] [--serve] GRAPH RESULT");

    problem.graph_path = argv[optind];
    problem.result_path = argv[optind + 1];
    problem.device = open_device(name);
    map_graph(&problem);
    map_result(&problem);
    if (!as_server)
        run(&problem);
    while (as_server && (character = getchar()) != EOF) {
        if (character == '\n')
            run(&problem);
    }
    unmap_all(&problem);
    return EXIT_SUCCESS;
}
