/* POSIX: the steps by which common/change.c removes or rewrites what was judged. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

/* Open the path, if it is this file, with the given access mode. */
static int
open_exact(const char *path, const semlock_file *file, int access_mode, int *fd)
{
    struct stat seen;
    int error;

    *fd = semlock_open(path, access_mode | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (*fd < 0) {
        return errno == ENOENT || errno == ENOTDIR || semlock_is_link(errno) ? SEMLOCK_LOST
                                                                             : -errno;
    }
    if (fstat(*fd, &seen) != 0) {
        error = errno;
        close(*fd);
        return -error;
    }
    if (seen.st_ino != (ino_t)file->ino || seen.st_dev != (dev_t)file->dev) {
        close(*fd);
        return SEMLOCK_LOST;
    }
    return SEMLOCK_OK;
}

int
semlock_open_to_remove(const char *path, const semlock_file *file, int *fd)
{
    return open_exact(path, file, O_RDONLY, fd);
}

/* What is open for reading may be removed. */
int
semlock_reopen_to_remove(const char *path, const semlock_file *file, int *fd)
{
    (void)path;
    (void)file;
    (void)fd;
    return SEMLOCK_OK;
}

int
semlock_open_to_write(const char *path, int *fd)
{
    *fd = semlock_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (*fd >= 0) {
        return SEMLOCK_OK;
    }
    return errno == ENOENT || errno == ENOTDIR || semlock_is_link(errno) ? SEMLOCK_LOST
                                                                         : -errno;
}

/* Remove the private name that a killed holder of a kept claim left behind. */
static void
remove_orphan_name(const char *path, int32_t directory_length, const semlock_file *file)
{
    char name[SEMLOCK_PATH_ROOM];

    if (semlock_private_path(name, path, directory_length, file) == 0 &&
        semlock_still_at(name, file) == 1) {
        unlink(name);
    }
}

/* Take the guard on a file that is open for reading.  NFS turns flock into a byte lock, which
 * needs a writable descriptor.  A process without write permission has no guard there. */
int
semlock_guard_judged(const char *path, const semlock_file *file, int *fd)
{
    int guard = semlock_guard(*fd);
    int writable;

    if (guard == -EBADF && open_exact(path, file, O_RDWR, &writable) == SEMLOCK_OK) {
        close(*fd);
        *fd = writable;
        guard = semlock_guard(writable);
    }
    return guard;
}

/* Has the judged file been changed since, without the guard? */
static int
has_changed(const struct stat *now, const semlock_view *judged)
{
    return judged->local && judged->local != SEMLOCK_LAYERED &&
           (now->st_size != judged->size || SEMLOCK_TIME_OF(now, c) != judged->ctime_ns);
}

/* Remove the judged file from the path, under the guard.  Path and state are checked again
 * because foreign programs take no guard: this keeps the check and the unlink adjacent. */
int
semlock_remove_opened(const char *path, const semlock_view *judged, int fd, int guard,
                      semlock_pool *pool)
{
    semlock_file file = semlock_file_of(judged);
    int32_t directory_length = semlock_directory_length(path, (int32_t)strlen(path));
    int still, outcome;
    struct stat now;

    (void)fd;
    still = semlock_seen_at(path, &file, &now);
    if (still == 0) {
        return SEMLOCK_LOST;
    }
    if (still == 1 && has_changed(&now, judged)) {
        return SEMLOCK_CHANGED;
    }
    outcome = guard < 0 /* ENOLCK, EOPNOTSUPP: waiting does not help */
                  ? semlock_remove_aside(path, directory_length, &file, pool)
                  : semlock_unlink_exact(path, &file);
    if (outcome == SEMLOCK_OK && judged->links > 1) {
        remove_orphan_name(path, directory_length, &file);
    }
    return outcome;
}

/* Append bytes, at the file's end at that moment: if a foreign program has just truncated the
 * file, bytes at the old end would leave a hole of zeros.  (On Linux pwrite appends with
 * O_APPEND; elsewhere it writes at the end as it was a moment ago.) */
int
semlock_append(int fd, const char *bytes, int32_t length, int32_t end)
{
    ssize_t n;
    int outcome;

    if (fcntl(fd, F_SETFL, O_APPEND) != 0) {
        return -errno;
    }
    n = pwrite(fd, bytes, (size_t)length, end);
    outcome = n == length ? SEMLOCK_OK : (n < 0 ? -errno : -ENOSPC);
    if (fcntl(fd, F_SETFL, 0) != 0 && outcome == SEMLOCK_OK) {
        outcome = -errno;
    }
    return outcome;
}
