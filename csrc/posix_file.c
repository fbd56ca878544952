/* POSIX: names, the guard, and the steps that several calls share. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "semlock.h"

/* The thread's number, the same that Python's get_ident() gives. */
int64_t
semlock_thread(void)
{
    return (int64_t)(uintptr_t)pthread_self();
}

int64_t
semlock_wall_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec;
}

/* On macOS the clock with the usual name is the wall clock less the time of the boot: it
 * counts microseconds, and has been seen to step back by some. */
#if defined(__APPLE__)
#define STEADY_CLOCK CLOCK_MONOTONIC_RAW
#else
#define STEADY_CLOCK CLOCK_MONOTONIC
#endif

int64_t
semlock_now_ns(void)
{
    struct timespec now;

    clock_gettime(STEADY_CLOCK, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void
semlock_yield(void)
{
    sched_yield();
}

/* What O_NOFOLLOW says of a link: ELOOP by the standard, another word on some systems. */
int
semlock_is_link(int error)
{
#if defined(EFTYPE)
    return error == ELOOP || error == EMLINK || error == EFTYPE;
#else
    return error == ELOOP || error == EMLINK;
#endif
}

/* What a server may answer about a file that is open here and that others removed. */
int
semlock_is_gone(int outcome)
{
    return outcome == -ENOENT || outcome == -ESTALE;
}

/* `directory`/`name` with a final NUL into `room`, or -ENAMETOOLONG. */
int
semlock_join(char *room, const char *directory, int32_t length, const char *name)
{
    size_t tail = strlen(name);
    size_t head = (size_t)length;

    if (head + tail + 2 > SEMLOCK_PATH_ROOM) {
        return -ENAMETOOLONG;
    }
    memcpy(room, directory, head);
    if (head > 0 && room[head - 1] != '/') {
        room[head++] = '/';
    }
    memcpy(room + head, name, tail + 1);
    return 0;
}

/* Where a kept claim stays between acquisitions.  The inode number makes the name unique in
 * its directory, and lets whoever finds the instance at P find this name too. */
int
semlock_private_path(char *room, const char *directory, int32_t length,
                     const semlock_file *file)
{
    char name[48];

    snprintf(name, sizeof name, ".semlock-%llx.kept", (unsigned long long)file->ino);
    return semlock_join(room, directory, length, name);
}

/* Give a kept claim its lock's path as a second name, by its private one. */
int
semlock_link_by_private_name(const semlock_lock *lock)
{
    char name[SEMLOCK_PATH_ROOM];
    int error = semlock_private_path(name, lock->path, lock->directory_length, &lock->file);

    if (error != 0) {
        return error;
    }
    return linkat(AT_FDCWD, name, AT_FDCWD, lock->path, 0) == 0 ? SEMLOCK_OK : -errno;
}

int
semlock_temporary_path(char *room, const char *directory, int32_t length, semlock_pool *pool)
{
    char token[33];
    char name[64];

    semlock_new_token(pool, token);
    snprintf(name, sizeof name, ".semlock-%s.tmp", token);
    return semlock_join(room, directory, length, name);
}

/* Take the guard: 0, SEMLOCK_GUARDED, or the error of a filesystem that has none.
 *
 * Cooperators hold it for microseconds, so giving up the processor a few times is enough
 * to pass them.  Whoever holds it longer is a stopped process or a user of flock(1), and
 * the caller in Python decides how long to wait for those. */
int
semlock_guard(int fd)
{
    for (int tries = 0;; tries++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            return 0;
        }
        /* EACCES is SMB's word for a lock that somebody has, and elsewhere for no lock at all.
         */
        if (errno != EWOULDBLOCK && errno != EACCES && errno != EINTR) {
            return -errno;
        }
        if (tries == SEMLOCK_GUARD_TRIES) {
            return errno == EACCES ? -EACCES : SEMLOCK_GUARDED;
        }
        sched_yield();
    }
}

void
semlock_unguard(int fd)
{
    flock(fd, LOCK_UN);
}

static int
seems_at(const char *path, const semlock_file *file)
{
    struct stat seen;

    if (lstat(path, &seen) != 0) {
        return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    }
    return seen.st_ino == (ino_t)file->ino && seen.st_dev == (dev_t)file->dev;
}

/* Does the path name this very file?  1, 0, or an error that leaves it open.
 *
 * The client of a network filesystem answers lstat() out of its memory, for up to a minute, so
 * that a lock which another machine removed, or put there since, looks like this one; but
 * unlink() goes by the name, as the server knows it.  Opening makes the client ask: the
 * directory for the names in it, the file for what it is. */
int
semlock_still_at(const char *path, const semlock_file *file)
{
    char directory[SEMLOCK_PATH_ROOM];
    const char *last = strrchr(path, '/');
    int still = seems_at(path, file);
    int fd;

    if (still != 1 || file->local || last == NULL ||
        semlock_join(directory, path, (int32_t)(last - path), "") != 0 ||
        semlock_system_hears(directory)) {
        return still;
    }
    fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
    }
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0) {
        close(fd);
    }
    else if (errno == ENOENT) {
        /* The server's word; lstat() would still answer as before.  On SMB this is also said
         * of a file that was removed and that somebody has open. */
        return 0;
    }
    return seems_at(path, file);
}

int
semlock_write_all(int fd, const char *bytes, int32_t length)
{
    int32_t done = 0;

    while (done < length) {
        ssize_t n = pwrite(fd, bytes + done, (size_t)(length - done), done);

        if (n < 0) {
            return -errno;
        }
        if (n == 0) {
            return -ENOSPC;
        }
        done += (int32_t)n;
    }
    return 0;
}

/* Up to `capacity` bytes from the beginning: how many there were, or an error. */
int
semlock_read_all(int fd, char *bytes, int32_t capacity)
{
    int32_t done = 0;

    while (done < capacity) {
        ssize_t n = pread(fd, bytes + done, (size_t)(capacity - done), done);

        if (n < 0) {
            return -errno;
        }
        if (n == 0) {
            break;
        }
        done += (int32_t)n;
    }
    return done;
}

/* Unlink a path that was just seen, under the guard, to name this file.
 * 0, SEMLOCK_LOST if it was gone by then, or the error if it is still there. */
int
semlock_unlink_exact(const char *path, const semlock_file *file)
{
    int error;

    if (unlink(path) == 0) {
        return 0;
    }
    error = errno;
    if (semlock_still_at(path, file) == 0) {
        /* Over a network the first answer can be lost and the second be ENOENT. */
        return error == ENOENT ? SEMLOCK_LOST : 0;
    }
    return -error;
}

/* Remove this file from the path on a filesystem that has no guard: move the path to a
 * random name, look what was moved, and put it back if it was somebody else's.  While it
 * is aside the path looks free, which is the lesser guarantee of this way. */
int
semlock_remove_aside(const char *path, int32_t directory_length, const semlock_file *file,
                     semlock_pool *pool)
{
    char aside[SEMLOCK_PATH_ROOM];
    int still = semlock_still_at(path, file);
    int error;

    if (still <= 0) {
        return still == 0 ? SEMLOCK_LOST : still;
    }
    error = semlock_temporary_path(aside, path, directory_length, pool);
    if (error != 0) {
        return error;
    }
    error = rename(path, aside) == 0 ? 0 : errno;
    still = semlock_still_at(aside, file);
    if (still == 1) {
        /* It is gone from the path, which is what counts; the rest is tidying up. */
        unlink(aside);
        return 0;
    }
    if (error != 0) {
        return error == ENOENT ? SEMLOCK_LOST : -error;
    }
    if (link(aside, path) == 0) {
        unlink(aside);
    }
    return still < 0 ? still : SEMLOCK_LOST;
}

/* Give up a file that is nowhere but under its private name, or has no name at all. */
void
semlock_file_dispose(semlock_file *file, const char *directory, int32_t length)
{
    char name[SEMLOCK_PATH_ROOM];

    if (file->named && semlock_private_path(name, directory, length, file) == 0 &&
        semlock_still_at(name, file) == 1) {
        unlink(name);
    }
    if (file->handle >= 0) {
        close((int)file->handle);
    }
    semlock_file_reset(file);
}

/* After fork the child owns nothing.  Closing its copies drops no lock of the parent. */
void
semlock_forget(semlock_lock *lock)
{
    if (lock->file.handle >= 0) {
        close((int)lock->file.handle);
    }
    if (lock->ticket.handle >= 0) {
        close((int)lock->ticket.handle);
        lock->ticket.handle = -1;
    }
    semlock_object_freed(lock);
}

void
semlock_pool_forget(semlock_pool *pool)
{
    for (int i = 0; i < SEMLOCK_POOL_SLOTS; i++) {
        semlock_slot *slot = &pool->slots[i];

        if (slot->state != 0 && slot->file.handle >= 0) {
            close((int)slot->file.handle);
        }
        memset(slot, 0, sizeof *slot);
    }
    semlock_events_forget_kept(pool);
    memset(pool->holding, 0, sizeof pool->holding);
    memset(pool->seen, 0, sizeof pool->seen);
    pool->busy = 0;
    pool->forking = 0;
}
