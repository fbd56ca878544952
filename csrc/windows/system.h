/* Windows: what its sources share, and how they carry out the protocol of semlock.h.
 *
 *   An instance is identified by its volume's serial number and its file id, and
 *   is changed by handle: what is renamed or deleted is the file that was judged,
 *   whatever its name is by then.  So exactness holds against foreigners too.
 *
 *   GUARD and WITNESS are LockFileEx on one byte each, far behind the end of the
 *   file.  Such locks are mandatory on Windows, but only for those bytes, which
 *   no program reads.  They belong to the handle, so the kernel drops them with
 *   it.  A remover holds a shared lock on the witness byte until the file is
 *   gone.  If its creator still lives after all, it cannot take the witness then,
 *   and begins again with another file.
 *
 *   The finished file comes to P by renaming without replacing, and a kept claim
 *   is renamed between P and its private name in the same way.  So an instance
 *   has one name at any time, and no orphan is left beside P.
 *
 *   Every handle of ours shares reading, writing and deleting, so inspecting a
 *   lock never prevents its removal.  A holder's handle has the right to delete
 *   from the beginning.  A program that opens P without sharing deletion gets a
 *   sharing violation while the lock is held.  That is intended: such a reader
 *   could prevent the release.
 *
 *   Windows has no fork, so the calls here do not use semlock_enter.
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

#include "core.h"

#define SEMLOCK_FILETIME_OF_1970 116444736000000000 /* in units of 100 nanoseconds */

SEMLOCK_TIED(no_memory, SEMLOCK_NO_MEMORY == -ERROR_NOT_ENOUGH_MEMORY);
SEMLOCK_TIED(content_locked, SEMLOCK_CONTENT_LOCKED == -ERROR_LOCK_VIOLATION);
SEMLOCK_TIED(bad_argument, SEMLOCK_BAD_ARGUMENT == -ERROR_INVALID_PARAMETER);
SEMLOCK_TIED(no_space, SEMLOCK_NO_SPACE == -ERROR_DISK_FULL);
SEMLOCK_TIED(busy, SEMLOCK_BUSY == -ERROR_BUSY);
SEMLOCK_TIED(too_large, SEMLOCK_TOO_LARGE == -ERROR_FILE_TOO_LARGE);

/* Opening for inspection never blocks another process. */
#define SEMLOCK_SHARE_ALL (FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE)

/* Values of `named`: the file is under its private name and must be deleted on disposal; or it
 * was once, so its directory already had a kept claim. */
#define SEMLOCK_NAMED_NOW 1
#define SEMLOCK_NAMED_BEFORE 2

/* Mark the file of an in-place creator that has not finished.  These attributes can be set at
 * creation, and FAT, NTFS and file servers keep them; no program sets both on its lock.
 * FILE_ATTRIBUTE_TEMPORARY alone would look right to people, but foreign programs do set it on
 * lock files that they hold, and FAT drops it when the last handle closes. */
#define SEMLOCK_UNFINISHED_ATTRIBUTES (FILE_ATTRIBUTE_HIDDEN | FILE_ATTRIBUTE_SYSTEM)

/* windows/path.c: from the bytes that Python passes to what Windows accepts. */
int semlock_wide(WCHAR *room, const char *path, int32_t length);

/* windows/file.c: the steps that several calls share. */
int semlock_last_error(void);
HANDLE semlock_handle(const semlock_file *file);
int semlock_is_unsupported(int error);
int semlock_is_transient(int error);
int semlock_exists(const WCHAR *path);
int semlock_identity(HANDLE handle, semlock_file *file);
int semlock_same_file(const semlock_file *a, const semlock_file *b);
int semlock_take_witness(HANDLE handle);
int semlock_rename(HANDLE handle, const WCHAR *from, const WCHAR *to);
int semlock_delete(HANDLE handle, const WCHAR *path, const WCHAR *aside);

/* windows/kernel.c */
int semlock_kernel_ask(const semlock_watch *watch);

/* windows/process.c */
int64_t semlock_filetime_ns(FILETIME time);

#define SEMLOCK_REREAD_NS 1500000000 /* how long a queue that was read is not read again */

/* windows/events.c: a watch on a directory, -1 for none; and sleeping. */
void semlock_watch_directory(int64_t *mark, const WCHAR *directory);
void semlock_watch_on(int64_t *mark);
void semlock_unwatch(int64_t *mark);
int semlock_hears(const char *path);
int semlock_sleep_on(const HANDLE *handles, DWORD count, int64_t left);

/* windows/tickets.c */
void semlock_queue_leave(const semlock_queue *queue, uint64_t number);

/* windows/overtake.c: a place in a queue while others are before it. */
int semlock_stand_in_queue(semlock_waiting *waiting, semlock_pool *pool);
int semlock_still_first(semlock_waiting *waiting, int32_t which, semlock_pool *pool);

#endif
