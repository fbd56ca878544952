/* Changing what was judged: removing it, for reclaim, clean and force, and rewriting its
 * record.  There is one way to remove a file: semlock.h, REMOVING. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* Is the open file still in the state that was judged, apart from its bytes?  A file that was
 * unfinished then and is finished now has a holder, its creator.  The ctime tells a foreign
 * program's new empty file from the old one whose inode number it got.  For a file too long to
 * be read it replaces the comparison of the bytes.  A harmless change costs one more
 * inspection.  (The mtime is compared for Windows, where a touch may leave the ctime.) */
static int
same_state(semlock_os_file file, const semlock_view *judged)
{
    semlock_view now;
    int outcome = semlock_describe(file, &now);

    if (outcome != 0) {
        return outcome;
    }
    return now.unfinished == judged->unfinished && now.size == judged->size &&
                   now.ctime_ns == judged->ctime_ns && now.mtime_ns == judged->mtime_ns
               ? SEMLOCK_OK
               : SEMLOCK_CHANGED;
}

/* Is it still what was judged, and is the witness still free?  Called after the path was
 * checked. */
static int
compare(semlock_os_file file, const semlock_view *judged, const char *bytes, int32_t flags)
{
    char small[1024];
    char *now = small;
    int32_t room = judged->length + (judged->size > judged->length ? 0 : 1);
    int outcome = same_state(file, judged);
    int length;

    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    if (room > (int32_t)sizeof small) {
        now = malloc((size_t)room);
        if (now == NULL) {
            return SEMLOCK_NO_MEMORY;
        }
    }
    length = semlock_read_at(file, now, room, 0); /* less at once is a change too */
    if (length < 0) {
        outcome = length == SEMLOCK_CONTENT_LOCKED ? SEMLOCK_GUARDED : length;
    }
    else if (length != judged->length || memcmp(now, bytes, (size_t)length) != 0) {
        outcome = SEMLOCK_CHANGED;
    }
    else if (!(flags & SEMLOCK_DESPITE_WITNESS) && semlock_hold_off(file) == 1) {
        outcome = SEMLOCK_ALIVE;
    }
    if (now != small) {
        free(now);
    }
    return outcome;
}

/* Remove the instance that was judged, and is open; closes it. */
int
semlock_remove_judged(const char *path, const semlock_os_char *place, semlock_os_file opened,
                      semlock_pool *pool, const semlock_view *judged, const char *bytes,
                      int32_t flags)
{
    semlock_file file = semlock_file_of(judged);
    int guard, still, outcome;

    guard = semlock_guard_judged(place, &file, &opened);
    if (semlock_is_kept_out(guard)) {
        semlock_os_close(opened);
        return guard;
    }
    still = semlock_still_at(place, &file);
    outcome = still == 1 ? compare(opened, judged, bytes, flags)
                         : (still == 0 ? SEMLOCK_LOST : still);
    if (outcome == SEMLOCK_OK) {
        outcome = semlock_remove_opened(path, judged, opened, guard, pool);
    }
    semlock_close_guarded(opened);
    return semlock_is_gone(outcome) ? SEMLOCK_LOST : outcome;
}

/* Remove exactly the instance that was judged, never one that replaced it. */
int
semlock_remove(const char *path, semlock_pool *pool, const semlock_view *judged,
               const char *bytes, int32_t flags)
{
    semlock_os_char place[SEMLOCK_PATH_ROOM];
    semlock_file file = semlock_file_of(judged);
    semlock_os_file opened;
    int outcome = semlock_os_path(place, path);

    semlock_enter(pool);
    if (outcome == 0) {
        outcome = semlock_open_to_remove(place, &file, &opened);
    }
    if (outcome == SEMLOCK_OK) {
        outcome = semlock_remove_judged(path, place, opened, pool, judged, bytes, flags);
    }
    else if (semlock_is_gone(outcome)) {
        outcome = SEMLOCK_LOST;
    }
    semlock_leave(pool);
    return outcome;
}

/* Does the file have exactly these bytes?  One call, so that no write can fall between two
 * reads. */
static int
holds(semlock_os_file file, const char *bytes, int32_t length)
{
    char now[SEMLOCK_REWRITE_LIMIT + 1];
    int found = semlock_read_at(file, now, length + 1, 0);

    if (found < 0) {
        return found;
    }
    return found == length && memcmp(now, bytes, (size_t)length) == 0 ? SEMLOCK_OK
                                                                      : SEMLOCK_CHANGED;
}

/* The file stays the same at the same path, so its holder keeps holding it.  Readers without
 * the guard see every intermediate state, and may take half a record for a free lock.  So the
 * file first gets its new length, by blanks after the old record, which have no meaning there.
 * Then all of it is overwritten by one call, within one page.  A kill leaves the old record,
 * with or without blanks, or the new one. */
static int
rewrite_guarded(semlock_os_file opened, const semlock_os_char *place,
                const semlock_view *judged, const char *bytes, const char *text,
                int32_t length)
{
    semlock_file file = semlock_file_of(judged);
    int32_t before = judged->length;
    char padded[SEMLOCK_REWRITE_LIMIT];
    semlock_view now;
    int still;
    int outcome = semlock_describe(opened, &now);

    if (outcome != 0) {
        return outcome;
    }
    still = semlock_same_view(&now, judged) ? semlock_still_at(place, &file) : 0;
    if (still != 1) {
        return still == 0 ? SEMLOCK_LOST : still;
    }
    outcome = holds(opened, bytes, before);
    if (outcome == SEMLOCK_OK && semlock_system_witness(opened) == 1) {
        outcome = SEMLOCK_ALIVE;
    }
    memcpy(padded, bytes, (size_t)before);
    memset(padded + before, ' ', (size_t)(length - before));
    if (outcome == SEMLOCK_OK && length > before) {
        outcome = semlock_append(opened, padded + before, length - before, before);
        if (outcome == SEMLOCK_OK) {
            outcome = holds(opened, padded, length);
        }
    }
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = semlock_write_all(opened, text, length);
    if (outcome != 0) {
        semlock_write_all(opened, padded, length); /* restore the old record */
        return outcome;
    }
    return semlock_system_sync(opened, SEMLOCK_SYNC_FULL, 0);
}

static int
rewrite_judged(const char *path, const semlock_view *judged, const char *bytes,
               const char *text, int32_t length)
{
    semlock_os_char place[SEMLOCK_PATH_ROOM];
    semlock_os_file file;
    int guard;
    int outcome = semlock_os_path(place, path);

    if (outcome == 0 && (length < judged->length || length > SEMLOCK_REWRITE_LIMIT)) {
        outcome = SEMLOCK_BAD_ARGUMENT;
    }
    if (outcome == 0) {
        outcome = semlock_open_to_write(place, &file);
    }
    if (outcome != 0) {
        return outcome;
    }
    guard = semlock_guard(file);
    if (semlock_is_kept_out(guard)) {
        semlock_os_close(file);
        return guard;
    }
    /* Without a guard the write goes on: foreign programs, whose file it is, take none anyway.
     */
    outcome = rewrite_guarded(file, place, judged, bytes, text, length);
    semlock_close_guarded(file);
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
