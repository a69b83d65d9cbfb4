/* SPDX-License-Identifier: Apache-2.0 */
/* gaia_macquire() + gaia_mrelease() when nothing changed: microseconds a pair, for each mapping in turn.
 *
 * bench_sync [--pairs N] FILE:RESIDENT_BYTES...
 * One JSON object with a list: for each file its size, what is resident, and the pair's times. */
#include "tests/bench/bench.h"

#define MAPPINGS_MAX 16
#define ROUNDS 5u

struct subject {
    char *path;
    size_t resident, length;
    int fd;
    uint8_t *base;
    double *pair, *acquire, *release; /* us */
};

static void open_subject(struct subject *s, char *argument, struct gaia_device *device, size_t pairs)
{
    char *colon = strrchr(argument, ':');

    if (!colon)
        die("%s: no :RESIDENT_BYTES", argument);
    *colon = '\0';
    s->path = argument;
    s->resident = strtoull(colon + 1, NULL, 10) / PAGE * PAGE;
    s->fd = open_file(argument, O_RDWR);
    s->length = file_size(s->fd);
    s->base = map_file(device, s->fd, s->length, PROT_READ | PROT_WRITE);
    if (s->resident)
        advise(s->base, s->resident, GAIA_ADV_WILLNEED);
    for (size_t at = 0; at < s->resident; at += PAGE)
        (void)*(volatile uint8_t *)(s->base + at);
    s->pair = calloc(pairs, sizeof *s->pair);
    s->acquire = calloc(pairs, sizeof *s->acquire);
    s->release = calloc(pairs, sizeof *s->release);
    if (!s->pair || !s->acquire || !s->release)
        die("memory");
}

static void time_pair(struct subject *s, struct gaia_device *device, size_t i)
{
    uint64_t start = now_ns();

    if (gaia_macquire(s->base, s->length, device))
        die("gaia_macquire %s", s->path);
    uint64_t middle = now_ns();
    if (gaia_mrelease(s->base, s->length, device))
        die("gaia_mrelease %s", s->path);
    uint64_t end = now_ns();
    s->acquire[i] = (double)(middle - start) / 1000;
    s->release[i] = (double)(end - middle) / 1000;
    s->pair[i] = (double)(end - start) / 1000;
}

static void print_subject(struct subject *s, size_t pairs)
{
    const char *name = strrchr(s->path, '/');

    printf("{\"file\": \"%s\", \"bytes\": %zu, \"resident_bytes\": %zu, \"pair_us\": %.2f, \"acquire_us\": "
           "%.2f, "
           "\"release_us\": %.2f, \"pair_99_us\": %.2f, \"pair_max_us\": %.2f}",
           name ? name + 1 : s->path, s->length, s->resident, median(s->pair, pairs),
           median(s->acquire, pairs), median(s->release, pairs), quantile(s->pair, pairs, 0.99),
           quantile(s->pair, pairs, 1));
}

int main(int argc, char **argv)
{
    struct subject subjects[MAPPINGS_MAX] = {0};
    size_t each = option(&argc, argv, "--pairs", 200) / ROUNDS + 1, pairs = each * ROUNDS;
    int n = argc - 1;

    if (n < 1 || n > MAPPINGS_MAX) {
        fprintf(stderr, "usage: bench_sync [--pairs N] FILE:RESIDENT_BYTES...\n");
        return 2;
    }
    struct gaia_device *device = open_device();
    for (int i = 0; i < n; i++)
        open_subject(&subjects[i], argv[i + 1], device, pairs);
    for (int i = 0; i < n; i++) /* the first acquire looks at everything */
        time_pair(&subjects[i], device, 0);
    for (size_t round = 0; round < ROUNDS; round++)
        for (int i = 0; i < n; i++)
            for (size_t pair = 0; pair < each; pair++)
                time_pair(&subjects[i], device, round * each + pair);
    printf("{\"pairs\": %zu, \"mappings\": [", pairs);
    for (int i = 0; i < n; i++) {
        fputs(i ? ", " : "", stdout);
        print_subject(&subjects[i], pairs);
    }
    printf("]}\n");
    gaia_device_close(device);
    for (int i = 0; i < n; i++) {
        close(subjects[i].fd);
        free(subjects[i].pair);
        free(subjects[i].acquire);
        free(subjects[i].release);
    }
    return 0;
}
