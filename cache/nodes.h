/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes that have one page cache: this one's end of the sessions with the others (io/call.h), as agent of
 * their files (cache/agent.h) and as home of its own (cache/home.h). There is none in a mount without members
 * (cache->nodes is NULL). */
#ifndef GAIAFS_CACHE_NODES_H
#define GAIAFS_CACHE_NODES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/lock.h"
#include "cache/followed.h"
#include "cache/table.h"
#include "io/call.h"
#include "io/members.h"
#include "io/node.h"

struct agent_file;
struct agent_frames;
struct cache;
struct cache_client;
struct home_session;

/* A node that is or was a member, as this node sees it as a home. Its place in nodes->homes is its number,
 * which never changes: lists come and go. */
struct nodes_home {
    struct member member; /* name[0] is 0: a free place */
    bool listed;          /* in the list now */
    bool untried;         /* since it was listed, or was odd and the list has changed: cache/odds.h */
    bool met;             /* at least once */
    bool refuses;         /* us, as its list lacks us: cache/odds.h */
    bool knows_more;      /* it says that a node lives which our list lacks: likewise */
    bool first;           /* it was here before us, or is not where our list says: likewise */
    bool down;            /* it did not answer when it was last tried: others are homes of its files */
    struct call_session *session;  /* a reference; NULL: none */
    uint64_t since;                /* when that began: nodes_stalls() */
    unsigned timeout_ms;           /* of the last session with it: call_session_timeout_ms(); 0: none yet */
    struct call_session *greeting; /* being made: HELLO is not answered yet */
    bool connecting;
    uint64_t tried; /* how often that has ended */
    int error; /* why no session could be had when it was last tried; 0: there was one, or nobody tried */
    char why[CALL_WHY]; /* in words */
};

/* For `gaiactl stat`. */
struct nodes_stat {
    unsigned self, count; /* of what follows, by number */
    struct {
        char name[MEMBER_NAME_MAX];
        bool listed, down;
        bool home, agent; /* there is a session with it as that */
    } node[MEMBERS_MAX];
    uint64_t far_files, followed;
    uint64_t served[NODE_OP_LAST + 1];
    uint64_t placed, placed_by_copy;
    struct calls_stat transfers; /* of bytes; path NULL: the mount begins, or ends */
};
/* False: there are no nodes. */
bool nodes_stat(struct cache *cache, struct nodes_stat *stat_out);
/* Of an operation, in small letters. */
const char *nodes_op_name(enum node_op op);

/* In the order in which they end where a home leaves: the first may wait for one of the second. */
enum nodes_change { CHANGE_THAT_WAITS, CHANGE_OF_IO, CHANGE_KINDS };

struct nodes {
    struct cache *cache;
    struct calls *calls;
    unsigned self;      /* this node's number */
    uint64_t begun_ns;  /* when others could first come */
    uint64_t directory; /* XXH3-64 of the data directory's name, which names its files, too; 0: it has none */
    unsigned timeout_ms;
    /* Which kernels may have write-backs of dropped pages on their way: bit 0 (this node's), and 1 + m. */
    _Atomic uint64_t late_kernels;
    _Atomic uint64_t went_ns;                  /* when a home's session ended last; 0: none has */
    _Atomic uint64_t reads;                    /* numbers of READs */
    _Atomic uint64_t served[NODE_OP_LAST + 1]; /* requests of others, by operation: for the statistics */
    /* Pages of homes elsewhere that came straight into the frames of a device of this node; and those that
     * came to its host's memory, and were copied. */
    _Atomic uint64_t placed, placed_by_copy;

    pthread_mutex_t lock; /* guards what follows; a leaf */
    pthread_cond_t changed;
    pthread_cond_t stopped; /* `stop` is set, or there was a stall: for those who sleep, whom `changed` would
                             * wake for nothing */
    const struct members *members; /* the list; of the caller's */
    struct nodes_home homes[MEMBERS_MAX];
    /* Used where they are started and ended: threads that run while the bool beside them is set. */
    pthread_t meeter, beater, asker, teller;
    bool meets, beats, asks, tells;
    bool hurries;             /* the meeter is to try again soon */
    bool serves;              /* the mount has met all that live */
    _Atomic uint64_t odds_ns; /* since when it is at odds with others: cache/odds.h; 0: it is not */
    /* Of cache/sure.c. The first four are written with the lock held, but for `settled`, and read without. */
    _Atomic uint64_t beat_ns;    /* when the beater ran last (CLOCK_BOOTTIME); 0: there is none */
    _Atomic unsigned beat_ms;    /* the shortest timeout of all: half of it without a beat is a stall */
    _Atomic uint64_t stalls;     /* how many of them were noticed */
    _Atomic uint64_t settled;    /* of the first so many it is known what has become of this node's files */
    uint64_t heard_ns, still_ns; /* the last beat; and the last one before it stood still (CLOCK_REALTIME) */
    unsigned numbers;            /* that were ever given */
    LIST_HEAD(, home_session) agents; /* that have said HELLO */
    uint64_t entered;                 /* how many have */
    LIST_HEAD(, agent_file) files;
    struct table files_by_number;
    LIST_HEAD(, agent_frames) frames;
    LIST_HEAD(, cache_client) clients; /* that map files of other homes */
    struct followed_table followed;
    STAILQ_HEAD(, untracked) untracked; /* files that are not tracked here any more: see home_untrack() */
    pthread_cond_t untracks;            /* one has come, or `stop` is set */
    uint64_t generation;                /* the highest that was given or heard of here */
    uint32_t next_number;
    bool stop;
    unsigned changing[CHANGE_KINDS]; /* requests of agents under way that may change the data directory; */
    unsigned closes;                 /* of so many kinds no other begins: home_changes_end() */
    _Atomic bool ending;  /* the mount is about to end: nodes that do not answer soon are not waited for */
    _Atomic bool leaving; /* no release is acknowledged any more, and no agent comes; */
    _Atomic bool settles; /* nor is a change of a file before it is on storage */
};

/* All sessions end: agents' devices are gone, calls of homes fail. nodes_free() when no file is left. */
void nodes_stop(struct cache *cache);
void nodes_free(struct cache *cache);

/* Sleeps so long; false: nodes->stop is set. */
bool nodes_wait(struct nodes *nodes, unsigned ms);

/* The number of the home of a file: of the member that has said that it tracks the file, else by hashing over
 * the members that are not down. So a tracked file keeps its home while members come. */
unsigned nodes_home_of(struct nodes *nodes, const struct node_name *name);
/* The same if none were down, and nobody had said anything. */
unsigned nodes_first_home_of(struct nodes *nodes, const struct node_name *name);
/* How many members there are now. */
unsigned nodes_count(struct nodes *nodes);
/* The number of the member of this name in the list, or MEMBERS_MAX. nodes->lock is held. */
unsigned nodes_number_of(const struct nodes *nodes, const char *name, size_t length);

/* Whether a home has said that it tracks the file of this name, and when: told_out is for nodes_unfollow(),
 * in case the home turns out not to track it any more. */
bool nodes_follows(struct nodes *nodes, const struct node_name *name, uint64_t *told_out);
void nodes_unfollow(struct nodes *nodes, const struct node_name *name, uint64_t told);
/* A node that is asked as a home and is not one (any more) answers ESTALE, and which other one it follows.
 * Who has asked hears of that home, if it has not been told by it, and forgets what it knew at `told`. Not if
 * it has no session with that home: who follows it has one, so it lives, and who forgot all might take itself
 * for the next home. Whether another home is followed now. */
void nodes_say_home(struct nodes *nodes, const struct node_name *name, struct node_reply *reply_out);
bool nodes_hear_home(struct nodes *nodes, const struct node_name *name, uint64_t told,
                     const struct node_reply *reply);

/* Whether a home has gone so lately that others may be waiting for the next one of its files. */
bool nodes_home_went(const struct nodes *nodes);

/* The generation for a node that becomes a file's home: higher than all that this node has given or heard of,
 * and than any other node's from before, as far as their clocks agree (Kulkarni and others, "Logical Physical
 * Clocks", OPODIS 2014). So of two homes of a file it is known which is the later one; how far clocks are
 * apart matters only where the later one had never heard of the first. */
uint64_t nodes_generation(struct nodes *nodes);

/* A new number for a file, a client or frames: not 0. */
uint32_t nodes_number(struct nodes *nodes);

/* One request and its reply; the result of the operation, or -EIO. reply_out may be NULL. */
int nodes_ask(struct call_session *session, enum node_class class, enum node_op op,
              const struct node_request *request, struct node_reply *reply_out);
/* The same in two steps: see call_ask(). */
struct nodes_asking {
    struct call_asked asked;
    struct node_reply reply;
    enum node_class class;
    enum node_op op;
};
void nodes_begin(struct call_session *session, enum node_class class, enum node_op op,
                 const struct node_request *request, struct nodes_asking *asking);
int nodes_end(struct nodes_asking *asking, struct node_reply *reply_out);

#endif
