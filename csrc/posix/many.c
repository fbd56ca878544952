/* POSIX: many tries in one call. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "posix/system.h"

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
                outcomes[i] = (char)semlock_seen_held(lock);
                continue;
            }
            seen_free = 1;
        }
        outcome =
            semlock_try_entered(lock, pool, seen_free, anyway && lock->turns != SEMLOCK_FAIR);
        errors[i] = outcome < 0 ? outcome : 0;
        outcomes[i] = (char)(outcome < 0 ? -1 : outcome);
    }
    if (directory >= 0) {
        close(directory);
    }
    semlock_leave(pool);
}
