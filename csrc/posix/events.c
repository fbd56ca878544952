/* POSIX: the event sources of a process.  Closing one that has watched a file takes the kernel
 * up to 20 milliseconds, so a few are kept for the next wait.  If a crowd of threads waits for
 * a lock, there are more: those of the winners are closed when the lock is released. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "posix/system.h"

#define ROOM 16 /* for marks that are discarded */

/* Is this descriptor one of the last that the process may open?  Waiting works without one;
 * the program may not. */
int
semlock_is_scarce(int fd)
{
    struct rlimit limit;

    return fd >= SEMLOCK_RESERVED_HANDLES && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
           (rlim_t)fd + SEMLOCK_RESERVED_HANDLES >= limit.rlim_cur;
}

/* Remove the mark from an event source and discard its events: they would wake its next user.
 */
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

/* Close the descriptor that was kept with an event source. */
static void
close_name(semlock_pool *pool, int i)
{
    semlock_descriptor_close_kept(pool->idle_names[i] - 1);
    semlock_store64(&pool->idle_names[i], 0);
}

/* Take this idle event source for exclusive use: its handle, or -1. */
static int64_t
take_idle(semlock_pool *pool, int i)
{
    int64_t kept = semlock_load64(&pool->idle_events[i]);
    int64_t mark;

    if (kept <= 0 || !semlock_swap_if64(&pool->idle_events[i], kept, -1)) {
        return -1;
    }
    if (!semlock_events_ours(kept - 1)) {
        /* The program has closed it.  Another file that has its number now is not touched. */
        semlock_descriptor_close_signed(kept - 1);
        close_name(pool, i);
        semlock_store64(&pool->idle_marks[i], 0);
        semlock_store64(&pool->idle_events[i], 0);
        return -1;
    }
    mark = pool->idle_marks[i] - 1;
    if (mark >= 0) {
        semlock_events_silence(kept - 1, mark);
        semlock_store64(&pool->idle_marks[i], 0);
    }
    close_name(pool, i);
    return kept - 1;
}

/* An event source, reused or new; -1 if none is available. */
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
            semlock_descriptor_close_signed(events);
            events = -1;
        }
    }
    semlock_leave(pool);
    return events < 0 ? -1 : events;
}

/* Keep an event source for reuse.  It may still watch this one mark, and with the mark a
 * descriptor is kept open.  If there are enough, it is closed: that of a wait that has won not
 * before the next release, because its lock is held during the close. */
void
semlock_events_keep(semlock_pool *pool, int64_t events, int64_t mark, int64_t name, int won)
{
    semlock_enter(pool);
    for (int i = 0; i < SEMLOCK_IDLE_EVENTS; i++) {
        if (semlock_swap_if64(&pool->idle_events[i], 0, -1)) {
            semlock_store64(&pool->idle_marks[i], mark + 1);
            semlock_store64(&pool->idle_names[i], name + 1);
            semlock_store64(&pool->idle_events[i], events + 1);
            semlock_leave(pool);
            return;
        }
    }
    if (mark >= 0) {
        semlock_events_unwatch(events, mark);
    }
    semlock_descriptor_close_kept(name);
    for (int i = 0; won && i < SEMLOCK_WON_EVENTS; i++) {
        if (semlock_swap_if64(&pool->won_events[i], 0, events + 1)) {
            semlock_leave(pool);
            return;
        }
    }
    semlock_descriptor_close_signed(events);
    semlock_leave(pool);
}

/* Return an event source.  Pending events are discarded: they would wake its next user. */
void
semlock_events_give(semlock_pool *pool, int64_t events)
{
    if (semlock_events_ours(events)) {
        semlock_events_silence(events, -1);
        semlock_events_keep(pool, events, -1, -1, 0);
    }
}

/* Take an event source into this place, and give it back, in one call each: an exception
 * between two bytecodes loses none, and gives none back twice. */
void
semlock_folders_begin(int64_t *events, semlock_pool *pool)
{
    *events = semlock_events_take(pool);
}

void
semlock_folders_end(int64_t *events, semlock_pool *pool)
{
    int64_t given = *events;

    *events = -1;
    if (given >= 0) {
        semlock_events_give(pool, given);
    }
}

/* Remove the marks of idle event sources, and close what is left of winners.  A waiter that
 * wins leaves this to its release: at that time no waiter is delayed by it. */
void
semlock_events_tidy(semlock_pool *pool)
{
    for (int i = 0; i < SEMLOCK_WON_EVENTS; i++) {
        int64_t kept = semlock_load64(&pool->won_events[i]);

        if (kept != 0 && semlock_swap_if64(&pool->won_events[i], kept, 0)) {
            semlock_descriptor_close_signed(kept - 1);
        }
    }
    for (int i = 0; i < SEMLOCK_IDLE_EVENTS; i++) {
        if (semlock_load64(&pool->idle_marks[i]) != 0) {
            int64_t events = take_idle(pool, i);

            if (events >= 0) {
                semlock_store64(&pool->idle_events[i], events + 1);
            }
        }
    }
}

/* In a forked child: the idle event sources belong to the parent. */
void
semlock_events_forget_kept(semlock_pool *pool)
{
    for (int i = 0; i < SEMLOCK_IDLE_EVENTS; i++) {
        if (pool->idle_events[i] > 0) {
            semlock_events_forget(pool->idle_events[i] - 1);
            semlock_mark_over(pool->idle_marks[i] - 1);
        }
        pool->idle_events[i] = pool->idle_marks[i] = pool->idle_names[i] = 0;
    }
    memset(pool->won_events, 0, sizeof pool->won_events);
}
