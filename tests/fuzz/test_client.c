/* SPDX-License-Identifier: Apache-2.0 */
/* What a program says to the daemon, over a socket, with a cache and a soft device behind it: the input is
 * the program. It says hello as it likes, maps parts of a file or none, gives wrong addresses, ranges,
 * numbers and descriptors, and stores to the frames that it was given. Only tokens and names of files are not
 * the daemon's own here: a token is as good as the input says. Each message is answered, or ends the
 * connection; what is answered repeats the operation; and of a map for reading no byte reaches the file. */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "cache/client.h"
#include "fs/client.h"
#include "fs/fs.h"
#include "fs/nodes.h"
#include "fs/token.h"
#include "gpu/gaia.h"
#include "gpu/touch.h"
#include "gpu/uffd.h"
#include "io/message.h"
#include "tests/fuzz/host.h"

const unsigned fuzz_runs = 800;

#define MAPS 6u
#define LIMIT_MS 20000u

struct map {
    uint32_t id;    /* 0: none */
    uint8_t *bytes; /* NULL: mapped nowhere */
    size_t length;
    uint64_t offset;
    bool writable, attached; /* attached: where it is mapped, and its faults are the daemon's */
    int frames;
};

/* Once; what follows is each program's. */
static struct fs fs;
static struct durable durable;
static struct cache_file *file;
static struct token_table tokens;
static int backing, alive;

static struct token granted; /* what the next token is */
static int granted_error;

int __wrap_token_take(struct token_table *table, const uint8_t secret[16], pid_t pid, uid_t uid,
                      struct token *token_out);
int __wrap_token_take(struct token_table *table, const uint8_t secret[16], pid_t pid, uid_t uid,
                      struct token *token_out)
{
    MUST(table == &tokens && secret && pid == getpid() && uid == getuid());
    *token_out = granted;
    return granted_error;
}

int __wrap_nodes_track_to_map(struct inode *inode, struct cache_file **file_out);
int __wrap_nodes_track_to_map(struct inode *inode, struct cache_file **file_out)
{
    (void)inode;
    *file_out = file;
    return 0;
}

void __wrap_inode_put(struct inode *inode);
void __wrap_inode_put(struct inode *inode)
{
    (void)inode;
}

void __wrap_fs_log(int priority, const char *format, ...);
void __wrap_fs_log(int priority, const char *format, ...)
{
    (void)priority;
    (void)format;
}

static void open_cache(void)
{
    struct cache_config config = {.device_capacity = 128 << 10, /* less than the file has */
                                  .soft_devices = 3,
                                  .evict = "lra",
                                  .unit_pages = GAIA_UNIT_PAGES,
                                  .io_threads = true,
                                  .behind_timeout_ns = 1000000000};
    const struct cache_host host = {.invalidate = host_invalidate, .peek = host_peek, .pin = host_pin};
    char why[CACHE_WHY];

    alive = memfd_create("alive", MFD_CLOEXEC);
    MUST(alive >= 0 && !cache_open(&config, &host, &fs.cache, why));
    touch_begin();
    token_table_init(&tokens);
    programs_init(&fs.programs);
    atomic_store(&fs.shed.next, UINT32_MAX);
    fs.data_path = fs.mount_path = (char[]){"/"};
    pthread_mutex_init(&fs.handles_lock, NULL);
}

/* The file has no name: what devices have of it is dropped with its last map. written: it may be other than
 * zeros. */
static void close_file(bool written)
{
    static const uint8_t zeros[PAGE];
    uint8_t bytes[PAGE];
    off_t end = lseek(backing, 0, SEEK_END);

    MUST(end == PAGES * PAGE);
    for (off_t at = 0; at < end && !written; at += PAGE)
        MUST(pread(backing, bytes, PAGE, at) == PAGE && !memcmp(bytes, zeros, PAGE));
    cache_file_discard(file);
    for (unsigned ms = 0; host_pins; ms++) { /* threads that empty frames may be at it */
        MUST(ms < LIMIT_MS);
        usleep(1000);
    }
    cache_file_close(file);
    durable_destroy(&durable);
    close(backing);
}

/* ---- the program ---- */

struct program {
    struct client client;
    int socket; /* its end */
    int faults; /* -1: none */
    struct map maps[MAPS];
    bool ended, writes; /* it had a map that it may write to */
    bool lied;          /* of where a map is, or about the frames' size: its touches may go round for ever */
};

static int open_faults(void)
{
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM |
                                         UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Says it, and has it served; what comes back. false: nothing does. */
static bool ask(struct program *p, struct gaia_message *message, const int *fds, unsigned count,
                int fds_out[GAIA_MESSAGE_FDS])
{
    uint16_t op = message->op;

    if (p->ended || gaia_message_send(p->socket, message, fds, count))
        return false;
    p->ended = client_serve(&p->client) != 0;
    if (p->ended)
        return false;
    MUST(!gaia_message_receive_now(p->socket, message, fds_out));
    MUST(message->op == op && message->error <= 0 && message->error > -4096);
    return true;
}

static void close_all(int fds[GAIA_MESSAGE_FDS])
{
    for (unsigned i = 0; i < GAIA_MESSAGE_FDS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

static void say_hello(struct program *p, struct input *in)
{
    struct gaia_message message = {.op = GAIA_OP_HELLO, .flags = take_u8(in) % 4};
    int fds[2] = {-1, -1}, back[GAIA_MESSAGE_FDS];
    uint8_t with = take_u8(in);
    unsigned count = 0;

    if (with % 4 && p->faults < 0)
        p->faults = open_faults();
    if (with % 4 && p->faults >= 0)
        fds[count++] = p->faults;
    else if (with & 64)
        fds[count++] = with & 32 ? p->socket : backing;
    if (with & 128)
        fds[count++] = alive;
    if (ask(p, &message, fds, count, back))
        close_all(back);
}

static void forget_map(struct program *p, struct map *map)
{
    struct uffdio_range range = {(uintptr_t)map->bytes, map->length};

    if (map->bytes && p->faults >= 0)
        (void)ioctl(p->faults, UFFDIO_UNREGISTER, &range);
    if (map->bytes)
        munmap(map->bytes, map->length);
    if (map->id)
        close(map->frames);
    *map = (struct map){0};
}

static void map_frames(struct map *map, int fds[GAIA_MESSAGE_FDS], const struct gaia_message *asked)
{
    MUST(fds[0] >= 0 && fds[1] >= 0);
    MUST(pwrite(fds[1], "x", 1, 0) < 0); /* the state is the daemon's */
    map->frames = fds[0];
    fds[0] = -1;
    map->length = (asked->bytes + PAGE - 1) / PAGE * PAGE;
    if (!asked->bytes || map->length > PAGES * PAGE || asked->offset >= PAGES * PAGE)
        return;
    void *bytes = mmap(NULL, map->length, map->writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                       map->frames, (off_t)asked->offset);
    map->bytes = bytes == MAP_FAILED ? NULL : bytes;
    if (!map->writable)
        MUST(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, map->frames, 0) == MAP_FAILED);
}

/* As it should be, but for one thing. */
static void open_map(struct program *p, struct map *map, struct input *in)
{
    uint8_t odd = take_u8(in);
    uint64_t first = take_u8(in) % 4, count = take_u8(in) % PAGES + 1;
    struct gaia_message message = {.op = GAIA_OP_MAP,
                                   .offset = odd % 16 ? first * PAGE : take_odd(in),
                                   .bytes = odd % 16 != 1 ? count * PAGE : take_odd(in),
                                   .prot = odd % 16 != 2 ? PROT_READ | PROT_WRITE : take_u8(in),
                                   .flags = odd % 16 == 3 ? (uint32_t)take_odd(in) : GAIA_SHARED};
    struct gaia_message asked;
    int back[GAIA_MESSAGE_FDS];

    granted = (struct token){.inode = (void *)&file, .readable = odd % 16 != 4, .writable = odd % 16 != 5};
    granted_error = odd % 16 == 6 ? -EACCES : 0;
    memcpy(message.device, odd % 16 == 7 ? "soft:9" : odd % 16 == 8 ? "cuda:0" : "soft:0", 7);
    message.device[5] = (char)(message.device[5] + odd / 16 % 2);
    asked = message;
    if (!ask(p, &message, NULL, 0, back))
        return;
    if (!message.error) {
        MUST(granted.readable && (granted.writable || !(asked.prot & PROT_WRITE)));
        forget_map(p, map);
        map->id = message.map;
        map->writable = asked.prot & PROT_WRITE;
        map->offset = asked.offset;
        p->writes |= map->writable;
        map_frames(map, back, &asked);
    } else {
        MUST(back[0] < 0 && back[1] < 0);
    }
    close_all(back);
}

static void attach(struct program *p, struct map *map, struct input *in)
{
    uint8_t odd = take_u8(in);
    struct gaia_message message = {.op = GAIA_OP_ATTACH, .map = map->id, .address = (uintptr_t)map->bytes};
    int back[GAIA_MESSAGE_FDS];
    bool right = false;

    if (map->bytes && p->faults >= 0 && odd % 8) {
        struct uffdio_register range = {.range = {(uintptr_t)map->bytes, map->length},
                                        .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR |
                                                UFFDIO_REGISTER_MODE_WP};
        right = !ioctl(p->faults, UFFDIO_REGISTER, &range);
    }
    if (odd >= 240)
        message.address = take_odd(in);
    else if (odd >= 224)
        message.address += PAGE * (uint64_t)(take_u8(in) % 4);
    if (!ask(p, &message, NULL, 0, back))
        return;
    map->attached |= !message.error && right && message.address == (uintptr_t)map->bytes;
    p->lied |= !message.error && !map->attached;
    close_all(back);
}

static void use_map(struct program *p, struct map *map, struct input *in)
{
    uint8_t odd = take_u8(in);
    uint64_t first = map->length ? take_u8(in) % (map->length / PAGE) : 0;
    struct gaia_message message = {.op = (uint16_t)(GAIA_OP_UNMAP + take_u8(in) % 12),
                                   .map = odd < 240 ? map->id : (uint32_t)take_odd(in),
                                   .offset = odd % 16 ? map->offset + first * PAGE : take_odd(in),
                                   .bytes = odd % 16 > 1 ? map->length - first * PAGE : take_odd(in),
                                   .flags = odd % 16 > 2 ? take_u8(in) % 8 : (uint32_t)take_odd(in)};
    int back[GAIA_MESSAGE_FDS];

    message.value[0] = odd % 16 == 3 ? take_odd(in) : 0;
    memcpy(message.device, odd & 64 ? "soft:1" : "soft:x", 7);
    if (message.op > GAIA_OP_LAST)
        message.op = message.op % 2 ? GAIA_OP_ACQUIRE : GAIA_OP_RELEASE;
    bool unmaps = message.op == GAIA_OP_UNMAP;
    uint32_t id = message.map;
    if (!ask(p, &message, NULL, 0, back))
        return;
    for (unsigned i = 0; unmaps && !message.error && i < MAPS; i++)
        if (p->maps[i].id == id)
            forget_map(p, &p->maps[i]);
    close_all(back);
}

/* No message, or one whose fields nobody has made. */
static void say_anything(struct program *p, struct input *in)
{
    struct gaia_message message = {0};
    uint8_t bytes[sizeof message + 64] = {0}, odd = take_u8(in);
    int back[GAIA_MESSAGE_FDS];

    take_bytes(in, &message, odd % 4 ? sizeof message / 4 : 32);
    if (odd & 4)
        message.length = sizeof message, message.version = GAIA_PROTOCOL_VERSION;
    memcpy(bytes, &message, sizeof message);
    if (p->ended || send(p->socket, bytes, odd & 8 ? odd : sizeof message, MSG_NOSIGNAL) < 0)
        return;
    p->ended = client_serve(&p->client) != 0;
    if (!p->ended && !gaia_message_receive_now(p->socket, &message, back))
        close_all(back);
}

/* Stores to frames that nobody has trapped, and room that comes and goes. */
static void spoil(struct program *p, const struct map *map, struct input *in)
{
    uint8_t odd = take_u8(in);
    off_t at = (off_t)(take_u16(in) % (PAGES * PAGE));

    if (!map->id)
        return;
    p->lied |= odd % 4 == 0;
    if (odd % 4)
        MUST((pwrite(map->frames, "stored", 6, at) == 6) == map->writable);
    else if (odd & 4)
        (void)!ftruncate(map->frames, odd & 8 ? at : at * (off_t)4096);
    else
        (void)fallocate(map->frames, FALLOC_FL_KEEP_SIZE | (odd & 8 ? FALLOC_FL_PUNCH_HOLE : 0),
                        at / PAGE * PAGE, (off_t)odd * PAGE);
}

/* As a kernel would: bytes come, or it is SIGBUS, and nobody waits for ever who has not lied. */
static void touch(const struct program *p, const struct map *map, struct input *in)
{
    size_t at = take_u16(in) * (size_t)8;
    uint8_t odd = take_u8(in), word[8];

    if (p->lied || !map->attached || at + sizeof word > map->length)
        return;
    if (odd % 2 && map->writable) {
        memset(word, odd, sizeof word);
        (void)touch_copy(map->bytes + at, word, sizeof word);
    } else {
        (void)touch_copy(word, map->bytes + at, sizeof word);
    }
}

static void step(struct program *p, struct input *in)
{
    uint8_t op = take_u8(in);
    struct map *map = &p->maps[op / 8 % MAPS];

    switch (op % 8) {
    case 0: /* most of what is no message ends the connection */
        if (op & 128)
            say_anything(p, in);
        else
            say_hello(p, in);
        break;
    case 1:
    case 2:
        open_map(p, map, in);
        break;
    case 3:
        attach(p, map, in);
        break;
    case 4:
    case 5:
        use_map(p, map, in);
        break;
    case 6:
        touch(p, map, in);
        break;
    default:
        spoil(p, map, in);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct input in = {bytes, size};
    struct program p = {.faults = -1};
    int ends[2];

    if (!fs.cache)
        open_cache();
    backing = host_open_file(fs.cache, &durable, &file);
    MUST(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends));
    p.socket = ends[0];
    p.client = (struct client){.fs = &fs,
                               .tokens = &tokens,
                               .alive_fd = alive,
                               .socket = ends[1],
                               .peer = {getpid(), getuid(), getgid()},
                               .far = true, /* no statistics: they are of a mount */
                               .faults = -1,
                               .lives = -1};
    uint8_t prologue = take_u8(&in);
    if (prologue % 8)
        say_hello(&p, &in);
    if (prologue % 4)
        open_map(&p, &p.maps[0], &in);
    if (prologue % 2)
        attach(&p, &p.maps[0], &in);
    for (unsigned steps = 0; in.left && steps < 40 && !p.ended; steps++)
        step(&p, &in);
    close(p.socket);
    cache_client_close(p.client.cache);
    for (unsigned i = 0; i < MAPS; i++)
        forget_map(&p, &p.maps[i]);
    if (p.client.faults >= 0)
        close(p.client.faults);
    if (p.client.lives >= 0)
        close(p.client.lives);
    if (p.faults >= 0)
        close(p.faults);
    close(p.client.socket);
    close_file(p.writes);
    return 0;
}
