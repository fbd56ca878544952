/* Windows: the tickets of a queue (semlock.h, THE QUEUE).
 *
 * The system deletes a ticket when its owner closes it or ends, so no lock on it is needed to
 * know whether the owner lives.  A ticket that remains after a power cut is treated as that of
 * a stopped process.
 */
#include <stdio.h>
#include <string.h>

#include "windows/system.h"

#define TICKET_DIGITS 16
#define WHO L".who" /* suffix of a ticket that was taken from its owner */

/* The path of a queue, with a suffix. */
int
semlock_queue_path(WCHAR *room, const char *path, int32_t directory_length, uint64_t name_hash,
                   const char *inside)
{
    char name[80];

    snprintf(name, sizeof name, ".semlock-%016llx.queue%s", (unsigned long long)name_hash,
             inside);
    return semlock_join(room, path, directory_length, name);
}

static int
ticket_path(WCHAR *room, const char *path, int32_t directory_length, uint64_t name_hash,
            uint64_t number)
{
    char name[TICKET_DIGITS + 2];

    snprintf(name, sizeof name, "\\%016llx", (unsigned long long)number);
    return semlock_queue_path(room, path, directory_length, name_hash, name);
}

int
semlock_place_ticket_path(WCHAR *room, const semlock_place *place, uint64_t number)
{
    return ticket_path(room, place->path, place->directory_length, place->name_hash, number);
}

/* Does the lock have a queue?  A queue that cannot be seen prevents no try. */
int
semlock_queue_exists(const semlock_lock *lock)
{
    WCHAR queue[SEMLOCK_PATH_ROOM];

    return semlock_queue_path(queue, lock->path, lock->directory_length, lock->name_hash,
                              "") == 0 &&
           GetFileAttributesW(queue) != INVALID_FILE_ATTRIBUTES;
}

/* The number of a ticket, or 0 if the name is not a ticket's. */
static uint64_t
number_of(const WCHAR *name)
{
    uint64_t number = 0;
    int at;

    for (at = 0; at < TICKET_DIGITS && name[at] != 0; at++) {
        WCHAR unit = name[at];

        if (unit >= L'0' && unit <= L'9') {
            number = number << 4 | (uint64_t)(unit - L'0');
        }
        else if (unit >= L'a' && unit <= L'f') {
            number = number << 4 | (uint64_t)(unit - L'a' + 10);
        }
        else {
            return 0;
        }
    }
    return at == TICKET_DIGITS && name[at] == 0 ? number : 0;
}

static void
note(semlock_survey *seen, uint64_t number)
{
    if (number == 0) {
        return;
    }
    if (number == seen->own) {
        seen->there = 1;
    }
    else if (number > seen->above && number < seen->below) {
        seen->ahead++;
        seen->first = seen->first == 0 || number < seen->first ? number : seen->first;
        seen->last = number > seen->last ? number : seen->last;
    }
}

/* Find the tickets between two numbers. */
int
semlock_look_at_queue(const char *path, int32_t directory_length, uint64_t name_hash,
                      semlock_survey *seen)
{
    WCHAR pattern[SEMLOCK_PATH_ROOM];
    WIN32_FIND_DATAW entry;
    HANDLE found;
    int error = semlock_queue_path(pattern, path, directory_length, name_hash, "\\*");

    seen->first = seen->last = 0;
    seen->ahead = seen->there = 0;
    if (error != 0) {
        return error;
    }
    found = FindFirstFileExW(pattern, FindExInfoBasic, &entry, FindExSearchNameMatch, NULL,
                             FIND_FIRST_EX_LARGE_FETCH);
    if (found == INVALID_HANDLE_VALUE) {
        return semlock_last_error();
    }
    do {
        note(seen, number_of(entry.cFileName));
    } while (FindNextFileW(found, &entry));
    error = semlock_last_error();
    FindClose(found);
    return error == -ERROR_NO_MORE_FILES ? 0 : error;
}

/* The first ticket between two numbers, 0 if there is none. */
uint64_t
semlock_queue_head(const char *path, int32_t directory_length, uint64_t name_hash,
                   uint64_t above, uint64_t below)
{
    semlock_survey seen = {.above = above, .below = below};

    return semlock_look_at_queue(path, directory_length, name_hash, &seen) == 0 ? seen.first
                                                                                : 0;
}

/* Take a ticket from its owner, which did not use a free lock: 0, or an error.  Where a
 * deleted name stays until the owner closes the file, the ticket is renamed first. */
static int
take_away(const WCHAR *name)
{
    WCHAR aside[SEMLOCK_PATH_ROOM];
    size_t length = (size_t)lstrlenW(name);
    HANDLE handle;
    int error, still;

    if (length + sizeof WHO / sizeof(WCHAR) > SEMLOCK_PATH_ROOM) {
        return -ERROR_FILENAME_EXCED_RANGE;
    }
    memcpy(aside, name, length * sizeof *name);
    memcpy(aside + length, WHO, sizeof WHO);
    handle = CreateFileW(name, DELETE | FILE_WRITE_ATTRIBUTES, SEMLOCK_SHARE_ALL, NULL,
                         OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        error = semlock_last_error();
        return semlock_is_gone(error) ? 0 : error;
    }
    error = semlock_delete(handle, name, aside);
    CloseHandle(handle);
    still = error != 0 ? 0 : semlock_exists(name);
    return still == 1 ? -ERROR_ACCESS_DENIED : error;
}

/* Remove all tickets up to a number, whose owners did not use a free lock.  They hold nothing,
 * and rejoin with their old numbers when they run again.  Returns the highest that could not
 * be removed, or 0. */
uint64_t
semlock_queue_pass(const char *path, int32_t directory_length, uint64_t name_hash,
                   uint64_t upto)
{
    WCHAR name[SEMLOCK_PATH_ROOM];
    semlock_survey seen = {.below = upto == UINT64_MAX ? upto : upto + 1};
    uint64_t left = 0;

    while (semlock_look_at_queue(path, directory_length, name_hash, &seen) == 0 &&
           seen.first != 0) {
        seen.above = seen.first;
        if (ticket_path(name, path, directory_length, name_hash, seen.first) != 0 ||
            take_away(name) != 0) {
            left = seen.first;
        }
    }
    return left;
}

int
semlock_path_is_free(const char *path)
{
    WCHAR room[SEMLOCK_PATH_ROOM];

    return semlock_wide(room, path, (int32_t)strlen(path)) == 0 && semlock_exists(room) == 0;
}

/* The state of a ticket's owner: the system deletes the ticket when the owner ends. */
int
semlock_ticket_state(const char *path)
{
    return semlock_path_is_free(path) ? SEMLOCK_TICKET_NONE : SEMLOCK_TICKET_WAITS;
}

/* Remove a ticket whose owner is dead: SEMLOCK_OK, SEMLOCK_ALIVE if it lives, SEMLOCK_FREE if
 * the ticket is gone, or an error.  The owner has the ticket open, so an exclusive open fails
 * while it lives. */
int
semlock_ticket_clean(const char *path, semlock_pool *pool)
{
    WCHAR name[SEMLOCK_PATH_ROOM];
    HANDLE handle;
    int outcome = semlock_wide(name, path, (int32_t)strlen(path));

    (void)pool;
    if (outcome != 0) {
        return outcome;
    }
    handle = CreateFileW(name, DELETE | FILE_WRITE_ATTRIBUTES, 0, NULL, OPEN_EXISTING,
                         FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        outcome = semlock_last_error();
        return semlock_is_gone(outcome)              ? SEMLOCK_FREE
               : outcome == -ERROR_SHARING_VIOLATION ? SEMLOCK_ALIVE
                                                     : outcome;
    }
    outcome = semlock_delete(handle, name, NULL);
    CloseHandle(handle);
    return outcome == 0 ? SEMLOCK_OK : outcome;
}
