/* POSIX: waiting for a lock to change hands, told in semlock.h under WAITING. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "semlock.h"

#define FIRST_RECHECK 50000    /* nanoseconds */
#define LAST_RECHECK 30000000  /* longer than a kernel needs to end what it has told of */
#define LATER_CHECK 1000000000 /* how often those behind the second of a queue see to it */
#define ALONE 100000000        /* so long a wait is worth no place in a queue */
#define MARKS 64
#define WATCH_TRIES 8
#define RACES 16

#if defined(__APPLE__)
#define CTIME(s) ((s)->st_ctimespec)
#else
#define CTIME(s) ((s)->st_ctim)
#endif

/* Watch a file no longer.  An event source may have something to say even to that. */
void
semlock_waiting_unwatch(semlock_waiting *waiting, int64_t *mark)
{
    semlock_events_unwatch(waiting->events, *mark);
    *mark = -1;
    waiting->unread = 1;
}

/* Begin a wait whose places and paths are filled in. */
int
semlock_waiting_start(semlock_waiting *waiting, semlock_pool *pool)
{
    char directory[SEMLOCK_PATH_ROOM];
    const char *path =
        waiting->place != NULL ? waiting->place->path : waiting->watches[0].path;
    size_t length = strlen(path);

    waiting->started = 1;
    waiting->queued = -1;
    if (waiting->place != NULL) {
        waiting->place->ticket.handle = waiting->place->mark = -1;
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        waiting->watches[i].mark = -1;
        waiting->watches[i].due = 1;
    }
    waiting->process = -1;
    while (length > 1 && path[length - 1] != '/') {
        length--;
    }
    if (semlock_join(directory, path, (int32_t)length, "") != 0 ||
        !semlock_system_hears(directory)) {
        waiting->blind = 1;
        waiting->lent = 0;
        waiting->events = -1;
        if (waiting->place != NULL) {
            waiting->place->refused = 1;
        }
    }
    else if (!waiting->lent) {
        waiting->events = semlock_events_take(pool);
    }
    if (waiting->events < 0) {
        waiting->blind = 1;
    }
    return waiting->blind ? SEMLOCK_BLIND : SEMLOCK_OK;
}

static int
looks_free(const char *path)
{
    struct stat seen;

    return lstat(path, &seen) != 0 && errno == ENOENT;
}

/* Need nobody judge what is at the path?  Not if its holder vouches for itself by its witness,
 * nor if the caller has judged it already and nothing was told of it since. */
static int
vouched_for(semlock_watch *watch, const struct stat *seen, semlock_pool *pool)
{
    int judged = watch->judged_ino == (uint64_t)seen->st_ino &&
                 watch->judged_dev == (uint64_t)seen->st_dev &&
                 watch->judged_ctime_ns ==
                     (int64_t)CTIME(seen).tv_sec * 1000000000 + CTIME(seen).tv_nsec;
    int fd, taken;

    if (!judged && semlock_held_here(pool, (uint64_t)seen->st_ino)) {
        return 0; /* the caller may be about to wait for itself */
    }
    if ((judged && !watch->told) || !S_ISREG(seen->st_mode)) {
        return judged;
    }
    fd = open(watch->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return 0;
    }
    taken = semlock_system_witness(fd);
    close(fd);
    return taken == 1;
}

/* Have the file at the path watched: SEMLOCK_ARMED; SEMLOCK_FREE when there is none; or
 * SEMLOCK_CHANGED if it is another one each time.
 *
 * The kernel tells of an unlink before it forgets the name, so for a moment a path still leads
 * to a file of whose removal there will be no more news.  semlock_system_exists() waits for
 * such a removal to end.  If the path leads to the same file (has the same mark) before and
 * after that, then whatever takes it away begins after it was watched, and is told. */
static int
watch_file(semlock_waiting *waiting, semlock_watch *watch)
{
    for (int tries = 0; tries < WATCH_TRIES; tries++) {
        int64_t mark = semlock_events_watch(waiting->events, watch->path, watch->mark);
        int64_t again = mark;

        if (mark == -ENOENT) {
            return SEMLOCK_FREE; /* what was watched is seen to when the lock is taken */
        }
        if (watch->mark < 0 || watch->mark != mark) {
            /* What was judged was not watched then, and whoever died before being watched
             * is told of to nobody. */
            watch->unsure = 1;
            watch->judged_ino = 0;
        }
        if (watch->mark >= 0 && watch->mark != mark) {
            semlock_waiting_unwatch(waiting, &watch->mark);
        }
        watch->mark = mark < 0 ? -1 : mark;
        if (mark >= 0) {
            if (!semlock_system_exists(watch->path)) {
                return SEMLOCK_FREE;
            }
            again = semlock_events_watch(waiting->events, watch->path, mark);
        }
        if (again == -ENOENT) {
            return SEMLOCK_FREE;
        }
        if (again >= 0 && again != mark) {
            semlock_waiting_unwatch(waiting, &again);
            continue;
        }
        if (mark < 0 || again < 0) {
            waiting->blind = 1;
        }
        return SEMLOCK_ARMED;
    }
    return SEMLOCK_CHANGED;
}

/* Look again at what is unsure, unless that is going on: first after so many nanoseconds. */
static void
recheck_in(semlock_waiting *waiting, int64_t nanoseconds)
{
    if (waiting->recheck == 0) {
        waiting->recheck = nanoseconds;
        waiting->recheck_at = semlock_now_ns() + nanoseconds;
    }
}

/* What was told of one file or ticket has shown: no need to look for it again. */
static void
has_shown(semlock_waiting *waiting)
{
    for (int32_t i = 0; i < waiting->count; i++) {
        if (waiting->watches[i].unsure) {
            return;
        }
    }
    if (waiting->place == NULL || !waiting->place->unsure) {
        waiting->recheck = 0;
    }
}

/* From now on the wait goes by turns. */
static void
goes_by_turns(semlock_waiting *waiting)
{
    if (waiting->place != NULL) {
        waiting->place->alone_until = 0;
    }
}

static int
look(semlock_waiting *waiting, semlock_watch *watch, semlock_pool *pool)
{
    struct stat seen;
    int same, fresh, watched = SEMLOCK_ARMED;

    if (waiting->events >= 0) {
        watched = watch_file(waiting, watch);
        if (watched == SEMLOCK_FREE) {
            return SEMLOCK_FREE;
        }
    }
    if (lstat(watch->path, &seen) != 0) {
        return errno == ENOENT ? SEMLOCK_FREE : SEMLOCK_LOOK;
    }
    same = watch->ino == (uint64_t)seen.st_ino && watch->dev == (uint64_t)seen.st_dev;
    watch->ino = (uint64_t)seen.st_ino;
    watch->dev = (uint64_t)seen.st_dev;
    if (watch->heard) {
        goes_by_turns(waiting); /* somebody else was faster, as it seems */
    }
    watch->heard = 0;
    if (!vouched_for(watch, &seen, pool)) {
        watch->told = 0; /* once judged by the caller, it is to be let be */
        return SEMLOCK_LOOK;
    }
    fresh = watch->unsure;
    watch->unsure =
        watched == SEMLOCK_CHANGED || (watch->told && same && waiting->recheck != 0);
    if (watch->unsure) {
        recheck_in(waiting, FIRST_RECHECK);
    }
    else {
        has_shown(waiting);
        if (fresh) {
            watch->unsure = 1;
            recheck_in(waiting, LAST_RECHECK);
        }
    }
    watch->due = watch->told = 0;
    return SEMLOCK_ARMED;
}

/* Make sure, before standing in a queue, that the lock's holder lives and is not the caller.
 */
static int
look_first(semlock_waiting *waiting, semlock_pool *pool)
{
    struct stat seen;

    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_watch *watch = &waiting->watches[i];

        if (lstat(watch->path, &seen) == 0 && !vouched_for(watch, &seen, pool)) {
            waiting->which = i;
            return SEMLOCK_LOOK;
        }
    }
    waiting->looked = 1;
    return SEMLOCK_OK;
}

static int
stand_in_queue(semlock_waiting *waiting)
{
    semlock_place *place = waiting->place;
    uint64_t before = place->before;
    int told = place->told;
    int asked = place->due || place->ticket.handle < 0;
    int outcome = semlock_place_update(place, waiting);

    place->told = 0;
    if (asked) {
        place->unsure = told && outcome != SEMLOCK_OK && before == place->before;
        if (place->unsure) {
            recheck_in(waiting, FIRST_RECHECK);
        }
        else {
            has_shown(waiting);
        }
    }
    if (outcome == SEMLOCK_OK) {
        return outcome;
    }
    if (asked) {
        int free = 0;

        for (int32_t i = 0; i < waiting->count && !free; i++) {
            free = (waiting->queued < 0 || waiting->queued == i) &&
                   looks_free(waiting->watches[i].path);
        }
        semlock_place_overtake(place, free);
    }
    return outcome;
}

static void
unwatch_all(semlock_waiting *waiting)
{
    for (int32_t i = 0; i < waiting->count; i++) {
        if (waiting->watches[i].mark >= 0) {
            semlock_waiting_unwatch(waiting, &waiting->watches[i].mark);
            waiting->watches[i].due = 1;
        }
    }
}

static int
arm(semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome, behind = SEMLOCK_OK;

    if (waiting->place != NULL && waiting->place->alone_until == 0) {
        if (!waiting->looked) {
            outcome = look_first(waiting, pool);
            if (outcome != SEMLOCK_OK) {
                return outcome;
            }
        }
        behind = stand_in_queue(waiting);
        if (behind != SEMLOCK_OK && waiting->queued < 0) {
            unwatch_all(waiting); /* only the first is to hear of the lock */
            return behind;
        }
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        if (waiting->watches[i].due && (behind == SEMLOCK_OK || i != waiting->queued)) {
            outcome = look(waiting, &waiting->watches[i], pool);
            if (outcome != SEMLOCK_ARMED) {
                waiting->which = i;
                return outcome;
            }
        }
    }
    waiting->looked = 1;
    return waiting->blind || behind == SEMLOCK_BLIND ? SEMLOCK_BLIND : SEMLOCK_ARMED;
}

/* See to it that an event will come when something changes; or say that it has changed. */
int
semlock_waiting_arm(semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome;

    semlock_enter(pool);
    outcome = arm(waiting, pool);
    semlock_leave(pool);
    return outcome;
}

/* Everything must be looked at again. */
void
semlock_waiting_due(semlock_waiting *waiting)
{
    if (waiting->place != NULL) {
        waiting->place->due = 1;
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        waiting->watches[i].due = 1;
    }
}

/* Take in what an event source has told: how many of these marks are of this wait. */
int
semlock_waiting_told(semlock_waiting *waiting, const int64_t *marks, int32_t count)
{
    int hits = 0;

    for (int32_t k = 0; k < count; k++) {
        int64_t mark = marks[k];

        if (waiting->place != NULL && (waiting->place->mark == mark || mark < 0)) {
            waiting->place->due = waiting->place->told = 1;
            hits++;
        }
        for (int32_t i = 0; i < waiting->count; i++) {
            semlock_watch *watch = &waiting->watches[i];

            if (watch->mark >= 0 && (watch->mark == mark || mark < 0)) {
                watch->due = watch->told = watch->heard = 1;
                hits++;
            }
        }
    }
    if (hits > 0) {
        /* The kernel tells of a removal before the name is gone, and of a death before the
         * dead one's locks are: what looks unchanged now is looked at again very soon. */
        waiting->recheck = 0;
        recheck_in(waiting, FIRST_RECHECK);
    }
    return hits;
}

/* Something that was told of has not shown yet: look again, less and less soon. */
static void
check_again(semlock_waiting *waiting)
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
            watch->unsure = !last; /* after the last one it is to be let be */
        }
    }
}

static int
sleep_with(semlock_waiting *waiting, int64_t until, const sigset_t *signals)
{
    int64_t marks[MARKS];
    int32_t count;
    int outcome = semlock_events_wait(waiting->lent ? -1 : waiting->events, waiting->process,
                                      until, signals, marks, MARKS, &count);

    if (outcome == SEMLOCK_GONE) {
        /* The holder has ended; look what it left. */
        semlock_process_close(waiting->events, waiting->process);
        waiting->process = -1;
        waiting->which = waiting->followed;
        semlock_waiting_due(waiting);
        waiting->recheck = 0;
        recheck_in(waiting, FIRST_RECHECK);
        return SEMLOCK_LOOK;
    }
    semlock_waiting_told(waiting, marks, count);
    return outcome;
}

/* Sleep until something is told, or until a time: SEMLOCK_OK, SEMLOCK_TIME or -EINTR. */
int
semlock_waiting_sleep(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    (void)pool;
    return sleep_with(waiting, until, NULL);
}

/* Wait in one call, until there is something to do (SEMLOCK_FREE: try; SEMLOCK_LOOK: judge),
 * no event can help any more (SEMLOCK_BLIND), or the time is over (SEMLOCK_TIME). */
static int
wait_with(semlock_waiting *waiting, semlock_pool *pool, int64_t until, const sigset_t *signals)
{
    for (;;) {
        int outcome = semlock_waiting_arm(waiting, pool);
        int64_t limit = until;
        int64_t now;

        if (outcome != SEMLOCK_ARMED) {
            return outcome;
        }
        now = semlock_now_ns();
        if (now >= until && (waiting->recheck == 0 || waiting->recheck_at > now)) {
            return SEMLOCK_TIME; /* however much there is to hear */
        }
        if (waiting->place != NULL && waiting->place->alone_until != 0 &&
            waiting->place->alone_until < limit) {
            limit = waiting->place->alone_until;
        }
        if (waiting->place != NULL && waiting->place->before != 0) {
            int64_t check =
                now + (waiting->place->ahead == 1 ? SEMLOCK_NEXT_CHECK_NS : LATER_CHECK);

            limit = check < limit ? check : limit;
        }
        if (waiting->recheck != 0 && waiting->recheck_at < limit) {
            limit = waiting->recheck_at;
        }
        outcome = sleep_with(waiting, limit, signals);
        if (outcome == SEMLOCK_TIME) {
            if (limit == until) {
                return outcome;
            }
            if (waiting->recheck != 0 && limit == waiting->recheck_at) {
                check_again(waiting);
            }
            else if (waiting->place->alone_until != 0) {
                goes_by_turns(waiting);
            }
            else {
                waiting->place->due = 1;
            }
        }
        else if (outcome != SEMLOCK_OK) {
            return outcome;
        }
    }
}

/* Signals are let through only while it sleeps, all at once with falling asleep: one that came
 * between the last look and the sleep would else not end it. */
int
semlock_waiting_wait(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    sigset_t all, before;
    int outcome;

    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) != 0) {
        return wait_with(waiting, pool, until, NULL);
    }
    outcome = wait_with(waiting, pool, until, &before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return outcome;
}

/* Wait, and try as soon as it makes sense.  What the wait says (SEMLOCK_LOOK, _BLIND, _TIME)
 * or what the try says: SEMLOCK_OK ends the wait too.  SEMLOCK_HELD: others were faster so
 * often that a pause will do good. */
int
semlock_waiting_take(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool,
                     int64_t until)
{
    if (!waiting->began && waiting->place != NULL && semlock_may_wait_alone(lock, pool)) {
        waiting->place->alone_until = semlock_now_ns() + ALONE;
    }
    waiting->began = 1;
    for (int races = 0; races < RACES; races++) {
        int outcome = semlock_waiting_wait(waiting, pool, until);

        if (outcome != SEMLOCK_FREE) {
            return outcome;
        }
        outcome = semlock_try_free(lock, pool);
        if (outcome == SEMLOCK_OK) {
            semlock_waiting_end(waiting, pool, lock);
        }
        if (outcome != SEMLOCK_HELD && outcome != SEMLOCK_LOOK) {
            return outcome;
        }
        goes_by_turns(waiting);
        semlock_contended_now(pool, lock);
    }
    return SEMLOCK_HELD;
}

/* Hear of the end of the holder's process too: for holders whose files don't tell of it. */
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
        /* It ended before it could be followed: what was judged is so no more. */
        waiting->watches[waiting->which].judged_ino = 0;
        return SEMLOCK_LOOK;
    }
    return SEMLOCK_OK;
}

/* Give up the place in the queue, and go on waiting. */
void
semlock_waiting_leave(semlock_waiting *waiting, semlock_pool *pool)
{
    if (waiting->place != NULL) {
        semlock_enter(pool);
        semlock_place_leave(waiting->place, waiting, NULL);
        semlock_leave(pool);
    }
    waiting->place = NULL;
    waiting->queued = -1;
}

/* May the caller try now, without passing by those who came before? */
int
semlock_waiting_in_turn(const semlock_waiting *waiting, int fair)
{
    const semlock_place *place = waiting->place;

    if (place == NULL || place->refused ||
        (waiting->queued >= 0 && waiting->queued != waiting->which)) {
        return 1;
    }
    return place->ticket.handle >= 0 ? place->before == 0 : !fair;
}

/* The wait is over, however it ended: with a lock that was won, or without one. */
void
semlock_waiting_end(semlock_waiting *waiting, semlock_pool *pool, semlock_lock *won)
{
    int64_t events = waiting->lent ? -1 : waiting->events;
    int64_t mark = -1;

    if (!waiting->started) {
        return;
    }
    semlock_enter(pool);
    if (waiting->place != NULL) {
        semlock_place_leave(waiting->place, waiting, won);
    }
    if (won != NULL) {
        won->waited = 1;
        if (events >= 0 && waiting->count == 1) {
            mark = waiting->watches[0].mark; /* semlock_release() sees to it */
            waiting->watches[0].mark = -1;
        }
    }
    unwatch_all(waiting);
    if (waiting->process >= 0) {
        semlock_process_close(waiting->events, waiting->process);
        waiting->process = -1;
    }
    semlock_leave(pool);
    waiting->events = -1;
    if (events >= 0) {
        if (mark < 0 && waiting->unread) {
            semlock_events_silence(events, -1);
        }
        semlock_events_keep(pool, events, mark);
    }
}

/* After a fork the child waits for nothing.  Its copies must not keep the parent's place. */
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
    waiting->blind = 1;
    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_mark_over(waiting->watches[i].mark);
        waiting->watches[i].mark = -1;
    }
}
