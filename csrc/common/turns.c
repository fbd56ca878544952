/* When a process makes way for waiters, and what it remembers of each lock for that.  The
 * states of a burst are drawn in semlock_api.h. */
#include "core.h"

#define PASSED_FOR 5000000000 /* nanoseconds for which passed tickets are ignored */

static uint64_t
key_of(const semlock_lock *lock)
{
    return lock->name_hash ^ lock->directory_hash;
}

static semlock_burst *
burst_of_key(semlock_pool *pool, uint64_t key)
{
    return &pool->bursts[key % SEMLOCK_BURSTS];
}

static semlock_burst *
burst_of(semlock_pool *pool, const semlock_lock *lock)
{
    return burst_of_key(pool, key_of(lock));
}

/* Has this process reacquired this lock for so long that waiters should get it now?  A process
 * that comes anew, or pauses between releases and acquires for longer than a waiter needs to
 * wake, blocks no waiter and need not check. */
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

/* Tickets up to this number are ignored. */
uint64_t
semlock_passed(semlock_pool *pool, uint64_t key)
{
    semlock_burst *burst = burst_of_key(pool, key);

    if (semlock_load64(&burst->key) != key || semlock_load64(&burst->passed) == 0 ||
        semlock_now_ns() - semlock_load64(&burst->passed_at) > PASSED_FOR) {
        return 0;
    }
    return semlock_load64(&burst->passed);
}

/* Paths whose keys collide share an entry; the last one owns it. */
static void
claim(semlock_burst *burst, uint64_t key)
{
    if (semlock_load64(&burst->key) != key) {
        semlock_store64(&burst->free_since, 0);
        semlock_store64(&burst->passed, 0);
        semlock_store64(&burst->key, key);
    }
}

/* The tickets up to a number did not use a free lock, and cannot be passed by on disk. */
void
semlock_remember_passed(semlock_pool *pool, uint64_t key, uint64_t number)
{
    semlock_burst *burst = burst_of_key(pool, key);

    claim(burst, key);
    semlock_store64(&burst->passed_at, semlock_now_ns());
    semlock_store64(&burst->passed, number);
}

static int
any_is_free(semlock_lock *const *locks, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (locks[i]->kernel != SEMLOCK_BY_FILE ? semlock_kernel_is_free(locks[i])
                                                : semlock_path_is_free(locks[i]->path)) {
            return 1;
        }
    }
    return 0;
}

/* Do waiters in the queue come first?  SEMLOCK_OK: no; SEMLOCK_HELD: yes, and none of the
 * locks is free; SEMLOCK_TURN: yes, and one is free.  Waiters that do not use a free lock lose
 * their turn after SEMLOCK_STOPPED_NS: they are stopped or too slow. */
static int
others_first(const semlock_lock *queue, semlock_lock *const *locks, int32_t count,
             semlock_pool *pool)
{
    semlock_burst *burst = burst_of(pool, queue);
    uint64_t key = key_of(queue);
    semlock_queue its = semlock_queue_of(queue);
    uint64_t first = semlock_queue_head(&its, semlock_passed(pool, key), UINT64_MAX);
    int64_t now = semlock_now_ns();
    int64_t since;
    uint64_t left;

    claim(burst, key);
    if (first == 0 || !any_is_free(locks, count)) {
        semlock_store64(&burst->free_since, 0);
        return first == 0 ? SEMLOCK_OK : SEMLOCK_HELD;
    }
    since = semlock_load64(&burst->free_since);
    if (since == 0 || semlock_load64(&burst->free_first) != first) {
        semlock_store64(&burst->free_first, first);
        semlock_store64(&burst->free_since, now);
        return SEMLOCK_TURN;
    }
    if (now - since < SEMLOCK_STOPPED_NS) {
        return SEMLOCK_TURN;
    }
    semlock_store64(&burst->free_since, 0);
    /* Numbers are times, so these tickets existed during all that time. */
    left = semlock_queue_pass(&its, first > (uint64_t)since ? first : (uint64_t)since);
    if (left != 0) {
        semlock_remember_passed(pool, key, left);
    }
    return SEMLOCK_OK;
}

/* Is it the turn of the waiters?  After the end of a burst this stays so until there is no
 * waiter, or until the lock is acquired in turn. */
int
semlock_must_make_way_to_any(const semlock_lock *queue, semlock_lock *const *locks,
                             int32_t count, semlock_pool *pool)
{
    int outcome;

    if (queue->turns == SEMLOCK_NO_TURNS) {
        return SEMLOCK_OK;
    }
    if (queue->turns == SEMLOCK_FAIR) {
        return semlock_queue_exists(queue) ? others_first(queue, locks, count, pool)
                                           : SEMLOCK_OK;
    }
    if (!burst_over(pool, queue)) {
        return SEMLOCK_OK;
    }
    outcome =
        semlock_queue_exists(queue) ? others_first(queue, locks, count, pool) : SEMLOCK_OK;
    if (outcome != SEMLOCK_OK) {
        semlock_contended_now(pool, queue);
        return outcome;
    }
    semlock_burst_began(pool, queue);
    return SEMLOCK_OK;
}

/* The same for a lock with a queue of its own. */
int
semlock_must_make_way(const semlock_lock *lock, semlock_pool *pool)
{
    semlock_lock *one = (semlock_lock *)(uintptr_t)lock;

    return semlock_must_make_way_to_any(lock, &one, 1, pool);
}

/* Do waiters come before a try of this kind?  A caller that waits if it fails makes way to any
 * queue, without asking who is in it: it joins the queue next, and finds that out there. */
int
semlock_makes_way(const semlock_lock *lock, semlock_pool *pool, int way)
{
    if (way != SEMLOCK_OR_WAIT || lock->turns == SEMLOCK_NO_TURNS ||
        lock->kernel != SEMLOCK_BY_FILE) {
        return way == SEMLOCK_ANYWAY ? SEMLOCK_OK : semlock_must_make_way(lock, pool);
    }
    if (lock->turns != SEMLOCK_FAIR && !burst_over(pool, lock)) {
        return SEMLOCK_OK;
    }
    if (semlock_queue_exists(lock)) {
        semlock_contended_now(pool, lock);
        return SEMLOCK_TURN;
    }
    semlock_burst_began(pool, lock);
    return SEMLOCK_OK;
}

/* The lock is contended: this process has made way, or came too late. */
void
semlock_contended_now(semlock_pool *pool, const semlock_lock *lock)
{
    semlock_store64(&burst_of(pool, lock)->contended, semlock_now_ns());
}

int
semlock_is_contended(const semlock_lock *lock, semlock_pool *pool)
{
    return semlock_now_ns() - semlock_load64(&burst_of(pool, lock)->contended) <=
           SEMLOCK_CONTENDED_NS;
}

/* May a waiter go without a ticket, since no other waiter is known?  A ticket that no process
 * reads costs as much as the wake itself.  But if this process has just released the lock and
 * finds it held again, it is contended. */
int
semlock_may_wait_alone(const semlock_lock *lock, semlock_pool *pool)
{
    if (lock->turns != SEMLOCK_TAKE_TURNS) {
        return 0;
    }
    if (semlock_now_ns() - semlock_load64(&burst_of(pool, lock)->released) <
        SEMLOCK_AGAIN_NS) {
        semlock_contended_now(pool, lock);
    }
    return !semlock_is_contended(lock, pool) && !semlock_queue_exists(lock);
}

void
semlock_burst_released(semlock_pool *pool, const semlock_lock *lock)
{
    semlock_store64(&burst_of(pool, lock)->released, semlock_now_ns());
}
