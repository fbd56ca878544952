/* Linux: what changes in a directory, by inotify.
 *
 * A watch on a directory reports the names that are created, removed and moved in it, and the
 * close of each file that was open for writing.  The kernel closes the file of a killed
 * holder. A file that began without a name (O_TMPFILE) is reported as "#", its inode number:
 * so is a lock's, and that of a kept claim, also if it was created before the watch. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "posix/system.h"

#define GONE (IN_DELETE | IN_MOVED_FROM)
#define MADE (IN_CREATE | IN_MOVED_TO)
#define ENDED (IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT | IN_IGNORED)
#define LARGEST (ssize_t)(sizeof(struct inotify_event) + NAME_MAX + 1)
#define KEPT (sizeof ".kept" - 1)

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

/* The file of a kept claim comes and goes with a lock: that says nothing more. */
static int
is_of_kept_claim(const char *name, size_t length)
{
    return length > KEPT && strncmp(name, SEMLOCK_OWN, sizeof SEMLOCK_OWN - 1) == 0 &&
           strcmp(name + length - KEPT, ".kept") == 0;
}

/* The next changes: how many; or an error: -EBADF if the source was closed, or is the
 * parent's. */
int
semlock_folder_changes(int64_t events, int64_t life, semlock_pool *pool, semlock_news *news)
{
    ssize_t n;
    int count = 0;

    if (events < 0) {
        return 0;
    }
    if (semlock_life(pool) != life || !semlock_events_ours(events)) {
        return -EBADF;
    }
    n = read((int)events, news->names, sizeof news->names);
    if (n < 0) {
        return errno == EAGAIN ? 0 : -errno;
    }
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *event =
            (const struct inotify_event *)(const void *)(news->names + at);
        const char *name = news->names + at + sizeof *event;
        size_t length = event->len == 0 ? 0 : strlen(name);
        semlock_change *change = &news->changes[count];

        at += (ssize_t)sizeof *event + (ssize_t)event->len;
        if (is_of_kept_claim(name, length)) {
            continue;
        }
        count++;
        change->mark = event->mask & IN_Q_OVERFLOW ? -1 : event->wd;
        change->what = event->mask & ENDED  ? SEMLOCK_WATCH_OVER
                       : event->mask & GONE ? SEMLOCK_NAME_GONE
                       : event->mask & MADE ? SEMLOCK_NAME_MADE
                                            : SEMLOCK_FILE_CLOSED;
        change->name = (int32_t)(name - news->names);
        change->length = (int32_t)length;
        change->ino = length == 0 ? 0 : inode_in(name);
    }
    if (n + LARGEST > (ssize_t)sizeof news->names) { /* the next one had no room */
        news->changes[count].mark = news->changes[count].length = 0;
        news->changes[count++].what = SEMLOCK_READ_AGAIN;
    }
    return count;
}
