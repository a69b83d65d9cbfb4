/* SPDX-License-Identifier: Apache-2.0 */
/* A mount that is exported by the kernel's NFS server, and a mount of that export: tool_export MOUNT EXPORTED
 * SEED. What a program writes on one side is looked at on the other, and by soft:0; NFS promises it from
 * close() to open(). And names, and handles of what the server's kernel has forgotten. Each test ends with
 * one line, "nfs test NAME: ok" or "nfs test NAME: failed: ...". */
#include <dirent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "gaia.h"
#include "nodes_tool.h"

#define PAGES 24u
#define BYTES (PAGES * PAGE)
#define ROUNDS 16u
#define NAMES 500u
#define DEPTH 8u

static const char *here, *exported; /* the mount, and the other's mount of it */
static struct gaia_device *device;
static uint8_t expected[BYTES];
static char problem[300];

__attribute__((format(printf, 1, 2))) static bool wrong(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    return false;
}

static bool said(const char *what)
{
    return wrong("%s: %s", what, strerror(errno));
}

static bool same(const uint8_t *found, const char *who, unsigned round)
{
    for (size_t i = 0; i < BYTES; i++)
        if (found[i] != expected[i])
            return wrong("%s, round %u: byte %zu of page %zu is %02x, not %02x", who, round, i % PAGE,
                         i / PAGE, found[i], expected[i]);
    return true;
}

static bool reads(const char *folder, const char *name, unsigned round)
{
    static uint8_t bytes[BYTES];
    int fd = open_in(folder, name, O_RDONLY);
    ssize_t n = pread(fd, bytes, BYTES, 0);

    close(fd);
    return n == (ssize_t)BYTES ? same(bytes, folder, round) : wrong("%s: %zd bytes were read", folder, n);
}

static bool writes(const char *folder, const char *name, size_t at, size_t length)
{
    int fd = open_in(folder, name, O_RDWR);

    if (pwrite(fd, expected + at, length, (off_t)at) != (ssize_t)length)
        return said("pwrite");
    return close(fd) ? said("close") : true;
}

/* ---- bytes ---- */

/* By turns: who writes through NFS, a program of the mount, and soft:0; after each, all three look. */
static bool bytes(uint64_t *state)
{
    size_t at, length;
    char path[4200];

    snprintf(path, sizeof path, "%s/bytes", here);
    int fd = open(path, O_RDWR | O_CREAT, 0644);

    if (fd < 0 || pwrite(fd, expected, BYTES, 0) != (ssize_t)BYTES)
        return said("the file");
    uint8_t *mapped = gaia_mmap(device, BYTES, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return said("gaia_mmap");
    for (unsigned round = 0; round < ROUNDS * 3; round++) {
        change_some(expected, BYTES, state, &at, &length);
        if (round % 3 == 2) {
            memcpy(mapped + at, expected + at, length);
            if (gaia_mrelease(mapped, BYTES, device))
                return said("gaia_mrelease");
        } else if (!writes(round % 3 ? here : exported, "bytes", at, length)) {
            return false;
        }
        if (!reads(exported, "bytes", round) || !reads(here, "bytes", round))
            return false;
        if (gaia_macquire(mapped, BYTES, device))
            return said("gaia_macquire");
        if (!same(mapped, "soft:0", round))
            return false;
    }
    close(fd);
    return gaia_munmap(mapped, BYTES) ? said("gaia_munmap") : reads(exported, "bytes", ROUNDS * 3);
}

/* Even bytes by NFS (a direct write there goes byte for byte), odd ones by soft:0, in the same pages. */
static bool shared_pages(uint64_t *state)
{
    int fd = open_in(here, "bytes", O_RDWR), far = open_in(exported, "bytes", O_WRONLY | O_DIRECT);
    uint8_t *mapped = gaia_mmap(device, BYTES, PROT_READ | PROT_WRITE, GAIA_SHARED, fd, 0);

    if (mapped == MAP_FAILED)
        return said("gaia_mmap");
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (unsigned n = 0; n < 8; n++) {
            size_t at = draw(state, BYTES / 2) * 2, odd = draw(state, BYTES / 2) * 2 + 1;
            expected[at] = (uint8_t)draw(state, 256);
            if (pwrite(far, expected + at, 1, (off_t)at) != 1)
                return said("pwrite");
            mapped[odd] = expected[odd] = (uint8_t)draw(state, 256);
        }
        if (gaia_mrelease(mapped, BYTES, device) || gaia_macquire(mapped, BYTES, device))
            return said("release and acquire");
        if (!same(mapped, "soft:0", round) || !reads(exported, "bytes", round))
            return false;
    }
    close(far);
    close(fd);
    return gaia_munmap(mapped, BYTES) ? said("gaia_munmap") : true;
}

/* ---- names ---- */

static unsigned count_names(const char *folder)
{
    char path[4200];
    unsigned count = 0;

    snprintf(path, sizeof path, "%s/names", folder);
    DIR *dir = opendir(path);
    if (!dir)
        fail(path);
    for (const struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] == 'n';
    closedir(dir);
    return count;
}

static bool names(uint64_t *state)
{
    char path[4200], other[4200];

    (void)state;
    snprintf(path, sizeof path, "%s/names", exported);
    if (mkdir(path, 0755))
        return said("mkdir");
    for (unsigned i = 0; i < NAMES; i++) {
        snprintf(path, sizeof path, "%s/names/n%u", exported, i);
        int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0640);
        if (fd < 0 || dprintf(fd, "%u\n", i) < 2 || close(fd))
            return said(path);
    }
    for (unsigned i = 0; i < NAMES; i += 2) {
        snprintf(path, sizeof path, "%s/names/n%u", exported, i);
        snprintf(other, sizeof other, "%s/names/m%u", exported, i);
        if (i % 4 ? unlink(path) : rename(path, other))
            return said(path);
    }
    if (count_names(here) != NAMES / 2 || count_names(exported) != NAMES / 2)
        return wrong("%u names in the mount, %u by NFS, not %u", count_names(here), count_names(exported),
                     NAMES / 2);
    snprintf(path, sizeof path, "%s/names/n1", exported);
    snprintf(other, sizeof other, "%s/names/hard", exported);
    struct stat st;
    if (link(path, other) || stat(other, &st) || st.st_nlink != 2)
        return said("link");
    snprintf(other, sizeof other, "%s/names/soft", exported);
    return symlink("n1", other) || stat(other, &st) || st.st_size != 2 ? said("symlink") : true;
}

/* ---- handles ---- */

static void forget(void)
{
    int fd = open("/proc/sys/vm/drop_caches", O_WRONLY);

    sync();
    for (unsigned i = 0; i < 3; i++)
        if (fd < 0 || write(fd, "3", 1) != 1)
            fail("drop_caches");
    close(fd);
}

/* The client holds a folder and a file deep down; the server's kernel forgets all: it finds them again by
 * their handles, and the way up by "..". */
static bool handles(uint64_t *state)
{
    char path[4200], text[8] = "";
    size_t length = (size_t)snprintf(path, sizeof path, "%s", exported);

    for (unsigned i = 0; i < DEPTH; i++) {
        length += (size_t)snprintf(path + length, sizeof path - length, "/d%u", i);
        if (mkdir(path, 0755))
            return said(path);
    }
    int folder = open(path, O_RDONLY | O_DIRECTORY);
    int fd = openat(folder, "held", O_CREAT | O_RDWR, 0644);
    if (folder < 0 || fd < 0 || pwrite(fd, "before", 6, 0) != 6 || fsync(fd))
        return said("held");
    close(fd);
    fd = openat(folder, "held", O_PATH);
    for (unsigned round = 0; round < 3; round++) {
        struct stat st, moved;
        char name[32];
        forget();
        snprintf(name, sizeof name, "new%u", (unsigned)draw(state, 1000000));
        int made = openat(folder, name, O_CREAT | O_EXCL | O_WRONLY, 0644);
        if (made < 0 || write(made, "x", 1) != 1 || close(made))
            return said("a file made in a folder that was forgotten");
        forget();
        if (fstat(fd, &st) || fstatat(folder, "held", &moved, 0) || st.st_ino != moved.st_ino)
            return said("a file that was forgotten");
        int again = openat(folder, "held", O_RDONLY);
        if (again < 0 || pread(again, text, 6, 0) != 6 || memcmp(text, "before", 6))
            return said("its bytes");
        close(again);
    }
    /* In the mount it moves elsewhere; the handle goes on being that file's. */
    char other[4200];
    snprintf(path, sizeof path, "%s/d0/d1/d2/d3/d4/d5/d6/d7/held", here);
    snprintf(other, sizeof other, "%s/d0/elsewhere", here);
    if (rename(path, other))
        return said("rename");
    forget();
    struct stat st, moved;
    if (fstat(fd, &st) || stat(other, &moved) || st.st_ino != moved.st_ino)
        return said("a file that has moved");
    close(folder);
    close(fd);
    return true;
}

/* ---- locks ---- */

static bool locks(uint64_t *state)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10};
    int far = open_in(exported, "bytes", O_RDWR), near = open_in(here, "bytes", O_RDWR);

    (void)state;
    if (fcntl(far, F_SETLK, &lock))
        return said("a lock by NFS");
    if (!fcntl(near, F_OFD_SETLK, &lock) || errno != EAGAIN)
        return wrong("a lock that an NFS client has was given to a program of the mount");
    lock.l_type = F_UNLCK;
    if (fcntl(far, F_SETLK, &lock))
        return said("unlock");
    lock.l_type = F_WRLCK;
    if (fcntl(near, F_OFD_SETLK, &lock))
        return said("a lock after that");
    close(near);
    close(far);
    return true;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        bool (*run)(uint64_t *state);
    } tests[] = {{"bytes by turns", bytes},
                 {"bytes of shared pages", shared_pages},
                 {"names", names},
                 {"handles of what was forgotten", handles},
                 {"locks", locks}};

    if (argc != 4)
        return 2;
    here = argv[1];
    exported = argv[2];
    uint64_t state = strtoull(argv[3], NULL, 0);
    printf("seed %s\n", argv[3]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (gaia_device_open("soft:0", &device))
        fail("soft:0");
    for (size_t i = 0; i < BYTES; i++)
        expected[i] = (uint8_t)draw(&state, 256);
    bool good = true;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        bool passed = tests[i].run(&state);
        printf("nfs test %s: %s%s\n", tests[i].name, passed ? "ok" : "failed: ", passed ? "" : problem);
        good = good && passed;
    }
    return !good;
}
