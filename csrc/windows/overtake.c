/* Windows: a waiter behind others in a queue (semlock.h, THE QUEUE): what it does when they do
 * not use a free lock.  Its states are drawn in semlock_api.h, semlock_place.
 */
#include "windows/system.h"

#define PATIENCE 150000000 /* the second of a queue tries a lock that is free for so long */
#define STAGGER 70000000   /* and the last ones so much later */
#define BEHIND 32          /* this many before it make a waiter one of the last */
#define OFTEN 100000000    /* how often waiters behind look */
#define UNSEEN (OFTEN / 2) /* the assumed age of a lock that is seen free */
#define RETRY 10000000     /* until the next look after a failed try out of turn */

/* How long the waiters before us may leave a free lock unused. */
static int64_t
patience(const semlock_place *place)
{
    int32_t behind = place->ahead > BEHIND ? BEHIND : place->ahead;

    return PATIENCE + STAGGER * (behind - 1) / BEHIND;
}

/* The lock is free, and other waiters are before us.  If the first of them is the same for a
 * while, and the lock still free, it is stopped or too slow: we try out of turn. */
static int
may_overtake(semlock_place *place, semlock_pool *pool)
{
    int64_t now = semlock_now_ns();
    semlock_queue queue = semlock_queue_of_place(place);
    uint64_t first = semlock_queue_head(
        &queue, semlock_passed(pool, place->name_hash ^ place->directory_hash),
        place->ticket.number);

    if (first != 0 && (place->free_since == 0 || place->free_first != first)) {
        place->free_since = now - UNSEEN;
        place->free_first = first;
    }
    if (first != 0 && now < place->free_since + patience(place)) {
        place->alarm_at = place->free_since + patience(place);
        return 0;
    }
    place->free_since = 0;
    place->out_of_turn = 1;
    place->alarm_at = now + RETRY; /* in case the try fails */
    return 1;
}

/* Check that the waiters before us use the lock: SEMLOCK_FREE if we may try out of turn, else
 * SEMLOCK_ARMED. */
static int
watch_over(semlock_waiting *waiting, semlock_pool *pool)
{
    semlock_place *place = waiting->place;
    int64_t now = semlock_now_ns();

    if (now < place->alarm_at) {
        return SEMLOCK_ARMED;
    }
    place->out_of_turn = 0;
    for (int32_t i = 0; i < waiting->count; i++) {
        if ((waiting->queued < 0 || waiting->queued == i) &&
            semlock_path_is_free(waiting->watches[i].path)) {
            waiting->which = i;
            return may_overtake(place, pool) ? SEMLOCK_FREE : SEMLOCK_ARMED;
        }
    }
    place->free_since = 0;
    place->alarm_at = now + OFTEN;
    return SEMLOCK_ARMED;
}

/* Join the queue if needed.  SEMLOCK_OK: no ticket is before ours.  SEMLOCK_ARMED or
 * SEMLOCK_BLIND: one is, and changes of the queue are reported or not.  SEMLOCK_FREE: try out
 * of turn. */
int
semlock_stand_in_queue(semlock_waiting *waiting, semlock_pool *pool)
{
    semlock_place *place = waiting->place;
    uint64_t before = place->before;
    int outcome = semlock_place_update(place, waiting, pool);

    if (outcome == SEMLOCK_OK) {
        semlock_waiting_is_first(waiting, before);
    }
    else {
        int seen;

        if (before == 0) {
            place->alarm_at = place->free_since = 0; /* they may not have used it for long */
        }
        seen = watch_over(waiting, pool);
        outcome = seen == SEMLOCK_ARMED ? outcome : seen;
    }
    return outcome;
}

/* The lock is free, and we were first when the queue was read.  SEMLOCK_OK, or as above if the
 * owner of an older ticket, which was stopped, has taken its old place since. */
int
semlock_still_first(semlock_waiting *waiting, int32_t which, semlock_pool *pool)
{
    semlock_place *place = waiting->place;

    if (place == NULL || place->ticket.handle == -1 || place->before != 0 ||
        (waiting->queued >= 0 && waiting->queued != which)) {
        return SEMLOCK_OK;
    }
    place->due = 1;
    return semlock_stand_in_queue(waiting, pool);
}

int
semlock_waiting_others_came(semlock_waiting *waiting, int32_t which, semlock_pool *pool)
{
    int outcome = semlock_still_first(waiting, which, pool);

    return outcome != SEMLOCK_OK && outcome != SEMLOCK_FREE;
}
