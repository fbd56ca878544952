/* POSIX: when a waiter tries before those ahead of it (semlock.h, THE QUEUE). */
#define _GNU_SOURCE
#include "posix/waiting.h"

#define PATIENCE 180000000 /* the second of a queue tries a lock that is free for so long */
#define STAGGER 8000000    /* and one with twice as many before it so much later */
#define UNTOLD 150000000   /* the assumed age of a free lock without an event */
#define MOVED 100000000    /* the same if the queue has moved meanwhile */
#define SLOWER 8           /* PATIENCE grows by so many times the lateness, */
#define SLOWEST 5000000    /* which is counted up to this */
#define FEW 4              /* so many waiters read the queue to find the first */
#define NEAR 8         /* without events, those with no more before them look at each TICK, */
#define FAR 128        /* and, while FRESH, those with no more than these; */
#define CROWDED 64     /* but not those with so many behind them, when no longer FRESH; */
#define RARELY 15      /* the others look at one of so many */
#define HINTED 5       /* one of so many if changes by this kernel are reported */
#define RETRY 10000000 /* until the next look after a failed try out of turn */

/* Behind 64 that are stopped, on however slow a machine. */
_Static_assert(PATIENCE + SLOWER * SLOWEST + 6 * (STAGGER + SLOWEST) <= 300000000,
               "a free lock is tried within 0.3 seconds");

/* A random time, from half of the span to one and a half of it, so that waiters do not wake
 * together. */
int64_t
semlock_spread(const void *who, int64_t span)
{
    uint64_t mixed = ((uint64_t)semlock_now_ns() ^ (uint64_t)(uintptr_t)who ^
                      (uint64_t)semlock_pid() << 32) *
                     0x9e3779b97f4a7c15u;

    return span / 2 + (int64_t)((mixed >> 40) * (uint64_t)span >> 24);
}

/* Measure how slow the machine is now: our own lateness and the time of our look.  The first
 * of the queue is delayed by the same. */
static void
note_slowness(semlock_place *place, int64_t due, int64_t began)
{
    int64_t slow = semlock_now_ns() - due;

    slow = due == 0 || slow < 0 ? semlock_now_ns() - began : slow;
    slow = slow < SLOWEST ? slow : SLOWEST;
    place->slow = slow > place->slow / 2 ? slow : place->slow / 2;
}

/* How long the waiters before us may leave a free lock unused.  In a queue of any length only
 * a few try at the same time, and the nearest to the head first. */
static int64_t
patience(const semlock_place *place)
{
    int64_t stagger = STAGGER + place->slow;
    int64_t wait = PATIENCE + SLOWER * place->slow;
    int64_t doubled = 1;

    for (; 2 * doubled <= place->ahead; doubled *= 2) {
        wait += stagger;
    }
    return wait + stagger * (place->ahead - doubled) / doubled;
}

/* Record the first ticket while the lock is free and the queue moves.  Of all waiters together
 * only a few read the queue for this. */
static void
note_first(semlock_place *place, semlock_pool *pool)
{
    uint64_t chance = (uint64_t)semlock_spread(place, 1 << 20) % (uint64_t)place->ahead;
    semlock_queue queue = semlock_queue_of_place(place);

    place->free_first =
        chance >= FEW
            ? 0
            : semlock_queue_head(
                  &queue, semlock_passed(pool, place->name_hash ^ place->directory_hash),
                  place->ticket.number);
}

/* Has a waiter before us used its turn since that was recorded? */
static int
has_moved(const semlock_place *place)
{
    if (semlock_place_changed_at(place) == place->free_at) {
        return 0;
    }
    return place->free_first == 0 || !semlock_place_stands(place, place->free_first);
}

/* The lock is free, and other waiters are before us.  Tickets of holders and of dead owners do
 * not count.  If none of the others uses its turn for a while, they are stopped or too slow:
 * we try out of turn. */
static int
may_overtake(semlock_waiting *waiting, semlock_pool *pool)
{
    semlock_place *place = waiting->place;
    int64_t now = semlock_now_ns();

    if (place->free_since == 0 || has_moved(place)) {
        place->free_first = 0;
        if (place->free_since != 0) {
            note_first(place, pool);
        }
        place->free_at = semlock_place_changed_at(place);
        place->free_since = place->free_since != 0 ? now - MOVED
                            : place->told_at != 0  ? place->told_at
                                                   : now - UNTOLD;
        place->alarm_at = place->free_since + patience(place);
        return 0;
    }
    if (now < place->free_since + patience(place)) {
        place->alarm_at = place->free_since + patience(place);
        return 0;
    }
    place->free_since = 0;
    place->out_of_turn = 1;
    place->alarm_at = now + RETRY; /* if the try fails */
    return 1;
}

/* Read the events that came while the event source was not read. */
static void
take_in_news(semlock_waiting *waiting)
{
    int64_t marks[MARKS];
    int count;

    /* What is heard was polled just now. */
    while (waiting->events >= 0 && !waiting->lent && !semlock_waiting_hears_next(waiting) &&
           (count = semlock_events_read(waiting->events, marks, MARKS)) > 0) {
        semlock_waiting_told(waiting, marks, count);
    }
}

/* The first of the moments that are so far apart, after this time.  All waiters for a lock
 * have the same ones: wake-ups together cost half, because the processor is awake already. */
int64_t
semlock_next_moment(const semlock_place *place, int64_t after, int64_t apart)
{
    int64_t phase = (int64_t)(place->name_hash % TICK);

    return ((after + phase) / apart + 1) * apart - phase;
}

/* Are there so many behind that their looks are enough?  The queue is read again only if it
 * has changed, and not in each moment that it does. */
static int
many_are_behind(semlock_place *place, int64_t now)
{
    semlock_queue queue = semlock_queue_of_place(place);
    semlock_survey seen = {.above = place->ticket.number, .below = UINT64_MAX};

    if ((place->counted == 0 || now - place->counted > FRESH) &&
        (place->counted_at == 0 || semlock_place_changed_at(place) != place->counted_at)) {
        place->behind = semlock_survey_read(&queue, &seen) == 0 ? seen.count : 0;
        place->counted_at = seen.at;
        place->counted = now;
    }
    return place->behind >= CROWDED;
}

/* When to look at a lock that reports no events.  To wake a process costs more than what it
 * does then, so most of a crowd uses only some of the moments: each its own ones by its
 * position, so at each moment one of RARELY in a row looks. */
static int64_t
next_tick(semlock_place *place, int hints)
{
    int64_t now = semlock_now_ns();
    int64_t next = semlock_next_moment(place, now, TICK);
    int fresh = now - place->asked <= FRESH;
    int rarely =
        place->ahead > FAR || (!fresh && (place->ahead > NEAR || many_are_behind(place, now)));
    int64_t each = rarely ? RARELY : hints ? HINTED : 1;

    return next + (each - 1 - (next / TICK + place->ahead) % each) * TICK;
}

/* Some time after an event, check that the waiters before us use the lock: SEMLOCK_FREE if we
 * may try out of turn, SEMLOCK_LOOK if the holder must be judged, else SEMLOCK_ARMED. */
int
semlock_waiting_watch_over(semlock_waiting *waiting, semlock_pool *pool)
{
    semlock_place *place = waiting->place;
    int64_t due = place->alarm_at;
    int64_t began = semlock_now_ns();
    int blind = 0;

    if (place->alarm_at == 0 || semlock_now_ns() < place->alarm_at) {
        return SEMLOCK_ARMED;
    }
    take_in_news(waiting);
    place->out_of_turn = 0;
    place->alarm_at = 0;
    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_watch *watch = &waiting->watches[i];
        int outcome;

        if (waiting->queued >= 0 && waiting->queued != i) {
            continue;
        }
        outcome = semlock_waiting_look_past(waiting, watch, pool);
        if (outcome == SEMLOCK_ARMED) {
            blind = blind || watch->mark < 0;
            continue;
        }
        waiting->which = i;
        if (outcome == SEMLOCK_LOOK) {
            place->alarm_at = semlock_now_ns() + RETRY;
            return outcome;
        }
        note_slowness(place, due, began);
        if (may_overtake(waiting, pool)) {
            return SEMLOCK_FREE;
        }
        return SEMLOCK_ARMED;
    }
    place->free_since = place->told_at = 0;
    if (blind || waiting->hints || (place->bell < 0 && place->mark < 0)) {
        place->due = place->due || (place->bell < 0 && place->mark < 0);
        place->alarm_at = next_tick(place, waiting->hints && !blind && place->bell >= 0);
    }
    return SEMLOCK_ARMED;
}
