/* POSIX: many tries in one call. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "posix/system.h"

#define READ_FROM 64 /* so many locks in one directory are found by reading its names */
#define OTHERS 4     /* unless there are so many times as many other names */
#define COARSE_NS 2100000000 /* more than any filesystem rounds a time */

int
semlock_process_exists(int64_t pid)
{
    return kill((pid_t)pid, 0) == 0 || errno != ESRCH;
}

static int
same_directory(const semlock_lock *a, const semlock_lock *b)
{
    return a->directory_hash == b->directory_hash &&
           a->directory_length == b->directory_length &&
           ((a->seen_in != 0 && a->seen_in == b->seen_in) ||
            memcmp(a->path, b->path, (size_t)a->directory_length) == 0);
}

/* A hash of the state of a directory: another one for each change of its names, since that
 * changes its ctime, which no program can set. */
static uint64_t
state_of(const struct stat *directory)
{
    uint64_t state[3] = {(uint64_t)directory->st_dev, (uint64_t)directory->st_ino,
                         (uint64_t)SEMLOCK_TIME_OF(directory, c)};

    return semlock_hash(SEMLOCK_NO_HASH, state, sizeof state) | 1;
}

/* The clock by which changes are stamped.  It may be late, in a virtual machine by more than a
 * tick. */
static int64_t
clock_of_changes(void)
{
#if defined(CLOCK_REALTIME_COARSE)
    struct timespec now;

    if (clock_gettime(CLOCK_REALTIME_COARSE, &now) == 0) {
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
#endif
    return semlock_wall_ns();
}

/* The state of an open directory, before its names are read; 0 if that may stay the same when
 * the names change: on filesystems that other machines can change, and if the last change was
 * so lately that the next one may get the same time.
 *
 * Reading the names waits for a change in progress, whose time may be set already. */
static uint64_t
state_to_read(int fd)
{
    struct stat seen;
    int64_t changed, age;
    int kind;

    if (fstat(fd, &seen) != 0) {
        return 0;
    }
    changed = SEMLOCK_TIME_OF(&seen, c);
    age = clock_of_changes() - changed;
    if (age < (changed % 1000000 == 0 ? COARSE_NS : SEMLOCK_SAME_NS)) {
        return 0;
    }
    kind = semlock_system_local(fd);
    return kind == SEMLOCK_ORDERED || kind == SEMLOCK_IN_MEMORY ? state_of(&seen) : 0;
}

/* Where the hash of a name leads to the locks of that name. */
typedef struct {
    uint32_t mask;
    int32_t *index; /* -1: empty */
} names_of;

static uint32_t
slot_of(const names_of *table, uint64_t hash)
{
    return (uint32_t)(hash ^ hash >> 32) & table->mask;
}

static int
note_names(names_of *table, semlock_lock **locks, int32_t count)
{
    table->mask = 1;
    while (table->mask < 2 * (uint32_t)count) {
        table->mask = 2 * table->mask + 1;
    }
    table->index = malloc(((size_t)table->mask + 1) * sizeof *table->index);
    if (table->index == NULL) {
        return 0;
    }
    memset(table->index, -1, ((size_t)table->mask + 1) * sizeof *table->index);
    for (int32_t i = 0; i < count; i++) {
        uint32_t at = slot_of(table, locks[i]->name_hash);

        while (table->index[at] >= 0) {
            at = (at + 1) & table->mask;
        }
        table->index[at] = i;
    }
    return 1;
}

static const char *
last_part(const semlock_lock *lock)
{
    const char *last = lock->path + lock->directory_length;

    return last + (*last == '/');
}

/* Read which of many locks in one directory are held: outcomes becomes SEMLOCK_HELD or
 * SEMLOCK_FREE.  Reading the names costs less than asking for each one, unless the directory
 * has many others.  0 if that is so, or if it can't be read. */
static int
read_held(semlock_lock **locks, char *outcomes, int32_t count, int fd)
{
    names_of table;
    semlock_names names;
    const char *name;
    int32_t left = count * OTHERS;
    uint64_t state = state_to_read(fd);

    if (!note_names(&table, locks, count)) {
        close(fd);
        return 0;
    }
    memset(outcomes, SEMLOCK_FREE, (size_t)count);
    semlock_names_start(&names, fd);
    while (left-- > 0 && (name = semlock_names_next(&names)) != NULL) {
        uint64_t hash = semlock_name_hash(name, (int32_t)strlen(name));
        uint32_t at = slot_of(&table, hash);

        for (; table.index[at] >= 0; at = (at + 1) & table.mask) {
            semlock_lock *lock = locks[table.index[at]];

            if (lock->name_hash == hash && strcmp(last_part(lock), name) == 0) {
                outcomes[table.index[at]] = SEMLOCK_HELD;
                semlock_store64(&lock->seen_in, state);
            }
        }
    }
    semlock_names_end(&names);
    free(table.index);
    return left >= 0 && names.error == 0;
}

static int
is_asked_for(const semlock_lock *lock)
{
    return lock->kernel == SEMLOCK_BY_FILE && semlock_load64(&lock->owner) == 0;
}

/* Set outcomes as read_held does without reading, if the directory has not changed since all
 * of the locks were seen there. */
static int
still_held(semlock_lock **locks, char *outcomes, int32_t count, const char *directory)
{
    struct stat seen;
    uint64_t state = 0;

    for (int32_t i = 0; i < count; i++) {
        uint64_t seen_in;

        if (!is_asked_for(locks[i])) {
            continue;
        }
        seen_in = semlock_load64(&locks[i]->seen_in);
        if (state == 0 && seen_in != 0 && stat(directory, &seen) == 0) {
            state = state_of(&seen);
        }
        if (state == 0 || seen_in != state) {
            return 0;
        }
    }
    memset(outcomes, SEMLOCK_HELD, (size_t)count);
    return 1;
}

/* Do the names in a directory tell which of many locks are held?  See read_held. */
static int
find_held(semlock_lock **locks, char *outcomes, int32_t count, const char *directory)
{
    int fd;

    if (count < READ_FROM) {
        return 0;
    }
    if (still_held(locks, outcomes, count, directory)) {
        return 1;
    }
    fd = semlock_open(directory, O_RDONLY | O_DIRECTORY, 0);
    return fd >= 0 && read_held(locks, outcomes, count, fd);
}

/* Try consecutive locks in one directory. */
static void
try_group(semlock_lock **locks, char *outcomes, int32_t *errors, int32_t count, int how,
          semlock_pool *pool, semlock_round *round)
{
    char name[SEMLOCK_PATH_ROOM];
    int directory = -1, known = 0;

    if (count > 1 && semlock_join(name, locks[0]->path, locks[0]->directory_length, "") == 0) {
        known = find_held(locks, outcomes, count, name);
        directory = known ? -1 : semlock_open(name, O_RDONLY | O_DIRECTORY, 0);
    }
    for (int32_t i = 0; i < count; i++) {
        semlock_lock *lock = locks[i];
        int seen_free = 0;
        int outcome;

        if ((known || directory >= 0) && is_asked_for(lock)) {
            if (known ? outcomes[i] == SEMLOCK_HELD
                      : faccessat(directory, last_part(lock), F_OK, 0) == 0) {
                /* A check only: no thread needs to own the object for it. */
                outcomes[i] = (char)semlock_seen_held_in(round, lock, pool);
                if (outcomes[i] != SEMLOCK_FREE) {
                    continue;
                }
            }
            seen_free = 1;
        }
        if (how == SEMLOCK_ONLY_LOOK) {
            outcomes[i] = (char)semlock_look_in(round, lock, seen_free, pool);
            continue;
        }
        outcome = semlock_try_entered(lock, pool, seen_free,
                                      how == SEMLOCK_ANYWAY && lock->turns != SEMLOCK_FAIR);
        errors[i] = outcome < 0 ? outcome : 0;
        outcomes[i] = (char)(outcome < 0 ? -1 : outcome);
    }
    if (directory >= 0) {
        close(directory);
    }
}

/* Many tries in one call.  Consecutive locks in one directory share a look at it. */
void
semlock_try_many(semlock_lock **locks, char *outcomes, int32_t *errors, int32_t count, int how,
                 semlock_pool *pool)
{
    semlock_round round = {.now = semlock_now_ns(), .count = count};

    semlock_enter(pool);
    for (int32_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && same_directory(locks[i], locks[end]); end++) {
        }
        try_group(locks + i, outcomes + i, errors + i, end - i, how, pool, &round);
    }
    semlock_leave(pool);
}
