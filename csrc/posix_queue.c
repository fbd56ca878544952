/* POSIX: the queue of those who wait for a lock, told in semlock.h under THE QUEUE. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "semlock.h"

#define TICKET_DIGITS 16
#define JOIN_TRIES 100
#define SURVEY_TRIES 100
#define TICKET_MODE 0644

static int
queue_path(char *room, const char *path, int32_t directory_length, uint64_t name_hash)
{
    char name[48];

    snprintf(name, sizeof name, ".semlock-%016llx.queue", (unsigned long long)name_hash);
    return semlock_join(room, path, directory_length, name);
}

static int
path_of_number(char *room, const char *path, int32_t directory_length, uint64_t name_hash,
               uint64_t number)
{
    char name[TICKET_DIGITS + 1];
    char queue[SEMLOCK_PATH_ROOM];
    int error = queue_path(queue, path, directory_length, name_hash);

    if (error != 0) {
        return error;
    }
    snprintf(name, sizeof name, "%016llx", (unsigned long long)number);
    return semlock_join(room, queue, (int32_t)strlen(queue), name);
}

static int
ticket_path(char *room, const semlock_place *place, uint64_t number)
{
    return path_of_number(room, place->path, place->directory_length, place->name_hash,
                          number);
}

/* Does somebody wait for this lock?  A queue that cannot be seen keeps nobody from trying. */
int
semlock_queue_exists(const semlock_lock *lock)
{
    char queue[SEMLOCK_PATH_ROOM];

    return queue_path(queue, lock->path, lock->directory_length, lock->name_hash) == 0 &&
           access(queue, F_OK) == 0;
}

/* Everybody who may create a lock in the directory may also stand in its queues. */
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
        chmod(queue, parent.st_mode & 01777); /* whatever our umask is */
    }
    return 0;
}

/* What a look at the queue found. */
typedef struct {
    uint64_t last;   /* the highest number */
    uint64_t before; /* the highest one below a bound */
    uint64_t first;
    int32_t ahead; /* how many are below the bound */
    int32_t there; /* the bound itself is there */
} survey;

static void
note(survey *seen, const char *name, uint64_t bound)
{
    char *end;
    uint64_t number = strtoull(name, &end, 16);

    if (end != name + TICKET_DIGITS || *end != 0 || number == 0) {
        return;
    }
    if (number > seen->last) {
        seen->last = number;
    }
    if (seen->first == 0 || number < seen->first) {
        seen->first = number;
    }
    if (number == bound) {
        seen->there = 1;
    }
    else if (number < bound) {
        seen->ahead++;
        if (number > seen->before) {
            seen->before = number;
        }
    }
}

/* The directory is read under the kernel's lock on it, so who is seen has not left. */
static int
look_at_queue(const char *queue, uint64_t bound, survey *seen)
{
    semlock_names names;
    const char *name;
    int fd = open(queue, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    memset(seen, 0, sizeof *seen);
    if (fd < 0) {
        return -errno;
    }
    semlock_names_start(&names, fd);
    while ((name = semlock_names_next(&names)) != NULL) {
        note(seen, name, bound);
    }
    semlock_names_end(&names);
    return names.error;
}

/* What the ticket says: the record that its owner would write into the lock, with the time
 * since which it waits.  It is for people, so it may fail. */
static void
write_ticket(int fd, const semlock_record *record)
{
    char text[SEMLOCK_TICKET_ROOM];
    int64_t rest = semlock_wall_seconds();

    if (record == NULL || record->length > (int32_t)sizeof text) {
        return;
    }
    memcpy(text, record->text, (size_t)record->length);
    for (int i = 9; i >= 0 && record->stamp_at >= 0; i--, rest /= 10) {
        text[record->stamp_at + i] = (char)('0' + rest % 10);
    }
    semlock_write_all(fd, text, record->length);
}

/* Make the ticket `number`: 0 if it is ours, SEMLOCK_HELD if the number is taken,
 * SEMLOCK_CHANGED if somebody took the new file for a dead one's, or an error. */
static int
make_ticket(semlock_place *place, uint64_t number)
{
    char name[SEMLOCK_PATH_ROOM];
    struct stat made;
    int fd, error = ticket_path(name, place, number);

    if (error != 0) {
        return error;
    }
    fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, TICKET_MODE);
    if (fd < 0) {
        return errno == EEXIST ? SEMLOCK_HELD : -errno;
    }
    if (semlock_is_scarce(fd)) {
        error = -EMFILE;
    }
    else if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        error = errno == EWOULDBLOCK ? SEMLOCK_CHANGED : -errno;
    }
    else if (fstat(fd, &made) != 0) {
        error = -errno;
    }
    else if (made.st_nlink == 0) {
        /* The lock on it says that its owner lives.  Until that was taken, the file looked
         * like a dead one's, and was removed. */
        error = SEMLOCK_CHANGED;
    }
    if (error != 0) {
        if (error < 0) {
            unlink(name);
        }
        close(fd);
        return error;
    }
    place->ticket.handle = fd;
    place->ticket.dev = (uint64_t)made.st_dev;
    place->ticket.ino = (uint64_t)made.st_ino;
    place->ticket.number = number;
    place->ticket.name_hash = place->name_hash;
    write_ticket(fd, place->record);
    return 0;
}

/* Stand at the end of the queue.  What was seen on the way says who is before us, unless
 * others joined in the same moment: SEMLOCK_OK, or SEMLOCK_CHANGED if it must be looked up. */
static int
join_queue(semlock_place *place, const char *queue, survey *seen)
{
    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        int error = look_at_queue(queue, UINT64_MAX, seen);
        int first = 1;

        if (error == -ENOENT) {
            error = make_queue(place, queue);
        }
        if (error != 0) {
            rmdir(queue); /* over a network it may have been made and the answer lost */
            return error;
        }
        while ((error = make_ticket(place, ++seen->last)) == SEMLOCK_HELD ||
               error == SEMLOCK_CHANGED) {
            first = 0;
        }
        if (error == 0) {
            return first ? SEMLOCK_OK : SEMLOCK_CHANGED;
        }
        if (error != -ENOENT) {
            rmdir(queue); /* nobody stands in it if it was made for us */
            return error;
        }
        /* The last one has left, and the queue went with it. */
    }
    return -EAGAIN;
}

/* Remove a ticket, if it is still this file. */
static int
remove_ticket(const char *name, const semlock_file *file)
{
    int still = semlock_still_at(name, file);

    if (still == 1 && unlink(name) != 0 && errno != ENOENT) {
        return -errno;
    }
    return still < 0 ? still : 0;
}

/* Is the owner of this ticket dead?  Then it is removed.  1 it lives, 0 it is gone, or an
 * error if it is dead and can't be removed. */
static int
lives(const char *name)
{
    struct stat seen;
    semlock_file file;
    int outcome = 1;
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

    if (fd < 0) {
        return errno == ENOENT ? 0 : 1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        if (fstat(fd, &seen) == 0) {
            semlock_file_reset(&file);
            file.dev = (uint64_t)seen.st_dev;
            file.ino = (uint64_t)seen.st_ino;
            outcome = remove_ticket(name, &file);
        }
        semlock_unguard(fd);
    }
    close(fd);
    return outcome;
}

static void
forget_ticket(semlock_place *place)
{
    if (place->ticket.handle >= 0) {
        close((int)place->ticket.handle);
    }
    place->ticket.handle = -1;
    place->ticket.number = place->before = 0;
    place->ahead = place->behind = 0;
}

static void
unwatch(semlock_place *place, semlock_waiting *waiting)
{
    if (place->mark >= 0) {
        semlock_waiting_unwatch(waiting, &place->mark);
    }
}

/* Watch the nearest one before us, if he lives.  SEMLOCK_OK: there is none.
 * SEMLOCK_CHANGED: the queue changed meanwhile. */
static int
watch_before(semlock_place *place, semlock_waiting *waiting, const survey *seen,
             uint64_t *bound)
{
    char name[SEMLOCK_PATH_ROOM];
    int64_t mark = -1;
    int outcome;

    place->before = seen->before;
    place->first = seen->first;
    place->ahead = seen->ahead;
    place->behind = seen->last > place->ticket.number;
    if (seen->before == 0) {
        unwatch(place, waiting);
        return SEMLOCK_OK;
    }
    outcome = ticket_path(name, place, seen->before);
    if (outcome != 0) {
        return outcome;
    }
    if (waiting->events >= 0) {
        mark = semlock_events_watch(waiting->events, name, place->mark);
        if (mark == -ENOENT) {
            return SEMLOCK_CHANGED;
        }
        if (place->mark != mark) {
            unwatch(place, waiting);
        }
        place->mark = mark < 0 ? -1 : mark;
    }
    outcome = lives(name);
    if (outcome != 1) {
        *bound =
            outcome < 0 ? seen->before : place->ticket.number; /* what can't go is passed by */
        return SEMLOCK_CHANGED;
    }
    return mark < 0 ? SEMLOCK_BLIND : SEMLOCK_ARMED;
}

/* Find the nearest one before us who lives, and watch him; join first if need be. */
static int
find_before(semlock_place *place, semlock_waiting *waiting)
{
    char queue[SEMLOCK_PATH_ROOM];
    uint64_t bound = place->ticket.number;
    int outcome = queue_path(queue, place->path, place->directory_length, place->name_hash);
    survey seen;

    if (outcome != 0) {
        return outcome;
    }
    for (int tries = 0; tries < SURVEY_TRIES; tries++) {
        outcome = SEMLOCK_CHANGED;
        if (place->ticket.handle < 0) {
            outcome = join_queue(place, queue, &seen);
            bound = place->ticket.number;
            /* The survey was made without a bound, before our own ticket was there. */
        }
        if (outcome == SEMLOCK_CHANGED) {
            outcome = look_at_queue(queue, bound, &seen);
            if (bound == place->ticket.number &&
                (outcome == -ENOENT || (outcome == 0 && !seen.there))) {
                forget_ticket(place); /* taken for stopped: stand at the end again */
                continue;
            }
        }
        if (outcome == SEMLOCK_OK) {
            outcome = watch_before(place, waiting, &seen, &bound);
        }
        if (outcome != SEMLOCK_CHANGED) {
            return outcome;
        }
    }
    return SEMLOCK_CHANGED;
}

/* Find out who is before us.  SEMLOCK_OK: nobody is, or there can be no queue here. */
int
semlock_place_update(semlock_place *place, semlock_waiting *waiting)
{
    int outcome;

    if (place->refused) {
        return SEMLOCK_OK;
    }
    if (place->ticket.handle >= 0 && !place->due) {
        return place->before == 0 ? SEMLOCK_OK
               : place->mark < 0  ? SEMLOCK_BLIND
                                  : SEMLOCK_ARMED;
    }
    outcome = find_before(place, waiting);
    place->due = outcome == SEMLOCK_CHANGED;
    if (outcome < 0) {
        semlock_place_leave(place, waiting, NULL);
        place->refused = 1;
        return SEMLOCK_OK;
    }
    return outcome == SEMLOCK_CHANGED ? SEMLOCK_BLIND : outcome;
}

/* Did the owner of this ticket have the lock?  It says so by sharing its flock. */
static int
had_the_lock(const char *name)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int shared;

    if (fd < 0) {
        return 0;
    }
    shared = flock(fd, LOCK_SH | LOCK_NB) == 0;
    if (shared) {
        semlock_unguard(fd);
    }
    close(fd);
    return shared;
}

/* The lock is free, and the first of the queue has not taken it.  If that one has had it and
 * doesn't know yet that it was removed, or if it leaves it alone for a long time and so must
 * be stopped, it loses its place.  It holds nothing, and may stand in the queue again. */
void
semlock_place_overtake(semlock_place *place, int path_is_free)
{
    char name[SEMLOCK_PATH_ROOM];
    int64_t now = semlock_now_ns();

    if (!path_is_free || place->before == 0 || ticket_path(name, place, place->first) != 0) {
        place->free_since = 0;
        return;
    }
    if (place->free_since == 0 || place->free_first != place->first) {
        place->free_since = now;
        place->free_first = place->first;
    }
    if (now - place->free_since >= SEMLOCK_STOPPED_NS || had_the_lock(name)) {
        place->free_since = 0;
        place->due = 1;
        if (unlink(name) != 0 && errno != ENOENT) {
            place->refused = 1; /* not ours to remove: go on without a queue */
        }
    }
}

static void
remove_own(semlock_ticket *ticket, const char *path, int32_t directory_length)
{
    char name[SEMLOCK_PATH_ROOM];
    semlock_file file;
    struct stat own;

    if (path_of_number(name, path, directory_length, ticket->name_hash, ticket->number) == 0) {
        /* Somebody may have removed it, and another one may have the number by now. */
        if (fstat((int)ticket->handle, &own) != 0) {
            semlock_file_reset(&file);
            file.dev = ticket->dev;
            file.ino = ticket->ino;
            remove_ticket(name, &file);
        }
        else if (own.st_nlink > 0) {
            unlink(name);
        }
        name[strlen(name) - TICKET_DIGITS - 1] = 0;
        rmdir(name);
    }
    close((int)ticket->handle);
    ticket->handle = -1;
}

/* Leave the queue, and take it away if nobody is in it now.  With the lock that was waited
 * for, the ticket is kept until that is let go, if others stand behind it: the next one, who
 * sleeps until the ticket is gone, is then woken once and not twice. */
void
semlock_place_leave(semlock_place *place, semlock_waiting *waiting, semlock_lock *won)
{
    unwatch(place, waiting);
    if (place->ticket.handle < 0) {
        return;
    }
    if (won != NULL && place->behind && won->path == place->path && won->ticket.handle < 0 &&
        !semlock_is_scarce((int)place->ticket.handle) &&
        flock((int)place->ticket.handle, LOCK_SH | LOCK_NB) == 0) {
        won->ticket = place->ticket;
        place->ticket.handle = -1;
    }
    else {
        remove_own(&place->ticket, place->path, place->directory_length);
    }
    forget_ticket(place);
}

/* The lock is let go of, and so is its place in the queue. */
void
semlock_ticket_leave(semlock_lock *lock)
{
    if (lock->ticket.handle >= 0) {
        remove_own(&lock->ticket, lock->path, lock->directory_length);
    }
}

/* After a fork: the ticket is the parent's. */
void
semlock_place_forget(semlock_place *place)
{
    forget_ticket(place);
    semlock_mark_over(place->mark);
    place->mark = -1;
    place->refused = 1;
}

/* Remove a ticket whose owner is dead: SEMLOCK_OK, SEMLOCK_ALIVE if it lives, SEMLOCK_FREE if
 * it is gone, or an error. */
int
semlock_ticket_clean(const char *path, semlock_pool *pool)
{
    struct stat seen;
    int outcome;

    semlock_enter(pool);
    if (lstat(path, &seen) != 0) {
        outcome = errno == ENOENT ? SEMLOCK_FREE : -errno;
    }
    else {
        outcome = S_ISREG(seen.st_mode) ? lives(path) : 1;
        outcome = outcome == 1 ? SEMLOCK_ALIVE : outcome;
    }
    semlock_leave(pool);
    return outcome;
}
