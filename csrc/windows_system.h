/* Windows: what its sources share, and how they carry out the protocol of semlock.h.
 *
 *   An instance is known by its volume's serial number and its file id, and is
 *   changed through a handle: what is renamed or deleted is the file that was
 *   judged, wherever it is by then.  So exactness holds against foreigners too.
 *
 *   GUARD and WITNESS are LockFileEx on one byte each, far behind the end of
 *   the file.  Such locks are mandatory here, but only for those bytes, which
 *   nobody reads.  They belong to the handle, so the kernel drops them with it.
 *   Since a file is removed by its handle, whatever its name is by then, who
 *   removes it shares the witness until it is gone: its maker, if that lives
 *   after all, can't take it and begins again with another file.
 *
 *   P comes to be by renaming the finished file to it without replacing, and a
 *   kept claim goes back and forth between P and its private name in the same
 *   way.  An instance has one name at any time: no orphan is left beside P.
 *
 *   Every handle of ours shares reading, writing and deleting, so no look at a
 *   lock keeps anybody from removing it.  A holder's handle has the right to
 *   delete from the beginning.  Whoever opens P without sharing deletion gets a
 *   sharing violation while it is held, and that is intended: were such a
 *   reader let in, it could keep the holder from letting go.
 *
 *   Windows has no fork, so no call here announces itself with semlock_enter.
 */
#ifndef SEMLOCK_WINDOWS_SYSTEM_H
#define SEMLOCK_WINDOWS_SYSTEM_H

#ifndef _WIN32_WINNT
#define _WIN32_WINNT 0x0A00
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>

#include "semlock.h"

#define SEMLOCK_FILETIME_OF_1970 116444736000000000 /* in hundreds of nanoseconds */

/* UTF-16 units of the longest path, with the prefix for long ones and the final zero. */
#define SEMLOCK_WIDE_ROOM 4224

/* No reader ever keeps anybody out. */
#define SEMLOCK_SHARE_ALL (FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE)

/* In `named` of a file: it is under a name of its own and must be deleted to be given up,
 * or it was once, so that its directory is known to have had a kept claim. */
#define SEMLOCK_NAMED_NOW 1
#define SEMLOCK_NAMED_BEFORE 2

/* Marks the file of an in-place creator that has not finished.  Of the attributes that a
 * file can be created with and that FAT, NTFS and a file server all keep, no program sets
 * these two on its lock.  FILE_ATTRIBUTE_TEMPORARY alone says the same to people, but
 * foreigners do give it to lock files that they hold, and FAT forgets it when the last
 * handle closes. */
#define SEMLOCK_UNFINISHED_ATTRIBUTES (FILE_ATTRIBUTE_HIDDEN | FILE_ATTRIBUTE_SYSTEM)

/* windows_path.c: from the bytes that Python gives to what Windows takes. */
int semlock_wide(WCHAR *room, const char *path, int32_t length);
int semlock_join(WCHAR *room, const char *directory, int32_t length, const char *name);
int semlock_private_path(WCHAR *room, const char *directory, int32_t length,
                         const semlock_file *file);
int semlock_temporary_path(WCHAR *room, const char *directory, int32_t length,
                           semlock_pool *pool);

/* windows_file.c: the steps that several calls share. */
int semlock_last_error(void);
HANDLE semlock_handle(const semlock_file *file);
int semlock_is_absent(int error);
int semlock_is_unsupported(int error);
int semlock_exists(const WCHAR *path);
int semlock_identity(HANDLE handle, semlock_file *file);
int semlock_same_file(const semlock_file *a, const semlock_file *b);
int semlock_still_at(const WCHAR *path, const semlock_file *file);
int semlock_guard(HANDLE handle);
int semlock_is_kept_out(int guard);
void semlock_unguard(HANDLE handle);
int semlock_take_witness(HANDLE handle);
int semlock_witness(HANDLE handle);
int semlock_hold_off(HANDLE handle);
int semlock_write_all(HANDLE handle, const char *bytes, int32_t length);
int semlock_read_all(HANDLE handle, char *bytes, int32_t capacity);
int semlock_rename(HANDLE handle, const WCHAR *from, const WCHAR *to);
int semlock_delete(HANDLE handle, const WCHAR *path, const WCHAR *aside);

/* windows_process.c: a handle of a process that can be waited for, or -1. */
int64_t semlock_process_open(int64_t pid);

/* windows_wait.c: a watch on a directory, -1 for none. */
void semlock_watch_directory(int64_t *mark, const WCHAR *directory);
void semlock_unwatch(int64_t *mark);

/* windows_inspect.c: what a file is, and whether it is on a known local filesystem. */
int semlock_describe(HANDLE handle, semlock_view *view);
int semlock_is_local(HANDLE handle);

#endif
