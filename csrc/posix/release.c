/* POSIX: releasing a held lock (semlock.h, REMOVING). */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "posix/system.h"

/* The arguments of a release, in one place so that another thread can run it. */
typedef struct {
    semlock_lock *lock;
    semlock_pool *pool;
    semlock_view seen; /* the instance when the path was checked */
} job;

/* Rename the instance from its path to its private name: 0, or an error with nothing done.
 * rename() between two names of one inode does nothing and returns 0, so the path is checked
 * afterwards.  As with link, an error is believed only if nothing was done. */
static int
set_aside(semlock_lock *lock)
{
    char name[SEMLOCK_PATH_ROOM];
    semlock_file *file = &lock->file;
    int outcome = semlock_private_path(name, lock->path, lock->directory_length, file);

    if (outcome != 0) {
        return outcome;
    }
    /* The inode number makes the name ours; an older file there is left over from a kill. */
    if (rename(lock->path, name) != 0 && semlock_still_at(name, file) != 1) {
        return -errno;
    }
    file->named = 1;
    return semlock_still_at(lock->path, file) == 1 ? semlock_unlink_exact(lock->path, file)
                                                   : 0;
}

/* Remove the instance from the path, under the guard, and keep it for the next acquisition if
 * that is worth it.  SEMLOCK_KEPT: this directory has its first kept claim. */
static int
let_go(const job *work, int fd)
{
    semlock_lock *lock = work->lock;
    semlock_file *file = &lock->file;
    int first = !file->named;
    int copied = work->seen.links > 1 + (file->named != 0);
    int outcome;

    if (file->handle >= 0 && file->local && file->whole && !copied &&
        semlock_pool_wants(work->pool, lock)) {
        outcome = first ? set_aside(lock) : semlock_unlink_exact(lock->path, file);
        if (first && outcome < 0) {
            outcome = semlock_unlink_exact(lock->path, file);
        }
        if (outcome == 0 && file->named) {
            semlock_unguard(fd);
            if (semlock_pool_put(work->pool, lock, file)) {
                semlock_file_reset(file);
                return first ? SEMLOCK_KEPT : SEMLOCK_OK;
            }
        }
        return outcome;
    }
    outcome = semlock_unlink_exact(lock->path, file);
    if (outcome == 0 && copied) {
        semlock_file_over(file, fd);
    }
    return outcome;
}

/* The path does not lead to the instance any more, but the instance may still have a name: its
 * directory was moved, a symbolic link in the path was changed, or a program moved the file.
 * "over" in the record tells readers of that name that it is released. */
static void
say_over(job *work, int fd)
{
    semlock_file *file = &work->lock->file;
    semlock_view left;

    if (semlock_describe(fd, &left) == 0 && left.links > (file->named != 0) &&
        semlock_still_own(work->lock, fd, &left) == 1) {
        semlock_file_over(file, fd);
    }
}

static int
release_held(void *argument)
{
    job *work = argument;
    semlock_lock *lock = work->lock;
    semlock_file *file = &lock->file;
    int fd, opened, guard, still;
    int outcome = semlock_held_open(lock, &fd, &opened);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    guard = semlock_guard(fd);
    still = guard == SEMLOCK_GUARDED ? 0 : semlock_still_held(lock, fd, &work->seen);
    if (guard == SEMLOCK_GUARDED) {
        outcome = guard;
    }
    else if (still == 1 && guard < 0) { /* no flock here, and waiting does not help */
        outcome = semlock_remove_aside(lock->path, lock->directory_length, file, work->pool);
        if (outcome == 0) {
            say_over(work, fd);
        }
    }
    else {
        outcome = still == 1 ? let_go(work, fd) : (still == 0 ? SEMLOCK_LOST : still);
        if (still == 0) {
            say_over(work, fd);
        }
        if (outcome < 0) {
            semlock_unguard(fd);
        }
    }
    if (opened) {
        close(fd);
    }
    else if (outcome >= 0 && outcome != SEMLOCK_GUARDED && !file->named) {
        semlock_file_close(file); /* verified above to be ours */
    }
    return outcome;
}

/* Remove the held instance from its path, or keep it: SEMLOCK_OK, _KEPT, _LOST, _GUARDED, or
 * an error; with the last two it is still held. */
int
semlock_release_held(semlock_lock *lock, semlock_pool *pool)
{
    job work = {.lock = lock, .pool = pool};
    int outcome = semlock_spare(release_held, &work, pool);

    if (outcome >= 0 && outcome != SEMLOCK_GUARDED) {
        semlock_bare_over(pool, &lock->file);
    }
    return outcome;
}
