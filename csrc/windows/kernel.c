/* Windows: the kernel's lock on a file that stays: LockFileEx on its first byte, as
 * msvcrt.locking and filelock take it.  While it is held other programs can't read that byte.
 */
#include <string.h>

#include "windows/system.h"

/* Not FILE_SHARE_DELETE: so no program can remove the file while it is held or waited for. */
#define SHARE (FILE_SHARE_READ | FILE_SHARE_WRITE)

static HANDLE
open_to_lock(const char *path, DWORD how)
{
    WCHAR wide[SEMLOCK_PATH_ROOM];
    HANDLE handle;
    int error = semlock_wide(wide, path, (int32_t)strlen(path));

    if (error != 0) {
        SetLastError((DWORD)-error);
        return INVALID_HANDLE_VALUE;
    }
    handle = CreateFileW(wide, GENERIC_READ | GENERIC_WRITE, SHARE, NULL, how,
                         FILE_ATTRIBUTE_NORMAL | FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    if (handle == INVALID_HANDLE_VALUE && GetLastError() == ERROR_ACCESS_DENIED) {
        handle = CreateFileW(wide, GENERIC_READ, SHARE, NULL, OPEN_EXISTING,
                             FILE_ATTRIBUTE_NORMAL | FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    }
    return handle;
}

/* Lock the byte: SEMLOCK_OK, SEMLOCK_HELD or an error. */
static int
lock_opened(HANDLE handle, int32_t kernel)
{
    OVERLAPPED place;
    DWORD kind = kernel == SEMLOCK_SHARED ? 0 : LOCKFILE_EXCLUSIVE_LOCK;
    int error;

    memset(&place, 0, sizeof place);
    if (LockFileEx(handle, kind | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &place)) {
        return SEMLOCK_OK;
    }
    error = semlock_last_error();
    return error == -ERROR_LOCK_VIOLATION || error == -ERROR_IO_PENDING ? SEMLOCK_HELD : error;
}

static void
unlock_opened(HANDLE handle)
{
    OVERLAPPED place;

    memset(&place, 0, sizeof place);
    UnlockFileEx(handle, 0, 1, 0, &place);
}

/* Is this a symbolic link or a junction, which was opened instead of what it leads to? */
static int
is_link(HANDLE handle)
{
    FILE_ATTRIBUTE_TAG_INFO about;

    return GetFileInformationByHandleEx(handle, FileAttributeTagInfo, &about, sizeof about) &&
           (about.FileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0;
}

/* Lock the file at the path, which is made if there is none: SEMLOCK_OK, SEMLOCK_HELD, or an
 * error. */
int
semlock_kernel_take(semlock_lock *lock, semlock_pool *pool)
{
    HANDLE handle = lock->lent != 0 ? (HANDLE)(intptr_t)(lock->lent - 1)
                                    : open_to_lock(lock->path, OPEN_ALWAYS);
    int outcome;

    (void)pool;
    if (handle == INVALID_HANDLE_VALUE) {
        outcome = semlock_last_error();
        /* Another program has it open for itself, or is deleting it. */
        return outcome == -ERROR_SHARING_VIOLATION || outcome == -ERROR_DELETE_PENDING
                   ? SEMLOCK_HELD
                   : outcome;
    }
    outcome = lock->lent == 0 && is_link(handle) ? -ERROR_CANT_RESOLVE_FILENAME
                                                 : lock_opened(handle, lock->kernel);
    if (outcome == SEMLOCK_OK) {
        semlock_file_reset(&lock->file);
        outcome = semlock_identity(handle, &lock->file);
        if (outcome == 0) {
            lock->file.handle = (int64_t)(intptr_t)handle;
            return SEMLOCK_OK;
        }
        unlock_opened(handle);
    }
    semlock_file_reset(&lock->file);
    if (lock->lent == 0) {
        CloseHandle(handle);
    }
    return outcome;
}

/* Unlock, and close what was opened here. */
int
semlock_kernel_release(semlock_lock *lock, semlock_pool *pool)
{
    HANDLE handle = SEMLOCK_OPENED(&lock->file);

    (void)pool;
    unlock_opened(handle);
    if (lock->lent == 0) {
        CloseHandle(handle);
    }
    lock->file.handle = -1;
    return SEMLOCK_OK;
}

/* The open file can't be replaced, so it is held. */
int
semlock_kernel_check(semlock_lock *lock, semlock_pool *pool)
{
    (void)lock;
    (void)pool;
    return SEMLOCK_OK;
}

static int
could_lock(const char *path, int32_t kernel)
{
    HANDLE handle = open_to_lock(path, OPEN_EXISTING);
    int outcome;

    if (handle == INVALID_HANDLE_VALUE) {
        outcome = semlock_last_error();
        return outcome != -ERROR_SHARING_VIOLATION && outcome != -ERROR_DELETE_PENDING;
    }
    outcome = lock_opened(handle, kernel);
    if (outcome == SEMLOCK_OK) {
        unlock_opened(handle);
    }
    CloseHandle(handle);
    return outcome != SEMLOCK_HELD;
}

/* Could a try have it?  See posix/kernel.c. */
int
semlock_kernel_is_free(const semlock_lock *lock)
{
    return could_lock(lock->path, SEMLOCK_EXCLUSIVE);
}

/* Ask for a waiter: 1 if a try could lock it. */
int
semlock_kernel_ask(const semlock_watch *watch)
{
    return could_lock(watch->path, watch->kernel);
}
