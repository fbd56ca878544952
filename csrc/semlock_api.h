/* The calls and types of the core, read by the C compiler and by cffi alike.
 *
 * What each call does on disk, and why, is described in semlock.h.
 *
 * A CALLING SEQUENCE
 *
 *   All structures begin as zeros.
 *   pool.seed, keep                         random bytes; how many claims may be kept
 *   pool.boot, pidns, boot_id               of semlock_identify, in each life; boot_id last:
 *                                           with it the core judges (SEMLOCK_BY_PROOF)
 *   semlock_set_path(&lock, path, length);  the path's memory must stay valid
 *   lock.record = &record;                  what the lock file shall contain
 *   semlock_try(&lock, &pool)               SEMLOCK_OK: it is held
 *     on SEMLOCK_LOOK:
 *     semlock_inspect(path, &pool, &view, bytes, capacity)
 *     the caller judges the holder; if it is dead:
 *     semlock_confirm, then semlock_remove, then semlock_try again
 *   semlock_check, semlock_refresh          while it is held
 *   semlock_release(&lock, &pool)
 *   semlock_pool_drain(&pool, NULL, 0)      before the process ends
 *
 *   To wait instead of polling: fill in a semlock_waiting with one semlock_watch for each
 *   path, and a semlock_place to wait in order.  Then semlock_waiting_start;
 *   semlock_waiting_take until it returns SEMLOCK_OK (it tries itself, and has ended the wait
 *   then), or semlock_waiting_wait and a try by the caller; and semlock_waiting_end in every
 *   case.  After SEMLOCK_LOOK the caller judges; after SEMLOCK_BLIND or _RACED it pauses.
 *
 *   An event loop sets `lent` and `events`, calls semlock_waiting_wait with a time in the
 *   past, polls `events` and the place's `bell` until `look_at`, and calls
 *   semlock_waiting_told with what it has read.  (On Windows it calls by the clock: `events`
 *   and `bell` are -1.)
 *
 * WHAT EACH CALL RETURNS
 *
 *   One of the outcomes below, or a negative native code (-errno, or -GetLastError() on
 *   Windows).  After an error or GUARDED nothing has changed: what was held is held.  (After
 *   an error of semlock_rewrite the file has the old record, perhaps with blanks behind it, or
 *   the new one, not synced.)  -EINTR: call again.
 *
 *   semlock_try            OK, HELD, LOOK, MINE, NESTED, TURN, FORKED
 *   semlock_try_or_wait    the same, by a caller that waits if it fails: TURN if there is a
 *                          queue, even if it has no waiter any more
 *   semlock_try_anyway     the same without TURN
 *   semlock_try_many       of each lock the same, or -1 with its error beside it; with
 *                          SEMLOCK_ONLY_LOOK: FREE, HELD, LOOK
 *   semlock_kernel_locked  1 or 0: would a try of a writer find the file locked?
 *   semlock_release        OK, KEPT, NESTED, FREE, LOST, OTHER_THREAD, GUARDED,
 *                          FORKED
 *   semlock_check          OK, FREE, LOST, FORKED
 *   semlock_refresh        OK, FREE, LOST, CHANGED, GUARDED, FORKED
 *   semlock_detach         OK, FORKED
 *   semlock_holds          OK, FREE, FORKED
 *   semlock_inspect        OK, FREE, CHANGED
 *   semlock_read_file      the number of bytes
 *   semlock_confirm        OK (also if it is not known), FREE, CHANGED; no error
 *   semlock_remove         OK, LOST, CHANGED, ALIVE, GUARDED
 *   semlock_rewrite        OK, LOST, CHANGED, ALIVE, GUARDED
 *   semlock_waiting_start  OK, BLIND
 *   semlock_waiting_arm    ARMED, BLIND, FREE, LOOK
 *   semlock_waiting_sleep  OK, LOOK, TIME
 *   semlock_waiting_wait   FREE, LOOK, BLIND, TIME
 *   semlock_waiting_take   OK, LOOK, BLIND, TIME, RACED, or of the try: FORKED, NESTED, and
 *                          for a wait for one lock MINE
 *   semlock_waiting_again  the same
 *   semlock_waiting_follow OK, LOOK
 *   semlock_ticket_clean   OK, ALIVE, FREE
 *   semlock_must_make_way, _to_any
 *                          OK: no; HELD, TURN: waiters come first, and each lock
 *                          is held, or one is free
 *   semlock_probe          one of SEMLOCK_RUNS to SEMLOCK_ZOMBIE
 *   semlock_ticket_state   one of SEMLOCK_TICKET_DEAD to SEMLOCK_TICKET_NONE
 *   semlock_queue_exists, semlock_waiting_in_turn
 *                          1 or 0
 *   semlock_waiting_told   how many of the marks belong to the wait
 *   semlock_events_take    an event source; -1: none is available
 *   semlock_events_read    how many marks were read
 *   semlock_folder_watch   the mark of the directory; an error where none is watched
 *   semlock_folder_changes how many changes were read
 *   semlock_spawn          0: the command runs, and is the holder; an error: it doesn't run
 *   semlock_identify, semlock_start_time
 *                          0
 *   semlock_boot_number, semlock_boot_time, semlock_life, semlock_busy,
 *   semlock_thread, semlock_now_ns
 *                          a number, and no error
 *
 * Only semlock_waiting_sleep, _wait and _take block; a call that begins while another thread
 * forks waits for that.  A call keeps no state outside of the structures that its caller owns,
 * except the state of the process: see posix/fork.c, posix/descriptors.c and posix/lent.c.
 */

/* Outcomes. */
#define SEMLOCK_OK 0      /* done */
#define SEMLOCK_HELD 1    /* another process, object or thread holds the lock */
#define SEMLOCK_LOOK 2    /* the same, and the caller should judge its holder */
#define SEMLOCK_MINE 3    /* the calling thread holds this object */
#define SEMLOCK_FREE 4    /* nothing is at the path, or nothing is held */
#define SEMLOCK_LOST 5    /* the file is no longer at the path, or has another record */
#define SEMLOCK_CHANGED 6 /* not the instance, or not the bytes, that were judged */
#define SEMLOCK_GUARDED 7 /* another process has the guard */
#define SEMLOCK_ALIVE 8   /* the holder's witness is taken */
#define SEMLOCK_NESTED 9  /* a nested acquisition began or ended; still held */
#define SEMLOCK_KEPT 10   /* done, and the directory has a kept claim now */
#define SEMLOCK_TURN 11   /* it may be free, but waiters are first */
#define SEMLOCK_ARMED 12  /* sleep until an event comes */
#define SEMLOCK_BLIND 13  /* the same without reliable events: look again after a pause */
#define SEMLOCK_TIME 14   /* the given time is over */
#define SEMLOCK_FORKED 15 /* the object or record is the parent's */
#define SEMLOCK_OTHER_THREAD 16 /* another thread holds this reentrant object */
#define SEMLOCK_RACED 17        /* others were faster so often that the caller should pause */

/* How many locks are tried at once. */
#define SEMLOCK_IN_TURN 0   /* waiters come first */
#define SEMLOCK_ANYWAY 1    /* except for fair locks they don't */
#define SEMLOCK_ONLY_LOOK 2 /* none is acquired: FREE, HELD or LOOK */

/* Which locks make way for waiters (`turns` of a lock). */
#define SEMLOCK_NO_TURNS 0   /* neither checks the queue nor joins it */
#define SEMLOCK_TAKE_TURNS 1 /* makes way after a burst of SEMLOCK_BURST_NS */
#define SEMLOCK_FAIR 2       /* always makes way */

/* What excludes others from a path (`kernel` of a lock and of a watch). */
#define SEMLOCK_BY_FILE 0   /* that a file exists there */
#define SEMLOCK_EXCLUSIVE 1 /* the kernel's lock on the file there, which stays */
#define SEMLOCK_SHARED 2    /* the same, shared with other readers */

/* How much of a holder's life and death the core judges itself (`vouched` of a lock). */
#define SEMLOCK_BY_CALLER 0  /* nothing: the policy is the caller's own */
#define SEMLOCK_BY_WITNESS 1 /* life: a taken witness is proof enough */
#define SEMLOCK_BY_PROOF 2   /* death too, of a text record (common/dead.c) */

/* What is at a path. */
#define SEMLOCK_REGULAR 0
#define SEMLOCK_SYMLINK 1
#define SEMLOCK_DIRECTORY 2
#define SEMLOCK_OTHER 3

/* The state of a process. */
#define SEMLOCK_RUNS 20     /* it exists and has the start time of the record */
#define SEMLOCK_EXISTS 21   /* the PID exists; its start time is not known */
#define SEMLOCK_GONE 22     /* no process has this PID */
#define SEMLOCK_RECYCLED 23 /* another process has this PID now */
#define SEMLOCK_ZOMBIE 24   /* it has ended and was not reaped yet */

/* Was the witness of a file taken at its creation? */
#define SEMLOCK_UNWITNESSED 0
#define SEMLOCK_WITNESSED 1 /* yes, and the record says so */
#define SEMLOCK_MUTE 2      /* yes, but not visible through every mount: no proof of death */

/* What is synced before a lock becomes visible. */
#define SEMLOCK_SYNC_NONE 0
#define SEMLOCK_SYNC_DATA 1
#define SEMLOCK_SYNC_FULL 2
#define SEMLOCK_SYNC_SAFE 3 /* a boot mark instead, where that is enough; else full */

/* A flag of a record's mode: the file gets these permissions whatever the umask is. */
#define SEMLOCK_EXACT 65536

/* A flag of semlock_remove(): remove although the witness is taken. */
#define SEMLOCK_DESPITE_WITNESS 1

#define SEMLOCK_RECORD_LIMIT 65536 /* bytes of the largest record */
#define SEMLOCK_REWRITE_LIMIT 4096 /* the same for a record that is rewritten: one page */
#define SEMLOCK_POOL_SLOTS 16      /* the most kept claims of a process */
#define SEMLOCK_PREPARED 4         /* the most files that its waits prepare */
#define SEMLOCK_SEEN 32            /* directories in which a release is remembered */
#define SEMLOCK_BURSTS 256         /* paths whose bursts are remembered */
#define SEMLOCK_IDLE_EVENTS 4      /* event sources kept for the next wait */
#define SEMLOCK_WON_EVENTS 4       /* and of winners, until a release */
#define SEMLOCK_BURST_NS 1000000   /* how long a process may reacquire without making way */
#define SEMLOCK_CONTENDED_NS 100000000 /* how long it then counts as contended */
#define SEMLOCK_AGAIN_NS 50000         /* a try so soon after a release is a reacquire */

/* The state of a ticket's owner.
 *
 *   NONE --> WAITS          its owner creates it: a FIFO with a writer (Linux), a file with a
 *                           flock (macOS, BSDs), a file deleted on close (Windows)
 *   WAITS --> WAITS, late   a waiter behind it wins out of turn and renames it; its owner
 *                           restores the name.  Windows: WAITS --> NONE --> WAITS
 *   WAITS --> HOLDS         its owner wins, and marks it by a flock (not on Windows)
 *   WAITS, HOLDS --> NONE   its owner leaves the queue, or releases the lock
 *   WAITS, HOLDS --> DEAD   its owner ends: the FIFO has no writer, the flock is dropped
 *   DEAD --> NONE           a process that finds it removes it; on Windows the system does
 */
#define SEMLOCK_TICKET_DEAD 0
#define SEMLOCK_TICKET_WAITS 1
#define SEMLOCK_TICKET_HOLDS 2 /* it holds the lock; the ticket ends at the release */
#define SEMLOCK_TICKET_NONE 3  /* there is no such ticket */

/* A file that this process created: the inode that becomes an instance.  Either a lock object
 * or a slot of the pool owns it.
 *
 *   handle  named  bare   state
 *   -1      any    0      none; or at P, and its descriptor was lost: P is opened when needed
 *   h       0      0      prepared, and without a name; or at P
 *   h       1      0      a kept claim: in a slot; or at P, which is its second name (Windows,
 *                         where a file has one name: 1 that one, 2 P)
 *   -1      0      1      at P; its descriptor was given up, being scarce
 */
typedef struct {
    int64_t handle; /* descriptor or HANDLE, -1 when closed */
    uint64_t dev;
    uint64_t ino;
    uint64_t ino_high;
    int32_t length;     /* bytes in it */
    int32_t mode;       /* the requested mode */
    int32_t given;      /* the actual mode, after the umask */
    int32_t local;      /* its filesystem is of a known local kind */
    int32_t witness;    /* one of the three values above */
    int32_t named;      /* it has a private name */
    int32_t whole;      /* it came to its path by a link or rename, not in place */
    int32_t witness_at; /* position of the witness in the record, -1 none */
    int32_t bare;       /* its descriptor was closed, being scarce */
    int32_t strange;    /* another user than its maker could not remove it */
    int32_t marked;     /* its inode has the mark of this boot, or needs none */
    int32_t signature;  /* the open file has one, beside the turn */
    int64_t user;       /* the effective user at its creation */
    int64_t group;      /* and the effective group */
    int64_t asked;      /* when the umask was checked last, monotonic */
    int64_t place;      /* its file position tells that it is ours; 0: that is not set */
    int64_t turn;       /* then its turn in the table of descriptors does, 0 none */
} semlock_file;

/* A ticket: a place in a queue, on disk. */
typedef struct {
    int64_t handle; /* of the ticket's file, -1 none */
    uint64_t dev;
    uint64_t ino;
    uint64_t number;    /* its name: when its owner asked for the lock, monotonic */
    uint64_t name_hash; /* whose queue it is */
    int64_t ctime_ns;   /* if it changes, the ticket may have been passed by */
    int32_t told;       /* the .who file, for people, was written */
    int32_t relay;      /* at its end it says that its owner was the first: see place.c */
} semlock_ticket;

/* What an acquisition writes.  Offsets are -1 where the format has no such field. */
typedef struct {
    const char *text;
    int32_t length;
    int32_t stamp_at;   /* ten decimal digits: seconds since 1970, set when acquired */
    int32_t token_at;   /* 32 hexadecimal digits, new each time */
    int32_t witness_at; /* four letters: kept, left or none */
    /* the number of bytes at the beginning that identify the owner: only another owner's
     * record changes them */
    int32_t head;
    int32_t mode; /* less the umask, unless SEMLOCK_EXACT is in it */
    int32_t durability;
    int32_t in_place; /* create at the path and write there, as foreign programs do */
    int32_t detached; /* the lock outlives this process: take no witness */
    int64_t life;     /* of the process that it names; 0: valid after a fork too */
} semlock_record;

/* One lock object.  The states of `owner` are drawn in common/object.c.
 *
 *   owner     prepared  ready   file
 *   0         0         0       none
 *   0         1         0       made by a wait, without a name: the next try links it
 *   0         0         n       none; a wait saw a kept claim with inode n, which the next try
 *                               takes from the pool if no other thread has
 *   a thread  0         0       the instance at P
 */
typedef struct {
    const char *path;             /* absolute; must stay valid as long as the object */
    const semlock_record *record; /* what to write; may change between tries */
    int32_t path_length;
    int32_t directory_length; /* without the separator, except for the root */
    uint64_t directory_hash;
    uint64_t name_hash; /* of the last part of the path */
    int32_t turns;      /* one of the three above */
    int32_t kernel;     /* one of the three above */
    int64_t lent;    /* plus one: the caller's descriptor to lock, which stays open; 0 none */
    int64_t life;    /* of the process to which all below belongs */
    int64_t owner;   /* the thread that holds, or a state */
    int64_t look_at; /* monotonic; the holder need not be judged before */
    int64_t holder;  /* the PID in the record that was judged last; 0 unknown */
    int32_t witnessed; /* its witness was taken then */
    int32_t checks;    /* how often it was seen held among many */
    uint64_t seen_in;  /* a hash: its name was in its directory in this state; 0 not known */
    uint64_t serial;   /* how often it was acquired */
    uint64_t endings;  /* how often it was released, nested ones included */
    int64_t stamp;     /* seconds since 1970 of the last acquire or refresh */
    int32_t held;
    int32_t depth;
    int32_t reentrant;
    int32_t by_object;   /* the object holds, whichever thread uses it */
    int32_t fleeting;    /* its file is never kept for another acquisition */
    int32_t expect_held; /* the last try failed: check the path first */
    int32_t waited;      /* acquired by waiting: others may wait too */
    int32_t vouched;     /* one of the three above */
    int32_t stamp_at;
    int32_t token_at;
    int32_t head;     /* how many bytes identify the owner */
    uint64_t content; /* a hash of them; of all bytes without a token */
    int64_t written;  /* wall clock ns of the last acquire or refresh */
    int32_t strict;   /* always compare its record, also with an unchanged mtime */
    int32_t prepared; /* `file` is finished and has no name: a waiter's next try links it */
    uint64_t ready;   /* inode of a kept claim that a waiter's next try may link; 0 none */
    semlock_file file;
    semlock_ticket ticket; /* kept while it is held, if it was acquired in a queue */
    char token[36];
} semlock_lock;

/* One kept claim.
 *
 *   state  meaning                                     file and directory
 *   0      empty                                       not valid
 *   1      full                                        valid
 *   2      one thread fills, takes or disposes of it   belong to that thread
 *
 *     0 --> 2 --> 1    put
 *     1 --> 2 --> 0    take, or dispose of it
 *     1 --> 2 --> 1    it does not fit, it stays for its maker, or put replaces it
 *
 * A thread enters state 2 by compare-and-swap.  `directory_hash` and `used` may be read
 * in any state, as a hint.
 */
typedef struct {
    int32_t state;
    int32_t directory_length;
    uint64_t directory_hash;
    uint64_t used; /* to choose the one unused for longest */
    semlock_file file;
    char directory[512];
} semlock_slot;

/* What a process remembers of one lock, to make way for waiters (common/turns.c).  The table
 * is a hash: paths that collide share an entry, and `key` says to which the second half
 * belongs.
 *
 * A burst: does a try make way?  (SEMLOCK_TAKE_TURNS; a fair lock always checks.)
 *   released > SEMLOCK_BURST_NS ago          a new burst begins: no
 *   began <= SEMLOCK_BURST_NS ago            the burst goes on: no
 *   began longer ago                         the burst is over: yes, if the queue has a
 *                                            waiter; else a new burst begins
 *   contended <= SEMLOCK_CONTENDED_NS ago    a waiter takes a ticket at once
 *
 * A free lock that the first waiter does not use:
 *   free_since 0                             not seen
 *   free_since t, free_first n               free since t, with ticket n first: makes way
 *   the same for SEMLOCK_STOPPED_NS          n is passed by, and the lock is tried
 *   passed n, passed_at t                    tickets up to n could not be passed by on disk:
 *                                            ignored for 5 seconds after t
 */
typedef struct {
    int64_t began;
    int64_t released;
    int64_t contended;
    uint64_t key;        /* the path to which the following belongs */
    int64_t free_since;  /* when the lock was first seen free */
    uint64_t free_first; /* the first ticket at that time */
    uint64_t passed;     /* tickets up to this number are ignored */
    int64_t passed_at;   /* when that was set */
} semlock_burst;

/* What the locks of a process share: kept claims, the source of tokens, event sources. */
typedef struct {
    int64_t life; /* of the process to which all below belongs, 0 before the first call */
    uint64_t seed[2];
    uint64_t count;
    uint64_t boot;         /* the number of this boot, 0 not known */
    char boot_id[64];      /* and its name, empty if it is not known in this life */
    uint64_t pidns;        /* the PID namespace */
    int32_t watched;       /* a listener is told of each removal: the caller judges */
    uint64_t ordered;      /* the filesystem last found to keep boot marks, 0 none */
    int64_t reserve;       /* a descriptor in reserve for a release, plus one; 0 none */
    int32_t bare;          /* held locks whose descriptors were closed */
    int32_t no_link_by_fd; /* links until linkat(AT_EMPTY_PATH) is tried again */
    int32_t keep;          /* how many claims may be kept, 0 none */
    int32_t prepared;      /* files that waits have prepared */
    uint64_t seen_count;
    uint64_t seen[32];
    semlock_slot slots[16];
    semlock_burst bursts[256];
    int32_t holding[256];   /* locks held here, by hash of the inode number */
    int64_t idle_events[4]; /* idle event sources: handle plus one, 0 none */
    int64_t idle_marks[4];  /* what they still watch: mark plus one, 0 nothing */
    int64_t idle_names[4];  /* descriptors to be closed with these marks, plus one; 0 none */
    int64_t won_events[4];  /* closed at the next release: handle plus one, 0 none */
    int64_t safety;         /* how often a waiter looks without events, 0: the default */
} semlock_pool;

/* One path of a wait.
 *
 *   due told heard unsure   state
 *    1   0    0     any     not looked at since the start, or due by the clock
 *    1   1    any   any     an event was reported, or is checked again: look, and test the
 *                           witness again
 *    1   0    1     any     an event was reported while other waiters are first: looked at by
 *                           the place's alarm_at
 *    0   0    0     0       seen held and watched: nothing to do until an event
 *    0   0    0     1       seen held, but the event or the watch may have been early:
 *                           becomes due and told again at the wait's recheck_at
 *    0   0    1     any     seen held, a new instance, with `hints`: watched at the next look
 *    1   any  any   any     with again_at != 0: free, but other waiters are first; not
 *                           looked at before that time
 *
 *   mark -1                 not watched
 *   judged_ino != 0         this instance was judged, by the caller or the core, and stays: it
 *                           is skipped until its ctime changes, an event is reported, or
 *                           safety_at
 *
 * Windows uses `due`, `mark`, `again_at` and the judged fields; `dev` and `ino` are there the
 * last instance whose witness was taken.
 */
typedef struct {
    const char *path; /* absolute; must stay valid as long as the wait */
    int64_t mark;     /* identifies the watched file in the event source, -1 none */
    int32_t due;      /* it must be looked at */
    int32_t told;     /* an event, or a recheck of one, made it due */
    int32_t heard;    /* an event was reported since the last look */
    int32_t unsure;   /* the effect of an event may not be visible yet */
    int64_t again_at; /* free, but others are first: not looked at before */
    uint64_t dev;     /* the instance that was seen last */
    uint64_t ino;
    int64_t vouched_until; /* while others are first, it is not judged before */
    uint64_t judged_dev;   /* the instance that was judged, and is skipped */
    uint64_t judged_ino;
    int64_t judged_ctime_ns;
    int32_t kernel;   /* as the lock's: the kernel is asked whether the file is locked */
    int64_t lent;     /* as the lock's */
    int32_t vouched;  /* as the lock's */
    semlock_file ask; /* open to ask it; a closed descriptor would wake other waiters; or the
                       * file's name, kept by the next to try: semlock_waiting_hold_names() */
} semlock_watch;

/* A place in the queue of a lock.
 *
 *   ticket.handle  before  other fields       state
 *   -1             0       refused 1          no queue is possible here: waits without
 *   -1             0       alone_until t      waits without a ticket until t
 *   -1             0       alone_until 0      joins at the next look; with ticket.number n
 *                                             under this number, its old place
 *   h              0                          first of the queue: watches the lock
 *   h              n                          behind ticket n, which it follows:
 *                          bell or mark set     the end of n is reported
 *                          both -1              it is not: looks by the clock
 *                          alarm_at 0           sleeps
 *                          alarm_at t           checks at t that waiters before it use the
 *                                               lock
 *                          free_since s         they do not since s: tries out of turn at
 *                                               alarm_at
 *                          out_of_turn 1        may try now; if it wins, they are passed by
 *
 * `due`, `told` and `unsure` are as in semlock_watch, for the ticket that is followed.  A bell
 * is a FIFO on Linux, a mark is a watched file (kqueue) or directory (Windows).
 */
typedef struct {
    const char *path; /* the lock's, absolute; must stay valid as long as the wait */
    int32_t directory_length;
    uint64_t directory_hash;
    uint64_t name_hash;
    const semlock_record *record; /* the content of the .who file */
    semlock_ticket ticket;
    int64_t asked;      /* when the lock was asked for, 0: when joining */
    int64_t joined_at;  /* when the ticket was made */
    uint64_t before;    /* the ticket that is followed, 0: this one is first */
    int32_t ahead;      /* how many were before this one when the queue was last read */
    int32_t behind;     /* and behind it, */
    int64_t counted;    /* when those were counted, 0 never */
    int64_t counted_at; /* mtime of the queue then */
    int32_t due;
    int32_t told;
    int32_t unsure;
    int32_t doubt;       /* this ticket may have been passed by */
    int32_t relayed;     /* the ticket before said at its end that no other is before it */
    int32_t refused;     /* no queue is possible here */
    int32_t out_of_turn; /* tickets before it do not use a free lock: try */
    int64_t read_at;     /* mtime of the queue when it was read; on Windows, when that was */
    int64_t alone_until; /* no ticket is taken before: no other waiter is known */
    int64_t bell;        /* a descriptor with POLLHUP at the end of `before`, -1 none */
    int64_t mark;        /* identifies `before` in the event source, -1 none */
    int64_t told_at;     /* when the event came that set the alarm, 0 none */
    int64_t alarm_at;    /* when to check that the lock is used, 0: after an event */
    int64_t free_since;  /* since when the lock is free and not used, 0: it is not */
    uint64_t free_first; /* the first ticket then, 0 unknown */
    int64_t slow;        /* how late the last looks were */
    int64_t free_at;     /* mtime of the queue then */
} semlock_place;

/* One wait: for any of some paths, in the order of one queue or of none.
 *
 *   place                              order
 *     NULL                             none: the fastest wins
 *     queued -1                        the queue is for all watches
 *     queued i                         the queue is for watch i; the others have none
 *
 *   events  lent deaf blind            how changes are reported
 *    h       0    0    0               own event source: sleeps in it
 *    h       1    0    0               an event loop's source: the loop reads it, and calls
 *                                      semlock_waiting_told
 *    any     any  any  1               some path is not watched: looks after pauses, which
 *                                      double, unless `unpaced`: then the caller pauses
 *    -1      0    0    1               no source available: asked for again at safety_at
 *    -1      0    1    1               the filesystem reports nothing; never asked for
 *    h       0    1    1               it reports changes of this kernel (`hints`): as blind,
 *                                      but those behind the first look less often
 *
 *   time (monotonic)                   what happens then
 *     recheck != 0: recheck_at         looks again at what is `unsure`; the interval doubles
 *     pause_at != 0                    looks again at all paths, because blind or `kernel`
 *     safety_at                        looks at all paths in any case, and judges again
 *     postponed: a watch's again_at    looks at that path
 *     look_at                          the first of all times, of the place too: when an
 *                                      event loop must call again
 *
 *   started 0                          nothing to give back; semlock_waiting_end does nothing
 *
 * On Windows the directory of a path is watched and `events` is -1; `blind` is set for a loop.
 * Waiting returns to Python each 0.1 seconds (0.01 with `kernel`), looks at all then, and does
 * not use the times above.
 */
typedef struct {
    semlock_place *place; /* NULL: no order */
    semlock_watch *watches;
    int32_t count;
    int32_t which;        /* the watch of the last outcome */
    int32_t queued;       /* the watch of the place, -1: all */
    int64_t events;       /* the event source, -1 none */
    int32_t lent;         /* the event source belongs to an event loop */
    int32_t deaf;         /* this filesystem does not report all changes */
    int32_t hints;        /* but those of this kernel: they come sooner than the next look */
    int32_t unqueued;     /* no queue is possible on it */
    int32_t blind;        /* not all paths are watched */
    int32_t unpaced;      /* the caller pauses when blind */
    int32_t postponed;    /* some watches have an again_at */
    int32_t kernel;       /* some watches ask the kernel, and not each release is an event */
    int32_t looked;       /* it was checked that the caller does not wait for itself */
    int32_t started;      /* it has something to give back at its end */
    int32_t stopped;      /* another thread has ended it: it sleeps no more */
    int32_t poked;        /* so many threads are about to end its sleep */
    int64_t life;         /* of the process in which it was started */
    int32_t began;        /* it was decided whether to join the queue at once */
    int32_t unread;       /* the event source may have stale events */
    semlock_lock *lock;   /* its file is prepared before the sleep; NULL: none */
    semlock_lock **locks; /* those of the watches, to be tried; NULL: the caller's */
    int32_t fair;         /* the queue is asked before a try; or by the lock's turns */
    int32_t tried;        /* tried at an event that is not read yet */
    const void *signals;  /* unblocked during the sleep only; NULL: all the time */
    int32_t followed;     /* the watch whose holder `process` is */
    int64_t process;      /* a handle of the holder's process, -1 none */
    int64_t recheck;      /* interval to the next look after an event without effect */
    int64_t recheck_at;
    int64_t pause; /* length of the last pause, ns */
    int64_t pause_at;
    int64_t safety_at; /* when to look without events */
    int64_t look_at;   /* when to call again without events */
} semlock_waiting;

/* The result of inspecting a path. */
typedef struct {
    int32_t kind;
    int32_t mode;
    uint64_t dev;
    uint64_t ino;
    uint64_t ino_high;
    int64_t size;
    int64_t ctime_ns;
    int64_t mtime_ns;
    int64_t uid;
    int32_t links;
    int32_t witness;    /* 1 taken, 0 free, -1 not known here */
    int32_t local;      /* its filesystem is of a known local kind */
    int32_t unfinished; /* an in-place creator has not finished it */
    int32_t length;     /* bytes read */
    uint64_t boot_mark; /* the boot that made it, read only if it has no record; 0 none */
} semlock_view;

/* The identity of a process, beyond its PID. */
typedef struct {
    int64_t pid;
    int64_t start; /* in the system's own unit, 0 if not known */
    uint64_t pidns;
    uint64_t timens;
    char boot[64];
} semlock_process;

/* A change in a watched directory. */
#define SEMLOCK_NAME_GONE 1   /* removed, or moved away */
#define SEMLOCK_NAME_MADE 2   /* created, or moved to there */
#define SEMLOCK_FILE_CLOSED 3 /* a file that was open for writing: perhaps its holder died */
#define SEMLOCK_WATCH_OVER 4  /* the directory was removed, moved or unmounted */
#define SEMLOCK_READ_AGAIN 5  /* the last one of those that were read: there may be more */

typedef struct {
    int64_t mark;   /* which directory; -1: changes of any were lost */
    uint64_t ino;   /* which file, if it has no name; else 0 */
    int32_t what;   /* one of the above */
    int32_t name;   /* where its name begins in `names` */
    int32_t length; /* of the name */
} semlock_change;

/* What is read at once: each name takes 16 bytes or more. */
typedef struct {
    semlock_change changes[513];
    char names[8192];
} semlock_news;

/* What semlock_spawn runs.  Both lists end with NULL; of signals the lowest bit is number 1.
 */
typedef struct {
    char **places;     /* where the command's file may be, in the order of trying */
    char **words;      /* "/bin/sh", and then the command's name and its arguments */
    int32_t number;    /* the lock gets this descriptor, or the next that is free, */
    int32_t otherwise; /* or of these, where there are no such numbers */
    uint64_t blocked;
    uint64_t ignored;
    uint64_t defaults;
} semlock_command;

void semlock_set_path(semlock_lock *lock, const char *path, int32_t length);
int semlock_try(semlock_lock *lock, semlock_pool *pool);
void semlock_try_many(semlock_lock **locks, char *outcomes, int32_t *errors, int32_t count,
                      int how, semlock_pool *pool);
int semlock_try_or_wait(semlock_lock *lock, semlock_pool *pool);
int semlock_try_anyway(semlock_lock *lock, semlock_pool *pool);
int semlock_kernel_locked(const semlock_lock *lock, semlock_pool *pool);
int semlock_release(semlock_lock *lock, semlock_pool *pool);
int semlock_refresh(semlock_lock *lock, semlock_pool *pool, const char *text, int32_t length,
                    uint64_t serial);
int semlock_check(semlock_lock *lock, semlock_pool *pool);
int semlock_detach(semlock_lock *lock, semlock_pool *pool);
int semlock_holds(semlock_lock *lock, semlock_pool *pool);
void semlock_forget(semlock_lock *lock, semlock_pool *pool);
int semlock_queue_exists(const semlock_lock *lock);
int semlock_must_make_way(const semlock_lock *lock, semlock_pool *pool);
int semlock_must_make_way_to_any(const semlock_lock *queue, semlock_lock *const *locks,
                                 int32_t count, semlock_pool *pool);
void semlock_burst_began(semlock_pool *pool, const semlock_lock *lock);
void semlock_burst_released(semlock_pool *pool, const semlock_lock *lock);
int64_t semlock_life(semlock_pool *pool);
int64_t semlock_busy(void);
void semlock_pool_drain(semlock_pool *pool, const char *directory, int32_t length);
int semlock_inspect(const char *path, semlock_pool *pool, semlock_view *view, char *bytes,
                    int32_t capacity);
int semlock_read_file(const char *path, semlock_pool *pool, char *bytes, int32_t capacity);
int semlock_confirm(const char *path, semlock_pool *pool, const semlock_view *judged);
int semlock_remove(const char *path, semlock_pool *pool, const semlock_view *judged,
                   const char *bytes, int32_t flags);
int semlock_rewrite(const char *path, semlock_pool *pool, const semlock_view *judged,
                    const char *bytes, const char *text, int32_t length);
int semlock_waiting_start(semlock_waiting *waiting, semlock_pool *pool);
int semlock_waiting_arm(semlock_waiting *waiting, semlock_pool *pool);
int semlock_waiting_sleep(semlock_waiting *waiting, semlock_pool *pool, int64_t until);
int semlock_waiting_wait(semlock_waiting *waiting, semlock_pool *pool, int64_t until);
int semlock_waiting_again(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool,
                          int64_t until);
int semlock_waiting_take(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool,
                         int64_t until);
int semlock_waiting_told(semlock_waiting *waiting, const int64_t *marks, int32_t count);
int semlock_waiting_follow(semlock_waiting *waiting, int64_t pid, int64_t start);
void semlock_waiting_leave(semlock_waiting *waiting, semlock_pool *pool);
int semlock_waiting_in_turn(semlock_waiting *waiting, int fair, semlock_pool *pool);
void semlock_waiting_due(semlock_waiting *waiting);
void semlock_waiting_stop(semlock_waiting *waiting);
void semlock_waiting_end(semlock_waiting *waiting, semlock_pool *pool, semlock_lock *won);
void semlock_waiting_forget(semlock_waiting *waiting);
void semlock_waiting_later(semlock_waiting *waiting, int32_t which, int64_t nanoseconds);
int semlock_ticket_clean(const char *path, semlock_pool *pool);
int semlock_ticket_state(const char *path);
int64_t semlock_events_take(semlock_pool *pool);
void semlock_events_give(semlock_pool *pool, int64_t events);
int semlock_events_read(int64_t events, int64_t *marks, int32_t room);
void semlock_folders_begin(int64_t *events, semlock_pool *pool);
void semlock_folders_end(int64_t *events, semlock_pool *pool);
int64_t semlock_folder_watch(int64_t events, const char *directory);
void semlock_folder_unwatch(int64_t events, int64_t mark);
int semlock_folder_changes(int64_t events, int64_t life, semlock_pool *pool,
                           semlock_news *news);
int semlock_spawn(const semlock_command *command, semlock_lock *lock, int64_t *pid);
int semlock_identify(semlock_process *process);
uint64_t semlock_boot_number(const char *boot);
int semlock_start_time(int64_t pid, int64_t *start);
int semlock_probe(int64_t pid, int64_t start);
int64_t semlock_boot_time(void);
int64_t semlock_thread(void);
int64_t semlock_now_ns(void);
void semlock_yield(void);
