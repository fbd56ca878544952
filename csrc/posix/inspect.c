/* POSIX: inspecting a path without following a link, opening a device, blocking on a FIFO, or
 * reading more than the largest record. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

#if defined(__APPLE__)
#define CTIME(s) ((s)->st_ctimespec)
#define MTIME(s) ((s)->st_mtimespec)
#else
#define CTIME(s) ((s)->st_ctim)
#define MTIME(s) ((s)->st_mtim)
#endif

static int64_t
nanoseconds(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Is it the file of an in-place creator that has not finished?  Creating and writing set ctime
 * and mtime to the same value.  A sticky bit set by `chmod -R` later changes only ctime. */
int
semlock_is_unfinished(const struct stat *seen)
{
    return (seen->st_mode & SEMLOCK_UNFINISHED_MODE) != 0 &&
           nanoseconds(CTIME(seen)) == nanoseconds(MTIME(seen));
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
    view->ctime_ns = nanoseconds(CTIME(seen));
    view->mtime_ns = nanoseconds(MTIME(seen));
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

/* Read the record as it was while the file was at the path.  If two reads agree, and the path
 * named this inode in between, the file was not being rewritten for its next use.  The witness
 * is read before the path is checked: a releasing holder drops it after its name is gone. */
static int
read_stable(int fd, const char *path, semlock_view *view, char *bytes, int32_t capacity)
{
    semlock_file file = {.dev = view->dev, .ino = view->ino};
    char *again = malloc((size_t)capacity);
    int outcome = -ENOMEM;
    int length = 0;

    if (again != NULL) {
        outcome = length = semlock_read_all(fd, bytes, capacity);
    }
    if (outcome >= 0) {
        view->witness = semlock_system_witness(fd);
        if (view->witness == 0 && view->local == SEMLOCK_LAYERED) {
            view->witness = -1; /* it may be taken through another mount */
        }
        outcome = semlock_still_at(path, &file);
        if (outcome == 1) {
            outcome = semlock_read_all(fd, again, capacity);
            if (outcome >= 0) {
                outcome = outcome == length && memcmp(bytes, again, (size_t)length) == 0
                              ? SEMLOCK_OK
                              : SEMLOCK_CHANGED;
            }
        }
        else if (outcome == 0) {
            outcome = SEMLOCK_CHANGED;
        }
    }
    free(again);
    view->length = length < 0 ? 0 : length;
    return outcome;
}

static int
inspect(const char *path, semlock_view *view, char *bytes, int32_t capacity)
{
    struct stat named, opened;
    int fd, outcome;

    if (lstat(path, &named) != 0) {
        return errno == ENOENT || errno == ENOTDIR ? SEMLOCK_FREE : -errno;
    }
    describe(&named, view);
    if (view->kind != SEMLOCK_REGULAR) {
        return SEMLOCK_OK;
    }
    fd = semlock_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0) {
        return errno == ENOENT || semlock_is_link(errno) ? SEMLOCK_CHANGED : -errno;
    }
    if (fstat(fd, &opened) != 0) {
        outcome = -errno;
    }
    else if (opened.st_ino != named.st_ino || opened.st_dev != named.st_dev) {
        outcome = SEMLOCK_CHANGED;
    }
    else {
        describe(&opened, view);
        view->local = semlock_system_local(fd);
        outcome = read_stable(fd, path, view, bytes, capacity);
        if (outcome == SEMLOCK_OK && view->size > view->length) {
            outcome = -EFBIG;
        }
    }
    close(fd);
    return semlock_is_gone(outcome) ? SEMLOCK_CHANGED : outcome;
}

/* SEMLOCK_OK with view and bytes; SEMLOCK_FREE if nothing is there; SEMLOCK_CHANGED if the
 * lock changed hands meanwhile, so that the caller inspects again; or an error. -EACCES and
 * -EFBIG (with as many bytes as fit) also come with a view. */
int
semlock_inspect(const char *path, semlock_pool *pool, semlock_view *view, char *bytes,
                int32_t capacity)
{
    int outcome;

    semlock_enter(pool);
    outcome = inspect(path, view, bytes, capacity);
    semlock_leave(pool);
    return outcome;
}

/* Is the inspected instance still at the path, unchanged?  Called after its process was found
 * to have ended: it may have released just before.  SEMLOCK_OK also if this is not known. */
int
semlock_confirm(const char *path, semlock_pool *pool, const semlock_view *judged)
{
    struct stat seen;
    semlock_view now;
    int outcome = SEMLOCK_OK;

    semlock_enter(pool);
    if (lstat(path, &seen) != 0) {
        outcome = errno == ENOENT || errno == ENOTDIR ? SEMLOCK_FREE : SEMLOCK_OK;
    }
    else {
        describe(&seen, &now);
        if (now.ino != judged->ino || now.dev != judged->dev ||
            now.ctime_ns != judged->ctime_ns) {
            outcome = SEMLOCK_CHANGED;
        }
    }
    semlock_leave(pool);
    return outcome;
}
