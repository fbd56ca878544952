/* POSIX: the event sources of a process.  Closing one that has watched something takes the
 * kernel milliseconds, so a few are kept for the next wait. */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <unistd.h>

#include "semlock.h"

#define ROOM 16 /* for marks that nobody reads */

/* Is this descriptor one of the last that the process may have?  Waiting gets along without
 * any, and the program may not. */
int
semlock_is_scarce(int fd)
{
    struct rlimit limit;

    return fd >= SEMLOCK_RESERVED_HANDLES && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
           (rlim_t)fd + SEMLOCK_RESERVED_HANDLES >= limit.rlim_cur;
}

/* Have an event source watch nothing, and tell nothing: that would wake its next user. */
void
semlock_events_silence(int64_t events, int64_t mark)
{
    int64_t marks[ROOM];

    if (mark >= 0) {
        semlock_events_unwatch(events, mark);
    }
    while (semlock_events_read(events, marks, ROOM) != 0) {
    }
}

/* Have this one of the kept event sources for oneself: its handle, or -1. */
static int64_t
take_idle(semlock_pool *pool, int i)
{
    int64_t kept = semlock_load64(&pool->idle_events[i]);
    int64_t mark;

    if (kept <= 0 || !semlock_swap_if64(&pool->idle_events[i], kept, -1)) {
        return -1;
    }
    mark = pool->idle_marks[i] - 1;
    if (mark >= 0) {
        semlock_events_silence(kept - 1, mark);
        semlock_store64(&pool->idle_marks[i], 0);
    }
    return kept - 1;
}

/* An event source, used before or new; -1 if there is none to be had. */
int64_t
semlock_events_take(semlock_pool *pool)
{
    int64_t events = -1;

    semlock_enter(pool);
    for (int i = 0; i < SEMLOCK_IDLE_EVENTS && events < 0; i++) {
        events = take_idle(pool, i);
        if (events >= 0) {
            semlock_store64(&pool->idle_events[i], 0);
        }
    }
    if (events < 0) {
        events = semlock_events_open();
        if (events >= 0 && semlock_is_scarce((int)events)) {
            close((int)events);
            events = -1;
        }
    }
    semlock_leave(pool);
    return events < 0 ? -1 : events;
}

/* Give an event source back, with nothing left to tell but of the mark. */
void
semlock_events_keep(semlock_pool *pool, int64_t events, int64_t mark)
{
    semlock_enter(pool);
    for (int i = 0; i < SEMLOCK_IDLE_EVENTS; i++) {
        if (semlock_swap_if64(&pool->idle_events[i], 0, -1)) {
            semlock_store64(&pool->idle_marks[i], mark + 1);
            semlock_store64(&pool->idle_events[i], events + 1);
            semlock_leave(pool);
            return;
        }
    }
    if (mark >= 0) {
        semlock_events_unwatch(events, mark);
    }
    close((int)events);
    semlock_leave(pool);
}

void
semlock_events_give(semlock_pool *pool, int64_t events)
{
    if (events >= 0) {
        semlock_events_keep(pool, events, -1);
    }
}

/* See to it that what is kept watches nothing.  That is put off from the moment in which a
 * waiter gets its lock to the one in which it lets go, when nobody waits for it. */
void
semlock_events_tidy(semlock_pool *pool)
{
    for (int i = 0; i < SEMLOCK_IDLE_EVENTS; i++) {
        if (semlock_load64(&pool->idle_marks[i]) != 0) {
            int64_t events = take_idle(pool, i);

            if (events >= 0) {
                semlock_store64(&pool->idle_events[i], events + 1);
            }
        }
    }
}

/* After a fork: what is kept is the parent's. */
void
semlock_events_forget_kept(semlock_pool *pool)
{
    for (int i = 0; i < SEMLOCK_IDLE_EVENTS; i++) {
        if (pool->idle_events[i] > 0) {
            semlock_events_forget(pool->idle_events[i] - 1);
            semlock_mark_over(pool->idle_marks[i] - 1);
        }
        pool->idle_events[i] = pool->idle_marks[i] = 0;
    }
}
