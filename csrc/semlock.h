/* semlock: the protocol, and what the parts of the core share.
 *
 * THE CONTRACT
 *
 *   A lock is held exactly while a regular file exists at its path P.  That is
 *   all that a foreign program has to know: it takes the lock by creating P
 *   with O_CREAT|O_EXCL and lets go of it with unlink(2).  Everything below is
 *   what semlock processes ("cooperators") add for each other; none of it is
 *   asked of foreigners, and none of it changes what P means.
 *
 *   The inode that one acquisition puts at P is its INSTANCE, the bytes in it
 *   are its RECORD, and the 128-bit TOKEN in the record is its name.
 *
 * WHAT IS TRUE ON DISK
 *
 *   1. Exclusion.     At most one live cooperator believes that it holds P.
 *   2. No wedge.      Whatever a killed cooperator leaves is removable as soon
 *                     as its death can be proven.
 *   3. No robbery.    A holder that lives, or of which nothing is known, keeps
 *                     its lock unless the caller's policy says otherwise.
 *   4. Whole records. Nobody reads a half-written record of a cooperator.
 *   5. Exactness.     Whoever removes a file removes the instance that was
 *                     judged, and no other.
 *   6. Loss shows.    A holder whose instance is no longer at P is told so at
 *                     its next refresh, check or release.
 *   7. Interrupts.    An exception between two Python bytecodes leaks nothing:
 *                     each call leaves its outcome in the semlock_lock that
 *                     the Python object owned before the call began.
 *
 * THE TWO KERNEL LOCKS ON AN INSTANCE
 *
 *   GUARD    flock(LOCK_EX) on the instance's inode.  Held for microseconds
 *            around every change to P that is not a creation: release,
 *            refresh, reclaim.  A descriptor that is open for reading will do,
 *            except on NFS, where it must be open for writing.
 *   WITNESS  an open-file-description write lock on one byte far behind the
 *            end of the file.  The holder takes it before P is visible and
 *            keeps it, so the kernel drops it at the moment the holder dies,
 *            however it dies.  Anybody who can read the file can ask for it,
 *            from any container, without a process number.
 *
 *   The two don't see each other on local Linux filesystems.  They do on NFS,
 *   so the witness is taken only on filesystems of the kinds that are known
 *   (semlock_system_local), and a record says "witness=kept" only if it was.
 *   Where flock itself doesn't work, the change is made by moving P aside to
 *   a random name, comparing, and linking it back if it was the wrong one.
 *
 * CREATING
 *
 *   whole, fresh  open(O_TMPFILE); witness; write all; sync; linkat to P.
 *                 Killed anywhere: nothing is left, or a whole instance.
 *                 Without O_TMPFILE a random temporary name takes its place:
 *                 a kill then leaves that name, which semlock.clean removes.
 *   whole, kept   pwrite token and time into the file of an earlier
 *                 acquisition; sync; linkat to P.  (See THE KEPT CLAIM.)
 *   in place      open(P, O_CREAT|O_EXCL) with the sticky bit set; guard;
 *                 is P still this inode?; witness; write; sync; clear the bit;
 *                 unguard.  For filesystems without hard links.  The sticky
 *                 bit says "unfinished": nobody believes to hold such a file,
 *                 so it may be removed at any age, and the check under the
 *                 guard tells its creator, if it lives, to begin again.
 *
 *   EEXIST means held, and the failed try of a waiter is one access(2).
 *   An error of linkat is believed only after the link count agrees with it:
 *   over a network the link may have been made and the answer lost.
 *
 * REMOVING (release, reclaim, clean, force: there is one way)
 *
 *   guard; is P still this inode?; is it unchanged (mark, time of change,
 *   bytes)?; is the witness still free?; is P still this inode?; unlink;
 *   unguard; close.
 *
 *   The order matters.  The inode of a kept claim is used again: a remover
 *   that compared the bytes first and the path afterwards could read the old
 *   record, see the file come back to P with a new one, and remove it.  With
 *   the path seen first, under the guard, the bytes can't change any more,
 *   because whoever would take P away to change them needs the guard.
 *   A holder needs no comparison of bytes: it has the inode open.
 *
 *   Removing is never taking over.  A remover then creates like anybody else.
 *
 * REFRESHING
 *
 *   guard; is P still my inode?; pwrite the record, of the same length;
 *   unguard.  It can't write to anybody else's file.
 *
 * THE KEPT CLAIM
 *
 *   A process that takes locks in one directory again and again keeps the
 *   finished file of a released lock, with its descriptor and its witness,
 *   under a private name in that directory (".semlock-", the inode number,
 *   ".kept").  Acquiring is then pwrite and linkat, releasing guard, check
 *   and unlink: no inode is made or freed.  The first release in a directory
 *   keeps nothing, so that a program that locks once leaves no trace even when
 *   it is killed.  At most SEMLOCK_POOL_SLOTS are kept, none after a normal
 *   exit.  After a kill the name is an orphan: whoever reclaims the lock finds
 *   it by the inode number, and a sweep (semlock.clean, or any process that
 *   begins to keep a claim in that directory) finds those without a lock by
 *   their free witness.
 *
 * WAITING
 *
 *   A waiter sleeps in the kernel until the instance at P is unlinked or
 *   renamed, or a descriptor that it was open with for writing is closed,
 *   which the kernel does for a holder that dies, in whatever container.
 *   Then it looks, and tries like anybody else: news is only a reason to look.
 *   Once a second it looks without any.
 *
 *   No news is missed, though the kernel tells of an unlink before the name is
 *   gone.  The file at P is watched; a removal that is under way is waited
 *   for; P is watched again.  If both led to the same file, whatever takes it
 *   away from now on begins after it was watched.  If not: once more.  And
 *   since a dead holder's descriptor is told of just before its witness is
 *   dropped, whoever was told and sees nothing changed looks again after 50
 *   microseconds, and so on for some milliseconds.
 *
 *   A holder whose witness is taken needs no judging while it is watched.
 *   Others are judged by the caller once for each change of the file; if they
 *   are known by their process, its end is listened for too.  Without events
 *   (a network filesystem, a file that can't be read, no inotify instance or
 *   descriptor left) the caller pauses and looks.
 *
 * THE QUEUE
 *
 *   Those who wait for P stand in the directory ".semlock-", a hash of P's
 *   last part, ".queue" beside it: each has a ticket there, a file whose name
 *   is a number and whose flock its owner keeps.  Whoever comes takes the
 *   next number and sleeps until the ticket before its own is gone; only the
 *   first watches P.  So one is woken at a time, in order, and the kernel
 *   tells of members that die as it tells of holders.  A ticket without its
 *   flock is a dead one's and is removed by whoever meets it.  The last one
 *   to leave takes the directory with it.
 *
 *   The queue orders, and no more: a lock is won by creating P, and whoever
 *   is first by mistake wins nothing by it.  That is why a first that leaves
 *   P free for SEMLOCK_STOPPED_NS may simply lose its ticket: it is stopped,
 *   and stands in the queue anew when it goes on.  Foreigners know nothing of
 *   the queue and may always try.
 *
 *   A fair lock looks for the queue before each try, and whoever waits for it
 *   takes a ticket at once.  Any other looks only after its process has had
 *   the lock again and again for SEMLOCK_BURST_NS: trying at once is what
 *   makes an uncontended lock fast, and one burst is how long it may keep
 *   others waiting beyond their turn.  And whoever waits for it where there
 *   is no queue watches P without a ticket at first, since making one and
 *   leaving it takes as long as the wake itself.  It takes one when the lock
 *   has changed hands without it, when its process has made way for others or
 *   come too late in the last SEMLOCK_CONTENDED_NS, and when it has waited for
 *   a tenth of a second, so that people can see that it waits.
 *
 * WHAT IS LEFT OPEN
 *
 *   Foreigners don't take the guard.  One that removes P and creates it anew
 *   between a cooperator's check and its unlink, two adjacent system calls,
 *   loses that new file.  Nothing can be done about it from this side.
 *   Somebody with read access to P can sit on the guard, or use P with
 *   flock(1): callers wait a bounded time and then treat P as held.
 *
 * ERRORS
 *
 *   A negative return is a native error, read before anything is cleaned up;
 *   after it nothing is held and nothing is left behind, except that a release
 *   that could not remove P still holds.  EINTR goes to the caller, so that
 *   Python runs its signal handlers.  An error of close(2) changes nothing.
 */
#ifndef SEMLOCK_H
#define SEMLOCK_H

#include <stdint.h>

#include "semlock_api.h"

#define SEMLOCK_UNFINISHED_MODE 01000 /* S_ISVTX: means nothing on a regular file */
#define SEMLOCK_RESERVED_HANDLES 32   /* left to the program when witnesses are given up */
#define SEMLOCK_GUARD_TRIES 200       /* non-blocking attempts, each giving up the processor */
#define SEMLOCK_KEPT_PER_DIRECTORY 4
#define SEMLOCK_TICKET_ROOM 1024
#define SEMLOCK_STOPPED_NS 200000000 /* who leaves a free lock for so long is stopped */

/* Atomics on the plain integers of the structures above: cffi knows no _Atomic. */
#if defined(_MSC_VER)
#include <intrin.h>
#define semlock_load64(p) _InterlockedCompareExchange64((volatile __int64 *)(p), 0, 0)
#define semlock_store64(p, v) _InterlockedExchange64((volatile __int64 *)(p), (v))
#define semlock_add64(p, v) _InterlockedExchangeAdd64((volatile __int64 *)(p), (v))
#define semlock_swap_if64(p, was, now)                                                        \
    (_InterlockedCompareExchange64((volatile __int64 *)(p), (now), (was)) == (was))
#define semlock_add32(p, v) _InterlockedExchangeAdd((volatile long *)(p), (v))
#define semlock_store32(p, v) _InterlockedExchange((volatile long *)(p), (v))
#define semlock_swap_if32(p, was, now)                                                        \
    (_InterlockedCompareExchange((volatile long *)(p), (now), (was)) == (was))
#define semlock_load32(p) _InterlockedCompareExchange((volatile long *)(p), 0, 0)
#else
#define semlock_load64(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define semlock_store64(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define semlock_add64(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define semlock_swap_if64(p, was, now) __sync_bool_compare_and_swap((p), (was), (now))
#define semlock_add32(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define semlock_store32(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define semlock_swap_if32(p, was, now) __sync_bool_compare_and_swap((p), (was), (now))
#define semlock_load32(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#endif

/* object.c: the life of a lock object, and what needs no system call. */
int semlock_object_borrow(semlock_lock *lock, int64_t *owner);
void semlock_object_return(semlock_lock *lock, int64_t owner);
int semlock_object_begin(semlock_lock *lock);
int semlock_object_won(semlock_lock *lock, const semlock_record *record);
int semlock_object_failed(semlock_lock *lock, int outcome);
int semlock_object_seen_held(semlock_lock *lock);
int semlock_object_end(semlock_lock *lock, int64_t *owner);
void semlock_object_freed(semlock_lock *lock);
void semlock_file_reset(semlock_file *file);
void semlock_new_token(semlock_pool *pool, char token[33]);
void semlock_stamp(const semlock_record *record, const semlock_file *file, semlock_lock *lock,
                   semlock_pool *pool, char *bytes);

/* pool.c: kept claims, and quiet while a thread forks. */
void semlock_enter(semlock_pool *pool);
void semlock_leave(semlock_pool *pool);
int semlock_pool_take(semlock_pool *pool, const semlock_lock *lock, int32_t mode,
                      semlock_file *file);
int semlock_pool_wants(semlock_pool *pool, const semlock_lock *lock);
void semlock_pool_drain_entered(semlock_pool *pool, const char *directory, int32_t length);
int semlock_pool_put(semlock_pool *pool, const semlock_lock *lock, semlock_file *file);
void semlock_file_dispose(semlock_file *file, const char *directory, int32_t length);

int semlock_try_free(semlock_lock *lock, semlock_pool *pool);
void semlock_contended_now(semlock_pool *pool, const semlock_lock *lock);
int semlock_may_wait_alone(const semlock_lock *lock, semlock_pool *pool);
int semlock_held_here(semlock_pool *pool, uint64_t ino);

/* The queue of those who wait: one for each family of systems. */
int semlock_place_update(semlock_place *place, semlock_waiting *waiting);
void semlock_place_overtake(semlock_place *place, int path_is_free);
void semlock_place_leave(semlock_place *place, semlock_waiting *waiting, semlock_lock *won);
void semlock_ticket_leave(semlock_lock *lock);
void semlock_waiting_unwatch(semlock_waiting *waiting, int64_t *mark);
void semlock_place_forget(semlock_place *place);

/* One for each system: what the kernel offers and what it calls it. */
int64_t semlock_wall_seconds(void);

#if !defined(_WIN32)
/* The names in a directory, one after another. */
typedef struct {
    int fd;
    int error;
    void *stream; /* where the system's library reads it */
    int32_t at;
    int32_t length;
    _Alignas(8) char buffer[2048];
} semlock_names;

void semlock_names_start(semlock_names *names, int fd);
const char *semlock_names_next(semlock_names *names);
void semlock_names_end(semlock_names *names);

/* Events: linux_events.c, kqueue_events.c.  A mark names one watched file. */
int64_t semlock_events_open(void);
void semlock_events_forget(int64_t events);
int64_t semlock_events_watch(int64_t events, const char *path, int64_t known);
void semlock_events_unwatch(int64_t events, int64_t mark);
void semlock_mark_over(int64_t mark);
int semlock_events_wait(int64_t events, int64_t process, int64_t until, const void *signals,
                        int64_t *marks, int32_t room, int32_t *count);
int64_t semlock_process_open(int64_t events, int64_t pid);
void semlock_process_close(int64_t events, int64_t process);
void semlock_process_forget(int64_t process);
int semlock_system_exists(const char *path);
int semlock_system_hears(const char *directory);

/* posix_events.c: the event sources that are kept between two waits. */
int semlock_is_scarce(int fd);
void semlock_events_silence(int64_t events, int64_t mark);
void semlock_events_keep(semlock_pool *pool, int64_t events, int64_t mark);
void semlock_events_tidy(semlock_pool *pool);
void semlock_events_forget_kept(semlock_pool *pool);

/* The system seam of the POSIX sources: linux_system.c, darwin_system.c, bsd_system.c. */
int semlock_system_unnamed(const char *directory, int32_t mode);
int semlock_system_link_unnamed(int fd, const char *path, semlock_pool *pool);
int semlock_system_link_kept(const semlock_lock *lock, semlock_pool *pool);
int semlock_link_by_private_name(const semlock_lock *lock);
int semlock_system_local(int fd);
int semlock_system_take_witness(int fd);
int semlock_system_witness(int fd);
int semlock_system_sync(int fd, int32_t durability, int overwritten);

/* posix_file.c: names, and the steps that several calls share. */
#define SEMLOCK_PATH_ROOM 4224
int semlock_join(char *room, const char *directory, int32_t length, const char *name);
int semlock_private_path(char *room, const char *directory, int32_t length,
                         const semlock_file *file);
int semlock_temporary_path(char *room, const char *directory, int32_t length,
                           semlock_pool *pool);
int semlock_is_link(int error);
int semlock_is_gone(int outcome);
int semlock_describe(int fd, semlock_view *view);
int semlock_guard(int fd);
void semlock_unguard(int fd);
int semlock_still_at(const char *path, const semlock_file *file);
int semlock_write_all(int fd, const char *bytes, int32_t length);
int semlock_read_all(int fd, char *bytes, int32_t capacity);
int semlock_unlink_exact(const char *path, const semlock_file *file);
int semlock_remove_aside(const char *path, int32_t directory_length, const semlock_file *file,
                         semlock_pool *pool);
#endif

#endif
