/* Windows: the queue of those who wait for a lock, told in semlock.h under THE QUEUE.
 *
 * A ticket is deleted by the system when its owner closes it or ends, however that comes
 * about, so no lock on it is needed to tell whether the owner lives.  What a power cut leaves
 * is taken for a stopped one's.  What is told is that something changed in the queue, not
 * what, so everybody in it then looks who is before him. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "windows_system.h"

#define TICKET_DIGITS 16
#define JOIN_TRIES 100
#define TRANSIENT_TRIES 4 /* while the queue's directory is on its way out */

static int
queue_path(WCHAR *room, const char *path, int32_t directory_length, uint64_t name_hash,
           const char *inside)
{
    char name[80];

    snprintf(name, sizeof name, ".semlock-%016llx.queue%s", (unsigned long long)name_hash,
             inside);
    return semlock_join(room, path, directory_length, name);
}

static int
path_inside(WCHAR *room, const semlock_place *place, const char *inside)
{
    return queue_path(room, place->path, place->directory_length, place->name_hash, inside);
}

static int
ticket_path(WCHAR *room, const semlock_place *place, uint64_t number)
{
    char name[TICKET_DIGITS + 2];

    snprintf(name, sizeof name, "\\%016llx", (unsigned long long)number);
    return path_inside(room, place, name);
}

/* Does somebody wait for this lock?  A queue that cannot be seen keeps nobody from trying. */
int
semlock_queue_exists(const semlock_lock *lock)
{
    WCHAR queue[SEMLOCK_WIDE_ROOM];

    return queue_path(queue, lock->path, lock->directory_length, lock->name_hash, "") == 0 &&
           GetFileAttributesW(queue) != INVALID_FILE_ATTRIBUTES;
}

/* Errors that come while somebody tries to take the queue's directory away, which fails when
 * others stand in it, or while it is on its way out. */
static int
is_transient(int error)
{
    return error == -ERROR_ACCESS_DENIED || error == -ERROR_SHARING_VIOLATION ||
           error == -ERROR_DELETE_PENDING;
}

static int
make_queue(const semlock_place *place)
{
    WCHAR queue[SEMLOCK_WIDE_ROOM];
    int error = path_inside(queue, place, "");

    for (int tries = 0; error == 0; tries++) {
        if (CreateDirectoryW(queue, NULL)) {
            return 0;
        }
        error = semlock_last_error();
        if (error == -ERROR_ALREADY_EXISTS) {
            return 0;
        }
        if (is_transient(error) && tries < TRANSIENT_TRIES) {
            semlock_yield();
            error = 0;
        }
    }
    return error;
}

/* What a look at the queue found. */
typedef struct {
    uint64_t last;  /* the highest number */
    uint64_t first; /* the lowest one, if that is below a bound */
    uint64_t before;
    int32_t ahead; /* how many are below the bound */
    int32_t there; /* the bound itself is there */
} survey;

/* The number of a ticket, or 0 if it is none. */
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
note(survey *seen, uint64_t number, uint64_t bound)
{
    if (number > seen->last) {
        seen->last = number;
    }
    if (number == bound) {
        seen->there = 1;
    }
    else if (number != 0 && number < bound) {
        seen->ahead++;
        if (seen->first == 0 || number < seen->first) {
            seen->first = number;
        }
        if (number > seen->before) {
            seen->before = number;
        }
    }
}

static int
look_at_queue(const semlock_place *place, uint64_t bound, survey *seen)
{
    WCHAR pattern[SEMLOCK_WIDE_ROOM];
    WIN32_FIND_DATAW entry;
    HANDLE found;
    int error = path_inside(pattern, place, "\\*");

    memset(seen, 0, sizeof *seen);
    if (error != 0) {
        return error;
    }
    found = FindFirstFileExW(pattern, FindExInfoBasic, &entry, FindExSearchNameMatch, NULL, 0);
    if (found == INVALID_HANDLE_VALUE) {
        return semlock_last_error();
    }
    do {
        note(seen, number_of(entry.cFileName), bound);
    } while (FindNextFileW(found, &entry));
    error = semlock_last_error();
    FindClose(found);
    return error == -ERROR_NO_MORE_FILES ? 0 : error;
}

/* What the ticket says: the record that its owner would write into the lock, with the time
 * since which it waits.  It is for people, so it may fail. */
static void
write_ticket(HANDLE handle, const semlock_record *record)
{
    char text[SEMLOCK_TICKET_ROOM];
    int64_t rest = semlock_wall_seconds();

    if (record == NULL || record->length > (int32_t)sizeof text) {
        return;
    }
    memcpy(text, record->text, (size_t)record->length);
    for (int i = 9; i >= 0 && record->stamp_at >= 0; i--, rest /= 10) {
        text[record->stamp_at + i] = (char)('0' + rest % 10);
    }
    semlock_write_all(handle, text, record->length);
}

/* Make the ticket `number`: 0 if it is ours, SEMLOCK_HELD if the number is taken, or an
 * error. */
static int
make_ticket(semlock_place *place, uint64_t number)
{
    WCHAR name[SEMLOCK_WIDE_ROOM];
    HANDLE handle;
    int error = ticket_path(name, place, number);

    if (error != 0) {
        return error;
    }
    handle = CreateFileW(name, GENERIC_WRITE | DELETE, SEMLOCK_SHARE_ALL, NULL, CREATE_NEW,
                         FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE |
                             FILE_FLAG_OPEN_REPARSE_POINT,
                         NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        error = semlock_last_error();
        /* A number that was given up a moment ago may be denied. */
        return error == -ERROR_FILE_EXISTS || semlock_exists(name) == 1 ? SEMLOCK_HELD : error;
    }
    place->ticket.handle = (int64_t)(intptr_t)handle;
    place->ticket.number = number;
    write_ticket(handle, place->record);
    return 0;
}

static int
join_queue(semlock_place *place)
{
    survey seen;
    int transient = 0;

    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        int error = look_at_queue(place, UINT64_MAX, &seen);

        if (semlock_is_absent(error)) {
            error = make_queue(place);
        }
        while (error == 0 && (error = make_ticket(place, ++seen.last)) == SEMLOCK_HELD) {
            error = 0;
        }
        if (error == 0 && place->ticket.handle != -1) {
            return 0;
        }
        /* The last one has left, and the queue goes or went with it. */
        if (is_transient(error) && transient++ < TRANSIENT_TRIES) {
            semlock_yield();
        }
        else if (!semlock_is_absent(error)) {
            return error;
        }
    }
    return -ERROR_BUSY;
}

static void
unwatch(semlock_place *place)
{
    semlock_unwatch(&place->mark);
}

static void
forget_ticket(semlock_place *place)
{
    if (place->ticket.handle != -1) {
        CloseHandle((HANDLE)(intptr_t)place->ticket.handle); /* and so delete it */
    }
    place->ticket.handle = -1;
    place->ticket.number = place->before = 0;
    place->ahead = 0;
}

/* Find out who is before us, and have changes told if somebody is; join first if need be.
 * SEMLOCK_OK: nobody is.  SEMLOCK_ARMED, or SEMLOCK_BLIND when nothing can be told. */
static int
find_before(semlock_place *place)
{
    WCHAR queue[SEMLOCK_WIDE_ROOM];
    survey seen;
    int watched = 0;
    int outcome;

    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        outcome = place->ticket.handle == -1 ? join_queue(place) : 0;
        if (outcome == 0) {
            outcome = path_inside(queue, place, "");
        }
        if (outcome != 0) {
            return outcome;
        }
        if (watched) {
            semlock_watch_directory(&place->mark, queue);
        }
        outcome = look_at_queue(place, place->ticket.number, &seen);
        if (is_transient(outcome)) {
            semlock_yield(); /* the ticket is ours all the same, and so is its number */
            continue;
        }
        if (outcome != 0 || !seen.there) {
            unwatch(place);
            forget_ticket(place); /* taken for stopped: stand at the end again */
            continue;
        }
        place->before = seen.before;
        place->first = seen.first;
        place->ahead = seen.ahead;
        if (seen.before == 0) {
            unwatch(place); /* nothing in the queue concerns the first */
            return SEMLOCK_OK;
        }
        if (place->mark != -1 || watched) {
            return place->mark == -1 ? SEMLOCK_BLIND : SEMLOCK_ARMED;
        }
        watched = 1; /* and look again, so that whatever comes after the look is told */
    }
    return -ERROR_BUSY;
}

/* SEMLOCK_OK: nobody is before us, or there can be no queue here. */
int
semlock_place_update(semlock_place *place, semlock_waiting *waiting)
{
    int outcome;

    if (place->refused) {
        return SEMLOCK_OK;
    }
    if (place->ticket.handle != -1 && !place->due) {
        return place->before == 0  ? SEMLOCK_OK
               : place->mark == -1 ? SEMLOCK_BLIND
                                   : SEMLOCK_ARMED;
    }
    place->due = 0;
    outcome = find_before(place);
    if (outcome < 0) {
        semlock_place_leave(place, waiting, NULL);
        place->refused = 1;
        return SEMLOCK_OK;
    }
    return outcome;
}

/* Delete the first one's ticket: 0, or an error. */
static int
remove_first(const semlock_place *place)
{
    WCHAR name[SEMLOCK_WIDE_ROOM];
    HANDLE handle;
    int error = ticket_path(name, place, place->first);

    if (error != 0) {
        return error;
    }
    handle = CreateFileW(name, DELETE | FILE_WRITE_ATTRIBUTES, SEMLOCK_SHARE_ALL, NULL,
                         OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        error = semlock_last_error();
        return semlock_is_absent(error) ? 0 : error;
    }
    error = semlock_delete(handle, name, NULL);
    CloseHandle(handle);
    return error;
}

/* The lock is free, and the first of the queue has not taken it for a long time: it must be
 * stopped, so it loses its place.  It holds nothing, and stands in the queue again when it
 * goes on.  Where it can't be removed, or its name stays for as long as it has it open, we
 * go on without a queue. */
void
semlock_place_overtake(semlock_place *place, int path_is_free)
{
    int64_t now = semlock_now_ns();

    if (!path_is_free || place->before == 0) {
        place->free_since = 0;
        return;
    }
    if (place->free_since == 0 || place->free_first != place->first) {
        place->free_since = now;
        place->free_first = place->first;
    }
    if (now - place->free_since >= SEMLOCK_STOPPED_NS) {
        place->free_since = 0;
        place->due = 1;
        place->refused = remove_first(place) != 0;
    }
}

/* Leave the queue, and take it away if nobody is in it now. */
void
semlock_place_leave(semlock_place *place, semlock_waiting *waiting, semlock_lock *won)
{
    WCHAR queue[SEMLOCK_WIDE_ROOM];
    int joined = place->ticket.handle != -1;

    (void)waiting;
    (void)won; /* the next one is woken by every change in the queue, so no ticket is kept */
    unwatch(place);
    forget_ticket(place);
    if (joined && path_inside(queue, place, "") == 0) {
        RemoveDirectoryW(queue);
    }
}

/* Remove a ticket whose owner is dead: SEMLOCK_OK, SEMLOCK_ALIVE if it lives, SEMLOCK_FREE if
 * it is gone, or an error.  An owner has it open, so nobody else can have it alone. */
int
semlock_ticket_clean(const char *path, semlock_pool *pool)
{
    WCHAR name[SEMLOCK_WIDE_ROOM];
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
        return semlock_is_absent(outcome)            ? SEMLOCK_FREE
               : outcome == -ERROR_SHARING_VIOLATION ? SEMLOCK_ALIVE
                                                     : outcome;
    }
    outcome = semlock_delete(handle, name, NULL);
    CloseHandle(handle);
    return outcome == 0 ? SEMLOCK_OK : outcome;
}
