/* POSIX: taking a lock.  The order of the steps, and why, is in semlock.h under CREATING. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "semlock.h"

#define FRESH_FLAGS (O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_CREAT | O_EXCL)

/* What a failed link means: SEMLOCK_OK if the file has one name more than before all the
 * same, SEMLOCK_HELD, or the error.  EEXIST is taken at its word on a local filesystem,
 * where no answer gets lost, because it is what every failed try sees. */
static int
link_failed(semlock_file *file, int error, nlink_t names_before)
{
    struct stat now;

    if (error == EEXIST && file->local) {
        return SEMLOCK_HELD;
    }
    if (fstat((int)file->handle, &now) == 0 && now.st_nlink > names_before) {
        return SEMLOCK_OK;
    }
    return error == EEXIST ? SEMLOCK_HELD : -error;
}

/* Learn what was just made: its identity, what kind of filesystem it is on, and take the
 * witness unless the lock outlives us or the process is short of descriptors. */
static int
adopt(semlock_file *file, const semlock_record *record)
{
    struct rlimit limit;
    struct stat made;
    int fd = (int)file->handle;

    /* Asked twice, because who doesn't know its own file can't clean up after itself. */
    if (fstat(fd, &made) != 0 && fstat(fd, &made) != 0) {
        return -errno;
    }
    file->dev = (uint64_t)made.st_dev;
    file->ino = (uint64_t)made.st_ino;
    file->mode = record->mode;
    file->local = semlock_system_local(fd);
    if (!file->local || record->detached) {
        return 0;
    }
    /* A format without a token needs its descriptor, to know its own file again. */
    if (record->token_at >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
        (rlim_t)fd + SEMLOCK_RESERVED_HANDLES >= limit.rlim_cur) {
        return 0;
    }
    file->witness = semlock_system_take_witness(fd) == 0;
    return 0;
}

/* Write the record and bring it to the disk as far as it was asked for. */
static int
fill(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    char small[1024];
    char *bytes = small;
    semlock_file *file = &lock->file;
    int32_t before = file->length;
    int error;

    if (record->length > (int32_t)sizeof small) {
        bytes = malloc((size_t)record->length);
        if (bytes == NULL) {
            return -ENOMEM;
        }
    }
    semlock_stamp(record, file, lock, pool, bytes);
    error = semlock_write_all((int)file->handle, bytes, record->length);
    if (bytes != small) {
        free(bytes);
    }
    if (error == 0 && record->length < before &&
        ftruncate((int)file->handle, record->length) != 0) {
        error = -errno;
    }
    if (error != 0) {
        return error;
    }
    file->length = record->length;
    return semlock_system_sync((int)file->handle, record->durability,
                               before == record->length);
}

/* The file is at P.  Keep its descriptor if it carries the witness or is worth keeping. */
static int
won(semlock_lock *lock, const semlock_record *record)
{
    semlock_file *file = &lock->file;

    if (record->token_at >= 0 && file->local && !file->witness &&
        semlock_system_witness((int)file->handle) >= 0) {
        /* The witness was given up to save the descriptor. */
        close((int)file->handle);
        file->handle = -1;
    }
    return semlock_object_won(lock, record);
}

/* The fastest way: a finished file of this directory gets P as its second name. */
static int
try_kept(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    semlock_file *file = &lock->file;
    int outcome = fill(lock, pool, record);

    if (outcome == 0) {
        outcome = semlock_system_link_kept(lock, pool);
        if (outcome < 0) {
            outcome = link_failed(file, -outcome, 1);
        }
    }
    if (outcome == SEMLOCK_HELD && semlock_pool_put(pool, lock, file)) {
        semlock_file_reset(file);
    }
    else if (outcome != SEMLOCK_OK) {
        semlock_file_dispose(file, lock->path, lock->directory_length);
    }
    return outcome;
}

/* A file under a random name, for systems and filesystems without unnamed files. */
static int
try_named(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    char name[SEMLOCK_PATH_ROOM];
    semlock_file *file = &lock->file;
    int outcome = semlock_temporary_path(name, lock->path, lock->directory_length, pool);

    if (outcome != 0) {
        return outcome;
    }
    file->handle = open(name, FRESH_FLAGS, (mode_t)record->mode);
    if (file->handle < 0) {
        outcome = -errno;
        unlink(name); /* the name is ours alone, whatever the answer was worth */
        return outcome;
    }
    outcome = adopt(file, record);
    if (outcome == 0) {
        outcome = fill(lock, pool, record);
    }
    if (outcome == 0 && link(name, lock->path) != 0) {
        outcome = link_failed(file, errno, 1);
        if (outcome == -ENOENT && access(name, F_OK) != 0) {
            outcome = SEMLOCK_CHANGED; /* removed as abandoned: begin again */
        }
    }
    unlink(name);
    return outcome;
}

/* A file without a name: a kill leaves nothing of it.  -EOPNOTSUPP where there is no such
 * thing, so that try_named takes over. */
static int
try_unnamed(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    char directory[SEMLOCK_PATH_ROOM];
    semlock_file *file = &lock->file;
    int outcome = semlock_join(directory, lock->path, lock->directory_length, "");

    if (outcome != 0) {
        return outcome;
    }
    file->handle = semlock_system_unnamed(directory, record->mode);
    if (file->handle < 0) {
        outcome = (int)file->handle;
        file->handle = -1;
        return outcome;
    }
    outcome = adopt(file, record);
    if (outcome == 0) {
        outcome = fill(lock, pool, record);
    }
    if (outcome == 0) {
        outcome = semlock_system_link_unnamed((int)file->handle, lock->path, pool);
        if (outcome < 0) {
            outcome = link_failed(file, -outcome, 0);
        }
    }
    return outcome;
}

/* Create at P and write there.  Until the sticky bit is cleared nobody believes to hold. */
static int
try_in_place(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    semlock_file *file = &lock->file;
    mode_t mode = (mode_t)(record->mode | SEMLOCK_UNFINISHED_MODE);
    struct stat made;
    int outcome, guard, fd, still;

    fd = open(lock->path, FRESH_FLAGS, mode);
    if (fd < 0) {
        return errno == EEXIST ? SEMLOCK_HELD : -errno;
    }
    file->handle = fd;
    guard = semlock_guard(fd);
    if (guard == SEMLOCK_GUARDED) {
        /* Somebody judges our empty file; it is theirs to remove now. */
        return SEMLOCK_GUARDED;
    }
    outcome = adopt(file, record);
    still = outcome == 0 ? semlock_still_at(lock->path, file) : outcome;
    if (still == 0) {
        return SEMLOCK_CHANGED; /* removed as unfinished: begin again */
    }
    outcome = still < 0 ? still : fill(lock, pool, record);
    if (outcome == 0 && fstat(fd, &made) != 0) {
        outcome = -errno;
    }
    else if (outcome == 0 && (made.st_mode & SEMLOCK_UNFINISHED_MODE) &&
             fchmod(fd, made.st_mode & 0777) != 0) {
        outcome = -errno;
    }
    if (outcome == 0 && guard < 0) {
        still = semlock_still_at(lock->path, file); /* no guard here: look once more */
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

/* Begin again when somebody removed the unfinished file, but not for ever. */
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

static int
try_fresh(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
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
    lock->file.whole = whole;
    return outcome == SEMLOCK_CHANGED || outcome == SEMLOCK_GUARDED ? SEMLOCK_HELD : outcome;
}

static int
attempt(semlock_lock *lock, semlock_pool *pool, const semlock_record *record, int seen_free,
        int anyway)
{
    int outcome = SEMLOCK_CHANGED;

    if (semlock_load32(&lock->expect_held) && !seen_free) {
        seen_free = access(lock->path, F_OK) != 0;
        if (!seen_free) {
            return SEMLOCK_HELD;
        }
    }
    if (!anyway && semlock_must_make_way(lock, pool)) {
        return SEMLOCK_TURN;
    }
    if (!record->in_place && !record->detached &&
        semlock_pool_take(pool, lock, record->mode, &lock->file)) {
        outcome = try_kept(lock, pool, record);
        if (outcome == SEMLOCK_OK || outcome == SEMLOCK_HELD || outcome == -EINTR) {
            return outcome;
        }
        /* Whatever was wrong with the kept file, a fresh one will tell. */
    }
    if (!seen_free && access(lock->path, F_OK) == 0) {
        return SEMLOCK_HELD;
    }
    outcome = try_fresh(lock, pool, record);
    if (outcome == -EMFILE || outcome == -ENFILE) {
        /* Idle claims must never be the reason that a lock can't be taken. */
        semlock_pool_drain_entered(pool, NULL, 0);
        outcome = try_fresh(lock, pool, record);
    }
    return outcome;
}

static int
try_one(semlock_lock *lock, semlock_pool *pool, int seen_free, int anyway)
{
    const semlock_record *record = lock->record;
    int outcome = semlock_object_begin(lock);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = attempt(lock, pool, record, seen_free, anyway);
    if (outcome == SEMLOCK_OK) {
        semlock_add32(&pool->holding[lock->file.ino % SEMLOCK_BURSTS], 1);
        return won(lock, record);
    }
    if (outcome == SEMLOCK_HELD) {
        outcome = semlock_object_seen_held(lock);
    }
    return semlock_object_failed(lock, outcome);
}

int
semlock_try(semlock_lock *lock, semlock_pool *pool)
{
    int outcome;

    semlock_enter(pool);
    outcome = try_one(lock, pool, 0, 0);
    semlock_leave(pool);
    return outcome;
}

/* The same for those whose turn it is, and for those who don't wait. */
int
semlock_try_anyway(semlock_lock *lock, semlock_pool *pool)
{
    int outcome;

    semlock_enter(pool);
    outcome = try_one(lock, pool, 0, 1);
    if (outcome == SEMLOCK_OK && lock->turns != SEMLOCK_NO_TURNS) {
        semlock_burst_began(pool, lock);
    }
    semlock_leave(pool);
    return outcome;
}

/* The same for a waiter that has just seen the path free, and need not look again. */
int
semlock_try_free(semlock_lock *lock, semlock_pool *pool)
{
    int outcome;

    semlock_enter(pool);
    outcome = try_one(lock, pool, 1, 1);
    if (outcome == SEMLOCK_OK && lock->turns != SEMLOCK_NO_TURNS) {
        semlock_burst_began(pool, lock);
    }
    semlock_leave(pool);
    return outcome;
}

static int
same_directory(const semlock_lock *a, const semlock_lock *b)
{
    return a->directory_hash == b->directory_hash &&
           a->directory_length == b->directory_length &&
           memcmp(a->path, b->path, (size_t)a->directory_length) == 0;
}

/* Many tries in one call.  Locks that follow each other in one directory share a descriptor
 * of it for as long as the call lasts, which makes looking at a held one half as dear. */
void
semlock_try_many(semlock_lock **locks, char *outcomes, int32_t *errors, int32_t count,
                 int anyway, semlock_pool *pool)
{
    char name[SEMLOCK_PATH_ROOM];
    int directory = -1;

    semlock_enter(pool);
    for (int32_t i = 0; i < count; i++) {
        semlock_lock *lock = locks[i];
        int seen_free = 0;
        int outcome;

        if (i > 0 && !same_directory(lock, locks[i - 1]) && directory >= 0) {
            close(directory);
            directory = -1;
        }
        if (directory < 0 && i + 1 < count && same_directory(lock, locks[i + 1]) &&
            semlock_join(name, lock->path, lock->directory_length, "") == 0) {
            directory = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        }
        if (directory >= 0 && semlock_load64(&lock->owner) == 0) {
            const char *last = lock->path + lock->directory_length;

            last += *last == '/';
            if (faccessat(directory, last, F_OK, 0) == 0) {
                /* Only a look: it needs no thread to own the object. */
                outcomes[i] = (char)semlock_object_seen_held(lock);
                continue;
            }
            seen_free = 1;
        }
        outcome = try_one(lock, pool, seen_free, anyway && lock->turns != SEMLOCK_FAIR);
        errors[i] = outcome < 0 ? outcome : 0;
        outcomes[i] = (char)(outcome < 0 ? -1 : outcome);
    }
    if (directory >= 0) {
        close(directory);
    }
    semlock_leave(pool);
}
