/* POSIX: creating the lock file, until it is linked to P.  The order of the steps and the
 * reasons are in semlock.h, CREATING. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

#define FRESH_FLAGS (O_RDWR | O_NOFOLLOW | O_CREAT | O_EXCL)

/* Interpret a failed link: SEMLOCK_OK if the path names this file all the same, SEMLOCK_HELD,
 * or the error.  On a local filesystem no answer can be lost, so EEXIST, which every failed
 * try gets, is believed without a further call.  A link count proves nothing: a copy of the
 * tree by hard links raises it too. */
static int
link_failed(const semlock_file *file, const char *path, int error)
{
    if (error == EEXIST && file->local) {
        return SEMLOCK_HELD;
    }
    if (semlock_still_at(path, file) == 1) {
        return SEMLOCK_OK;
    }
    return error == EEXIST ? SEMLOCK_HELD : -error;
}

/* Record what was just created: its identity, the kind of its filesystem, and the witness.  No
 * witness is taken if the lock outlives this process or descriptors are scarce. */
static int
adopt(semlock_file *file, semlock_pool *pool, const semlock_record *record)
{
    struct rlimit limit;
    struct stat made;
    mode_t mode;
    int fd = (int)file->handle;

    /* Tried twice: without its identity the new file cannot be removed after an error. */
    if (fstat(fd, &made) != 0 && fstat(fd, &made) != 0) {
        return -errno;
    }
    file->dev = (uint64_t)made.st_dev;
    file->ino = (uint64_t)made.st_ino;
    file->mode = record->mode;
    /* Whatever the umask leaves: the user who made it must be able to judge it, and take it
     * over, when this process has died. */
    mode = made.st_mode | SEMLOCK_OWNER_MODE;
    if (record->mode & SEMLOCK_EXACT) {
        mode = (mode & ~(mode_t)0777) | (mode_t)SEMLOCK_MODE(record) | SEMLOCK_OWNER_MODE;
    }
    if (mode != made.st_mode && fchmod(fd, mode & 07777) == 0) {
        made.st_mode = mode;
    }
    file->given = (int32_t)(made.st_mode & 0777);
    file->asked = semlock_now_ns();
    semlock_made_now(file);
    file->witness_at = record->witness_at;
    if (semlock_file_keep(file, pool) != 0) {
        return -ENOMEM;
    }
    file->local = semlock_system_local(fd);
    if (!file->local || record->detached) {
        return 0;
    }
    /* A format without a token needs the descriptor to recognise its own file. */
    if (record->token_at >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        (rlim_t)fd + SEMLOCK_RESERVED_HANDLES >= limit.rlim_cur) {
        return 0;
    }
    if (semlock_system_take_witness(fd) == 0) {
        file->witness = file->local == SEMLOCK_LAYERED ? SEMLOCK_MUTE : SEMLOCK_WITNESSED;
    }
    return 0;
}

/* Is anything at the path?  What cannot be seen is not. */
int
semlock_os_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

int
semlock_is_at_path(const semlock_lock *lock)
{
    return semlock_os_exists(lock->path);
}

/* A kept claim gets P as its second name. */
int
semlock_publish_kept(semlock_lock *lock, semlock_pool *pool)
{
    int outcome = semlock_system_link_kept(lock, pool);

    return outcome < 0 ? link_failed(&lock->file, lock->path, -outcome) : outcome;
}

/* Create under a random name, for systems and filesystems without O_TMPFILE. */
static int
try_named(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    char name[SEMLOCK_PATH_ROOM];
    semlock_file *file = &lock->file;
    int outcome = semlock_temporary_path(name, lock->path, lock->directory_length, pool);

    if (outcome != 0) {
        return outcome;
    }
    file->handle = semlock_open(name, FRESH_FLAGS, (mode_t)SEMLOCK_MODE(record));
    if (file->handle < 0) {
        outcome = -errno;
        unlink(name); /* may exist despite the error, and is ours alone */
        return outcome;
    }
    outcome = adopt(file, pool, record);
    if (outcome == 0) {
        outcome = semlock_fill(lock, pool, record);
    }
    if (outcome == 0 && link(name, lock->path) != 0) {
        outcome = link_failed(file, lock->path, errno);
        if (outcome == -ENOENT && access(name, F_OK) != 0) {
            outcome = SEMLOCK_CHANGED; /* removed by another process as abandoned: retry */
        }
    }
    unlink(name);
    return outcome;
}

/* Make the file, whole and without a name: a kill leaves nothing.  -EOPNOTSUPP where this is
 * not supported, so that try_named is used. */
static int
make_unnamed(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    char directory[SEMLOCK_PATH_ROOM];
    semlock_file *file = &lock->file;
    int outcome = semlock_join(directory, lock->path, lock->directory_length, "");

    if (outcome != 0) {
        return outcome;
    }
    file->handle = semlock_system_unnamed(directory, SEMLOCK_MODE(record));
    if (file->handle < 0) {
        outcome = (int)file->handle;
        file->handle = -1;
        return outcome;
    }
    outcome = adopt(file, pool, record);
    return outcome == 0 ? semlock_fill(lock, pool, record) : outcome;
}

static int
link_unnamed(semlock_lock *lock, semlock_pool *pool)
{
    int outcome = semlock_system_link_unnamed((int)lock->file.handle, lock->path, pool);

    return outcome < 0 ? link_failed(&lock->file, lock->path, -outcome) : outcome;
}

static int
try_unnamed(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    int outcome = make_unnamed(lock, pool, record);

    return outcome == 0 ? link_unnamed(lock, pool) : outcome;
}

/* All that can be done before the lock is free.  Only on a local filesystem, where the answer
 * of the link is believed; and not with the last descriptors that the process may open. */
int
semlock_prepare_file(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    int outcome = make_unnamed(lock, pool, record);

    if (outcome == 0 && (!lock->file.local || semlock_is_scarce((int)lock->file.handle))) {
        outcome = SEMLOCK_CHANGED;
    }
    return outcome;
}

int
semlock_publish_prepared(semlock_lock *lock, semlock_pool *pool)
{
    int outcome = link_unnamed(lock, pool);

    lock->file.whole = outcome == SEMLOCK_OK;
    return outcome;
}

/* Create at P and write there.  Until the sticky bit is cleared the file is not a held lock.
 */
static int
try_in_place(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    semlock_file *file = &lock->file;
    mode_t mode = (mode_t)(SEMLOCK_MODE(record) | SEMLOCK_UNFINISHED_MODE);
    struct stat made;
    int outcome, guard, fd, still;

    fd = semlock_open(lock->path, FRESH_FLAGS, mode);
    if (fd < 0) {
        return errno == EEXIST ? SEMLOCK_HELD : -errno;
    }
    file->handle = fd;
    guard = semlock_guard(fd);
    if (guard == SEMLOCK_GUARDED) {
        /* Another process is judging our empty file and may remove it. */
        return SEMLOCK_GUARDED;
    }
    outcome = adopt(file, pool, record);
    still = outcome == 0 ? semlock_still_at(lock->path, file) : outcome;
    if (still == 0) {
        return SEMLOCK_CHANGED; /* removed by another process as unfinished: retry */
    }
    outcome = still < 0 ? still : semlock_fill(lock, pool, record);
    if (outcome == 0 && fstat(fd, &made) != 0) {
        outcome = -errno;
    }
    else if (outcome == 0 && (made.st_mode & SEMLOCK_UNFINISHED_MODE) &&
             fchmod(fd, made.st_mode & 0777) != 0) {
        outcome = -errno;
    }
    if (outcome == 0 && guard < 0) {
        still = semlock_still_at(lock->path, file); /* no guard here, so check P once more */
        outcome = still == 1 ? 0 : (still == 0 ? SEMLOCK_CHANGED : still);
    }
    if (outcome < 0 && semlock_still_at(lock->path, file) == 1) {
        unlink(lock->path);
    }
    semlock_unguard(fd);
    return outcome;
}

static int
no_hard_links(int outcome)
{
    return outcome == -EPERM || outcome == -EOPNOTSUPP || outcome == -ENOTSUP ||
           outcome == -ENOSYS || outcome == -EMLINK;
}

/* Retry when another process removed the unfinished file, a limited number of times. */
static int
again_and_again(semlock_lock *lock, semlock_pool *pool, const semlock_record *record,
                int (*way)(semlock_lock *, semlock_pool *, const semlock_record *))
{
    int outcome = SEMLOCK_CHANGED;

    for (int tries = 0; tries < 8 && outcome == SEMLOCK_CHANGED; tries++) {
        semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
        outcome = way(lock, pool, record);
    }
    return outcome;
}

/* Create a new file: whole at once where the filesystem can do it, else in place. */
int
semlock_create_fresh(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    int outcome = record->in_place ? -EOPNOTSUPP : try_unnamed(lock, pool, record);
    int whole;

    if (!record->in_place && no_hard_links(outcome)) {
        outcome = again_and_again(lock, pool, record, try_named);
    }
    whole = outcome == SEMLOCK_OK;
    if (no_hard_links(outcome)) {
        outcome = again_and_again(lock, pool, record, try_in_place);
    }
    if (outcome != SEMLOCK_OK) {
        semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
    }
    else if (record->token_at >= 0 && lock->file.local && !lock->file.witness &&
             semlock_system_witness((int)lock->file.handle) >= 0) {
        /* No witness was taken because descriptors are scarce.  The release may need one. */
        semlock_bare(pool, &lock->file);
    }
    lock->file.whole = whole;
    return outcome == SEMLOCK_CHANGED || outcome == SEMLOCK_GUARDED ? SEMLOCK_HELD : outcome;
}
