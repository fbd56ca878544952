/* Windows: release, refresh, check, reclaim and rewriting.  There is one way to remove a file
 * (semlock.h, REMOVING); release, reclaim, clean and force all use it.
 *
 * On a filesystem without byte locks there is no guard, and the change is made without it.  It
 * is made by handle, so it cannot hit another file; and kept claims, whose files are written
 * again, exist only on local filesystems, which all have byte locks.
 */
#include <stdlib.h>
#include <string.h>

#include "windows/system.h"

#define TOKEN 32

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

/* Is our record still in the held file? posix/held.c says why it may not be. 1, 0, or an
 * error. */
static int
still_own(const semlock_lock *lock, HANDLE handle)
{
    BY_HANDLE_FILE_INFORMATION now;
    int64_t size, later;
    char *bytes;
    int own = 0;
    int length;

    if (!GetFileInformationByHandle(handle, &now)) {
        return semlock_last_error();
    }
    size = (int64_t)((uint64_t)now.nFileSizeHigh << 32 | now.nFileSizeLow);
    later = ((int64_t)((uint64_t)now.ftLastWriteTime.dwHighDateTime << 32 |
                       now.ftLastWriteTime.dwLowDateTime) -
             SEMLOCK_FILETIME_OF_1970) *
                100 -
            lock->written;
    if (!lock->strict && size == lock->file.length && later > -SEMLOCK_SAME_NS &&
        later < SEMLOCK_SAME_NS) {
        return 1;
    }
    bytes = malloc(SEMLOCK_RECORD_LIMIT);
    if (bytes == NULL) {
        return -ERROR_NOT_ENOUGH_MEMORY;
    }
    length = semlock_read_all(handle, bytes, SEMLOCK_RECORD_LIMIT);
    if (length < 0) {
        own = length;
    }
    else if (lock->token_at < 0) {
        own = length == lock->file.length;
    }
    else {
        for (int at = 0; at + TOKEN <= length && !own; at++) {
            own = memcmp(bytes + at, lock->token, TOKEN) == 0;
        }
    }
    if (own == 1) {
        own = length >= lock->head &&
              semlock_hash(SEMLOCK_NO_HASH, bytes, lock->head) == lock->content;
    }
    free(bytes);
    return own;
}

static int
still_held(const semlock_lock *lock, HANDLE handle, const WCHAR *path)
{
    int still = semlock_still_at(path, &lock->file);

    return still == 1 ? still_own(lock, handle) : still;
}

static int
release_held(semlock_lock *lock, semlock_pool *pool)
{
    WCHAR path[SEMLOCK_PATH_ROOM];
    HANDLE handle = semlock_handle(&lock->file);
    int guard, still;
    int outcome = semlock_wide(path, lock->path, lock->path_length);

    if (outcome != 0) {
        return outcome;
    }
    guard = semlock_guard(handle);
    if (semlock_is_kept_out(guard)) {
        return guard;
    }
    still = still_held(lock, handle, path);
    outcome =
        still == 1 ? let_go(lock, pool, path, guard) : (still == 0 ? SEMLOCK_LOST : still);
    if (outcome >= 0) {
        return outcome;
    }
    semlock_unguard(handle);
    /* Over a network the answer can be lost after the deletion. */
    return still == 1 && semlock_still_at(path, &lock->file) == 0 ? SEMLOCK_OK : outcome;
}

int
semlock_release(semlock_lock *lock, semlock_pool *pool)
{
    int64_t owner;
    uint64_t ino;
    int outcome = semlock_object_end(lock, pool, &owner);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    ino = lock->file.ino; /* on FAT a rename changes it */
    outcome = release_held(lock, pool);
    if (outcome < 0 || outcome == SEMLOCK_GUARDED) {
        semlock_store64(&lock->owner, owner); /* still held; the release can be repeated */
        return outcome;
    }
    semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
    semlock_add32(&pool->holding[ino % SEMLOCK_BURSTS], -1);
    if (lock->turns != SEMLOCK_NO_TURNS) {
        semlock_burst_released(pool, lock);
        if (lock->waited) {
            semlock_store32(&lock->expect_held,
                            1); /* others want it too: check the path first */
        }
    }
    semlock_object_freed(lock);
    return outcome;
}

static int
refresh_held(semlock_lock *lock, const char *text, int32_t length)
{
    WCHAR path[SEMLOCK_PATH_ROOM];
    HANDLE handle = semlock_handle(&lock->file);
    int guard, still;
    int outcome = semlock_wide(path, lock->path, lock->path_length);

    if (outcome != 0) {
        return outcome;
    }
    guard = semlock_guard(handle);
    if (semlock_is_kept_out(guard)) {
        return guard;
    }
    still = still_held(lock, handle, path);
    outcome = still == 1 ? semlock_write_all(handle, text, length)
                         : (still == 0 ? SEMLOCK_LOST : still);
    if (outcome == 0) {
        semlock_written(lock, text, length);
    }
    semlock_unguard(handle);
    return outcome;
}

/* Write the record again with new content of the same length, mostly a new time. */
int
semlock_refresh(semlock_lock *lock, semlock_pool *pool, const char *text, int32_t length)
{
    int64_t owner;
    int outcome = semlock_object_borrow(lock, pool, &owner);

    if (outcome == SEMLOCK_OK) {
        outcome = length == lock->file.length ? refresh_held(lock, text, length)
                                              : -ERROR_INVALID_PARAMETER;
        semlock_object_return(lock, owner);
    }
    return outcome;
}

int
semlock_check(semlock_lock *lock, semlock_pool *pool)
{
    WCHAR path[SEMLOCK_PATH_ROOM];
    int64_t owner;
    int outcome = semlock_object_borrow(lock, pool, &owner);

    (void)pool;
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = semlock_wide(path, lock->path, lock->path_length);
    if (outcome == 0) {
        outcome = still_held(lock, semlock_handle(&lock->file), path);
        outcome = outcome == 1 ? SEMLOCK_OK : (outcome == 0 ? SEMLOCK_LOST : outcome);
    }
    semlock_object_return(lock, owner);
    return outcome;
}

/* Leave the lock to the process that its record names, and reset the object. */
int
semlock_detach(semlock_lock *lock, semlock_pool *pool)
{
    semlock_forget(lock, pool);
    return SEMLOCK_OK;
}

/* Open the path, if it is this file, for reading and deleting.  The right to clear the
 * read-only attribute, which the older deletion needs cleared, is requested first and not
 * required. */
static int
open_exact(const WCHAR *path, const semlock_file *file, HANDLE *handle)
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

/* Is the open file still in the state that was judged, apart from its bytes?  A file that was
 * unfinished then and is finished now has a holder, its creator.  A holder may have refreshed
 * its lock by touching the file, so the times are compared; for a file too long to be read
 * they also replace the comparison of the bytes. */
static int
same_state(HANDLE handle, const semlock_view *judged)
{
    semlock_view now;
    int outcome = semlock_describe(handle, &now);

    if (outcome != 0) {
        return outcome;
    }
    return now.unfinished == judged->unfinished && now.size == judged->size &&
                   now.ctime_ns == judged->ctime_ns && now.mtime_ns == judged->mtime_ns
               ? SEMLOCK_OK
               : SEMLOCK_CHANGED;
}

/* Is it still what was judged, and is the witness still free?  Called after the path was
 * checked. */
static int
compare(HANDLE handle, const semlock_view *judged, const char *bytes, int32_t flags)
{
    char small[1024];
    char *now = small;
    int32_t room = judged->length + (judged->size > judged->length ? 0 : 1);
    int outcome = same_state(handle, judged);
    int length;

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    if (room > (int32_t)sizeof small) {
        now = malloc((size_t)room);
        if (now == NULL) {
            return -ERROR_NOT_ENOUGH_MEMORY;
        }
    }
    length = semlock_read_all(handle, now, room);
    if (length < 0) {
        /* Another process has locked the content, as msvcrt.locking() does. */
        outcome = length == -ERROR_LOCK_VIOLATION ? SEMLOCK_GUARDED : length;
    }
    else if (length != judged->length || memcmp(now, bytes, (size_t)length) != 0) {
        outcome = SEMLOCK_CHANGED;
    }
    else if (!(flags & SEMLOCK_DESPITE_WITNESS) && semlock_hold_off(handle) == 1) {
        outcome = SEMLOCK_ALIVE;
    }
    if (now != small) {
        free(now);
    }
    return outcome;
}

static int32_t
directory_of(const char *path, int32_t length)
{
    while (length > 0 && path[length - 1] != '/' && path[length - 1] != '\\') {
        length--;
    }
    return length;
}

/* Remove exactly the instance that was judged, never one that replaced it. */
int
semlock_remove(const char *path, semlock_pool *pool, const semlock_view *judged,
               const char *bytes, int32_t flags)
{
    WCHAR place[SEMLOCK_PATH_ROOM];
    WCHAR aside[SEMLOCK_PATH_ROOM];
    int32_t length = (int32_t)strlen(path);
    semlock_file file;
    HANDLE handle;
    int guard, outcome, still;

    semlock_file_reset(&file);
    file.dev = judged->dev;
    file.ino = judged->ino;
    file.ino_high = judged->ino_high;
    outcome = semlock_wide(place, path, length);
    if (outcome == 0) {
        outcome = semlock_temporary_path(aside, path, directory_of(path, length), pool);
    }
    if (outcome == 0) {
        outcome = open_exact(place, &file, &handle);
    }
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    guard = semlock_guard(handle);
    if (semlock_is_kept_out(guard)) {
        CloseHandle(handle);
        return guard;
    }
    still = semlock_still_at(place, &file);
    outcome = still == 1 ? compare(handle, judged, bytes, flags)
                         : (still == 0 ? SEMLOCK_LOST : still);
    if (outcome == SEMLOCK_OK) {
        outcome = semlock_delete(handle, place, aside);
        if (outcome < 0 && semlock_still_at(place, &file) == 0) {
            outcome = SEMLOCK_OK; /* deleted, and the answer was lost */
        }
    }
    CloseHandle(handle);
    return outcome;
}
