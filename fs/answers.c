/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/answers.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <time.h>
#include <unistd.h>

#include "base/lock.h"

#define LOOK_US 1000
#define WAIT_MS 1000u

struct answer {
    STAILQ_ENTRY(answer) link;
    uint64_t nodeid, number;
    bool sent;
    struct timespec taken; /* when it counts as taken */
};

static pthread_mutex_t lock = LOCK_INITIALIZER(LOCK_ANSWERS); /* guards what follows, and each answer */
static STAILQ_HEAD(, answer) answers = STAILQ_HEAD_INITIALIZER(answers); /* by number */
static uint64_t last;

static bool is_taken(const struct answer *answer)
{
    return answer->sent && lock_is_past(&answer->taken);
}

/* Lock held. */
static void forget_taken(void)
{
    struct answer *answer;

    while ((answer = STAILQ_FIRST(&answers)) && is_taken(answer)) {
        STAILQ_REMOVE_HEAD(&answers, link);
        free(answer);
    }
}

struct answer *answer_begin(uint64_t nodeid)
{
    struct answer *answer = calloc(1, sizeof *answer);

    if (!answer)
        return NULL;
    answer->nodeid = nodeid;
    pthread_mutex_lock(&lock);
    forget_taken();
    answer->number = ++last;
    STAILQ_INSERT_TAIL(&answers, answer, link);
    pthread_mutex_unlock(&lock);
    return answer;
}

void answer_sent(struct answer *answer)
{
    if (!answer)
        return;
    pthread_mutex_lock(&lock);
    answer->sent = true;
    answer->taken = lock_wait_until(ANSWER_TAKEN_MS);
    pthread_mutex_unlock(&lock);
}

/* Whether one of the inode's up to that number is still on its way. Lock held. */
static bool is_under_way(uint64_t nodeid, uint64_t number)
{
    const struct answer *answer;

    STAILQ_FOREACH (answer, &answers, link) {
        if (answer->number > number)
            break;
        if (answer->nodeid == nodeid && !is_taken(answer))
            return true;
    }
    return false;
}

void answers_wait(uint64_t nodeid)
{
    struct timespec until = lock_wait_until(WAIT_MS);

    lock_none("answers_wait");
    pthread_mutex_lock(&lock);
    uint64_t number = last; /* those that begin from now on know the size */
    while (is_under_way(nodeid, number) && !lock_is_past(&until)) {
        pthread_mutex_unlock(&lock);
        usleep(LOOK_US);
        pthread_mutex_lock(&lock);
    }
    forget_taken();
    pthread_mutex_unlock(&lock);
}

void answers_free(void)
{
    struct answer *answer;

    pthread_mutex_lock(&lock);
    while ((answer = STAILQ_FIRST(&answers))) {
        STAILQ_REMOVE_HEAD(&answers, link);
        free(answer);
    }
    pthread_mutex_unlock(&lock);
}
