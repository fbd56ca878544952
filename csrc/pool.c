/* Kept claims: a few finished files, each waiting in its directory to be an instance again.
 *
 * A slot is 0 empty, 1 full or 2 in the hands of one thread, and changes by
 * compare-and-swap only.  A file is in a slot or in a lock object, never in both.
 */
#include <string.h>

#include "semlock.h"

static int
slot_fits(const semlock_slot *slot, const semlock_lock *lock)
{
    return slot->directory_hash == lock->directory_hash &&
           slot->directory_length == lock->directory_length &&
           memcmp(slot->directory, lock->path, (size_t)lock->directory_length) == 0;
}

/* FORKING
 *
 * Calls run without the GIL, so another thread could fork in the middle of one.  The child
 * would then have descriptors that its copy of the memory doesn't know yet, and that carry the
 * parent's witness and guard, or its memory would name some that are closed already.  So a
 * fork waits until no call is under way, and no call begins until it is done.  A call never
 * needs the GIL to end.
 */
#define FORK_PATIENCE                                                                         \
    10000000000 /* nanoseconds: a filesystem that hangs must not stop all                     \
                 */

void
semlock_enter(semlock_pool *pool)
{
    int64_t forking, end = 0;

    for (;;) {
        semlock_add64(&pool->busy, 1);
        forking = semlock_load64(&pool->forking);
        /* The forking thread itself may call: other hooks of its fork use locks, perhaps. */
        if (forking == 0 || forking == semlock_thread()) {
            return;
        }
        if (end == 0) {
            end = semlock_now_ns() + FORK_PATIENCE;
        }
        else if (semlock_now_ns() > end) {
            return; /* a hook that waits for this thread: better a leak than a deadlock */
        }
        semlock_add64(&pool->busy, -1);
        semlock_yield();
    }
}

void
semlock_leave(semlock_pool *pool)
{
    semlock_add64(&pool->busy, -1);
}

void
semlock_before_fork(semlock_pool *pool)
{
    int64_t end = semlock_now_ns() + FORK_PATIENCE;

    semlock_store64(&pool->forking, semlock_thread());
    while (semlock_load64(&pool->busy) != 0 && semlock_now_ns() < end) {
        semlock_yield();
    }
}

/* In the parent: go on.  The child forgets the pool, which does this too. */
void
semlock_after_fork(semlock_pool *pool)
{
    semlock_store64(&pool->forking, 0);
}

/* Take a kept claim for this lock's directory and mode; 0 if there is none. */
int
semlock_pool_take(semlock_pool *pool, const semlock_lock *lock, int32_t mode,
                  semlock_file *file)
{
    for (int i = 0; i < SEMLOCK_POOL_SLOTS; i++) {
        semlock_slot *slot = &pool->slots[i];

        if (semlock_load32(&slot->state) != 1 ||
            semlock_load64(&slot->directory_hash) != lock->directory_hash ||
            !semlock_swap_if32(&slot->state, 1, 2)) {
            continue;
        }
        if (slot_fits(slot, lock) && slot->file.mode == mode) {
            *file = slot->file;
            semlock_store32(&slot->state, 0);
            return 1;
        }
        semlock_store32(&slot->state, 1);
    }
    return 0;
}

/* Was a lock in this directory released before, not long ago?  Then the next one is kept. */
int
semlock_pool_wants(semlock_pool *pool, const semlock_lock *lock)
{
    uint64_t place;

    if (pool->keep <= 0 || lock->fleeting ||
        lock->directory_length >= (int32_t)sizeof pool->slots[0].directory) {
        return 0;
    }
    for (int i = 0; i < SEMLOCK_SEEN; i++) {
        if (semlock_load64(&pool->seen[i]) == lock->directory_hash) {
            return 1;
        }
    }
    place = (uint64_t)semlock_add64(&pool->seen_count, 1) % SEMLOCK_SEEN;
    semlock_store64(&pool->seen[place], lock->directory_hash);
    return 0;
}

static int
put_into(semlock_pool *pool, semlock_slot *slot, const semlock_lock *lock,
         const semlock_file *file)
{
    slot->file = *file;
    slot->directory_length = lock->directory_length;
    semlock_store64(&slot->directory_hash, lock->directory_hash);
    memcpy(slot->directory, lock->path, (size_t)lock->directory_length);
    slot->directory[lock->directory_length] = 0;
    semlock_store64(&slot->used, (uint64_t)semlock_add64(&pool->count, 1));
    semlock_store32(&slot->state, 1);
    return 1;
}

/* Give a named, finished file to the pool; 0 if it has no room for it. */
int
semlock_pool_put(semlock_pool *pool, const semlock_lock *lock, semlock_file *file)
{
    semlock_slot *oldest = NULL;
    int slots = pool->keep < SEMLOCK_POOL_SLOTS ? pool->keep : SEMLOCK_POOL_SLOTS;
    uint64_t age = UINT64_MAX;
    int alike = 0;

    for (int i = 0; i < slots; i++) {
        semlock_slot *slot = &pool->slots[i];

        if (semlock_load32(&slot->state) == 0) {
            continue;
        }
        if (semlock_load64(&slot->directory_hash) == lock->directory_hash) {
            alike++;
        }
        else if (semlock_load64(&slot->used) < age) {
            age = semlock_load64(&slot->used);
            oldest = slot;
        }
    }
    if (alike >= SEMLOCK_KEPT_PER_DIRECTORY) {
        return 0;
    }
    for (int i = 0; i < slots; i++) {
        if (semlock_swap_if32(&pool->slots[i].state, 0, 2)) {
            return put_into(pool, &pool->slots[i], lock, file);
        }
    }
    if (oldest != NULL && semlock_swap_if32(&oldest->state, 1, 2)) {
        semlock_file_dispose(&oldest->file, oldest->directory, oldest->directory_length);
        return put_into(pool, oldest, lock, file);
    }
    return 0;
}

/* Give up the kept claims of one directory, or of all when it is NULL. */
void
semlock_pool_drain_entered(semlock_pool *pool, const char *directory, int32_t length)
{
    for (int i = 0; i < SEMLOCK_POOL_SLOTS; i++) {
        semlock_slot *slot = &pool->slots[i];

        if (!semlock_swap_if32(&slot->state, 1, 2)) {
            continue;
        }
        if (directory != NULL && (slot->directory_length != length ||
                                  memcmp(slot->directory, directory, (size_t)length) != 0)) {
            semlock_store32(&slot->state, 1);
            continue;
        }
        semlock_file_dispose(&slot->file, slot->directory, slot->directory_length);
        semlock_store32(&slot->state, 0);
    }
}

void
semlock_pool_drain(semlock_pool *pool, const char *directory, int32_t length)
{
    semlock_enter(pool);
    semlock_pool_drain_entered(pool, directory, length);
    semlock_leave(pool);
}

/* What is held here, by inode number: few enough bits to be wrong sometimes, and then only a
 * closer look is taken. */
int
semlock_held_here(semlock_pool *pool, uint64_t ino)
{
    return semlock_load32(&pool->holding[ino % SEMLOCK_BURSTS]) != 0;
}

static semlock_burst *
burst_of(semlock_pool *pool, const semlock_lock *lock)
{
    return &pool->bursts[(lock->name_hash ^ lock->directory_hash) % SEMLOCK_BURSTS];
}

/* Has this process been taking this lock again and again for so long that those who wait
 * should have it now?  A process that comes anew, or leaves the lock alone between its turns
 * for longer than a waiter needs to wake, keeps nobody out and isn't asked to look. */
static int
burst_over(semlock_pool *pool, const semlock_lock *lock)
{
    semlock_burst *burst = burst_of(pool, lock);
    int64_t now = semlock_now_ns();

    if (now - semlock_load64(&burst->released) > SEMLOCK_BURST_NS) {
        semlock_store64(&burst->began, now);
        return 0;
    }
    return now - semlock_load64(&burst->began) > SEMLOCK_BURST_NS;
}

void
semlock_burst_began(semlock_pool *pool, const semlock_lock *lock)
{
    semlock_store64(&burst_of(pool, lock)->began, semlock_now_ns());
}

/* Is it the turn of those who wait?  Once a burst is over it stays so until nobody waits, or
 * until the lock is won in turn. */
int
semlock_must_make_way(const semlock_lock *lock, semlock_pool *pool)
{
    if (lock->turns == SEMLOCK_NO_TURNS) {
        return 0;
    }
    if (lock->turns == SEMLOCK_FAIR) {
        return semlock_queue_exists(lock);
    }
    if (!burst_over(pool, lock)) {
        return 0;
    }
    if (semlock_queue_exists(lock)) {
        semlock_contended_now(pool, lock);
        return 1;
    }
    semlock_burst_began(pool, lock);
    return 0;
}

/* Others want this lock too: this process has made way for them, or came too late. */
void
semlock_contended_now(semlock_pool *pool, const semlock_lock *lock)
{
    semlock_store64(&burst_of(pool, lock)->contended, semlock_now_ns());
}

/* Need a waiter stand in no queue, since nobody else seems to wait?  A ticket that nobody
 * reads costs as much as the wake itself.  But whoever has just released the lock and finds it
 * held again contends with somebody. */
int
semlock_may_wait_alone(const semlock_lock *lock, semlock_pool *pool)
{
    semlock_burst *burst = burst_of(pool, lock);
    int64_t now = semlock_now_ns();

    if (lock->turns != SEMLOCK_TAKE_TURNS) {
        return 0;
    }
    if (now - semlock_load64(&burst->released) < SEMLOCK_AGAIN_NS) {
        semlock_contended_now(pool, lock);
    }
    return now - semlock_load64(&burst->contended) > SEMLOCK_CONTENDED_NS &&
           !semlock_queue_exists(lock);
}

void
semlock_burst_released(semlock_pool *pool, const semlock_lock *lock)
{
    semlock_store64(&burst_of(pool, lock)->released, semlock_now_ns());
}
