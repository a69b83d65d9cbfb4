/* SPDX-License-Identifier: Apache-2.0 */
#include "base/lock.h"

#ifdef GAIAFS_CHECK_LOCKS
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name;
    unsigned flags;
} classes[] = {{"a lock without a class", 0},
#define X(name, text, flags) {text, flags},
               LOCK_CLASSES(X)
#undef X
};

/* The locks that this thread holds, in the order in which it took them. No thread looks at another's: the
 * check orders nothing that would not be ordered without it, and ThreadSanitizer sees the same races. */
#define HELD_MAX 8u
static _Thread_local struct {
    const void *lock;
    enum lock_class class;
    const char *where;
} held[HELD_MAX];
static _Thread_local unsigned count;

static _Noreturn void die(const char *what, const char *name, const char *where)
{
    fprintf(stderr, "gaiafs: lock order: %s: %s %s; held:", where, what, name);
    for (unsigned i = 0; i < count; i++)
        fprintf(stderr, " %s (%s)", classes[held[i].class].name, held[i].where);
    fprintf(stderr, count ? "\n" : " none\n");
    abort();
}

static bool allowed(const void *lock, enum lock_class class, unsigned i)
{
    enum lock_class outer = held[i].class;

    if (classes[outer].flags & LOCK_LEAF || classes[class].flags & LOCK_ALONE)
        return false;
    if (outer == class)
        return classes[class].flags & LOCK_PAIR && (uintptr_t)held[i].lock < (uintptr_t)lock;
    return outer < class;
}

static void push(const void *lock, enum lock_class class, const char *where)
{
    if (count == HELD_MAX)
        die("too many locks with", classes[class].name, where);
    held[count].lock = lock;
    held[count].class = class;
    held[count++].where = where;
}

static bool pop(const void *lock)
{
    unsigned i = count;

    while (i && held[i - 1].lock != lock)
        i--;
    if (!i)
        return false;
    for (count--; i <= count; i++)
        held[i - 1] = held[i];
    return true;
}

void lock_check_take(const void *lock, enum lock_class class, const char *where)
{
    if (class == LOCK_UNCHECKED)
        return;
    for (unsigned i = 0; i < count; i++)
        if (!allowed(lock, class, i))
            die("takes", classes[class].name, where);
    push(lock, class, where);
}

int lock_check_tried(int error, const void *lock, enum lock_class class, const char *where)
{
    if (!error && class != LOCK_UNCHECKED)
        push(lock, class, where);
    return error;
}

void lock_check_free(const void *lock, enum lock_class class, const char *where)
{
    if (class != LOCK_UNCHECKED && !pop(lock))
        die("frees without holding it", classes[class].name, where);
}

void lock_check_wait(const void *lock, enum lock_class class, const char *where)
{
    bool found = class == LOCK_UNCHECKED;

    for (unsigned i = 0; i < count; i++) {
        found |= held[i].lock == lock;
        if (held[i].lock != lock && !(classes[class].flags & LOCK_PEER))
            die("waits on", classes[class].name, where);
    }
    if (!found)
        die("waits without holding", classes[class].name, where);
}

void lock_check_anew(const void *lock)
{
    pop(lock);
}

void lock_check_none(const char *what, const char *where)
{
    if (count)
        die("no lock may be held over", what, where);
}
#endif
