/* Linux: events by inotify, the end of a process by pidfd, and a look that can't be early. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "semlock.h"

/* A lock goes by unlink (its link count changes) or by rename.  When its holder dies, the
 * kernel closes the descriptor that the holder had it open with, for writing.  IN_ONESHOT,
 * which would make a second event impossible, takes the one who removes the lock 5
 * microseconds for each waiter, and those who are woken stand in his way meanwhile. */
#define MASK (IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF | IN_CLOSE_WRITE)

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif
/* The headers of manylinux2014 are older than this call; the kernel they meet may not be. */
#ifndef SYS_renameat2
#if defined(__x86_64__)
#define SYS_renameat2 316
#elif defined(__aarch64__)
#define SYS_renameat2 276
#elif defined(__powerpc64__)
#define SYS_renameat2 357
#elif defined(__s390x__)
#define SYS_renameat2 347
#else
#define SYS_renameat2 (-1) /* ENOSYS: access(2) takes its place */
#endif
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

int64_t
semlock_events_open(void)
{
    int events = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

    return events < 0 ? -errno : events;
}

/* After a fork: the child has a copy. */
void
semlock_events_forget(int64_t events)
{
    close((int)events);
}

/* Have it told what happens to the file at the path.  One file has one mark, so nobody need
 * say which mark may be of it already. */
int64_t
semlock_events_watch(int64_t events, const char *path, int64_t known)
{
    int mark = inotify_add_watch((int)events, path, MASK | IN_DONT_FOLLOW);

    (void)known;
    return mark < 0 ? -errno : mark;
}

void
semlock_events_unwatch(int64_t events, int64_t mark)
{
    inotify_rm_watch((int)events, (int)mark);
}

/* A forked child's marks are the parent's. */
void
semlock_mark_over(int64_t mark)
{
    (void)mark;
}

/* The marks of what was told since the last call; -1 stands for all of them. */
int
semlock_events_read(int64_t events, int64_t *marks, int32_t room)
{
    _Alignas(struct inotify_event) char buffer[1024];
    ssize_t n = read((int)events, buffer, sizeof buffer);
    int count = 0;

    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *event = (const struct inotify_event *)(buffer + at);
        int64_t mark = event->mask & IN_Q_OVERFLOW ? -1 : event->wd;

        if (count == 0 || marks[count - 1] != mark) {
            if (count == room) {
                marks[count - 1] = -1;
            }
            else {
                marks[count++] = mark;
            }
        }
        at += (ssize_t)sizeof *event + (ssize_t)event->len;
    }
    return count;
}

/* Sleep: SEMLOCK_OK with marks when files have something to tell, SEMLOCK_GONE when the
 * process has ended, SEMLOCK_TIME at the given time, or -EINTR, for Python's signal handlers
 * to run. */
int
semlock_events_wait(int64_t events, int64_t process, int64_t until, const void *signals,
                    int64_t *marks, int32_t room, int32_t *count)
{
    struct pollfd what[2] = {
        {.fd = (int)events, .events = POLLIN},
        {.fd = (int)process, .events = POLLIN},
    };
    int64_t left = until - semlock_now_ns();
    struct timespec time;
    int n;

    left = left < 0 ? 0 : left;
    time.tv_sec = (time_t)(left / 1000000000);
    time.tv_nsec = (long)(left % 1000000000);
    *count = 0;
    n = ppoll(what, 2, &time, signals);
    if (n < 0) {
        return -errno;
    }
    if (n == 0) {
        return SEMLOCK_TIME;
    }
    if (what[1].revents != 0) {
        return SEMLOCK_GONE;
    }
    *count = semlock_events_read(events, marks, room);
    if (*count == 0) {
        marks[(*count)++] = -1; /* there was something, and nobody knows what */
    }
    return SEMLOCK_OK;
}

int64_t
semlock_process_open(int64_t events, int64_t pid)
{
    long process = syscall(SYS_pidfd_open, (pid_t)pid, 0);

    (void)events;
    if (process >= 0 && semlock_is_scarce((int)process)) {
        close((int)process);
        return -EMFILE;
    }
    return process < 0 ? -errno : process;
}

void
semlock_process_close(int64_t events, int64_t process)
{
    (void)events;
    close((int)process);
}

/* After a fork: the child has a copy. */
void
semlock_process_forget(int64_t process)
{
    if (process >= 0) {
        close((int)process);
    }
}

/* Is there anything at the path?  Unlike access(2), this waits for a removal that is under
 * way: the kernel tells of an unlink before it has forgotten the name.  Renaming a file to
 * itself takes the directory's lock, and without replacing it does nothing at all. */
int
semlock_system_exists(const char *path)
{
    if (syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, path, RENAME_NOREPLACE) == 0 ||
        errno == EEXIST) {
        return 1;
    }
    return errno != ENOENT && access(path, F_OK) == 0;
}
