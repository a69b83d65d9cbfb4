/* SPDX-License-Identifier: Apache-2.0 */
/* collage: an image made of the most similar images of a data set, as in the paper on GAIA: which pages of
 * the data set are read depends on what is found on the way.
 *
 *   collage [--device NAME] [--count N] [--seed N] [--check] FOLDER
 *
 * Makes collage.set, N small images (tiles) with their histograms and tables to find similar ones
 * (locality-sensitive hashing), and collage.in, an image, in FOLDER on a gaiafs mount; and collage.out. Each
 * block of the image is looked up in every table; the tiles in its buckets are compared with it, histogram by
 * histogram, and the nearest takes its place. --check: looks at what an earlier run has left, only.
 *
 * The data set is mapped on demand, in units of 4 KiB, and is larger than the GPU's memory for it: an eighth
 * of it, or what $GAIA_DEMAND_BYTES says. Kernels read it through a gaia_view. On a GPU:
 *
 *   make CC=gcc examples-cuda
 *   GAIA_DEMAND_BYTES=67108864 build/gcc/examples/nvcc/collage --count 262144 /mnt/data
 *
 * (1 GiB of tiles through 64 MiB of frames), and on a soft device, as C++ for the CPU:
 *
 *   make CC=gcc examples && build/gcc/examples/cuda/collage /mnt/data */
#include "example.h"

enum {
    SIDE = 32,         /* of a tile and of a block, in pixels */
    BLOCKS_ACROSS = 8, /* of the image */
    IMAGE_BLOCKS = BLOCKS_ACROSS * BLOCKS_ACROSS,
    IMAGE_SIDE = SIDE * BLOCKS_ACROSS,
    TILE_BYTES = SIDE * SIDE * 3,
    BINS = 3 * 16, /* sixteen shades of each color */
    TABLES = 6,
    KEY_BITS = 6,
    BUCKETS = 1 << KEY_BITS,
    SLICES = 32, /* threads that share a bucket */
};

/* A page of the data set. */
struct tile {
    unsigned char pixels[TILE_BYTES];
    uint16_t histogram[BINS];
    unsigned char unused[4096 - TILE_BYTES - BINS * 2];
};

/* The data set: for each table where its buckets begin and the numbers of the tiles in them; then, from the
 * next page on, the tiles. */
__host__ __device__ static inline size_t table_words(size_t tiles)
{
    return BUCKETS + 1 + tiles;
}

__host__ __device__ static inline size_t tiles_at(size_t tiles)
{
    return (TABLES * table_words(tiles) * sizeof(uint32_t) + 4095) / 4096 * 4096;
}

__host__ __device__ static inline void take_histogram(const unsigned char *pixels, size_t row_bytes,
                                                      uint16_t histogram[BINS])
{
    for (int bin = 0; bin < BINS; bin++)
        histogram[bin] = 0;
    for (int y = 0; y < SIDE; y++)
        for (int i = 0; i < SIDE * 3; i++)
            histogram[i % 3 * 16 + pixels[y * row_bytes + i] / 16]++;
}

/* On which side of KEY_BITS planes a histogram lies. The planes of a table are numbers of a hash. */
__host__ __device__ static inline unsigned key_of(const uint16_t histogram[BINS], unsigned table)
{
    unsigned key = 0;

    for (unsigned bit = 0; bit < KEY_BITS; bit++) {
        uint64_t plane = (table * KEY_BITS + bit + 1) * 0x9e3779b97f4a7c15u;
        int side = 0;

        plane = (plane ^ plane >> 29) * 0xbf58476d1ce4e5b9u;
        plane ^= plane >> 32;
        for (unsigned bin = 0; bin < BINS; bin++)
            side += (plane >> bin & 1) != 0 ? histogram[bin] : -(int)histogram[bin];
        key |= (unsigned)(side > 0) << bit;
    }
    return key;
}

__host__ __device__ static inline unsigned distance_of(const uint16_t a[BINS], const uint16_t b[BINS])
{
    unsigned sum = 0;

    for (int bin = 0; bin < BINS; bin++)
        sum += a[bin] > b[bin] ? a[bin] - b[bin] : b[bin] - a[bin];
    return sum;
}

/* Where a block of the image begins. */
__host__ __device__ static inline size_t block_at(size_t block)
{
    return (block / BLOCKS_ACROSS * SIDE * IMAGE_SIDE + block % BLOCKS_ACROSS * SIDE) * 3;
}

/* --- kernels --- */

/* The data set, as items of one type. */
template <typename Item> struct items {
    gaia_view<Item> view;
    const Item *plain; /* on a soft device, where any load brings what it touches */

    __device__ Item operator[](size_t i) const
    {
        return plain != NULL ? plain[i] : view.load(i);
    }
    /* N of them from i on, all on their way at once. */
    template <uint32_t N> __device__ void load(size_t i, Item (&out)[N]) const
    {
        uint64_t index[N];

        for (uint32_t k = 0; k < N; k++) {
            index[k] = i + k;
            if (plain != NULL)
                out[k] = plain[i + k];
        }
        if (plain == NULL)
            view.load_many(index, out);
    }
};

struct data_set {
    size_t tiles;
    items<uint32_t> words;       /* of the tables */
    items<uint64_t> quads;       /* of histograms: four bins each */
    items<unsigned char> pixels; /* of tiles */
};

__host__ __device__ static inline size_t tile_at(size_t tiles, size_t tile)
{
    return tiles_at(tiles) + tile * sizeof(struct tile);
}

/* A tile's histogram and another one. */
__device__ static inline unsigned distance_to(const struct data_set &set, size_t tile,
                                              const uint16_t histogram[BINS])
{
    size_t at = (tile_at(set.tiles, tile) + TILE_BYTES) / sizeof(uint64_t);
    uint64_t fours[BINS / 4];
    uint16_t bins[BINS];

    set.quads.load(at, fours);
    for (int i = 0; i < BINS; i++)
        bins[i] = (uint16_t)(fours[i / 4] >> i % 4 * 16);
    return distance_of(histogram, bins);
}

typedef unsigned long long choice_type; /* distance << 32 | tile: the smallest is the best */

__global__ void take_histograms(const unsigned char *image, uint16_t *histograms, choice_type *best)
{
    for (size_t block = first_item(); block < IMAGE_BLOCKS; block += item_step()) {
        take_histogram(image + block_at(block), IMAGE_SIDE * 3, histograms + block * BINS);
        best[block] = ~0ull;
    }
}

/* SLICES threads for each block and table: neighbours look at neighbouring tiles of the bucket. */
__global__ void search(struct data_set set, const uint16_t *histograms, choice_type *best,
                       choice_type *looked_at)
{
    for (size_t i = first_item(); i < IMAGE_BLOCKS * TABLES * SLICES; i += item_step()) {
        size_t block = i / SLICES / TABLES;
        unsigned table = i / SLICES % TABLES;
        const uint16_t *histogram = histograms + block * BINS;
        size_t starts = table * table_words(set.tiles), members = starts + BUCKETS + 1;
        unsigned key = key_of(histogram, table);
        uint32_t first = set.words[starts + key], end = set.words[starts + key + 1];

        for (uint32_t at = first + i % SLICES; at < end; at += SLICES) {
            uint32_t member = set.words[members + at];
            choice_type distance = distance_to(set, member, histogram);

            atomicMin(&best[block], distance << 32 | member);
            atomicAdd(looked_at, (choice_type)1);
        }
    }
}

/* A thread for each byte. A block that is like no tile at all gets the first one. */
__global__ void paste(struct data_set set, const choice_type *best, unsigned char *image)
{
    for (size_t i = first_item(); i < (size_t)IMAGE_BLOCKS * TILE_BYTES; i += item_step()) {
        size_t block = i / TILE_BYTES, byte = i % TILE_BYTES, y = byte / (SIDE * 3), x = byte % (SIDE * 3);
        size_t chosen = best[block] == ~0ull ? 0 : best[block] & 0xffffffff;

        image[block_at(block) + y * IMAGE_SIDE * 3 + x] = set.pixels[tile_at(set.tiles, chosen) + byte];
    }
}

/* --- the data set and the image --- */

/* Some color, brighter to one side, and some noise. */
static void draw(unsigned char *pixels, size_t row_bytes, uint64_t *state)
{
    uint64_t random = random_number(state);
    int color[3] = {(int)(random % 200), (int)(random >> 8 & 127), (int)(random >> 16 & 255)};
    int slope = (int)(random >> 24 & 3);

    for (int y = 0; y < SIDE; y++)
        for (int i = 0; i < SIDE * 3; i++) {
            int value = color[i % 3] + slope * (i / 3) + (int)(random_number(state) % 16);

            pixels[y * row_bytes + i] = (unsigned char)(value > 255 ? 255 : value);
        }
}

static void make_set(const char *path, size_t tiles, uint64_t seed)
{
    size_t bytes = tiles_at(tiles) + tiles * sizeof(struct tile);
    unsigned char *set = (unsigned char *)allocate(bytes, 1);
    struct tile *tile = (struct tile *)(set + tiles_at(tiles));

    for (size_t i = 0; i < tiles; i++) {
        draw(tile[i].pixels, SIDE * 3, &seed);
        take_histogram(tile[i].pixels, SIDE * 3, tile[i].histogram);
    }
    for (unsigned table = 0; table < TABLES; table++) {
        uint32_t *starts = (uint32_t *)set + table * table_words(tiles), *members = starts + BUCKETS + 1;
        uint32_t used[BUCKETS] = {0};

        for (size_t i = 0; i < tiles; i++)
            starts[key_of(tile[i].histogram, table) + 1]++;
        for (unsigned bucket = 0; bucket < BUCKETS; bucket++)
            starts[bucket + 1] += starts[bucket];
        for (size_t i = 0; i < tiles; i++) {
            unsigned key = key_of(tile[i].histogram, table);

            members[starts[key] + used[key]++] = (uint32_t)i;
        }
    }
    write_file(path, set, bytes);
    free(set);
}

static void make_image(const char *path, uint64_t seed)
{
    unsigned char *image = (unsigned char *)allocate(IMAGE_BLOCKS, TILE_BYTES);

    for (size_t block = 0; block < IMAGE_BLOCKS; block++)
        draw(image + block_at(block), IMAGE_SIDE * 3, &seed);
    write_file(path, image, (size_t)IMAGE_BLOCKS * TILE_BYTES);
    free(image);
}

/* --- the check --- */

/* The nearest tile in the buckets of a block, one table after the other; 0 if there is none. */
static size_t choose(const unsigned char *set, size_t tiles, const uint16_t histogram[BINS])
{
    const struct tile *tile = (const struct tile *)(set + tiles_at(tiles));
    unsigned nearest = UINT32_MAX;
    size_t chosen = 0;

    for (unsigned table = 0; table < TABLES; table++) {
        const uint32_t *starts = (const uint32_t *)set + table * table_words(tiles);
        unsigned key = key_of(histogram, table);

        for (uint32_t at = starts[key]; at < starts[key + 1]; at++) {
            size_t member = starts[BUCKETS + 1 + at];
            unsigned distance = distance_of(histogram, tile[member].histogram);

            if (distance < nearest || (distance == nearest && member < chosen)) {
                nearest = distance;
                chosen = member;
            }
        }
    }
    return chosen;
}

static int check(const char *const paths[3], size_t tiles)
{
    size_t set_bytes, in_bytes, out_bytes, wrong = 0, most = 0;
    unsigned char *set = read_file<unsigned char>(paths[0], &set_bytes);
    unsigned char *in = read_file<unsigned char>(paths[1], &in_bytes);
    unsigned char *out = read_file<unsigned char>(paths[2], &out_bytes);
    const struct tile *tile = (const struct tile *)(set + tiles_at(tiles));

    if (set_bytes != tiles_at(tiles) + tiles * sizeof(struct tile) || in_bytes != out_bytes ||
        in_bytes != (size_t)IMAGE_BLOCKS * TILE_BYTES)
        return verdict(false, "files of %zu, %zu and %zu bytes (another --count?)", set_bytes, in_bytes,
                       out_bytes);
    for (size_t block = 0; block < IMAGE_BLOCKS; block++) {
        uint16_t histogram[BINS];
        bool same = true;

        take_histogram(in + block_at(block), IMAGE_SIDE * 3, histogram);
        size_t chosen = choose(set, tiles, histogram);
        for (size_t y = 0; y < SIDE; y++)
            same = same && memcmp(out + block_at(block) + y * IMAGE_SIDE * 3,
                                  tile[chosen].pixels + y * SIDE * 3, SIDE * 3) == 0;
        wrong += !same;
        most = chosen > most ? chosen : most;
    }
    free(set);
    free(in);
    free(out);
    return verdict(wrong == 0 && most > 0, "%d blocks, %zu of them wrong, by plain reads", IMAGE_BLOCKS,
                   wrong);
}

/* --- on the device --- */

/* Of whatever could not be read kernels got zeros, and went on. */
static void print_demand(const struct gaia_demand *demand)
{
    struct gaia_demand_control control;

    check_cuda(cudaMemcpy(&control, demand->control, sizeof(control), cudaMemcpyDeviceToHost), "a copy");
    if (control.failures != 0)
        fail((int)(uint32_t)control.error, "unit %ju of the data set", (uintmax_t)(control.error >> 32));
    printf("%ju faults and %ju evictions, of %ju units in %ju frames\n", (uintmax_t)control.faults,
           (uintmax_t)control.evicted, (uintmax_t)demand->units, (uintmax_t)demand->frames_count);
}

static void make_collage(struct gaia_device *device, const struct mapped *set, const struct data_set &data,
                         const struct mapped *in, const struct mapped *out)
{
    uint16_t *histograms = device_array<uint16_t>(IMAGE_BLOCKS * BINS);
    choice_type *best = device_array<choice_type>(IMAGE_BLOCKS + 1), *looked_at = best + IMAGE_BLOCKS;
    const unsigned char *image = (const unsigned char *)in->at;
    unsigned char *result = (unsigned char *)out->at;
    choice_type count = 0;

    check_cuda(cudaMemset(looked_at, 0, sizeof(*looked_at)), "memory of the device");
    acquire(set, device);
    acquire(in, device);
    acquire(out, device);
    LAUNCH(take_histograms, BLOCKS / 16, THREADS, NULL, image, histograms, best);
    LAUNCH(search, BLOCKS / 16, THREADS, NULL, data, histograms, best, looked_at);
    LAUNCH(paste, BLOCKS, THREADS, NULL, data, best, result);
    wait_for_kernel();
    release(out, device);
    check_cuda(cudaMemcpy(&count, looked_at, sizeof(count), cudaMemcpyDeviceToHost), "a copy");
    check_cuda(cudaFree(histograms), "memory of the device");
    check_cuda(cudaFree(best), "memory of the device");
    printf("%llu tiles compared for %d blocks, of %zu tiles in %zu bytes\n", count, IMAGE_BLOCKS, data.tiles,
           set->bytes);
}

int main(int argc, char **argv)
{
    struct arguments arguments = parse_arguments(
        argc, argv, 4096, 1 << 28, "collage [--device NAME] [--count N] [--seed N] [--check] FOLDER");
    const char *folder = arguments.rest[0];
    const char *const paths[3] = {path_in(folder, "collage.set"), path_in(folder, "collage.in"),
                                  path_in(folder, "collage.out")};

    if (arguments.check)
        return check(paths, arguments.count);
    make_set(paths[0], arguments.count, arguments.seed);
    make_image(paths[1], arguments.seed + 1);
    make_file(paths[2], (size_t)IMAGE_BLOCKS * TILE_BYTES);
    struct gaia_device *device = open_example_device(arguments.device);
    char frames[24];
    snprintf(frames, sizeof(frames), "%zu", arguments.count * sizeof(struct tile) / 8);
    setenv("GAIA_DEMAND_BYTES", frames, 0);
    struct gaia_demand demand;
    const struct gaia_demand *there;
    struct mapped set = map_on_demand(device, paths[0], &demand, &there);
    const void *plain = there == NULL ? set.at : NULL;
    struct data_set data = {arguments.count,
                            {gaia_view<uint32_t>(demand, there), (const uint32_t *)plain},
                            {gaia_view<uint64_t>(demand, there), (const uint64_t *)plain},
                            {gaia_view<unsigned char>(demand, there), (const unsigned char *)plain}};
    struct mapped in = map_whole(device, paths[1], PROT_READ);
    struct mapped out = map_whole(device, paths[2], PROT_READ | PROT_WRITE);
    make_collage(device, &set, data, &in, &out);
    if (there != NULL)
        print_demand(&demand);
    unmap(&set);
    unmap(&in);
    unmap(&out);
    gaia_device_close(device);
    return check(paths, arguments.count);
}
