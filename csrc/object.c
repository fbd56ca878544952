/* The life of a lock object, and what needs no system call.
 *
 *   owner 0, held 0      free
 *   owner t, held 0      thread t is trying, or letting go
 *   owner t, held 1      thread t holds, `depth` times
 *   owner BORROWED       some thread refreshes or checks what t holds
 *   owner ENDING         some thread lets go
 *
 * The owner is changed by compare-and-swap only, so that two threads that use
 * one object exclude each other like two objects do, without a lock in Python,
 * and a heartbeat never writes to a descriptor that was just let go.
 */
#include <stdlib.h>
#include <string.h>

#include "semlock.h"

#define ENDING (-1)
#define BORROWED (-2)

/* The owner, once nobody borrows the object: a matter of microseconds. */
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

static int
is_separator(char c)
{
#if defined(_WIN32)
    return c == '/' || c == '\\';
#else
    return c == '/'; /* a backslash is part of a name */
#endif
}

void
semlock_set_path(semlock_lock *lock, const char *path, int32_t length)
{
    int32_t end = length;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */

    while (end > 0 && !is_separator(path[end - 1])) {
        end--;
    }
    if (end > 1) {
        end--; /* without the separator, unless it is the root itself */
    }
    for (int32_t i = 0; i < end; i++) {
        hash = (hash ^ (unsigned char)path[i]) * 1099511628211u;
    }
    lock->path = path;
    lock->path_length = length;
    lock->directory_length = end;
    lock->directory_hash = hash;
    hash = 14695981039346656037u;
    for (int32_t i = length; i > 0 && !is_separator(path[i - 1]); i--) {
        hash = (hash ^ (unsigned char)path[i - 1]) * 1099511628211u;
    }
    lock->name_hash = hash;
    lock->ticket.handle = -1;
    semlock_file_reset(&lock->file);
}

/* Start a try: SEMLOCK_OK, or why the object itself can't be had. */
int
semlock_object_begin(semlock_lock *lock)
{
    int64_t thread = semlock_thread();

    if (semlock_swap_if64(&lock->owner, 0, thread)) {
        return SEMLOCK_OK;
    }
    if (settled_owner(lock) != thread) {
        return SEMLOCK_HELD;
    }
    if (!lock->reentrant || !semlock_load32(&lock->held)) {
        return SEMLOCK_MINE;
    }
    lock->depth++;
    lock->serial++;
    return SEMLOCK_NESTED;
}

int
semlock_object_won(semlock_lock *lock, const semlock_record *record)
{
    lock->stamp_at = record->stamp_at;
    lock->token_at = record->token_at;
    semlock_store32(&lock->expect_held, 0);
    semlock_store64(&lock->look_at, 0);
    lock->waited = 0;
    lock->depth = 1;
    lock->serial++;
    semlock_store32(&lock->held, 1);
    return SEMLOCK_OK;
}

/* The try ends without the lock; nothing of it is left in the object. */
int
semlock_object_failed(semlock_lock *lock, int outcome)
{
    semlock_store64(&lock->owner, 0);
    return outcome;
}

/* A file is at the path: SEMLOCK_HELD, or SEMLOCK_LOOK when its holder is to be judged. */
int
semlock_object_seen_held(semlock_lock *lock)
{
    int64_t look_at = semlock_load64(&lock->look_at);

    semlock_store32(&lock->expect_held, 1);
    return look_at != 0 && semlock_now_ns() < look_at ? SEMLOCK_HELD : SEMLOCK_LOOK;
}

/* Use what is held for a moment: SEMLOCK_OK with the owner to give back, or SEMLOCK_FREE. */
int
semlock_object_borrow(semlock_lock *lock, int64_t *owner)
{
    for (;;) {
        *owner = settled_owner(lock);
        if (*owner <= 0 || !semlock_load32(&lock->held)) {
            return SEMLOCK_FREE;
        }
        if (semlock_swap_if64(&lock->owner, *owner, BORROWED)) {
            return SEMLOCK_OK;
        }
    }
}

void
semlock_object_return(semlock_lock *lock, int64_t owner)
{
    semlock_store64(&lock->owner, owner);
}

/* Start letting go: SEMLOCK_OK with the thread that held, or why there is nothing to do. */
int
semlock_object_end(semlock_lock *lock, int64_t *owner)
{
    for (;;) {
        *owner = settled_owner(lock);
        if (*owner <= 0 || !semlock_load32(&lock->held)) {
            return SEMLOCK_FREE;
        }
        if (lock->reentrant) {
            if (*owner != semlock_thread()) {
                return SEMLOCK_HELD;
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

/* A name that no other instance has: the random start of this process, counted on. */
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

/* The bytes of one acquisition: the caller's record with token, time and witness filled in. */
void
semlock_stamp(const semlock_record *record, const semlock_file *file, semlock_lock *lock,
              semlock_pool *pool, char *bytes)
{
    lock->stamp = semlock_wall_seconds();
    semlock_new_token(pool, lock->token);
    memcpy(bytes, record->text, (size_t)record->length);
    if (record->stamp_at >= 0) {
        int64_t rest = lock->stamp < 0 ? 0 : lock->stamp;

        for (int i = 9; i >= 0; i--, rest /= 10) {
            bytes[record->stamp_at + i] = (char)('0' + rest % 10);
        }
    }
    if (record->token_at >= 0) {
        memcpy(bytes + record->token_at, lock->token, 32);
    }
    if (record->witness_at >= 0) {
        memcpy(bytes + record->witness_at,
               file->witness ? "kept" : (file->local ? "left" : "none"), 4);
    }
}
