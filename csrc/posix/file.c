/* POSIX: names, the guard, and the steps that several calls share. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "posix/system.h"

int64_t
semlock_wall_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* On macOS CLOCK_MONOTONIC is the wall clock minus the boot time: it counts microseconds, and
 * has been seen to step back by some. */
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

/* The error of O_NOFOLLOW at a symbolic link: ELOOP by the standard, another one on some
 * systems. */
int
semlock_is_link(int error)
{
#if defined(EFTYPE)
    return error == ELOOP || error == EMLINK || error == EFTYPE;
#else
    return error == ELOOP || error == EMLINK;
#endif
}

/* What a file server may answer about a file that is open here and was removed by others. */
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

/* Link a kept claim to its lock's path by its private name.  Another file may have got the
 * private name, so the path is checked afterwards. */
int
semlock_link_by_private_name(const semlock_lock *lock)
{
    char name[SEMLOCK_PATH_ROOM];
    struct stat linked, other;
    int error = semlock_private_path(name, lock->path, lock->directory_length, &lock->file);

    if (error != 0) {
        return error;
    }
    if (linkat(AT_FDCWD, name, AT_FDCWD, lock->path, 0) != 0) {
        return -errno;
    }
    if (lstat(lock->path, &linked) != 0) {
        error = -errno;
        unlink(lock->path); /* made here, and it cannot be identified */
        return error;
    }
    if (linked.st_ino == (ino_t)lock->file.ino && linked.st_dev == (dev_t)lock->file.dev) {
        return SEMLOCK_OK;
    }
    if (lstat(name, &other) == 0 && linked.st_ino == other.st_ino &&
        linked.st_dev == other.st_dev) {
        unlink(lock->path);
    }
    return -ESTALE;
}

/* Remove a kept claim's private name: 0 if it is gone. */
int
semlock_private_remove(const semlock_file *file, const char *directory, int32_t length)
{
    char name[SEMLOCK_PATH_ROOM];
    int still;

    if (!file->named || semlock_private_path(name, directory, length, file) != 0) {
        return 0;
    }
    still = semlock_still_at(name, file);
    if (still == 1 && unlink(name) != 0 && errno != ENOENT) {
        return -errno;
    }
    return still < 0 ? still : 0;
}

/* Take the guard: 0, SEMLOCK_GUARDED, or the error of a filesystem without flock.
 *
 * Cooperators hold it for microseconds, so yielding the processor some times is enough to wait
 * for them.  A longer hold is by a stopped process or a user of flock(1); the caller in Python
 * decides how long to wait for those. */
int
semlock_guard(int fd)
{
    for (int tries = 0;; tries++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            return 0;
        }
        /* On SMB, EACCES means that another process has the lock; elsewhere, that there is no
         * flock. */
        if (errno != EWOULDBLOCK && errno != EACCES && errno != EINTR) {
            return -errno;
        }
        if (tries == SEMLOCK_GUARD_TRIES) {
            return errno == EACCES ? -EACCES : SEMLOCK_GUARDED;
        }
        sched_yield();
    }
}

int
semlock_is_kept_out(int guard)
{
    return guard == SEMLOCK_GUARDED;
}

void
semlock_unguard(int fd)
{
    flock(fd, LOCK_UN);
}

/* Unlock before closing: a child that is just being started may have a copy of the descriptor
 * for a moment. */
void
semlock_close_guarded(int fd)
{
    semlock_unguard(fd);
    close(fd);
}

void
semlock_os_close(int fd)
{
    close(fd);
}

/* The witness is tested, and not taken: the guard keeps others from a new acquisition. */
int
semlock_hold_off(int fd)
{
    return semlock_system_witness(fd);
}

/* The path as the system takes it: here as it is. */
int
semlock_os_path(char *room, const char *path)
{
    return semlock_join(room, "", 0, path);
}

static int
seems_at(const char *path, const semlock_file *file, struct stat *seen)
{
    if (lstat(path, seen) != 0) {
        return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    }
    return seen->st_ino == (ino_t)file->ino && seen->st_dev == (dev_t)file->dev;
}

/* Does the path name this very file? 1, 0, or an error if it is not known.  With 1, `seen` is
 * the file's stat.
 *
 * The client of a network filesystem answers lstat() from its cache, which can be a minute
 * old.  A lock that another machine removed, or created since, then looks like this one; but
 * unlink() removes the file that the server has under the name.  Opening makes the client ask
 * the server: opening the directory for its names, opening the file for its identity. */
int
semlock_seen_at(const char *path, const semlock_file *file, struct stat *seen)
{
    char directory[SEMLOCK_PATH_ROOM];
    int still = seems_at(path, file, seen);
    int fd;

    if (still != 1 || file->local || semlock_directory_of(directory, path) != 0 ||
        semlock_system_hears(directory)) {
        return still;
    }
    fd = semlock_open(directory, O_RDONLY | O_DIRECTORY, 0);
    if (fd >= 0) {
        close(fd);
    }
    fd = semlock_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd >= 0) {
        close(fd);
    }
    else if (errno == ENOENT) {
        /* The answer of the server; lstat() would still use the cache.  SMB also gives it for
         * a removed file that is still open somewhere. */
        return 0;
    }
    return seems_at(path, file, seen);
}

int
semlock_still_at(const char *path, const semlock_file *file)
{
    struct stat seen;

    return semlock_seen_at(path, file, &seen);
}

int
semlock_write_at(int fd, const char *bytes, int32_t length, int32_t at)
{
    ssize_t n = pwrite(fd, bytes, (size_t)length, at);

    return n < 0 ? -errno : (int)n;
}

int
semlock_read_at(int fd, char *bytes, int32_t length, int32_t at)
{
    ssize_t n = pread(fd, bytes, (size_t)length, at);

    return n < 0 ? -errno : (int)n;
}

int
semlock_shorten(int fd, int32_t length)
{
    return ftruncate(fd, length) == 0 ? 0 : -errno;
}

/* Unlink a path that was just seen, under the guard, to name this file. 0, SEMLOCK_LOST if it
 * was gone by then, or the error if it is still there. */
int
semlock_unlink_exact(const char *path, const semlock_file *file)
{
    int error;

    if (unlink(path) == 0) {
        return 0;
    }
    error = errno;
    if (semlock_still_at(path, file) == 0) {
        /* Over a network the first answer can be lost; the retry then gives ENOENT. */
        return error == ENOENT ? SEMLOCK_LOST : 0;
    }
    return -error;
}

/* Remove this file from the path on a filesystem without a guard: rename the path to a random
 * name, check which file was moved, and link it back if it was another one.  While it is aside
 * the path looks free; that is the weaker guarantee of this way. */
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
        /* The path is free, which is the goal; removing the random name is cleaning up. */
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

/* Dispose of a file that has only its private name, or no name.  If it still has other names,
 * its directory was copied by hard links.  Then "over" is written into the record, so that the
 * copy is not taken for a held lock. */
void
semlock_file_dispose(semlock_file *file, const char *directory, int32_t length)
{
    struct stat seen;
    int known = file->ino != 0; /* else the file was opened just now */
    int fd = known ? semlock_file_descriptor(file) : (int)file->handle;

    semlock_private_remove(file, directory, length);
    if (fd >= 0) {
        if (known && fstat(fd, &seen) == 0 && seen.st_nlink > 0) {
            semlock_file_over(file, fd);
        }
        semlock_file_close(file);
    }
    semlock_file_reset(file);
}
