/* POSIX: the queue of the waiters for a lock (semlock.h, THE QUEUE).  What a ticket is, and
 * how its end is reported, is in linux/tickets.c and kqueue/tickets.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

#define TICKET_DIGITS 16
#define WHO ".who"   /* suffix of the file that shows people the ticket's owner */
#define LATE ".late" /* suffix of a ticket that was passed by */
#define ASKED_LATE 4 /* of so many of these the owners are checked */
#define JOIN_TRIES 100
#define NEAREST 32

static int
queue_path(char *room, const char *path, int32_t directory_length, uint64_t name_hash)
{
    char name[48];

    snprintf(name, sizeof name, ".semlock-%016llx.queue", (unsigned long long)name_hash);
    return semlock_join(room, path, directory_length, name);
}

/* The path of a ticket in a queue. */
static int
ticket_path(char *room, const char *queue, uint64_t number)
{
    char name[TICKET_DIGITS + 1];

    snprintf(name, sizeof name, "%016llx", (unsigned long long)number);
    return semlock_join(room, queue, (int32_t)strlen(queue), name);
}

/* The path of the same ticket after it was passed by: 0, or an error. */
static int
late_path(char *room, const char *ticket)
{
    int length = snprintf(room, SEMLOCK_PATH_ROOM, "%s" LATE, ticket);

    return length < SEMLOCK_PATH_ROOM ? 0 : -ENAMETOOLONG;
}

/* Does the lock have a queue?  A queue that cannot be seen prevents no try. */
int
semlock_queue_exists(const semlock_lock *lock)
{
    char queue[SEMLOCK_PATH_ROOM];

    return queue_path(queue, lock->path, lock->directory_length, lock->name_hash) == 0 &&
           access(queue, F_OK) == 0;
}

int
semlock_path_is_free(const char *path)
{
    struct stat seen;

    return lstat(path, &seen) != 0 && errno == ENOENT;
}

/* Is this directory empty? */
static int
is_empty(int fd)
{
    semlock_names names;
    const char *name;
    int empty = 1;

    semlock_names_start(&names, fd); /* closes the descriptor at the end */
    while ((name = semlock_names_next(&names)) != NULL) {
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0) {
            empty = 0;
        }
    }
    empty = empty && names.error == 0;
    semlock_names_end(&names);
    return empty;
}

/* Give other users access to a new directory, whatever our umask is.  Where others may write,
 * the name may already be another directory, so the mode is changed by descriptor, and only of
 * an empty directory of our own. */
static void
open_to_others(const char *queue, mode_t mode)
{
    struct stat made;
    int fd = open(queue, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int copy;

    if (fd < 0) {
        return;
    }
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* for is_empty(), which closes it */
    if (copy >= 0 && is_empty(copy) && fstat(fd, &made) == 0 && made.st_uid == geteuid() &&
        (made.st_mode & 07777) != mode) {
        fchmod(fd, mode);
    }
    close(fd);
}

/* Every user who may create a lock in the directory may also join its queues. */
static int
make_queue(const semlock_place *place, const char *queue)
{
    char directory[SEMLOCK_PATH_ROOM];
    struct stat parent;
    int error = semlock_join(directory, place->path, place->directory_length, "");

    if (error != 0) {
        return error;
    }
    if (stat(directory, &parent) != 0) {
        return -errno;
    }
    if (mkdir(queue, parent.st_mode & 01777) != 0) {
        return errno == EEXIST ? 0 : -errno;
    }
    if ((parent.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        open_to_others(queue, parent.st_mode & 01777);
    }
    return 0;
}

/* The result of reading a queue: the tickets between two numbers, the nearest ones in order.
 */
typedef struct {
    uint64_t above;
    uint64_t below;
    uint64_t own;
    int downwards; /* the highest come first */
    uint64_t nearest[NEAREST];
    int32_t kept;  /* how many of them are there */
    int32_t count; /* how many there are between the two numbers */
    int32_t there; /* the own one is in the queue */
    int32_t late;  /* how many are passed by */
    uint64_t late_ones[ASKED_LATE];
    int64_t at; /* mtime of the queue */
} survey;

static void
note(survey *seen, const char *name)
{
    char *end;
    uint64_t number = strtoull(name, &end, 16);
    int32_t at;

    if (end != name + TICKET_DIGITS || number == 0) {
        return;
    }
    if (strcmp(end, LATE) == 0) {
        seen->late_ones[seen->late++ % ASKED_LATE] = number;
        return;
    }
    if (*end != 0) {
        return;
    }
    if (number == seen->own) {
        seen->there = 1;
        return;
    }
    if (number <= seen->above || number >= seen->below) {
        return;
    }
    seen->count++;
    if (seen->kept < NEAREST) {
        at = seen->kept++;
    }
    else if (seen->downwards ? number > seen->nearest[NEAREST - 1]
                             : number < seen->nearest[NEAREST - 1]) {
        at = NEAREST - 1;
    }
    else {
        return;
    }
    for (; at > 0 &&
           (seen->downwards ? seen->nearest[at - 1] < number : seen->nearest[at - 1] > number);
         at--) {
        seen->nearest[at] = seen->nearest[at - 1];
    }
    seen->nearest[at] = number;
}

/* The kernel locks the directory during the read, so no ticket in the result has left before
 * it. */
static int
look_at_queue(const char *queue, survey *seen)
{
    semlock_names names;
    const char *name;
    int fd = open(queue, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    struct stat queue_now;

    seen->kept = seen->count = seen->there = seen->late = 0;
    if (fd < 0) {
        return -errno;
    }
    seen->at = fstat(fd, &queue_now) == 0 ? SEMLOCK_TIME_OF(&queue_now, m) : 0;
    semlock_names_start(&names, fd);
    while ((name = semlock_names_next(&names)) != NULL) {
        note(seen, name);
    }
    semlock_names_end(&names);
    return names.error;
}

/* Remove the .who file of a ticket. */
static void
remove_who(const char *ticket)
{
    char name[SEMLOCK_PATH_ROOM];
    size_t length = strlen(ticket);
    size_t late = strlen(LATE);

    if (length > late && strcmp(ticket + length - late, LATE) == 0) {
        memcpy(name, ticket, length - late);
        memcpy(name + length - late, WHO, sizeof WHO);
        unlink(name);
        return;
    }
    if (snprintf(name, sizeof name, "%s" WHO, ticket) < (int)sizeof name) {
        unlink(name);
    }
}

/* Remove a ticket, if it is still this file: 0, or an error. */
static int
remove_exact(const char *name, const semlock_file *file)
{
    int still = semlock_still_at(name, file);

    if (still == 1) {
        remove_who(name); /* first, so that it never outlives its ticket */
        if (unlink(name) != 0 && errno != ENOENT) {
            return -errno;
        }
    }
    return still < 0 ? still : 0;
}

/* Remove a ticket of a dead owner: 0, or an error.  Its owner may have just created it and be
 * about to open it.  So it is checked again under the flock, which the owner takes after
 * opening: either we see the owner, or the owner sees our flock, or it finds its ticket
 * removed. */
static int
remove_dead(const char *name, const semlock_file *file)
{
    int fd = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
    int outcome = 0;

    if (fd < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        if (!semlock_ticket_has_writer(fd)) {
            outcome = remove_exact(name, file);
        }
        semlock_unguard(fd);
    }
    close(fd);
    return outcome;
}

/* Remove the tickets of dead owners among those that were passed by: returns how many. */
static int
clear_late(const char *queue, const survey *seen)
{
    char ticket[SEMLOCK_PATH_ROOM];
    char name[SEMLOCK_PATH_ROOM];
    semlock_file file;
    int removed = 0;

    for (int32_t i = 0; i < seen->late && i < ASKED_LATE; i++) {
        if (ticket_path(ticket, queue, seen->late_ones[i]) == 0 &&
            late_path(name, ticket) == 0 &&
            semlock_ticket_ask(name, &file) == SEMLOCK_TICKET_DEAD) {
            removed += remove_dead(name, &file) == 0;
        }
    }
    return removed;
}

/* The first ticket between two numbers whose owner waits, 0 if there is none.  Tickets of dead
 * owners are removed on the way, or skipped if that fails. */
static uint64_t
head_of(const char *queue, uint64_t above, uint64_t below)
{
    char name[SEMLOCK_PATH_ROOM];
    survey seen = {.above = above, .below = below};
    semlock_file file;
    int removed = 0;

    do {
        if (look_at_queue(queue, &seen) != 0) {
            return 0;
        }
        for (int32_t i = 0; i < seen.kept; i++) {
            int state = ticket_path(name, queue, seen.nearest[i]) != 0
                            ? SEMLOCK_TICKET_NONE
                            : semlock_ticket_ask(name, &file);

            if (state == SEMLOCK_TICKET_WAITS) {
                return seen.nearest[i];
            }
            removed += state == SEMLOCK_TICKET_DEAD && remove_dead(name, &file) == 0;
            seen.above = seen.nearest[i];
        }
    } while (seen.count > seen.kept);
    removed += clear_late(queue, &seen);
    if (removed > 0) {
        rmdir(queue); /* it may have been the last */
    }
    return 0;
}

uint64_t
semlock_queue_head(const char *path, int32_t directory_length, uint64_t name_hash,
                   uint64_t above, uint64_t below)
{
    char queue[SEMLOCK_PATH_ROOM];

    return queue_path(queue, path, directory_length, name_hash) == 0
               ? head_of(queue, above, below)
               : 0;
}

/* Pass by all tickets up to a number, whose owners did not use a free lock.  Such a ticket
 * gets another name, under which it delays no waiter, and stays its owner's: its followers go
 * on sleeping, and the owner restores the name when it runs again.  The tickets of dead owners
 * are removed.  Returns the highest that could not be renamed, or 0. */
uint64_t
semlock_queue_pass(const char *path, int32_t directory_length, uint64_t name_hash,
                   uint64_t upto)
{
    char queue[SEMLOCK_PATH_ROOM];
    char name[SEMLOCK_PATH_ROOM];
    char late[SEMLOCK_PATH_ROOM];
    survey seen = {.below = upto + 1};
    semlock_file file;
    uint64_t left = 0;

    if (queue_path(queue, path, directory_length, name_hash) != 0) {
        return 0;
    }
    do {
        if (look_at_queue(queue, &seen) != 0) {
            return left;
        }
        for (int32_t i = 0; i < seen.kept; i++) {
            seen.above = seen.nearest[i];
            if (ticket_path(name, queue, seen.nearest[i]) != 0 || late_path(late, name) != 0) {
                continue;
            }
            if (semlock_ticket_ask(name, &file) == SEMLOCK_TICKET_DEAD &&
                remove_dead(name, &file) == 0) {
                continue;
            }
            if (rename(name, late) != 0 && errno != ENOENT) {
                left = seen.nearest[i];
            }
        }
    } while (seen.count > seen.kept);
    return left;
}

/* Write the .who file: the record that the owner would write into the lock, with the time
 * since which it waits.  It is for people, so an error is ignored. */
void
semlock_place_tell(semlock_place *place)
{
    char queue[SEMLOCK_PATH_ROOM];
    char name[SEMLOCK_PATH_ROOM];
    char text[SEMLOCK_TICKET_ROOM];
    const semlock_record *record = place->record;
    size_t length;
    int64_t rest =
        semlock_wall_ns() / 1000000000 - (semlock_now_ns() - place->asked) / 1000000000;
    int fd;

    place->ticket.told = 1;
    if (record == NULL || record->length > (int32_t)sizeof text ||
        queue_path(queue, place->path, place->directory_length, place->name_hash) != 0 ||
        ticket_path(name, queue, place->ticket.number) != 0) {
        return;
    }
    length = strlen(name);
    if (length + sizeof WHO > sizeof name) {
        return;
    }
    memcpy(name + length, WHO, sizeof WHO);
    memcpy(text, record->text, (size_t)record->length);
    for (int i = 9; i >= 0 && record->stamp_at >= 0; i--, rest /= 10) {
        text[record->stamp_at + i] = (char)('0' + rest % 10);
    }
    fd = semlock_open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, SEMLOCK_TICKET_MODE);
    if (fd >= 0) {
        semlock_write_all(fd, text, record->length);
        close(fd);
    }
}

/* Record the ctime of our ticket; it changes when the ticket is passed by. */
static void
note_own(semlock_place *place)
{
    struct stat own;

    if (semlock_ticket_ours(&place->ticket, &own)) {
        place->ticket.ctime_ns = SEMLOCK_TIME_OF(&own, c);
    }
}

/* Join the queue with the time of asking, or with the old number. 0 or an error. */
static int
join_queue(semlock_place *place, const char *queue)
{
    char name[SEMLOCK_PATH_ROOM];
    uint64_t number = place->ticket.number;

    if (number == 0) {
        if (place->asked == 0) {
            place->asked = semlock_now_ns();
        }
        number = (uint64_t)place->asked;
    }
    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        int error = ticket_path(name, queue, number);

        if (error == 0) {
            error = semlock_ticket_make(name, &place->ticket);
        }
        if (error == 0) {
            place->ticket.number = number;
            place->ticket.name_hash = place->name_hash;
            place->ticket.told = 0;
            note_own(place);
            return 0;
        }
        if (error == SEMLOCK_HELD) {
            number++; /* another waiter asked in the same nanosecond */
        }
        else if (error == -ENOENT) {
            error = make_queue(place, queue);
            if (error != 0) {
                rmdir(queue); /* over a network it may exist despite the error */
                return error;
            }
        }
        else if (error != SEMLOCK_CHANGED) {
            rmdir(queue); /* it is empty if it was created for us */
            return error;
        }
    }
    return -EAGAIN;
}

/* Leave the queue.  The end of the ticket wakes the next waiter, so the name is removed first
 * and the descriptor closed next. */
static void
remove_own(semlock_ticket *ticket, const char *path, int32_t directory_length)
{
    char queue[SEMLOCK_PATH_ROOM];
    char name[SEMLOCK_PATH_ROOM];
    semlock_file file;
    char late[SEMLOCK_PATH_ROOM];
    struct stat own;
    int known = queue_path(queue, path, directory_length, ticket->name_hash) == 0 &&
                ticket_path(name, queue, ticket->number) == 0 && late_path(late, name) == 0;

    if (known) {
        int ours = semlock_ticket_ours(ticket, &own);

        if (ticket->told) {
            remove_who(name);
        }
        /* The ticket may have been passed by or removed, and the number may be another
         * ticket's now. */
        if (!ours || (own.st_nlink > 0 && SEMLOCK_TIME_OF(&own, c) != ticket->ctime_ns) ||
            (own.st_nlink > 0 && unlink(name) != 0)) {
            semlock_file_reset(&file);
            file.dev = ticket->dev;
            file.ino = ticket->ino;
            remove_exact(name, &file);
            remove_exact(late, &file);
        }
    }
    semlock_ticket_close(ticket);
    if (known) {
        rmdir(queue);
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
comes_back(semlock_place *place, const char *queue)
{
    char name[SEMLOCK_PATH_ROOM];
    char late[SEMLOCK_PATH_ROOM];
    semlock_file file;

    semlock_file_reset(&file);
    file.dev = place->ticket.dev;
    file.ino = place->ticket.ino;
    return own_ticket(place) != SEMLOCK_LOST &&
           ticket_path(name, queue, place->ticket.number) == 0 && late_path(late, name) == 0 &&
           semlock_still_at(late, &file) == 1 && semlock_path_is_free(name) &&
           rename(late, name) == 0;
}

/* Find the nearest living ticket before ours, and follow it; join first if needed. */
static int
find_before(semlock_place *place, semlock_waiting *waiting, semlock_pool *pool)
{
    char queue[SEMLOCK_PATH_ROOM];
    char name[SEMLOCK_PATH_ROOM];
    uint64_t passed = semlock_passed(pool, place->name_hash ^ place->directory_hash);
    uint64_t bound = place->ticket.number;
    int outcome = queue_path(queue, place->path, place->directory_length, place->name_hash);
    semlock_file file;
    survey seen;

    for (int tries = 0; outcome == 0 && tries < JOIN_TRIES; tries++) {
        if (place->ticket.handle < 0) {
            outcome = join_queue(place, queue);
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
        outcome = look_at_queue(queue, &seen);
        if (outcome == -ENOENT || (outcome == 0 && !seen.there)) {
            if (outcome == 0 && comes_back(place, queue)) {
                note_own(place);
                continue;
            }
            lose_ticket(place, waiting);
            outcome = 0;
            continue;
        }
        if (outcome != 0) {
            return outcome;
        }
        if (bound == place->ticket.number) {
            place->ahead = seen.count;
            place->read_at = seen.at;
        }
        for (int32_t i = 0; i < seen.kept; i++) {
            int state = ticket_path(name, queue, seen.nearest[i]) != 0
                            ? SEMLOCK_TICKET_NONE
                            : semlock_ticket_follow(name, place, waiting, &file);

            if (state == SEMLOCK_TICKET_WAITS) {
                place->before = seen.nearest[i];
                return place->bell >= 0 || place->mark >= 0 ? SEMLOCK_ARMED : SEMLOCK_BLIND;
            }
            if (state == SEMLOCK_TICKET_DEAD) {
                remove_dead(name, &file); /* one that cannot be removed is skipped */
            }
            bound = seen.nearest[i];
        }
        if (seen.count <= seen.kept) {
            semlock_ticket_unfollow(place, waiting);
            place->before = 0;
            place->ahead = 0;
            clear_late(queue, &seen);
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
    char queue[SEMLOCK_PATH_ROOM];
    struct stat now;

    return queue_path(queue, place->path, place->directory_length, place->name_hash) != 0 ||
                   stat(queue, &now) != 0
               ? -1
               : SEMLOCK_TIME_OF(&now, m);
}

/* Does this ticket still exist, not passed by? */
int
semlock_place_stands(const semlock_place *place, uint64_t number)
{
    char queue[SEMLOCK_PATH_ROOM];
    char name[SEMLOCK_PATH_ROOM];

    return queue_path(queue, place->path, place->directory_length, place->name_hash) == 0 &&
           ticket_path(name, queue, number) == 0 && !semlock_path_is_free(name);
}

/* Find the ticket before ours.  SEMLOCK_OK: there is none, or no queue is possible here. */
int
semlock_place_update(semlock_place *place, semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome;

    if (place->refused) {
        return SEMLOCK_OK;
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
            note_own(place); /* find_before() checks its name */
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
 * the release: the waiters behind sleep until it ends, so they need not watch the lock. */
void
semlock_place_leave(semlock_place *place, semlock_waiting *waiting, semlock_lock *won)
{
    semlock_ticket_unfollow(place, waiting);
    if (place->ticket.handle >= 0) {
        if (won != NULL && won->path == place->path && won->turns != SEMLOCK_NO_TURNS &&
            won->ticket.handle < 0 && !semlock_is_scarce((int)place->ticket.handle)) {
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

/* The state of a ticket's owner: one of SEMLOCK_TICKET_... */
int
semlock_ticket_state(const char *path)
{
    semlock_file file;

    return semlock_ticket_ask(path, &file);
}

/* Remove a ticket whose owner is dead: SEMLOCK_OK, SEMLOCK_ALIVE if it lives, SEMLOCK_FREE if
 * the ticket is gone, or an error. */
int
semlock_ticket_clean(const char *path, semlock_pool *pool)
{
    semlock_file file;
    int outcome = SEMLOCK_ALIVE;
    int state;

    semlock_enter(pool);
    state = semlock_ticket_ask(path, &file);
    if (state == SEMLOCK_TICKET_NONE) {
        outcome = SEMLOCK_FREE;
    }
    else if (state == SEMLOCK_TICKET_DEAD) {
        outcome = remove_dead(path, &file);
    }
    semlock_leave(pool);
    return outcome;
}
