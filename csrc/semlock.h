/* semlock: the protocol.  What the parts of the core share is declared in core.h.
 *
 * First for Linux; what other systems do instead follows in each section.  "BSDs"
 * are FreeBSD, NetBSD and OpenBSD.  Calls, outcomes and states: semlock_api.h.
 *
 * THE CONTRACT
 *
 *   A lock is held exactly while a regular file exists at its path P.  A foreign
 *   program needs to know no more than this: it acquires by creating P with
 *   O_CREAT|O_EXCL (CREATE_NEW on Windows) and releases by deleting P.  All that
 *   follows is what semlock processes ("cooperators") do in addition.  It asks
 *   nothing of foreign programs, and does not change what P means.
 *
 *   Words used below:
 *
 *     instance    the inode that one acquisition puts at P (a file id on Windows)
 *     record      the bytes in it
 *     token       128 random bits in the record, the name of the instance
 *     holder      the process that acquired the lock
 *     waiter      a process that sleeps until it can acquire
 *     guard       a kernel lock, held while P is changed
 *     witness     a kernel lock, held while the lock is held
 *     kept claim  the file of a released lock, kept for the next acquisition
 *     ticket      a waiter's file in a queue
 *
 * GUARANTEES
 *
 *   1. Exclusion.     At most one live cooperator believes that it holds P.
 *   2. No wedge.      What a killed cooperator leaves can be removed as soon as
 *                     its death is proven.
 *   3. No robbery.    A holder that lives, or of which nothing is known, keeps
 *                     its lock, unless the caller's policy says otherwise.
 *   4. Whole records. No reader sees half a record of a cooperator.
 *   5. Exactness.     A remover removes the instance that was judged, and never
 *                     one that replaced it.
 *   6. Loss shows.    If a holder's instance is no longer at P, or another program
 *                     wrote its record into it, the next refresh, check or release
 *                     says so.
 *   7. Interrupts.    An exception between two Python bytecodes leaks nothing: each
 *                     call stores its outcome in the semlock_lock that the Python
 *                     object owned before the call began.
 *
 * THE TWO KERNEL LOCKS ON AN INSTANCE
 *
 *   The guard is held for microseconds around every change to P that is not a
 *   creation: release, refresh, reclaim.  The witness is a lock on one byte far
 *   behind the end of the file.  The holder takes it before P is visible and keeps
 *   it.  The kernel drops it when the holder dies, in any way.  Every process that
 *   can read the file can test it, from any container, without a PID.
 *
 *               guard                        witness
 *     Linux     flock(LOCK_EX)               OFD write lock, byte 2^61
 *     macOS     flock(LOCK_EX)               none: flock and fcntl locks exclude
 *     BSDs      flock(LOCK_EX)               each other there
 *     Windows   LockFileEx, byte 2^62 + 1    LockFileEx, byte 2^62
 *
 *   For the guard a descriptor open for reading is enough, except on NFS, where it must be
 *   open for writing.  On Linux the witness is tested with a read lock, which conflicts with
 *   write locks only: read locks of other readers do not count.  Windows cannot test a lock
 *   without taking it, so a test takes it shared for a moment.
 *
 *   On local Linux filesystems the two locks are independent; on NFS they exclude
 *   each other.  So the witness is taken only on filesystems of known local kinds
 *   (semlock_system_local).  The record says so:
 *
 *     witness=kept   taken; free later means that the holder died or closed the file
 *     witness=left   local filesystem, but no witness, or on overlayfs, where it is
 *                    not visible through every mount
 *     witness=none   the filesystem is not known to be local
 *     witness=over   released, but the instance still had another name (see
 *                    REMOVING)
 *
 *   A lock left to another process has no witness.  If a lock is held while a child
 *   program runs, and the record names that program, then on Linux the program
 *   inherits the descriptor: the kernel drops the witness when both have ended.
 *
 *   Where flock does not work, P is changed by renaming it to a random name,
 *   comparing, and linking it back if it was the wrong instance.  On Windows the
 *   change is made by handle without a guard.
 *
 * CREATING
 *
 *   whole, fresh  open(O_TMPFILE); witness; write all; boot mark or sync; linkat to P.
 *                 A kill leaves nothing, or a whole instance.
 *                 macOS, BSDs, and filesystems without O_TMPFILE: a file under a random name,
 *                 then link to P.  A kill can leave that name; semlock.clean removes it.
 *                 Windows: a file under a random name, then rename to P without
 *                 replacing.  Not on file servers, where that is not atomic.
 *   whole, kept   Write the record, with a new token and time, into a kept claim; boot mark
 *                 or sync; link it to P (Windows: rename it to P).  See THE KEPT CLAIM.
 *                 The same with the file that a waiter has prepared: see WAITING.
 *   in place      open(P, O_CREAT|O_EXCL) with the sticky bit set (Windows: hidden
 *                 and system); guard; witness; is P still this file?; write; sync;
 *                 clear the bit; release the guard.  For filesystems without hard
 *                 links, and file servers of Windows.  The bit means "unfinished":
 *                 such a file is not held, so it may be removed at any age.  Its
 *                 creator sees that in the check under the guard, and begins
 *                 again.  A sticky bit set by chmod(1) differs: the ctime is then
 *                 later than the mtime.
 *
 *   EEXIST means held.  A failed try of a waiter is one access(2) (Windows:
 *   GetFileAttributesW).  A successful linkat proves the win.  Over a network the answer may
 *   be lost, so after an error, except a local EEXIST, P is checked.  A link count proves
 *   nothing: a copy of the tree by hard links raises it too.  When a kept claim is
 *   linked by its private name, P is checked after success too: another may have it.
 *
 * THE BOOT MARK
 *
 *   After a power cut a name can be on the disk without the bytes of its file.  So before the
 *   link the inode gets an extended attribute, once: a number of the boot, and a hash of it,
 *   the inode number and its generation, so that a copy is not valid.  Where metadata comes to
 *   the disk in order (linux/boot_mark.c) no name comes without it; elsewhere, and where the
 *   caller wants more (`durability`), the file is synced.  A file that is empty or has zeros
 *   only, and a mark of another boot, has a holder of that boot.
 *
 * REMOVING (release, reclaim, clean, force: there is one way)
 *
 *   guard; is P still this inode?; is it unchanged (unfinished mark, ctime, bytes)?; is the
 *   witness still free?; is P still this inode?; unlink; release the guard; close.
 *
 *   The order matters.  A remover that compared the bytes first and the path
 *   afterwards could read the old record of a kept claim, see the file come back to P
 *   with a new one, and remove that.  With the path checked first, under the guard,
 *   the bytes cannot change: to take the file from P and rewrite it needs the guard.
 *
 *   A holder identifies its instance by the inode that it has open.  But another program may
 *   have taken the lock over by writing its own record into the file.  So the holder also
 *   looks for its token and compares the bytes that identify the owner (`head`), or all bytes
 *   where the format has no token.  It does so always for a `strict` lock, as those of the
 *   other lock systems are, and on filesystems that are not known to be local; else only if
 *   the check of P showed another length or mtime.  A lock lost in this way stays at P.
 *
 *   P also proves a release: rename() between two names of one inode does nothing
 *   and returns 0, so P is checked after it.  If the instance has more names than its
 *   own two, its tree was copied by hard links.  Then its inode is not used again, and
 *   "over" in the record's witness field says that the copy is not a held lock.
 *
 *   Removing never acquires.  A remover creates P afterwards like other processes.
 *
 *   Windows: the path is opened with the right to delete, and deleted by that
 *   handle.  This hits the opened file only, also if a foreign program replaces P
 *   meanwhile.  The remover holds the witness byte shared until the handle is
 *   closed.  Where the system or filesystem has no POSIX deletion, the file is
 *   renamed to a random name first, so that P is free at once.
 *
 * REFRESHING
 *
 *   Was the text made for this acquisition (its serial number)?; guard; is P still my inode,
 *   with my record?; pwrite the text, of the same length; release the guard.
 *
 * THE KEPT CLAIM
 *
 *   A process that acquires locks in one directory again and again keeps the finished file of
 *   a released lock, with its descriptor and its witness, under a private name in that
 *   directory: ".semlock-", the inode number, ".kept".  Acquiring is then pwrite and linkat,
 *   releasing is guard, check and unlink: no inode is created or freed.
 *
 *   The first release in a directory keeps nothing, so a program that locks once leaves no
 *   file even when it is killed.  At most SEMLOCK_POOL_SLOTS are kept, none after a normal
 *   exit.  After a kill the name is an orphan.  A process that reclaims the lock finds it by
 *   the inode number.  Orphans without a lock are found by a sweep (semlock.clean, or a
 *   process that begins to keep a claim in that directory): their witness is free, or without
 *   a witness, the process in the record has ended.
 *
 *   Windows: the file is renamed between P and its private name, so it has one name
 *   at any time, and a killed holder leaves no orphan.
 *
 * THE PROCESS
 *
 *   A fork copies memory and descriptors.  So the pool, each object, each record and
 *   each wait store the LIFE in which they were made: 1, and one more after each
 *   fork.  A page that the kernel wipes in a child tells every call, without a system
 *   call, whether this is a new process, after a bare clone(2) too.
 *
 *     Linux     MADV_WIPEONFORK          macOS     none: the PID is compared
 *     BSDs      minherit                 Windows   has no fork: always life 1
 *
 *   State of another life is reset: an object is free; a release, check or refresh
 *   returns SEMLOCK_FORKED and touches neither descriptor nor file; a wait begins
 *   again; a record, which names the parent, must be composed again.
 *
 *   fork(3) also runs handlers (pthread_atfork).  Before the fork they wait until no call is
 *   running, for 10 seconds at most, and no call begins until the fork is done.  In the child
 *   they close the copies of all our descriptors, so that no witness outlives its holder in a
 *   child that does not know of it.  The child of a bare clone closes them at its first call.
 *
 * OUR DESCRIPTORS
 *
 *   A daemon closes all descriptors, and a program opens its own files under any number.  So
 *   a stored number is verified before it is used to write, link, lock or close:
 *
 *     a file           has a random file position far behind its end, which lseek(2) reads; a
 *                      kernel lock's, or else: fstat, the table's turn, Linux' signature
 *     event source,    has neither, and carries a signature: F_SETSIG on Linux, which FIFOs
 *     process handle   have too, a filter of ours in a kqueue
 *
 *   A number that is no longer ours is dropped from the table, never closed.  None below 3 is
 *   kept or used.  Windows handles are used without this check.
 *
 *   A lock whose descriptor was lost, or given up because descriptors are scarce, is held all
 *   the same.  Release, check and refresh then open P, which must be our instance by device,
 *   inode and token (without a token, by all bytes).  Check and refresh keep that descriptor,
 *   with the witness.  A kept claim without is dropped.  A release must work without any new
 *   descriptor; posix/spare.c has the steps.  Where all fail, the lock is still held.
 *
 *   A kept claim belongs to the effective user and group that made it.  If the process has
 *   become another user, the claim is removed where that is permitted, and else stays for its
 *   maker.  (A process of Linux that cannot become another user is asked once.)  A claim
 *   belongs to its umask too, which Linux' /proc tells and is read once in a second at most;
 *   elsewhere a claim lasts for that second.  On Windows neither matters.
 *
 * PROOF OF DEATH
 *
 *   Where boot and PID namespace of the record are the reader's own, a holder is
 *   dead when two things are true: the witness is free, if the record claims it, and
 *   the process has ended.  A free witness of a running process means that its
 *   program closed the descriptor, or executed another program: held until the
 *   process ends.  Between the two a dying process needs microseconds of the processor, so
 *   a waiter's judgement sleeps for the end, for 5 ms at most; then a handle reports it.
 *
 *   What identifies a boot, a space of PIDs, and a process:
 *
 *              boot                       PIDs             process
 *     Linux    boot_id                    PID namespace    /proc/PID/stat
 *     macOS    kern.bootsessionuuid       one              proc_pidinfo, sysctl
 *     FreeBSD  kern.boot_id               jail             sysctl
 *     NetBSD   start time of process 1    one              sysctl
 *     OpenBSD  boot time (not constant)   one              sysctl
 *     Windows  machine GUID, boot number  computer name    OpenProcess, wait
 *
 *   On Linux the core decides the plain case itself, in the call that tries or waits (see
 *   common/dead.c; on Windows seldom): a record exactly as semlock writes it, of this boot and
 *   namespace, whose witness was kept and is free, and whose process has ended.  It removes
 *   that file by fewer steps, and tries again.  (For locks with the default policy, if
 *   no listener reports removals.)  The caller judges all others by the same rule.
 *
 *   In another PID namespace of the same boot PIDs mean nothing.  There a free
 *   witness proves death if the record says "kept"; macOS and the BSDs have no
 *   witness, so there is no proof.  Another boot proves death only if the filesystem
 *   is local to both sides, and the ctime, or the mtime and the time in the record,
 *   are older than this boot: containers may have boot numbers of their own, and
 *   btrfs, when it repairs itself, sets the ctime.  On overlayfs a file has separate
 *   kernel locks through another mount, so the record says "left", and a free witness
 *   proves nothing.  OpenBSD's boot time, moved with the clock, proves no other boot.
 *
 *   On Linux the start time of a process is by the machine's clock, not by that of its time
 *   namespace, which may be gone when it is read.  What cannot be compared counts as alive.
 *   The path is checked last: one that releases and then ends did not die as a holder.
 *
 * WAITING
 *
 *   A waiter sleeps until an event at P, then tries: an event is only a reason to look.
 *
 *              is watched             reports removal         reports a dead holder
 *     Linux    the file (inotify)     unlink, rename          close of the descriptor
 *                                                             that it had for writing
 *     macOS    the file (kqueue)      unlink, rename          end of its process
 *     BSDs     the file (kqueue)      unlink, rename          end of its process, or
 *                                                             NOTE_CLOSE_WRITE
 *     Windows  the directory          any name created or     end of its process
 *                                     removed in it
 *
 *   The close of a descriptor is reported for any container.  The end of a process is watched
 *   only after a judgement.
 *
 *   No event is missed.  On Linux the kernel reports an unlink before the name is gone.  So
 *   the file at P is watched; then a check waits for a removal in progress; then P is watched
 *   again.  If both watches are of the same file, any later removal begins after it was
 *   watched, and is reported.  If not, this is repeated.  The close of a dead holder's
 *   descriptor is reported just before its witness is dropped.  So a waiter that got an event
 *   and sees no change looks again after 50 microseconds, and with doubled intervals for some
 *   milliseconds.  kqueue reports a removal when the name is gone, and Windows watches before
 *   it looks, so there one check after watching is enough.
 *
 *   On POSIX a waiter looks every 1 to 2 seconds without an event: at P, and at the
 *   witness of its holder.  Behind n others in a queue it does so after 1 + n times as long,
 *   at most 20 times.  A holder whose witness is taken is judged by policies of callers only.
 *   Others are judged at each change of the file and at each of these looks; if their process
 *   is known, its end is watched too, and on FUSE the first looks four times less often.
 *
 *   Without events (a network filesystem, FUSE, an unreadable file, no inotify
 *   instance or descriptor left) a waiter looks after pauses: half a millisecond at first,
 *   then doubled up to 50 milliseconds.  In a queue only the first does so.  Each look every 1
 *   to 2 seconds asks for an event source.  On Windows, and if `unpaced`, the caller pauses.
 *
 *   A prepared claim: on local filesystems of Linux the waiter that is next to try makes
 *   its file, all but the link, before it sleeps (at most SEMLOCK_PREPARED in a process),
 *   or checks user and umask of a kept claim.  The event that ends the sleep is read only
 *   if its try fails: the link waits for the removal in progress (a reader looks at P).  So
 *   that this is no second sleep, the waiter has P's name open (O_PATH) until its release: the
 *   kernel may let others run while it disposes of a name that is not open, with the directory
 *   locked.  A wait for any of several locks makes one file, for the one that was reported.
 *
 *   Closing an event source takes the kernel up to 20 milliseconds.  So a process keeps some,
 *   and a winner whose source is one too many leaves it to the next release in its process.
 *
 *   With a time in the past a call that waits does all that is due, without a sleep.
 *
 *   On Windows no signal can end the sleep, so a wait returns to Python every 0.1 seconds
 *   (0.01 for a kernel lock), and then looks.  An event loop's wait gets no events there.
 *
 * THE QUEUE
 *
 *   The waiters for P queue up in a directory beside it: ".semlock-", a hash of
 *   P's last part, ".queue".  Each has a ticket there: a file whose name is the
 *   time at which it asked for the lock, in nanoseconds of the monotonic clock.  A waiter
 *   creates its ticket, reads the directory, and follows the nearest living ticket before
 *   its own until that ends; then it reads the directory again.  With none before it, it
 *   tries and then watches P.  So waiters are woken one at a time, in order.
 *   On Linux a first waiter that leaves writes a byte into its FIFO: the next one is first
 *   and need not read the directory, unless the lock is fair: a waiter may have asked earlier
 *   and joined late.  None is written if tickets were passed by, nor after 16 in a row.
 *
 *               ticket          its owner lives while     the next waiter is woken by
 *     Linux     FIFO            the FIFO has a writer     POLLHUP
 *     macOS,    regular file    its flock is taken        kqueue, and the clock
 *     BSDs
 *     Windows   file that is    the file exists           a change of the directory,
 *               deleted on                                then a check of the ticket
 *               close                                     before, and of P every 0.1 s
 *
 *   A FIFO works on FUSE too.  There is no queue on network filesystems, where other machines
 *   may wait, and outside Linux wherever the system does not report changes.
 *
 *   A ticket whose owner is dead is removed by any process that finds it (on Windows
 *   by the system), the directory by the last waiter.  After 0.12 seconds a file with
 *   the suffix ".who" beside the ticket shows people who waits; on Windows the ticket.
 *
 *   A lock acquired by waiting keeps its ticket until it is released.  Its owner marks it:
 *   with an exclusive flock on the FIFO, or a shared flock where waiters have an exclusive
 *   one.  The waiters behind sleep on that ticket, and the release wakes the next one by
 *   ending it.  On Windows a winner keeps none; the directory's change wakes the waiters.
 *   The queue gives an order and nothing else: foreign programs may always try.
 *
 *   A waiter that does not use its turn delays the others by 0.3 seconds at most.  The
 *   waiters behind it get events of P too, but do nothing for 0.12 seconds.  Then they look
 *   once.  If P exists, they go on sleeping.  If P is free, they look again when it has been
 *   free for 0.18 seconds, plus 8 milliseconds for each doubling of their position in the
 *   queue: so the nearest to the head is first, and only a few try at once.  If P is still
 *   free, and the queue has not moved meanwhile, they try out of turn.  It has moved if its
 *   directory has changed and the ticket that was first is gone; only a few of the waiters
 *   read the directory to find the first.
 *
 *   A slow machine makes the first waiter late too.  So a waiter that is late itself, or
 *   whose look takes long, waits longer: by eight times its lateness (counted up to 5
 *   milliseconds), and its steps grow by the lateness.  So behind 64 it is 0.3 seconds.
 *
 *   Without events those behind check P every 0.2 seconds, with the first at the same moments,
 *   and after 0.6 whether its holder lives.  One behind more than 8 or before 64 that has
 *   waited for 3 seconds, or behind more than 128, uses one of 15 moments, by its position: of
 *   15 in a row one looks at each.  If all others are stopped, it needs up to 3.3 seconds.
 *   FUSE reports changes here: threads check each second, the first every 0.1, later 0.2.
 *
 *   The winner out of turn passes by the tickets before its own.  The ticket of a dead owner
 *   is removed; any other is renamed with the suffix ".late", under which it delays no
 *   waiter.  It stays the same file, so its followers go on sleeping.  When its owner runs
 *   again and looks, it sees by the ticket's ctime, or by its absence from the queue, that it
 *   was passed by.  It then restores the name, and has its old place.  So a waiter that was
 *   only slow loses the turns of that time and no more, and no new ticket is created.
 *   Tickets that cannot be renamed, another user's in a sticky directory, are remembered by
 *   the process and ignored for 5 seconds.
 *   Windows: the times are 0.1 seconds between two looks, and 0.15 to 0.22 seconds
 *   that P must be free; a ticket that is passed by is removed, and its owner
 *   creates it again with the old number.
 *
 *   A fair lock checks the queue before each try.  If a living ticket is in it, the try makes
 *   way.  If P is free then, the first ticket and the time are recorded.  A later try, after
 *   0.2 seconds or more, that finds P free and the same ticket first, acquires.  A caller
 *   that asks once and may sleep tries again for that time.
 *
 *   Any other lock checks the queue only after its process has reacquired it for
 *   SEMLOCK_BURST_NS: one burst is the most by which it delays waiters beyond their turn.
 *   (A call that waits joins any queue then, and learns there whether it has a waiter.)
 *   Where there is none, a waiter for such a lock takes no ticket at first.  It takes one
 *   when the lock changed hands without it, when its process made way or came too late in
 *   the last SEMLOCK_CONTENDED_NS, without events, and after 0.1 seconds (on Windows at once).
 *
 * KERNEL LOCKS
 *
 *   Another kind (posix/kernel.c, windows/kernel.c): the file at P stays, and the lock is the
 *   kernel's on it, as flock(1) takes it; on Windows on its first byte.  A missing file is
 *   made, and nothing written.  Nothing is judged: the kernel ends the lock with its holder.
 *   It is held while P leads to that file; on the caller's descriptor, until its release.  An
 *   unlock without a close causes no event, so the first waiter asks by the clock too.
 *
 * LIMITS
 *
 *   Foreign programs don't take the guard.  If one removes P and creates it again between a
 *   cooperator's check and its unlink, two adjacent system calls, that new file is lost.
 *   This side cannot prevent it.  (On Windows it can: the deletion is by handle.)
 *
 *   A process with read access to P can hold the guard for long, as flock(1) does.
 *   Callers wait a bounded time, and then treat P as held.
 *
 * ERRORS
 *
 *   A native error is read before any cleanup.  EINTR goes to the caller, so that Python
 *   runs its signal handlers.  An error of close(2) changes nothing.
 */
#include "semlock_api.h"
