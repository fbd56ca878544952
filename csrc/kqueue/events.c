/* macOS and the BSDs: events by kqueue.
 *
 * kqueue watches open files only, so a mark is a descriptor of the watched file.  It belongs
 * to the wait that opened it, until that closes it.
 *
 * These kernels report a removal or renaming when it is done, with the name gone from the
 * directory.  So if a path leads to a file after it was watched, one check is enough: any
 * later removal is reported.  Except for systems with NOTE_CLOSE_WRITE, they do not report
 * that the descriptor of a dead holder was closed.  So the end of the holder's process is
 * watched, and dead waiters in a queue are found by the waiters behind them, which look by the
 * clock too.
 */
#define _NETBSD_SOURCE
#include <sys/types.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/event.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "posix/system.h"

#if defined(O_EVTONLY)
#define WATCH_MODE O_EVTONLY /* the volume can still be unmounted */
#else
#define WATCH_MODE O_RDONLY
#endif
#if !defined(NOTE_CLOSE_WRITE)
#define NOTE_CLOSE_WRITE 0
#endif
#define NEWS                                                                                  \
    (NOTE_DELETE | NOTE_RENAME | NOTE_LINK | NOTE_ATTRIB | NOTE_REVOKE | NOTE_CLOSE_WRITE)
#define FIRST_LOOK 50000   /* nanoseconds */
#define LAST_LOOK 30000000 /* longer than a kernel needs to complete what it has reported */

/* A kqueue has no inode, and the program may have its own.  So each of ours gets a filter that
 * never fires, with a random identifier.  A request that names this filter first fails in any
 * other kqueue, before it changes or reads anything there. */
#if defined(EVFILT_USER)
#define SIGNATURE_FILTER EVFILT_USER
#define SIGNATURE_DATA 0
#else
#define SIGNATURE_FILTER EVFILT_TIMER
#define SIGNATURE_DATA 0x40000000 /* milliseconds; and it is disabled anyway */
#endif

static int64_t signature;

static void
ask_signature(struct kevent *change, unsigned short flags)
{
    EV_SET(change, (uintptr_t)semlock_load64(&signature), SIGNATURE_FILTER,
           (unsigned short)(flags | EV_DISABLE), 0, SIGNATURE_DATA, 0);
}

/* Apply this change to a kqueue of ours: 0, or an error. */
static int
apply(int64_t events, const struct kevent *change)
{
    struct kevent both[2];

    ask_signature(&both[0], 0);
    both[1] = *change;
    return kevent((int)events, both, 2, NULL, 0, NULL) == 0 ? 0 : -errno;
}

/* Get one event from a kqueue of ours: 1, 0 if there was none in time, or an error. */
static int
next_event(int64_t events, struct kevent *event, const struct timespec *time)
{
    struct kevent asked;
    int n;

    ask_signature(&asked, 0);
    n = kevent((int)events, &asked, 1, event, 1, time);
    if (n > 0 && (event->flags & EV_ERROR) != 0) {
        return -EBADF;
    }
    return n < 0 ? -errno : n;
}

int
semlock_system_sign(int fd)
{
    struct kevent change;
    int64_t word;

    if (semlock_load64(&signature) == 0) {
        semlock_system_random(&word, sizeof word);
        semlock_swap_if64(&signature, 0, (word & INT64_MAX) | 1);
    }
    ask_signature(&change, EV_ADD);
    return kevent(fd, &change, 1, NULL, 0, NULL) == 0 ? 0 : -errno;
}

int
semlock_system_signed(int fd)
{
    struct kevent asked;

    ask_signature(&asked, 0);
    return kevent(fd, &asked, 1, NULL, 0, NULL) == 0;
}

int64_t
semlock_events_open(void)
{
    int events = semlock_descriptor_raise(kqueue());
    int error;

    if (events < 0) {
        return -errno;
    }
    error = fcntl(events, F_SETFD, FD_CLOEXEC) != 0 ? -errno : semlock_system_sign(events);
    if (error != 0) {
        close(events);
        return error;
    }
    return events;
}

/* A forked child does not inherit a kqueue; the number may be another file's there. */
void
semlock_events_forget(int64_t events)
{
    (void)events;
}

/* Wake the thread that sleeps by this event source, by a timer that is over at once. */
void
semlock_events_poke(int64_t events)
{
    struct kevent change;

    if (events >= 0) {
        EV_SET(&change, (uintptr_t)(semlock_load64(&signature) ^ 1), EVFILT_TIMER,
               EV_ADD | EV_ONESHOT, 0, 1, 0);
        apply(events, &change);
    }
}

/* Not each of these systems reports an unlock: it is looked at by the clock. */
int64_t
semlock_events_watch_locked(int64_t events, const char *path, int64_t lent)
{
    (void)events;
    (void)path;
    (void)lent;
    return -ENOTSUP;
}

/* Watch the file at the path.  `known` is a mark that may already watch it. */
int64_t
semlock_events_watch(int64_t events, const char *path, int64_t known)
{
    struct stat seen, watched;
    struct kevent change;
    int fd, error;

    if (lstat(path, &seen) != 0) {
        return -errno;
    }
    if (known >= 0 && fstat((int)known, &watched) == 0 && watched.st_ino == seen.st_ino &&
        watched.st_dev == seen.st_dev) {
        return known;
    }
    if (!S_ISREG(seen.st_mode) && !S_ISDIR(seen.st_mode)) {
        return -EOPNOTSUPP; /* opening a FIFO or a device can have effects */
    }
    fd = semlock_open(path, WATCH_MODE | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0) {
        return -errno;
    }
    EV_SET(&change, (uintptr_t)fd, EVFILT_VNODE, EV_ADD | EV_CLEAR, NEWS, 0, 0);
    error = semlock_is_scarce(fd)      ? -EMFILE
            : fstat(fd, &watched) != 0 ? -errno
                                       : apply(events, &change);
    if (error == 0) {
        error =
            semlock_descriptor_keep(fd, (uint64_t)watched.st_dev, (uint64_t)watched.st_ino);
    }
    if (error != 0) {
        close(fd);
        return error;
    }
    return fd;
}

/* Linux alone needs it. */
int
semlock_events_hold(const char *path)
{
    (void)path;
    return -1;
}

/* Closing the file is enough: the kqueue drops it and its pending events. */
void
semlock_events_unwatch(int64_t events, int64_t mark)
{
    (void)events;
    semlock_mark_over(mark);
}

void
semlock_mark_over(int64_t mark)
{
    semlock_descriptor_close_kept(mark);
}

/* The marks of the events since the last call; -1 stands for all marks. */
int
semlock_events_read(int64_t events, int64_t *marks, int32_t room)
{
    const struct timespec now = {0, 0};
    struct kevent event;
    int count = 0;

    while (count < room && next_event(events, &event, &now) == 1) {
        marks[count++] = event.filter == EVFILT_VNODE ? (int64_t)event.ident : -1;
    }
    return count;
}

/* These kernels report the end of a process, and refuse to watch it any more, a moment before
 * it is seen to have ended.  A waiter that looks in between would see it running and get no
 * further event. */
static void
let_end_show(int64_t pid)
{
    for (long pause = FIRST_LOOK; pause < LAST_LOOK; pause *= 2) {
        const struct timespec time = {0, pause};

        if (semlock_probe(pid, 0) != SEMLOCK_EXISTS) {
            return;
        }
        nanosleep(&time, NULL);
    }
}

/* Sleep: SEMLOCK_OK with marks when there are events of files, SEMLOCK_GONE when the process
 * has ended, SEMLOCK_TIME at the given time, or -EINTR, so that Python runs its signal
 * handlers.  Querying a kqueue consumes the event. */
int
semlock_events_wait(int64_t events, int64_t process, int64_t bell, int64_t until,
                    const void *signals, int64_t *marks, int32_t room, int32_t *count)
{
    int64_t left = until - semlock_now_ns();
    struct timespec time;
    struct kevent event;
    sigset_t held;
    int n;

    (void)process; /* it is watched by the kqueue */
    (void)bell;    /* and so are tickets */
    (void)room;
    left = left < 0 ? 0 : left;
    time.tv_sec = (time_t)(left / 1000000000);
    time.tv_nsec = (long)(left % 1000000000);
    *count = 0;
    if (events < 0) {
        return nanosleep(&time, NULL) == 0 ? SEMLOCK_TIME : -errno;
    }
    /* kevent() cannot change the signal mask atomically with falling asleep.  A signal between
     * the two calls is handled at the next look. */
    if (signals != NULL) {
        pthread_sigmask(SIG_SETMASK, signals, &held);
    }
    n = next_event(events, &event, &time);
    if (signals != NULL) {
        pthread_sigmask(SIG_SETMASK, &held, NULL);
    }
    if (n == -EBADF) {
        /* The program has closed the kqueue: from now on the wait only sleeps. */
        return nanosleep(&time, NULL) == 0 ? SEMLOCK_TIME : -errno;
    }
    if (n <= 0) {
        return n < 0 ? n : SEMLOCK_TIME;
    }
    if (event.filter == EVFILT_PROC) {
        let_end_show((int64_t)event.ident);
        return SEMLOCK_GONE;
    }
    marks[(*count)++] = (int64_t)event.ident;
    return SEMLOCK_OK;
}

/* Watch for the end of a process.  Its PID is the handle too. */
int64_t
semlock_process_open(int64_t events, int64_t pid)
{
    struct kevent change;
    int error;

    if (events < 0) {
        return -EBADF;
    }
    EV_SET(&change, (uintptr_t)pid, EVFILT_PROC, EV_ADD | EV_ONESHOT, NOTE_EXIT, 0, 0);
    error = apply(events, &change);
    if (error == -ESRCH) {
        let_end_show(pid);
    }
    return error == 0 ? pid : error;
}

void
semlock_process_close(int64_t events, int64_t process)
{
    struct kevent change;

    EV_SET(&change, (uintptr_t)process, EVFILT_PROC, EV_DELETE, 0, 0, 0);
    apply(events, &change); /* an error means that it was reported already */
}

/* A forked child does not inherit it. */
void
semlock_process_forget(int64_t process)
{
    (void)process;
}

/* Is there anything at the path?  A removal in progress has not been reported yet. */
int
semlock_system_exists(const char *path)
{
    struct stat seen;

    return lstat(path, &seen) == 0 || errno != ENOENT;
}
