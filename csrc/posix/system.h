/* POSIX: what the sources of these systems share, beside core.h. */
#ifndef SEMLOCK_POSIX_SYSTEM_H
#define SEMLOCK_POSIX_SYSTEM_H

#include <sys/stat.h>
#include <sys/types.h>

#include "core.h"

#if defined(__APPLE__)
#define SEMLOCK_TIME_OF(s, which)                                                             \
    ((int64_t)(s)->st_##which##timespec.tv_sec * 1000000000 +                                 \
     (s)->st_##which##timespec.tv_nsec)
#else
#define SEMLOCK_TIME_OF(s, which)                                                             \
    ((int64_t)(s)->st_##which##tim.tv_sec * 1000000000 + (s)->st_##which##tim.tv_nsec)
#endif

/* Iterate over the names in a directory: linux/system.c, kqueue/names.c. */
typedef struct {
    int fd;
    int error;
    void *stream; /* the DIR of readdir() */
    int32_t at;
    int32_t length;
    _Alignas(8) char buffer[16384]; /* a request to FUSE for each fill */
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
int64_t semlock_events_watch_locked(int64_t events, const char *path, int64_t lent);
void semlock_events_unwatch(int64_t events, int64_t mark);
int semlock_events_hold(const char *path);
void semlock_events_poke(int64_t events);
void semlock_mark_over(int64_t mark);
int semlock_events_wait(int64_t events, int64_t process, int64_t bell, int64_t until,
                        const void *signals, int64_t *marks, int32_t room, int32_t *count);
void semlock_process_forget(int64_t process);
int semlock_system_exists(const char *path);
int semlock_system_hears(const char *directory);

/* Can a try be made before the event that causes it is read?  kqueue takes the event with the
 * sleep. */
#if defined(__linux__)
#define SEMLOCK_TRIES_UNREAD 1
#else
#define SEMLOCK_TRIES_UNREAD 0
#endif

/* posix/lent.c */
void semlock_lent_enter(const semlock_pool *pool);
void semlock_lent_leave(void);
int semlock_lent_take(const struct stat *seen, int64_t fd, int32_t kernel);
int semlock_lent_give(const semlock_file *file);

/* Tickets: linux/tickets.c, kqueue/tickets.c. */
#define SEMLOCK_TICKET_MODE 0644
int semlock_system_queues(const char *directory);
int semlock_ticket_ours(const semlock_ticket *ticket, struct stat *seen);
void semlock_ticket_tell_next(const semlock_ticket *ticket);
int semlock_ticket_told(int64_t bell);
void semlock_ticket_won(const semlock_ticket *ticket);
int semlock_ticket_ask(const char *name, semlock_file *file);
int semlock_ticket_has_writer(int fd);
int semlock_ticket_follow(const char *name, semlock_place *place, semlock_waiting *waiting,
                          semlock_file *file);
void semlock_ticket_unfollow(semlock_place *place, semlock_waiting *waiting);

/* posix/queue.c: tickets and the files beside them. */
void semlock_ticket_remove_who(const char *ticket);
int semlock_ticket_remove(const char *name, const semlock_file *file);
int semlock_ticket_remove_dead(const char *name, const semlock_file *file);

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
void semlock_descriptor_close_ours(int64_t fd);
int semlock_file_keep(semlock_file *file, semlock_pool *pool);
int semlock_file_keep_signed(semlock_file *file);
void semlock_file_borrow(semlock_file *file);
int semlock_file_descriptor(semlock_file *file);
void semlock_file_close(semlock_file *file);
void semlock_descriptors_close_copies(void);

/* posix/fork.c: this process, as every call has found it, and the user that owns new files. */
int64_t semlock_pid(void);
void semlock_made_now(semlock_file *file);

/* posix/held.c: the held instance, and its descriptor if that was lost. */
int semlock_held_open(semlock_lock *lock, int *fd, int *opened);
void semlock_file_over(const semlock_file *file, int fd);

/* posix/spare.c: working without a free descriptor. */
void semlock_bare(semlock_pool *pool, semlock_file *file);
void semlock_bare_over(semlock_pool *pool, semlock_file *file);
int semlock_is_apart(void);
int semlock_spare(int (*step)(void *), void *argument, semlock_pool *pool);

/* posix/events.c: event sources that are kept between two waits. */
int semlock_is_scarce(int fd);
void semlock_events_silence(int64_t events, int64_t mark);
void semlock_events_keep(semlock_pool *pool, int64_t events, int64_t mark, int64_t name,
                         int won);
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
int semlock_system_take_witness(int fd);

/* What darwin/system.c and bsd/process.c implement for kqueue/system.c. */
typedef struct {
    int64_t start; /* microseconds, 0 if not known; see each look_up */
    int zombie;
} semlock_fate;

extern const char *const semlock_local_kinds[];   /* filesystems; the last is NULL */
int semlock_system_booted(int64_t *microseconds); /* NetBSD alone */
int semlock_system_look_up(int64_t pid, semlock_fate *found);
int semlock_system_hides_processes(void);
void semlock_system_name_space(semlock_process *process);

/* posix/file.c: names, and the steps that several calls share. */
int semlock_is_link(int error);
int semlock_is_unfinished(const struct stat *seen);
int semlock_seen_at(const char *path, const semlock_file *file, struct stat *seen);
int semlock_unlink_exact(const char *path, const semlock_file *file);
int semlock_remove_aside(const char *path, int32_t directory_length, const semlock_file *file,
                         semlock_pool *pool);

#endif
