/* Waiting, as far as it is alike everywhere: trying when a wait says so, the place in the
 * queue, and the holder's process.  The states of a wait are drawn in semlock_api.h. */
#include "core.h"

#define RACES 16
#define PREPARED_FOR 4 /* of several locks, some may be in use by other threads */

/* What was prepared for one of the locks is for the one that is free. */
void
semlock_waiting_hand_over(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool)
{
    if (waiting->lock != NULL && waiting->lock != lock) {
        semlock_enter(pool);
        semlock_hand_prepared(waiting->lock, lock, pool);
        if (!semlock_is_prepared(waiting->lock)) {
            waiting->lock = lock;
        }
        semlock_leave(pool);
    }
}

/* Before the sleep of the one that is next to try: prepare for it. */
void
semlock_waiting_prepare(semlock_waiting *waiting, semlock_pool *pool)
{
    for (int32_t i = 0; waiting->locks != NULL && i < waiting->count && i < PREPARED_FOR &&
                        !semlock_is_prepared(waiting->lock);
         i++) {
        waiting->lock = waiting->locks[i];
        semlock_prepare(waiting->lock, pool);
    }
    if (waiting->locks == NULL && waiting->lock != NULL) {
        semlock_prepare(waiting->lock, pool);
    }
}

/* The wait says that the holder must be judged.  SEMLOCK_FREE: it was dead, and it is this
 * waiter's turn; SEMLOCK_LOOK: the caller must judge it; SEMLOCK_HELD: another process has it;
 * SEMLOCK_ARMED: go on waiting, because its program has closed the file, and its process has
 * not ended.  That end is watched.
 *
 * A dying holder has dropped its witness, and is about to end.  Everything else that could be
 * done now would only keep the processor from it, so the judgement sleeps until then. */
static int
judge(semlock_waiting *waiting, const semlock_lock *lock, semlock_pool *pool)
{
    semlock_watch *watch = &waiting->watches[waiting->which];
    int sleeps = !waiting->lent && !waiting->unpaced;
    semlock_holder holder;
    semlock_view seen;
    int outcome;

    semlock_enter(pool);
    outcome = semlock_judge_holder(lock, pool, sleeps ? SEMLOCK_ENDING_NS : 0, &holder, &seen);
    if ((outcome == SEMLOCK_ALIVE || outcome == SEMLOCK_HELD) &&
        (!sleeps || semlock_held_here(pool, seen.ino))) {
        outcome = SEMLOCK_LOOK; /* the caller may be about to wait for itself */
    }
    semlock_leave(pool);
    if (outcome == SEMLOCK_ALIVE) {
        watch->judged_dev = seen.dev;
        watch->judged_ino = seen.ino;
        watch->judged_ctime_ns = seen.ctime_ns;
        semlock_waiting_follow(waiting, holder.pid, holder.start);
        return SEMLOCK_ARMED;
    }
    if (outcome == SEMLOCK_FREE || outcome == SEMLOCK_CHANGED) { /* it is gone */
        return semlock_waiting_in_turn(waiting, lock->turns == SEMLOCK_FAIR, pool)
                   ? SEMLOCK_FREE
                   : SEMLOCK_ARMED;
    }
    return outcome == SEMLOCK_HELD ? outcome : SEMLOCK_LOOK;
}

/* Wait, and try as soon as the lock may be free.  Returns the outcome of the wait
 * (SEMLOCK_LOOK, _BLIND, _TIME) or of the try; SEMLOCK_OK ends the wait too.  SEMLOCK_RACED:
 * other processes were faster so often that the caller should pause. */
int
semlock_waiting_take_inside(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool,
                            int64_t until)
{
    int judges;   /* a failed try at an event is followed by a judgement here */
    int free = 0; /* which removed a dead holder's file */

    if (waiting->locks == NULL) {
        waiting->lock = lock;
    }
    if (SEMLOCK_ALONE_NS > 0 && !waiting->began && waiting->locks == NULL &&
        waiting->place != NULL && !waiting->blind && semlock_may_wait_alone(lock, pool)) {
        waiting->place->alone_until = semlock_now_ns() + SEMLOCK_ALONE_NS;
    }
    else if (!waiting->began && waiting->locks == NULL &&
             (semlock_is_contended(lock, pool) ||
              semlock_now_ns() < semlock_load64(&lock->look_at))) {
        /* The try has just judged the holder; or the queue has other waiters, of which the
         * first looks after it, and if it has none, we are the first.  The caller has asked
         * whether it waits for itself. */
        waiting->looked = 1;
    }
    waiting->began = 1;
    for (int races = 0; races < RACES; races++) {
        int outcome = free ? SEMLOCK_FREE : semlock_waiting_once(waiting, pool, until);

        if (outcome != SEMLOCK_FREE && outcome != SEMLOCK_LOOK) {
            return outcome;
        }
        if (waiting->locks != NULL) {
            lock = waiting->locks[waiting->which];
        }
        if (outcome == SEMLOCK_LOOK) {
            outcome = judge(waiting, lock, pool);
            if (outcome == SEMLOCK_LOOK) {
                return outcome;
            }
            if (outcome != SEMLOCK_FREE) {
                continue;
            }
        }
        if (waiting->locks != NULL) {
            semlock_waiting_hand_over(waiting, lock, pool);
        }
        judges = waiting->tried && waiting->locks == NULL && !waiting->lent;
        if (judges) {
            semlock_store64(&lock->look_at, INT64_MAX); /* the try need not */
        }
        outcome = semlock_try_free(lock, pool);
        if (judges && outcome != SEMLOCK_OK) {
            semlock_store64(&lock->look_at, 0);
        }
        if (outcome == SEMLOCK_OK) {
            semlock_waiting_end(waiting, pool, lock);
        }
        if (outcome != SEMLOCK_HELD && outcome != SEMLOCK_LOOK &&
            (waiting->locks == NULL || outcome != SEMLOCK_MINE)) {
            return outcome;
        }
        free = 0;
        if (judges) {
            /* Another process was faster, or the event was the holder's death. */
            outcome = judge(waiting, lock, pool);
            if (outcome == SEMLOCK_LOOK) {
                return outcome;
            }
            free = outcome == SEMLOCK_FREE;
            if (outcome != SEMLOCK_HELD) {
                continue;
            }
        }
        semlock_waiting_by_turns(waiting);
        if (waiting->locks == NULL) {
            semlock_contended_now(pool, lock);
        }
    }
    return SEMLOCK_RACED;
}

/* May this process hold what is at the lock's path? */
static int
holds_such(semlock_pool *pool, const semlock_lock *lock)
{
    semlock_os_char place[SEMLOCK_PATH_ROOM];
    semlock_view seen;

    return semlock_os_path(place, lock->path) == 0 &&
           semlock_describe_path(place, &seen) == SEMLOCK_OK &&
           semlock_held_here(pool, seen.ino);
}

/* Wait once more as a wait that has ended with the lock: one call for a caller that waits for
 * a crowded lock again and again.  `stopped` and `poked` stay: another thread writes them.
 * SEMLOCK_LOOK: this process holds a file with such a number, perhaps this one. */
int
semlock_waiting_again(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool,
                      int64_t until)
{
    semlock_place *place = waiting->place;
    semlock_watch *watch = waiting->watches;

    if (waiting->began) {
        semlock_place new_place = {.path = place->path,
                                   .directory_length = place->directory_length,
                                   .directory_hash = place->directory_hash,
                                   .name_hash = place->name_hash,
                                   .record = place->record,
                                   .asked = semlock_now_ns(),
                                   .ticket.handle = -1,
                                   .mark = -1,
                                   .bell = -1};
        semlock_watch new_watch = {.path = watch->path, .vouched = watch->vouched};

        *place = new_place;
        *watch = new_watch;
        waiting->which = waiting->postponed = waiting->looked = waiting->began = 0;
        waiting->unread = waiting->tried = 0;
        waiting->recheck = waiting->pause = waiting->pause_at = 0;
        waiting->lock = lock;
        semlock_waiting_start(waiting, pool);
    }
    return holds_such(pool, lock) ? SEMLOCK_LOOK
                                  : semlock_waiting_take(waiting, lock, pool, until);
}

/* Is no other waiter known to be before this one?  Then it is the next to try. */
int
semlock_waiting_is_next(const semlock_waiting *waiting)
{
    const semlock_place *place = waiting->place;

    return place == NULL || place->refused || place->alone_until != 0 ||
           (place->ticket.handle != -1 && place->before == 0);
}

/* From now on the wait takes a ticket. */
void
semlock_waiting_by_turns(semlock_waiting *waiting)
{
    if (waiting->place != NULL) {
        waiting->place->alone_until = 0;
    }
}

/* Leave the queue, and go on waiting. */
void
semlock_waiting_leave(semlock_waiting *waiting, semlock_pool *pool)
{
    semlock_waiting_bind(waiting, pool);
    if (waiting->place != NULL) {
        semlock_enter(pool);
        semlock_place_leave(waiting->place, waiting, NULL);
        semlock_leave(pool);
    }
    waiting->place = NULL;
    waiting->queued = -1;
}

/* May the caller try now, without overtaking an earlier waiter?  With a pool it is checked for
 * a fair lock that no older ticket has come back since the queue was read: after a judgement,
 * before which the lock was not seen free. */
int
semlock_waiting_in_turn(semlock_waiting *waiting, int fair, semlock_pool *pool)
{
    const semlock_place *place = waiting->place;
    int came;

    if (pool != NULL) {
        semlock_waiting_bind(waiting, pool);
    }
    if (place == NULL || place->refused ||
        (waiting->queued >= 0 && waiting->queued != waiting->which)) {
        return 1;
    }
    if (place->ticket.handle == -1) {
        return !fair;
    }
    if (pool == NULL || !fair || place->out_of_turn || place->before != 0) {
        return place->before == 0 || place->out_of_turn;
    }
    semlock_enter(pool);
    came = semlock_waiting_others_came(waiting, waiting->which, pool);
    semlock_leave(pool);
    return !came;
}

/* Watch for the end of the holder's process too: for holders whose file reports no death. */
int
semlock_waiting_follow(semlock_waiting *waiting, int64_t pid, int64_t start)
{
    int fate;

    if (waiting->process >= 0) {
        semlock_process_close(waiting->events, waiting->process);
    }
    waiting->process = waiting->lent ? -1 : semlock_process_open(waiting->events, pid);
    waiting->followed = waiting->which;
    waiting->unread = 1;
    fate = semlock_probe(pid, start);
    if (fate == SEMLOCK_GONE || fate == SEMLOCK_RECYCLED || fate == SEMLOCK_ZOMBIE) {
        /* It ended before it was watched, so the judgement is outdated. */
        waiting->watches[waiting->which].judged_ino = 0;
        return SEMLOCK_LOOK;
    }
    return SEMLOCK_OK;
}

/* All paths must be looked at. */
void
semlock_waiting_look_at_all(semlock_waiting *waiting)
{
    for (int32_t i = 0; i < waiting->count; i++) {
        waiting->watches[i].due = 1;
    }
}

void
semlock_waiting_due(semlock_waiting *waiting)
{
    if (waiting->place != NULL) {
        waiting->place->due = 1;
    }
    semlock_waiting_look_at_all(waiting);
}

/* Do not look at a lock for a while: it is free, but other waiters are first. */
void
semlock_waiting_later(semlock_waiting *waiting, int32_t which, int64_t nanoseconds)
{
    waiting->watches[which].again_at = semlock_now_ns() + nanoseconds;
    waiting->watches[which].due = 1;
    waiting->postponed = 1;
}

/* The holder's process has ended: look at everything. */
void
semlock_waiting_bereft(semlock_waiting *waiting)
{
    semlock_process_close(waiting->events, waiting->process);
    waiting->process = -1;
    waiting->which = waiting->followed;
    semlock_waiting_due(waiting);
}

/* The waiters before this one in the queue are gone: look at the locks. */
void
semlock_waiting_is_first(semlock_waiting *waiting, uint64_t before)
{
    if (before != 0) {
        semlock_waiting_look_at_all(waiting); /* no ticket is before ours any more */
    }
    waiting->place->alarm_at = waiting->place->free_since = 0;
    waiting->place->out_of_turn = 0;
}
