/* Windows: the guard, the witness, and the steps that several calls share. */
#include <string.h>

#include "windows_system.h"

/* Behind anything that a record or a foreign lock of a whole file's content reaches, and
 * not where Linux has its witness: a file server may hand these locks to its own kernel. */
#define WITNESS_BYTE ((uint64_t)1 << 62)
#define GUARD_BYTE (((uint64_t)1 << 62) + 1)

/* Newer than some headers; the values are part of the system's stable interface. */
#define DISPOSITION_EX ((FILE_INFO_BY_HANDLE_CLASS)21)
#define DISPOSITION_DELETE 0x01u
#define DISPOSITION_POSIX 0x02u
#define DISPOSITION_READONLY_TOO 0x10u

/* The error of the call before, negative even where that call forgot to set one.  The number
 * of too many open files is that of EINTR too, by which a wait has Python run its signal
 * handlers and is called again; another error that says the same stands for it. */
int
semlock_last_error(void)
{
    DWORD error = GetLastError();

    if (error == ERROR_TOO_MANY_OPEN_FILES) {
        error = ERROR_NO_SYSTEM_RESOURCES;
    }
    return error == ERROR_SUCCESS ? -ERROR_GEN_FAILURE : -(int)error;
}

HANDLE
semlock_handle(const semlock_file *file)
{
    return (HANDLE)(intptr_t)file->handle;
}

/* Does the (negative) error say that there is nothing at the path? */
int
semlock_is_absent(int error)
{
    return error == -ERROR_FILE_NOT_FOUND || error == -ERROR_PATH_NOT_FOUND ||
           error == -ERROR_DIRECTORY;
}

/* Does the (negative) error say that the system or filesystem doesn't know the request? */
int
semlock_is_unsupported(int error)
{
    return error == -ERROR_INVALID_PARAMETER || error == -ERROR_NOT_SUPPORTED ||
           error == -ERROR_INVALID_FUNCTION || error == -ERROR_CALL_NOT_IMPLEMENTED ||
           error == -ERROR_INVALID_LEVEL;
}

/* Is what stands at the path deleted already, and there only because somebody has it open?
 *
 * To open such a file or to ask about it gives ERROR_ACCESS_DENIED, which can mean a lack
 * of rights just as well.  The listing of the directory shows it all the same. */
static int
is_leaving(const WCHAR *path)
{
    WIN32_FIND_DATAW entry;
    HANDLE found;
    int error;

    if (GetFileAttributesW(path) != INVALID_FILE_ATTRIBUTES) {
        return 0;
    }
    error = semlock_last_error();
    if (error != -ERROR_ACCESS_DENIED && error != -ERROR_DELETE_PENDING) {
        return 0;
    }
    found = FindFirstFileW(path, &entry);
    if (found == INVALID_HANDLE_VALUE) {
        return 0;
    }
    FindClose(found);
    return 1;
}

/* Is there anything at the path?  1, 0, or an error that leaves it open. */
int
semlock_exists(const WCHAR *path)
{
    int error;

    if (GetFileAttributesW(path) != INVALID_FILE_ATTRIBUTES) {
        return 1;
    }
    error = semlock_last_error();
    if (semlock_is_absent(error)) {
        return 0;
    }
    return error == -ERROR_SHARING_VIOLATION || is_leaving(path) ? 1 : error;
}

/* Which file is it?  Filesystems without 128-bit ids have an older call for shorter ones.
 * On FAT the id is the place in the directory, so it is asked for after each rename. */
int
semlock_identity(HANDLE handle, semlock_file *file)
{
    BY_HANDLE_FILE_INFORMATION old;
    FILE_ID_INFO id;
    int error;

    if (GetFileInformationByHandleEx(handle, FileIdInfo, &id, sizeof id)) {
        file->dev = id.VolumeSerialNumber;
        memcpy(&file->ino, id.FileId.Identifier, 8);
        memcpy(&file->ino_high, id.FileId.Identifier + 8, 8);
        return 0;
    }
    error = semlock_last_error();
    if (!semlock_is_unsupported(error)) {
        return error;
    }
    if (!GetFileInformationByHandle(handle, &old)) {
        return semlock_last_error();
    }
    file->dev = old.dwVolumeSerialNumber;
    file->ino = (uint64_t)old.nFileIndexHigh << 32 | old.nFileIndexLow;
    file->ino_high = 0;
    return 0;
}

int
semlock_same_file(const semlock_file *a, const semlock_file *b)
{
    return a->ino == b->ino && a->ino_high == b->ino_high && a->dev == b->dev;
}

/* Does the path name this very file?  1, 0, or an error that leaves it open. */
int
semlock_still_at(const WCHAR *path, const semlock_file *file)
{
    semlock_file seen;
    HANDLE handle;
    int error;

    handle = CreateFileW(path, FILE_READ_ATTRIBUTES, SEMLOCK_SHARE_ALL, NULL, OPEN_EXISTING,
                         FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        error = semlock_last_error();
        /* A file that is leaving is nobody's lock any more, ours or not. */
        return semlock_is_absent(error) || is_leaving(path) ? 0 : error;
    }
    error = semlock_identity(handle, &seen);
    CloseHandle(handle);
    if (error != 0) {
        return error;
    }
    return semlock_same_file(&seen, file);
}

/* Lock one byte without waiting: 0, 1 if somebody else has it, or an error. */
static int
lock_byte(HANDLE handle, uint64_t at, DWORD kind)
{
    OVERLAPPED place;
    int error;

    memset(&place, 0, sizeof place);
    place.Offset = (DWORD)at;
    place.OffsetHigh = (DWORD)(at >> 32);
    if (LockFileEx(handle, kind | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &place)) {
        return 0;
    }
    error = semlock_last_error();
    return error == -ERROR_LOCK_VIOLATION || error == -ERROR_IO_PENDING ? 1 : error;
}

static void
unlock_byte(HANDLE handle, uint64_t at)
{
    OVERLAPPED place;

    memset(&place, 0, sizeof place);
    place.Offset = (DWORD)at;
    place.OffsetHigh = (DWORD)(at >> 32);
    UnlockFileEx(handle, 0, 1, 0, &place);
}

/* Lock one byte that others lock for a moment: 0, SEMLOCK_GUARDED, or an error. */
static int
take_byte(HANDLE handle, uint64_t at)
{
    for (int tries = 0;; tries++) {
        int outcome = lock_byte(handle, at, LOCKFILE_EXCLUSIVE_LOCK);

        if (outcome != 1) {
            return outcome;
        }
        if (tries == SEMLOCK_GUARD_TRIES) {
            return SEMLOCK_GUARDED;
        }
        if (tries == 0) {
            /* A handle stands in its own way if it was not let go of once.  This frees what
             * the handle itself has, and nobody else's. */
            unlock_byte(handle, at);
        }
        else {
            semlock_yield();
        }
    }
}

/* Take the guard: 0, SEMLOCK_GUARDED, or the error of a filesystem that has none. */
int
semlock_guard(HANDLE handle)
{
    return take_byte(handle, GUARD_BYTE);
}

/* Can no change be made, after this outcome of taking the guard?  Where there are no such
 * locks it is made without; any other error doesn't say that nobody else has the guard. */
int
semlock_is_kept_out(int guard)
{
    return guard == SEMLOCK_GUARDED || (guard < 0 && !semlock_is_unsupported(guard));
}

void
semlock_unguard(HANDLE handle)
{
    unlock_byte(handle, GUARD_BYTE);
}

/* Take the witness of a file that was just made: 0, SEMLOCK_GUARDED if somebody is about to
 * remove the file, or an error. */
int
semlock_take_witness(HANDLE handle)
{
    return take_byte(handle, WITNESS_BYTE);
}

/* The same answer as semlock_witness, but whoever is told that it is free keeps it so until
 * the handle is closed: nobody can come to hold the file by then. */
int
semlock_hold_off(HANDLE handle)
{
    int outcome = lock_byte(handle, WITNESS_BYTE, 0);

    return outcome < 0 ? -1 : outcome;
}

/* 1 taken, 0 free, -1 nobody can tell here.  Windows has no way to ask for a lock without
 * taking it; a shared one at least doesn't hide the answer from others who ask. */
int
semlock_witness(HANDLE handle)
{
    int outcome = lock_byte(handle, WITNESS_BYTE, 0);

    if (outcome == 0) {
        unlock_byte(handle, WITNESS_BYTE);
    }
    return outcome < 0 ? -1 : outcome;
}

int
semlock_write_all(HANDLE handle, const char *bytes, int32_t length)
{
    OVERLAPPED place;
    DWORD count;

    for (int32_t done = 0; done < length; done += (int32_t)count) {
        memset(&place, 0, sizeof place);
        place.Offset = (DWORD)done;
        if (!WriteFile(handle, bytes + done, (DWORD)(length - done), &count, &place)) {
            return semlock_last_error();
        }
        if (count == 0) {
            return -ERROR_DISK_FULL;
        }
    }
    return 0;
}

/* Up to `capacity` bytes from the beginning: how many there were, or an error. */
int
semlock_read_all(HANDLE handle, char *bytes, int32_t capacity)
{
    OVERLAPPED place;
    DWORD count;
    int32_t done = 0;

    while (done < capacity) {
        memset(&place, 0, sizeof place);
        place.Offset = (DWORD)done;
        if (!ReadFile(handle, bytes + done, (DWORD)(capacity - done), &count, &place)) {
            int error = semlock_last_error();

            if (error == -ERROR_HANDLE_EOF) {
                break;
            }
            return error;
        }
        if (count == 0) {
            break;
        }
        done += (int32_t)count;
    }
    return done;
}

/* Give this file another name in its directory, if nobody has that name. */
int
semlock_rename(HANDLE handle, const WCHAR *from, const WCHAR *to)
{
    struct {
        FILE_RENAME_INFO info;
        WCHAR room[SEMLOCK_WIDE_ROOM];
    } request;
    size_t bytes = (size_t)lstrlenW(to) * sizeof *to;
    int error;

    memset(&request.info, 0, sizeof request.info);
    request.info.FileNameLength = (DWORD)bytes;
    memcpy((char *)&request + FIELD_OFFSET(FILE_RENAME_INFO, FileName), to,
           bytes + sizeof *to);
    if (SetFileInformationByHandle(handle, FileRenameInfo, &request,
                                   (DWORD)(sizeof request.info + bytes))) {
        return 0;
    }
    error = semlock_last_error();
    if (!semlock_is_unsupported(error)) {
        return error;
    }
    return MoveFileExW(from, to, 0) ? 0 : semlock_last_error();
}

/* Clear the read-only attribute, which the older deletion minds, and no other: a file that is
 * marked as unfinished must stay so for as long as it is there. */
static void
clear_readonly(HANDLE handle)
{
    FILE_BASIC_INFO basic;
    DWORD others;

    if (!GetFileInformationByHandleEx(handle, FileBasicInfo, &basic, sizeof basic) ||
        !(basic.FileAttributes & FILE_ATTRIBUTE_READONLY)) {
        return;
    }
    others = basic.FileAttributes & ~(DWORD)FILE_ATTRIBUTE_READONLY;
    memset(&basic, 0, sizeof basic); /* times of zero are left as they are */
    basic.FileAttributes = others == 0 ? FILE_ATTRIBUTE_NORMAL : others;
    SetFileInformationByHandle(handle, FileBasicInfo, &basic, sizeof basic);
}

/* Delete this file, which is at the path.  The path is free as soon as the handle is
 * closed.
 *
 * Without the deletion that POSIX has, the name stays taken until the last handle of
 * anybody is closed, so the file is moved to a random name first if the caller has one for
 * it. */
int
semlock_delete(HANDLE handle, const WCHAR *path, const WCHAR *aside)
{
    static const DWORD ways[] = {
        DISPOSITION_DELETE | DISPOSITION_POSIX | DISPOSITION_READONLY_TOO,
        DISPOSITION_DELETE | DISPOSITION_POSIX,
    };
    FILE_DISPOSITION_INFO plain = {TRUE};
    int moved;

    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        DWORD way = ways[i];

        if (SetFileInformationByHandle(handle, DISPOSITION_EX, &way, sizeof way)) {
            return 0;
        }
    }
    clear_readonly(handle);
    moved = aside != NULL && semlock_rename(handle, path, aside) == 0;
    if (SetFileInformationByHandle(handle, FileDispositionInfo, &plain, sizeof plain)) {
        return 0;
    }
    return moved ? 0 : semlock_last_error();
}

/* Give up a file that is nowhere but under a name of its own, or is at P but not ours. */
void
semlock_file_dispose(semlock_file *file, const char *directory, int32_t length)
{
    (void)directory;
    (void)length;
    if (file->handle != -1) {
        if (file->named == SEMLOCK_NAMED_NOW) {
            semlock_delete(semlock_handle(file), NULL, NULL);
        }
        CloseHandle(semlock_handle(file));
    }
    semlock_file_reset(file);
}

void
semlock_forget(semlock_lock *lock)
{
    if (lock->file.handle != -1) {
        CloseHandle(semlock_handle(&lock->file));
    }
    semlock_object_freed(lock);
}

/* Windows has no fork, so nobody comes here with kept claims of another process. */
void
semlock_pool_forget(semlock_pool *pool)
{
    for (int i = 0; i < SEMLOCK_POOL_SLOTS; i++) {
        semlock_slot *slot = &pool->slots[i];

        if (slot->state != 0 && slot->file.handle != -1) {
            CloseHandle(semlock_handle(&slot->file));
        }
        memset(slot, 0, sizeof *slot);
    }
    memset(pool->holding, 0, sizeof pool->holding);
    memset(pool->seen, 0, sizeof pool->seen);
    pool->busy = 0;
    pool->forking = 0;
}
