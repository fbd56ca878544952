/* Windows: the events of a waiter: watches on directories, and the end of a process. */
#include "windows/system.h"

/* An event loop does not read the events of a wait on Windows, so these calls do nothing. */
int64_t
semlock_events_take(semlock_pool *pool)
{
    (void)pool;
    return -1;
}

void
semlock_events_give(semlock_pool *pool, int64_t events)
{
    (void)pool;
    (void)events;
}

int
semlock_events_read(int64_t events, int64_t *marks, int32_t room)
{
    (void)events;
    (void)marks;
    (void)room;
    return 0;
}

int
semlock_waiting_told(semlock_waiting *waiting, const int64_t *marks, int32_t count)
{
    (void)waiting;
    (void)marks;
    (void)count;
    return 0;
}

/* Watch a directory for names that are created or removed.  The mark stays -1 if that fails.
 */
void
semlock_watch_directory(int64_t *mark, const WCHAR *directory)
{
    HANDLE handle;

    if (*mark == -1) {
        handle = FindFirstChangeNotificationW(directory, FALSE, FILE_NOTIFY_CHANGE_FILE_NAME);
        *mark = handle == INVALID_HANDLE_VALUE ? -1 : (int64_t)(intptr_t)handle;
    }
}

void
semlock_unwatch(int64_t *mark)
{
    if (*mark != -1) {
        FindCloseChangeNotification((HANDLE)(intptr_t)*mark);
    }
    *mark = -1;
}

/* After an event: request the next one. */
void
semlock_watch_on(int64_t *mark)
{
    if (!FindNextChangeNotification((HANDLE)(intptr_t)*mark)) {
        semlock_unwatch(mark);
    }
}

/* Does Windows report every change in this directory?  Not where other machines can change it.
 */
int
semlock_hears(const char *path)
{
    WCHAR directory[SEMLOCK_PATH_ROOM];
    HANDLE handle;
    int local;

    if (semlock_directory_of(directory, path) != 0) {
        return 0;
    }
    handle = CreateFileW(directory, FILE_READ_ATTRIBUTES, SEMLOCK_SHARE_ALL, NULL,
                         OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        return 0;
    }
    local = semlock_system_local(handle);
    CloseHandle(handle);
    return local;
}

/* Wait for one of the handles of a wait, rounded up to milliseconds: which one, or -1. */
int
semlock_sleep_on(const HANDLE *handles, DWORD count, int64_t left)
{
    DWORD milliseconds = left <= 0 ? 0 : (DWORD)((left + 999999) / 1000000);
    DWORD woken;

    if (count == 0) {
        Sleep(milliseconds);
        return -1;
    }
    woken = WaitForMultipleObjects(count, handles, FALSE, milliseconds);
    if (woken == WAIT_FAILED) {
        Sleep(1); /* never loop without a pause */
        return -1;
    }
    return woken < WAIT_OBJECT_0 + count ? (int)(woken - WAIT_OBJECT_0) : -1;
}

void
semlock_folders_begin(int64_t *events, semlock_pool *pool)
{
    (void)pool;
    *events = -1;
}

void
semlock_folders_end(int64_t *events, semlock_pool *pool)
{
    (void)pool;
    *events = -1;
}
