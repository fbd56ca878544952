/* macOS and the BSDs: events by kqueue.
 *
 * Only what is open can be watched, so a mark is a descriptor of the watched file.  It belongs
 * to the wait that asked for it, until that wants to hear no more.
 *
 * These kernels tell of a removal or a renaming when it is done, with the name gone from the
 * directory.  So a path that leads to a file after it was watched needs no more than a look:
 * whatever takes it away from there is told later.  What they don't tell, except for some that
 * know NOTE_CLOSE_WRITE, is that a dead holder's descriptor was closed: the end of its process
 * is listened for, and the dead in a queue are found by those behind, who see to it anyway. */
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

#include "semlock.h"

#if defined(O_EVTONLY)
#define WATCH_MODE O_EVTONLY /* doesn't keep a volume from being unmounted */
#else
#define WATCH_MODE O_RDONLY
#endif
#if !defined(NOTE_CLOSE_WRITE)
#define NOTE_CLOSE_WRITE 0
#endif
#define NEWS                                                                                  \
    (NOTE_DELETE | NOTE_RENAME | NOTE_LINK | NOTE_ATTRIB | NOTE_REVOKE | NOTE_CLOSE_WRITE)
#define FIRST_LOOK 50000   /* nanoseconds */
#define LAST_LOOK 30000000 /* longer than a kernel needs to end what it has told of */

int64_t
semlock_events_open(void)
{
    int events = kqueue();
    int error;

    if (events < 0) {
        return -errno;
    }
    if (fcntl(events, F_SETFD, FD_CLOEXEC) != 0) {
        error = errno;
        close(events);
        return -error;
    }
    return events;
}

/* A forked child has no copy of a kqueue, so the number may be another file's there. */
void
semlock_events_forget(int64_t events)
{
    (void)events;
}

/* Have it told what happens to the file at the path.  `known` is a mark that may be of it
 * already. */
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
        return -EOPNOTSUPP; /* to open a pipe or a device can be noticed by others */
    }
    fd = open(path, WATCH_MODE | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return -errno;
    }
    if (semlock_is_scarce(fd)) {
        close(fd);
        return -EMFILE;
    }
    EV_SET(&change, (uintptr_t)fd, EVFILT_VNODE, EV_ADD | EV_CLEAR, NEWS, 0, 0);
    if (kevent((int)events, &change, 1, NULL, 0, NULL) != 0) {
        error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

/* Closing the file is enough: the kqueue forgets it, and what it had to tell of it. */
void
semlock_events_unwatch(int64_t events, int64_t mark)
{
    (void)events;
    semlock_mark_over(mark);
}

void
semlock_mark_over(int64_t mark)
{
    if (mark >= 0) {
        close((int)mark);
    }
}

/* The marks of what was told since the last call; -1 stands for all of them. */
int
semlock_events_read(int64_t events, int64_t *marks, int32_t room)
{
    const struct timespec now = {0, 0};
    struct kevent event;
    int count = 0;

    while (count < room && kevent((int)events, NULL, 0, &event, 1, &now) == 1) {
        marks[count++] = event.filter == EVFILT_VNODE ? (int64_t)event.ident : -1;
    }
    return count;
}

/* These kernels tell of the end of a process, and let nobody ask for it any more, a moment
 * before it shows: whoever looks in between sees it running, and will not be told again. */
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

/* Sleep: SEMLOCK_OK with marks when files have something to tell, SEMLOCK_GONE when the
 * process has ended, SEMLOCK_TIME at the given time, or -EINTR, for Python's signal handlers
 * to run.  To ask whether there is something to tell is to be told it. */
int
semlock_events_wait(int64_t events, int64_t process, int64_t until, const void *signals,
                    int64_t *marks, int32_t room, int32_t *count)
{
    int64_t left = until - semlock_now_ns();
    struct timespec time;
    struct kevent event;
    sigset_t held;
    int n, error;

    (void)process; /* it is one of the events */
    (void)room;
    left = left < 0 ? 0 : left;
    time.tv_sec = (time_t)(left / 1000000000);
    time.tv_nsec = (long)(left % 1000000000);
    *count = 0;
    if (events < 0) {
        return nanosleep(&time, NULL) == 0 ? SEMLOCK_TIME : -errno;
    }
    /* There is no form of this call that changes the mask and falls asleep at once; a signal
     * that comes between the two is answered at the next look. */
    if (signals != NULL) {
        pthread_sigmask(SIG_SETMASK, signals, &held);
    }
    n = kevent((int)events, NULL, 0, &event, 1, &time);
    error = errno;
    if (signals != NULL) {
        pthread_sigmask(SIG_SETMASK, &held, NULL);
    }
    if (n <= 0) {
        return n < 0 ? -error : SEMLOCK_TIME;
    }
    if (event.filter == EVFILT_PROC) {
        let_end_show((int64_t)event.ident);
        return SEMLOCK_GONE;
    }
    marks[(*count)++] = (int64_t)event.ident;
    return SEMLOCK_OK;
}

/* Listen for the end of a process, whose number is the handle too. */
int64_t
semlock_process_open(int64_t events, int64_t pid)
{
    struct kevent change;
    int error;

    if (events < 0) {
        return -EBADF;
    }
    EV_SET(&change, (uintptr_t)pid, EVFILT_PROC, EV_ADD | EV_ONESHOT, NOTE_EXIT, 0, 0);
    if (kevent((int)events, &change, 1, NULL, 0, NULL) == 0) {
        return pid;
    }
    error = errno;
    if (error == ESRCH) {
        let_end_show(pid);
    }
    return -error;
}

void
semlock_process_close(int64_t events, int64_t process)
{
    struct kevent change;

    EV_SET(&change, (uintptr_t)process, EVFILT_PROC, EV_DELETE, 0, 0, 0);
    kevent((int)events, &change, 1, NULL, 0, NULL); /* an error: it was told already */
}

/* A forked child has nothing of it. */
void
semlock_process_forget(int64_t process)
{
    (void)process;
}

/* Is there anything at the path?  A removal that is under way has not been told yet. */
int
semlock_system_exists(const char *path)
{
    struct stat seen;

    return lstat(path, &seen) == 0 || errno != ENOENT;
}
