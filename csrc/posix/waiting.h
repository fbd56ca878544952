/* POSIX: what the files of a wait share (semlock.h, WAITING and THE QUEUE). */
#ifndef POSIX_WAITING_H
#define POSIX_WAITING_H

#include "posix/system.h"

#define FIRST_RECHECK 50000   /* nanoseconds */
#define LAST_RECHECK 30000000 /* longer than a kernel needs to complete what it reported */
#define ALARM 120000000       /* from an event of P to a check that it is used */
#define MARKS 64
#define TICK 200000000   /* between two moments at which the waiters for a lock look */
#define FRESH 3000000000 /* a wait that has lasted longer looks less often */

/* posix/look.c */
void semlock_waiting_recheck_in(semlock_waiting *waiting, int64_t nanoseconds);
void semlock_waiting_has_shown(semlock_waiting *waiting);
int semlock_waiting_look(semlock_waiting *waiting, semlock_watch *watch, semlock_pool *pool);
int semlock_waiting_look_first(semlock_waiting *waiting, semlock_pool *pool);
int semlock_waiting_look_past(semlock_waiting *waiting, semlock_watch *watch,
                              semlock_pool *pool);
void semlock_waiting_hold_names(semlock_waiting *waiting);
void semlock_waiting_unwatch_all(semlock_waiting *waiting);

/* posix/kernel.c */
int semlock_kernel_stat(const semlock_watch *watch, struct stat *seen);
int semlock_kernel_ask(semlock_watch *watch, const struct stat *seen);
void semlock_kernel_asked(semlock_watch *watch);

/* posix/overtake.c */
int64_t semlock_spread(const void *who, int64_t span);
int64_t semlock_next_moment(const semlock_place *place, int64_t after, int64_t apart);
int semlock_waiting_watch_over(semlock_waiting *waiting, semlock_pool *pool);

/* posix/wait.c */
int64_t semlock_waiting_next_safety(const semlock_waiting *waiting, const semlock_pool *pool);

/* posix/arm.c */
int64_t semlock_waiting_tell_at(const semlock_place *place);

/* posix/news.c */
int semlock_waiting_is_fair(const semlock_waiting *waiting);
int semlock_waiting_hears_next(const semlock_waiting *waiting);
void semlock_waiting_check_again(semlock_waiting *waiting);

#endif
