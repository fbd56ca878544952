/* macOS and the BSDs: a ticket is a regular file.  Its owner keeps its flock, exclusive while
 * it waits and shared while it holds the lock.  A kqueue watches the ticket before one's own;
 * the number of watches is not limited.  A FIFO as on Linux is not possible: some of these
 * systems refuse flock on it. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

/* Is a queue possible here?  Only where the kernel reports the changes of other processes. */
int
semlock_system_queues(const char *directory)
{
    return semlock_system_hears(directory);
}

/* Create the ticket of this name: 0 if it is ours, SEMLOCK_TAKEN if the name is taken,
 * SEMLOCK_CHANGED if the new file was removed as that of a dead owner, or an error. */
int
semlock_ticket_make(const char *name, semlock_ticket *ticket)
{
    struct stat made;
    int fd = semlock_open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, SEMLOCK_TICKET_MODE);
    int error = 0;

    if (fd < 0) {
        return errno == EEXIST ? SEMLOCK_TAKEN : -errno;
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
        /* Before its flock was taken it looked like a dead owner's, and was removed. */
        error = SEMLOCK_CHANGED;
    }
    else {
        error = semlock_descriptor_keep(fd, (uint64_t)made.st_dev, (uint64_t)made.st_ino);
    }
    if (error != 0) {
        if (error < 0) {
            unlink(name);
        }
        close(fd);
        return error;
    }
    if ((made.st_mode & 0444) != 0444) {
        fchmod(fd, SEMLOCK_TICKET_MODE); /* others must be able to query it */
    }
    ticket->handle = fd;
    ticket->dev = (uint64_t)made.st_dev;
    ticket->ino = (uint64_t)made.st_ino;
    return 0;
}

/* Is the ticket still open under our number?  Then `seen` is its fstat. */
int
semlock_ticket_ours(const semlock_ticket *ticket, struct stat *seen)
{
    return semlock_descriptor_ours(ticket->handle, ticket->dev, ticket->ino, seen);
}

/* A regular file tells the waiter behind nothing: it reads the queue. */
void
semlock_ticket_tell_next(const semlock_ticket *ticket)
{
    (void)ticket;
}

int
semlock_ticket_told(int64_t bell)
{
    (void)bell;
    return 0;
}

/* Mark that the owner of the ticket holds the lock.  These systems convert a flock in two
 * steps.  If another process queries in between, the ticket looks like a dead owner's and may
 * be removed; that does not matter to a holder. */
void
semlock_ticket_won(const semlock_ticket *ticket)
{
    struct stat seen;

    if (semlock_ticket_ours(ticket, &seen)) {
        flock((int)ticket->handle, LOCK_SH | LOCK_NB);
    }
}

/* The state of a ticket's owner, and the identity of the ticket's file. */
int
semlock_ticket_ask(const char *name, semlock_file *file)
{
    struct stat seen;
    int fd = semlock_open(name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY, 0);
    int state = SEMLOCK_TICKET_WAITS;

    if (fd < 0) {
        /* If it cannot be opened, its owner counts as alive. */
        return errno == ENOENT || semlock_is_link(errno) ? SEMLOCK_TICKET_NONE
                                                         : SEMLOCK_TICKET_WAITS;
    }
    if (fstat(fd, &seen) != 0 || !S_ISREG(seen.st_mode)) {
        close(fd);
        return SEMLOCK_TICKET_NONE;
    }
    semlock_file_reset(file);
    file->dev = (uint64_t)seen.st_dev;
    file->ino = (uint64_t)seen.st_ino;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        state = SEMLOCK_TICKET_DEAD;
    }
    else if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        state = SEMLOCK_TICKET_HOLDS;
    }
    semlock_unguard(fd);
    close(fd);
    return state;
}

/* The flock is the proof here: a process that has it knows that the owner does not. */
int
semlock_ticket_has_writer(int fd)
{
    (void)fd;
    return 0;
}

/* Follow a ticket: SEMLOCK_TICKET_WAITS if its owner lives.  The event source reports its
 * removal.  It reports its owner's death only on kernels with NOTE_CLOSE_WRITE, so the waiters
 * behind look by the clock too. */
int
semlock_ticket_follow(const char *name, semlock_place *place, semlock_waiting *waiting,
                      semlock_file *file)
{
    int64_t mark = -1;
    int state;

    if (waiting->events >= 0) {
        mark = semlock_events_watch(waiting->events, name, place->mark);
    }
    if (place->mark >= 0 && place->mark != mark) {
        semlock_ticket_unfollow(place, waiting);
    }
    place->mark = mark < 0 ? -1 : mark;
    state = semlock_ticket_ask(name, file);
    return state == SEMLOCK_TICKET_HOLDS ? SEMLOCK_TICKET_WAITS : state;
}

void
semlock_ticket_unfollow(semlock_place *place, semlock_waiting *waiting)
{
    if (place->mark >= 0) {
        semlock_waiting_unwatch(waiting, &place->mark);
    }
    place->mark = -1;
}
