/* What is done with a lock that is held: release, refresh, check, and leaving it to another
 * process. */
#include "core.h"

static int
release(semlock_lock *lock, semlock_pool *pool)
{
    int64_t owner;
    uint64_t ino;
    int outcome = semlock_object_end(lock, pool, &owner);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    ino = lock->file.ino; /* on FAT a rename changes it */
    outcome = lock->kernel != SEMLOCK_BY_FILE ? semlock_kernel_release(lock, pool)
                                              : semlock_release_held(lock, pool);
    if (outcome < 0 || outcome == SEMLOCK_GUARDED) {
        semlock_store64(&lock->owner, owner); /* still held; the release can be repeated */
        return outcome;
    }
    if (lock->file.handle != -1 || lock->file.named) {
        semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
    }
    semlock_add32(&pool->holding[ino % SEMLOCK_BURSTS], -1);
    if (lock->turns != SEMLOCK_NO_TURNS) {
        semlock_ticket_leave(lock);
        semlock_burst_released(pool, lock);
        if (lock->waited) {
            /* Others want it too: check the path first. */
            semlock_store32(&lock->expect_held, 1);
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

/* What a refresh writes; of a check there is none. */
typedef struct {
    const char *text;
    int32_t length;
} content;

static int
refresh_guarded(semlock_lock *lock, semlock_os_file opened, const content *new)
{
    semlock_view seen = {0};
    int still = semlock_still_held(lock, opened, &seen);
    int outcome;

    if (still != 1) {
        return still == 0 ? SEMLOCK_LOST : still;
    }
    outcome = semlock_write_all(opened, new->text, new->length);
    if (outcome == 0) {
        semlock_written(lock, new->text, new->length);
        if (seen.size > new->length) {
            /* Rewritten longer by another program, with our token. */
            outcome = semlock_shorten(opened, new->length);
        }
    }
    return outcome;
}

static int
refresh_held(semlock_lock *lock, semlock_os_file opened, const void *argument)
{
    int guard = semlock_guard(opened);
    int outcome;

    if (semlock_is_kept_out(guard)) {
        return guard;
    }
    outcome = refresh_guarded(lock, opened, argument);
    semlock_unguard(opened);
    return outcome;
}

/* Write the record again with new content of the same length, mostly a new time.  The text has
 * the token of one acquisition, which `serial` names.  If the lock was released and acquired
 * again since the text was composed, it must not get into the new instance: SEMLOCK_CHANGED.
 */
int
semlock_refresh(semlock_lock *lock, semlock_pool *pool, const char *text, int32_t length,
                uint64_t serial)
{
    content new = {text, length};
    int64_t owner;
    int outcome;

    semlock_enter(pool);
    outcome = semlock_object_borrow(lock, pool, &owner);
    if (outcome == SEMLOCK_OK) {
        outcome = (uint64_t)semlock_load64(&lock->serial) != serial ? SEMLOCK_CHANGED
                  : length != lock->file.length
                      ? SEMLOCK_BAD_ARGUMENT
                      : semlock_with_held(lock, pool, refresh_held, &new);
        semlock_object_return(lock, owner);
    }
    semlock_leave(pool);
    return outcome;
}

static int
check_held(semlock_lock *lock, semlock_os_file opened, const void *argument)
{
    semlock_view seen = {0};
    int held = semlock_still_held(lock, opened, &seen);

    (void)argument;
    return held == 1 ? SEMLOCK_OK : (held == 0 ? SEMLOCK_LOST : held);
}

int
semlock_check(semlock_lock *lock, semlock_pool *pool)
{
    int64_t owner;
    int outcome;

    semlock_enter(pool);
    outcome = semlock_object_borrow(lock, pool, &owner);
    if (outcome == SEMLOCK_OK) {
        outcome = lock->kernel != SEMLOCK_BY_FILE
                      ? semlock_kernel_check(lock, pool)
                      : semlock_with_held(lock, pool, check_held, NULL);
        semlock_object_return(lock, owner);
    }
    semlock_leave(pool);
    return outcome;
}

/* Reset the object and close its descriptors.  The file at its path is not changed. */
void
semlock_forget(semlock_lock *lock, semlock_pool *pool)
{
    semlock_enter(pool);
    semlock_object_bind(lock, pool);
    semlock_unprepare(lock, pool);
    semlock_held_close(lock, pool);
    semlock_object_freed(lock);
    semlock_leave(pool);
}

/* Leave the lock to the process that its record names, and reset the object. */
int
semlock_detach(semlock_lock *lock, semlock_pool *pool)
{
    int outcome;

    semlock_enter(pool);
    outcome = semlock_object_bind(lock, pool);
    if (outcome == SEMLOCK_OK && lock->kernel != SEMLOCK_BY_FILE) {
        semlock_ticket_leave(lock); /* the waiters watch the file from now on */
    }
    semlock_leave(pool);
    if (outcome == SEMLOCK_OK) {
        semlock_forget(lock, pool);
    }
    return outcome;
}
