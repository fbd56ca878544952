/* Windows: creating the lock file, until it is renamed to P.  The order of the steps and the
 * reasons are in semlock.h, CREATING. */
#include <string.h>

#include "windows/system.h"

#define CHANGED_TRIES 8   /* of an in-place creator whose file was removed as unfinished */
#define TRANSIENT_TRIES 4 /* while Windows denies access to a deleted name */

static HANDLE
create_new(const WCHAR *path, DWORD attributes)
{
    /* FILE_FLAG_OPEN_REPARSE_POINT: a symbolic link at the path means that the path exists,
     * and is not followed. */
    return CreateFileW(path, GENERIC_READ | GENERIC_WRITE | DELETE, SEMLOCK_SHARE_ALL, NULL,
                       CREATE_NEW, attributes | FILE_FLAG_OPEN_REPARSE_POINT, NULL);
}

int
semlock_is_short(int outcome)
{
    return outcome == -ERROR_NO_SYSTEM_RESOURCES; /* see semlock_last_error */
}

/* Interpret a (negative) error of creating at P or renaming to P: SEMLOCK_HELD if something is
 * there, else the error itself.  Denied access alone never counts as contention. */
static int
publish_failed(const WCHAR *path, int error)
{
    if (error == -ERROR_ALREADY_EXISTS || error == -ERROR_FILE_EXISTS) {
        return SEMLOCK_HELD;
    }
    return semlock_is_transient(error) && semlock_exists(path) == 1 ? SEMLOCK_HELD : error;
}

/* Record what was just created: its identity, the kind of its filesystem, and the witness.
 * The record of a lock that outlives this process claims no witness; it is taken all the same,
 * so that a process that found the file abandoned does not remove it now.  SEMLOCK_CHANGED if
 * one is about to. */
static int
adopt(semlock_file *file, const semlock_record *record)
{
    HANDLE handle = semlock_handle(file);
    int error = semlock_identity(handle, file);

    if (error != 0) {
        return error;
    }
    file->mode = record->mode;
    file->local = semlock_system_local(handle);
    if (file->local) {
        int outcome = semlock_take_witness(handle);

        if (outcome == SEMLOCK_GUARDED) {
            return SEMLOCK_CHANGED;
        }
        file->witness = outcome == 0 && !record->detached;
    }
    return 0;
}

/* Rename the finished file to P.  After an error P is checked. */
static int
publish(semlock_file *file, const WCHAR *from, const WCHAR *path, int32_t named_then)
{
    int outcome = semlock_rename(semlock_handle(file), from, path);

    if (outcome != 0) {
        int taken = outcome == -ERROR_ALREADY_EXISTS || outcome == -ERROR_FILE_EXISTS;

        if (!taken && semlock_still_at(path, file) == 1) {
            outcome = 0;
        }
        else if (semlock_is_gone(outcome) && semlock_still_at(from, file) == 0) {
            outcome = SEMLOCK_CHANGED; /* removed by another process as abandoned: retry */
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

/* A kept claim of this directory is renamed to P. */
int
semlock_publish_kept(semlock_lock *lock, semlock_pool *pool)
{
    WCHAR name[SEMLOCK_PATH_ROOM];
    WCHAR path[SEMLOCK_PATH_ROOM];
    int outcome = semlock_private_path(name, lock->path, lock->directory_length, &lock->file);

    (void)pool;
    if (outcome == 0) {
        outcome = semlock_wide(path, lock->path, lock->path_length);
    }
    return outcome == 0 ? publish(&lock->file, name, path, SEMLOCK_NAMED_BEFORE) : outcome;
}

/* Create under a random name, and rename to P when complete. -ERROR_NOT_SUPPORTED where this
 * is not safe, so that try_in_place is used: on a file server "rename without replacing" need
 * not be atomic, and on Samba it is not, while creating a new file is atomic everywhere. */
static int
try_named(semlock_lock *lock, semlock_pool *pool, const semlock_record *record,
          const WCHAR *path)
{
    WCHAR name[SEMLOCK_PATH_ROOM];
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
        outcome = semlock_fill(lock, pool, record);
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

    memset(&basic, 0, sizeof basic); /* times of zero stay unchanged */
    basic.FileAttributes = FILE_ATTRIBUTE_NORMAL;
    return SetFileInformationByHandle(handle, FileBasicInfo, &basic, sizeof basic)
               ? 0
               : semlock_last_error();
}

/* Create at P and write there.  Until the marking attributes are cleared the file is not a
 * held lock.  Until then it is also marked to be deleted on disposal; that goes by handle, so
 * it cannot hit another file that is at P by then. */
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
        return guard; /* another process may be judging our empty file */
    }
    outcome = adopt(file, record);
    if (outcome == 0) {
        still = semlock_still_at(path, file);
        /* Removed by another process as unfinished: retry. */
        outcome = still == 0 ? SEMLOCK_CHANGED : (still < 0 ? still : 0);
    }
    if (outcome == 0) {
        outcome = semlock_fill(lock, pool, record);
    }
    if (outcome == 0) {
        outcome = finish(handle);
    }
    if (outcome == 0 && guard < 0) {
        still = semlock_still_at(path, file); /* no guard here, so check P once more */
        outcome = still == 1 ? 0 : (still == 0 ? SEMLOCK_CHANGED : still);
    }
    if (outcome == 0) {
        file->named = 0;
        semlock_unguard(handle);
    }
    return outcome;
}

/* Create a new file: whole at once where that is safe, else in place. */
int
semlock_create_fresh(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    WCHAR path[SEMLOCK_PATH_ROOM];
    int outcome = semlock_wide(path, lock->path, lock->path_length);
    int in_place = record->in_place;

    if (outcome != 0) {
        return outcome;
    }
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
        else if (semlock_is_transient(outcome) && again < TRANSIENT_TRIES) {
            semlock_yield(); /* the deletion may be complete by now */
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

/* Windows has no file without a name, so nothing is prepared: a kill would leave it. */
int
semlock_prepare_file(semlock_lock *lock, semlock_pool *pool, const semlock_record *record)
{
    (void)lock;
    (void)pool;
    (void)record;
    return SEMLOCK_CHANGED;
}

int
semlock_publish_prepared(semlock_lock *lock, semlock_pool *pool)
{
    (void)lock;
    (void)pool;
    return SEMLOCK_CHANGED;
}

int
semlock_is_at_path(const semlock_lock *lock)
{
    WCHAR path[SEMLOCK_PATH_ROOM];

    return semlock_wide(path, lock->path, lock->path_length) == 0 && semlock_os_exists(path);
}

/* Many tries in one call.  Windows has no cheaper way to check many names at once. */
void
semlock_try_many(semlock_lock **locks, char *outcomes, int32_t *errors, int32_t count, int how,
                 semlock_pool *pool)
{
    semlock_round round = {.now = semlock_now_ns(), .count = count};

    semlock_enter(pool);
    for (int32_t i = 0; i < count; i++) {
        int outcome;

        if (semlock_load64(&locks[i]->owner) == 0 && semlock_is_at_path(locks[i])) {
            outcomes[i] = (char)semlock_seen_held_in(&round, locks[i], pool);
            if (outcomes[i] != SEMLOCK_FREE) {
                continue;
            }
        }
        if (how == SEMLOCK_ONLY_LOOK) {
            outcomes[i] = (char)semlock_look_in(&round, locks[i], 1, pool);
            continue;
        }
        outcome = semlock_try_entered(
            locks[i], pool, 1, how == SEMLOCK_ANYWAY && locks[i]->turns != SEMLOCK_FAIR);
        errors[i] = outcome < 0 ? outcome : 0;
        outcomes[i] = (char)(outcome < 0 ? -1 : outcome);
    }
    semlock_leave(pool);
}
