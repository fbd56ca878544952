/* POSIX: removing a judged instance, for reclaim, clean and force.  There is one way to remove
 * a file: semlock.h, REMOVING. posix/release.c does the same for a lock that is held here. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

static int
has_no_guard(int outcome)
{
    return outcome < 0; /* ENOLCK, EOPNOTSUPP: waiting does not help */
}

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

/* Is the open file still in the state that was judged, apart from its bytes?  A file that was
 * unfinished then and is finished now has a holder, its creator.  The ctime tells a foreign
 * program's new empty file from the old one whose inode number it got.  For a file too long to
 * be read it replaces the comparison of the bytes.  A harmless change costs one more
 * inspection. */
static int
same_state(int fd, const semlock_view *judged)
{
    semlock_view now;
    int outcome = semlock_describe(fd, &now);

    if (outcome != 0) {
        return outcome;
    }
    return now.unfinished == judged->unfinished && now.ctime_ns == judged->ctime_ns &&
                   now.size == judged->size
               ? SEMLOCK_OK
               : SEMLOCK_CHANGED;
}

/* Is it still what was judged, and is the witness still free?  Called after the path was
 * checked. */
static int
compare(int fd, const semlock_view *judged, const char *bytes, int32_t flags)
{
    char small[1024];
    char *now = small;
    int32_t room = judged->length + (judged->size > judged->length ? 0 : 1);
    int outcome = same_state(fd, judged);
    int length;

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    if (room > (int32_t)sizeof small) {
        now = malloc((size_t)room);
        if (now == NULL) {
            return -ENOMEM;
        }
    }
    length = semlock_read_all(fd, now, room);
    if (length < 0) {
        outcome = length;
    }
    else if (length != judged->length || memcmp(now, bytes, (size_t)length) != 0) {
        outcome = SEMLOCK_CHANGED;
    }
    else if (!(flags & SEMLOCK_DESPITE_WITNESS) && semlock_system_witness(fd) == 1) {
        outcome = SEMLOCK_ALIVE;
    }
    if (now != small) {
        free(now);
    }
    return outcome;
}

/* Take the guard on a file that is open for reading.  NFS turns flock into a byte lock, which
 * needs a writable descriptor.  A process without write permission has no guard there. */
static int
guard_judged(const char *path, const semlock_file *file, int *fd)
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

static int
remove_judged(const char *path, semlock_pool *pool, const semlock_view *judged,
              const char *bytes, int32_t flags)
{
    semlock_file file;
    int32_t directory_length = (int32_t)strlen(path);
    int fd, guard, outcome, still;

    while (directory_length > 1 && path[directory_length - 1] != '/') {
        directory_length--;
    }
    semlock_file_reset(&file);
    file.dev = judged->dev;
    file.ino = judged->ino;
    file.local = judged->local;
    outcome = open_exact(path, &file, O_RDONLY, &fd);
    if (outcome != SEMLOCK_OK) {
        return semlock_is_gone(outcome) ? SEMLOCK_LOST : outcome;
    }
    guard = guard_judged(path, &file, &fd);
    if (guard == SEMLOCK_GUARDED) {
        close(fd);
        return guard;
    }
    still = semlock_still_at(path, &file);
    outcome =
        still == 1 ? compare(fd, judged, bytes, flags) : (still == 0 ? SEMLOCK_LOST : still);
    if (outcome == SEMLOCK_OK && semlock_still_at(path, &file) == 0) {
        /* Checked again because foreign programs take no guard: this keeps the check and the
         * unlink adjacent. */
        outcome = SEMLOCK_LOST;
    }
    if (outcome == SEMLOCK_OK) {
        outcome = has_no_guard(guard)
                      ? semlock_remove_aside(path, directory_length, &file, pool)
                      : semlock_unlink_exact(path, &file);
    }
    if (outcome == SEMLOCK_OK && judged->links > 1) {
        remove_orphan_name(path, directory_length, &file);
    }
    if (semlock_is_gone(outcome)) {
        outcome = SEMLOCK_LOST;
    }
    /* Unlock before closing: a child that is just being started may have a copy of the
     * descriptor for a moment. */
    semlock_unguard(fd);
    close(fd);
    return outcome;
}

/* Remove exactly the instance that was judged, never one that replaced it. */
int
semlock_remove(const char *path, semlock_pool *pool, const semlock_view *judged,
               const char *bytes, int32_t flags)
{
    int outcome;

    semlock_enter(pool);
    outcome = remove_judged(path, pool, judged, bytes, flags);
    semlock_leave(pool);
    return outcome;
}
