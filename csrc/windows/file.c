/* Windows: the steps by handle that several calls share. */
#include <string.h>

#include "windows/system.h"

/* Missing in some headers; the values are part of the system's stable interface. */
#define DISPOSITION_EX ((FILE_INFO_BY_HANDLE_CLASS)21)
#define DISPOSITION_DELETE 0x01u
#define DISPOSITION_POSIX 0x02u
#define DISPOSITION_READONLY_TOO 0x10u

/* The error of the last system call, negative also if that call set none.
 * ERROR_TOO_MANY_OPEN_FILES is 4, which is EINTR: a wait returns -EINTR so that Python runs
 * its signal handlers and calls again.  So it is replaced by ERROR_NO_SYSTEM_RESOURCES, which
 * means the same. */
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

/* Does the (negative) error mean that nothing is at the path? */
int
semlock_is_gone(int error)
{
    return error == -ERROR_FILE_NOT_FOUND || error == -ERROR_PATH_NOT_FOUND ||
           error == -ERROR_DIRECTORY;
}

/* Does the (negative) error mean that the system or filesystem does not support the request?
 */
int
semlock_is_unsupported(int error)
{
    return error == -ERROR_INVALID_PARAMETER || error == -ERROR_NOT_SUPPORTED ||
           error == -ERROR_INVALID_FUNCTION || error == -ERROR_CALL_NOT_IMPLEMENTED ||
           error == -ERROR_INVALID_LEVEL;
}

/* Errors that Windows gives for a name that is being deleted, and in other cases. */
int
semlock_is_transient(int outcome)
{
    return outcome == -ERROR_ACCESS_DENIED || outcome == -ERROR_SHARING_VIOLATION ||
           outcome == -ERROR_DELETE_PENDING;
}

/* Is the file at the path already deleted, and only there until its last handle is closed?
 *
 * Opening or querying such a file gives ERROR_ACCESS_DENIED, which can also mean missing
 * rights.  The listing of the directory still shows it. */
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

/* Is there anything at the path? 1, 0, or an error if it is not known. */
int
semlock_exists(const WCHAR *path)
{
    int error;

    if (GetFileAttributesW(path) != INVALID_FILE_ATTRIBUTES) {
        return 1;
    }
    error = semlock_last_error();
    if (semlock_is_gone(error)) {
        return 0;
    }
    return error == -ERROR_SHARING_VIOLATION || is_leaving(path) ? 1 : error;
}

/* Is anything at the path?  What cannot be seen is not. */
int
semlock_os_exists(const WCHAR *path)
{
    return semlock_exists(path) == 1;
}

/* The identity of a file.  Filesystems without 128-bit ids have an older call for shorter
 * ones.  On FAT the id is the position in the directory, so it is queried again after each
 * rename. */
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

/* Does the path name this very file? 1, 0, or an error if it is not known. */
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
        /* A deleted file is no longer a lock, ours or another. */
        return semlock_is_gone(error) || is_leaving(path) ? 0 : error;
    }
    error = semlock_identity(handle, &seen);
    CloseHandle(handle);
    if (error != 0) {
        return error;
    }
    return semlock_same_file(&seen, file);
}

int
semlock_write_at(HANDLE handle, const char *bytes, int32_t length, int32_t at)
{
    OVERLAPPED place = {.Offset = (DWORD)at};
    DWORD count;

    return WriteFile(handle, bytes, (DWORD)length, &count, &place) ? (int)count
                                                                   : semlock_last_error();
}

int
semlock_read_at(HANDLE handle, char *bytes, int32_t length, int32_t at)
{
    OVERLAPPED place = {.Offset = (DWORD)at};
    DWORD count;
    int error;

    if (ReadFile(handle, bytes, (DWORD)length, &count, &place)) {
        return (int)count;
    }
    error = semlock_last_error();
    return error == -ERROR_HANDLE_EOF ? 0 : error;
}

int
semlock_shorten(HANDLE handle, int32_t length)
{
    FILE_END_OF_FILE_INFO end;

    end.EndOfFile.QuadPart = length;
    return SetFileInformationByHandle(handle, FileEndOfFileInfo, &end, sizeof end)
               ? 0
               : semlock_last_error();
}

/* Windows has one flush that is documented for every filesystem; it writes the data, the
 * file's metadata and, where the drive supports it, the drive's cache. */
int
semlock_system_sync(HANDLE handle, int32_t durability, int overwritten)
{
    (void)overwritten;
    return durability == SEMLOCK_SYNC_NONE || FlushFileBuffers(handle) ? 0
                                                                       : semlock_last_error();
}

void
semlock_os_close(HANDLE handle)
{
    CloseHandle(handle);
}

/* Closing the handle releases the guard. */
void
semlock_close_guarded(HANDLE handle)
{
    CloseHandle(handle);
}

int
semlock_os_path(WCHAR *room, const char *path)
{
    return semlock_wide(room, path, (int32_t)strlen(path));
}

/* Rename this file in its directory, without replacing another file. */
int
semlock_rename(HANDLE handle, const WCHAR *from, const WCHAR *to)
{
    struct {
        FILE_RENAME_INFO info;
        WCHAR room[SEMLOCK_PATH_ROOM];
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

/* Clear the read-only attribute, which blocks the older deletion, and no other: a file that is
 * marked as unfinished must stay marked as long as it exists. */
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

/* Delete this file, which is at the path.  The path is free as soon as the handle is closed.
 *
 * Without POSIX deletion the name stays taken until the last handle to the file is closed, so
 * the file is first renamed to a random name if the caller gives one. */
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

/* Dispose of a file that has only its private name, or that is at P and not ours. */
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

/* A handle keeps the rights with which it was opened, so a change of the thread's user does
 * not matter. */
int
semlock_is_maker(const semlock_file *file)
{
    (void)file;
    return 1;
}

int
semlock_has_umask(semlock_file *file)
{
    (void)file;
    return 1;
}

int
semlock_private_remove(const semlock_file *file, const char *directory, int32_t length)
{
    (void)file;
    (void)directory;
    (void)length;
    return 0;
}

int
semlock_file_is_open(semlock_file *file)
{
    return file->handle != -1;
}

/* A winner keeps neither a ticket nor an event source: nothing is to be given back. */
void
semlock_ticket_leave(semlock_lock *lock)
{
    (void)lock;
}

void
semlock_events_tidy(semlock_pool *pool)
{
    (void)pool;
}
