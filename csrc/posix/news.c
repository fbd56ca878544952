/* POSIX: what a wait does with the events that are reported. */
#include <stddef.h>

#include "posix/waiting.h"

/* Is this a lock of our queue, with a ticket before ours? */
static int
stands_behind(const semlock_waiting *waiting, int32_t which)
{
    return waiting->place != NULL && waiting->place->before != 0 &&
           (waiting->queued < 0 || waiting->queued == which);
}

/* Is the time of the next look not fixed by an event? */
int
semlock_waiting_hears_next(const semlock_waiting *waiting)
{
    const semlock_place *place = waiting->place;

    return place->alarm_at == 0 ||
           (waiting->hints && place->told_at == 0 && place->free_since == 0);
}

/* An event of a lock with waiters before us: they come first; check at alarm_at that they use
 * it. */
static void
set_alarm(semlock_waiting *waiting, semlock_watch *watch)
{
    watch->due = watch->heard = 1;
    if (semlock_waiting_hears_next(waiting)) {
        waiting->place->told_at = semlock_now_ns();
        waiting->place->alarm_at = waiting->place->told_at + ALARM;
    }
    if (waiting->lent) {
        /* The event loop is not to be woken by events on which we do not act. */
        semlock_waiting_unwatch(waiting, &watch->mark);
    }
}

/* Process the marks that an event source has reported: returns how many belong to this wait.
 */
int
semlock_waiting_told(semlock_waiting *waiting, const int64_t *marks, int32_t count)
{
    int hits = 0, acts = 0;

    for (int32_t k = 0; k < count; k++) {
        int64_t mark = marks[k];

        if (waiting->place != NULL &&
            (mark < 0 || (waiting->place->mark >= 0 && waiting->place->mark == mark))) {
            waiting->place->due = 1;
            hits++;
            /* A bell reports the end of the ticket before when it is visible; no recheck is
             * needed. */
            if (mark != SEMLOCK_BELL && waiting->place->mark >= 0) {
                waiting->place->told = 1;
                acts++;
            }
        }
        for (int32_t i = 0; i < waiting->count && mark != SEMLOCK_BELL; i++) {
            semlock_watch *watch = &waiting->watches[i];

            if (watch->mark < 0 || (watch->mark != mark && mark >= 0)) {
                continue;
            }
            hits++;
            if (stands_behind(waiting, i)) {
                set_alarm(waiting, watch);
            }
            else {
                watch->due = watch->told = watch->heard = 1;
                acts++;
            }
        }
    }
    if (acts > 0) {
        /* The kernel reports a removal before the name is gone, and a death before its locks
         * are dropped: what looks unchanged now is checked again very soon. */
        waiting->recheck = 0;
        semlock_waiting_recheck_in(waiting, FIRST_RECHECK);
    }
    return hits;
}

/* The effect of an event is not visible yet: look again, with doubled intervals. */
void
semlock_waiting_check_again(semlock_waiting *waiting)
{
    int last = waiting->recheck >= LAST_RECHECK;
    int64_t next = last ? 0 : 2 * waiting->recheck;

    waiting->recheck = next;
    waiting->recheck_at = semlock_now_ns() + next;
    if (waiting->place != NULL && waiting->place->unsure) {
        waiting->place->due = waiting->place->told = 1;
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_watch *watch = &waiting->watches[i];

        if (watch->unsure) {
            watch->due = watch->told = 1;
            watch->unsure = !last; /* after the last recheck it is left as it is */
        }
    }
}
