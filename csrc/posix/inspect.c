/* POSIX: inspecting a path without following a link, opening a device, blocking on a FIFO, or
 * reading more than the largest record. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

/* Is it the file of an in-place creator that has not finished?  Creating and writing set ctime
 * and mtime to the same value.  A sticky bit set by `chmod -R` later changes only ctime. */
int
semlock_is_unfinished(const struct stat *seen)
{
    return (seen->st_mode & SEMLOCK_UNFINISHED_MODE) != 0 &&
           SEMLOCK_TIME_OF(seen, c) == SEMLOCK_TIME_OF(seen, m);
}

static void
describe(const struct stat *seen, semlock_view *view)
{
    memset(view, 0, sizeof *view);
    view->kind = S_ISREG(seen->st_mode)   ? SEMLOCK_REGULAR
                 : S_ISLNK(seen->st_mode) ? SEMLOCK_SYMLINK
                 : S_ISDIR(seen->st_mode) ? SEMLOCK_DIRECTORY
                                          : SEMLOCK_OTHER;
    view->mode = (int32_t)(seen->st_mode & 07777);
    view->dev = (uint64_t)seen->st_dev;
    view->ino = (uint64_t)seen->st_ino;
    view->size = (int64_t)seen->st_size;
    view->ctime_ns = SEMLOCK_TIME_OF(seen, c);
    view->mtime_ns = SEMLOCK_TIME_OF(seen, m);
    view->uid = (int64_t)seen->st_uid;
    view->links = (int32_t)seen->st_nlink;
    view->witness = -1;
    view->unfinished = semlock_is_unfinished(seen);
}

/* Describe an open file, without its bytes. */
int
semlock_describe(int fd, semlock_view *view)
{
    struct stat seen;

    if (fstat(fd, &seen) != 0) {
        return -errno;
    }
    describe(&seen, view);
    return 0;
}

/* Describe what is at a path: SEMLOCK_OK, SEMLOCK_FREE, or an error. */
int
semlock_describe_path(const char *path, semlock_view *view)
{
    struct stat seen;

    if (lstat(path, &seen) != 0) {
        return errno == ENOENT || errno == ENOTDIR ? SEMLOCK_FREE : -errno;
    }
    describe(&seen, view);
    return SEMLOCK_OK;
}

/* Open a path that may be a regular file: SEMLOCK_FREE if nothing is there, SEMLOCK_CHANGED if
 * it is a link. */
int
semlock_open_to_read(const char *path, int *fd)
{
    *fd = semlock_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (*fd >= 0) {
        return SEMLOCK_OK;
    }
    return errno == ENOENT ? SEMLOCK_FREE : semlock_is_link(errno) ? SEMLOCK_CHANGED : -errno;
}
