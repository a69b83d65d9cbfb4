/* SPDX-License-Identifier: Apache-2.0 */
/* Requests and replies: sent, served, told. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "io/call_internal.h"

/* A call's number has its place in its low bits. */
#define PLACE_BITS 8
/* A thread that waits is woken within this time after its own is over, unless the process (or the machine)
 * stands still, or has no processor to run on. */
#define STILL_MS 100
#define TURNS_MAX (4 * CALL_TURNS) /* on a machine where each of them ends late */
#define SENDS_MAX 64u /* by a thread that has other things to do: one of a class may wait for it */
_Static_assert(CALL_CLASSES *CALL_WIDTH <= 1 << PLACE_BITS, "a number has room for its place");

/* ---- classes ---- */

void call_class_init(struct call_session *session, unsigned number)
{
    struct call_class *class = &session->classes[number];

    class->session = session;
    class->number = number;
    STAILQ_INIT(&class->requests);
    STAILQ_INIT(&class->answers);
    lock_condition_init(&class->work);
    lock_condition_init(&class->room);
    for (unsigned i = 0; i < CALL_WIDTH; i++)
        lock_condition_init(&class->pending[i].answered);
}

void call_class_destroy(struct call_class *class)
{
    call_messages_free(&class->requests);
    pthread_cond_destroy(&class->work);
    pthread_cond_destroy(&class->room);
    for (unsigned i = 0; i < CALL_WIDTH; i++)
        pthread_cond_destroy(&class->pending[i].answered);
}

void call_class_wake(struct call_class *class)
{
    pthread_cond_broadcast(&class->work);
    pthread_cond_broadcast(&class->room);
    for (unsigned i = 0; i < CALL_WIDTH; i++)
        pthread_cond_broadcast(&class->pending[i].answered);
}

void call_class_join(struct call_class *class)
{
    /* Only the thread that polls makes more, and it has heard the last of the link. */
    for (unsigned i = 0; i < class->threads; i++)
        pthread_join(class->thread[i], NULL);
}

/* The peer is done with the slot, or gone. The lock is held. */
static void take_answer(struct call_session *session, struct call_answer *answer, int result)
{
    answer->result = result;
    if (answer->has_slot)
        call_slot_free(session, answer->slot);
}

/* The next answer that nobody is told of any more; NULL: none is left. */
static struct call_answer *next_unanswered(struct call_class *class)
{
    struct call_answer *answer;

    pthread_mutex_lock(&class->session->lock);
    answer = STAILQ_FIRST(&class->answers);
    if (answer)
        STAILQ_REMOVE_HEAD(&class->answers, entry);
    for (unsigned i = 0; i < CALL_WIDTH && !answer; i++) {
        answer = class->pending[i].answer;
        class->pending[i].answer = NULL;
        if (answer)
            take_answer(class->session, answer, -EIO);
    }
    pthread_mutex_unlock(&class->session->lock);
    return answer;
}

void call_class_answer(struct call_class *class)
{
    struct call_answer *answer;

    while ((answer = next_unanswered(class)))
        answer->done(answer, answer->result);
}

/* ---- sending ---- */

void call_messages_free(struct call_messages *messages)
{
    struct call_message *message;

    while ((message = STAILQ_FIRST(messages))) {
        STAILQ_REMOVE_HEAD(messages, entry);
        free(message);
    }
}

/* With room for length bytes, which are copied if they are there. */
static struct call_message *new_message(enum call_kind kind, const void *payload, size_t length)
{
    struct call_message *message = malloc(sizeof *message + length);

    if (!message)
        return NULL;
    message->head =
        (struct call_head){.length = (uint32_t)(sizeof message->head + length), .kind = (uint8_t)kind};
    if (payload && length)
        memcpy(message->payload, payload, length);
    return message;
}

/* The lock is held. */
static bool may_send(const struct call_session *session)
{
    return session->begun && !session->error && !STAILQ_EMPTY(&session->messages);
}

/* The thread that polls is to go on: at once, not when something comes. */
static int hand_over(struct call_session *session)
{
    if (!atomic_exchange(&session->blocked, true))
        gaia_transport_wake(session->calls->transport);
    return -EAGAIN;
}

/* Tried again once the thread that polls knows: credits that came before it did wake nobody. */
static int send_one(struct call_session *session, const struct call_message *message)
{
    int error = gaia_link_send(session->link, &message->head, message->head.length);

    if (error == -EAGAIN) {
        hand_over(session);
        error = gaia_link_send(session->link, &message->head, message->head.length);
    }
    if (error && error != -EAGAIN) {
        int why = gaia_link_error(session->link);

        call_end(session, why ? why : -EIO);
    }
    return error;
}

void call_flush(struct call_session *session)
{
    unsigned count = 0;
    int error = 0;

    pthread_mutex_lock(&session->lock);
    if (session->sending || !may_send(session)) { /* who sends sees what was added before this */
        pthread_mutex_unlock(&session->lock);
        return;
    }
    session->sending = true;
    while (!error && may_send(session)) {
        struct call_message *message = STAILQ_FIRST(&session->messages); /* nobody else takes it */

        pthread_mutex_unlock(&session->lock);
        error = count++ < SENDS_MAX ? send_one(session, message) : hand_over(session);
        pthread_mutex_lock(&session->lock);
        if (!error) {
            STAILQ_REMOVE_HEAD(&session->messages, entry);
            free(message);
        }
    }
    if (!error)
        session->blocked = false;
    session->sending = false;
    if (session->error)
        pthread_cond_broadcast(&session->changed); /* the keeper */
    pthread_mutex_unlock(&session->lock);
}

int call_say_begin(struct call_session *session)
{
    struct call_message *message = new_message(CALL_KIND_BEGIN, NULL, 0);

    if (!message)
        return -ENOMEM;
    message->head.number = CALL_BEGIN;
    pthread_mutex_lock(&session->lock);
    STAILQ_INSERT_HEAD(&session->messages, message, entry);
    session->begun = true;
    pthread_mutex_unlock(&session->lock);
    call_flush(session);
    return 0;
}

/* ---- serving ---- */

/* A peer that has posted needs to know that this was served only in order to post more than the class is
 * wide. So several are reported at a time, and at the latest when the peer may have no place left, as far as
 * is known here. 1: the report is in the list of what to send; 0: there is none yet; or -ENOMEM. The lock is
 * held. */
static int say_served(struct call_class *class)
{
    struct call_message *message;

    if (!class->served_count ||
        (class->served_count < CALL_SERVED_MAX && class->served_count + class->under_way < CALL_WIDTH))
        return 0;
    message = new_message(CALL_KIND_SERVED, class->served, class->served_count * sizeof *class->served);
    class->served_count = 0;
    if (!message) /* the session ends over it */
        return -ENOMEM;
    message->head.class = (uint8_t) class->number;
    STAILQ_INSERT_TAIL(&class->session->messages, message, entry);
    return 1;
}

static void post_served(struct call_session *session, struct call_class *class, uint64_t number)
{
    pthread_mutex_lock(&session->lock);
    session->asked--;
    class->under_way--;
    assert(class->served_count < CALL_SERVED_MAX);
    class->served[class->served_count++] = number;
    int said = say_served(class);
    pthread_mutex_unlock(&session->lock);
    if (said > 0)
        call_flush(session);
    else if (said)
        call_end(session, said);
}

static void serve_one(struct call_session *session, struct call_class *class, struct call_message *request)
{
    const struct calls_config *config = &session->calls->config;
    struct call_message *reply = new_message(CALL_KIND_REPLY, NULL, CALL_BYTES_MAX);
    size_t length = 0;

    if (!reply) {
        call_end(session, -ENOMEM);
        return;
    }
    int result = config->serve(config->context, session, request->head.op, request->payload,
                               request->head.length - sizeof request->head, reply->payload, &length);
    assert(length <= CALL_BYTES_MAX);
    if (request->head.kind == CALL_KIND_POST) {
        free(reply);
        post_served(session, class, request->head.number);
        return;
    }
    reply->head.length = (uint32_t)(sizeof reply->head + length);
    reply->head.class = (uint8_t) class->number;
    reply->head.number = request->head.number;
    reply->head.result = result;
    pthread_mutex_lock(&session->lock);
    session->asked--;
    class->under_way--; /* before the peer knows it, and asks for more */
    STAILQ_INSERT_TAIL(&session->messages, reply, entry);
    pthread_mutex_unlock(&session->lock);
    call_flush(session);
}

static void *serve_class(void *argument)
{
    struct call_class *class = argument;
    struct call_session *session = class->session;

    pthread_mutex_lock(&session->lock);
    for (;;) {
        class->idle++;
        while (!session->error && !class->queued)
            pthread_cond_wait(&class->work, &session->lock);
        class->idle--;
        if (session->error)
            break;
        class->queued--;
        struct call_answer *answer = STAILQ_FIRST(&class->answers);
        if (answer) {
            STAILQ_REMOVE_HEAD(&class->answers, entry);
            pthread_mutex_unlock(&session->lock);
            answer->done(answer, answer->result);
            pthread_mutex_lock(&session->lock);
            continue;
        }
        struct call_message *request = STAILQ_FIRST(&class->requests);
        STAILQ_REMOVE_HEAD(&class->requests, entry);
        pthread_mutex_unlock(&session->lock);
        serve_one(session, class, request);
        free(request);
        pthread_mutex_lock(&session->lock);
    }
    pthread_mutex_unlock(&session->lock);
    return NULL;
}

/* ---- what has come ---- */

/* A request that has to wait for a thread might be what that thread waits for: so there is a thread for each,
 * or the session ends. One of them is to be woken afterwards, after the lock was let go of: the thread that
 * wakes up needs it. The lock is held. */
static int find_thread(struct call_class *class)
{
    if (class->queued > class->idle && class->threads < CALL_WIDTH) {
        int error = -pthread_create(&class->thread[class->threads], NULL, serve_class, class);

        if (error)
            return error;
        class->threads++;
    }
    return 0;
}

static int take_request(struct call_session *session, const struct call_head *head, const void *payload)
{
    struct call_class *class = &session->classes[head->class];
    struct call_message *request;
    int error = 0, said = 0;

    if (head->result)
        return -EPROTO;
    request = new_message(head->kind, payload, head->length - sizeof *head);
    if (!request)
        return -ENOMEM;
    request->head = *head;
    pthread_mutex_lock(&session->lock);
    if (session->error || class->under_way == CALL_WIDTH) {
        error = session->error ? 0 : -EPROTO;
        free(request);
    } else {
        STAILQ_INSERT_TAIL(&class->requests, request, entry);
        class->queued++;
        class->under_way++;
        session->asked++;
        error = find_thread(class);
        said = say_served(class);
    }
    pthread_mutex_unlock(&session->lock);
    pthread_cond_signal(&class->work);
    if (said > 0)
        call_flush(session);
    return error ? error : said < 0 ? said : 0;
}

/* This end's call of that number, if it is under way. The lock is held. */
static struct call_pending *find_pending(struct call_class *class, uint64_t number, bool post)
{
    unsigned place = number & ((1 << PLACE_BITS) - 1);
    struct call_pending *pending;

    if (place / CALL_WIDTH != class->number)
        return NULL;
    pending = &class->pending[place % CALL_WIDTH];
    if (pending->post != post)
        return NULL;
    return pending->state == PENDING_ASKED && pending->number == number ? pending : NULL;
}

/* The lock is held. */
static void free_place(struct call_class *class, struct call_pending *pending)
{
    pending->state = PENDING_FREE;
    pending->answer = NULL;
    class->calling--;
    pthread_cond_signal(&class->room);
}

static int take_reply(struct call_session *session, const struct call_head *head, const void *payload)
{
    struct call_class *class = &session->classes[head->class];
    size_t length = head->length - sizeof *head;
    pthread_cond_t *waits = NULL; /* who is to be woken; it lives as long as the session */
    int error = 0;

    if (head->op)
        return -EPROTO;
    pthread_mutex_lock(&session->lock);
    struct call_pending *pending = session->error ? NULL : find_pending(class, head->number, false);
    if (!pending) {
        error = session->error ? 0 : -EPROTO;
    } else if (pending->answer) {
        take_answer(session, pending->answer, head->result);
        STAILQ_INSERT_TAIL(&class->answers, pending->answer, entry);
        class->queued++;
        free_place(class, pending);
        error = find_thread(class);
        waits = &class->work;
    } else {
        pending->state = PENDING_ANSWERED;
        pending->result = head->result;
        pending->length = length;
        if (pending->reply && length && length <= pending->room)
            memcpy(pending->reply, payload, length);
        waits = &pending->answered;
    }
    pthread_mutex_unlock(&session->lock);
    if (waits)
        pthread_cond_signal(waits);
    return error;
}

static int take_served(struct call_session *session, const struct call_head *head, const void *payload)
{
    struct call_class *class = &session->classes[head->class];
    size_t length = head->length - sizeof *head, count = length / sizeof(uint64_t);
    uint64_t numbers[CALL_SERVED_MAX];
    int error = 0;

    if (head->op || head->result || head->number || !count || count > CALL_SERVED_MAX ||
        length != count * sizeof *numbers)
        return -EPROTO;
    memcpy(numbers, payload, length);
    pthread_mutex_lock(&session->lock);
    for (size_t i = 0; i < count && !session->error && !error; i++) {
        struct call_pending *pending = find_pending(class, numbers[i], true);
        if (pending)
            free_place(class, pending);
        else
            error = -EPROTO;
    }
    pthread_mutex_unlock(&session->lock);
    return error;
}

/* The peer listens now: it may reach the slots, and be called. */
static int take_begin(struct call_session *session, const struct call_head *head)
{
    struct gaia_span span = {session->memory, CALL_MEMORY, -1};
    uint32_t region;

    if (session->connected || session->begun || head->length != sizeof *head || head->number != CALL_BEGIN ||
        head->op || head->result || head->class)
        return -EPROTO;
    pthread_mutex_lock(&session->lock);
    struct gaia_link *link = session->error ? NULL : session->link;
    session->posting += link ? 1 : 0;
    pthread_mutex_unlock(&session->lock);
    if (!link)
        return 0;
    int error = gaia_link_expose(link, &span, true, &region);
    if (error && !gaia_link_error(link))
        error = gaia_own_error(error);
    pthread_mutex_lock(&session->lock);
    session->posting--;
    session->begun = !error;
    pthread_cond_broadcast(&session->changed);
    pthread_mutex_unlock(&session->lock);
    call_flush(session);
    return error;
}

int call_received(struct call_session *session, const void *bytes, size_t length)
{
    const void *payload = (const uint8_t *)bytes + sizeof(struct call_head);
    struct call_head head;

    if (length < sizeof head || length > sizeof head + CALL_BYTES_MAX)
        return -EPROTO;
    memcpy(&head, bytes, sizeof head);
    if (head.length != length || head.zero || head.class >= CALL_CLASSES)
        return -EPROTO;
    session->received++;
    if (head.kind == CALL_KIND_BEGIN)
        return take_begin(session, &head);
    pthread_mutex_lock(&session->lock);
    bool begun = session->begun;
    pthread_mutex_unlock(&session->lock);
    if (!begun)
        return -EPROTO;
    switch (head.kind) {
    case CALL_KIND_REQUEST:
    case CALL_KIND_POST:
        return take_request(session, &head, payload);
    case CALL_KIND_REPLY:
        return take_reply(session, &head, payload);
    case CALL_KIND_SERVED:
        return take_served(session, &head, payload);
    default:
        return -EPROTO;
    }
}

/* ---- calling ---- */

/* A place, and the message is on its way. The lock is held; NULL: the session has ended, and the message is
 * the caller's. */
static struct call_pending *ask(struct call_class *class, struct call_message *message)
{
    struct call_session *session = class->session;
    unsigned place = 0;

    while (!session->error && class->calling == CALL_WIDTH)
        pthread_cond_wait(&class->room, &session->lock);
    if (session->error)
        return NULL;
    while (class->pending[place].state != PENDING_FREE)
        place++;
    struct call_pending *pending = &class->pending[place];
    class->calling++;
    pending->state = PENDING_ASKED;
    pending->post = message->head.kind == CALL_KIND_POST;
    pending->number = ++session->numbers << PLACE_BITS | (class->number * CALL_WIDTH + place);
    message->head.number = pending->number;
    STAILQ_INSERT_TAIL(&session->messages, message, entry);
    return pending;
}

static int begin_call(struct call_session *session, unsigned class, unsigned op, enum call_kind kind,
                      const void *request, size_t length, struct call_message **message_out)
{
    if (class >= CALL_CLASSES || op > UINT16_MAX || length > CALL_BYTES_MAX)
        return -EINVAL;
    if (session->error)
        return -EIO;
    *message_out = new_message(kind, request, length);
    if (!*message_out)
        return -ENOMEM;
    (*message_out)->head.class = (uint8_t) class;
    (*message_out)->head.op = (uint16_t)op;
    return 0;
}

/* Whether it is much later than `until`: a thread that waited so long was not woken, as this process stood
 * still, and answers may be here that nobody has looked at. */
static bool has_stood_still(const struct timespec *until)
{
    struct timespec now = lock_wait_until(0);

    return (now.tv_sec - until->tv_sec) * 1000 + (now.tv_nsec - until->tv_nsec) / 1000000 > STILL_MS;
}

static bool is_told(const struct call_session *session, const struct call_pending *pending)
{
    return pending->state == PENDING_ANSWERED || session->error;
}

/* The lock is held, and let go meanwhile. Whether it was in time. In turns, of which one is all that the time
 * costs for which this process stood still, and the peer maybe with it: after a longer one it begins anew. */
static bool await_answer(struct call_session *session, struct call_pending *pending, unsigned timeout_ms)
{
    unsigned turns = 0, all = 0;

    while (!timeout_ms && !is_told(session, pending))
        pthread_cond_wait(&pending->answered, &session->lock);
    while (!is_told(session, pending) && turns < CALL_TURNS && all < TURNS_MAX) {
        struct timespec until = lock_wait_until((timeout_ms + CALL_TURNS - 1) / CALL_TURNS);
        int late = 0;

        while (!is_told(session, pending) && !late)
            late = pthread_cond_timedwait(&pending->answered, &session->lock, &until);
        turns = has_stood_still(&until) ? 0 : turns + 1;
        all++;
    }
    return is_told(session, pending);
}

void call_ask(struct call_session *session, unsigned class, unsigned op, const void *request, size_t length,
              void *reply, size_t room, struct call_asked *asked_out)
{
    struct call_message *message;
    int error = begin_call(session, class, op, CALL_KIND_REQUEST, request, length, &message);

    *asked_out = (struct call_asked){.session = session, .error = error, .class = class, .replies = reply};
    if (error)
        return;
    pthread_mutex_lock(&session->lock);
    struct call_pending *pending = ask(&session->classes[class], message);
    if (pending) {
        pending->reply = reply;
        pending->room = reply ? room : 0;
    }
    pthread_mutex_unlock(&session->lock);
    asked_out->pending = pending;
    if (pending) {
        call_flush(session);
    } else {
        asked_out->error = -EIO;
        free(message);
    }
}

int call_hear(struct call_asked *asked, size_t *reply_length_out, unsigned timeout_ms)
{
    struct call_session *session = asked->session;
    struct call_pending *pending = asked->pending;
    int result = -EIO;

    if (!pending)
        return asked->error;
    pthread_mutex_lock(&session->lock);
    bool in_time = await_answer(session, pending, timeout_ms);
    if (pending->state == PENDING_ANSWERED) {
        bool fits = !asked->replies || pending->length <= pending->room;
        result = fits ? pending->result : -EPROTO;
        if (asked->replies)
            *reply_length_out = fits ? pending->length : 0;
        free_place(&session->classes[asked->class], pending);
    } else { /* the session ends: nobody gets the place; a reply may still come before it has */
        pending->reply = NULL;
    }
    pthread_mutex_unlock(&session->lock);
    if (!in_time)
        call_end(session, -ETIMEDOUT);
    return result;
}

int call(struct call_session *session, unsigned class, unsigned op, const void *request, size_t length,
         void *reply, size_t *reply_length, unsigned timeout_ms)
{
    struct call_asked asked;

    call_ask(session, class, op, request, length, reply, reply ? *reply_length : 0, &asked);
    return call_hear(&asked, reply_length, timeout_ms);
}

/* Without waiting: for a POST nobody is told, for a REQUEST answer is. */
static int send_off(struct call_session *session, unsigned class, unsigned op, enum call_kind kind,
                    const void *request, size_t length, struct call_answer *answer, unsigned timeout_ms)
{
    struct call_message *message;
    int error = begin_call(session, class, op, kind, request, length, &message);

    if (error)
        return error;
    pthread_mutex_lock(&session->lock);
    struct call_pending *pending = ask(&session->classes[class], message);
    if (pending) {
        pending->answer = answer;
        /* the first of them is over before a second has gone by */
        pending->watches = timeout_ms ? (timeout_ms + 999) / 1000 + 1 : 0;
    }
    pthread_mutex_unlock(&session->lock);
    if (!pending) {
        free(message);
        return -EIO;
    }
    call_flush(session);
    return 0;
}

int call_post(struct call_session *session, unsigned class, unsigned op, const void *request, size_t length)
{
    return send_off(session, class, op, CALL_KIND_POST, request, length, NULL, 0);
}

int call_start(struct call_session *session, unsigned class, unsigned op, const void *request, size_t length,
               struct call_answer *answer, unsigned timeout_ms)
{
    return send_off(session, class, op, CALL_KIND_REQUEST, request, length, answer, timeout_ms);
}

/* One of its seconds is over. The lock is held. */
static bool is_late(struct call_pending *pending)
{
    return pending->answer && pending->watches && !--pending->watches;
}

void call_watch(struct call_session *session)
{
    bool late = false;

    pthread_mutex_lock(&session->lock);
    for (unsigned i = 0; i < CALL_CLASSES; i++)
        for (unsigned j = 0; j < CALL_WIDTH; j++)
            late |= is_late(&session->classes[i].pending[j]);
    pthread_mutex_unlock(&session->lock);
    if (late)
        call_end(session, -ETIMEDOUT);
}
