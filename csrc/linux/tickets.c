/* Linux: a ticket is a FIFO.
 *
 * Its owner has it open for reading and writing, and no other process opens it for writing. So
 * it has a writer as long as its owner lives: read(2) gives EAGAIN then, and end of file when
 * the owner has left or died.  The next waiter opens it for reading and polls it: the kernel
 * reports POLLHUP when the last writer is gone.  That needs no inotify instance, and works on
 * FUSE and between containers, because the pipe behind the name belongs to this kernel and not
 * to the filesystem.
 *
 * An owner that holds the lock takes the flock of its ticket.  Queries only ask for it shared,
 * so they do not disturb each other.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "posix/system.h"

#define ASK_FLAGS (O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY)
#define SHARE_TRIES 8

/* Is a queue possible here?  Not on a filesystem that is shared with other machines: the pipe
 * behind a FIFO belongs to this kernel alone.  FUSE may be shared or not; at worst the waiters
 * of two machines do not keep one order. */
int
semlock_system_queues(const char *directory)
{
    static const uint32_t shared[] = {
        0x00006969, /* nfs */
        0x0000517b, /* smb */
        0xff534d42, /* cifs */
        0xfe534d42, /* smb2 and later */
        0x01021997, /* 9p */
        0x5346414f, /* afs */
        0x6b414653, /* kafs */
        0x00c36400, /* ceph */
        0x73757245, /* coda */
        0x01161970, /* gfs2 */
        0x7461636f, /* ocfs2 */
        0x0bd00bd0, /* lustre */
        0x47504653, /* gpfs */
        0x20030528, /* orangefs */
        0x19830326, /* beegfs */
        0x786f4256, /* vboxsf */
        0x0000564c, /* ncp */
    };
    struct statfs about;

    if (statfs(directory, &about) != 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        if ((uint32_t)about.f_type == shared[i]) {
            return 0;
        }
    }
    return 1;
}

/* Create the ticket of this name: 0 if it is ours, SEMLOCK_TAKEN if the name is taken,
 * SEMLOCK_CHANGED if the new file was removed as that of a dead owner, or an error. */
int
semlock_ticket_make(const char *name, semlock_ticket *ticket)
{
    struct stat made;
    int fd, error = 0;

    if (mkfifo(name, SEMLOCK_TICKET_MODE) != 0) {
        return errno == EEXIST ? SEMLOCK_TAKEN : -errno;
    }
    fd = semlock_open(name, O_RDWR | O_NONBLOCK | O_NOFOLLOW, 0);
    if (fd < 0) {
        error = errno;
        if (error == ENOENT) {
            return SEMLOCK_CHANGED;
        }
        unlink(name);
        return -error;
    }
    /* Until it was open for writing, it looked like a dead owner's.  A process that is about
     * to remove it has its flock: either it sees now that the owner lives, or the ticket is
     * removed at once. */
    for (int tries = 0; flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
                        tries < SEMLOCK_GUARD_TRIES;
         tries++) {
        semlock_yield();
    }
    if (fstat(fd, &made) != 0) {
        error = -errno;
    }
    else if (!S_ISFIFO(made.st_mode)) {
        error = -EEXIST; /* another file has replaced it */
    }
    else if (made.st_nlink == 0) {
        error = SEMLOCK_CHANGED;
    }
    else if (semlock_is_scarce(fd)) {
        error = -EMFILE;
    }
    else {
        error = semlock_descriptor_keep_signed(fd);
    }
    if (error != 0) {
        if (error < 0 && error != -EEXIST) {
            unlink(name);
        }
        close(fd);
        return error;
    }
    if ((made.st_mode & 0444) != 0444) {
        fchmod(fd, SEMLOCK_TICKET_MODE); /* others must be able to follow it */
    }
    else {
        ticket->ctime_ns = SEMLOCK_TIME_OF(&made, c);
    }
    ticket->handle = fd;
    ticket->dev = (uint64_t)made.st_dev;
    ticket->ino = (uint64_t)made.st_ino;
    return 0;
}

/* Is the ticket still open under our number?  Then `seen` is its fstat.  FUSE may fail the
 * fstat of a FIFO without a name.  That must not count as a lost descriptor: it would stay
 * open, and the waiters behind would never be woken. */
int
semlock_ticket_ours(const semlock_ticket *ticket, struct stat *seen)
{
    if (!semlock_events_ours(ticket->handle)) {
        return 0;
    }
    if (fstat((int)ticket->handle, seen) != 0) {
        seen->st_nlink = 0;
        return 1;
    }
    return seen->st_ino == (ino_t)ticket->ino && seen->st_dev == (dev_t)ticket->dev;
}

/* Before the close that wakes the waiter behind: write into the FIFO that no ticket is before
 * its own now, so that it need not read the queue.  A process that asks whether the owner
 * lives may read the byte first; then the waiter reads the queue. */
void
semlock_ticket_tell_next(const semlock_ticket *ticket)
{
    char relay = (char)ticket->relay;

    if (relay > 0) {
        ssize_t n = write((int)ticket->handle, &relay, 1);

        (void)n;
    }
}

/* The message of the ticket that was followed: how many such messages came in a row, or 0. */
int
semlock_ticket_told(int64_t bell)
{
    char relay = 0;

    return semlock_events_ours(bell) && read((int)bell, &relay, 1) == 1 ? relay : 0;
}

/* Mark that the owner of the ticket holds the lock.  A query at the same moment can prevent
 * the mark.  That is accepted: without it, waiters only wait longer if the lock is taken from
 * its holder. */
void
semlock_ticket_won(const semlock_ticket *ticket)
{
    struct stat seen;

    if (!semlock_ticket_ours(ticket, &seen)) {
        return;
    }
    for (int tries = 0; tries < SHARE_TRIES; tries++) {
        if (flock((int)ticket->handle, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) {
            return;
        }
        semlock_yield();
    }
}

/* Open a ticket to query its owner: a descriptor, or -1 with a state. */
static int
open_ticket(const char *name, semlock_file *file, int *state)
{
    struct stat seen;
    int fd = semlock_open(name, ASK_FLAGS, 0);

    if (fd < 0) {
        /* If it cannot be opened, its owner counts as alive. */
        *state = errno == ENOENT || errno == ELOOP || errno == ENXIO ? SEMLOCK_TICKET_NONE
                                                                     : SEMLOCK_TICKET_WAITS;
        return -1;
    }
    if (fstat(fd, &seen) != 0 || !S_ISFIFO(seen.st_mode)) {
        close(fd);
        *state = SEMLOCK_TICKET_NONE;
        return -1;
    }
    semlock_file_reset(file);
    file->dev = (uint64_t)seen.st_dev;
    file->ino = (uint64_t)seen.st_ino;
    return fd;
}

/* Does the owner of this ticket have it open? */
int
semlock_ticket_has_writer(int fd)
{
    char nothing;

    return read(fd, &nothing, 1) != 0;
}

/* The state of a ticket's owner, and the identity of the ticket's file. */
int
semlock_ticket_ask(const char *name, semlock_file *file)
{
    int state;
    int fd = open_ticket(name, file, &state);

    if (fd < 0) {
        return state;
    }
    if (!semlock_ticket_has_writer(fd)) {
        state = SEMLOCK_TICKET_DEAD;
    }
    else if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        semlock_unguard(fd);
        state = SEMLOCK_TICKET_WAITS;
    }
    else {
        state = errno == EWOULDBLOCK ? SEMLOCK_TICKET_HOLDS : SEMLOCK_TICKET_WAITS;
    }
    close(fd);
    return state;
}

/* Follow a ticket: SEMLOCK_TICKET_WAITS if its owner lives, with a bell that gets POLLHUP when
 * the owner leaves or dies, or without one if no descriptor is available. */
int
semlock_ticket_follow(const char *name, semlock_place *place, semlock_waiting *waiting,
                      semlock_file *file)
{
    int state = SEMLOCK_TICKET_WAITS;
    int fd = open_ticket(name, file, &state);

    semlock_ticket_unfollow(place, waiting);
    if (fd < 0) {
        return state;
    }
    /* Checked after opening: if there is a writer now, its end will be reported. */
    if (!semlock_ticket_has_writer(fd)) {
        state = SEMLOCK_TICKET_DEAD;
    }
    if (state == SEMLOCK_TICKET_WAITS && !semlock_is_scarce(fd) &&
        semlock_descriptor_keep_signed(fd) == 0) {
        place->bell = fd;
    }
    else {
        close(fd);
    }
    return state;
}

void
semlock_ticket_unfollow(semlock_place *place, semlock_waiting *waiting)
{
    (void)waiting;
    if (place->bell >= 0) {
        semlock_descriptor_close_signed(place->bell);
    }
    place->bell = -1;
}
