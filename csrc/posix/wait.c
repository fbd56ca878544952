/* POSIX: waiting for a lock to change hands (semlock.h, WAITING).  The states of a wait, its
 * watches and its place are drawn in semlock_api.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "posix/waiting.h"

#define SAFETY 1500000000 /* about how often a waiter looks without events */
#define SELDOM 20         /* at most so many times SAFETY between two looks */

int64_t
semlock_waiting_next_safety(const semlock_waiting *waiting, const semlock_pool *pool)
{
    const semlock_place *place = waiting->place;
    int64_t about = pool->safety > 0 ? pool->safety : SAFETY;

    if (place != NULL && place->before != 0) {
        /* The waiters before look too: the whole queue costs little more than its first ones.
         * Those without events look at their ticks anyway. */
        about *= place->ahead < SELDOM && place->alarm_at == 0 ? 1 + place->ahead : SELDOM;
    }
    else if (waiting->hints && waiting->process >= 0) {
        about *= 4; /* it looks at P by its pauses, and the end of the holder is reported */
    }
    /* From two thirds of it to four thirds. */
    about = semlock_now_ns() + about / 3 + semlock_spread(waiting, about * 2 / 3);
    return place != NULL && place->ticket.handle >= 0 && pool->safety == 0
               ? semlock_next_moment(place, about, TICK)
               : about;
}

/* Get an event source if one is available. */
static void
find_events(semlock_waiting *waiting, semlock_pool *pool)
{
    if (!waiting->lent && (!waiting->deaf || waiting->hints) && waiting->events < 0) {
        waiting->events = semlock_events_take(pool);
    }
    waiting->blind = waiting->events < 0 || waiting->hints;
}

/* Start a wait whose place and paths are filled in. */
int
semlock_waiting_start(semlock_waiting *waiting, semlock_pool *pool)
{
    char directory[SEMLOCK_PATH_ROOM];
    const char *path =
        waiting->place != NULL ? waiting->place->path : waiting->watches[0].path;
    int known = semlock_directory_of(directory, path) == 0;

    waiting->started = 1;
    waiting->life = semlock_life(pool);
    waiting->queued = -1;
    waiting->kernel = 0;
    for (int32_t i = 0; i < waiting->count; i++) {
        waiting->watches[i].mark = -1;
        waiting->watches[i].due = 1;
        waiting->watches[i].ask.handle = -1;
        waiting->kernel = waiting->kernel || waiting->watches[i].kernel != SEMLOCK_BY_FILE;
    }
    waiting->process = -1;
    waiting->deaf = !known || !semlock_system_hears(directory);
    if (waiting->place != NULL) {
        waiting->place->ticket.handle = waiting->place->mark = waiting->place->bell = -1;
    }
    waiting->unqueued = !known || (waiting->deaf && !semlock_system_queues(directory));
    waiting->hints = waiting->deaf && !waiting->unqueued && !waiting->lent;
    waiting->lent = waiting->lent && !waiting->deaf;
    if (!waiting->lent) {
        waiting->events = -1;
    }
    find_events(waiting, pool);
    waiting->safety_at = semlock_waiting_next_safety(waiting, pool);
    return waiting->blind ? SEMLOCK_BLIND : SEMLOCK_OK;
}

/* Events of the lock are useless while the time of the next look is fixed. */
static int
hears_events(const semlock_waiting *waiting)
{
    return !waiting->lent &&
           (waiting->queued >= 0 || waiting->place == NULL || waiting->place->before == 0 ||
            semlock_waiting_hears_next(waiting) || waiting->place->mark >= 0);
}

/* May an event be answered by a try?  A link to a name begins when its removal has ended, so
 * the try is as good as a look.  (A reader, whose file has another name, looks itself.)  A try
 * that fails is followed by a look. */
static int
may_try(const semlock_waiting *waiting)
{
    return SEMLOCK_TRIES_UNREAD && semlock_is_prepared(waiting->lock) && !waiting->tried &&
           semlock_waiting_is_next(waiting);
}

/* Which of the locks was reported and may be tried so?  -1: none. */
static int32_t
reported(const semlock_waiting *waiting)
{
    int32_t i = 0;

    if (!may_try(waiting) || (waiting->count > 1 && waiting->locks == NULL)) {
        return -1;
    }
    while (i < waiting->count && !(waiting->watches[i].told && waiting->watches[i].heard)) {
        i++;
    }
    return i < waiting->count ? i : -1;
}

/* An event loop has read the event: may the lock be tried? */
static int
may_try_lent(semlock_waiting *waiting, semlock_pool *pool)
{
    int32_t i = waiting->lent && waiting->life == semlock_life(pool) ? reported(waiting) : -1;
    semlock_lock *lock;

    if (i < 0 ||
        (semlock_waiting_is_fair(waiting) && semlock_waiting_others_came(waiting, i, pool))) {
        return 0;
    }
    /* The try looks no more than this does.  If it fails, it says whether the holder lives. */
    lock = waiting->locks != NULL ? waiting->locks[i] : waiting->lock;
    semlock_store32(&lock->expect_held, 0);
    semlock_store64(&lock->look_at, 0);
    waiting->which = i;
    waiting->tried = 1;
    return 1;
}

/* Sleep: SEMLOCK_FREE for an event that is to be answered by a try. */
static int
sleep_with(semlock_waiting *waiting, int64_t until)
{
    int64_t marks[MARKS];
    int32_t count;
    int64_t events = hears_events(waiting) ? waiting->events : -1;
    int64_t bell = waiting->place == NULL ? -1 : waiting->place->bell;
    int unread = waiting->count == 1 && may_try(waiting);
    int outcome = semlock_events_wait(events, waiting->process, bell, until, waiting->signals,
                                      marks, unread ? 0 : MARKS, &count);

    if (outcome == SEMLOCK_OK && unread && bell < 0) {
        /* If the try fails, it says whether the holder lives. */
        semlock_store64(&waiting->lock->look_at, 0);
        waiting->tried = waiting->unread = 1;
        waiting->which = 0;
        return SEMLOCK_FREE;
    }
    if (outcome == SEMLOCK_GONE) {
        waiting->tried = 0;
        semlock_waiting_bereft(waiting);
        waiting->recheck = 0;
        semlock_waiting_recheck_in(waiting, FIRST_RECHECK);
        return SEMLOCK_LOOK;
    }
    semlock_waiting_told(waiting, marks, count);
    if (outcome == SEMLOCK_OK && waiting->locks != NULL && reported(waiting) >= 0) {
        waiting->which = reported(waiting);
        waiting->tried = 1;
        return SEMLOCK_FREE;
    }
    waiting->tried = 0;
    return outcome;
}

/* Sleep until an event, or until a time: SEMLOCK_OK, SEMLOCK_LOOK if the holder's process has
 * ended, SEMLOCK_TIME or -EINTR. */
int
semlock_waiting_sleep(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    semlock_waiting_bind(waiting, pool);
    waiting->tried = 1; /* the caller wants to be told of the event */
    return sleep_with(waiting, until);
}

/* Do what is due by the clock. */
static void
see_to_times(semlock_waiting *waiting, semlock_pool *pool)
{
    semlock_place *place = waiting->place;
    int64_t now = semlock_now_ns();

    if (waiting->recheck != 0 && waiting->recheck_at <= now) {
        semlock_waiting_check_again(waiting);
    }
    if (place != NULL && place->alone_until != 0 && place->alone_until <= now) {
        semlock_waiting_by_turns(waiting);
    }
    if (semlock_waiting_tell_at(place) != 0 && semlock_waiting_tell_at(place) <= now) {
        semlock_place_tell(place);
    }
    if (waiting->pause_at != 0 && waiting->pause_at <= now) {
        waiting->pause_at = 0;
        semlock_waiting_look_at_all(waiting);
    }
    if (waiting->safety_at <= now) {
        waiting->safety_at = semlock_waiting_next_safety(waiting, pool);
        find_events(waiting, pool);
        for (int32_t i = 0; i < waiting->count; i++) {
            waiting->watches[i].due = 1;
            waiting->watches[i].judged_ino = 0;
        }
        if (place != NULL && place->before != 0) {
            place->alarm_at = now;
            place->doubt = 1;
        }
    }
}

/* Wait in one call, until there is something to do (SEMLOCK_FREE: try; SEMLOCK_LOOK: judge),
 * no event can come and the caller pauses itself (SEMLOCK_BLIND), or the time is over
 * (SEMLOCK_TIME).  With a time in the past it does all that is due and does not sleep. */
int
semlock_waiting_once(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    int late = 0;

    for (;;) {
        int outcome;
        int64_t limit;

        see_to_times(waiting, pool);
        if (may_try_lent(waiting, pool)) {
            return SEMLOCK_FREE;
        }
        outcome = semlock_waiting_arm(waiting, pool);
        if (outcome != SEMLOCK_ARMED && (outcome != SEMLOCK_BLIND || waiting->unpaced)) {
            return outcome;
        }
        if (late) {
            return SEMLOCK_TIME; /* however many events there are */
        }
        if (semlock_add32(&waiting->stopped, 0) != 0) { /* a barrier: `events` was written */
            return SEMLOCK_TIME;
        }
        late = semlock_now_ns() >= until;
        limit = until < waiting->look_at ? until : waiting->look_at;
        outcome = sleep_with(waiting, limit);
        if (outcome == SEMLOCK_TIME) {
            if (until <= waiting->look_at) {
                return outcome;
            }
        }
        else if (outcome == SEMLOCK_FREE && semlock_waiting_is_fair(waiting) &&
                 semlock_waiting_others_came(waiting, waiting->which, pool)) {
            continue;
        }
        else if (outcome != SEMLOCK_OK) {
            return outcome;
        }
    }
}

/* Signals are unblocked only during the sleep, atomically by ppoll where the system has it.  A
 * signal between the last look and the sleep would otherwise not end the sleep. */
static int
block_signals(semlock_waiting *waiting, sigset_t *before)
{
    sigset_t all;

    sigfillset(&all);
    waiting->signals = pthread_sigmask(SIG_SETMASK, &all, before) == 0 ? before : NULL;
    return waiting->signals != NULL;
}

static void
unblock_signals(semlock_waiting *waiting, const sigset_t *before)
{
    waiting->signals = NULL;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

int
semlock_waiting_wait(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    sigset_t before;
    int blocked = semlock_now_ns() < until && block_signals(waiting, &before);
    int outcome = semlock_waiting_once(waiting, pool, until);

    if (outcome == SEMLOCK_FREE && waiting->locks != NULL) {
        semlock_lock *lock = waiting->locks[waiting->which];

        semlock_waiting_hand_over(waiting, lock, pool);
        semlock_store32(&lock->expect_held, 0); /* the try need not look first */
    }
    if (blocked) {
        unblock_signals(waiting, &before);
    }
    return outcome;
}

int
semlock_waiting_take(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool,
                     int64_t until)
{
    sigset_t before;
    int blocked = block_signals(waiting, &before);
    int outcome = semlock_waiting_take_inside(waiting, lock, pool, until);

    if (blocked) {
        unblock_signals(waiting, &before);
    }
    return outcome;
}

/* Have a wait of another thread sleep no more: it returns SEMLOCK_TIME, at once if it sleeps
 * by an event source of its own, and else at its next look. */
void
semlock_waiting_stop(semlock_waiting *waiting)
{
    semlock_add32(&waiting->poked, 1);
    semlock_add32(&waiting->stopped, 1);
    if (!waiting->lent) {
        semlock_events_poke(semlock_load64(&waiting->events));
    }
    semlock_add32(&waiting->poked, -1);
}

/* End the wait, with the lock that was acquired or NULL. */
void
semlock_waiting_end(semlock_waiting *waiting, semlock_pool *pool, semlock_lock *won)
{
    int64_t events, mark = -1, name = -1;

    if (!waiting->started) {
        return;
    }
    if (waiting->life != semlock_life(pool)) {
        semlock_waiting_forget(waiting);
    }
    events = waiting->lent ? -1 : waiting->events;
    semlock_enter(pool);
    if (waiting->place != NULL) {
        if (won != NULL && waiting->place->out_of_turn) {
            semlock_place_pass_by(waiting->place, pool);
        }
        semlock_place_leave(waiting->place, waiting, won);
    }
    if (won != NULL) {
        won->waited = 1;
        if (events >= 0 && waiting->count == 1) {
            mark = waiting->watches[0].mark; /* semlock_release() removes it */
            waiting->watches[0].mark = -1;
        }
        if (mark >= 0 && waiting->watches[0].kernel == SEMLOCK_BY_FILE) {
            name = waiting->watches[0].ask.handle; /* and closes this */
            waiting->watches[0].ask.handle = -1;
        }
    }
    semlock_waiting_unwatch_all(waiting);
    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_kernel_asked(&waiting->watches[i]);
    }
    if (waiting->process >= 0) {
        semlock_process_close(waiting->events, waiting->process);
        waiting->process = -1;
    }
    if (waiting->lock != NULL) {
        semlock_unprepare(waiting->lock, pool);
        waiting->lock = NULL;
    }
    semlock_leave(pool);
    waiting->events = -1;
    if (events >= 0) {
        while (semlock_add32(&waiting->poked, 0) != 0) {
            semlock_yield(); /* the event source may be the next waiter's then */
        }
        if (mark < 0 && (waiting->unread || waiting->stopped)) {
            semlock_events_silence(events, -1);
        }
        semlock_events_keep(pool, events, mark, name, won != NULL);
    }
}

/* In a forked child: reset the wait.  The copies of its descriptors are closed already. */
void
semlock_waiting_forget(semlock_waiting *waiting)
{
    if (!waiting->started) {
        return;
    }
    if (waiting->place != NULL) {
        semlock_place_forget(waiting->place);
    }
    if (waiting->events >= 0 && !waiting->lent) {
        semlock_events_forget(waiting->events);
    }
    semlock_process_forget(waiting->process);
    waiting->events = waiting->process = -1;
    waiting->poked = 0;
    waiting->blind = waiting->deaf = 1;
    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_mark_over(waiting->watches[i].mark);
        waiting->watches[i].mark = -1;
        waiting->watches[i].ask.handle = -1;
    }
}
