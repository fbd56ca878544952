/* Windows: a place in the queue of the waiters for a lock (semlock.h, THE QUEUE).  Windows
 * reports that the queue changed, not how.  So each waiter then checks whether the ticket
 * before its own still exists.
 */
#include "windows/system.h"

#define JOIN_TRIES 100

/* Drop the ticket; its number is kept for the next one. */
static void
lose_ticket(semlock_place *place)
{
    semlock_unwatch(&place->mark);
    if (place->ticket.handle != -1) {
        CloseHandle((HANDLE)(intptr_t)place->ticket.handle); /* which deletes it */
    }
    place->ticket.handle = -1;
    place->before = 0;
    place->ahead = 0;
}

/* Do the ticket before ours and our own still exist?  Then nothing has changed for us, and the
 * queue need not be read. */
static int
still_behind(const semlock_place *place)
{
    WCHAR name[SEMLOCK_PATH_ROOM];
    semlock_queue queue = semlock_queue_of_place(place);

    return place->ticket.handle != -1 && place->before != 0 && place->mark != -1 &&
           semlock_now_ns() < place->read_at + SEMLOCK_REREAD_NS &&
           semlock_ticket_path(name, &queue, place->before, "") == 0 &&
           semlock_exists(name) == 1 &&
           semlock_ticket_path(name, &queue, place->ticket.number, "") == 0 &&
           semlock_exists(name) == 1;
}

/* Find the ticket before ours, and watch the queue if there is one; join first if needed.
 * SEMLOCK_OK: there is none.  SEMLOCK_ARMED, or SEMLOCK_BLIND if the queue cannot be watched.
 */
static int
find_before(semlock_place *place, semlock_pool *pool)
{
    WCHAR room[SEMLOCK_PATH_ROOM];
    semlock_queue queue = semlock_queue_of_place(place);
    uint64_t passed = semlock_passed(pool, place->name_hash ^ place->directory_hash);
    semlock_survey seen = {.above = passed, .downwards = 1};
    int watched = 0;
    int outcome;

    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        outcome = place->ticket.handle == -1 ? semlock_place_join(place) : 0;
        if (outcome == 0) {
            outcome = semlock_queue_path(room, &queue);
        }
        if (outcome != 0) {
            return outcome;
        }
        if (watched) {
            semlock_watch_directory(&place->mark, room);
        }
        seen.below = seen.own = place->ticket.number;
        place->read_at = semlock_now_ns();
        outcome = semlock_survey_read(&queue, &seen);
        if (semlock_is_transient(outcome)) {
            semlock_yield(); /* the ticket and its number are still ours */
            continue;
        }
        if (outcome != 0 || !seen.there) {
            lose_ticket(place); /* others took us for stopped */
            continue;
        }
        place->before = seen.kept > 0 ? seen.nearest[0] : 0;
        place->ahead = seen.count;
        if (place->before == 0) {
            semlock_unwatch(&place->mark); /* the first need not watch the queue */
            return SEMLOCK_OK;
        }
        if (place->mark != -1 || watched) {
            return place->mark == -1 ? SEMLOCK_BLIND : SEMLOCK_ARMED;
        }
        watched = 1; /* and read again: any later change is reported */
    }
    return -ERROR_BUSY;
}

/* Find the ticket before ours.  SEMLOCK_OK: there is none, or no queue is possible here. */
int
semlock_place_update(semlock_place *place, semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome;

    if (place->refused) {
        return SEMLOCK_OK;
    }
    if (place->ticket.handle != -1 && (!place->due || still_behind(place))) {
        place->due = 0;
        return place->before == 0  ? SEMLOCK_OK
               : place->mark == -1 ? SEMLOCK_BLIND
                                   : SEMLOCK_ARMED;
    }
    place->due = 0;
    outcome = find_before(place, pool);
    if (outcome < 0) {
        semlock_place_leave(place, waiting, NULL);
        place->refused = 1;
        return SEMLOCK_OK;
    }
    return outcome;
}

/* Leave the queue, and remove it if it is empty. */
void
semlock_place_leave(semlock_place *place, semlock_waiting *waiting, semlock_lock *won)
{
    semlock_queue queue = semlock_queue_of_place(place);
    int joined = place->ticket.handle != -1;

    (void)waiting;
    (void)won; /* every change of the queue wakes the next waiter, so no ticket is kept */
    lose_ticket(place);
    if (joined) {
        semlock_queue_leave(&queue, place->ticket.number);
    }
}
