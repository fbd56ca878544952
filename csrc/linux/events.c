/* Linux: file events by inotify, the end of a process by pidfd, and an existence check that
 * waits for a removal in progress. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "posix/system.h"

/* A lock is removed by unlink (its link count changes) or by rename.  When its holder dies,
 * the kernel closes the descriptor that the holder had open for writing.  IN_ONESHOT, which
 * would prevent a second event, costs the remover 5 microseconds per waiter, while the woken
 * waiters already compete with it. */
#define MASK (IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF | IN_CLOSE_WRITE)

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif
/* The headers of manylinux2014 are older than this call; the running kernel may have it. */
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
#define SYS_renameat2 (-1) /* gives ENOSYS, and access(2) is used */
#endif
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

int64_t
semlock_events_open(void)
{
    int events = semlock_descriptor_raise(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));

    if (events < 0) {
        return -errno;
    }
    if (semlock_descriptor_keep_signed(events) != 0) {
        close(events);
        return -ENOMEM;
    }
    return events;
}

/* After a fork: the child's copy is closed with all others. */
void
semlock_events_forget(int64_t events)
{
    (void)events;
}

/* Watch the file at the path. inotify gives one file one mark, so the known mark is not
 * needed. */
int64_t
semlock_events_watch(int64_t events, const char *path, int64_t known)
{
    int mark;

    (void)known;
    if (!semlock_events_ours(events)) {
        return -EBADF;
    }
    mark = inotify_add_watch((int)events, path, MASK | IN_DONT_FOLLOW);
    return mark < 0 ? -errno : mark;
}

/* Watch a file that stays: a program that unlocks it closes it next.  `lent` is the caller's
 * descriptor of it, or negative: then the path leads to it. */
int64_t
semlock_events_watch_locked(int64_t events, const char *path, int64_t lent)
{
    char name[40];
    uint32_t follow = IN_DONT_FOLLOW;
    int mark;

    if (!semlock_events_ours(events)) {
        return -EBADF;
    }
    if (lent >= 0) {
        snprintf(name, sizeof name, "/proc/self/fd/%lld", (long long)lent);
        path = name;
        follow = 0;
    }
    mark = inotify_add_watch((int)events, path, MASK | IN_CLOSE_NOWRITE | follow);
    return mark < 0 ? -errno : mark;
}

/* A descriptor of the name at the path, which opens nothing, so that the unlink(2) of another
 * process does not dispose of that name.  A kernel that is not preemptive lets other processes
 * run while it does, with the directory locked.  The waiter that the unlink has just woken
 * would sleep there once more, in its link(2), until the remover sleeps or ends. */
int
semlock_events_hold(const char *path)
{
    return semlock_open(path, O_PATH | O_NOFOLLOW, 0);
}

void
semlock_events_unwatch(int64_t events, int64_t mark)
{
    if (semlock_events_ours(events)) {
        inotify_rm_watch((int)events, (int)mark);
    }
}

/* Wake the thread that sleeps by this event source: the end of a watch is an event. */
void
semlock_events_poke(int64_t events)
{
    if (semlock_events_ours(events)) {
        int mark = inotify_add_watch((int)events, "/", IN_DELETE_SELF | IN_ONLYDIR);

        if (mark >= 0) {
            inotify_rm_watch((int)events, mark);
        }
    }
}

/* The marks in a forked child belong to the parent. */
void
semlock_mark_over(int64_t mark)
{
    (void)mark;
}

/* The marks of what happened.  A directory that is watched reports the files in it too, by
 * name: that is nothing to a lock on the directory.  -1 if there was nothing to read. */
static int
read_events(int64_t events, int64_t *marks, int32_t room)
{
    _Alignas(struct inotify_event) char buffer[1024];
    ssize_t n = read((int)events, buffer, sizeof buffer);
    int count = 0;

    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *event = (const struct inotify_event *)(buffer + at);
        int64_t mark = event->mask & IN_Q_OVERFLOW ? -1 : event->wd;

        at += (ssize_t)sizeof *event + (ssize_t)event->len;
        if (event->len > 0) {
            continue;
        }
        if (count == 0 || marks[count - 1] != mark) {
            if (count == room) {
                marks[count - 1] = -1;
            }
            else {
                marks[count++] = mark;
            }
        }
    }
    return n > 0 ? count : -1;
}

/* The marks of the events since the last call; -1 stands for all marks. */
int
semlock_events_read(int64_t events, int64_t *marks, int32_t room)
{
    int count = 0;

    while (count == 0 && semlock_events_ours(events)) {
        count = read_events(events, marks, room);
    }
    return count > 0 ? count : 0;
}

/* The program may have closed a descriptor during the sleep, and opened another file under its
 * number: that one is not polled any more.  Is there such a descriptor? */
static int
leave_out(struct pollfd *what, int count)
{
    int found = 0;

    for (int i = 0; i < count; i++) {
        if (what[i].revents != 0 && !semlock_events_ours(what[i].fd)) {
            what[i].fd = -1;
            found = 1;
        }
    }
    return found;
}

/* Sleep: SEMLOCK_OK with marks when there are events of files or of the bell, SEMLOCK_GONE
 * when the process has ended, SEMLOCK_TIME at the given time, or -EINTR, so that Python runs
 * its signal handlers. */
int
semlock_events_wait(int64_t events, int64_t process, int64_t bell, int64_t until,
                    const void *signals, int64_t *marks, int32_t room, int32_t *count)
{
    struct pollfd what[3] = {
        {.fd = (int)events, .events = POLLIN},
        {.fd = (int)process, .events = POLLIN},
        {.fd = (int)bell, .events = 0}, /* POLLHUP is always reported */
    };
    int n;

    *count = 0;
    do {
        int64_t left = until - semlock_now_ns();
        struct timespec time;

        left = left < 0 ? 0 : left;
        time.tv_sec = (time_t)(left / 1000000000);
        time.tv_nsec = (long)(left % 1000000000);
        n = ppoll(what, 3, &time, signals);
    } while (n > 0 && room > 0 && leave_out(what, 3));
    if (n < 0) {
        return -errno;
    }
    if (n == 0) {
        return SEMLOCK_TIME;
    }
    if (what[1].revents != 0) {
        return SEMLOCK_GONE;
    }
    if (what[0].revents != 0 && room > 0) {
        *count = read_events(events, marks, room - 1);
        if (*count < 0) {
            *count = 0;
            marks[(*count)++] = SEMLOCK_ALL_MARKS; /* an event, of unknown files */
        }
    }
    if (what[2].revents != 0) {
        marks[(*count)++] = SEMLOCK_BELL;
    }
    return SEMLOCK_OK;
}

int64_t
semlock_process_open(int64_t events, int64_t pid)
{
    int process = semlock_descriptor_raise((int)syscall(SYS_pidfd_open, (pid_t)pid, 0));

    (void)events;
    if (process >= 0 &&
        (semlock_is_scarce(process) || semlock_descriptor_keep_signed(process) != 0)) {
        close(process);
        return -EMFILE;
    }
    return process < 0 ? -errno : process;
}

void
semlock_process_close(int64_t events, int64_t process)
{
    (void)events;
    semlock_descriptor_close_signed(process);
}

/* After a fork: the child's copy is closed with all others. */
void
semlock_process_forget(int64_t process)
{
    (void)process;
}

/* Is there anything at the path?  Unlike access(2), this waits for a removal in progress:
 * inotify reports an unlink before the name is gone.  Renaming a file to itself takes the
 * directory's lock, and with RENAME_NOREPLACE it changes nothing. */
int
semlock_system_exists(const char *path)
{
    if (syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, path, RENAME_NOREPLACE) == 0 ||
        errno == EEXIST) {
        return 1;
    }
    return errno != ENOENT && access(path, F_OK) == 0;
}
