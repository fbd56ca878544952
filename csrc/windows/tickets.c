/* Windows: the tickets of a queue (semlock.h, THE QUEUE).
 *
 * The system deletes a ticket when its owner closes it or ends, so no lock on it is needed to
 * know whether the owner lives.  A ticket that remains after a power cut is treated as that of
 * a stopped process.
 */
#include <string.h>

#include "windows/system.h"

#define TRANSIENT_TRIES 4 /* while the queue's directory is being deleted */
#define READ_NS 50000000  /* so long a leaving waiter waits for readers of its ticket */

/* Create the ticket of this name: 0 if it is ours, SEMLOCK_TAKEN if the name is taken, or an
 * error.  Errors pass while another process removes the directory. */
int
semlock_ticket_make(const WCHAR *name, semlock_ticket *ticket)
{
    for (int tries = 0;; tries++) {
        HANDLE handle =
            CreateFileW(name, GENERIC_WRITE | DELETE, SEMLOCK_SHARE_ALL, NULL, CREATE_NEW,
                        FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE |
                            FILE_FLAG_OPEN_REPARSE_POINT,
                        NULL);
        int error;

        if (handle != INVALID_HANDLE_VALUE) {
            ticket->handle = (int64_t)(intptr_t)handle;
            return 0;
        }
        error = semlock_last_error();
        /* A number whose ticket is just being deleted may give access denied. */
        if (error == -ERROR_FILE_EXISTS || semlock_exists(name) == 1) {
            return SEMLOCK_TAKEN;
        }
        if (!semlock_is_transient(error) || tries == TRANSIENT_TRIES) {
            return error;
        }
        semlock_yield();
    }
}

/* The ticket itself shows people who waits.  An error is ignored. */
void
semlock_ticket_made(semlock_place *place)
{
    char text[SEMLOCK_TICKET_ROOM];

    semlock_write_all((HANDLE)(intptr_t)place->ticket.handle, text,
                      semlock_place_text(place, text));
}

int
semlock_queue_make(const semlock_queue *queue)
{
    WCHAR room[SEMLOCK_PATH_ROOM];
    int error = semlock_queue_path(room, queue);

    for (int tries = 0; error == 0; tries++) {
        if (CreateDirectoryW(room, NULL)) {
            return 0;
        }
        error = semlock_last_error();
        if (error == -ERROR_ALREADY_EXISTS) {
            return 0;
        }
        if (semlock_is_transient(error) && tries < TRANSIENT_TRIES) {
            semlock_yield();
            error = 0;
        }
    }
    return error;
}

/* Remove the queue if it is empty: 0, or an error. */
static int
remove_queue(const semlock_queue *queue)
{
    WCHAR room[SEMLOCK_PATH_ROOM];
    int error = semlock_queue_path(room, queue);

    for (int tries = 0; error == 0 && tries < TRANSIENT_TRIES; tries++) {
        if (RemoveDirectoryW(room)) {
            return 0;
        }
        error = semlock_last_error();
        if (semlock_is_transient(error) && tries < TRANSIENT_TRIES - 1) {
            semlock_yield(); /* others are reading it now */
            error = 0;
        }
    }
    return error;
}

void
semlock_queue_remove(const semlock_queue *queue)
{
    remove_queue(queue);
}

/* The same after a ticket was closed.  If another process has it open, to read who waits, its
 * name stays until that closes it too.  If its owner was the last waiter, nothing else would
 * remove the queue then, so it gives a reader some time. */
void
semlock_queue_leave(const semlock_queue *queue, uint64_t number)
{
    WCHAR name[SEMLOCK_PATH_ROOM];
    int64_t until = semlock_now_ns() + READ_NS;

    for (;;) {
        int in_time = semlock_now_ns() < until;
        /* Asked before the removal: the reader could close the ticket in between. */
        int there =
            semlock_ticket_path(name, queue, number, "") == 0 && semlock_exists(name) == 1;
        int error = remove_queue(queue);

        if (!in_time ||
            !(error == -ERROR_SHARING_VIOLATION || (error == -ERROR_DIR_NOT_EMPTY && there))) {
            return;
        }
        Sleep(1);
    }
}

int
semlock_queue_read(const semlock_queue *queue, semlock_survey *seen)
{
    WCHAR pattern[SEMLOCK_PATH_ROOM + 2];
    WIN32_FIND_DATAW entry;
    HANDLE found;
    int error = semlock_queue_path(pattern, queue);

    if (error != 0) {
        return error;
    }
    lstrcatW(pattern, L"\\*");
    found = FindFirstFileExW(pattern, FindExInfoBasic, &entry, FindExSearchNameMatch, NULL,
                             FIND_FIRST_EX_LARGE_FETCH);
    if (found == INVALID_HANDLE_VALUE) {
        return semlock_last_error();
    }
    do {
        char name[32]; /* longer than any name of ours */
        size_t at = 0;

        for (; at < sizeof name - 1 && entry.cFileName[at] != 0; at++) {
            WCHAR unit = entry.cFileName[at];

            name[at] = unit < 0x80 ? (char)unit : '?';
        }
        name[at] = 0;
        semlock_survey_note(seen, name);
    } while (FindNextFileW(found, &entry));
    error = semlock_last_error();
    FindClose(found);
    return error == -ERROR_NO_MORE_FILES ? 0 : error;
}

/* The system deletes the ticket of an owner that ends: the owner of any other waits. */
int
semlock_ticket_sort_out(const WCHAR *name)
{
    (void)name;
    return SEMLOCK_TICKET_WAITS;
}

/* Take a ticket from its owner, which did not use a free lock: 0, or an error.  Where a
 * deleted name stays until the owner closes the file, the ticket is renamed first. */
int
semlock_ticket_pass(const semlock_queue *queue, uint64_t number)
{
    WCHAR name[SEMLOCK_PATH_ROOM];
    WCHAR aside[SEMLOCK_PATH_ROOM];
    HANDLE handle;
    int still;
    int error = semlock_ticket_path(name, queue, number, "");

    if (error == 0) {
        error = semlock_ticket_path(aside, queue, number, SEMLOCK_WHO);
    }
    if (error != 0) {
        return error;
    }
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
