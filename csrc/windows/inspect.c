/* Windows: inspecting a path without following a link, opening a device, or reading more than
 * the largest record. */
#include <string.h>

#include "windows/system.h"

/* Reparse points that refer to another place: symbolic links, junctions, those of WSL. */
#define SURROGATE_TAG 0x20000000u

static int64_t
nanoseconds(LARGE_INTEGER time)
{
    return (time.QuadPart - SEMLOCK_FILETIME_OF_1970) * 100;
}

static int
kind_of(DWORD type, const FILE_ATTRIBUTE_TAG_INFO *tag)
{
    if (type != FILE_TYPE_DISK) {
        return SEMLOCK_OTHER;
    }
    if ((tag->FileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) &&
        (tag->ReparseTag & SURROGATE_TAG)) {
        return SEMLOCK_SYMLINK;
    }
    return tag->FileAttributes & FILE_ATTRIBUTE_DIRECTORY ? SEMLOCK_DIRECTORY
                                                          : SEMLOCK_REGULAR;
}

/* Describe an open file, without its bytes. */
int
semlock_describe(HANDLE handle, semlock_view *view)
{
    FILE_ATTRIBUTE_TAG_INFO tag;
    FILE_STANDARD_INFO size;
    FILE_BASIC_INFO basic;
    semlock_file id;
    DWORD type = GetFileType(handle);
    int error;

    memset(view, 0, sizeof *view);
    memset(&tag, 0, sizeof tag);
    view->witness = -1;
    if (type != FILE_TYPE_DISK) {
        view->kind = SEMLOCK_OTHER;
        return 0;
    }
    if (!GetFileInformationByHandleEx(handle, FileBasicInfo, &basic, sizeof basic) ||
        !GetFileInformationByHandleEx(handle, FileStandardInfo, &size, sizeof size)) {
        return semlock_last_error();
    }
    error = semlock_identity(handle, &id);
    if (error != 0) {
        return error;
    }
    if (!GetFileInformationByHandleEx(handle, FileAttributeTagInfo, &tag, sizeof tag)) {
        tag.FileAttributes = basic.FileAttributes; /* a filesystem without reparse points */
    }
    view->kind = kind_of(type, &tag);
    view->mode = basic.FileAttributes & FILE_ATTRIBUTE_READONLY ? 0444 : 0666;
    view->dev = id.dev;
    view->ino = id.ino;
    view->ino_high = id.ino_high;
    view->size = size.EndOfFile.QuadPart;
    view->links = (int32_t)size.NumberOfLinks;
    view->mtime_ns = nanoseconds(basic.LastWriteTime);
    /* FAT has no change time. */
    view->ctime_ns =
        basic.ChangeTime.QuadPart != 0 ? nanoseconds(basic.ChangeTime) : view->mtime_ns;
    view->unfinished = (basic.FileAttributes & SEMLOCK_UNFINISHED_ATTRIBUTES) ==
                       SEMLOCK_UNFINISHED_ATTRIBUTES;
    return 0;
}

static int
starts_with(const WCHAR *text, const WCHAR *beginning)
{
    while (*beginning != 0) {
        if (*text++ != *beginning++) {
            return 0;
        }
    }
    return 1;
}

/* Is the root of the volume local, after resolving links and substituted drives?  The full
 * name of a file is \\?\X:\..., \\?\Volume{...}\... or \\?\UNC\server\share\... */
static int
has_local_root(WCHAR *full)
{
    WCHAR *end = full + 4;
    UINT type;

    if (!starts_with(full, L"\\\\?\\") || starts_with(full, L"\\\\?\\UNC\\")) {
        return 0;
    }
    while (*end != 0 && *end != L'\\') {
        end++;
    }
    if (*end == 0) {
        return 0;
    }
    end[1] = 0;
    type = GetDriveTypeW(starts_with(full, L"\\\\?\\Volume{") ? full : full + 4);
    return type == DRIVE_FIXED || type == DRIVE_REMOVABLE || type == DRIVE_RAMDISK;
}

/* The kinds of filesystem whose locks are visible to every process that can reach the file.  A
 * cluster volume looks like a fixed disk, and so may a volume that a program provides; neither
 * has one of these names.  A kind that is not listed counts as remote. */
int
semlock_system_local(HANDLE handle)
{
    static const WCHAR *const kinds[] = {L"NTFS", L"ReFS", L"FAT32", L"exFAT", L"FAT"};
    WCHAR full[SEMLOCK_PATH_ROOM];
    WCHAR kind[MAX_PATH + 1];
    DWORD room = SEMLOCK_PATH_ROOM;
    DWORD length;

    if (!GetVolumeInformationByHandleW(handle, NULL, 0, NULL, NULL, NULL, kind,
                                       MAX_PATH + 1)) {
        return 0;
    }
    length = GetFinalPathNameByHandleW(handle, full, room, VOLUME_NAME_DOS);
    if (length == 0) {
        /* A volume that is not mounted has no name of this form. */
        length = GetFinalPathNameByHandleW(handle, full, room, VOLUME_NAME_GUID);
    }
    if (length == 0 || length >= room || !has_local_root(full)) {
        return 0;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (lstrcmpiW(kind, kinds[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

static HANDLE
open_to_look(const WCHAR *path, DWORD rights)
{
    return CreateFileW(path, rights, SEMLOCK_SHARE_ALL, NULL, OPEN_EXISTING,
                       FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS, NULL);
}

/* Read the attributes only.  This works for files that cannot be opened for reading, however P
 * is shared: every user who may list the directory may read attributes. */
int
semlock_describe_path(const WCHAR *path, semlock_view *view)
{
    HANDLE handle = open_to_look(path, FILE_READ_ATTRIBUTES);
    int outcome;

    if (handle == INVALID_HANDLE_VALUE) {
        outcome = semlock_last_error();
        if (semlock_is_gone(outcome)) {
            return SEMLOCK_FREE;
        }
        /* Already deleted, and only there until its last handle is closed: inspect again. */
        return semlock_exists(path) == 1 ? SEMLOCK_CHANGED : outcome;
    }
    outcome = semlock_describe(handle, view);
    CloseHandle(handle);
    return outcome;
}

/* Open a path that may be a regular file: SEMLOCK_FREE if nothing is there. */
int
semlock_open_to_read(const WCHAR *path, HANDLE *handle)
{
    int error;

    *handle = open_to_look(path, GENERIC_READ);
    if (*handle != INVALID_HANDLE_VALUE) {
        return SEMLOCK_OK;
    }
    error = semlock_last_error();
    return semlock_is_gone(error) ? SEMLOCK_FREE : error;
}

/* No filesystem here is known to keep a boot mark in order, so files are synced. */
int
semlock_system_mark_boot(const semlock_file *file, semlock_pool *pool)
{
    (void)file;
    (void)pool;
    return 0;
}

uint64_t
semlock_system_boot_mark(HANDLE handle, const semlock_view *seen)
{
    (void)handle;
    (void)seen;
    return 0;
}
