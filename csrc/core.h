/* What the parts of the core share.  semlock.h tells the protocol. */
#ifndef SEMLOCK_CORE_H
#define SEMLOCK_CORE_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "semlock_api.h"

#define SEMLOCK_UNFINISHED_MODE 01000 /* S_ISVTX: has no meaning on a regular file */
#define SEMLOCK_OWNER_MODE 0600       /* what the owner may do with a lock file at least */
#define SEMLOCK_MODE(record) ((record)->mode & 0777)
#define SEMLOCK_RESERVED_HANDLES 32 /* descriptors left to the program */
#define SEMLOCK_GUARD_TRIES 200     /* non-blocking attempts, each giving up the processor */
#define SEMLOCK_KEPT_PER_DIRECTORY 4
#define SEMLOCK_TICKET_ROOM 1024
#define SEMLOCK_VOUCHED_NS 100000000 /* how long a taken witness is not tested again */
#define SEMLOCK_SAME_NS 20000000    /* the largest difference of a file's time and the clock */
#define SEMLOCK_UMASK_NS 1000000000 /* how long the umask of a kept claim is trusted */
#define SEMLOCK_TAKEN 32 /* an outcome of the core alone: another ticket has that name */
#define SEMLOCK_NO_HASH 14695981039346656037u
#define SEMLOCK_STOPPED_NS 200000000 /* a free lock is left so long by a stopped waiter */

/* cffi needs plain numbers as array sizes; here they are tied to their names. */
#define SEMLOCK_ROOM_IN(type, array) (sizeof((type *)0)->array / sizeof((type *)0)->array[0])
#define SEMLOCK_TIED(name, holds) typedef char semlock_tied_##name[(holds) ? 1 : -1]
SEMLOCK_TIED(seen, SEMLOCK_ROOM_IN(semlock_pool, seen) == SEMLOCK_SEEN);
SEMLOCK_TIED(slots, SEMLOCK_ROOM_IN(semlock_pool, slots) == SEMLOCK_POOL_SLOTS);
SEMLOCK_TIED(bursts, SEMLOCK_ROOM_IN(semlock_pool, bursts) == SEMLOCK_BURSTS);
SEMLOCK_TIED(holding, SEMLOCK_ROOM_IN(semlock_pool, holding) == SEMLOCK_BURSTS);
SEMLOCK_TIED(events, SEMLOCK_ROOM_IN(semlock_pool, idle_events) == SEMLOCK_IDLE_EVENTS);
SEMLOCK_TIED(marks, SEMLOCK_ROOM_IN(semlock_pool, idle_marks) == SEMLOCK_IDLE_EVENTS);
SEMLOCK_TIED(names, SEMLOCK_ROOM_IN(semlock_pool, idle_names) == SEMLOCK_IDLE_EVENTS);
SEMLOCK_TIED(won, SEMLOCK_ROOM_IN(semlock_pool, won_events) == SEMLOCK_WON_EVENTS);

/* What the systems call differently: an open file, a character of a path, and the errors that
 * common/ gives or asks for.  Windows' headers are not read here, so its errors are numbers;
 * windows/system.h compares them with their names. */
#if defined(_WIN32)
typedef void *semlock_os_file;
typedef wchar_t semlock_os_char;
#define SEMLOCK_OPENED(file) ((void *)(intptr_t)(file)->handle)
#define SEMLOCK_SEPARATOR "\\"
#define SEMLOCK_NO_MEMORY (-8)
#define SEMLOCK_CONTENT_LOCKED (-33)
#define SEMLOCK_BAD_ARGUMENT (-87)
#define SEMLOCK_NO_SPACE (-112)
#define SEMLOCK_BUSY (-170)
#define SEMLOCK_TOO_LARGE (-223)
#else
typedef int semlock_os_file;
typedef char semlock_os_char;
#define SEMLOCK_OPENED(file) ((int)(file)->handle)
#define SEMLOCK_SEPARATOR "/"
#define SEMLOCK_NO_MEMORY (-ENOMEM)
#define SEMLOCK_CONTENT_LOCKED (-EAGAIN)
#define SEMLOCK_BAD_ARGUMENT (-EINVAL)
#define SEMLOCK_NO_SPACE (-ENOSPC)
#define SEMLOCK_BUSY (-EAGAIN)
#define SEMLOCK_TOO_LARGE (-EFBIG)
#endif
#define SEMLOCK_PATH_ROOM 4224 /* characters of the longest path, with the final zero */

/* Atomics on the plain integers of the structures: cffi does not know _Atomic.  A store only
 * publishes what was written before it.  A thread that writes, and must then read what other
 * threads write in response, uses semlock_add64 or a swap, which are full barriers. */
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
#define semlock_store64(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define semlock_add64(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define semlock_swap_if64(p, was, now) __sync_bool_compare_and_swap((p), (was), (now))
#define semlock_add32(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define semlock_store32(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define semlock_swap_if32(p, was, now) __sync_bool_compare_and_swap((p), (was), (now))
#define semlock_load32(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#endif

/* common/object.c: the states of a lock object, and what needs no system call. */
int semlock_object_bind(semlock_lock *lock, const semlock_pool *pool);
int semlock_object_borrow(semlock_lock *lock, const semlock_pool *pool, int64_t *owner);
void semlock_object_return(semlock_lock *lock, int64_t owner);
int semlock_object_seize(semlock_lock *lock, const semlock_pool *pool);
int semlock_object_begin(semlock_lock *lock, const semlock_pool *pool);
int semlock_object_won(semlock_lock *lock, const semlock_record *record);
int semlock_object_failed(semlock_lock *lock, int outcome);
int semlock_object_seen_held(semlock_lock *lock, int64_t now);
int semlock_object_end(semlock_lock *lock, const semlock_pool *pool, int64_t *owner);
void semlock_object_freed(semlock_lock *lock);
void semlock_file_reset(semlock_file *file);
void semlock_new_token(semlock_pool *pool, char token[33]);
uint64_t semlock_hash(uint64_t hash, const void *bytes, size_t length);

/* common/record.c */
int semlock_write_all(semlock_os_file file, const char *bytes, int32_t length);
int semlock_read_all(semlock_os_file file, char *bytes, int32_t capacity);
void semlock_put_time(const semlock_record *record, char *bytes, int64_t seconds);
void semlock_written(semlock_lock *lock, const char *bytes, int32_t length);
int semlock_fill(semlock_lock *lock, semlock_pool *pool, const semlock_record *record);
int semlock_has_record(semlock_os_file opened, const semlock_lock *lock);
int semlock_still_own(semlock_lock *lock, semlock_os_file opened, const semlock_view *seen);
int semlock_still_held(semlock_lock *lock, semlock_os_file opened, semlock_view *seen);

/* common/inspect.c */
semlock_file semlock_file_of(const semlock_view *seen);
int semlock_same_view(const semlock_view *a, const semlock_view *b);
int semlock_witness_at(const char *path);

/* common/change.c, common/dead.c */
typedef struct {
    int64_t pid;   /* as the record has it, 0 if it names none */
    int64_t start; /* only if it was judged */
} semlock_holder;
int semlock_remove_judged(const char *path, const semlock_os_char *place,
                          semlock_os_file opened, semlock_pool *pool,
                          const semlock_view *judged, const char *bytes, int32_t flags);
/* How long a wait lets a holder end that has closed its file: a dying process closes its files
 * some microseconds before its end. */
#define SEMLOCK_ENDING_NS 5000000
int semlock_judge_holder(const semlock_lock *lock, semlock_pool *pool, int64_t patience,
                         semlock_holder *holder, semlock_view *seen);

/* The steps of the protocol, which each platform implements for common/.  Unless something
 * else is said: 0, or a negative native error. */
int semlock_os_path(semlock_os_char *room, const char *path);
void semlock_os_close(semlock_os_file file);
int semlock_write_at(semlock_os_file file, const char *bytes, int32_t length, int32_t at);
int semlock_read_at(semlock_os_file file, char *bytes, int32_t length, int32_t at);
int semlock_append(semlock_os_file file, const char *bytes, int32_t length, int32_t end);
int semlock_shorten(semlock_os_file file, int32_t length);
int semlock_system_sync(semlock_os_file file, int32_t durability, int overwritten);
int semlock_is_gone(int error);
int semlock_is_short(int error);
/* What is open or at a path. */
int semlock_describe(semlock_os_file file, semlock_view *view);
int semlock_describe_path(const semlock_os_char *path, semlock_view *view);
int semlock_still_at(const semlock_os_char *path, const semlock_file *file);
int semlock_open_to_read(const semlock_os_char *path, semlock_os_file *file);
int semlock_open_to_write(const semlock_os_char *path, semlock_os_file *file);
int semlock_open_to_remove(const semlock_os_char *path, const semlock_file *exact,
                           semlock_os_file *file);
int semlock_reopen_to_remove(const semlock_os_char *path, const semlock_file *exact,
                             semlock_os_file *file);
int semlock_system_local(semlock_os_file file);
#define SEMLOCK_LOCAL 1
#define SEMLOCK_LAYERED 2   /* local, but kernel locks differ between mounts */
#define SEMLOCK_ORDERED 3   /* local, and may keep boot marks in order */
#define SEMLOCK_IN_MEMORY 4 /* local, and empty after a restart */
int semlock_system_mark_boot(const semlock_file *file, semlock_pool *pool);
uint64_t semlock_system_boot_mark(semlock_os_file file, const semlock_view *seen);
int semlock_system_witness(semlock_os_file file);
int semlock_hold_off(semlock_os_file file);
int semlock_guard(semlock_os_file file);
int semlock_guard_judged(const semlock_os_char *path, const semlock_file *exact,
                         semlock_os_file *file);
int semlock_is_kept_out(int guard);
void semlock_unguard(semlock_os_file file);
void semlock_close_guarded(semlock_os_file file);
int semlock_remove_opened(const char *path, const semlock_view *judged, semlock_os_file file,
                          int guard, semlock_pool *pool);
/* Creating, and what is done with a held lock. */
int semlock_is_at_path(const semlock_lock *lock);
int semlock_publish_kept(semlock_lock *lock, semlock_pool *pool);
int semlock_create_fresh(semlock_lock *lock, semlock_pool *pool, const semlock_record *record);
int semlock_prepare_file(semlock_lock *lock, semlock_pool *pool, const semlock_record *record);
int semlock_publish_prepared(semlock_lock *lock, semlock_pool *pool);
int semlock_file_is_open(semlock_file *file);
int semlock_path_has(const semlock_lock *lock, semlock_os_file opened, semlock_view *found);
int semlock_with_held(semlock_lock *lock, semlock_pool *pool,
                      int (*step)(semlock_lock *, semlock_os_file, const void *),
                      const void *argument);
int semlock_release_held(semlock_lock *lock, semlock_pool *pool);
void semlock_held_close(semlock_lock *lock, semlock_pool *pool);
void semlock_events_tidy(semlock_pool *pool);

/* posix/fork.c: detecting a fork.  Windows has no fork: stubs in windows/process.c. */
void semlock_enter(semlock_pool *pool);
void semlock_leave(semlock_pool *pool);
void semlock_waiting_bind(semlock_waiting *waiting, semlock_pool *pool);
int semlock_is_maker(const semlock_file *file);
int semlock_has_umask(semlock_file *file);

/* common/pool.c: kept claims. */
int semlock_pool_take(semlock_pool *pool, const semlock_lock *lock, int32_t mode,
                      semlock_file *file);
uint64_t semlock_pool_has(semlock_pool *pool, const semlock_lock *lock, int32_t mode);
int semlock_pool_wants(semlock_pool *pool, const semlock_lock *lock);
void semlock_pool_drain_entered(semlock_pool *pool, const char *directory, int32_t length);
int semlock_pool_put(semlock_pool *pool, const semlock_lock *lock, semlock_file *file);
int semlock_private_remove(const semlock_file *file, const char *directory, int32_t length);
void semlock_file_dispose(semlock_file *file, const char *directory, int32_t length);

/* common/names.c */
#define SEMLOCK_OWN ".semlock-" /* with this our own names begin */
char *semlock_put_hex(char *at, uint64_t number, int digits);
uint64_t semlock_name_hash(const char *path, int32_t length);
int32_t semlock_directory_length(const char *path, int32_t length);
int semlock_directory_of(semlock_os_char *room, const char *path);
int semlock_private_path(semlock_os_char *room, const char *directory, int32_t length,
                         const semlock_file *file);
int semlock_temporary_path(semlock_os_char *room, const char *directory, int32_t length,
                           semlock_pool *pool);

/* common/try.c, common/prepare.c */
int semlock_try_free(semlock_lock *lock, semlock_pool *pool);
#define SEMLOCK_OR_WAIT 2 /* in turn, by a caller that waits if it fails */
int semlock_try_entered(semlock_lock *lock, semlock_pool *pool, int seen_free, int way);
#define SEMLOCK_HOLDERS 16
typedef struct {
    int64_t now;
    int32_t count;
    int32_t judged;                /* how many holders of locks that were seen held before */
    int64_t pids[SEMLOCK_HOLDERS]; /* of holders that were asked for in this round */
    int32_t gone[SEMLOCK_HOLDERS];
} semlock_round;
int semlock_seen_held_in(semlock_round *round, semlock_lock *lock, semlock_pool *pool);
int semlock_look_in(semlock_round *round, semlock_lock *lock, int seen_free,
                    semlock_pool *pool);
void semlock_prepare(semlock_lock *lock, semlock_pool *pool);
void semlock_hand_prepared(semlock_lock *from, semlock_lock *to, semlock_pool *pool);
int semlock_is_prepared(const semlock_lock *lock);
void semlock_unprepare(semlock_lock *lock, semlock_pool *pool);

/* The kernel's lock on the file at a path: posix/kernel.c, windows/kernel.c. */
int semlock_kernel_take(semlock_lock *lock, semlock_pool *pool);
int semlock_kernel_release(semlock_lock *lock, semlock_pool *pool);
int semlock_kernel_check(semlock_lock *lock, semlock_pool *pool);
int semlock_kernel_is_free(const semlock_lock *lock);

void semlock_contended_now(semlock_pool *pool, const semlock_lock *lock);
int semlock_is_contended(const semlock_lock *lock, semlock_pool *pool);
int semlock_may_wait_alone(const semlock_lock *lock, semlock_pool *pool);
int semlock_held_here(semlock_pool *pool, uint64_t ino);

/* posix/place.c, windows/place.c: a place in a queue. */
int semlock_place_update(semlock_place *place, semlock_waiting *waiting, semlock_pool *pool);
void semlock_place_leave(semlock_place *place, semlock_waiting *waiting, semlock_lock *won);
void semlock_place_tell(semlock_place *place);
int64_t semlock_place_changed_at(const semlock_place *place);
int semlock_place_stands(const semlock_place *place, uint64_t number);
void semlock_ticket_leave(semlock_lock *lock);
void semlock_waiting_unwatch(semlock_waiting *waiting, int64_t *mark);
void semlock_place_forget(semlock_place *place);

/* common/queue.c: which queue, and the result of reading it: the tickets between two numbers,
 * the nearest ones in order. */
#define SEMLOCK_WHO ".who"   /* suffix of the file that shows people the ticket's owner */
#define SEMLOCK_LATE ".late" /* suffix of a ticket that was passed by */
#define SEMLOCK_ASKED_LATE 4 /* of so many of these the owners are checked */
#define SEMLOCK_NEAREST 32

typedef struct {
    const char *path; /* of the lock */
    int32_t directory_length;
    uint64_t name_hash;
} semlock_queue;

typedef struct {
    uint64_t above;
    uint64_t below;
    uint64_t own;
    int downwards; /* the highest come first */
    uint64_t nearest[SEMLOCK_NEAREST];
    int32_t kept;  /* how many of them are there */
    int32_t count; /* how many there are between the two numbers */
    int32_t there; /* the own one is in the queue */
    int32_t late;  /* how many are passed by */
    uint64_t late_ones[SEMLOCK_ASKED_LATE];
    int64_t at; /* mtime of the queue */
} semlock_survey;

semlock_queue semlock_queue_of(const semlock_lock *lock);
semlock_queue semlock_queue_of_place(const semlock_place *place);
int semlock_queue_path(semlock_os_char *room, const semlock_queue *queue);
int semlock_ticket_path(semlock_os_char *room, const semlock_queue *queue, uint64_t number,
                        const char *suffix);
void semlock_survey_note(semlock_survey *seen, const char *name);
int semlock_survey_read(const semlock_queue *queue, semlock_survey *seen);
int semlock_queue_clear_late(const semlock_queue *queue, const semlock_survey *seen);
uint64_t semlock_queue_head(const semlock_queue *queue, uint64_t above, uint64_t below);
uint64_t semlock_queue_pass(const semlock_queue *queue, uint64_t upto);
void semlock_place_pass_by(semlock_place *place, semlock_pool *pool);
int semlock_place_join(semlock_place *place);
int32_t semlock_place_text(const semlock_place *place, char text[SEMLOCK_TICKET_ROOM]);
/* Its steps, which each platform implements. */
int semlock_join(semlock_os_char *room, const char *directory, int32_t length,
                 const char *name);
int semlock_os_exists(const semlock_os_char *path);
int semlock_queue_make(const semlock_queue *queue);
void semlock_queue_remove(const semlock_queue *queue);
int semlock_queue_read(const semlock_queue *queue, semlock_survey *seen);
int semlock_ticket_make(const semlock_os_char *name, semlock_ticket *ticket);
void semlock_ticket_made(semlock_place *place);
int semlock_ticket_sort_out(const semlock_os_char *name);
int semlock_ticket_pass(const semlock_queue *queue, uint64_t number);

/* common/waiting.c */
#if defined(_WIN32)
#define SEMLOCK_ALONE_NS 0 /* waiters take a ticket at once */
#else
#define SEMLOCK_ALONE_NS 100000000 /* a wait up to this is not worth a ticket */
#endif
void semlock_waiting_prepare(semlock_waiting *waiting, semlock_pool *pool);
void semlock_waiting_hand_over(semlock_waiting *waiting, semlock_lock *lock,
                               semlock_pool *pool);
int semlock_waiting_take_inside(semlock_waiting *waiting, semlock_lock *lock,
                                semlock_pool *pool, int64_t until);
int semlock_waiting_is_next(const semlock_waiting *waiting);
void semlock_waiting_by_turns(semlock_waiting *waiting);
void semlock_waiting_look_at_all(semlock_waiting *waiting);
void semlock_waiting_bereft(semlock_waiting *waiting);
void semlock_waiting_is_first(semlock_waiting *waiting, uint64_t before);
/* Its steps, which each platform implements. */
int semlock_waiting_once(semlock_waiting *waiting, semlock_pool *pool, int64_t until);
int semlock_waiting_others_came(semlock_waiting *waiting, int32_t which, semlock_pool *pool);
int64_t semlock_process_open(int64_t events, int64_t pid);
void semlock_process_close(int64_t events, int64_t process);
int semlock_path_is_free(const char *path);
int semlock_process_exists(int64_t pid); /* 1 too if that is not known */
int semlock_probe_ending(int64_t pid, int64_t start, int64_t patience);

/* common/turns.c: when a process makes way for waiters. */
int semlock_makes_way(const semlock_lock *lock, semlock_pool *pool, int way);
uint64_t semlock_passed(semlock_pool *pool, uint64_t key);
void semlock_remember_passed(semlock_pool *pool, uint64_t key, uint64_t number);

/* posix/file.c, windows/process.c: the wall clock. */
int64_t semlock_wall_ns(void);

#endif
