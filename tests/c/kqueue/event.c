/* Kqueue on Linux, as its manuals describe it and as far as csrc/kqueue/events.c goes: one
 * event of one filter at a time, told when what it tells of is done.  It is an epoll instance,
 * with an inotify instance or a pidfd for each filter.  A disabled one tells nothing, so it is
 * nothing but an entry in the table.
 *
 * A removal is told of when the name is gone: post_event_if_success() in XNU's VNOP_REMOVE(),
 * vop_remove_post() of FreeBSD, ufs_remove() of OpenBSD, which knotes after ufs_dirremove().
 */
#define STANDIN_INSIDE
#include "../bsd/kernel.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/syscall.h>

#include <sys/event.h>

#define FILTERS 1024
#define SPARES 16
#define FIRST_SOURCE 100
#define MOST 256 /* no test has descriptors above */

typedef struct {
    int queue; /* 0: unused */
    int source;
    int watch;
    pid_t owner;
    uintptr_t ident;
    short filter;
    int oneshot;
    dev_t dev;
    ino_t ino;
    char path[PATH_MAX];
} filter;

static filter filters[FILTERS];
static int spare[SPARES]; /* inotify instances: to close one takes milliseconds */
static int spares;
static pid_t spares_of;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int
is_disabled(const filter *f)
{
    return f->filter != EVFILT_VNODE && f->filter != EVFILT_PROC;
}

/* What was told is not told again. */
static void
clear(const filter *f)
{
    char news[1024];

    while (read(f->source, news, sizeof news) > 0) {
    }
}

/* A forked child has copies of what the filters are made of here, and none of a real kqueue.
 */
static void
drop(filter *f)
{
    if (f->filter == EVFILT_VNODE && f->owner == getpid()) {
        epoll_ctl(f->queue, EPOLL_CTL_DEL, f->source, NULL);
        inotify_rm_watch(f->source, f->watch);
        clear(f);
    }
    if (f->filter == EVFILT_VNODE && f->owner == getpid() && spares < SPARES) {
        spare[spares++] = f->source;
    }
    else if (!is_disabled(f)) {
        close(f->source);
    }
    f->queue = 0;
}

static int
is_kqueue(int fd)
{
    char link[40], target[40] = "";

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return readlink(link, target, sizeof target - 1) > 0 &&
           strcmp(target, "anon_inode:[eventpoll]") == 0;
}

/* No kqueue is inherited: fork(2), kqueue(2) of each. */
static void
leave_behind(void)
{
    for (int fd = 0; fd < MOST; fd++) {
        if (is_kqueue(fd)) {
            close(fd);
        }
    }
    for (filter *f = filters; f < filters + FILTERS; f++) {
        if (f->queue != 0) {
            drop(f);
        }
    }
}

static void
hook(void)
{
    pthread_atfork(NULL, NULL, leave_behind);
}

int
kqueue(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int queue = epoll_create1(0);

    pthread_once(&once, hook);

    for (filter *f = filters; f < filters + FILTERS; f++) {
        if (f->queue != 0 && f->queue == queue) {
            drop(f); /* of a queue that was closed */
        }
    }
    return queue;
}

/* A removal or renaming that is under way holds the lock of the directory. */
static void
wait_for_changes(const char *path)
{
    syscall(SYS_renameat2, AT_FDCWD, path, AT_FDCWD, path, 1);
}

/* A filter goes when its file is closed. */
static int
is_open(const filter *f)
{
    struct stat seen;

    return f->filter != EVFILT_VNODE || (fstat((int)f->ident, &seen) == 0 &&
                                         seen.st_dev == f->dev && seen.st_ino == f->ino);
}

static filter *
find(int queue, const struct kevent *change)
{
    for (filter *f = filters; f < filters + FILTERS; f++) {
        if (f->queue == queue && f->ident == change->ident && f->filter == change->filter) {
            return f;
        }
    }
    return NULL;
}

/* Closing a file, or the queue itself, takes its filters away at once: knote_fdclose() of each
 * kernel. */
void
standin_closed(int fd)
{
    pthread_mutex_lock(&lock);
    for (filter *f = filters; f < filters + FILTERS; f++) {
        if (f->queue != 0 &&
            (f->queue == fd || (f->filter == EVFILT_VNODE && (int)f->ident == fd))) {
            drop(f);
        }
    }
    pthread_mutex_unlock(&lock);
}

/* A kqueue needs no number for this, so it takes none that a test looks at. */
static int
new_source(void)
{
    int low = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    int high = fcntl(low, F_DUPFD_CLOEXEC, FIRST_SOURCE);

    close(low);
    return high;
}

static int
add_file(filter *f, unsigned int news)
{
    uint32_t mask = (news & (NOTE_DELETE | NOTE_LINK | NOTE_ATTRIB) ? IN_ATTRIB : 0u) |
                    (news & NOTE_RENAME ? IN_MOVE_SELF : 0u);
    char link[40];
    struct stat seen;
    ssize_t n;

#if defined(NOTE_CLOSE_WRITE)
    mask |= news & NOTE_CLOSE_WRITE ? IN_CLOSE_WRITE : 0u;
#endif
    snprintf(link, sizeof link, "/proc/self/fd/%d", (int)f->ident);
    n = readlink(link, f->path, sizeof f->path - 1);
    if (n < 0 || fstat((int)f->ident, &seen) != 0) {
        return -1;
    }
    f->path[n] = 0;
    f->dev = seen.st_dev;
    f->ino = seen.st_ino;
    if (spares_of != getpid()) {
        spares_of = getpid(); /* those of a parent are left alone */
        for (spares = 0; spares < SPARES; spares++) {
            spare[spares] = new_source();
        }
    }
    f->source = spares > 0 ? spare[--spares] : new_source();
    f->watch = inotify_add_watch(f->source, link, mask);
    if (f->source < 0 || f->watch < 0) {
        return -1;
    }
    wait_for_changes(f->path);
    return 0;
}

static int
change(int queue, const struct kevent *change)
{
    struct epoll_event event = {.events = EPOLLIN};
    filter *f = find(queue, change);

    /* A file is added once, so one that is known by its number was closed meanwhile. */
    if (f != NULL && (!is_open(f) || f->filter == EVFILT_VNODE)) {
        drop(f);
        f = NULL;
    }
    if (f == NULL && !(change->flags & EV_ADD)) {
        errno = ENOENT;
        return -1;
    }
    if (change->flags & EV_DELETE) {
        drop(f);
        return 0;
    }
    if (f != NULL) {
        return 0;
    }
    for (f = filters; f->queue != 0; f++) {
        if (f == filters + FILTERS - 1) {
            errno = ENOMEM;
            return -1;
        }
    }
    f->ident = change->ident;
    f->filter = change->filter;
    f->owner = getpid();
    f->oneshot = (change->flags & EV_ONESHOT) != 0;
    if (is_disabled(f)) {
        if (!(change->flags & EV_DISABLE)) {
            abort(); /* what they would tell is not made here */
        }
        f->queue = queue;
        return 0;
    }
    if (f->filter == EVFILT_PROC) {
#if !defined(__FreeBSD__)
        /* proc_find() in XNU's and NetBSD's filt_procattach() and PS_EXITING in OpenBSD's;
         * only FreeBSD's finds them, and tells at once. */
        if (standin_ended((int64_t)f->ident)) {
            errno = ESRCH;
            return -1;
        }
#endif
        f->source = (int)syscall(SYS_pidfd_open, (pid_t)f->ident, 0);
        if (f->source < 0) {
            return -1;
        }
    }
    else if (add_file(f, change->fflags) != 0) {
        return -1;
    }
    f->queue = queue;
    event.data.u64 = (uint64_t)(f - filters);
    return epoll_ctl(queue, EPOLL_CTL_ADD, f->source, &event);
}

int
kevent(int queue, const struct kevent *changes, int count, struct kevent *events, int room,
       const struct timespec *timeout)
{
    struct timespec left;
    int told = 0;

    if (!is_kqueue(queue)) {
        errno = EBADF;
        return -1;
    }
    pthread_mutex_lock(&lock);
    for (int i = 0; i < count; i++) {
        if (change(queue, &changes[i]) != 0) {
            pthread_mutex_unlock(&lock);
            if (room == 0) {
                return -1;
            }
            /* The error takes the place of an event, and what else there is to tell stays. */
            events[0] = changes[i];
            events[0].flags = EV_ERROR;
            events[0].data = errno;
            return 1;
        }
    }
    pthread_mutex_unlock(&lock);
    left = timeout == NULL ? (struct timespec){1000000, 0} : *timeout;
    while (room > 0 && told == 0) {
        struct epoll_event event;
        long n = syscall(SYS_epoll_pwait2, queue, &event, 1, &left, NULL, 0);
        filter *f;

        if (n <= 0) {
            return (int)n;
        }
        pthread_mutex_lock(&lock);
        f = &filters[event.data.u64];
        if (f->queue == queue && is_open(f)) {
            if (f->filter == EVFILT_VNODE) {
                wait_for_changes(f->path);
            }
            memset(events, 0, sizeof *events);
            events->ident = f->ident;
            events->filter = f->filter;
            told = 1;
        }
        if (f->queue == queue && (f->oneshot || !told)) {
            drop(f);
        }
        else if (f->queue == queue) {
            clear(f);
        }
        pthread_mutex_unlock(&lock);
    }
    return told;
}
