/* Prepared claims: what a wait does for its next try while the lock is held (semlock.h,
 * WAITING). */
#include "core.h"

static int
can_be_prepared(const semlock_lock *lock, const semlock_pool *pool)
{
    const semlock_record *record = lock->record;

    return lock->kernel == SEMLOCK_BY_FILE && record != NULL && !record->in_place &&
           !record->detached && (record->life == 0 || record->life == pool->life);
}

/* Before a wait sleeps: choose a kept claim, which stays in the pool.  If there is none, make
 * all of the lock's file that does not need the lock; only a few at a time, because each has a
 * descriptor.  What fails here is left to the try, which reports it. */
void
semlock_prepare(semlock_lock *lock, semlock_pool *pool)
{
    if (lock->prepared || !semlock_object_seize(lock, pool)) {
        return;
    }
    if (!lock->prepared && can_be_prepared(lock, pool)) {
        uint64_t ready = semlock_pool_has(pool, lock, lock->record->mode);

        semlock_store64(&lock->ready, ready);
        if (ready != 0 || semlock_load32(&pool->prepared) >= SEMLOCK_PREPARED) {
            semlock_object_failed(lock, 0);
            return;
        }
        if (semlock_add32(&pool->prepared, 1) < SEMLOCK_PREPARED &&
            semlock_prepare_file(lock, pool, lock->record) == SEMLOCK_OK) {
            lock->prepared = 1;
        }
        else {
            semlock_add32(&pool->prepared, -1);
            semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
        }
    }
    semlock_object_failed(lock, 0);
}

/* A prepared file has no name yet.  Have another lock of the same directory use it: the try
 * writes the whole record. */
void
semlock_hand_prepared(semlock_lock *from, semlock_lock *to, semlock_pool *pool)
{
    semlock_file file;

    if (from == to || from->directory_hash != to->directory_hash ||
        from->record->mode != to->record->mode) {
        return;
    }
    semlock_store64(&to->ready, semlock_load64(&from->ready));
    semlock_store64(&from->ready, 0);
    if (!from->prepared || to->prepared || !semlock_object_seize(from, pool)) {
        return;
    }
    file = from->file;
    if (!from->prepared) {
        semlock_object_failed(from, 0);
        return;
    }
    from->prepared = 0;
    semlock_file_reset(&from->file);
    semlock_object_failed(from, 0);
    if (semlock_object_seize(to, pool)) {
        if (!to->prepared) {
            to->file = file;
            to->prepared = 1;
            semlock_object_failed(to, 0);
            return;
        }
        semlock_object_failed(to, 0);
    }
    semlock_add32(&pool->prepared, -1);
    semlock_file_dispose(&file, to->path, to->directory_length);
}

/* May the next try of this lock link a file that exists already?  As a rule: a kept claim may
 * be taken by another thread, and then the try makes a file. */
int
semlock_is_prepared(const semlock_lock *lock)
{
    return lock != NULL && (lock->prepared || semlock_load64(&lock->ready) != 0);
}

/* The wait is over: dispose of a prepared file that was not used. */
void
semlock_unprepare(semlock_lock *lock, semlock_pool *pool)
{
    semlock_store64(&lock->ready, 0);
    if (lock->prepared && semlock_object_seize(lock, pool)) {
        if (lock->prepared) {
            lock->prepared = 0;
            semlock_add32(&pool->prepared, -1);
            semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
        }
        semlock_object_failed(lock, 0);
    }
}
