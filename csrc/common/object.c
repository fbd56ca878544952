/* The states of a lock object, and what needs no system call.
 *
 *   owner 0              free
 *   owner TRYING - t     thread t is trying to acquire
 *   owner t              thread t holds, `depth` times
 *   owner BORROWED       a thread refreshes or checks what thread t holds
 *   owner ENDING         a thread is releasing
 *
 * With `by_object` any thread nests and releases; then t is the one that won last.
 *
 *   free ---begin---> TRYING - t ---won---> t <---borrow/return---> BORROWED
 *    ^                    |                 |
 *    |<------failed-------+                end ---> ENDING ---freed---> free
 *
 * The owner is changed by compare-and-swap only.  So two threads that use one
 * object exclude each other as two objects do, without a lock in Python, and a
 * heartbeat never writes to a descriptor that was just released.  A thread that
 * tries is stored as another number than a thread that holds: between another
 * thread's load and its swap, the holder may release and try again.
 *
 * `held` gives the same answer to readers that do not swap.
 */
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define ENDING (-1)
#define BORROWED (-2)
#define TRYING (-2) /* threads are numbered from 1, so this is -3 or less */

/* The owner, once no thread borrows the object: a borrow lasts microseconds. */
static int64_t
settled_owner(semlock_lock *lock)
{
    int64_t owner;

    while ((owner = semlock_load64(&lock->owner)) == BORROWED) {
        semlock_yield();
    }
    return owner;
}

void
semlock_file_reset(semlock_file *file)
{
    memset(file, 0, sizeof *file);
    file->handle = -1;
}

/* A forked child has a copy of this memory.  Descriptors, holds and tries in it belong to the
 * parent, so they are reset here, by one thread.  Returns SEMLOCK_FORKED if the object said
 * that something was held or under way. */
int
semlock_object_bind(semlock_lock *lock, const semlock_pool *pool)
{
    int64_t life = pool->life;
    int64_t was = semlock_load64(&lock->life);
    int held;

    if (was == life) {
        return SEMLOCK_OK;
    }
    /* A negative life marks the reset as under way, by a thread of this process. */
    while (was == -life || !semlock_swap_if64(&lock->life, was, -life)) {
        semlock_yield();
        was = semlock_load64(&lock->life);
        if (was == life) {
            return SEMLOCK_OK;
        }
    }
    held = semlock_load32(&lock->held) || semlock_load64(&lock->owner) != 0;
    if (was != 0) {
        lock->ticket.handle = -1;
        lock->waited = lock->prepared = 0;
        semlock_store64(&lock->ready, 0);
        semlock_store32(&lock->expect_held, 0);
        semlock_store64(&lock->look_at, 0);
        semlock_store64(&lock->holder, 0);
    }
    if (held) {
        semlock_object_freed(lock);
    }
    semlock_file_reset(&lock->file);
    semlock_store64(&lock->life, life);
    return held ? SEMLOCK_FORKED : SEMLOCK_OK;
}

/* Does any thread of this process hold this object?  SEMLOCK_OK, SEMLOCK_FREE, or once
 * SEMLOCK_FORKED if the parent held it. */
int
semlock_holds(semlock_lock *lock, semlock_pool *pool)
{
    int outcome;

    semlock_enter(pool);
    outcome = semlock_object_bind(lock, pool);
    if (outcome == SEMLOCK_OK && !semlock_load32(&lock->held)) {
        outcome = SEMLOCK_FREE;
    }
    semlock_leave(pool);
    return outcome;
}

/* Own the object for a moment if it is free, as a try does: 1, or 0 if it is not free.  A try
 * of another thread lasts microseconds. */
int
semlock_object_seize(semlock_lock *lock, const semlock_pool *pool)
{
    int64_t owner;

    semlock_object_bind(lock, pool);
    while (!semlock_swap_if64(&lock->owner, 0, TRYING - semlock_thread())) {
        owner = semlock_load64(&lock->owner);
        if (owner >= TRYING && owner != 0) {
            return 0;
        }
        semlock_yield();
    }
    return 1;
}

/* Borrow what the object holds, whichever thread won it: its owner, or 0 if it is not held. */
static int64_t
borrow_held(semlock_lock *lock)
{
    for (;;) {
        int64_t owner = settled_owner(lock);

        if (owner <= 0) {
            return 0;
        }
        if (semlock_swap_if64(&lock->owner, owner, BORROWED)) {
            return owner;
        }
    }
}

/* A try by an object that holds for all threads.  The owner is the thread that won last: only
 * that one gives its win back when it is interrupted. */
static int
nest_by_object(semlock_lock *lock, int64_t thread)
{
    int64_t owner = lock->reentrant ? borrow_held(lock) : 0;

    if (owner == 0) {
        return SEMLOCK_HELD;
    }
    lock->depth++;
    semlock_store64(&lock->serial, lock->serial + 1);
    semlock_store64(&lock->owner, thread);
    return SEMLOCK_NESTED;
}

/* Start a try: SEMLOCK_OK, or the reason why this object cannot be acquired. */
int
semlock_object_begin(semlock_lock *lock, const semlock_pool *pool)
{
    int64_t thread = semlock_thread();
    int64_t owner;

    semlock_object_bind(lock, pool);

    if (semlock_swap_if64(&lock->owner, 0, TRYING - thread)) {
        return SEMLOCK_OK;
    }
    if (lock->by_object) {
        return nest_by_object(lock, thread);
    }
    owner = settled_owner(lock);
    if (owner != thread) {
        return owner == TRYING - thread ? SEMLOCK_MINE : SEMLOCK_HELD;
    }
    if (!lock->reentrant) {
        return SEMLOCK_MINE;
    }
    lock->depth++;
    semlock_store64(&lock->serial, lock->serial + 1);
    return SEMLOCK_NESTED;
}

int
semlock_object_won(semlock_lock *lock, const semlock_record *record)
{
    lock->stamp_at = record->stamp_at;
    lock->token_at = record->token_at;
    semlock_store32(&lock->expect_held, 0);
    semlock_store64(&lock->look_at, 0);
    semlock_store64(&lock->holder, 0);
    semlock_store64(&lock->ready, 0);
    lock->waited = 0;
    lock->depth = 1;
    semlock_store64(&lock->serial, lock->serial + 1);
    semlock_store32(&lock->held, 1);
    semlock_store64(&lock->owner, TRYING - semlock_load64(&lock->owner));
    return SEMLOCK_OK;
}

/* The try ends without the lock, and the object is free again. */
int
semlock_object_failed(semlock_lock *lock, int outcome)
{
    semlock_store64(&lock->owner, 0);
    return outcome;
}

/* A file is at the path: SEMLOCK_HELD, or SEMLOCK_LOOK when it is time to judge its holder. */
int
semlock_object_seen_held(semlock_lock *lock, int64_t now)
{
    int64_t look_at = semlock_load64(&lock->look_at);

    semlock_store32(&lock->expect_held, 1);
    return look_at != 0 && now < look_at ? SEMLOCK_HELD : SEMLOCK_LOOK;
}

/* Borrow a held object for a refresh or a check: SEMLOCK_OK with the owner to restore, or the
 * reason why nothing is held. */
int
semlock_object_borrow(semlock_lock *lock, const semlock_pool *pool, int64_t *owner)
{
    if (semlock_object_bind(lock, pool) != SEMLOCK_OK) {
        return SEMLOCK_FORKED;
    }
    *owner = borrow_held(lock);
    return *owner == 0 ? SEMLOCK_FREE : SEMLOCK_OK;
}

void
semlock_object_return(semlock_lock *lock, int64_t owner)
{
    semlock_store64(&lock->owner, owner);
}

/* Start a release: SEMLOCK_OK with the thread that held, or the reason why there is nothing to
 * release. */
int
semlock_object_end(semlock_lock *lock, const semlock_pool *pool, int64_t *owner)
{
    if (semlock_object_bind(lock, pool) != SEMLOCK_OK) {
        return SEMLOCK_FORKED;
    }
    for (;;) {
        *owner = settled_owner(lock);
        if (*owner <= 0) {
            return SEMLOCK_FREE;
        }
        if (lock->by_object && lock->reentrant) {
            if (!semlock_swap_if64(&lock->owner, *owner, BORROWED)) {
                continue;
            }
            if (lock->depth > 1) {
                lock->depth--;
                lock->endings++;
                semlock_store64(&lock->owner, *owner);
                return SEMLOCK_NESTED;
            }
            semlock_store64(&lock->owner, ENDING);
            return SEMLOCK_OK;
        }
        if (lock->reentrant) {
            if (*owner != semlock_thread()) {
                return SEMLOCK_OTHER_THREAD;
            }
            if (lock->depth > 1) {
                lock->depth--;
                lock->endings++;
                return SEMLOCK_NESTED;
            }
        }
        if (semlock_swap_if64(&lock->owner, *owner, ENDING)) {
            return SEMLOCK_OK;
        }
    }
}

void
semlock_object_freed(semlock_lock *lock)
{
    semlock_file_reset(&lock->file);
    lock->depth = 0;
    lock->endings++;
    semlock_store32(&lock->held, 0);
    semlock_store64(&lock->owner, 0);
}

/* A token that no other instance has: the random seed of this process plus a counter. */
void
semlock_new_token(semlock_pool *pool, char token[33])
{
    static const char digits[] = "0123456789abcdef";
    uint64_t count = (uint64_t)semlock_add64(&pool->count, 1) + 1;
    uint64_t word[2] = {pool->seed[0], pool->seed[1] + count * 11400714819323198485u};

    for (int half = 0; half < 2; half++) {
        uint64_t rest = word[half];

        for (int i = 15; i >= 0; i--, rest >>= 4) {
            token[16 * half + i] = digits[rest & 15];
        }
    }
    token[32] = 0;
}

uint64_t
semlock_hash(uint64_t hash, const void *bytes, size_t length)
{
    for (const unsigned char *byte = bytes; length > 0; length--) {
        hash = (hash ^ *byte++) * 1099511628211u; /* FNV-1a */
    }
    return hash;
}

/* The number of a boot by which a boot mark names it; 0 if the boot is not known. */
uint64_t
semlock_boot_number(const char *boot)
{
    size_t length = strlen(boot);

    return length == 0 ? 0 : semlock_hash(SEMLOCK_NO_HASH, boot, length) | 1;
}
