/* POSIX: releasing when the process, or the machine, has no descriptor left.
 *
 * A holder must always be able to release.  Most objects keep a descriptor; one without needs
 * one for a moment.  The steps, each only if the one before was not enough:
 *
 *   1. try the step
 *   2. close the idle kept claims
 *   3. close the descriptor in reserve, opened when the first lock gave its own up
 *   4. run the step in a new thread with its own table of descriptors, where it can close some
 *      (another thread may take each number that steps 2 and 3 free)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "posix/system.h"

#define STACK ((size_t)256 * 1024)
#define FEW 4

static _Thread_local int apart; /* this thread has its own table of descriptors */

/* Open a descriptor in reserve, for semlock_spare() to close.  It is an event source, because
 * its signature identifies it as ours. */
static void
reserve(semlock_pool *pool)
{
    int64_t fd;

    if (semlock_swap_if64(&pool->reserve, 0, -1)) {
        fd = semlock_events_open();
        semlock_store64(&pool->reserve, fd < 0 ? 0 : fd + 1);
    }
}

static int
give_reserve_up(semlock_pool *pool)
{
    int64_t kept = semlock_load64(&pool->reserve);

    if (kept <= 0 || !semlock_swap_if64(&pool->reserve, kept, -1)) {
        return 0;
    }
    semlock_descriptor_close_signed(kept - 1);
    semlock_store64(&pool->reserve, 0);
    return 1;
}

/* Close a held lock's descriptor, to leave the number to the program. */
void
semlock_bare(semlock_pool *pool, semlock_file *file)
{
    semlock_file_close(file);
    file->bare = 1;
    semlock_add32(&pool->bare, 1);
    reserve(pool);
}

/* A lock without a descriptor was released.  After the last one the reserve is closed. */
void
semlock_bare_over(semlock_pool *pool, semlock_file *file)
{
    if (file->bare && semlock_add32(&pool->bare, -1) == 1) {
        give_reserve_up(pool);
    }
    file->bare = 0;
}

/* Does this thread have its own table of descriptors? */
int
semlock_is_apart(void)
{
    return apart;
}

int
semlock_is_short(int outcome)
{
    return outcome == -EMFILE || outcome == -ENFILE;
}

typedef struct {
    int (*step)(void *);
    void *argument;
    int outcome;
} errand;

static void *
run(void *argument)
{
    errand *what = argument;

    if (semlock_system_unshare_descriptors()) {
        /* These are copies: the files stay open in the table of the process. */
        for (int fd = 0, closed = 0; closed < FEW && fd < 1024; fd++) {
            if (!semlock_descriptor_kept(fd)) {
                closed += close(fd) == 0;
            }
        }
        apart = 1;
        what->outcome = what->step(what->argument);
    }
    return NULL;
}

static int
run_apart(int (*step)(void *), void *argument, int before)
{
    errand what = {step, argument, before};
    pthread_attr_t attributes;
    sigset_t all, mask;
    pthread_t thread;
    int error;

    if (pthread_attr_init(&attributes) != 0) {
        return before;
    }
    pthread_attr_setstacksize(&attributes, STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    error = pthread_create(&thread, &attributes, run, &what);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    pthread_attr_destroy(&attributes);
    if (error != 0) {
        return before;
    }
    pthread_join(thread, NULL);
    return what.outcome;
}

/* Run a step that may need a descriptor, and must not fail because none is left. */
int
semlock_spare(int (*step)(void *), void *argument, semlock_pool *pool)
{
    int outcome = step(argument);

    if (!semlock_is_short(outcome)) {
        return outcome;
    }
    semlock_pool_drain_entered(pool, NULL, 0);
    outcome = step(argument);
    if (semlock_is_short(outcome) && give_reserve_up(pool)) {
        outcome = step(argument);
        reserve(pool);
    }
    return semlock_is_short(outcome) ? run_apart(step, argument, outcome) : outcome;
}
