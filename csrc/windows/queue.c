/* Windows: a place in the queue of the waiters for a lock (semlock.h, THE QUEUE).  Windows
 * reports that the queue changed, not how.  So each waiter then checks whether the ticket
 * before its own still exists.
 */
#include <string.h>

#include "windows/system.h"

#define JOIN_TRIES 100
#define TRANSIENT_TRIES 4 /* while the queue's directory is being deleted */

static int
path_of(WCHAR *room, const semlock_place *place)
{
    return semlock_queue_path(room, place->path, place->directory_length, place->name_hash,
                              "");
}

/* Errors while another process tries to remove the queue's directory (which fails if it is not
 * empty), or while it is being deleted. */
static int
is_transient(int error)
{
    return error == -ERROR_ACCESS_DENIED || error == -ERROR_SHARING_VIOLATION ||
           error == -ERROR_DELETE_PENDING;
}

static int
make_queue(const semlock_place *place)
{
    WCHAR queue[SEMLOCK_PATH_ROOM];
    int error = path_of(queue, place);

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

/* The content of the ticket: the record that its owner would write into the lock, with the
 * time since which it waits.  It is for people, so an error is ignored. */
static void
write_ticket(HANDLE handle, const semlock_record *record)
{
    char text[SEMLOCK_TICKET_ROOM];
    int64_t rest = semlock_wall_ns() / 1000000000;

    if (record == NULL || record->length > (int32_t)sizeof text) {
        return;
    }
    memcpy(text, record->text, (size_t)record->length);
    for (int i = 9; i >= 0 && record->stamp_at >= 0; i--, rest /= 10) {
        text[record->stamp_at + i] = (char)('0' + rest % 10);
    }
    semlock_write_all(handle, text, record->length);
}

/* Create the ticket `number`: 0 if it is ours, SEMLOCK_HELD if the number is taken, or an
 * error. */
static int
make_ticket(semlock_place *place, uint64_t number)
{
    WCHAR name[SEMLOCK_PATH_ROOM];
    HANDLE handle;
    int error = semlock_place_ticket_path(name, place, number);

    if (error != 0) {
        return error;
    }
    handle = CreateFileW(name, GENERIC_WRITE | DELETE, SEMLOCK_SHARE_ALL, NULL, CREATE_NEW,
                         FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE |
                             FILE_FLAG_OPEN_REPARSE_POINT,
                         NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        error = semlock_last_error();
        /* A number whose ticket is just being deleted may give access denied. */
        return error == -ERROR_FILE_EXISTS || semlock_exists(name) == 1 ? SEMLOCK_HELD : error;
    }
    place->ticket.handle = (int64_t)(intptr_t)handle;
    place->ticket.number = number;
    write_ticket(handle, place->record);
    return 0;
}

/* Join the queue with the time of asking, or with the old number. 0 or an error. */
static int
join_queue(semlock_place *place)
{
    uint64_t number = place->ticket.number;
    int transient = 0;

    if (number == 0) {
        if (place->asked == 0) {
            place->asked = semlock_now_ns();
        }
        number = (uint64_t)place->asked;
    }
    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        int error = make_ticket(place, number);

        if (error == 0) {
            return 0;
        }
        if (error == SEMLOCK_HELD) {
            number++; /* another waiter asked at the same moment */
        }
        else if (semlock_is_gone(error)) {
            error = make_queue(place);
            if (error != 0) {
                return error;
            }
        }
        else if (is_transient(error) && transient++ < TRANSIENT_TRIES) {
            semlock_yield(); /* the last waiter has left and removes the queue */
        }
        else {
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

/* Drop the ticket; its number is kept for the next one. */
static void
lose_ticket(semlock_place *place)
{
    unwatch(place);
    if (place->ticket.handle != -1) {
        CloseHandle((HANDLE)(intptr_t)place->ticket.handle); /* which deletes it */
    }
    place->ticket.handle = -1;
    place->before = 0;
    place->ahead = 0;
}

/* Do the ticket before ours and our own still exist?  Then nothing has changed for us, and the
 * queue need not be read. */
static int
still_behind(const semlock_place *place)
{
    WCHAR name[SEMLOCK_PATH_ROOM];

    return place->ticket.handle != -1 && place->before != 0 && place->mark != -1 &&
           semlock_now_ns() < place->read_at + SEMLOCK_REREAD_NS &&
           semlock_place_ticket_path(name, place, place->before) == 0 &&
           semlock_exists(name) == 1 &&
           semlock_place_ticket_path(name, place, place->ticket.number) == 0 &&
           semlock_exists(name) == 1;
}

/* Find the ticket before ours, and watch the queue if there is one; join first if needed.
 * SEMLOCK_OK: there is none.  SEMLOCK_ARMED, or SEMLOCK_BLIND if the queue cannot be watched.
 */
static int
find_before(semlock_place *place, semlock_pool *pool)
{
    WCHAR queue[SEMLOCK_PATH_ROOM];
    uint64_t passed = semlock_passed(pool, place->name_hash ^ place->directory_hash);
    semlock_survey seen = {.above = passed};
    int watched = 0;
    int outcome;

    for (int tries = 0; tries < JOIN_TRIES; tries++) {
        outcome = place->ticket.handle == -1 ? join_queue(place) : 0;
        if (outcome == 0) {
            outcome = path_of(queue, place);
        }
        if (outcome != 0) {
            return outcome;
        }
        if (watched) {
            semlock_watch_directory(&place->mark, queue);
        }
        seen.below = seen.own = place->ticket.number;
        place->read_at = semlock_now_ns();
        outcome = semlock_look_at_queue(place->path, place->directory_length, place->name_hash,
                                        &seen);
        if (is_transient(outcome)) {
            semlock_yield(); /* the ticket and its number are still ours */
            continue;
        }
        if (outcome != 0 || !seen.there) {
            lose_ticket(place); /* others took us for stopped */
            continue;
        }
        place->before = seen.last;
        place->ahead = seen.ahead;
        if (seen.last == 0) {
            unwatch(place); /* the first need not watch the queue */
            return SEMLOCK_OK;
        }
        if (place->mark != -1 || watched) {
            return place->mark == -1 ? SEMLOCK_BLIND : SEMLOCK_ARMED;
        }
        watched = 1; /* and read again: any later change is reported */
    }
    return -ERROR_BUSY;
}

/* Find the ticket before ours.  SEMLOCK_OK: there is none, or no queue is possible here. */
int
semlock_place_update(semlock_place *place, semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome;

    if (place->refused) {
        return SEMLOCK_OK;
    }
    if (place->ticket.handle != -1 && (!place->due || still_behind(place))) {
        place->due = 0;
        return place->before == 0  ? SEMLOCK_OK
               : place->mark == -1 ? SEMLOCK_BLIND
                                   : SEMLOCK_ARMED;
    }
    place->due = 0;
    outcome = find_before(place, pool);
    if (outcome < 0) {
        semlock_place_leave(place, waiting, NULL);
        place->refused = 1;
        return SEMLOCK_OK;
    }
    return outcome;
}

/* Leave the queue, and remove it if it is empty. */
void
semlock_place_leave(semlock_place *place, semlock_waiting *waiting, semlock_lock *won)
{
    WCHAR queue[SEMLOCK_PATH_ROOM];
    int joined = place->ticket.handle != -1;

    (void)waiting;
    (void)won; /* every change of the queue wakes the next waiter, so no ticket is kept */
    lose_ticket(place);
    if (!joined || path_of(queue, place) != 0) {
        return;
    }
    for (int tries = 0; tries < TRANSIENT_TRIES; tries++) {
        if (RemoveDirectoryW(queue) || !is_transient(semlock_last_error())) {
            return;
        }
        semlock_yield(); /* others are reading it now */
    }
}
