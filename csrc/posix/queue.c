/* POSIX: the directory of a queue, and the tickets of others in it (semlock.h, THE QUEUE).
 * What a ticket is, and how its end is reported, is in linux/tickets.c and kqueue/tickets.c.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

int
semlock_path_is_free(const char *path)
{
    struct stat seen;

    return lstat(path, &seen) != 0 && errno == ENOENT;
}

/* Are there only tickets in this directory?  Another waiter may have joined the new queue. */
static int
is_new_queue(int fd)
{
    semlock_names names;
    const char *name;
    int fine = 1;

    semlock_names_start(&names, fd); /* closes the descriptor at the end */
    while ((name = semlock_names_next(&names)) != NULL) {
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
            strspn(name, "0123456789abcdef") < 16) {
            fine = 0;
        }
    }
    fine = fine && names.error == 0;
    semlock_names_end(&names);
    return fine;
}

/* Give other users access to a new directory, whatever our umask is.  Where others may write,
 * the name may already be another directory, so the mode is changed by descriptor, and only of
 * a directory of our own in which nothing but tickets is. */
static void
open_to_others(const char *queue, mode_t mode)
{
    struct stat made;
    int fd = open(queue, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int copy;

    if (fd < 0) {
        return;
    }
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* for is_new_queue(), which closes it */
    if (copy >= 0 && is_new_queue(copy) && fstat(fd, &made) == 0 && made.st_uid == geteuid() &&
        (made.st_mode & 07777) != mode) {
        fchmod(fd, mode);
    }
    close(fd);
}

/* Every user who may create a lock in the directory may also join its queues. */
int
semlock_queue_make(const semlock_queue *queue)
{
    char room[SEMLOCK_PATH_ROOM];
    char directory[SEMLOCK_PATH_ROOM];
    struct stat parent;
    int error = semlock_join(directory, queue->path, queue->directory_length, "");

    if (error == 0) {
        error = semlock_queue_path(room, queue);
    }
    if (error != 0) {
        return error;
    }
    if (stat(directory, &parent) != 0) {
        return -errno;
    }
    if (mkdir(room, parent.st_mode & 01777) != 0) {
        return errno == EEXIST ? 0 : -errno;
    }
    if ((parent.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        open_to_others(room, parent.st_mode & 01777);
    }
    return 0;
}

/* Remove the queue if it is empty. */
void
semlock_queue_remove(const semlock_queue *queue)
{
    char room[SEMLOCK_PATH_ROOM];

    if (semlock_queue_path(room, queue) == 0) {
        rmdir(room);
    }
}

/* The kernel locks the directory during the read, so no ticket in the result has left before
 * it. */
int
semlock_queue_read(const semlock_queue *queue, semlock_survey *seen)
{
    char room[SEMLOCK_PATH_ROOM];
    semlock_names names;
    const char *name;
    struct stat now;
    int fd, error = semlock_queue_path(room, queue);

    if (error != 0) {
        return error;
    }
    fd = open(room, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return -errno;
    }
    seen->at = fstat(fd, &now) == 0 ? SEMLOCK_TIME_OF(&now, m) : 0;
    semlock_names_start(&names, fd);
    while ((name = semlock_names_next(&names)) != NULL) {
        semlock_survey_note(seen, name);
    }
    semlock_names_end(&names);
    return names.error;
}

/* Remove the .who file of a ticket. */
void
semlock_ticket_remove_who(const char *ticket)
{
    char name[SEMLOCK_PATH_ROOM];
    size_t length = strlen(ticket);
    size_t late = strlen(SEMLOCK_LATE);

    if (length > late && strcmp(ticket + length - late, SEMLOCK_LATE) == 0) {
        memcpy(name, ticket, length - late);
        memcpy(name + length - late, SEMLOCK_WHO, sizeof SEMLOCK_WHO);
        unlink(name);
        return;
    }
    if (snprintf(name, sizeof name, "%s" SEMLOCK_WHO, ticket) < (int)sizeof name) {
        unlink(name);
    }
}

/* Remove a ticket, if it is still this file: 0, or an error. */
int
semlock_ticket_remove(const char *name, const semlock_file *file)
{
    int still = semlock_still_at(name, file);

    if (still == 1) {
        semlock_ticket_remove_who(name); /* first, so that it never outlives its ticket */
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
int
semlock_ticket_remove_dead(const char *name, const semlock_file *file)
{
    int fd = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
    int outcome = 0;

    if (fd < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        if (!semlock_ticket_has_writer(fd)) {
            outcome = semlock_ticket_remove(name, file);
        }
        semlock_unguard(fd);
    }
    close(fd);
    return outcome;
}

/* The state of the owner of a ticket.  SEMLOCK_TICKET_DEAD: and the ticket is removed; one
 * that cannot be removed counts as none. */
int
semlock_ticket_sort_out(const char *name)
{
    semlock_file file;
    int state = semlock_ticket_ask(name, &file);

    return state == SEMLOCK_TICKET_DEAD && semlock_ticket_remove_dead(name, &file) != 0
               ? SEMLOCK_TICKET_NONE
               : state;
}

/* Pass by a ticket: it gets another name, under which it delays no waiter, and stays its
 * owner's: its followers go on sleeping, and the owner restores the name when it runs again.
 */
int
semlock_ticket_pass(const semlock_queue *queue, uint64_t number)
{
    char name[SEMLOCK_PATH_ROOM];
    char late[SEMLOCK_PATH_ROOM];

    if (semlock_ticket_path(name, queue, number, "") != 0 ||
        semlock_ticket_path(late, queue, number, SEMLOCK_LATE) != 0 ||
        rename(name, late) == 0 || errno == ENOENT) {
        return 0;
    }
    return -errno;
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
        outcome = semlock_ticket_remove_dead(path, &file);
    }
    semlock_leave(pool);
    return outcome;
}
