/* POSIX: every change to a path that is not a creation.  There is one way to remove a file,
 * told in semlock.h under REMOVING, and release, reclaim, clean and force all go through it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "semlock.h"

static int
has_no_guard(int outcome)
{
    return outcome < 0; /* ENOLCK, EOPNOTSUPP and the like: not something that waiting mends */
}

/* Open what is at the path to read it, or to write too, if it is this file. */
static int
open_exact(const char *path, const semlock_file *file, int access_mode, int *fd)
{
    struct stat seen;
    int error;

    *fd = open(path, access_mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
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

/* A lock whose descriptor was given up knows its file again by the token in it, because the
 * inode number may have passed to somebody else's file meanwhile.  1, 0, or an error. */
static int
carries_token(int fd, const semlock_lock *lock)
{
    char token[32];
    ssize_t n = lock->token_at < 0 ? 0 : pread(fd, token, sizeof token, lock->token_at);

    if (n < 0) {
        return -errno;
    }
    return n == 32 && memcmp(token, lock->token, sizeof token) == 0;
}

/* A descriptor of the held instance, and whether it must be closed again. */
static int
own_descriptor(semlock_lock *lock, int *fd, int *opened)
{
    int outcome;

    *fd = (int)lock->file.handle;
    *opened = *fd < 0;
    if (!*opened) {
        return SEMLOCK_OK;
    }
    outcome = open_exact(lock->path, &lock->file, O_RDONLY, fd);
    if (outcome == SEMLOCK_OK) {
        int carries = carries_token(*fd, lock);

        if (carries != 1) {
            close(*fd);
            outcome = carries < 0 ? carries : SEMLOCK_LOST;
        }
    }
    return outcome;
}

/* Take the instance from the path, under the guard, and keep it for the next acquisition
 * if that is worth it.  SEMLOCK_KEPT says that this directory has its first kept claim. */
static int
let_go(semlock_lock *lock, semlock_pool *pool)
{
    char name[SEMLOCK_PATH_ROOM];
    semlock_file *file = &lock->file;
    int first = 0;
    int outcome;

    if (file->handle >= 0 && file->local && file->whole && semlock_pool_wants(pool, lock)) {
        if (file->named) {
            outcome = semlock_unlink_exact(lock->path, file);
        }
        else {
            semlock_private_path(name, lock->path, lock->directory_length, file);
            /* The inode number makes the name ours; an older file there is debris.  As with
             * link, an error is believed only if nothing was done. */
            if (rename(lock->path, name) == 0 || semlock_still_at(name, file) == 1) {
                outcome = 0;
                file->named = first = 1;
            }
            else {
                outcome = semlock_unlink_exact(lock->path, file);
            }
        }
        if (outcome == 0 && file->named) {
            semlock_unguard((int)file->handle);
            if (semlock_pool_put(pool, lock, file)) {
                semlock_file_reset(file);
                return first ? SEMLOCK_KEPT : SEMLOCK_OK;
            }
        }
        return outcome;
    }
    return semlock_unlink_exact(lock->path, file);
}

static int
release(semlock_lock *lock, semlock_pool *pool)
{
    int64_t owner;
    uint64_t ino;
    int fd, opened, outcome, guard;

    outcome = semlock_object_end(lock, &owner);
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    ino = lock->file.ino;
    outcome = own_descriptor(lock, &fd, &opened);
    if (outcome == SEMLOCK_OK) {
        guard = semlock_guard(fd);
        if (has_no_guard(guard)) {
            outcome =
                semlock_remove_aside(lock->path, lock->directory_length, &lock->file, pool);
        }
        else if (guard == SEMLOCK_GUARDED) {
            outcome = SEMLOCK_GUARDED;
        }
        else {
            int still = semlock_still_at(lock->path, &lock->file);

            outcome = still == 1 ? let_go(lock, pool) : (still == 0 ? SEMLOCK_LOST : still);
            if (outcome < 0) {
                semlock_unguard(fd);
            }
        }
        if (opened) {
            semlock_unguard(fd); /* somebody who is being started may have a copy */
            close(fd);
        }
    }
    if (outcome < 0 || outcome == SEMLOCK_GUARDED) {
        semlock_store64(&lock->owner, owner); /* it is still held, and can be let go again */
        return outcome;
    }
    semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
    semlock_add32(&pool->holding[ino % SEMLOCK_BURSTS], -1);
    if (lock->turns != SEMLOCK_NO_TURNS) {
        semlock_ticket_leave(lock);
        semlock_burst_released(pool, lock);
        if (lock->waited) {
            semlock_store32(&lock->expect_held,
                            1); /* others want it too: look before leaping */
        }
    }
    if (lock->waited) {
        semlock_events_tidy(pool);
    }
    semlock_object_freed(lock);
    return outcome;
}

int
semlock_release(semlock_lock *lock, semlock_pool *pool)
{
    int outcome;

    semlock_enter(pool);
    outcome = release(lock, pool);
    semlock_leave(pool);
    return outcome;
}

/* A descriptor for writing the held instance, whose own one was given up. */
static int
reopen_to_write(semlock_lock *lock, int *fd)
{
    *fd = open(lock->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0) {
        return errno == ENOENT || semlock_is_link(errno) ? SEMLOCK_LOST : -errno;
    }
    return SEMLOCK_OK;
}

static int
refresh_held(semlock_lock *lock, const char *text, int32_t length)
{
    int fd = (int)lock->file.handle;
    int opened = fd < 0;
    int guard, still, outcome;

    outcome = opened ? reopen_to_write(lock, &fd) : SEMLOCK_OK;
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    guard = semlock_guard(fd);
    if (guard == SEMLOCK_GUARDED) {
        outcome = guard;
    }
    else {
        still = semlock_still_at(lock->path, &lock->file);
        if (still == 1 && opened) {
            still = carries_token(fd, lock);
        }
        outcome = still == 1 ? semlock_write_all(fd, text, length)
                             : (still == 0 ? SEMLOCK_LOST : still);
        semlock_unguard(fd);
    }
    if (opened) {
        close(fd);
    }
    return outcome;
}

/* Write the same record again, with what changed in it: the new time, most of all. */
int
semlock_refresh(semlock_lock *lock, semlock_pool *pool, const char *text, int32_t length)
{
    int64_t owner;
    int outcome;

    semlock_enter(pool);
    outcome = semlock_object_borrow(lock, &owner);
    if (outcome == SEMLOCK_OK) {
        outcome = length == lock->file.length ? refresh_held(lock, text, length) : -EINVAL;
        semlock_object_return(lock, owner);
    }
    semlock_leave(pool);
    return outcome;
}

static int
check_held(semlock_lock *lock)
{
    int fd, opened, outcome;

    if (lock->file.handle >= 0) {
        outcome = semlock_still_at(lock->path, &lock->file);
        return outcome == 1 ? SEMLOCK_OK : (outcome == 0 ? SEMLOCK_LOST : outcome);
    }
    outcome = own_descriptor(lock, &fd, &opened);
    if (outcome == SEMLOCK_OK) {
        close(fd);
    }
    return outcome;
}

int
semlock_check(semlock_lock *lock, semlock_pool *pool)
{
    int64_t owner;
    int outcome;

    semlock_enter(pool);
    outcome = semlock_object_borrow(lock, &owner);
    if (outcome == SEMLOCK_OK) {
        outcome = check_held(lock);
        semlock_object_return(lock, owner);
    }
    semlock_leave(pool);
    return outcome;
}

/* Leave the lock at its path for the process that its record names, and forget it here. */
void
semlock_detach(semlock_lock *lock)
{
    semlock_forget(lock);
}

/* The private name of a kept claim whose owner was killed while it held the lock. */
static void
remove_orphan_name(const char *path, int32_t directory_length, const semlock_file *file)
{
    char name[SEMLOCK_PATH_ROOM];

    if (semlock_private_path(name, path, directory_length, file) == 0 &&
        semlock_still_at(name, file) == 1) {
        unlink(name);
    }
}

/* Is what is open still what was judged, apart from its bytes?  Unfinished then and finished
 * now is another thing: its creator holds it.  The time of the last change tells a foreigner's
 * new empty file from the old one whose inode number it got, and stands for the bytes of a
 * file that is too long to be read.  A change that means nothing costs another look. */
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

/* Is it still what was judged, and the verdict still true?  Looked at after the path. */
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

/* Take the guard on what is open for reading.  NFS makes a lock of bytes of it, which needs a
 * descriptor that can write; whoever may not write has no guard there. */
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
        /* Asked again for the foreigners' sake, who take no guard: nothing but this lies
         * between the last look and the removal. */
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
    /* Closing is not enough: a program that is being started may have a copy for a moment. */
    semlock_unguard(fd);
    close(fd);
    return outcome;
}

/* Remove the instance that was judged, and no other. */
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
