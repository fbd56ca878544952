/* Kept claims: finished lock files of earlier acquisitions, kept for the next one in the same
 * directory (semlock.h, THE KEPT CLAIM).  The states of a slot are drawn in semlock_api.h.
 */
#include <string.h>

#include "core.h"

static int
slot_fits(const semlock_slot *slot, const semlock_lock *lock)
{
    return slot->directory_hash == lock->directory_hash &&
           slot->directory_length == lock->directory_length &&
           memcmp(slot->directory, lock->path, (size_t)lock->directory_length) == 0;
}

/* A kept claim belongs to the user, the group and the umask that made it.  Under another user
 * it is not used: it is removed if that is permitted, and else stays for its maker. */
static int
made_by_another(semlock_slot *slot)
{
    if (semlock_is_maker(&slot->file) && semlock_has_umask(&slot->file)) {
        return 0;
    }
    if (!slot->file.strange &&
        semlock_private_remove(&slot->file, slot->directory, slot->directory_length) != 0) {
        slot->file.strange = 1;
    }
    if (slot->file.strange) {
        semlock_store32(&slot->state, 1);
        return 1;
    }
    semlock_file_dispose(&slot->file, slot->directory, slot->directory_length);
    semlock_store32(&slot->state, 0);
    return 1;
}

/* Find a kept claim for this lock's directory and mode: its slot, in state 2, or NULL.  One
 * that the wait for this lock was prepared with is not asked again whose it is. */
static semlock_slot *
find(semlock_pool *pool, const semlock_lock *lock, int32_t mode)
{
    for (int i = 0; i < SEMLOCK_POOL_SLOTS; i++) {
        semlock_slot *slot = &pool->slots[i];

        if (semlock_load32(&slot->state) != 1 ||
            semlock_load64(&slot->directory_hash) != lock->directory_hash ||
            !semlock_swap_if32(&slot->state, 1, 2)) {
            continue;
        }
        if (slot_fits(slot, lock) && slot->file.ino != semlock_load64(&lock->ready) &&
            made_by_another(slot)) {
            continue;
        }
        if (slot_fits(slot, lock) && slot->file.mode == mode) {
            return slot;
        }
        semlock_store32(&slot->state, 1);
    }
    return NULL;
}

/* Take a kept claim for this lock's directory and mode; 0 if there is none. */
int
semlock_pool_take(semlock_pool *pool, const semlock_lock *lock, int32_t mode,
                  semlock_file *file)
{
    semlock_slot *slot = find(pool, lock, mode);

    if (slot == NULL) {
        return 0;
    }
    *file = slot->file;
    semlock_store32(&slot->state, 0);
    return 1;
}

/* The inode number of a kept claim that semlock_pool_take() would find; 0 if there is none.
 * Another thread may take it. */
uint64_t
semlock_pool_has(semlock_pool *pool, const semlock_lock *lock, int32_t mode)
{
    semlock_slot *slot = find(pool, lock, mode);
    uint64_t ino = slot == NULL ? 0 : slot->file.ino;

    if (slot != NULL) {
        semlock_store32(&slot->state, 1);
    }
    return ino;
}

/* Was a lock in this directory released before, recently?  Then this one is worth keeping. */
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

/* Put a finished file with a private name into the pool; 0 if there is no room for it. */
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

/* Dispose of the kept claims of one directory, or of all if it is NULL. */
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

/* Does this process hold a lock with this inode number?  The table is a hash, so a collision
 * can answer yes by mistake; that only costs a closer look. */
int
semlock_held_here(semlock_pool *pool, uint64_t ino)
{
    return semlock_load32(&pool->holding[ino % SEMLOCK_BURSTS]) != 0;
}
