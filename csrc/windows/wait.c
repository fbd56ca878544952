/* Windows: waiting for a lock to change hands (semlock.h, WAITING).
 *
 * Windows reports each name that is created or removed in a directory.  So the directory of
 * the lock is watched and not its file, and a mark is such a watch.  It is watched first and
 * looked at then: a change after the look is reported, and one before it is seen.
 *
 * The death of a holder is reported by its process, if the caller has named that.  Otherwise
 * its witness is tested from time to time.  Python cannot wake this sleep to run a signal
 * handler, so a wait returns to it each SLICE, as if it had been interrupted.
 */
#include <errno.h>
#include <string.h>

#include "windows/system.h"

#define SLICE 100000000 /* nanoseconds by which a signal handler is delayed at most */
#define ASK 10000000    /* between two questions whether a file is locked: no event tells it */
#define MOST (MAXIMUM_WAIT_OBJECTS - 2) /* the most paths of a wait with events */

static HANDLE
handle_of(int64_t number)
{
    return (HANDLE)(intptr_t)number;
}

/* Start a wait whose place and paths are filled in. */
int
semlock_waiting_start(semlock_waiting *waiting, semlock_pool *pool)
{
    int deaf;

    waiting->started = 1;
    waiting->queued = -1;
    waiting->kernel = 0;
    (void)pool;
    for (int32_t i = 0; i < waiting->count; i++) {
        waiting->watches[i].mark = -1;
        waiting->watches[i].due = 1;
        waiting->kernel = waiting->kernel || waiting->watches[i].kernel != SEMLOCK_BY_FILE;
    }
    waiting->process = waiting->events = -1;
    deaf = waiting->count > MOST ||
           !semlock_hears(waiting->place != NULL ? waiting->place->path
                                                 : waiting->watches[0].path);
    /* An event loop's wait gets no events, but looks often enough to be in a queue. */
    waiting->blind = waiting->lent || deaf;
    if (waiting->place != NULL) {
        waiting->place->ticket.handle = waiting->place->mark = -1;
        waiting->place->refused = deaf;
    }
    return waiting->blind ? SEMLOCK_BLIND : SEMLOCK_OK;
}

/* Can this instance be skipped without a judgement by the caller?  Yes if its witness is
 * taken and that is proof enough for the lock, or if the caller has judged it already.  But if
 * its witness was taken at the last look (`dev` and `ino` of the watch) and is free now, it
 * must be judged again. */
static int
vouched_for(semlock_watch *watch, const semlock_view *seen, semlock_pool *pool)
{
    int judged = watch->judged_ino == seen->ino && watch->judged_dev == seen->dev &&
                 watch->judged_ctime_ns == seen->ctime_ns;
    int had_witness = watch->ino == seen->ino && watch->dev == seen->dev;

    if (!judged && semlock_held_here(pool, seen->ino)) {
        return 0; /* the caller may be about to wait for itself */
    }
    if (watch->kernel != SEMLOCK_BY_FILE) {
        return 1; /* the kernel ends its lock with its holder */
    }
    if (seen->kind != SEMLOCK_REGULAR) {
        return judged;
    }
    watch->ino = watch->dev = 0;
    if (watch->vouched != SEMLOCK_BY_CALLER && semlock_witness_at(watch->path) == 1) {
        watch->ino = seen->ino;
        watch->dev = seen->dev;
        return 1;
    }
    return judged && !had_witness;
}

/* SEMLOCK_FREE if there is nothing at the path, SEMLOCK_LOOK if it must be judged, or
 * SEMLOCK_ARMED. */
static int
look_at_path(semlock_watch *watch, semlock_pool *pool)
{
    WCHAR path[SEMLOCK_PATH_ROOM];
    semlock_view seen;
    HANDLE handle;
    int outcome = semlock_wide(path, watch->path, (int32_t)strlen(watch->path));

    if (outcome != 0) {
        return SEMLOCK_FREE; /* the try returns the error */
    }
    handle = CreateFileW(path, FILE_READ_ATTRIBUTES, SEMLOCK_SHARE_ALL, NULL, OPEN_EXISTING,
                         FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        /* A file that cannot be inspected is being deleted, and that will be reported. */
        return semlock_exists(path) == 1 ? SEMLOCK_ARMED : SEMLOCK_FREE;
    }
    outcome = semlock_describe(handle, &seen);
    CloseHandle(handle);
    if (outcome != 0) {
        return SEMLOCK_LOOK;
    }
    if (!vouched_for(watch, &seen, pool)) {
        return SEMLOCK_LOOK;
    }
    return watch->kernel != SEMLOCK_BY_FILE && semlock_kernel_ask(watch) ? SEMLOCK_FREE
                                                                         : SEMLOCK_ARMED;
}

static int
look(semlock_waiting *waiting, semlock_watch *watch, semlock_pool *pool)
{
    WCHAR directory[SEMLOCK_PATH_ROOM];
    int outcome;

    if (!waiting->blind) {
        if (semlock_directory_of(directory, watch->path) == 0) {
            semlock_watch_directory(&watch->mark, directory);
        }
        waiting->blind = watch->mark == -1;
    }
    outcome = look_at_path(watch, pool);
    if (outcome == SEMLOCK_ARMED) {
        watch->due = 0;
    }
    return outcome;
}

/* Before joining a queue, check that the holder lives and is not the caller. */
static int
look_first(semlock_waiting *waiting, semlock_pool *pool)
{
    for (int32_t i = 0; i < waiting->count; i++) {
        if (look_at_path(&waiting->watches[i], pool) == SEMLOCK_LOOK) {
            waiting->which = i;
            return SEMLOCK_LOOK;
        }
    }
    waiting->looked = 1;
    return SEMLOCK_OK;
}

/* Arrange that an event comes when something changes; or report that it has changed. */
int
semlock_waiting_arm(semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome, behind = SEMLOCK_OK;

    if (waiting->place != NULL) {
        outcome = waiting->looked ? SEMLOCK_OK : look_first(waiting, pool);
        if (outcome != SEMLOCK_OK) {
            return outcome;
        }
        behind = semlock_stand_in_queue(waiting, pool);
        if (behind != SEMLOCK_OK &&
            (waiting->queued < 0 || (behind != SEMLOCK_ARMED && behind != SEMLOCK_BLIND))) {
            return behind;
        }
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        if (waiting->watches[i].due && waiting->watches[i].again_at <= semlock_now_ns() &&
            (behind == SEMLOCK_OK || i != waiting->queued)) {
            outcome = look(waiting, &waiting->watches[i], pool);
            if (outcome == SEMLOCK_FREE) {
                int first = semlock_still_first(waiting, i, pool);

                if (first != SEMLOCK_OK) {
                    return first;
                }
            }
            if (outcome != SEMLOCK_ARMED) {
                waiting->which = i;
                return outcome;
            }
        }
    }
    return waiting->blind || behind == SEMLOCK_BLIND ? SEMLOCK_BLIND : SEMLOCK_ARMED;
}

/* Sleep until an event, until a time, or until Python may want to run a signal handler:
 * SEMLOCK_OK, SEMLOCK_LOOK if the holder's process has ended, SEMLOCK_TIME or -EINTR. */
int
semlock_waiting_sleep(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    HANDLE handles[MAXIMUM_WAIT_OBJECTS];
    int64_t *marks[MAXIMUM_WAIT_OBJECTS];
    int32_t *dues[MAXIMUM_WAIT_OBJECTS];
    int64_t now = semlock_now_ns();
    int64_t end = until < now + SLICE ? until : now + SLICE;
    DWORD count = 0;
    int woken;

    (void)pool;
    if (waiting->process != -1) {
        marks[count] = &waiting->process;
        handles[count++] = handle_of(waiting->process);
    }
    if (waiting->place != NULL && waiting->place->mark != -1) {
        marks[count] = &waiting->place->mark;
        dues[count] = &waiting->place->due;
        handles[count++] = handle_of(waiting->place->mark);
    }
    for (int32_t i = 0; i < waiting->count && i < MOST; i++) {
        if (waiting->watches[i].mark != -1) {
            marks[count] = &waiting->watches[i].mark;
            dues[count] = &waiting->watches[i].due;
            handles[count++] = handle_of(waiting->watches[i].mark);
        }
    }
    woken = semlock_sleep_on(handles, count, end - now);
    if (woken < 0) {
        /* A failed wait ends early. */
        return semlock_now_ns() >= until ? SEMLOCK_TIME : -EINTR;
    }
    if (marks[woken] == &waiting->process) {
        semlock_waiting_bereft(waiting);
        return SEMLOCK_LOOK;
    }
    *dues[woken] = 1;
    semlock_watch_on(marks[woken]);
    return SEMLOCK_OK;
}

/* Look without an event, each SLICE: the first of a queue at the lock and its witness, waiters
 * behind at the ticket before theirs if the queue is not watched.  Each SEMLOCK_REREAD_NS all
 * of them read the queue. */
static void
look_again(semlock_waiting *waiting)
{
    semlock_place *place = waiting->place;

    semlock_waiting_look_at_all(waiting);
    if (place != NULL && !place->refused &&
        (place->mark == -1 || semlock_now_ns() >= place->read_at + SEMLOCK_REREAD_NS)) {
        place->due =
            place->before != 0 || semlock_now_ns() >= place->read_at + SEMLOCK_REREAD_NS;
    }
}

/* Wait in one call, until there is something to do (SEMLOCK_FREE: try; SEMLOCK_LOOK: judge),
 * no event can help any more (SEMLOCK_BLIND), the time is over (SEMLOCK_TIME), or Python may
 * want to run a signal handler (-EINTR). */
int
semlock_waiting_once(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    int64_t end = semlock_now_ns() + (waiting->kernel ? ASK : SLICE);

    for (;;) {
        const semlock_place *place = waiting->place;
        int outcome = semlock_waiting_arm(waiting, pool);
        int64_t limit = until < end ? until : end;

        if (outcome != SEMLOCK_ARMED) {
            return outcome;
        }
        if (place != NULL && place->before != 0 && place->alarm_at < limit) {
            limit = place->alarm_at;
        }
        outcome = semlock_waiting_sleep(waiting, pool, limit);
        if (outcome == SEMLOCK_LOOK) {
            return outcome;
        }
        if (outcome != SEMLOCK_OK) {
            int64_t now = semlock_now_ns();

            if (outcome == SEMLOCK_TIME && now < until && now < end) {
                continue; /* only the alarm */
            }
            look_again(waiting);
            return now >= until ? SEMLOCK_TIME : -EINTR;
        }
    }
}

int
semlock_waiting_wait(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    return semlock_waiting_once(waiting, pool, until);
}

int
semlock_waiting_take(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool,
                     int64_t until)
{
    return semlock_waiting_take_inside(waiting, lock, pool, until);
}

/* Have a wait of another thread sleep no more.  Python looks at it after each SLICE. */
void
semlock_waiting_stop(semlock_waiting *waiting)
{
    semlock_add32(&waiting->stopped, 1);
}

/* End the wait, with the lock that was acquired or NULL. */
void
semlock_waiting_end(semlock_waiting *waiting, semlock_pool *pool, semlock_lock *won)
{
    if (!waiting->started) {
        return;
    }
    if (won != NULL) {
        won->waited = 1;
    }
    if (waiting->place != NULL) {
        if (won != NULL && waiting->place->out_of_turn) {
            semlock_place_pass_by(waiting->place, pool);
        }
        semlock_place_leave(waiting->place, waiting, won);
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_unwatch(&waiting->watches[i].mark);
    }
    if (waiting->process != -1) {
        semlock_process_close(-1, waiting->process);
        waiting->process = -1;
    }
}

/* Windows has no fork, so there is never a wait of another process. */
void
semlock_waiting_forget(semlock_waiting *waiting)
{
    semlock_waiting_end(waiting, NULL, NULL);
}

void
semlock_waiting_bind(semlock_waiting *waiting, semlock_pool *pool)
{
    (void)waiting;
    (void)pool;
}
