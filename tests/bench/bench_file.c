/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a file of bytes that the other benchmarks can check, and leaves it clean in the host's memory.
 * bench_file PATH BYTES */
#include "tests/bench/bench.h"

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: bench_file PATH BYTES\n");
        return 2;
    }
    size_t length = strtoull(argv[2], NULL, 10) / PAGE * PAGE;
    int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        die("%s", argv[1]);
    uint64_t *chunk = new_memory(MIB);
    for (size_t at = 0; at < length;) {
        size_t n = length - at < MIB ? length - at : MIB;
        for (size_t i = 0; i < n / 8; i++)
            chunk[i] = pattern_word(at / PAGE + i / 512, i % 512);
        if (write(fd, chunk, n) != (ssize_t)n)
            die("write %s", argv[1]);
        at += n;
    }
    if (fsync(fd))
        die("fsync %s", argv[1]);
    close(fd);
    printf("{\"bytes\": %zu}\n", length);
    return 0;
}
