/* POSIX: rewriting the record of a foreign program in place.
 *
 * The file stays the same inode at the same path, so its holder keeps holding it.  Readers
 * without the guard see every intermediate state, and may take half a record for a free lock.
 * So the file first gets its new length, by blanks after the old record, which have no meaning
 * there.  Then all of it is overwritten by one call, within one page.  A kill leaves the old
 * record, with or without blanks, or the new one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "posix/system.h"

/* Does the file have exactly these bytes?  One call, so that no write can fall between two
 * reads. */
static int
holds(int fd, const char *bytes, int32_t length)
{
    char now[SEMLOCK_REWRITE_LIMIT + 1];
    ssize_t found = pread(fd, now, (size_t)length + 1, 0);

    if (found < 0) {
        return -errno;
    }
    return found == length && memcmp(now, bytes, (size_t)length) == 0 ? SEMLOCK_OK
                                                                      : SEMLOCK_CHANGED;
}

/* Append bytes, at the file's end at that moment: if a foreign program has just truncated the
 * file, bytes at the old end would leave a hole of zeros.  (On Linux pwrite appends with
 * O_APPEND; elsewhere it writes at the end as it was a moment ago.) */
static int
append(int fd, const char *bytes, int32_t length, int32_t end)
{
    ssize_t n;
    int outcome;

    if (fcntl(fd, F_SETFL, O_APPEND) != 0) {
        return -errno;
    }
    n = pwrite(fd, bytes, (size_t)length, end);
    outcome = n == length ? SEMLOCK_OK : (n < 0 ? -errno : -ENOSPC);
    if (fcntl(fd, F_SETFL, 0) != 0 && outcome == SEMLOCK_OK) {
        outcome = -errno;
    }
    return outcome;
}

static int
rewrite_guarded(int fd, const char *path, const semlock_view *judged, const char *bytes,
                const char *text, int32_t length)
{
    semlock_file file = {.dev = judged->dev, .ino = judged->ino};
    int32_t before = judged->length;
    char padded[SEMLOCK_REWRITE_LIMIT];
    semlock_view opened;
    int outcome = semlock_describe(fd, &opened);

    if (outcome != 0) {
        return outcome;
    }
    outcome = semlock_still_at(path, &file);
    if (outcome < 0) {
        return outcome;
    }
    if (outcome == 0 || opened.ino != judged->ino || opened.dev != judged->dev) {
        return SEMLOCK_LOST;
    }
    outcome = holds(fd, bytes, before);
    if (outcome == SEMLOCK_OK && semlock_system_witness(fd) == 1) {
        outcome = SEMLOCK_ALIVE;
    }
    memcpy(padded, bytes, (size_t)before);
    memset(padded + before, ' ', (size_t)(length - before));
    if (outcome == SEMLOCK_OK && length > before) {
        outcome = append(fd, padded + before, length - before, before);
        if (outcome == SEMLOCK_OK) {
            outcome = holds(fd, padded, length);
        }
    }
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = semlock_write_all(fd, text, length);
    if (outcome != 0) {
        semlock_write_all(fd, padded, length); /* restore the old record */
        return outcome;
    }
    return semlock_system_sync(fd, SEMLOCK_SYNC_FULL, 0);
}

static int
rewrite_judged(const char *path, const semlock_view *judged, const char *bytes,
               const char *text, int32_t length)
{
    int fd, guard, outcome;

    if (length < judged->length || length > SEMLOCK_REWRITE_LIMIT) {
        return -EINVAL;
    }
    fd = semlock_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0);
    if (fd < 0) {
        return errno == ENOENT || errno == ENOTDIR || semlock_is_link(errno) ? SEMLOCK_LOST
                                                                             : -errno;
    }
    guard = semlock_guard(fd);
    if (guard == SEMLOCK_GUARDED) {
        close(fd);
        return guard;
    }
    /* Without flock the write goes on: foreign programs, whose file it is, take no guard
     * anyway. */
    outcome = rewrite_guarded(fd, path, judged, bytes, text, length);
    semlock_unguard(fd);
    close(fd);
    return outcome;
}

/* Replace the judged record by a text of at least the same length. */
int
semlock_rewrite(const char *path, semlock_pool *pool, const semlock_view *judged,
                const char *bytes, const char *text, int32_t length)
{
    int outcome;

    semlock_enter(pool);
    outcome = rewrite_judged(path, judged, bytes, text, length);
    semlock_leave(pool);
    return outcome;
}
