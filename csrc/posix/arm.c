/* POSIX: what a waiter does before it sleeps, and when it looks again. */
#include <stddef.h>

#include "posix/waiting.h"

#define FIRST_PAUSE 500000 /* between two looks without events; doubles */
#define LAST_PAUSE 50000000
#define LAST_HINTED 100000000 /* if changes by this kernel are reported */

/* Join the queue if needed, and find the ticket before ours. */
static int
stand_in_queue(semlock_waiting *waiting, semlock_pool *pool)
{
    semlock_place *place = waiting->place;
    uint64_t before = place->before;
    int told = place->told;
    int asked, outcome;

    place->refused = place->refused || waiting->unqueued;
    asked = place->due || place->ticket.handle < 0;
    outcome = semlock_place_update(place, waiting, pool);
    place->told = 0;
    if (asked) {
        place->unsure = told && outcome != SEMLOCK_OK && before == place->before;
        if (place->unsure) {
            semlock_waiting_recheck_in(waiting, FIRST_RECHECK);
        }
        else {
            semlock_waiting_has_shown(waiting);
        }
    }
    if (outcome == SEMLOCK_OK) {
        if (before != 0) { /* those behind relied on the waiters before them */
            waiting->safety_at = semlock_waiting_next_safety(waiting, pool);
        }
        semlock_waiting_is_first(waiting, before);
        return outcome;
    }
    if (before == 0) {
        place->alarm_at = semlock_now_ns() + ALARM;
        place->free_since = 0;
    }
    return outcome;
}

/* The lock is free, and we were first when the queue was read.  Has an older ticket come back
 * since? */
int
semlock_waiting_others_came(semlock_waiting *waiting, int32_t which, semlock_pool *pool)
{
    semlock_place *place = waiting->place;

    if (place == NULL || place->ticket.handle < 0 ||
        (waiting->queued >= 0 && waiting->queued != which)) {
        return 0;
    }
    if (place->relayed) {
        place->relayed = 0; /* told just now */
        return 0;
    }
    if (semlock_place_changed_at(place) == place->read_at) {
        return 0;
    }
    place->due = 1;
    return stand_in_queue(waiting, pool) != SEMLOCK_OK;
}

/* The waiters before us are gone, as the queue says that was read just now.  Then the lock is
 * free as a rule: its holder ends its ticket after its file.  So the try comes first.  If it
 * fails, the lock is looked at and watched, as after the try with which each call begins. */
static int
may_try_at_once(const semlock_waiting *waiting, uint64_t before)
{
    return before != 0 && waiting->lock != NULL && waiting->count == 1 && !waiting->lent &&
           waiting->place->before == 0 && waiting->place->ticket.handle >= 0;
}

static int
arm(semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome, behind = SEMLOCK_OK, read_now = 0;
    int64_t now = semlock_now_ns();

    if (waiting->place != NULL && waiting->place->alone_until == 0) {
        uint64_t before;

        if (!waiting->looked) {
            outcome = semlock_waiting_look_first(waiting, pool);
            if (outcome != SEMLOCK_OK) {
                return outcome;
            }
        }
        before = waiting->place->before;
        read_now = waiting->place->due || waiting->place->ticket.handle < 0;
        behind = stand_in_queue(waiting, pool);
        if (behind == SEMLOCK_OK && read_now && may_try_at_once(waiting, before)) {
            waiting->which = waiting->place->relayed = 0;
            return SEMLOCK_FREE;
        }
        if (behind != SEMLOCK_OK) {
            outcome = semlock_waiting_watch_over(waiting, pool);
            if (waiting->place->doubt) {
                behind = stand_in_queue(waiting, pool);
            }
            if (behind != SEMLOCK_OK && (outcome != SEMLOCK_ARMED || waiting->queued < 0)) {
                return outcome;
            }
        }
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_watch *watch = &waiting->watches[i];

        if (watch->again_at != 0 && watch->again_at <= now) {
            watch->again_at = 0;
        }
        if (watch->due && watch->again_at == 0 &&
            (behind == SEMLOCK_OK || i != waiting->queued)) {
            outcome = semlock_waiting_look(waiting, watch, pool);
            if (outcome == SEMLOCK_FREE && !read_now &&
                semlock_waiting_others_came(waiting, i, pool)) {
                return SEMLOCK_ARMED;
            }
            if (outcome != SEMLOCK_ARMED) {
                waiting->which = i;
                return outcome;
            }
        }
    }
    waiting->looked = 1;
    if (waiting->place != NULL) {
        waiting->place->relayed = 0;
    }
    return waiting->blind ? SEMLOCK_BLIND : SEMLOCK_ARMED;
}

/* When to write the .who file: not before the wait has lasted for a while.  The next one of a
 * line of tasks has waited for long when it takes its ticket, and may have it only briefly. */
int64_t
semlock_waiting_tell_at(const semlock_place *place)
{
    if (place == NULL || place->ticket.handle < 0 || place->ticket.told) {
        return 0;
    }
    return (place->joined_at - place->asked > ALARM ? place->joined_at : place->asked) + ALARM;
}

/* When to look again without an event: the first of all times that are set. */
static int64_t
next_look(const semlock_waiting *waiting)
{
    const semlock_place *place = waiting->place;
    int64_t at = waiting->safety_at;

    if (place != NULL && place->before != 0 && place->alarm_at != 0) {
        at = place->alarm_at; /* that look is enough */
    }
    if (waiting->recheck != 0 && waiting->recheck_at < at) {
        at = waiting->recheck_at;
    }
    if (waiting->pause_at != 0 && waiting->pause_at < at) {
        at = waiting->pause_at;
    }
    if (semlock_waiting_tell_at(place) != 0 && semlock_waiting_tell_at(place) < at) {
        at = semlock_waiting_tell_at(place);
    }
    if (place != NULL && place->alone_until != 0 && place->alone_until < at) {
        at = place->alone_until;
    }
    for (int32_t i = 0; i < waiting->count && waiting->postponed; i++) {
        if (waiting->watches[i].due && waiting->watches[i].again_at != 0 &&
            waiting->watches[i].again_at < at) {
            at = waiting->watches[i].again_at;
        }
    }
    return at;
}

/* A program that unlocks a file and keeps it open causes no event.  So the first of the queue
 * asks the kernel by the clock too. */
static int
looks_by_clock(const semlock_waiting *waiting, int outcome)
{
    return outcome == SEMLOCK_ARMED && waiting->kernel &&
           (waiting->place == NULL || waiting->place->before == 0);
}

/* Is this the one of all waiters that looks often?  Then it looks at moments at which the
 * others look too.  Then a processor wakes less often, and the others see a free lock when the
 * first one has seen it. */
static int
stands_first(const semlock_place *place)
{
    return place != NULL && place->ticket.handle >= 0 && place->before == 0;
}

/* When to look next without an event. */
static int64_t
pause_end(semlock_waiting *waiting)
{
    const semlock_place *place = waiting->place;
    int64_t now = semlock_now_ns();
    int hints = waiting->hints && waiting->events >= 0;
    int64_t last = hints ? LAST_HINTED : LAST_PAUSE;

    waiting->pause = waiting->pause == 0          ? FIRST_PAUSE
                     : waiting->pause >= last / 2 ? last
                                                  : waiting->pause * 2;
    if (waiting->pause == last && stands_first(place)) {
        return semlock_next_moment(place, now,
                                   hints && now - place->asked > FRESH ? TICK : last);
    }
    return now + semlock_spread(waiting, waiting->pause);
}

/* Arrange that an event comes when something changes; or report that it has changed. */
int
semlock_waiting_arm(semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome;

    semlock_waiting_bind(waiting, pool);
    semlock_enter(pool);
    outcome = arm(waiting, pool);
    if (outcome == SEMLOCK_ARMED && semlock_waiting_is_next(waiting)) {
        semlock_waiting_prepare(waiting, pool);
        semlock_waiting_hold_names(waiting);
    }
    semlock_leave(pool);
    if ((outcome == SEMLOCK_BLIND || looks_by_clock(waiting, outcome)) &&
        waiting->pause_at == 0 && !waiting->unpaced) {
        waiting->pause_at = pause_end(waiting);
    }
    waiting->look_at = next_look(waiting);
    return outcome;
}
