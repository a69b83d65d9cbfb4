/* SPDX-License-Identifier: Apache-2.0 */
/* What worker.c, operations.c and gone.c share. */
#ifndef KILLS_WORKER_H
#define KILLS_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gaia_device;
struct record;

#define PAGE 4096
#define OWN_PAGES 24 /* of the own file that are mapped */
#define OWN_BLOCK 97
#define VICTIM_PAGES 10

enum { FINE, COARSE, OWN, PRIVATE, FILES, FOLDER = 10 }; /* numbers of files */
enum { BY_WRITE, BY_CPU, BY_DEVICE };

struct file {
    int fd;
    int64_t size, mapped;
    int64_t block; /* of bytes of one owner */
    uint8_t *cpu;  /* NULL: not mapped */
    uint8_t *device;
    struct gaia_device *on;
};

/* worker.c: who this is, and the log */
extern struct file files[FILES];
extern const char *mnt;
extern const char *tag;
extern unsigned number;
extern bool victim;
extern bool is_over; /* the daemon is gone */
_Noreturn void die(const char *what, int64_t a, int64_t b);
struct record *begin(unsigned kind, unsigned file, int64_t offset, int64_t length, const void *data,
                     size_t data_length);
int answer(struct record *r, int64_t done, int error);
/* Whether an error says that the daemon is gone. */
bool daemon_gone(unsigned kind, int error);
extern bool daemon_dies; /* it is the daemon that is killed, and no client */
/* Of a call that has just returned: errno, or 0. */
int failed(int64_t result);

/* operations.c */
extern uint8_t shadow[OWN_PAGES * PAGE]; /* the own file, where only write() writes */
extern bool own_is_stale;                /* the device may lack what write() did to the own file */
void one_operation(void);
void do_call_on(unsigned kind, unsigned f, int64_t offset, int64_t length);
int map_device(unsigned f);

/* gone.c */
void after_the_end(void);

#endif
