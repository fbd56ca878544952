/* What the parts of the core share.  semlock.h tells the protocol. */
#ifndef SEMLOCK_CORE_H
#define SEMLOCK_CORE_H

#include <stdint.h>

#include "semlock_api.h"

#define SEMLOCK_UNFINISHED_MODE 01000 /* S_ISVTX: has no meaning on a regular file */
#define SEMLOCK_OWNER_MODE 0600       /* what the owner may do with a lock file at least */
#define SEMLOCK_RESERVED_HANDLES 32   /* descriptors left to the program */
#define SEMLOCK_GUARD_TRIES 200       /* non-blocking attempts, each giving up the processor */
#define SEMLOCK_KEPT_PER_DIRECTORY 4
#define SEMLOCK_TICKET_ROOM 1024
#define SEMLOCK_VOUCHED_NS 100000000 /* how long a taken witness is not tested again */
#define SEMLOCK_SAME_NS 20000000    /* the largest difference of a file's time and the clock */
#define SEMLOCK_UMASK_NS 1000000000 /* how long the umask of a kept claim is trusted */
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
int semlock_object_begin(semlock_lock *lock, const semlock_pool *pool);
int semlock_object_won(semlock_lock *lock, const semlock_record *record);
int semlock_object_failed(semlock_lock *lock, int outcome);
int semlock_object_seen_held(semlock_lock *lock);
int semlock_object_end(semlock_lock *lock, const semlock_pool *pool, int64_t *owner);
void semlock_object_freed(semlock_lock *lock);
void semlock_file_reset(semlock_file *file);
void semlock_new_token(semlock_pool *pool, char token[33]);
uint64_t semlock_hash(uint64_t hash, const char *bytes, int32_t length);
void semlock_written(semlock_lock *lock, const char *bytes, int32_t length);
void semlock_stamp(const semlock_record *record, const semlock_file *file, semlock_lock *lock,
                   semlock_pool *pool, char *bytes);

/* posix/fork.c: detecting a fork.  Windows has no fork: stubs in windows/process.c. */
void semlock_enter(semlock_pool *pool);
void semlock_leave(semlock_pool *pool);
void semlock_waiting_bind(semlock_waiting *waiting, semlock_pool *pool);
int semlock_is_maker(const semlock_file *file);
int semlock_has_umask(semlock_file *file);

/* common/pool.c: kept claims. */
int semlock_pool_take(semlock_pool *pool, const semlock_lock *lock, int32_t mode,
                      semlock_file *file);
int semlock_pool_wants(semlock_pool *pool, const semlock_lock *lock);
void semlock_pool_drain_entered(semlock_pool *pool, const char *directory, int32_t length);
int semlock_pool_put(semlock_pool *pool, const semlock_lock *lock, semlock_file *file);
int semlock_private_remove(const semlock_file *file, const char *directory, int32_t length);
void semlock_file_dispose(semlock_file *file, const char *directory, int32_t length);

int semlock_try_free(semlock_lock *lock, semlock_pool *pool);
void semlock_contended_now(semlock_pool *pool, const semlock_lock *lock);
int semlock_may_wait_alone(const semlock_lock *lock, semlock_pool *pool);
int semlock_held_here(semlock_pool *pool, uint64_t ino);

/* posix/queue.c, windows/queue.c: the queue. */
int semlock_place_update(semlock_place *place, semlock_waiting *waiting, semlock_pool *pool);
void semlock_place_leave(semlock_place *place, semlock_waiting *waiting, semlock_lock *won);
void semlock_place_tell(semlock_place *place);
int64_t semlock_place_changed_at(const semlock_place *place);
int semlock_place_stands(const semlock_place *place, uint64_t number);
void semlock_ticket_leave(semlock_lock *lock);
void semlock_waiting_unwatch(semlock_waiting *waiting, int64_t *mark);
void semlock_place_forget(semlock_place *place);
uint64_t semlock_queue_head(const char *path, int32_t directory_length, uint64_t name_hash,
                            uint64_t above, uint64_t below);
uint64_t semlock_queue_pass(const char *path, int32_t directory_length, uint64_t name_hash,
                            uint64_t upto);
int semlock_path_is_free(const char *path);

/* common/turns.c: when a process makes way for waiters. */
uint64_t semlock_passed(semlock_pool *pool, uint64_t key);
void semlock_remember_passed(semlock_pool *pool, uint64_t key, uint64_t number);

#if defined(__APPLE__)
#define SEMLOCK_TIME_OF(s, which)                                                             \
    ((int64_t)(s)->st_##which##timespec.tv_sec * 1000000000 +                                 \
     (s)->st_##which##timespec.tv_nsec)
#else
#define SEMLOCK_TIME_OF(s, which)                                                             \
    ((int64_t)(s)->st_##which##tim.tv_sec * 1000000000 + (s)->st_##which##tim.tv_nsec)
#endif

/* posix/file.c, windows/process.c: the wall clock. */
int64_t semlock_wall_ns(void);

#if !defined(_WIN32)
#include <sys/stat.h>
#include <sys/types.h>

/* Iterate over the names in a directory: linux/system.c, kqueue/names.c. */
typedef struct {
    int fd;
    int error;
    void *stream; /* the DIR of readdir() */
    int32_t at;
    int32_t length;
    _Alignas(8) char buffer[2048];
} semlock_names;

void semlock_names_start(semlock_names *names, int fd);
const char *semlock_names_next(semlock_names *names);
void semlock_names_end(semlock_names *names);

/* Events: linux/events.c, kqueue/events.c.  A mark identifies one watched file.  Two special
 * values mean all marks, and the bell of a place in a queue. */
#define SEMLOCK_ALL_MARKS (-1)
#define SEMLOCK_BELL (-2)
int64_t semlock_events_open(void);
void semlock_events_forget(int64_t events);
int64_t semlock_events_watch(int64_t events, const char *path, int64_t known);
void semlock_events_unwatch(int64_t events, int64_t mark);
void semlock_mark_over(int64_t mark);
int semlock_events_wait(int64_t events, int64_t process, int64_t bell, int64_t until,
                        const void *signals, int64_t *marks, int32_t room, int32_t *count);
int64_t semlock_process_open(int64_t events, int64_t pid);
void semlock_process_close(int64_t events, int64_t process);
void semlock_process_forget(int64_t process);
int semlock_system_exists(const char *path);
int semlock_system_hears(const char *directory);

/* Tickets: linux/tickets.c, kqueue/tickets.c. */
#define SEMLOCK_TICKET_MODE 0644
int semlock_system_queues(const char *directory);
int semlock_ticket_make(const char *name, semlock_ticket *ticket);
int semlock_ticket_ours(const semlock_ticket *ticket, struct stat *seen);
void semlock_ticket_close(semlock_ticket *ticket);
void semlock_ticket_won(const semlock_ticket *ticket);
int semlock_ticket_ask(const char *name, semlock_file *file);
int semlock_ticket_has_writer(int fd);
int semlock_ticket_follow(const char *name, semlock_place *place, semlock_waiting *waiting,
                          semlock_file *file);
void semlock_ticket_unfollow(semlock_place *place, semlock_waiting *waiting);

/* posix/descriptors.c: stored descriptors, and whether they are still ours. */
int semlock_open(const char *path, int flags, mode_t mode);
int semlock_descriptor_raise(int fd);
int semlock_descriptor_keep(int64_t fd, uint64_t dev, uint64_t ino);
int semlock_descriptor_keep_signed(int64_t fd);
int semlock_descriptor_kept(int64_t fd);
int semlock_descriptor_ours(int64_t fd, uint64_t dev, uint64_t ino, struct stat *seen);
int semlock_events_ours(int64_t fd);
void semlock_descriptor_close(int64_t fd, uint64_t dev, uint64_t ino);
void semlock_descriptor_close_kept(int64_t fd);
void semlock_descriptor_close_signed(int64_t fd);
int semlock_file_keep(semlock_file *file, semlock_pool *pool);
int semlock_file_descriptor(semlock_file *file);
void semlock_file_close(semlock_file *file);
void semlock_descriptors_close_copies(void);

/* posix/fork.c: the user that owns new files. */
void semlock_made_now(semlock_file *file);

/* posix/create.c: create by a kept claim, or a new file. */
int semlock_create_kept(semlock_lock *lock, semlock_pool *pool, const semlock_record *record);
int semlock_create_fresh(semlock_lock *lock, semlock_pool *pool, const semlock_record *record);

/* posix/held.c: the held instance, and its descriptor if that was lost. */
int semlock_held_open(semlock_lock *lock, int *fd, int *opened);
int semlock_still_own(semlock_lock *lock, int fd, const struct stat *seen);
void semlock_file_over(const semlock_file *file, int fd);

/* posix/spare.c: working without a free descriptor. */
void semlock_bare(semlock_pool *pool, semlock_file *file);
void semlock_bare_over(semlock_pool *pool, semlock_file *file);
int semlock_is_apart(void);
int semlock_spare(int (*step)(void *), void *argument, semlock_pool *pool);

/* posix/events.c: event sources that are kept between two waits. */
int semlock_is_scarce(int fd);
void semlock_events_silence(int64_t events, int64_t mark);
void semlock_events_keep(semlock_pool *pool, int64_t events, int64_t mark);
void semlock_events_tidy(semlock_pool *pool);
void semlock_events_forget_kept(semlock_pool *pool);

/* What each system implements for the POSIX sources: linux/system.c; or kqueue/system.c with
 * darwin/system.c or bsd/system.c.  The functions on processes in semlock_api.h are there too,
 * on Linux in linux/process.c. */
int64_t *semlock_system_mark(void);
int semlock_system_umask(void); /* -1 if it is not known */
void semlock_system_random(void *bytes, size_t length);
int semlock_system_sign(int fd);
int semlock_system_signed(int fd);
int semlock_system_unshare_descriptors(void);
int semlock_system_one_user(void);
int semlock_system_unnamed(const char *directory, int32_t mode);
int semlock_system_link_unnamed(int fd, const char *path, semlock_pool *pool);
int semlock_system_link_kept(const semlock_lock *lock, semlock_pool *pool);
int semlock_link_by_private_name(const semlock_lock *lock);
int semlock_system_local(int fd);
int semlock_system_take_witness(int fd);
int semlock_system_witness(int fd);
#define SEMLOCK_LOCAL 1
#define SEMLOCK_LAYERED 2 /* local, but kernel locks differ between mounts */
int semlock_system_sync(int fd, int32_t durability, int overwritten);

/* What darwin/system.c and bsd/process.c implement for kqueue/system.c. */
typedef struct {
    int64_t start; /* microseconds, 0 if not known; see each look_up */
    int zombie;
} semlock_fate;

int semlock_system_look_up(int64_t pid, semlock_fate *found);
int semlock_system_hides_processes(void);
void semlock_system_name_space(semlock_process *process);

/* posix/file.c: names, and the steps that several calls share. */
#define SEMLOCK_PATH_ROOM 4224
int semlock_join(char *room, const char *directory, int32_t length, const char *name);
int semlock_private_path(char *room, const char *directory, int32_t length,
                         const semlock_file *file);
int semlock_temporary_path(char *room, const char *directory, int32_t length,
                           semlock_pool *pool);
int semlock_is_link(int error);
int semlock_is_gone(int outcome);
int semlock_is_unfinished(const struct stat *seen);
int semlock_describe(int fd, semlock_view *view);
int semlock_guard(int fd);
void semlock_unguard(int fd);
int semlock_still_at(const char *path, const semlock_file *file);
int semlock_seen_at(const char *path, const semlock_file *file, struct stat *seen);
int semlock_write_all(int fd, const char *bytes, int32_t length);
int semlock_read_all(int fd, char *bytes, int32_t capacity);
int semlock_unlink_exact(const char *path, const semlock_file *file);
int semlock_remove_aside(const char *path, int32_t directory_length, const semlock_file *file,
                         semlock_pool *pool);
#endif

#endif
