/* Linux: what changes in a directory, by inotify.
 *
 * A watch on a directory reports the names that are created, removed and moved in it, and the
 * close of each file that was open for writing.  The kernel closes the file of a killed
 * holder. A file that began without a name (O_TMPFILE) is reported as "#", its inode number:
 * so is a lock's, and that of a kept claim, also if it was created before the watch. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "posix/system.h"

#define GONE (IN_DELETE | IN_MOVED_FROM)
#define MADE (IN_CREATE | IN_MOVED_TO)
#define ENDED (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)

/* The mark of the watched directory, or an error.  The same directory has the same mark. */
int64_t
semlock_folder_watch(int64_t events, const char *directory)
{
    int mark;

    if (!semlock_system_hears(directory)) {
        return -EOPNOTSUPP; /* changes by other machines are not reported */
    }
    if (!semlock_events_ours(events)) {
        return -EBADF;
    }
    mark = inotify_add_watch((int)events, directory,
                             GONE | MADE | IN_CLOSE_WRITE | IN_DELETE_SELF | IN_MOVE_SELF |
                                 IN_ONLYDIR);
    return mark < 0 ? -errno : mark;
}

void
semlock_folder_unwatch(int64_t events, int64_t mark)
{
    semlock_events_unwatch(events, mark);
}

/* The number in "#123", 0 if the name is no such one. */
static uint64_t
inode_in(const char *name)
{
    uint64_t number = 0;

    if (*name++ != '#') {
        return 0;
    }
    for (; *name >= '0' && *name <= '9'; name++) {
        number = 10 * number + (uint64_t)(*name - '0');
    }
    return *name == 0 ? number : 0;
}

/* The next changes, whose names are in the buffer: how many; 0 for none; or an error: -EBADF
 * if the source was closed, or is the parent's. */
int
semlock_folder_changes(int64_t events, int64_t life, semlock_pool *pool, char *buffer,
                       int32_t size, semlock_change *changes)
{
    ssize_t n;
    int count = 0;

    if (events < 0) {
        return 0;
    }
    if (semlock_life(pool) != life || !semlock_events_ours(events)) {
        return -EBADF;
    }
    n = read((int)events, buffer, (size_t)size);
    if (n < 0) {
        return errno == EAGAIN ? 0 : -errno;
    }
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *event =
            (const struct inotify_event *)(const void *)(buffer + at);
        semlock_change *change = &changes[count++];

        change->mark = event->mask & IN_Q_OVERFLOW ? -1 : event->wd;
        change->what = event->mask & ENDED  ? SEMLOCK_WATCH_OVER
                       : event->mask & GONE ? SEMLOCK_NAME_GONE
                       : event->mask & MADE ? SEMLOCK_NAME_MADE
                                            : SEMLOCK_FILE_CLOSED;
        at += (ssize_t)sizeof *event;
        change->name = (int32_t)at;
        change->length = event->len == 0 ? 0 : (int32_t)strlen(buffer + at);
        change->ino = event->len == 0 ? 0 : inode_in(buffer + at);
        at += (ssize_t)event->len;
    }
    return count;
}
