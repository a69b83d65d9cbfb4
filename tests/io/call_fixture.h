/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the calls share: nodes in this process, and what they serve. Carrier, seed and filter as
 * in transport_fixture.h. */
#ifndef GAIAFS_TESTS_IO_CALL_FIXTURE_H
#define GAIAFS_TESTS_IO_CALL_FIXTURE_H

#include "tests/io/transport_fixture.h"

#include "io/call_internal.h"
#include "tests/io/session_close.h"

#define NODE_SESSIONS 16
#define LONG_MS (TIME_LIMIT_S * 1000)

enum op {
    OP_ECHO,  /* the request comes back; result: its first four bytes, or its length */
    OP_WAIT,  /* until the gate is open */
    OP_OPEN,  /* the gate */
    OP_NEST,  /* calls back in the next class, and so on; result: how many more classes there were */
    OP_CHECK, /* a struct piece: result: whether the bytes are there */
    OP_FILL,  /* a struct piece: makes them */
    OP_COUNT, /* counts */
    OP_ABORT, /* ends the session */
    OP_HIGHEST = UINT16_MAX, /* returns its own number */
};

/* Bytes of a slot, as salt has them. */
struct piece {
    uint64_t salt;
    uint32_t slot, offset, length;
};

/* cmocka's assertions are for the main thread only: what others see is noted here. */
struct node {
    struct calls *calls;
    char address[128];
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct call_session *sessions[NODE_SESSIONS]; /* that have arrived */
    unsigned arrived;
    int refuse_with;
    bool open;                      /* the gate */
    unsigned waiting, waiting_most; /* at it */
    unsigned serving;               /* threads in serve() */
    unsigned counted;
    unsigned lost, ended, ended_while_served, ended_before_lost;
    int ended_error;                 /* of the last */
    struct call_session *ended_last; /* only to compare */
};

static int node_arrived(void *context, struct call_session *session)
{
    struct node *node = context;

    pthread_mutex_lock(&node->lock);
    int error = node->refuse_with;
    if (!error && node->arrived < NODE_SESSIONS)
        node->sessions[node->arrived++] = session;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
    return error;
}

static void node_lost(void *context, struct call_session *session, int error)
{
    struct node *node = context;

    (void)session;
    (void)error;
    pthread_mutex_lock(&node->lock);
    node->lost++;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

static void node_ended(void *context, struct call_session *session, int error)
{
    struct node *node = context;

    pthread_mutex_lock(&node->lock);
    node->ended++;
    node->ended_while_served += node->serving > 0;
    node->ended_before_lost += node->ended > node->lost;
    node->ended_error = error;
    node->ended_last = session;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

static int serve_wait(struct node *node)
{
    pthread_mutex_lock(&node->lock);
    if (++node->waiting > node->waiting_most)
        node->waiting_most = node->waiting;
    pthread_cond_broadcast(&node->changed);
    while (!node->open)
        pthread_cond_wait(&node->changed, &node->lock);
    node->waiting--;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
    return 0;
}

static void node_open_gate(struct node *node, bool open)
{
    pthread_mutex_lock(&node->lock);
    node->open = open;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

/* What OP_ECHO returns. */
static inline int echo_result(const void *bytes, size_t length)
{
    int32_t result = (int32_t)length;

    if (length >= sizeof result)
        memcpy(&result, bytes, sizeof result);
    return result;
}

static int serve_nest(struct call_session *session, const uint8_t *request)
{
    uint8_t next = (uint8_t)(request[0] + 1);

    if (next == CALL_CLASSES)
        return 0;
    int result = call(session, next, OP_NEST, &next, 1, NULL, NULL, LONG_MS);
    return result < 0 ? result : result + 1;
}

static int serve_piece(struct call_session *session, unsigned op, const void *request, size_t length)
{
    struct piece piece;

    if (length != sizeof piece)
        return -EBADMSG;
    memcpy(&piece, request, sizeof piece);
    uint8_t *bytes = call_slot(session, piece.slot);
    if (!bytes)
        return -ENOENT;
    if (op == OP_CHECK)
        return matches(bytes + piece.offset, piece.length, piece.salt, piece.offset);
    fill_at(bytes + piece.offset, piece.length, piece.salt, piece.offset);
    return 0;
}

static int serve_op(struct node *node, struct call_session *session, unsigned op, const void *request,
                    size_t length, void *reply, size_t *reply_length)
{
    switch (op) {
    case OP_ECHO:
        memcpy(reply, request, length);
        *reply_length = length;
        return echo_result(request, length);
    case OP_WAIT:
        return serve_wait(node);
    case OP_OPEN:
        node_open_gate(node, true);
        return 0;
    case OP_NEST:
        return serve_nest(session, request);
    case OP_CHECK:
    case OP_FILL:
        return serve_piece(session, op, request, length);
    case OP_COUNT:
        pthread_mutex_lock(&node->lock);
        node->counted++;
        pthread_cond_broadcast(&node->changed);
        pthread_mutex_unlock(&node->lock);
        return -EDOM; /* nobody hears of it */
    case OP_ABORT:
        call_session_abort(session);
        return 0;
    case OP_HIGHEST:
        return OP_HIGHEST;
    default:
        return -ENOSYS;
    }
}

static int node_serve(void *context, struct call_session *session, unsigned op, const void *request,
                      size_t length, void *reply, size_t *reply_length)
{
    struct node *node = context;

    pthread_mutex_lock(&node->lock);
    node->serving++;
    pthread_mutex_unlock(&node->lock);
    int result = serve_op(node, session, op, request, length, reply, reply_length);
    pthread_mutex_lock(&node->lock);
    node->serving--;
    pthread_mutex_unlock(&node->lock);
    return result;
}

static inline void node_init(struct node *node)
{
    memset(node, 0, sizeof *node);
    pthread_mutex_init(&node->lock, NULL);
    lock_condition_init(&node->changed);
}

static inline struct calls_config node_config(struct node *node, unsigned timeout_ms)
{
    return (struct calls_config){
        .carrier = carrier,
        .address = node->address,
        .timeout_ms = timeout_ms,
        .context = node,
        .arrived = node_arrived,
        .serve = node_serve,
        .lost = node_lost,
        .ended = node_ended,
    };
}

/* server: others connect to it; on RDMA the other end has no port then. The error of calls_open();
 * node_free() is due even so. */
static inline int node_try(struct node *node, bool server, unsigned timeout_ms, char why[CALL_WHY])
{
    node_init(node);
    new_address(node->address, server);
    struct calls_config config = node_config(node, timeout_ms);
    return calls_open(&config, &node->calls, why);
}

static inline void node_open(struct node *node, bool server, unsigned timeout_ms)
{
    char why[CALL_WHY];

    /* cmocka would end without a word when another thread than the test's crashes. */
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    signal(SIGABRT, SIG_DFL);
    int error = node_try(node, server, timeout_ms, why);
    if (error)
        print_error("error %d: %s\n", error, why);
    assert_int_equal(error, 0);
}

/* Its calls are closed. */
static inline void node_free(struct node *node)
{
    for (unsigned i = 0; i < node->arrived; i++)
        call_session_put(node->sessions[i]);
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->lock);
}

static inline void node_close(struct node *node)
{
    node_open_gate(node, true);
    calls_close(node->calls);
    node_free(node);
}

/* Wait until a counter is at least so high. */
static inline bool node_awaits(struct node *node, const unsigned *counter, unsigned least, unsigned limit_ms)
{
    struct timespec until = lock_wait_until(limit_ms);
    int late = 0;

    pthread_mutex_lock(&node->lock);
    while (*counter < least && !late)
        late = pthread_cond_timedwait(&node->changed, &node->lock, &until);
    bool granted = *counter >= least;
    pthread_mutex_unlock(&node->lock);
    return granted;
}

static inline void node_await(struct node *node, const unsigned *counter, unsigned least)
{
    assert_true(node_awaits(node, counter, least, LONG_MS));
}

/* Two nodes, and a session. Tests have theirs in static memory: after an assertion that failed threads go
 * on. */
struct couple {
    struct node server, client;
    struct call_session *session; /* the client's, */
    struct call_session *other;   /* and the server's end of it */
};

static inline struct call_session *join_to(struct node *client, struct node *server)
{
    struct call_session *session = NULL;

    assert_int_equal(call_connect(client->calls, server->address, &session), 0);
    return session;
}

static inline void couple_open(struct couple *c, unsigned timeout_ms)
{
    node_open(&c->server, true, timeout_ms);
    node_open(&c->client, false, timeout_ms);
    c->session = join_to(&c->client, &c->server);
    node_await(&c->server, &c->server.arrived, 1);
    c->other = c->server.sessions[0];
}

static inline void couple_close(struct couple *c)
{
    node_open_gate(&c->client, true);
    node_open_gate(&c->server, true);
    session_close(c->session);
    call_session_put(c->session);
    node_close(&c->client);
    node_close(&c->server);
}

/* ---- callers ---- */

/* Without a reply but its result. */
static inline int ask_with(struct call_session *session, unsigned class, unsigned op, const void *request,
                           size_t length)
{
    return call(session, class, op, request, length, NULL, NULL, LONG_MS);
}

static inline int ask(struct call_session *session, unsigned class, unsigned op)
{
    return ask_with(session, class, op, NULL, 0);
}

struct caller {
    struct call_session *session;
    unsigned class, op, timeout_ms;
    bool post;
    int result;
    uint64_t took_ms;
    _Atomic bool back;
    pthread_t thread;
};

static void *run_caller(void *argument)
{
    struct caller *caller = argument;
    uint64_t begun = now_ms();

    caller->result = caller->post ? call_post(caller->session, caller->class, caller->op, NULL, 0)
                                  : call(caller->session, caller->class, caller->op, NULL, 0, NULL, NULL,
                                         caller->timeout_ms);
    caller->took_ms = now_ms() - begun;
    caller->back = true;
    return NULL;
}

static inline void caller_start(struct caller *caller, struct call_session *session, unsigned class,
                                unsigned op, unsigned timeout_ms)
{
    *caller = (struct caller){.session = session, .class = class, .op = op, .timeout_ms = timeout_ms};
    assert_int_equal(pthread_create(&caller->thread, NULL, run_caller, caller), 0);
}

static inline int caller_join(struct caller *caller)
{
    pthread_join(caller->thread, NULL);
    return caller->result;
}

static inline unsigned callers_back(struct caller *callers, unsigned count)
{
    unsigned back = 0;

    for (unsigned i = 0; i < count; i++)
        back += callers[i].back;
    return back;
}

#endif
