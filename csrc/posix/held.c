/* POSIX: the held instance: its descriptor, refresh and check.
 *
 * The descriptor may have been given up because descriptors are scarce, or lost: a daemon
 * closes all of them, or a program opened another file under the number.  The lock is held all
 * the same.  Then the path is opened and must lead to our instance: by device, inode and
 * token, or by all bytes where the format has no token, because the inode number may have
 * passed to another file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

#define TOKEN 32
#define OVER "over" /* replaces "kept", "left" or "none": the lock was released */

/* Mark a released instance that still has other names: readers of those names see that it is
 * not held.  This is a service to them, so an error is ignored. */
void
semlock_file_over(const semlock_file *file, int fd)
{
    if (file->witness_at >= 0 && file->witness_at + 4 <= file->length) {
        ssize_t n = pwrite(fd, OVER, 4, file->witness_at);

        (void)n;
    }
}

/* Does it begin with the bytes that identify its owner? 1, 0, or an error. */
static int
carries_head(int fd, const semlock_lock *lock)
{
    uint64_t hash = SEMLOCK_NO_HASH;
    int32_t done = 0;
    char part[512];

    while (done < lock->head) {
        int32_t rest = lock->head - done;
        size_t room = rest < (int32_t)sizeof part ? (size_t)rest : sizeof part;
        ssize_t n = pread(fd, part, room, done);

        if (n <= 0) {
            return n < 0 ? -errno : 0;
        }
        hash = semlock_hash(hash, part, (int32_t)n);
        done += (int32_t)n;
    }
    return hash == lock->content;
}

/* Does the file end after these bytes? */
static int
ends_there(int fd, const semlock_lock *lock)
{
    char more;
    ssize_t n = pread(fd, &more, 1, lock->head);

    return n < 0 ? -errno : n == 0;
}

/* Does it contain the token anywhere?  A program that parses and rewrites a record, to change
 * its time, may move the token. 1, 0, or an error. */
static int
carries_token(int fd, const semlock_lock *lock)
{
    char part[TOKEN + 1024];
    off_t at = 0;
    ssize_t n;

    while (at < SEMLOCK_RECORD_LIMIT && (n = pread(fd, part, sizeof part, at)) >= TOKEN) {
        for (ssize_t i = 0; i + TOKEN <= n; i++) {
            if (part[i] == lock->token[0] && memcmp(part + i, lock->token, TOKEN) == 0) {
                return 1;
            }
        }
        at += n - TOKEN + 1;
    }
    return n < 0 ? -errno : 0;
}

/* Is the open file the instance that this object acquired, with its record? 1, 0, or an error.
 */
static int
is_own(int fd, const semlock_lock *lock)
{
    char token[TOKEN];
    int own = 1;
    ssize_t n;

    if (lock->token_at >= 0) {
        n = pread(fd, token, sizeof token, lock->token_at);
        own = n < 0 ? -errno : n == TOKEN && memcmp(token, lock->token, sizeof token) == 0;
        if (own == 0) {
            own = carries_token(fd, lock);
        }
    }
    if (own == 1) {
        own = carries_head(fd, lock);
    }
    return own == 1 && lock->token_at < 0 ? ends_there(fd, lock) : own;
}

/* Is the record in the held file still ours, or has another program taken the lock over by
 * writing its record into the file?  The file must be known to be ours. 1, 0, or an error.
 *
 * If length and mtime, which the check of the path returned, are unchanged, nothing was
 * written since.  This misses a record of the same length written within SEMLOCK_SAME_NS.  So
 * the record is always read for a `strict` lock, of a system in which others do this, and on a
 * network filesystem, whose times are those of another clock. */
int
semlock_still_own(semlock_lock *lock, int fd, const struct stat *seen)
{
    int64_t later = SEMLOCK_TIME_OF(seen, m) - lock->written;
    int own;

    if (!lock->strict && lock->file.local && seen->st_size == lock->file.length &&
        later > -SEMLOCK_SAME_NS && later < SEMLOCK_SAME_NS) {
        return 1;
    }
    own = is_own(fd, lock);
    if (own == 0) {
        lock->file.witness_at = -1; /* never write into another program's record */
    }
    return own;
}

static int
open_path(const char *path)
{
    int flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    int fd = semlock_open(path, O_RDWR | flags, 0);

    if (fd < 0 && (errno == EACCES || errno == EPERM || errno == EROFS || errno == EISDIR)) {
        fd = semlock_open(path, O_RDONLY | flags, 0);
    }
    return fd;
}

/* Open the path again, if it is the held instance. */
static int
open_again(semlock_lock *lock, int *fd)
{
    struct stat seen;
    int own;

    *fd = open_path(lock->path);
    if (*fd < 0) {
        return errno == ENOENT || errno == ENOTDIR || errno == ENXIO || semlock_is_link(errno)
                   ? SEMLOCK_LOST
                   : -errno;
    }
    own = fstat(*fd, &seen) != 0
              ? -errno
              : seen.st_ino == (ino_t)lock->file.ino && seen.st_dev == (dev_t)lock->file.dev;
    if (own == 1) {
        own = is_own(*fd, lock);
    }
    if (own != 1) {
        close(*fd);
        return own == 0 ? SEMLOCK_LOST : own;
    }
    return SEMLOCK_OK;
}

/* Get a descriptor of the held instance; `opened` says whether the caller must close it. */
int
semlock_held_open(semlock_lock *lock, int *fd, int *opened)
{
    *fd = semlock_file_descriptor(&lock->file);
    *opened = *fd < 0;
    return *opened ? open_again(lock, fd) : SEMLOCK_OK;
}

/* Keep a reopened descriptor, and take the witness again if the record claims it: processes in
 * other PID namespaces know by the witness that the holder lives. 1 if it is kept. */
static int
keep_again(semlock_lock *lock, semlock_pool *pool, int fd)
{
    semlock_file *file = &lock->file;

    if ((file->witness == SEMLOCK_UNWITNESSED && lock->token_at >= 0) || semlock_is_apart() ||
        semlock_is_scarce(fd) || (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR ||
        (file->witness != SEMLOCK_UNWITNESSED && semlock_system_take_witness(fd) != 0)) {
        return 0;
    }
    file->handle = fd;
    if (semlock_file_keep(file, pool) != 0) {
        file->handle = -1;
        return 0;
    }
    return 1;
}

/* The arguments of a refresh or a check, in one place so that another thread can run it. */
typedef struct {
    semlock_lock *lock;
    semlock_pool *pool;
    const char *text; /* what to write; NULL for a check */
    int32_t length;
} job;

static int
refresh_guarded(semlock_lock *lock, int fd, const char *text, int32_t length)
{
    struct stat seen = {0};
    int still = semlock_seen_at(lock->path, &lock->file, &seen);
    int outcome;

    if (still == 1) {
        still = semlock_still_own(lock, fd, &seen);
    }
    if (still != 1) {
        return still == 0 ? SEMLOCK_LOST : still;
    }
    outcome = semlock_write_all(fd, text, length);
    if (outcome == 0) {
        semlock_written(lock, text, length);
    }
    if (outcome == 0 && seen.st_size > length && ftruncate(fd, length) != 0) {
        outcome = -errno; /* rewritten longer by another program, with our token */
    }
    return outcome;
}

static int
refresh_held(void *argument)
{
    job *work = argument;
    semlock_lock *lock = work->lock;
    int fd, opened, guard;
    int outcome = semlock_held_open(lock, &fd, &opened);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    guard = semlock_guard(fd);
    outcome =
        guard == SEMLOCK_GUARDED ? guard : refresh_guarded(lock, fd, work->text, work->length);
    if (guard != SEMLOCK_GUARDED) {
        semlock_unguard(fd);
    }
    if (opened && (outcome != SEMLOCK_OK || !keep_again(lock, work->pool, fd))) {
        close(fd);
    }
    return outcome;
}

/* Write the record again with new content of the same length, mostly a new time. */
int
semlock_refresh(semlock_lock *lock, semlock_pool *pool, const char *text, int32_t length)
{
    job work = {lock, pool, text, length};
    int64_t owner;
    int outcome;

    semlock_enter(pool);
    outcome = semlock_object_borrow(lock, pool, &owner);
    if (outcome == SEMLOCK_OK) {
        outcome =
            length == lock->file.length ? semlock_spare(refresh_held, &work, pool) : -EINVAL;
        semlock_object_return(lock, owner);
    }
    semlock_leave(pool);
    return outcome;
}

static int
check_held(void *argument)
{
    job *work = argument;
    semlock_lock *lock = work->lock;
    struct stat seen;
    int fd, opened;
    int outcome = semlock_held_open(lock, &fd, &opened);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = semlock_seen_at(lock->path, &lock->file, &seen);
    if (outcome == 1) {
        outcome = semlock_still_own(lock, fd, &seen);
    }
    outcome = outcome == 1 ? SEMLOCK_OK : (outcome == 0 ? SEMLOCK_LOST : outcome);
    if (opened && (outcome != SEMLOCK_OK || !keep_again(lock, work->pool, fd))) {
        close(fd);
    }
    return outcome;
}

int
semlock_check(semlock_lock *lock, semlock_pool *pool)
{
    job work = {lock, pool, NULL, 0};
    int64_t owner;
    int outcome;

    semlock_enter(pool);
    outcome = semlock_object_borrow(lock, pool, &owner);
    if (outcome == SEMLOCK_OK) {
        outcome = semlock_spare(check_held, &work, pool);
        semlock_object_return(lock, owner);
    }
    semlock_leave(pool);
    return outcome;
}

/* Reset the object and close its descriptors.  The file at its path is not changed. */
void
semlock_forget(semlock_lock *lock, semlock_pool *pool)
{
    semlock_enter(pool);
    semlock_object_bind(lock, pool);
    if (semlock_file_descriptor(&lock->file) >= 0) {
        semlock_file_close(&lock->file);
    }
    semlock_bare_over(pool, &lock->file);
    if (lock->ticket.handle >= 0) {
        semlock_descriptor_close(lock->ticket.handle, lock->ticket.dev, lock->ticket.ino);
        lock->ticket.handle = -1;
    }
    semlock_object_freed(lock);
    semlock_leave(pool);
}

/* Leave the lock to the process that its record names, and reset the object. */
int
semlock_detach(semlock_lock *lock, semlock_pool *pool)
{
    int outcome;

    semlock_enter(pool);
    outcome = semlock_object_bind(lock, pool);
    semlock_leave(pool);
    if (outcome == SEMLOCK_OK) {
        semlock_forget(lock, pool);
    }
    return outcome;
}
