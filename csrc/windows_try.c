/* Windows: taking a lock.  The order of the steps and why is in semlock.h, CREATING. */
#include <stdlib.h>
#include <string.h>

#include "windows_system.h"

#define CHANGED_TRIES 8   /* of an in-place creator whose file is removed as unfinished */
#define TRANSIENT_TRIES 4 /* while Windows denies access to a name that isn't there */

static HANDLE
create_new(const WCHAR *path, DWORD attributes)
{
    /* FILE_FLAG_OPEN_REPARSE_POINT: a symbolic link at the path is something that exists,
     * and not a hint where else to create. */
    return CreateFileW(path, GENERIC_READ | GENERIC_WRITE | DELETE, SEMLOCK_SHARE_ALL, NULL,
                       CREATE_NEW, attributes | FILE_FLAG_OPEN_REPARSE_POINT, NULL);
}

/* Errors that Windows gives for a name that is on its way out, and for much else. */
static int
is_transient(int outcome)
{
    return outcome == -ERROR_ACCESS_DENIED || outcome == -ERROR_SHARING_VIOLATION ||
           outcome == -ERROR_DELETE_PENDING;
}

static int
is_short_of_handles(int outcome)
{
    return outcome == -ERROR_NO_SYSTEM_RESOURCES; /* see semlock_last_error */
}

/* What a (negative) error of creating at P or renaming to P means: SEMLOCK_HELD if
 * something is there, else the error itself.  Denied access alone is never contention. */
static int
publish_failed(const WCHAR *path, int error)
{
    if (error == -ERROR_ALREADY_EXISTS || error == -ERROR_FILE_EXISTS) {
        return SEMLOCK_HELD;
    }
    return is_transient(error) && semlock_exists(path) == 1 ? SEMLOCK_HELD : error;
}

/* Learn what was just made: its identity, what kind of filesystem it is on, and take the
 * witness.  A lock that outlives us is said to have none; it is taken all the same, so that
 * nobody who found the file abandoned removes it now.  SEMLOCK_CHANGED if somebody does. */
static int
adopt(semlock_file *file, const semlock_record *record)
{
    HANDLE handle = semlock_handle(file);
    int error = semlock_identity(handle, file);

    if (error != 0) {
        return error;
    }
    file->mode = record->mode;
    file->local = semlock_is_local(handle);
    if (file->local) {
        int outcome = semlock_take_witness(handle);

        if (outcome == SEMLOCK_GUARDED) {
            return SEMLOCK_CHANGED;
        }
        file->witness = outcome == 0 && !record->detached;
    }
    return 0;
}

static int
shorten(HANDLE handle, int32_t length)
{
    FILE_END_OF_FILE_INFO end;

    end.EndOfFile.QuadPart = length;
    return SetFileInformationByHandle(handle, FileEndOfFileInfo, &end, sizeof end)
               ? 0
               : semlock_last_error();
}

/* Write the record and bring it to the disk as far as it was asked for.  Windows has one
 * flush that is documented for every filesystem; it writes the data, the file's own entry
 * and, where the drive can be told to, the drive's cache. */
static int
fill(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    char small[1024];
    char *bytes = small;
    semlock_file *file = &lock->file;
    HANDLE handle = semlock_handle(file);
    int error;

    if (record->length > (int32_t)sizeof small) {
        bytes = malloc((size_t)record->length);
        if (bytes == NULL) {
            return -ERROR_NOT_ENOUGH_MEMORY;
        }
    }
    semlock_stamp(record, file, lock, pool, bytes);
    error = semlock_write_all(handle, bytes, record->length);
    if (bytes != small) {
        free(bytes);
    }
    if (error == 0 && record->length < file->length) {
        error = shorten(handle, record->length);
    }
    if (error != 0) {
        return error;
    }
    file->length = record->length;
    if (record->durability != SEMLOCK_SYNC_NONE && !FlushFileBuffers(handle)) {
        return semlock_last_error();
    }
    return 0;
}

/* Rename the finished file to P.  An error is believed only after a look at P. */
static int
publish(semlock_file *file, const WCHAR *from, const WCHAR *path, int32_t named_then)
{
    int outcome = semlock_rename(semlock_handle(file), from, path);

    if (outcome != 0) {
        int taken = outcome == -ERROR_ALREADY_EXISTS || outcome == -ERROR_FILE_EXISTS;

        if (!taken && semlock_still_at(path, file) == 1) {
            outcome = 0;
        }
        else if (semlock_is_absent(outcome) && semlock_still_at(from, file) == 0) {
            outcome = SEMLOCK_CHANGED; /* it was removed as abandoned: begin again */
        }
        else {
            outcome = publish_failed(path, outcome);
        }
    }
    if (outcome == 0) {
        outcome = semlock_identity(semlock_handle(file), file);
    }
    if (outcome == 0) {
        file->named = named_then;
    }
    return outcome;
}

/* The fastest way: a finished file of this directory is given P as its name. */
static int
try_kept(semlock_lock *lock, semlock_pool *pool, const semlock_record *record,
         const WCHAR *path)
{
    WCHAR name[SEMLOCK_WIDE_ROOM];
    semlock_file *file = &lock->file;
    int outcome = semlock_private_path(name, lock->path, lock->directory_length, file);

    if (outcome == 0) {
        outcome = fill(lock, pool, record);
    }
    if (outcome == 0) {
        outcome = publish(file, name, path, SEMLOCK_NAMED_BEFORE);
    }
    if (outcome == SEMLOCK_HELD && semlock_pool_put(pool, lock, file)) {
        semlock_file_reset(file);
    }
    else if (outcome != SEMLOCK_OK) {
        semlock_file_dispose(file, lock->path, lock->directory_length);
    }
    return outcome;
}

/* A file under a random name, complete before it comes to P.  -ERROR_NOT_SUPPORTED where
 * that can't be trusted, so that try_in_place takes over: a file server need not make
 * "rename, but replace nothing" one step, and Samba does not, while to create a new file is
 * one step everywhere. */
static int
try_named(semlock_lock *lock, semlock_pool *pool, const semlock_record *record,
          const WCHAR *path)
{
    WCHAR name[SEMLOCK_WIDE_ROOM];
    semlock_file *file = &lock->file;
    HANDLE handle;
    int outcome = semlock_temporary_path(name, lock->path, lock->directory_length, pool);

    if (outcome != 0) {
        return outcome;
    }
    handle = create_new(name, FILE_ATTRIBUTE_NORMAL);
    if (handle == INVALID_HANDLE_VALUE) {
        return semlock_last_error();
    }
    file->handle = (int64_t)(intptr_t)handle;
    file->named = SEMLOCK_NAMED_NOW;
    outcome = adopt(file, record);
    if (outcome == 0 && !file->local) {
        outcome = -ERROR_NOT_SUPPORTED;
    }
    if (outcome == 0) {
        outcome = fill(lock, pool, record);
    }
    if (outcome == 0) {
        outcome = publish(file, name, path, 0);
        file->whole = outcome == 0;
    }
    return outcome;
}

static int
finish(HANDLE handle)
{
    FILE_BASIC_INFO basic;

    memset(&basic, 0, sizeof basic); /* times of zero are left as they are */
    basic.FileAttributes = FILE_ATTRIBUTE_NORMAL;
    return SetFileInformationByHandle(handle, FileBasicInfo, &basic, sizeof basic)
               ? 0
               : semlock_last_error();
}

/* Create at P and write there.  Until the marking attributes are cleared nobody believes to
 * hold.  Until then the file also counts as one to be deleted when it is given up, which
 * goes through the handle and so hits no other, whoever has P by then. */
static int
try_in_place(semlock_lock *lock, semlock_pool *pool, const semlock_record *record,
             const WCHAR *path)
{
    semlock_file *file = &lock->file;
    HANDLE handle = create_new(path, SEMLOCK_UNFINISHED_ATTRIBUTES);
    int guard, outcome, still;

    if (handle == INVALID_HANDLE_VALUE) {
        return publish_failed(path, semlock_last_error());
    }
    file->handle = (int64_t)(intptr_t)handle;
    file->named = SEMLOCK_NAMED_NOW;
    guard = semlock_guard(handle);
    if (semlock_is_kept_out(guard)) {
        return guard; /* perhaps somebody judges our empty file */
    }
    outcome = adopt(file, record);
    if (outcome == 0) {
        still = semlock_still_at(path, file);
        /* Removed as unfinished: begin again. */
        outcome = still == 0 ? SEMLOCK_CHANGED : (still < 0 ? still : 0);
    }
    if (outcome == 0) {
        outcome = fill(lock, pool, record);
    }
    if (outcome == 0) {
        outcome = finish(handle);
    }
    if (outcome == 0 && guard < 0) {
        still = semlock_still_at(path, file); /* no guard here: look once more */
        outcome = still == 1 ? 0 : (still == 0 ? SEMLOCK_CHANGED : still);
    }
    if (outcome == 0) {
        file->named = 0;
        semlock_unguard(handle);
    }
    return outcome;
}

static int
try_fresh(semlock_lock *lock, semlock_pool *pool, const semlock_record *record,
          const WCHAR *path)
{
    int outcome = SEMLOCK_CHANGED;
    int in_place = record->in_place;

    for (int again = 0; again < CHANGED_TRIES; again++) {
        outcome = in_place ? try_in_place(lock, pool, record, path)
                           : try_named(lock, pool, record, path);
        if (outcome == SEMLOCK_OK) {
            return outcome;
        }
        semlock_file_dispose(&lock->file, lock->path, lock->directory_length);
        if (!in_place && semlock_is_unsupported(outcome)) {
            in_place = 1;
        }
        else if (is_transient(outcome) && again < TRANSIENT_TRIES) {
            semlock_yield(); /* it was on its way out, and is gone by now */
        }
        else if (outcome != SEMLOCK_CHANGED) {
            break;
        }
    }
    if (outcome == SEMLOCK_CHANGED || outcome == SEMLOCK_GUARDED) {
        return SEMLOCK_HELD;
    }
    return outcome;
}

static int
attempt(semlock_lock *lock, semlock_pool *pool, const semlock_record *record, int seen_free,
        int anyway)
{
    WCHAR path[SEMLOCK_WIDE_ROOM];
    int outcome = semlock_wide(path, lock->path, lock->path_length);

    if (outcome != 0) {
        return outcome;
    }
    if (semlock_load32(&lock->expect_held) && !seen_free) {
        if (semlock_exists(path) == 1) {
            return SEMLOCK_HELD;
        }
        seen_free = 1;
    }
    if (!anyway && semlock_must_make_way(lock, pool)) {
        return SEMLOCK_TURN;
    }
    if (!record->in_place && !record->detached &&
        semlock_pool_take(pool, lock, record->mode, &lock->file)) {
        outcome = try_kept(lock, pool, record, path);
        if (outcome == SEMLOCK_OK || outcome == SEMLOCK_HELD) {
            return outcome;
        }
        /* Whatever was wrong with the kept file, a fresh one will tell. */
    }
    if (!seen_free && semlock_exists(path) == 1) {
        return SEMLOCK_HELD;
    }
    outcome = try_fresh(lock, pool, record, path);
    if (is_short_of_handles(outcome)) {
        /* Idle claims must never be the reason that a lock can't be taken. */
        semlock_pool_drain_entered(pool, NULL, 0);
        outcome = try_fresh(lock, pool, record, path);
    }
    return outcome;
}

static int
try_one(semlock_lock *lock, semlock_pool *pool, int seen_free, int anyway)
{
    const semlock_record *record = lock->record;
    int outcome = semlock_object_begin(lock);

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = attempt(lock, pool, record, seen_free, anyway);
    if (outcome == SEMLOCK_OK) {
        semlock_add32(&pool->holding[lock->file.ino % SEMLOCK_BURSTS], 1);
        return semlock_object_won(lock, record);
    }
    if (outcome == SEMLOCK_HELD) {
        outcome = semlock_object_seen_held(lock);
    }
    return semlock_object_failed(lock, outcome);
}

int
semlock_try(semlock_lock *lock, semlock_pool *pool)
{
    return try_one(lock, pool, 0, 0);
}

static int
try_out_of_turn(semlock_lock *lock, semlock_pool *pool, int seen_free)
{
    int outcome = try_one(lock, pool, seen_free, 1);

    if (outcome == SEMLOCK_OK && lock->turns != SEMLOCK_NO_TURNS) {
        semlock_burst_began(pool, lock);
    }
    return outcome;
}

/* The same for those whose turn it is, and for those who don't wait. */
int
semlock_try_anyway(semlock_lock *lock, semlock_pool *pool)
{
    return try_out_of_turn(lock, pool, 0);
}

/* The same for a waiter that has just seen the path free, and need not look again. */
int
semlock_try_free(semlock_lock *lock, semlock_pool *pool)
{
    return try_out_of_turn(lock, pool, 1);
}

/* Many tries in one call.  Windows has no cheaper way to look at many names at once. */
void
semlock_try_many(semlock_lock **locks, char *outcomes, int32_t *errors, int32_t count,
                 int anyway, semlock_pool *pool)
{
    for (int32_t i = 0; i < count; i++) {
        int outcome = try_one(locks[i], pool, 0, anyway && locks[i]->turns != SEMLOCK_FAIR);

        errors[i] = outcome < 0 ? outcome : 0;
        outcomes[i] = (char)(outcome < 0 ? -1 : outcome);
    }
}
