/* The calls and types of the core, read by the C compiler and by cffi alike.
 *
 * What each call does on disk, and why, is told in semlock.h.  Every call
 * returns one of the outcomes below, or a negative native code (-errno, or
 * -GetLastError() on Windows).  No call sleeps, and none keeps state outside
 * the structures that its caller owns.
 */

/* Outcomes. */
#define SEMLOCK_OK 0      /* it is done */
#define SEMLOCK_HELD 1    /* a file exists at the path */
#define SEMLOCK_LOOK 2    /* the same, and it is time to judge its holder */
#define SEMLOCK_MINE 3    /* the calling thread holds this very object */
#define SEMLOCK_FREE 4    /* there is nothing at the path, or nothing is held */
#define SEMLOCK_LOST 5    /* another file, or none, is where ours was */
#define SEMLOCK_CHANGED 6 /* not the instance, or not the bytes, that were judged */
#define SEMLOCK_GUARDED 7 /* somebody else has the guard */
#define SEMLOCK_ALIVE 8   /* the holder's witness is taken */
#define SEMLOCK_NESTED 9  /* a nested acquisition began or ended; still held */
#define SEMLOCK_KEPT 10   /* done, and the directory has a kept claim now */
#define SEMLOCK_TURN 11   /* it may be free, but others wait for it and are first */
#define SEMLOCK_ARMED 12  /* nothing can be done until an event comes */
#define SEMLOCK_BLIND 13  /* the same, but no event can be relied on: look after a pause */
#define SEMLOCK_TIME 14   /* the time is over */

/* Which locks make way for those who wait. */
#define SEMLOCK_NO_TURNS 0   /* neither asks for the queue nor stands in it */
#define SEMLOCK_TAKE_TURNS 1 /* makes way once it has had the lock for SEMLOCK_BURST_NS */
#define SEMLOCK_FAIR 2       /* always makes way */

/* What stands at a path. */
#define SEMLOCK_REGULAR 0
#define SEMLOCK_SYMLINK 1
#define SEMLOCK_DIRECTORY 2
#define SEMLOCK_OTHER 3

/* What became of a process. */
#define SEMLOCK_RUNS 20     /* it exists and began when the record says */
#define SEMLOCK_EXISTS 21   /* the number exists; when it began can't be told */
#define SEMLOCK_GONE 22     /* no process has this number */
#define SEMLOCK_RECYCLED 23 /* another process has this number now */
#define SEMLOCK_ZOMBIE 24   /* it has ended and waits to be reaped */

/* How much must be on the disk before a lock is visible. */
#define SEMLOCK_SYNC_NONE 0
#define SEMLOCK_SYNC_DATA 1
#define SEMLOCK_SYNC_FULL 2

/* What semlock_remove() may overrule. */
#define SEMLOCK_DESPITE_WITNESS 1

#define SEMLOCK_RECORD_LIMIT 65536 /* bytes of the largest record */
#define SEMLOCK_POOL_SLOTS 16      /* kept claims in a process, at most */
#define SEMLOCK_REWRITE_LIMIT 4096 /* bytes of a record that can be rewritten: one page */
#define SEMLOCK_SEEN 32            /* directories of which a release is remembered */
#define SEMLOCK_BURSTS 256       /* paths of which it is remembered how long they are in use */
#define SEMLOCK_IDLE_EVENTS 4    /* event sources that are kept for the next wait */
#define SEMLOCK_BURST_NS 1000000 /* how long a process may take a lock again and again */
#define SEMLOCK_CONTENDED_NS 100000000 /* and how long it then thinks that others want it */
#define SEMLOCK_AGAIN_NS 50000 /* who asks so soon after its release asks again and again */
#define SEMLOCK_NEXT_CHECK_NS 100000000 /* how often a queue's second sees to its first */

/* A file that this process made: the inode that becomes an instance. */
typedef struct {
    int64_t handle; /* descriptor or HANDLE, -1 when closed */
    uint64_t dev;
    uint64_t ino;
    uint64_t ino_high;
    int32_t length; /* bytes in it */
    int32_t mode;
    int32_t local;   /* it is on a filesystem of the known local kinds */
    int32_t witness; /* the witness is taken */
    int32_t named;   /* it has its private name */
    int32_t whole;   /* it came to its path by a link, so it can do so again */
} semlock_file;

/* A place in a queue, as it stands on disk. */
typedef struct {
    int64_t handle; /* of the ticket's file, -1 when there is none */
    uint64_t dev;
    uint64_t ino;
    uint64_t number;    /* its name; numbers grow */
    uint64_t name_hash; /* whose queue it is */
} semlock_ticket;

/* What an acquisition shall write.  Offsets are -1 where the format has no such place. */
typedef struct {
    const char *text;
    int32_t length;
    int32_t stamp_at;   /* ten decimal digits: seconds since 1970, set when the lock is won */
    int32_t token_at;   /* 32 hexadecimal digits, new each time */
    int32_t witness_at; /* four letters: kept, left or none */
    int32_t mode;
    int32_t durability;
    int32_t in_place; /* create at the path and write there, as foreigners do */
    int32_t detached; /* the lock will outlive this process: take no witness */
} semlock_record;

/* One lock object.  It owns its file while it holds, and only then. */
typedef struct {
    const char *path;             /* absolute; must stay valid as long as the object */
    const semlock_record *record; /* what to write; may change while nobody tries */
    int32_t path_length;
    int32_t directory_length; /* without the separator, except for the root */
    uint64_t directory_hash;
    uint64_t name_hash; /* of the last part of the path */
    int32_t turns;      /* one of the three above */
    int64_t owner;      /* the thread that holds or tries, 0 when free */
    int64_t look_at;    /* monotonic nanoseconds before which nobody need judge */
    uint64_t serial;    /* how often the object has won */
    uint64_t endings;   /* how often it was let go, nested ends included */
    int64_t stamp;      /* seconds since 1970 of the last win or refresh */
    int32_t held;
    int32_t depth;
    int32_t reentrant;
    int32_t fleeting;    /* its file is never kept for another acquisition */
    int32_t expect_held; /* the last try failed: look before leaping */
    int32_t waited;      /* it was won by waiting: others may wait for it now */
    int32_t stamp_at;
    int32_t token_at;
    semlock_file file;
    semlock_ticket ticket; /* kept while it is held, if others stand behind it */
    char token[36];
} semlock_lock;

/* One kept claim, waiting to be used again. */
typedef struct {
    int32_t state; /* 0 empty, 1 full, 2 in somebody's hands */
    int32_t directory_length;
    uint64_t directory_hash;
    uint64_t used; /* for choosing the one that has waited longest */
    semlock_file file;
    char directory[512];
} semlock_slot;

/* How long a process has been taking one lock again and again, and when it last made way for
 * others or came too late. */
typedef struct {
    int64_t began;
    int64_t released;
    int64_t contended;
} semlock_burst;

/* What the locks of a process share: kept claims, token source, what the kernel can do. */
typedef struct {
    uint64_t seed[2];
    uint64_t count;
    int64_t busy;          /* calls under way, in which descriptors come and go */
    int64_t forking;       /* the thread that forks, 0 for none: no other begins a call */
    int32_t no_link_by_fd; /* linkat(AT_EMPTY_PATH) was refused once */
    int32_t keep;          /* how many claims may be kept, 0 for none */
    uint64_t seen_count;
    uint64_t seen[32];
    semlock_slot slots[16];
    semlock_burst bursts[256];
    int32_t holding[256];   /* how many locks with such an inode number are held here */
    int64_t idle_events[4]; /* event sources without a user, and one more than their handle */
    int64_t idle_marks[4];  /* what they still watch, and one more than the mark */
} semlock_pool;

/* One path of which a waiter wants to hear. */
typedef struct {
    const char *path; /* absolute; must stay valid as long as the wait */
    int64_t mark;     /* what the event source calls the file that it watches, -1 none */
    int32_t due;      /* it must be looked at: nothing is known yet, or something happened */
    int32_t told;     /* an event made it due, or doubts about one */
    int32_t heard;    /* an event was told of it since it was looked at */
    int32_t unsure;   /* what was told may not show yet, or was told too early */
    uint64_t dev;     /* the instance that was seen last */
    uint64_t ino;
    uint64_t judged_dev; /* the instance that the caller has judged, and lets be */
    uint64_t judged_ino;
    int64_t judged_ctime_ns;
} semlock_watch;

/* A place in the queue of a lock. */
typedef struct {
    const char *path; /* the lock's, absolute; must stay valid as long as the wait */
    int32_t directory_length;
    uint64_t name_hash;
    const semlock_record *record; /* what the ticket says of its owner */
    semlock_ticket ticket;
    uint64_t before; /* the ticket that is watched, 0 when this one is first */
    uint64_t first;  /* the lowest number in the queue */
    int32_t ahead;   /* how many are before this one */
    int32_t behind;  /* somebody stood behind this one when the queue was looked at last */
    int32_t due;
    int32_t told;
    int32_t unsure;
    int32_t refused;     /* there can be no queue here */
    int64_t alone_until; /* no ticket is taken before, because nobody else seems to wait */
    int64_t mark;
    int64_t free_since; /* when the lock was first seen free although `free_first` was first */
    uint64_t free_first;
} semlock_place;

/* One wait: for any of some paths, in the order of one queue or of none. */
typedef struct {
    semlock_place *place; /* NULL: whoever comes first */
    semlock_watch *watches;
    int32_t count;
    int32_t which;    /* the watch that the last outcome is about */
    int32_t queued;   /* the watch that the place is for, -1 when it is for all */
    int64_t events;   /* the event source, -1 none */
    int32_t lent;     /* it belongs to somebody else, who reads it */
    int32_t blind;    /* no event can come, or not all of them */
    int32_t looked;   /* it was made sure that the caller doesn't wait for itself */
    int32_t started;  /* it has something to give back at its end */
    int32_t began;    /* it was decided whether to take a ticket at once */
    int32_t unread;   /* the event source may have news that are of no use */
    int32_t followed; /* the watch whose holder that process is */
    int64_t process;  /* a handle of the holder's process, -1 none */
    int64_t recheck;  /* nanoseconds to the next look after an event that changed nothing */
    int64_t recheck_at;
} semlock_waiting;

/* What a look at a path found. */
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
    int32_t witness;    /* 1 taken, 0 free, -1 nobody can tell here */
    int32_t local;      /* this reader sees a filesystem of the known local kinds */
    int32_t unfinished; /* an in-place creator has not finished it */
    int32_t length;     /* bytes read */
} semlock_view;

/* Who a process is, beyond its number. */
typedef struct {
    int64_t pid;
    int64_t start; /* in the system's own unit, 0 when it can't be told */
    uint64_t pidns;
    uint64_t timens;
    char boot[64];
} semlock_process;

void semlock_set_path(semlock_lock *lock, const char *path, int32_t length);
int semlock_try(semlock_lock *lock, semlock_pool *pool);
void semlock_try_many(semlock_lock **locks, char *outcomes, int32_t *errors, int32_t count,
                      int anyway, semlock_pool *pool);
int semlock_try_anyway(semlock_lock *lock, semlock_pool *pool);
int semlock_release(semlock_lock *lock, semlock_pool *pool);
int semlock_refresh(semlock_lock *lock, semlock_pool *pool, const char *text, int32_t length);
int semlock_check(semlock_lock *lock, semlock_pool *pool);
void semlock_detach(semlock_lock *lock);
void semlock_forget(semlock_lock *lock);
int semlock_queue_exists(const semlock_lock *lock);
int semlock_must_make_way(const semlock_lock *lock, semlock_pool *pool);
void semlock_burst_began(semlock_pool *pool, const semlock_lock *lock);
void semlock_burst_released(semlock_pool *pool, const semlock_lock *lock);
void semlock_pool_forget(semlock_pool *pool);
void semlock_before_fork(semlock_pool *pool);
void semlock_after_fork(semlock_pool *pool);
void semlock_pool_drain(semlock_pool *pool, const char *directory, int32_t length);
int semlock_inspect(const char *path, semlock_pool *pool, semlock_view *view, char *bytes,
                    int32_t capacity);
int semlock_remove(const char *path, semlock_pool *pool, const semlock_view *judged,
                   const char *bytes, int32_t flags);
int semlock_rewrite(const char *path, semlock_pool *pool, const semlock_view *judged,
                    const char *bytes, const char *text, int32_t length);
int semlock_waiting_start(semlock_waiting *waiting, semlock_pool *pool);
int semlock_waiting_arm(semlock_waiting *waiting, semlock_pool *pool);
int semlock_waiting_sleep(semlock_waiting *waiting, semlock_pool *pool, int64_t until);
int semlock_waiting_wait(semlock_waiting *waiting, semlock_pool *pool, int64_t until);
int semlock_waiting_take(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool,
                         int64_t until);
int semlock_waiting_told(semlock_waiting *waiting, const int64_t *marks, int32_t count);
int semlock_waiting_follow(semlock_waiting *waiting, int64_t pid, int64_t start);
void semlock_waiting_leave(semlock_waiting *waiting, semlock_pool *pool);
int semlock_waiting_in_turn(const semlock_waiting *waiting, int fair);
void semlock_waiting_due(semlock_waiting *waiting);
void semlock_waiting_end(semlock_waiting *waiting, semlock_pool *pool, semlock_lock *won);
void semlock_waiting_forget(semlock_waiting *waiting);
int semlock_ticket_clean(const char *path, semlock_pool *pool);
int64_t semlock_events_take(semlock_pool *pool);
void semlock_events_give(semlock_pool *pool, int64_t events);
int semlock_events_read(int64_t events, int64_t *marks, int32_t room);
int semlock_identify(semlock_process *process);
int semlock_start_time(int64_t pid, int64_t *start);
int semlock_probe(int64_t pid, int64_t start);
int64_t semlock_thread(void);
int64_t semlock_now_ns(void);
void semlock_yield(void);
