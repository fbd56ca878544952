/* Trying to acquire.  posix/create.c and windows/create.c bring the file to its path. */
#include <errno.h>

#include "core.h"

#define JUDGED_OF_FEW 8  /* so many locks of a round are judged if they are due */
#define MANY 128         /* and of so many locks or more */
#define JUDGED_OF_MANY 2 /* so many of them */
#define JUDGED_AFTER 64  /* of very many, each one in so many rounds */
#define DEARER 4         /* how much more seldom that is done by Python */

/* The fastest way: a kept claim of this directory comes to P. */
static int
create_kept(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    semlock_file *file = &lock->file;
    int outcome = SEMLOCK_CHANGED;

    file->witness_at = record->witness_at;
    if (semlock_file_is_open(file)) {
        outcome = semlock_fill(lock, pool, record);
    }
    if (outcome == 0) {
        outcome = semlock_publish_kept(lock, pool);
    }
    if (outcome == SEMLOCK_HELD && semlock_pool_put(pool, lock, file)) {
        semlock_file_reset(file);
    }
    else if (outcome != SEMLOCK_OK) {
        semlock_file_dispose(file, lock->path, lock->directory_length);
    }
    return outcome;
}

/* The file that a wait has prepared comes to P.  It stays prepared while P is taken. */
static int
create_prepared(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    int outcome = SEMLOCK_CHANGED;

    lock->file.witness_at = record->witness_at;
    if (lock->file.mode == record->mode && semlock_file_is_open(&lock->file)) {
        outcome = semlock_fill(lock, pool, record);
    }
    if (outcome == 0) {
        outcome = semlock_publish_prepared(lock, pool);
    }
    if (outcome != SEMLOCK_HELD && outcome != -EINTR) {
        lock->prepared = 0;
        semlock_add32(&pool->prepared, -1);
        if (outcome != SEMLOCK_OK) {
            semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
        }
    }
    return outcome;
}

static int
attempt(semlock_lock *lock, semlock_pool *pool, const semlock_record *record, int seen_free,
        int way)
{
    int outcome;

    if (semlock_load32(&lock->expect_held) && !seen_free) {
        if (semlock_is_at_path(lock)) {
            return SEMLOCK_HELD;
        }
        seen_free = 1;
    }
    outcome = semlock_makes_way(lock, pool, way);
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    if (lock->prepared) {
        outcome = create_prepared(lock, pool, record);
        if (outcome == SEMLOCK_OK || outcome == SEMLOCK_HELD || outcome == -EINTR) {
            return outcome;
        }
        /* As with a kept file. */
    }
    if (!record->in_place && !record->detached &&
        semlock_pool_take(pool, lock, record->mode, &lock->file)) {
        outcome = create_kept(lock, pool, record);
        if (outcome == SEMLOCK_OK || outcome == SEMLOCK_HELD || outcome == -EINTR) {
            return outcome;
        }
        /* The kept file failed for some reason; a fresh one shows whether the reason persists.
         */
    }
    if (!seen_free && semlock_is_at_path(lock)) {
        return SEMLOCK_HELD;
    }
    outcome = semlock_create_fresh(lock, pool, record);
    if (semlock_is_short(outcome)) {
        /* Idle kept claims must not be the reason why a lock cannot be acquired. */
        semlock_pool_drain_entered(pool, NULL, 0);
        outcome = semlock_create_fresh(lock, pool, record);
    }
    return outcome;
}

/* A file is at the path.  When it is time to judge its holder, a taken witness is enough proof
 * of life, unless the caller's policy uses other evidence.  SEMLOCK_FREE: the holder was dead,
 * and its file is removed, or the file is gone. */
static int
seen_held(semlock_lock *lock, semlock_pool *pool, int64_t now)
{
    int outcome = semlock_object_seen_held(lock, now);
    semlock_holder holder = {0};
    semlock_view seen;

    if (outcome == SEMLOCK_LOOK && lock->vouched != SEMLOCK_BY_CALLER) {
        outcome = semlock_judge_holder(lock, pool, 0, &holder, &seen);
        semlock_store32(&lock->witnessed, outcome == SEMLOCK_HELD);
        if (outcome == SEMLOCK_HELD) {
            semlock_store64(&lock->holder, holder.pid);
            semlock_store64(&lock->look_at, now + SEMLOCK_VOUCHED_NS);
        }
        else if (outcome == SEMLOCK_ALIVE) {
            outcome = SEMLOCK_LOOK;
        }
        else if (outcome == SEMLOCK_CHANGED) {
            outcome = SEMLOCK_FREE;
        }
    }
    return outcome;
}

/* Has this process ended?  Many locks of one holder ask once in a round. */
static int
has_ended(semlock_round *round, int64_t pid)
{
    int32_t at = (int32_t)(pid % SEMLOCK_HOLDERS);

    if (round->pids[at] != pid) {
        round->pids[at] = pid;
        round->gone[at] = !semlock_process_exists(pid);
    }
    return round->gone[at];
}

/* Is it the turn of a lock to be judged in this round?
 *
 * Only turns of locks that are due are counted, and locks that were judged in one round are
 * due at the same time.  So in the end all turns would come in one round.  It judges its share
 * and no more: the turn of the others is in the next round. */
static int
has_turn(semlock_round *round, semlock_lock *lock, int32_t rounds)
{
    int32_t cost = semlock_load32(&lock->witnessed) ? 1 : DEARER;
    uint64_t turn =
        (lock->name_hash >> 20) + (uint64_t)(uint32_t)semlock_load32(&lock->checks);
    int comes;

    rounds = rounds < JUDGED_AFTER ? rounds : JUDGED_AFTER;
    comes = turn % (uint64_t)(rounds * cost) == 0;
    if (comes && round->judged > round->count / rounds) {
        return 0;
    }
    round->judged += comes * cost;
    semlock_add32(&lock->checks, 1);
    return comes;
}

/* The same in a round of tries of many locks.  Judging a holder costs several times as much as
 * the check of its path.  So of the holders that were judged before, a round judges those
 * whose process has ended, and of the others only a share: each lock in its turn, after so
 * many rounds.  A judgement in Python costs more, so its turn comes more seldom.
 *
 * The PID in the record only selects the holders that are judged now.  If it is wrong, as one
 * of another PID namespace is, it is not used again. */
int
semlock_seen_held_in(semlock_round *round, semlock_lock *lock, semlock_pool *pool)
{
    int64_t look_at = semlock_load64(&lock->look_at);
    int64_t holder = semlock_load64(&lock->holder);
    int32_t rounds = round->count / (round->count < MANY ? JUDGED_OF_FEW : JUDGED_OF_MANY);
    int outcome;

    if (look_at == 0 || rounds < 2) {
        return seen_held(lock, pool, round->now);
    }
    if (round->now < look_at) {
        semlock_store32(&lock->expect_held, 1);
        return SEMLOCK_HELD;
    }
    if (holder > 0 && has_ended(round, holder)) {
        outcome = seen_held(lock, pool, round->now);
        if (outcome == SEMLOCK_HELD && semlock_load64(&lock->holder) == holder) {
            semlock_store64(&lock->holder, 0);
        }
        return outcome;
    }
    if (!has_turn(round, lock, rounds)) {
        semlock_store32(&lock->expect_held, 1);
        return SEMLOCK_HELD;
    }
    return seen_held(lock, pool, round->now);
}

/* The file at the path stays, and the kernel's lock on it is the lock.  The kernel is the
 * proof that the holder lives, so there is nothing to judge. */
static int
attempt_kernel(semlock_lock *lock, semlock_pool *pool, int way)
{
    int outcome = semlock_makes_way(lock, pool, way);

    if (outcome == SEMLOCK_OK) {
        outcome = semlock_kernel_take(lock, pool);
    }
    if (outcome == SEMLOCK_OK) {
        semlock_new_token(pool, lock->token);
        lock->stamp = semlock_wall_ns() / 1000000000;
    }
    return outcome;
}

/* Is the lock free?  SEMLOCK_FREE, _HELD or _LOOK, without a try.  What this process holds or
 * tries by the same object is held. */
int
semlock_look_in(semlock_round *round, semlock_lock *lock, int seen_free, semlock_pool *pool)
{
    if (semlock_load64(&lock->owner) != 0) {
        return SEMLOCK_HELD;
    }
    if (seen_free || !semlock_is_at_path(lock)) {
        return SEMLOCK_FREE;
    }
    return semlock_seen_held_in(round, lock, pool);
}

/* Is the holder of a lock that was held to be judged now?  Then this begins with it: opening
 * the file shows as well as a check of the path whether there is one. */
static int
is_told(const semlock_lock *lock)
{
    return lock->vouched != SEMLOCK_BY_CALLER && semlock_load32(&lock->expect_held) &&
           semlock_load64(&lock->look_at) == 0;
}

/* Try, and once more if a dead holder's file was removed. */
static int
attempt_file(semlock_lock *lock, semlock_pool *pool, int seen_free, int way)
{
    int outcome = SEMLOCK_HELD;

    if (seen_free || !is_told(lock)) {
        outcome = attempt(lock, pool, lock->record, seen_free, way);
    }
    if (outcome == SEMLOCK_HELD) {
        outcome = seen_held(lock, pool, semlock_now_ns());
        if (outcome == SEMLOCK_FREE) {
            outcome = attempt(lock, pool, lock->record, 1, way);
        }
    }
    return outcome;
}

int
semlock_try_entered(semlock_lock *lock, semlock_pool *pool, int seen_free, int way)
{
    const semlock_record *record = lock->record;
    int outcome = semlock_object_begin(lock, pool);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    if (record->life != 0 && record->life != pool->life) {
        return semlock_object_failed(lock, SEMLOCK_FORKED); /* it names the parent */
    }
    if (lock->kernel != SEMLOCK_BY_FILE) {
        outcome = attempt_kernel(lock, pool, way);
    }
    else {
        outcome = attempt_file(lock, pool, seen_free, way);
    }
    if (outcome == SEMLOCK_OK) {
        semlock_add32(&pool->holding[lock->file.ino % SEMLOCK_BURSTS], 1);
        return semlock_object_won(lock, record);
    }
    return semlock_object_failed(lock, outcome);
}

static int
try_in_turn(semlock_lock *lock, semlock_pool *pool, int way)
{
    int outcome;

    semlock_enter(pool);
    outcome = semlock_try_entered(lock, pool, 0, way);
    semlock_leave(pool);
    return outcome;
}

int
semlock_try(semlock_lock *lock, semlock_pool *pool)
{
    return try_in_turn(lock, pool, SEMLOCK_IN_TURN);
}

/* The same for a caller that waits if it cannot acquire. */
int
semlock_try_or_wait(semlock_lock *lock, semlock_pool *pool)
{
    return try_in_turn(lock, pool, SEMLOCK_OR_WAIT);
}

static int
try_out_of_turn(semlock_lock *lock, semlock_pool *pool, int seen_free)
{
    int outcome;

    semlock_enter(pool);
    outcome = semlock_try_entered(lock, pool, seen_free, SEMLOCK_ANYWAY);
    if (outcome == SEMLOCK_OK && lock->turns != SEMLOCK_NO_TURNS) {
        semlock_burst_began(pool, lock);
    }
    semlock_leave(pool);
    return outcome;
}

/* The same for waiters whose turn it is, and for callers that do not wait. */
int
semlock_try_anyway(semlock_lock *lock, semlock_pool *pool)
{
    return try_out_of_turn(lock, pool, 0);
}

/* The same for a waiter that has just seen the path free: no further check. */
int
semlock_try_free(semlock_lock *lock, semlock_pool *pool)
{
    return try_out_of_turn(lock, pool, 1);
}
