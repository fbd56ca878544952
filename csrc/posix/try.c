/* POSIX: trying to acquire one lock, or many. posix/create.c creates the file. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

/* The file is at P.  Keep its descriptor if it carries the witness, or is needed otherwise. */
static int
won(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    semlock_file *file = &lock->file;

    if (record->token_at >= 0 && file->local && !file->witness &&
        semlock_system_witness((int)file->handle) >= 0) {
        /* No witness was taken because descriptors are scarce.  The release may need one. */
        semlock_bare(pool, file);
    }
    return semlock_object_won(lock, record);
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
    if (!anyway) {
        outcome = semlock_must_make_way(lock, pool);
        if (outcome != SEMLOCK_OK) {
            return outcome;
        }
    }
    if (!record->in_place && !record->detached &&
        semlock_pool_take(pool, lock, record->mode, &lock->file)) {
        outcome = semlock_create_kept(lock, pool, record);
        if (outcome == SEMLOCK_OK || outcome == SEMLOCK_HELD || outcome == -EINTR) {
            return outcome;
        }
        /* The kept file failed for some reason; a fresh one shows whether the reason persists.
         */
    }
    if (!seen_free && access(lock->path, F_OK) == 0) {
        return SEMLOCK_HELD;
    }
    outcome = semlock_create_fresh(lock, pool, record);
    if (outcome == -EMFILE || outcome == -ENFILE) {
        /* Idle kept claims must not be the reason why a lock cannot be acquired. */
        semlock_pool_drain_entered(pool, NULL, 0);
        outcome = semlock_create_fresh(lock, pool, record);
    }
    return outcome;
}

/* A file is at the path.  When it is time to judge its holder, a taken witness is enough proof
 * of life, unless the caller's policy uses other evidence. */
static int
seen_held(semlock_lock *lock)
{
    int outcome = semlock_object_seen_held(lock);
    struct stat seen;
    int fd, taken;

    if (outcome != SEMLOCK_LOOK || !lock->vouched) {
        return outcome;
    }
    fd = semlock_open(lock->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0) {
        return outcome;
    }
    taken = semlock_system_witness(fd) == 1 && fstat(fd, &seen) == 0 &&
            !semlock_is_unfinished(&seen);
    close(fd);
    if (taken) {
        semlock_store64(&lock->look_at, semlock_now_ns() + SEMLOCK_VOUCHED_NS);
        return SEMLOCK_HELD;
    }
    return outcome;
}

static int
try_one(semlock_lock *lock, semlock_pool *pool, int seen_free, int anyway)
{
    const semlock_record *record = lock->record;
    int outcome = semlock_object_begin(lock, pool);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    if (record->life != 0 && record->life != pool->life) {
        return semlock_object_failed(lock, SEMLOCK_FORKED); /* it names the parent */
    }
    outcome = attempt(lock, pool, record, seen_free, anyway);
    if (outcome == SEMLOCK_OK) {
        semlock_add32(&pool->holding[lock->file.ino % SEMLOCK_BURSTS], 1);
        return won(lock, pool, record);
    }
    if (outcome == SEMLOCK_HELD) {
        outcome = seen_held(lock);
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

/* The same for waiters whose turn it is, and for callers that do not wait. */
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

/* The same for a waiter that has just seen the path free: no further check. */
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

/* Many tries in one call.  Consecutive locks in one directory share a descriptor of it during
 * the call, which halves the cost of checking a held one. */
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
            directory = semlock_open(name, O_RDONLY | O_DIRECTORY, 0);
        }
        if (directory >= 0 && semlock_load64(&lock->owner) == 0) {
            const char *last = lock->path + lock->directory_length;

            last += *last == '/';
            if (faccessat(directory, last, F_OK, 0) == 0) {
                /* A check only: no thread needs to own the object for it. */
                outcomes[i] = (char)seen_held(lock);
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
