/* POSIX: how a waiter looks at a lock and has it watched (semlock.h, WAITING). */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/waiting.h"

#define VOUCHED 600000000 /* how often those behind ask whether the holder lives, untold */
#define WATCH_TRIES 8

/* Remove a watch.  This itself may cause an event. */
void
semlock_waiting_unwatch(semlock_waiting *waiting, int64_t *mark)
{
    semlock_events_unwatch(waiting->events, *mark);
    *mark = -1;
    waiting->unread = 1;
}

/* Can the file at the path be skipped without a judgement by the caller?  Yes if its witness
 * is taken and that is proof enough for the lock, or if the caller has judged it already and
 * no event was reported since. */
static int
vouched_for(semlock_watch *watch, const struct stat *seen, semlock_pool *pool)
{
    int judged = watch->judged_ino == (uint64_t)seen->st_ino &&
                 watch->judged_dev == (uint64_t)seen->st_dev &&
                 watch->judged_ctime_ns == SEMLOCK_TIME_OF(seen, c);

    if (!judged && semlock_held_here(pool, (uint64_t)seen->st_ino)) {
        return 0; /* the caller may be about to wait for itself */
    }
    if (watch->kernel != SEMLOCK_BY_FILE) {
        return 1; /* the kernel ends its lock with its holder */
    }
    if ((judged && !watch->told) || !S_ISREG(seen->st_mode)) {
        return judged;
    }
    return watch->vouched != SEMLOCK_BY_CALLER && semlock_witness_at(watch->path) == 1;
}

/* Watch the file at the path: SEMLOCK_ARMED; SEMLOCK_FREE if there is none; or SEMLOCK_CHANGED
 * if it is another file each time.
 *
 * inotify reports an unlink before the name is gone, so for a moment a path still leads to a
 * file whose removal is not reported again. semlock_system_exists() waits for a removal in
 * progress.  If the path leads to the same file (same mark) before and after that call, any
 * later removal begins after the file was watched, and is reported. */
static int
watch_file(semlock_waiting *waiting, semlock_watch *watch)
{
    for (int tries = 0; tries < WATCH_TRIES; tries++) {
        int64_t mark = semlock_events_watch(waiting->events, watch->path, watch->mark);
        int64_t again = mark;

        if (mark == -ENOENT) {
            return SEMLOCK_FREE; /* the old mark is removed when the lock is acquired */
        }
        if (watch->mark < 0 || watch->mark != mark) {
            /* The instance was judged before it was watched, and the death of a holder before
             * that was not reported. */
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

/* The same for a file that stays, where the kernel's lock is what ends.  It is watched before
 * the kernel is asked, so a release that the answer does not show yet is reported. */
static void
watch_locked(semlock_waiting *waiting, semlock_watch *watch)
{
    int64_t mark = semlock_events_watch_locked(waiting->events, watch->path, watch->lent - 1);

    if (watch->mark >= 0 && watch->mark != mark) {
        semlock_waiting_unwatch(waiting, &watch->mark);
    }
    watch->mark = mark < 0 ? -1 : mark; /* without events it is looked at by the clock */
}

/* Look again at what is unsure after this time, unless rechecks are going on already. */
void
semlock_waiting_recheck_in(semlock_waiting *waiting, int64_t nanoseconds)
{
    if (waiting->recheck == 0) {
        waiting->recheck = nanoseconds;
        waiting->recheck_at = semlock_now_ns() + nanoseconds;
    }
}

/* The effect of one event is visible: stop the rechecks if no other is unsure. */
void
semlock_waiting_has_shown(semlock_waiting *waiting)
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

/* Nothing can be seen at the path.  A try makes a file for the kernel to lock, or says why
 * that is impossible. */
static int
no_file(const semlock_watch *watch)
{
    return errno == ENOENT || watch->kernel != SEMLOCK_BY_FILE ? SEMLOCK_FREE : SEMLOCK_LOOK;
}

/* Close the name of before: what is at the path now has another one, also the same file. */
static void
let_name_go(semlock_watch *watch)
{
    if (watch->kernel == SEMLOCK_BY_FILE) {
        semlock_kernel_asked(watch);
    }
}

int
semlock_waiting_look(semlock_waiting *waiting, semlock_watch *watch, semlock_pool *pool)
{
    struct stat seen;
    int same, fresh, watched = SEMLOCK_ARMED;

    if (waiting->events >= 0 && watch->kernel != SEMLOCK_BY_FILE) {
        watch_locked(waiting, watch);
    }
    else if (waiting->events >= 0 && (!waiting->hints || watch->mark < 0 || watch->heard)) {
        watched = watch_file(waiting, watch);
        if (watched == SEMLOCK_FREE) {
            return SEMLOCK_FREE;
        }
    }
    if (semlock_kernel_stat(watch, &seen) != 0) {
        return no_file(watch);
    }
    same = watch->ino == (uint64_t)seen.st_ino && watch->dev == (uint64_t)seen.st_dev;
    watch->ino = (uint64_t)seen.st_ino;
    watch->dev = (uint64_t)seen.st_dev;
    if (watch->heard) {
        semlock_waiting_by_turns(waiting); /* another process was faster */
        let_name_go(watch);
    }
    watch->heard = waiting->hints && !same; /* to be watched at the next look */
    if (!vouched_for(watch, &seen, pool)) {
        watch->told = 0; /* skip it once the caller has judged it */
        return SEMLOCK_LOOK;
    }
    if (watch->kernel != SEMLOCK_BY_FILE && semlock_kernel_ask(watch, &seen)) {
        return SEMLOCK_FREE;
    }
    fresh = watch->unsure;
    watch->unsure =
        watched == SEMLOCK_CHANGED || (watch->told && same && waiting->recheck != 0);
    if (watch->unsure) {
        semlock_waiting_recheck_in(waiting, FIRST_RECHECK);
    }
    else {
        semlock_waiting_has_shown(waiting);
        if (fresh) {
            watch->unsure = 1;
            semlock_waiting_recheck_in(waiting, LAST_RECHECK);
        }
    }
    watch->due = watch->told = 0;
    return SEMLOCK_ARMED;
}

/* Before joining a queue, check that the holder lives and is not the caller. */
int
semlock_waiting_look_first(semlock_waiting *waiting, semlock_pool *pool)
{
    struct stat seen;

    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_watch *watch = &waiting->watches[i];

        if (semlock_kernel_stat(watch, &seen) == 0 && !vouched_for(watch, &seen, pool)) {
            waiting->which = i;
            return SEMLOCK_LOOK;
        }
    }
    waiting->looked = 1;
    return SEMLOCK_OK;
}

/* Check a lock while other waiters are first.  A file that is watched already is not watched
 * again without an event. */
int
semlock_waiting_look_past(semlock_waiting *waiting, semlock_watch *watch, semlock_pool *pool)
{
    int64_t now = semlock_now_ns();
    struct stat seen;
    int same;

    if (semlock_kernel_stat(watch, &seen) != 0) {
        waiting->place->doubt = 1;
        return no_file(watch);
    }
    same = watch->ino == (uint64_t)seen.st_ino && watch->dev == (uint64_t)seen.st_dev;
    waiting->place->doubt = waiting->place->doubt || !same;
    if (waiting->events >= 0 && watch->kernel != SEMLOCK_BY_FILE) {
        watch_locked(waiting, watch);
    }
    else if (waiting->events >= 0 && (watch->mark < 0 || watch->heard || !same)) {
        if (watch_file(waiting, watch) == SEMLOCK_FREE) {
            return SEMLOCK_FREE;
        }
        watch->unsure = 0;
        if (lstat(watch->path, &seen) != 0) {
            return errno == ENOENT ? SEMLOCK_FREE : SEMLOCK_LOOK;
        }
    }
    watch->ino = (uint64_t)seen.st_ino;
    watch->dev = (uint64_t)seen.st_dev;
    watch->due = 1; /* when it is our turn */
    watch->heard = 0;
    if (watch->kernel != SEMLOCK_BY_FILE && semlock_kernel_ask(watch, &seen)) {
        waiting->place->doubt = 1;
        return SEMLOCK_FREE;
    }
    if ((watch->mark < 0 || waiting->hints) && !same) {
        watch->vouched_until = now + VOUCHED; /* a new instance */
    }
    if ((watch->mark < 0 || waiting->hints) && now < watch->vouched_until) {
        return SEMLOCK_ARMED;
    }
    if (!vouched_for(watch, &seen, pool)) {
        watch->told = 0;
        return SEMLOCK_LOOK;
    }
    watch->told = 0;
    watch->vouched_until = now + VOUCHED;
    return SEMLOCK_ARMED;
}

/* Hold the name of the watched file. */
static void
hold_name(const semlock_waiting *waiting, semlock_watch *watch)
{
    struct stat seen;
    int fd;

    if (watch->mark < 0 || waiting->hints || watch->kernel != SEMLOCK_BY_FILE ||
        watch->ask.handle >= 0) {
        return;
    }
    fd = semlock_events_hold(watch->path);
    if (fd < 0) {
        return;
    }
    if (semlock_is_scarce(fd) || fstat(fd, &seen) != 0 ||
        semlock_descriptor_keep(fd, (uint64_t)seen.st_dev, (uint64_t)seen.st_ino) != 0) {
        close(fd);
        return;
    }
    watch->ask.handle = fd;
    watch->ask.dev = (uint64_t)seen.st_dev;
    watch->ask.ino = (uint64_t)seen.st_ino;
}

/* The same for all locks of a wait that is the next to try.  An event loop has too many waits
 * for a descriptor each, and what it does after a wake takes longer. */
void
semlock_waiting_hold_names(semlock_waiting *waiting)
{
    if (waiting->lent || !semlock_is_prepared(waiting->lock) ||
        waiting->count > SEMLOCK_PREPARED) {
        return;
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        hold_name(waiting, &waiting->watches[i]);
    }
}

void
semlock_waiting_unwatch_all(semlock_waiting *waiting)
{
    for (int32_t i = 0; i < waiting->count; i++) {
        if (waiting->watches[i].mark >= 0) {
            semlock_waiting_unwatch(waiting, &waiting->watches[i].mark);
            waiting->watches[i].due = 1;
        }
    }
}
