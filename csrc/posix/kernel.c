/* POSIX: the kernel's lock on a file that stays (flock).
 *
 * The lock belongs to the open file, not to the path and not to the process.  So:
 *
 *   it is ours only while the path leads to the file that is locked: another program may have
 *   removed or replaced it between our open and our lock;
 *   a release unlocks and then closes: a child that is just being started may have a copy of
 *   the descriptor, which would keep the lock;
 *   a forked child closes its copies and never unlocks: that would end the parent's lock.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/waiting.h"

#define TRIES 64
#define FLAGS (O_NOFOLLOW | O_NONBLOCK | O_NOCTTY) /* a lease or a FIFO must not block */

/* Open what is at the path.  For writing if possible: network filesystems lock exclusively
 * only what is open for writing.  Not what is no file: opening a device for writing may act on
 * it.
 */
static int
open_existing(const char *path, int flags, int is_file)
{
    int fd = -1;

    errno = EACCES;
    if (is_file) {
        fd = semlock_open(path, O_RDWR | flags, 0);
    }
    if (fd < 0 && (errno == EACCES || errno == EPERM || errno == EROFS || errno == ETXTBSY)) {
        fd = semlock_open(path, O_RDONLY | flags, 0);
    }
    return fd < 0 ? -errno : fd;
}

/* Open the file at the path, and make it if there is none: a descriptor; -EEXIST if another
 * process made or removed it meanwhile; or another error. */
static int
open_to_lock(const semlock_lock *lock, int *made)
{
    mode_t mode = (mode_t)SEMLOCK_MODE(lock->record);
    struct stat seen;
    int fd;

    *made = 0;
    if (lstat(lock->path, &seen) == 0) {
        if (S_ISLNK(seen.st_mode)) {
            return -ELOOP;
        }
        fd = open_existing(lock->path, FLAGS, S_ISREG(seen.st_mode));
        return fd == -ENOENT ? -EEXIST : fd;
    }
    if (errno != ENOENT) {
        return -errno;
    }
    fd = semlock_open(lock->path, O_RDWR | O_CREAT | O_EXCL | FLAGS, mode);
    *made = fd >= 0;
    if (fd >= 0 && (lock->record->mode & SEMLOCK_EXACT) && fchmod(fd, mode) != 0) {
        errno = 0; /* as the umask says, then */
    }
    return fd < 0 ? -errno : fd;
}

static int
kind_of(int32_t kernel)
{
    return (kernel == SEMLOCK_SHARED ? LOCK_SH : LOCK_EX) | LOCK_NB;
}

/* Lock an open file: SEMLOCK_OK, SEMLOCK_HELD or an error.  Some filesystems say EACCES for a
 * lock that is held elsewhere. */
static int
lock_opened(int fd, int kind)
{
    if (flock(fd, kind) == 0) {
        return SEMLOCK_OK;
    }
    return errno == EWOULDBLOCK || errno == EACCES ? SEMLOCK_HELD : -errno;
}

static int
is_at(const char *path, const struct stat *opened)
{
    struct stat seen;

    return lstat(path, &seen) == 0 && seen.st_ino == opened->st_ino &&
           seen.st_dev == opened->st_dev;
}

static void
took(semlock_lock *lock, int fd, const struct stat *seen)
{
    lock->file.handle = fd;
    lock->file.dev = (uint64_t)seen->st_dev;
    lock->file.ino = (uint64_t)seen->st_ino;
    lock->file.place = lock->file.turn = 0;
    lock->file.signature = 0;
}

static int
take_lent(semlock_lock *lock, const semlock_pool *pool)
{
    struct stat seen;
    int fd = (int)(lock->lent - 1);
    int outcome;

    if (fstat(fd, &seen) != 0) {
        return -errno;
    }
    semlock_lent_enter(pool);
    outcome = semlock_lent_take(&seen, fd, lock->kernel);
    if (outcome == SEMLOCK_OK) {
        took(lock, fd, &seen);
        semlock_file_borrow(&lock->file);
        outcome = lock_opened(fd, kind_of(lock->kernel));
        if (outcome != SEMLOCK_OK) {
            semlock_lent_give(&lock->file);
            semlock_file_reset(&lock->file);
        }
    }
    semlock_lent_leave();
    return outcome;
}

/* Lock the file at the path, which is made if there is none: SEMLOCK_OK, SEMLOCK_HELD, or an
 * error. */
int
semlock_kernel_take(semlock_lock *lock, semlock_pool *pool)
{
    if (lock->lent != 0) {
        return take_lent(lock, pool);
    }
    for (int tries = 0; tries < TRIES; tries++) {
        struct stat opened;
        int made;
        int fd = open_to_lock(lock, &made);
        int outcome;

        if (fd == -EWOULDBLOCK) {
            return SEMLOCK_HELD; /* the holder of a lease must give that up first */
        }
        if (fd == -EEXIST) {
            continue; /* made or removed by another process just now */
        }
        if (fd < 0) {
            return fd;
        }
        outcome = lock_opened(fd, kind_of(lock->kernel));
        if (outcome == SEMLOCK_OK) {
            if (fstat(fd, &opened) == 0 && is_at(lock->path, &opened)) {
                took(lock, fd, &opened);
                if (semlock_file_keep_signed(&lock->file) == 0) {
                    return SEMLOCK_OK;
                }
                semlock_file_reset(&lock->file);
                outcome = -ENOMEM;
            }
            flock(fd, LOCK_UN);
        }
        else if (outcome == -ENOSYS && made && fstat(fd, &opened) == 0 &&
                 is_at(lock->path, &opened)) {
            /* No process can lock it here.  A lock by a file's existence, which the caller may
             * use then, would take an empty file for one that is held. */
            unlink(lock->path);
        }
        close(fd);
        if (outcome != SEMLOCK_OK) {
            return outcome;
        }
    }
    return SEMLOCK_HELD; /* the file at the path is another one at each look */
}

/* Unlock, and close what was opened here: SEMLOCK_OK, SEMLOCK_LOST if the path leads to
 * another file by now or the program has closed the descriptor, or an error: then it is still
 * held. */
int
semlock_kernel_release(semlock_lock *lock, semlock_pool *pool)
{
    struct stat seen;
    semlock_file *file = &lock->file;
    int fd = semlock_file_descriptor(file);
    int ours = fd >= 0;
    int last = 1;

    if (lock->lent != 0) {
        file->handle = lock->lent - 1;
        semlock_lent_enter(pool);
        last = semlock_lent_give(file);
        if (ours && last) {
            flock(fd, LOCK_UN);
        }
        semlock_lent_leave();
        file->handle = -1;
        return ours ? SEMLOCK_OK : SEMLOCK_LOST;
    }
    if (!ours) {
        return SEMLOCK_LOST;
    }
    seen.st_dev = (dev_t)file->dev;
    seen.st_ino = (ino_t)file->ino;
    ours = is_at(lock->path, &seen);
    flock(fd, LOCK_UN);
    semlock_file_close(file);
    return ours ? SEMLOCK_OK : SEMLOCK_LOST;
}

/* Is it still held?  Locking again changes nothing if it is, and fails if another program has
 * unlocked it by a copy of the descriptor and a third one has locked it. */
int
semlock_kernel_check(semlock_lock *lock, semlock_pool *pool)
{
    struct stat seen;
    semlock_file file = lock->file;
    int fd = semlock_file_descriptor(&file);
    int outcome;

    (void)pool;
    seen.st_dev = (dev_t)file.dev;
    seen.st_ino = (ino_t)file.ino;
    if (fd < 0 || (lock->lent == 0 && !is_at(lock->path, &seen))) {
        return SEMLOCK_LOST;
    }
    outcome = lock_opened(fd, kind_of(lock->kernel));
    return outcome == SEMLOCK_HELD ? SEMLOCK_LOST : outcome;
}

/* Open what a lock would lock, once more: the kernel sees another holder in it, although it is
 * the caller's own descriptor that is to be locked. */
static int
open_to_ask(const char *path, int64_t lent_fd, int is_file)
{
    char name[40];

    if (lent_fd < 0) {
        return open_existing(path, FLAGS, is_file);
    }
    snprintf(name, sizeof name, "/proc/self/fd/%lld", (long long)lent_fd);
    return open_existing(name, FLAGS & ~O_NOFOLLOW, is_file);
}

/* Has any process a record lock (fcntl) on an open file?  One that cannot be asked has. */
static int
has_record_lock(int fd)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
#if defined(F_OFD_GETLK)
    int asked = fcntl(fd, F_OFD_GETLK, &whole); /* which sees those of this process too */
#else
    int asked = fcntl(fd, F_GETLK, &whole);
#endif

    return asked != 0 || whole.l_type != F_UNLCK;
}

/* Could a try have it?  A shared lock that others hold keeps a writer out, so readers behind a
 * waiting writer are not told that it is free. */
int
semlock_kernel_is_free(const semlock_lock *lock)
{
    struct stat seen;
    int fd, is_free;

    if (lock->lent == 0 && lstat(lock->path, &seen) != 0) {
        return errno == ENOENT;
    }
    if (lock->lent != 0 && fstat((int)(lock->lent - 1), &seen) != 0) {
        return 1;
    }
    fd = open_to_ask(lock->path, lock->lent - 1, S_ISREG(seen.st_mode));
    if (fd < 0) {
        return fd == -ENOENT;
    }
    is_free = lock_opened(fd, LOCK_EX | LOCK_NB) != SEMLOCK_HELD;
    if (is_free) {
        /* Of a lock file it is asked whether any program locks it, in whatever way. */
        is_free = lock->kernel != SEMLOCK_BY_FILE || !has_record_lock(fd);
        flock(fd, LOCK_UN);
    }
    close(fd);
    return is_free;
}

/* What is at the path that is waited for, or is open under the caller's descriptor. */
int
semlock_kernel_stat(const semlock_watch *watch, struct stat *seen)
{
    return watch->lent != 0 ? fstat((int)(watch->lent - 1), seen) : lstat(watch->path, seen);
}

/* Close what was opened to ask. */
void
semlock_kernel_asked(semlock_watch *watch)
{
    if (semlock_file_descriptor(&watch->ask) >= 0) {
        semlock_file_close(&watch->ask);
    }
}

/* Ask the kernel whether a try could lock the file that was seen at the path: 1 or 0.  The
 * descriptor stays open until the wait ends: closing it would be an event for other waiters,
 * which would ask too, and wake this one.  Where it can't be opened, a try is made each time
 * that the clock says so. */
int
semlock_kernel_ask(semlock_watch *watch, const struct stat *seen)
{
    struct stat opened;
    semlock_file *ask = &watch->ask;
    int fd = -1;

    if (ask->handle >= 0 && ask->ino == (uint64_t)seen->st_ino &&
        ask->dev == (uint64_t)seen->st_dev) {
        fd = semlock_file_descriptor(ask);
    }
    if (fd < 0) {
        semlock_kernel_asked(watch);
        fd = open_to_ask(watch->path, watch->lent - 1, S_ISREG(seen->st_mode));
        semlock_file_reset(ask);
        ask->handle = fd;
        ask->dev = (uint64_t)seen->st_dev;
        ask->ino = (uint64_t)seen->st_ino;
        if (!semlock_descriptor_ours(fd, ask->dev, ask->ino, &opened) ||
            semlock_file_keep_signed(ask) != 0) {
            ask->handle = -1;
            if (fd >= 0) {
                close(fd);
            }
            watch->due = 0;
            return 1;
        }
    }
    if (lock_opened(fd, kind_of(watch->kernel)) == SEMLOCK_HELD) {
        return 0;
    }
    flock(fd, LOCK_UN); /* or the try, by another descriptor, would find it locked */
    return 1;
}
