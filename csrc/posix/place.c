/* POSIX: the own place in a queue: joining, following the ticket before, leaving (semlock.h,
 * THE QUEUE). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

#define JOIN_TRIES 100
#define RELAYS 16 /* after so many such messages in a row, a waiter reads the queue */

/* Write the .who file.  It is for people, so an error is ignored. */
void
semlock_place_tell(semlock_place *place)
{
    char name[SEMLOCK_PATH_ROOM];
    char text[SEMLOCK_TICKET_ROOM];
    semlock_queue queue = semlock_queue_of_place(place);
    int32_t length = semlock_place_text(place, text);
    int fd;

    place->ticket.told = 1;
    place->due = place->due || place->before == 0; /* our file changes the queue's mtime */
    if (length == 0 ||
        semlock_ticket_path(name, &queue, place->ticket.number, SEMLOCK_WHO) != 0) {
        return;
    }
    fd = semlock_open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, SEMLOCK_TICKET_MODE);
    if (fd >= 0) {
        semlock_write_all(fd, text, length);
        close(fd);
    }
}

/* Record the ctime of our ticket; it changes when the ticket is passed by. */
void
semlock_ticket_made(semlock_place *place)
{
    struct stat own;

    if (semlock_ticket_ours(&place->ticket, &own)) {
        place->ticket.ctime_ns = SEMLOCK_TIME_OF(&own, c);
    }
}

/* Leave the queue.  The end of the ticket wakes the next waiter, so the name is removed first
 * and the descriptor closed next. */
static void
remove_own(semlock_ticket *ticket, const char *path, int32_t directory_length)
{
    semlock_queue queue = {path, directory_length, ticket->name_hash};
    char name[SEMLOCK_PATH_ROOM];
    char late[SEMLOCK_PATH_ROOM];
    semlock_file file;
    struct stat own;
    int known = semlock_ticket_path(name, &queue, ticket->number, "") == 0 &&
                semlock_ticket_path(late, &queue, ticket->number, SEMLOCK_LATE) == 0;
    int ours = semlock_ticket_ours(ticket, &own);

    if (known) {
        if (ticket->told) {
            semlock_ticket_remove_who(name);
        }
        /* The ticket may have been passed by or removed, and the number may be another
         * ticket's now. */
        if (!ours || (own.st_nlink > 0 && SEMLOCK_TIME_OF(&own, c) != ticket->ctime_ns) ||
            (own.st_nlink > 0 && unlink(name) != 0)) {
            semlock_file_reset(&file);
            file.dev = ticket->dev;
            file.ino = ticket->ino;
            semlock_ticket_remove(name, &file);
            semlock_ticket_remove(late, &file);
        }
        else if (own.st_nlink > 0) {
            semlock_ticket_tell_next(ticket);
        }
    }
    if (ours) {
        semlock_descriptor_close_ours(ticket->handle);
    }
    ticket->handle = -1;
    if (known) {
        semlock_queue_remove(&queue);
    }
}

/* Drop a ticket that no longer exists; its number is kept for the next one. */
static void
lose_ticket(semlock_place *place, semlock_waiting *waiting)
{
    semlock_ticket_unfollow(place, waiting);
    if (place->ticket.handle >= 0) {
        remove_own(&place->ticket, place->path, place->directory_length);
    }
    place->before = 0;
    place->ahead = 0;
}

/* The state of our ticket: SEMLOCK_OK if unchanged, SEMLOCK_LOST if it was removed or our
 * descriptor was lost, SEMLOCK_CHANGED if it may have been renamed. */
static int
own_ticket(const semlock_place *place)
{
    struct stat own;

    if (!semlock_ticket_ours(&place->ticket, &own) || own.st_nlink == 0) {
        return SEMLOCK_LOST;
    }
    return SEMLOCK_TIME_OF(&own, c) == place->ticket.ctime_ns ? SEMLOCK_OK : SEMLOCK_CHANGED;
}

/* Restore the name of our ticket after it was passed by: 1 if it is in the queue again. */
static int
comes_back(semlock_place *place, const semlock_queue *queue)
{
    char name[SEMLOCK_PATH_ROOM];
    char late[SEMLOCK_PATH_ROOM];
    semlock_file file;

    semlock_file_reset(&file);
    file.dev = place->ticket.dev;
    file.ino = place->ticket.ino;
    return own_ticket(place) != SEMLOCK_LOST &&
           semlock_ticket_path(name, queue, place->ticket.number, "") == 0 &&
           semlock_ticket_path(late, queue, place->ticket.number, SEMLOCK_LATE) == 0 &&
           semlock_still_at(late, &file) == 1 && semlock_path_is_free(name) &&
           rename(late, name) == 0;
}

/* Find the nearest living ticket before ours, and follow it; join first if needed. */
static int
find_before(semlock_place *place, semlock_waiting *waiting, semlock_pool *pool)
{
    char name[SEMLOCK_PATH_ROOM];
    semlock_queue queue = semlock_queue_of_place(place);
    uint64_t passed = semlock_passed(pool, place->name_hash ^ place->directory_hash);
    uint64_t bound = place->ticket.number;
    int outcome = 0;
    semlock_file file;
    semlock_survey seen;

    for (int tries = 0; outcome == 0 && tries < JOIN_TRIES; tries++) {
        if (place->ticket.handle < 0) {
            outcome = semlock_place_join(place);
            if (outcome != 0) {
                return outcome;
            }
            bound = place->ticket.number;
        }
        memset(&seen, 0, sizeof seen);
        seen.above = passed;
        seen.below = bound;
        seen.own = place->ticket.number;
        seen.downwards = 1;
        outcome = semlock_survey_read(&queue, &seen);
        if (outcome == -ENOENT || (outcome == 0 && !seen.there)) {
            if (outcome == 0 && comes_back(place, &queue)) {
                semlock_ticket_made(place);
                continue;
            }
            lose_ticket(place, waiting);
            outcome = 0;
            continue;
        }
        if (outcome != 0) {
            return outcome;
        }
        place->ticket.relay = 0;
        if (bound == place->ticket.number) {
            place->ahead = seen.count;
            place->read_at = seen.at;
        }
        for (int32_t i = 0; i < seen.kept; i++) {
            int state = semlock_ticket_path(name, &queue, seen.nearest[i], "") != 0
                            ? SEMLOCK_TICKET_NONE
                            : semlock_ticket_follow(name, place, waiting, &file);

            if (state == SEMLOCK_TICKET_WAITS) {
                place->before = seen.nearest[i];
                return place->bell >= 0 || place->mark >= 0 ? SEMLOCK_ARMED : SEMLOCK_BLIND;
            }
            if (state == SEMLOCK_TICKET_DEAD) {
                semlock_ticket_remove_dead(name,
                                           &file); /* one that cannot be removed is skipped */
            }
            bound = seen.nearest[i];
        }
        if (seen.count <= seen.kept) {
            semlock_ticket_unfollow(place, waiting);
            place->before = 0;
            place->ahead = 0;
            /* One that was passed by may come back before us, and the next. */
            place->ticket.relay = passed == 0 && seen.late == 0;
            semlock_queue_clear_late(&queue, &seen);
            return SEMLOCK_OK;
        }
    }
    return outcome == 0 ? SEMLOCK_CHANGED : outcome;
}

/* When did a ticket join or leave the queue last?  The kernel's timestamps have a resolution
 * of milliseconds, so a change can be missed; that only costs the order of two waiters. */
int64_t
semlock_place_changed_at(const semlock_place *place)
{
    char name[SEMLOCK_PATH_ROOM];
    semlock_queue queue = semlock_queue_of_place(place);
    struct stat now;

    return semlock_queue_path(name, &queue) != 0 || stat(name, &now) != 0
               ? -1
               : SEMLOCK_TIME_OF(&now, m);
}

/* Does this ticket still exist, not passed by? */
int
semlock_place_stands(const semlock_place *place, uint64_t number)
{
    char name[SEMLOCK_PATH_ROOM];
    semlock_queue queue = semlock_queue_of_place(place);

    return semlock_ticket_path(name, &queue, number, "") == 0 && !semlock_path_is_free(name);
}

/* Must the order be kept strictly?  Also if that is not known.  The lock of a reader's own
 * file does not say it. */
int
semlock_waiting_is_fair(const semlock_waiting *waiting)
{
    return waiting->fair || (waiting->locks == NULL &&
                             (waiting->lock == NULL || waiting->lock->turns == SEMLOCK_FAIR));
}

/* The ticket before ours has ended.  Has its owner said that it was the first?  Then we are
 * the first now, and the queue need not be read.  But a waiter that asked earlier than we may
 * have joined later.  So fair waiters read it always, and the others after RELAYS such
 * messages. */
static void
hear_relay(semlock_place *place, semlock_waiting *waiting)
{
    int relay = place->before != 0 && place->bell >= 0 && !semlock_waiting_is_fair(waiting)
                    ? semlock_ticket_told(place->bell)
                    : 0;

    if (relay > 0) {
        semlock_ticket_unfollow(place, waiting);
        place->ticket.relay = relay < RELAYS ? relay + 1 : 0;
        place->before = 0;
        place->ahead = 0;
        place->read_at = 0;
        place->due = 0;
        place->relayed = 1;
    }
}

/* Find the ticket before ours.  SEMLOCK_OK: there is none, or no queue is possible here. */
int
semlock_place_update(semlock_place *place, semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome;

    if (place->refused) {
        return SEMLOCK_OK;
    }
    if (place->ticket.handle >= 0 && place->due) {
        hear_relay(place, waiting);
    }
    if (place->ticket.handle >= 0 && !place->due) {
        /* A ticket is passed by only by a process that acquires the lock, so it is checked
         * after the lock changed hands. */
        outcome = place->before == 0 || place->doubt ? own_ticket(place) : SEMLOCK_OK;
        place->doubt = 0;
        if (outcome == SEMLOCK_LOST) {
            lose_ticket(place, waiting);
        }
        else if (outcome == SEMLOCK_CHANGED) {
            semlock_ticket_made(place); /* find_before() checks its name */
        }
        else {
            return place->before == 0                   ? SEMLOCK_OK
                   : place->bell < 0 && place->mark < 0 ? SEMLOCK_BLIND
                                                        : SEMLOCK_ARMED;
        }
    }
    outcome = find_before(place, waiting, pool);
    place->due = outcome == SEMLOCK_CHANGED;
    if (outcome < 0) {
        semlock_place_leave(place, waiting, NULL);
        place->refused = 1;
        return SEMLOCK_OK;
    }
    return outcome == SEMLOCK_CHANGED ? SEMLOCK_BLIND : outcome;
}

/* Leave the queue, and remove it if it is empty.  After acquiring, the ticket is kept until
 * the release: the waiters behind sleep until it ends, so they need not watch the lock.  A
 * thread that acquires once more what other threads hold by this object keeps none: several
 * may leave at the same moment, and all but one of their tickets would stay until the process
 * ends. */
void
semlock_place_leave(semlock_place *place, semlock_waiting *waiting, semlock_lock *won)
{
    semlock_ticket_unfollow(place, waiting);
    if (place->ticket.handle >= 0) {
        if (won != NULL && won->path == place->path && won->turns != SEMLOCK_NO_TURNS &&
            won->depth == 1 && won->ticket.handle < 0 &&
            !semlock_is_scarce((int)place->ticket.handle)) {
            semlock_ticket_won(&place->ticket);
            won->ticket = place->ticket;
            place->ticket.handle = -1;
        }
        else {
            remove_own(&place->ticket, place->path, place->directory_length);
        }
    }
    place->before = 0;
    place->ahead = 0;
}

/* At the release: end the ticket too. */
void
semlock_ticket_leave(semlock_lock *lock)
{
    if (lock->ticket.handle >= 0) {
        remove_own(&lock->ticket, lock->path, lock->directory_length);
    }
}

/* In a forked child: the ticket belongs to the parent. */
void
semlock_place_forget(semlock_place *place)
{
    /* The copies of the parent's descriptors are closed already. */
    semlock_mark_over(place->mark);
    place->ticket.handle = place->bell = place->mark = -1;
    place->refused = 1;
}
