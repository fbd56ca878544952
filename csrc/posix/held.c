/* POSIX: the descriptor of a held instance.
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
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

#define OVER "over" /* replaces "kept", "left" or "none": the lock was released */

/* Mark a released instance that still has other names: readers of those names see that it is
 * not held.  This is a service to them, so an error is ignored.  The next holder under such a
 * name needs the guard; a child that is just being started may have a copy of the descriptor.
 */
void
semlock_file_over(const semlock_file *file, int fd)
{
    if (file->witness_at >= 0 && file->witness_at + 4 <= file->length) {
        ssize_t n = pwrite(fd, OVER, 4, file->witness_at);

        (void)n;
    }
    semlock_unguard(fd);
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
        own = semlock_has_record(*fd, lock);
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
    int (*step)(semlock_lock *, int, const void *);
    const void *argument;
} job;

static int
run(void *argument)
{
    job *work = argument;
    int fd, opened;
    int outcome = semlock_held_open(work->lock, &fd, &opened);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = work->step(work->lock, fd, work->argument);
    if (opened && (outcome != SEMLOCK_OK || !keep_again(work->lock, work->pool, fd))) {
        close(fd);
    }
    return outcome;
}

/* Run a step with the held instance open. */
int
semlock_with_held(semlock_lock *lock, semlock_pool *pool,
                  int (*step)(semlock_lock *, int, const void *), const void *argument)
{
    job work = {lock, pool, step, argument};

    return semlock_spare(run, &work, pool);
}

/* Is the instance at the path? 1 with length, mtime and links; 0, or an error. */
int
semlock_path_has(const semlock_lock *lock, int fd, semlock_view *found)
{
    struct stat seen;
    int still = semlock_seen_at(lock->path, &lock->file, &seen);

    (void)fd;
    if (still == 1) {
        found->size = seen.st_size;
        found->mtime_ns = SEMLOCK_TIME_OF(&seen, m);
        found->links = (int32_t)seen.st_nlink;
    }
    return still;
}

/* Close what a held lock has open. */
void
semlock_held_close(semlock_lock *lock, semlock_pool *pool)
{
    if (lock->lent == 0 && semlock_file_descriptor(&lock->file) >= 0) {
        semlock_file_close(&lock->file);
    }
    semlock_bare_over(pool, &lock->file);
    if (lock->ticket.handle >= 0) {
        semlock_descriptor_close(lock->ticket.handle, lock->ticket.dev, lock->ticket.ino);
        lock->ticket.handle = -1;
    }
}
