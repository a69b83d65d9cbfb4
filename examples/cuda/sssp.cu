/* SPDX-License-Identifier: Apache-2.0 */
/* sssp: shortest paths from one vertex of a graph file to all others, as examples/sssp/sssp.c has them, by
 * CUDA kernels, and while a program on the CPU changes the graph between the runs.
 *
 *   sssp [--device NAME] [--source V] [--serve] [--check] GRAPH RESULT
 *
 * The files are those of ../sssp/graph.h; ../sssp/generate makes a graph, ../sssp/update changes its weights.
 * --serve computes again for every line that comes on standard input. Prints "reached=N passes=N checksum=X
 * moved=N" for each computation, after a check of its own by plain reads. --check: that check only. */
#include "example.h"
#include "../sssp/graph.h"

typedef unsigned long long distance_type; /* what CUDA's atomics take */

__global__ void set_up(distance_type *distances, size_t vertices, uint64_t source)
{
    for (size_t v = first_item(); v < vertices; v += item_step())
        distances[v] = v == source ? 0 : ~0ull;
}

/* One pass of Bellman and Ford over the edges of the vertices that got nearer. Who makes a distance smaller
 * says that its vertex is active in the next pass; that it may be in this one, too, costs a little and harms
 * nothing. */
__global__ void relax(const uint64_t *rows, const uint32_t *columns, const uint32_t *weights, size_t vertices,
                      distance_type *distances, unsigned char *active, unsigned char *next, unsigned *changed)
{
    for (size_t v = first_item(); v < vertices; v += item_step()) {
        if (!active[v])
            continue;
        active[v] = 0;
        distance_type distance = *(volatile distance_type *)&distances[v];
        for (uint64_t edge = rows[v]; edge < rows[v + 1]; edge++) {
            distance_type nearer = distance + weights[edge];

            if (atomicMin(&distances[columns[edge]], nearer) > nearer) {
                *(volatile unsigned char *)&next[columns[edge]] = 1;
                *(volatile unsigned *)changed = 1;
            }
        }
    }
}

struct problem {
    struct gaia_device *device;
    struct graph_header header;
    struct mapped graph, result;
    uint64_t source;
    unsigned char *active[2]; /* which vertices got nearer: in the last pass, in this one */
    unsigned *changed;
};

/* How many passes it took. */
static uint64_t compute(const struct problem *problem)
{
    struct graph graph = graph_at(problem->graph.at, &problem->header);
    const uint64_t *rows = graph.rows;
    const uint32_t *columns = graph.columns, *weights = graph.weights;
    size_t vertices = problem->header.vertices;
    uint64_t source = problem->source, passes = 0;
    distance_type *distances = (distance_type *)problem->result.at;
    unsigned *changed = problem->changed;
    unsigned again = 1;

    LAUNCH(set_up, BLOCKS, THREADS, NULL, distances, vertices, source);
    check_cuda(cudaMemset(problem->active[0], 0, vertices), "memory of the device");
    check_cuda(cudaMemset(problem->active[1], 0, vertices), "memory of the device");
    check_cuda(cudaMemset(problem->active[0] + source, 1, 1), "memory of the device");
    while (again != 0) {
        unsigned char *active = problem->active[passes % 2], *next = problem->active[1 - passes % 2];

        check_cuda(cudaMemset(changed, 0, sizeof(*changed)), "memory of the device");
        LAUNCH(relax, BLOCKS, THREADS, NULL, rows, columns, weights, vertices, distances, active, next,
               changed);
        wait_for_kernel();
        check_cuda(cudaMemcpy(&again, changed, sizeof(again), cudaMemcpyDeviceToHost), "a copy");
        passes++;
    }
    return passes;
}

/* No edge leads to a vertex that could be nearer, and each vertex that was reached has an edge over which it
 * is as near as it says: as weights are positive, these are the shortest paths, and no others. */
static uint64_t count_wrong(const struct graph *graph, const uint64_t *distances, uint64_t source)
{
    size_t vertices = graph->header->vertices;
    bool *explained = (bool *)allocate(vertices, sizeof(bool));
    uint64_t wrong = distances[source] != 0;

    explained[source] = true;
    for (size_t v = 0; v < vertices; v++) {
        if (distances[v] == GRAPH_UNREACHED)
            continue;
        for (uint64_t edge = graph->rows[v]; edge < graph->rows[v + 1]; edge++) {
            uint64_t over = distances[v] + graph->weights[edge];

            wrong += distances[graph->columns[edge]] > over;
            if (distances[graph->columns[edge]] == over)
                explained[graph->columns[edge]] = true;
        }
    }
    for (size_t v = 0; v < vertices; v++)
        wrong += distances[v] != GRAPH_UNREACHED && !explained[v];
    free(explained);
    return wrong;
}

/* By plain reads of both files. */
static int check(const char *graph_path, const char *result_path, uint64_t source, char line[128])
{
    size_t bytes, count, reached = 0;
    char *file = read_file<char>(graph_path, &bytes);
    uint64_t *distances = read_file<uint64_t>(result_path, &count);
    struct graph graph = graph_view(file);

    graph_check(&graph, graph_path);
    if (count != graph.header->vertices)
        return verdict(false, "%s has %zu distances", result_path, count);
    uint64_t wrong = count_wrong(&graph, distances, source);
    for (size_t v = 0; v < count; v++)
        reached += distances[v] != GRAPH_UNREACHED;
    snprintf(line, 128, "reached=%zu wrong=%ju checksum=%016jx", reached, (uintmax_t)wrong,
             (uintmax_t)graph_checksum(distances, count));
    free(file);
    free(distances);
    return wrong == 0 ? EXIT_SUCCESS : EXIT_WRONG;
}

static int run(const struct problem *problem)
{
    uint64_t before = bytes_moved_in(problem->device);
    char line[128] = "";

    acquire(&problem->graph, problem->device);
    acquire(&problem->result, problem->device);
    uint64_t passes = compute(problem);
    release(&problem->result, problem->device);
    uint64_t moved = bytes_moved_in(problem->device) - before;
    int result = check(problem->graph.path, problem->result.path, problem->source, line);
    printf("%s passes=%ju moved=%ju\n", line, (uintmax_t)passes, (uintmax_t)moved);
    finish_output();
    return result;
}

/* The header is read as a file: from the CPU nothing can be read at a device pointer. */
static void map_files(struct problem *problem, const char *graph_path, const char *result_path)
{
    struct stat status;
    int fd = open_regular(graph_path, O_RDONLY, &status);

    problem->header = graph_read_header(fd, graph_path, (uint64_t)status.st_size);
    close(fd);
    if (problem->source >= problem->header.vertices)
        fail(0, "--source: the graph has %ju vertices", (uintmax_t)problem->header.vertices);
    make_file(result_path, problem->header.vertices * sizeof(uint64_t));
    problem->graph = map_whole(problem->device, graph_path, PROT_READ);
    problem->result = map_whole(problem->device, result_path, PROT_READ | PROT_WRITE);
    for (int i = 0; i < 2; i++)
        problem->active[i] = device_array<unsigned char>(problem->header.vertices);
    problem->changed = device_array<unsigned>(1);
}

static void unmap_all(const struct problem *problem)
{
    unmap(&problem->graph);
    unmap(&problem->result);
    for (int i = 0; i < 2; i++)
        check_cuda(cudaFree(problem->active[i]), "memory of the device");
    check_cuda(cudaFree(problem->changed), "memory of the device");
    gaia_device_close(problem->device);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"device", required_argument, NULL, 'd'},
                                            {"source", required_argument, NULL, 's'},
                                            {"serve", no_argument, NULL, 'l'},
                                            {"check", no_argument, NULL, 'c'},
                                            {NULL, 0, NULL, 0}};
    struct problem problem;
    const char *name = NULL;
    bool as_server = false, only_check = false;
    char line[128] = "";
    int option, character, result = EXIT_SUCCESS;

    memset(&problem, 0, sizeof(problem));
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'd')
            name = optarg;
        else if (option == 's')
            problem.source = parse_number("--source", optarg, UINT32_MAX);
        else if (option == 'l')
            as_server = true;
        else if (option == 'c')
            only_check = true;
        else
            break;
    }
    if (option == '?' || optind != argc - 2)
        fail(0, "usage: sssp [--device NAME] [--source V] [--serve] [--check] GRAPH RESULT");
    if (only_check) {
        result = check(argv[optind], argv[optind + 1], problem.source, line);
        return verdict(result == EXIT_SUCCESS, "%s", line);
    }
    problem.device = open_example_device(name);
    map_files(&problem, argv[optind], argv[optind + 1]);
    if (!as_server)
        result = run(&problem);
    while (as_server && (character = getchar()) != EOF)
        if (character == '\n' && run(&problem) != EXIT_SUCCESS)
            result = EXIT_WRONG;
    unmap_all(&problem);
    return result;
}
