/* POSIX: detecting a fork (semlock.h, THE PROCESS).
 *
 * A fork copies the memory of a process, with all that it says of locks and descriptors.  This
 * file detects it, for any kind of fork, and keeps calls of other threads from running while a
 * fork happens.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "posix/system.h"

/* Nanoseconds.  A filesystem that hangs must not block forks for ever. */
#define FORK_PATIENCE 10000000000
#define FIRST_PAUSE 2000
#define LAST_PAUSE 1000000

/* The gate.
 *
 *   forking  busy   state
 *   0        0      no call is running
 *   0        n      n calls are running, and more may begin
 *   f        n      f threads are about to fork, and wait for the n calls, FORK_PATIENCE at
 *                   most; a call that begins now waits, and is not counted meanwhile
 *   f        0      they fork; the forking thread itself may call (`forks_here`)
 *
 *     0, n --before_fork--> f, n --leave--> f, 0 --fork--> 0, n    the parent
 *                                                    `---> 0, 0    the child, of the next life
 *
 * Whose life is it?
 *
 *   mark 1, or pid is ours      no fork: the stored life counts
 *   mark 0, or pid is another   a fork: one thread (`renewer`) closes copies of descriptors,
 *                               resets both counters, adds 1 to `life` and sets the mark
 *   pool->life is another       that pool is reset, by its first call
 *
 * This belongs to the process, not to a pool: each interpreter can have a pool of its own, and
 * its memory may be freed when another interpreter forks. */
static struct {
    int64_t *mark;   /* memory that reads zero after a fork; NULL where there is none */
    int64_t pid;     /* compared instead where there is no such memory */
    int64_t life;    /* 1, and one more after each fork; 0 before the first call */
    int64_t renewer; /* the process in which a thread handles a fork now, 0 for none */
    int64_t busy;    /* running calls, in which descriptors are opened and closed */
    int64_t forking; /* threads that are about to fork: calls of other threads wait */
    int64_t hooked;  /* the handlers below are registered */
} process;

static _Thread_local int forks_here; /* this thread is about to fork */

static int
is_new_process(void)
{
    int64_t *mark = process.mark;

    if (mark != NULL) {
        return semlock_load64(mark) == 0;
    }
    return semlock_load64(&process.pid) != getpid();
}

/* Sleep longer each time: a fork takes milliseconds in a large process. */
static void
pause_for(int64_t *nanoseconds)
{
    struct timespec time = {0, (long)*nanoseconds};

    nanosleep(&time, NULL);
    *nanoseconds = *nanoseconds < LAST_PAUSE ? 2 * *nanoseconds : LAST_PAUSE;
}

/* Reset what belongs to the parent.  Closing the child's copies of descriptors releases no
 * lock of the parent.  Leaving them open would keep the parent's witnesses after its death. */
static void
take_note_of_fork(void)
{
    if (process.life > 0) {
        semlock_descriptors_close_copies();
    }
    semlock_store64(&process.busy, 0);
    semlock_store64(&process.forking, 0);
    if (process.mark == NULL && process.life == 0) {
        process.mark = semlock_system_mark();
    }
    semlock_store64(&process.pid, getpid());
    semlock_store64(&process.life, process.life + 1);
    if (process.mark != NULL) {
        semlock_store64(process.mark, 1);
    }
}

/* In a forked child: the pool's content belongs to the parent; the descriptors are closed
 * already. */
static void
reset_pool(semlock_pool *pool)
{
    memset(pool->slots, 0, sizeof pool->slots);
    memset(pool->holding, 0, sizeof pool->holding);
    memset(pool->seen, 0, sizeof pool->seen);
    semlock_events_forget_kept(pool);
    pool->reserve = 0;
    pool->bare = pool->prepared = 0;
    pool->boot_id[0] = 0; /* the child may be in another PID namespace */
}

/* Reset the process state and the pool after a fork, in one thread.  In the parent a thread
 * may have been doing this at the time of the fork: its PID is not ours, so it is ignored. */
static void
renew(semlock_pool *pool)
{
    int64_t me = getpid();
    int64_t other, pause = FIRST_PAUSE;

    for (;;) {
        other = semlock_load64(&process.renewer);
        if (other != me && semlock_swap_if64(&process.renewer, other, me)) {
            break;
        }
        pause_for(&pause);
    }
    if (is_new_process()) {
        take_note_of_fork();
    }
    if (pool != NULL && pool->life != process.life) {
        if (pool->life > 0) {
            reset_pool(pool);
            semlock_system_random(pool->seed, sizeof pool->seed);
        }
        semlock_store64(&pool->life, process.life);
    }
    semlock_store64(&process.renewer, 0);
}

/* Before a fork: wait until no call is running, and let none begin.  A running call needs no
 * lock of Python to finish.  Without this the child could inherit descriptors that are not in
 * its copy of the table, and that carry the parent's witness and guard. */
static void
before_fork(void)
{
    int64_t end = semlock_now_ns() + FORK_PATIENCE;
    int64_t pause = FIRST_PAUSE;

    forks_here++;
    semlock_add64(&process.forking, 1);
    while (semlock_load64(&process.busy) != 0 && semlock_now_ns() < end) {
        pause_for(&pause);
    }
}

static void
after_fork_in_parent(void)
{
    forks_here--;
    semlock_add64(&process.forking, -1);
}

static void
after_fork_in_child(void)
{
    forks_here = 0;
    if (process.mark != NULL) {
        semlock_store64(process.mark, 0); /* this handler runs in the child only */
    }
    renew(NULL);
}

int64_t
semlock_pid(void)
{
    return semlock_load64(&process.pid);
}

/* The user and group that own the files which the process creates, cached if they cannot
 * change any more.  `fixed` only goes from 0 to 1, when both numbers are final. */
static struct {
    int64_t user;
    int64_t group;
    int32_t fixed;
} maker;

static void
ask_maker(void)
{
    int fixed = semlock_system_one_user();

    semlock_store64(&maker.user, (int64_t)geteuid());
    semlock_store64(&maker.group, (int64_t)getegid());
    if (fixed) {
        semlock_store32(&maker.fixed, 1);
    }
}

/* Record the owner and group of a file that was just created.  If the user differs from the
 * last one, the process has perhaps dropped its privileges, as programs do that begin as root;
 * then this is checked again. */
void
semlock_made_now(semlock_file *file)
{
    if (!semlock_load32(&maker.fixed)) {
        file->user = (int64_t)geteuid();
        file->group = (int64_t)getegid();
        if (file->user == semlock_load64(&maker.user)) {
            return;
        }
        ask_maker();
    }
    file->user = semlock_load64(&maker.user);
    file->group = semlock_load64(&maker.group);
}

/* Would a file created now have this file's owner and group? */
int
semlock_is_maker(const semlock_file *file)
{
    if (semlock_load32(&maker.fixed)) {
        return file->user == semlock_load64(&maker.user) &&
               file->group == semlock_load64(&maker.group);
    }
    if (file->user == (int64_t)geteuid() && file->group == (int64_t)getegid()) {
        return 1;
    }
    return 0;
}

/* Would a file created now have this file's permissions?  The umask can only be read by
 * changing it for a moment, for all threads, or from /proc, which takes half as long as an
 * acquire and release.  So it is checked at most once in SEMLOCK_UMASK_NS.  Where it is not
 * known, a claim lasts for that time. */
int
semlock_has_umask(semlock_file *file)
{
    int64_t now = semlock_now_ns();
    int mask;

    if (now - file->asked < SEMLOCK_UMASK_NS) {
        return 1;
    }
    if (file->mode & SEMLOCK_EXACT) {
        return 1;
    }
    mask = semlock_system_umask();
    if (mask < 0 || ((file->mode & ~mask & 0777) | SEMLOCK_OWNER_MODE) != file->given) {
        return 0;
    }
    file->asked = now;
    return 1;
}

static void
hook(void)
{
    if (semlock_swap_if64(&process.hooked, 0, 1)) {
        ask_maker();
        /* Without the handlers a fork is still detected, at the child's first call. */
        pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    }
}

/* Wait for another thread's fork, for a limited time: a leak in the child is better than a
 * deadlock with something that the fork handlers wait for. */
static void
wait_for_fork(void)
{
    int64_t end = semlock_now_ns() + FORK_PATIENCE;
    int64_t pause = FIRST_PAUSE;

    do {
        semlock_add64(&process.busy, -1);
        pause_for(&pause);
        semlock_add64(&process.busy, 1);
    } while (semlock_load64(&process.forking) != 0 && semlock_now_ns() < end);
}

/* Every call begins with this.  It makes no system call unless there was a fork. */
void
semlock_enter(semlock_pool *pool)
{
    if (is_new_process() || semlock_load64(&pool->life) != semlock_load64(&process.life)) {
        hook();
        renew(pool);
    }
    semlock_add64(&process.busy, 1);
    /* The forking thread itself may call: other fork handlers may use locks. */
    if (semlock_load64(&process.forking) != 0 && !forks_here) {
        wait_for_fork();
    }
}

void
semlock_leave(semlock_pool *pool)
{
    (void)pool;
    semlock_add64(&process.busy, -1);
}

/* The number of the calling thread.  The system's own thread numbers are reused as soon as a
 * thread has ended; a new thread would then look like the holder of what the ended thread left
 * held.  So each thread draws its number from a counter that only grows.  The counter is
 * static because it belongs to the process, whichever interpreter or pool a thread uses.  A
 * forked child continues with the parent's values: the forking thread keeps its number, and
 * new threads draw higher ones. */
int64_t
semlock_thread(void)
{
    static int64_t drawn;
    static _Thread_local int64_t number;

    if (number == 0) {
        number = semlock_add64(&drawn, 1) + 1;
    }
    return number;
}

int64_t
semlock_busy(void)
{
    return semlock_load64(&process.busy);
}

int64_t
semlock_life(semlock_pool *pool)
{
    semlock_enter(pool);
    semlock_leave(pool);
    return pool->life;
}

/* Restart a wait that the parent began: its event source, ticket and marks belong to the
 * parent.  So a waiter whose signal handler forked goes on waiting in the child too. */
void
semlock_waiting_bind(semlock_waiting *waiting, semlock_pool *pool)
{
    int64_t life = semlock_life(pool);
    int32_t queued = waiting->queued;

    if (!waiting->started || waiting->life == life) {
        return;
    }
    semlock_waiting_forget(waiting);
    waiting->looked = waiting->began = waiting->unread = waiting->blind = 0;
    waiting->recheck = 0;
    if (waiting->place != NULL) {
        waiting->place->refused = 0;
        waiting->place->due = 1;
    }
    semlock_waiting_start(waiting, pool);
    waiting->queued = queued;
}
