/* Windows: every change to a path that is not a creation.  There is one way to remove a
 * file, told in semlock.h under REMOVING, and release, reclaim, clean and force all go
 * through it.
 *
 * Where a filesystem has no locks to make a guard of, the change is made without: it goes
 * through a handle and can hit no other file, and kept claims, whose files are written to
 * again, exist only on local filesystems, which all have them. */
#include <stdlib.h>
#include <string.h>

#include "windows_system.h"

/* Take the instance from the path, under the guard, and keep it for the next acquisition
 * if that is worth it.  SEMLOCK_KEPT says that this directory has its first kept claim. */
static int
let_go(semlock_lock *lock, semlock_pool *pool, const WCHAR *path, int guard)
{
    WCHAR name[SEMLOCK_WIDE_ROOM];
    semlock_file *file = &lock->file;
    HANDLE handle = semlock_handle(file);
    int outcome;

    /* A file that is kept is written to again, so whoever removes it by its handle must be
     * kept off: by the guard while it is at P, and by its witness under its private name. */
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
        /* Something stands in the way of keeping it; deleting is what is asked for. */
    }
    outcome = semlock_temporary_path(name, lock->path, lock->directory_length, pool);
    return semlock_delete(handle, path, outcome == 0 ? name : NULL);
}

static int
release_held(semlock_lock *lock, semlock_pool *pool)
{
    WCHAR path[SEMLOCK_WIDE_ROOM];
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
    still = semlock_still_at(path, &lock->file);
    outcome =
        still == 1 ? let_go(lock, pool, path, guard) : (still == 0 ? SEMLOCK_LOST : still);
    if (outcome >= 0) {
        return outcome;
    }
    semlock_unguard(handle);
    /* Over a network the answer can be lost after the deed. */
    return still == 1 && semlock_still_at(path, &lock->file) == 0 ? SEMLOCK_OK : outcome;
}

int
semlock_release(semlock_lock *lock, semlock_pool *pool)
{
    int64_t owner;
    uint64_t ino;
    int outcome = semlock_object_end(lock, &owner);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    ino = lock->file.ino; /* on FAT it changes when the file is moved */
    outcome = release_held(lock, pool);
    if (outcome < 0 || outcome == SEMLOCK_GUARDED) {
        semlock_store64(&lock->owner, owner); /* still held, and can be let go again */
        return outcome;
    }
    semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
    semlock_add32(&pool->holding[ino % SEMLOCK_BURSTS], -1);
    if (lock->turns != SEMLOCK_NO_TURNS) {
        semlock_burst_released(pool, lock);
        if (lock->waited) {
            semlock_store32(&lock->expect_held,
                            1); /* others want it too: look before leaping */
        }
    }
    semlock_object_freed(lock);
    return outcome;
}

static int
refresh_held(semlock_lock *lock, const char *text, int32_t length)
{
    WCHAR path[SEMLOCK_WIDE_ROOM];
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
    still = semlock_still_at(path, &lock->file);
    outcome = still == 1 ? semlock_write_all(handle, text, length)
                         : (still == 0 ? SEMLOCK_LOST : still);
    semlock_unguard(handle);
    return outcome;
}

/* Write the same record again, with what changed in it: the new time, most of all. */
int
semlock_refresh(semlock_lock *lock, semlock_pool *pool, const char *text, int32_t length)
{
    int64_t owner;
    int outcome = semlock_object_borrow(lock, &owner);

    (void)pool;
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
    WCHAR path[SEMLOCK_WIDE_ROOM];
    int64_t owner;
    int outcome = semlock_object_borrow(lock, &owner);

    (void)pool;
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = semlock_wide(path, lock->path, lock->path_length);
    if (outcome == 0) {
        outcome = semlock_still_at(path, &lock->file);
        outcome = outcome == 1 ? SEMLOCK_OK : (outcome == 0 ? SEMLOCK_LOST : outcome);
    }
    semlock_object_return(lock, owner);
    return outcome;
}

/* Leave the lock at its path for the process that its record names, and forget it here. */
void
semlock_detach(semlock_lock *lock)
{
    semlock_forget(lock);
}

/* Open what is at the path, if it is this file, for reading and deleting.  The right to
 * clear the read-only attribute is asked for too, since the older deletion needs it
 * cleared, but is not insisted on. */
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
    /* Somebody has it open and doesn't let it be deleted: for as long as that lasts, it is
     * as if he had the guard. */
    return error == -ERROR_SHARING_VIOLATION ? SEMLOCK_GUARDED : error;
}

/* Is what is open still what was judged, apart from its bytes?  Unfinished then and
 * finished now is another thing: its creator holds it.  A file that was only touched may
 * have been refreshed so by its holder, and of one too long to be read the times stand for
 * the bytes that were not. */
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

/* Is it still what was judged, and the verdict still true?  Looked at after the path. */
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
        /* Somebody has locked the content itself, as msvcrt.locking() does. */
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

/* Remove the instance that was judged, and no other. */
int
semlock_remove(const char *path, semlock_pool *pool, const semlock_view *judged,
               const char *bytes, int32_t flags)
{
    WCHAR place[SEMLOCK_WIDE_ROOM];
    WCHAR aside[SEMLOCK_WIDE_ROOM];
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
            outcome = SEMLOCK_OK; /* done, and the answer lost on the way */
        }
    }
    CloseHandle(handle);
    return outcome;
}

/* Is the file still at the path, and these bytes all that is in it? */
static int
still_holds(HANDLE handle, const WCHAR *path, const semlock_view *judged, const char *bytes,
            int32_t length)
{
    semlock_file file = {
        .handle = -1, .dev = judged->dev, .ino = judged->ino, .ino_high = judged->ino_high};
    char now[SEMLOCK_REWRITE_LIMIT + 1];
    semlock_file opened;
    int outcome = semlock_identity(handle, &opened);

    if (outcome != 0) {
        return outcome;
    }
    outcome = semlock_same_file(&opened, &file) ? semlock_still_at(path, &file) : 0;
    if (outcome != 1) {
        return outcome == 0 ? SEMLOCK_LOST : outcome;
    }
    outcome = semlock_read_all(handle, now, length + 1);
    if (outcome < 0) {
        return outcome;
    }
    return outcome == length && memcmp(now, bytes, (size_t)length) == 0 ? SEMLOCK_OK
                                                                        : SEMLOCK_CHANGED;
}

/* The new length first, by blanks behind the record, then all of it in one call: why, is told
 * in posix_rewrite.c. */
static int
rewrite_guarded(HANDLE handle, const WCHAR *path, const semlock_view *judged,
                const char *bytes, const char *text, int32_t length)
{
    int32_t before = judged->length;
    char padded[SEMLOCK_REWRITE_LIMIT];
    OVERLAPPED end = {.Offset = 0xffffffff, .OffsetHigh = 0xffffffff};
    DWORD count;
    int outcome = still_holds(handle, path, judged, bytes, before);

    if (outcome == SEMLOCK_OK && semlock_witness(handle) == 1) {
        outcome = SEMLOCK_ALIVE;
    }
    memcpy(padded, bytes, (size_t)before);
    memset(padded + before, ' ', (size_t)(length - before));
    if (outcome == SEMLOCK_OK && length > before) {
        outcome = WriteFile(handle, padded + before, (DWORD)(length - before), &count, &end)
                      ? still_holds(handle, path, judged, padded, length)
                      : semlock_last_error();
    }
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = semlock_write_all(handle, text, length);
    if (outcome != 0) {
        semlock_write_all(handle, padded, length); /* the old record, not half of each */
        return outcome;
    }
    return FlushFileBuffers(handle) ? SEMLOCK_OK : semlock_last_error();
}

/* Write another text of at least the same length over the record that was judged. */
int
semlock_rewrite(const char *path, semlock_pool *pool, const semlock_view *judged,
                const char *bytes, const char *text, int32_t length)
{
    WCHAR place[SEMLOCK_WIDE_ROOM];
    HANDLE handle;
    int guard;
    int outcome = semlock_wide(place, path, (int32_t)strlen(path));

    (void)pool;
    if (outcome == 0 && (length < judged->length || length > SEMLOCK_REWRITE_LIMIT)) {
        outcome = -ERROR_INVALID_PARAMETER;
    }
    if (outcome != 0) {
        return outcome;
    }
    handle = CreateFileW(place, GENERIC_READ | GENERIC_WRITE, SEMLOCK_SHARE_ALL, NULL,
                         OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        outcome = semlock_last_error();
        return semlock_is_absent(outcome) ? SEMLOCK_LOST : outcome;
    }
    guard = semlock_guard(handle);
    outcome = semlock_is_kept_out(guard)
                  ? guard
                  : rewrite_guarded(handle, place, judged, bytes, text, length);
    CloseHandle(handle);
    return outcome;
}
