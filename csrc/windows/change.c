/* Windows: the steps by which a lock is released, and by which common/change.c removes or
 * rewrites what was judged.
 *
 * On a filesystem without byte locks there is no guard, and the change is made without it.  It
 * is made by handle, so it cannot hit another file; and kept claims, whose files are written
 * again, exist only on local filesystems, which all have byte locks.
 */
#include <string.h>

#include "windows/system.h"

/* Remove the instance from the path, under the guard, and keep it for the next acquisition if
 * that is worth it.  SEMLOCK_KEPT: this directory has its first kept claim. */
static int
let_go(semlock_lock *lock, semlock_pool *pool, const WCHAR *path, int guard)
{
    WCHAR name[SEMLOCK_PATH_ROOM];
    semlock_file *file = &lock->file;
    HANDLE handle = semlock_handle(file);
    int outcome;

    /* A kept file is written again, so a remover that has it open by handle must be excluded:
     * by the guard while it is at P, and by its witness under its private name. */
    if (guard == 0 && file->witness && file->whole && semlock_pool_wants(pool, lock)) {
        int first = file->named == 0;

        outcome = semlock_private_path(name, lock->path, lock->directory_length, file);
        if (outcome == 0) {
            outcome = semlock_rename(handle, path, name);
        }
        if (outcome == 0) {
            file->named = SEMLOCK_NAMED_NOW;
            semlock_unguard(handle);
            if (semlock_pool_put(pool, lock, file)) {
                semlock_file_reset(file);
                return first ? SEMLOCK_KEPT : SEMLOCK_OK;
            }
            return SEMLOCK_OK;
        }
        /* It could not be kept; deleting it is enough. */
    }
    outcome = semlock_temporary_path(name, lock->path, lock->directory_length, pool);
    return semlock_delete(handle, path, outcome == 0 ? name : NULL);
}

/* Is the instance at the path? 1 with length and mtime; 0, or an error. */
int
semlock_path_has(const semlock_lock *lock, HANDLE handle, semlock_view *found)
{
    WCHAR path[SEMLOCK_PATH_ROOM];
    BY_HANDLE_FILE_INFORMATION now;
    int still = semlock_wide(path, lock->path, lock->path_length);

    if (still == 0) {
        still = semlock_still_at(path, &lock->file);
    }
    if (still != 1) {
        return still;
    }
    if (!GetFileInformationByHandle(handle, &now)) {
        return semlock_last_error();
    }
    found->size = (int64_t)((uint64_t)now.nFileSizeHigh << 32 | now.nFileSizeLow);
    found->mtime_ns = semlock_filetime_ns(now.ftLastWriteTime);
    return 1;
}

/* Remove the held instance from its path, or keep it. */
int
semlock_release_held(semlock_lock *lock, semlock_pool *pool)
{
    WCHAR path[SEMLOCK_PATH_ROOM];
    HANDLE handle = semlock_handle(&lock->file);
    semlock_view seen;
    int guard, still;
    int outcome = semlock_wide(path, lock->path, lock->path_length);

    if (outcome != 0) {
        return outcome;
    }
    guard = semlock_guard(handle);
    if (semlock_is_kept_out(guard)) {
        return guard;
    }
    still = semlock_still_held(lock, handle, &seen);
    outcome =
        still == 1 ? let_go(lock, pool, path, guard) : (still == 0 ? SEMLOCK_LOST : still);
    if (outcome >= 0) {
        return outcome;
    }
    semlock_unguard(handle);
    /* Over a network the answer can be lost after the deletion. */
    return still == 1 && semlock_still_at(path, &lock->file) == 0 ? SEMLOCK_OK : outcome;
}

/* Run a step with the held instance, whose handle stays open. */
int
semlock_with_held(semlock_lock *lock, semlock_pool *pool,
                  int (*step)(semlock_lock *, HANDLE, const void *), const void *argument)
{
    (void)pool;
    return step(lock, semlock_handle(&lock->file), argument);
}

void
semlock_held_close(semlock_lock *lock, semlock_pool *pool)
{
    (void)pool;
    if (lock->file.handle != -1 && lock->lent == 0) {
        CloseHandle(semlock_handle(&lock->file));
    }
}

/* Open the path, if it is this file, for reading and deleting.  The right to clear the
 * read-only attribute, which the older deletion needs cleared, is requested first and not
 * required. */
int
semlock_open_to_remove(const WCHAR *path, const semlock_file *file, HANDLE *handle)
{
    static const DWORD rights[] = {GENERIC_READ | DELETE | FILE_WRITE_ATTRIBUTES,
                                   GENERIC_READ | DELETE};
    semlock_file seen;
    int error = 0;

    for (size_t i = 0; i < sizeof rights / sizeof rights[0]; i++) {
        *handle = CreateFileW(path, rights[i], SEMLOCK_SHARE_ALL, NULL, OPEN_EXISTING,
                              FILE_FLAG_OPEN_REPARSE_POINT, NULL);
        if (*handle != INVALID_HANDLE_VALUE) {
            error = semlock_identity(*handle, &seen);
            if (error == 0 && semlock_same_file(&seen, file)) {
                return SEMLOCK_OK;
            }
            CloseHandle(*handle);
            return error == 0 ? SEMLOCK_LOST : error;
        }
        error = semlock_last_error();
        if (error != -ERROR_ACCESS_DENIED) {
            break;
        }
    }
    if (semlock_still_at(path, file) == 0) {
        return SEMLOCK_LOST;
    }
    /* Another process has it open without sharing deletion: as long as that lasts, it has the
     * effect of the guard. */
    return error == -ERROR_SHARING_VIOLATION ? SEMLOCK_GUARDED : error;
}

int
semlock_reopen_to_remove(const WCHAR *path, const semlock_file *file, HANDLE *handle)
{
    CloseHandle(*handle);
    return semlock_open_to_remove(path, file, handle);
}

/* Write at the end of the file. */
int
semlock_append(HANDLE handle, const char *bytes, int32_t length, int32_t end)
{
    OVERLAPPED place = {.Offset = 0xffffffff, .OffsetHigh = 0xffffffff};
    DWORD count;

    (void)end;
    return WriteFile(handle, bytes, (DWORD)length, &count, &place) ? 0 : semlock_last_error();
}

int
semlock_open_to_write(const WCHAR *path, HANDLE *handle)
{
    int error;

    *handle = CreateFileW(path, GENERIC_READ | GENERIC_WRITE, SEMLOCK_SHARE_ALL, NULL,
                          OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    if (*handle != INVALID_HANDLE_VALUE) {
        return SEMLOCK_OK;
    }
    error = semlock_last_error();
    return semlock_is_gone(error) ? SEMLOCK_LOST : error;
}

int
semlock_guard_judged(const WCHAR *path, const semlock_file *exact, HANDLE *handle)
{
    (void)path;
    (void)exact;
    return semlock_guard(*handle);
}

/* Delete the judged file by its handle. */
int
semlock_remove_opened(const char *path, const semlock_view *judged, HANDLE handle, int guard,
                      semlock_pool *pool)
{
    WCHAR place[SEMLOCK_PATH_ROOM];
    WCHAR aside[SEMLOCK_PATH_ROOM];
    semlock_file file = semlock_file_of(judged);
    int32_t length = (int32_t)strlen(path);
    int outcome = semlock_wide(place, path, length);

    (void)guard;
    if (outcome == 0 && semlock_still_at(place, &file) == 0) {
        return SEMLOCK_LOST;
    }
    if (outcome == 0) {
        outcome =
            semlock_temporary_path(aside, path, semlock_directory_length(path, length), pool);
    }
    if (outcome == 0) {
        outcome = semlock_delete(handle, place, aside);
        if (outcome < 0 && semlock_still_at(place, &file) == 0) {
            outcome = SEMLOCK_OK; /* deleted, and the answer was lost */
        }
    }
    return outcome;
}
