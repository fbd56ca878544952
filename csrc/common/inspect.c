/* Inspecting a path, and confirming later that it has not changed. */
#include <stdlib.h>
#include <string.h>

#include "core.h"

/* The identity of the file that was seen. */
semlock_file
semlock_file_of(const semlock_view *seen)
{
    semlock_file file;

    semlock_file_reset(&file);
    file.dev = seen->dev;
    file.ino = seen->ino;
    file.ino_high = seen->ino_high;
    file.local = seen->local;
    return file;
}

int
semlock_same_view(const semlock_view *a, const semlock_view *b)
{
    return a->ino == b->ino && a->ino_high == b->ino_high && a->dev == b->dev;
}

/* Read any file in one call, in which a signal can leave nothing open: how many bytes it has,
 * up to the capacity, or an error. */
int
semlock_read_file(const char *path, semlock_pool *pool, char *bytes, int32_t capacity)
{
    semlock_os_char room[SEMLOCK_PATH_ROOM];
    semlock_os_file opened;
    int outcome = semlock_os_path(room, path);

    semlock_enter(pool);
    if (outcome == 0) {
        outcome = semlock_open_to_read(room, &opened);
    }
    if (outcome == SEMLOCK_OK) {
        outcome = semlock_read_all(opened, bytes, capacity);
        semlock_os_close(opened);
    }
    else if (outcome > 0) {
        outcome = -ENOENT;
    }
    semlock_leave(pool);
    return outcome;
}

/* Read the record as it was while the file was at the path.  If two reads agree, and the path
 * named this file in between, the file was not being rewritten for its next use.  The witness
 * is read before the path is checked: a releasing holder drops it after its name is gone. */
static int
read_stable(semlock_os_file opened, const semlock_os_char *path, semlock_view *view,
            char *bytes, int32_t capacity)
{
    semlock_file file = semlock_file_of(view);
    char *again = malloc((size_t)capacity);
    int outcome = SEMLOCK_NO_MEMORY;
    int length = 0;

    if (again != NULL) {
        outcome = length = semlock_read_all(opened, bytes, capacity);
    }
    view->witness = semlock_system_witness(opened);
    if (view->witness == 0 && view->local == SEMLOCK_LAYERED) {
        view->witness = -1; /* it may be taken through another mount */
    }
    if (outcome >= 0) {
        outcome = semlock_still_at(path, &file);
        if (outcome == 1) {
            outcome = semlock_read_all(opened, again, capacity);
            if (outcome >= 0) {
                outcome = outcome == length && memcmp(bytes, again, (size_t)length) == 0
                              ? SEMLOCK_OK
                              : SEMLOCK_CHANGED;
            }
        }
        else if (outcome == 0) {
            outcome = SEMLOCK_CHANGED;
        }
    }
    free(again);
    view->length = length < 0 ? 0 : length;
    return outcome;
}

/* Has the file no record?  Zeros are what a filesystem shows of bytes that were not written.
 */
static int
has_no_record(const char *bytes, int32_t length)
{
    for (int32_t i = 0; i < length; i++) {
        if (bytes[i] != 0) {
            return 0;
        }
    }
    return 1;
}

static int
inspect(const char *path, semlock_view *view, char *bytes, int32_t capacity)
{
    semlock_os_char place[SEMLOCK_PATH_ROOM];
    semlock_view opened;
    semlock_os_file file;
    int outcome = semlock_os_path(place, path);

    memset(view, 0, sizeof *view);
    if (outcome == 0) {
        outcome = semlock_describe_path(place, view);
    }
    if (outcome != SEMLOCK_OK || view->kind != SEMLOCK_REGULAR) {
        return outcome;
    }
    outcome = semlock_open_to_read(place, &file);
    if (outcome != SEMLOCK_OK) {
        return outcome;
    }
    outcome = semlock_describe(file, &opened);
    if (outcome == 0 &&
        (!semlock_same_view(&opened, view) || opened.kind != SEMLOCK_REGULAR)) {
        outcome = SEMLOCK_CHANGED;
    }
    if (outcome == 0) {
        *view = opened;
        view->local = semlock_system_local(file);
        outcome = read_stable(file, place, view, bytes, capacity);
        if (outcome == SEMLOCK_OK && view->size > view->length) {
            outcome = SEMLOCK_TOO_LARGE;
        }
        if (outcome == SEMLOCK_OK && has_no_record(bytes, view->length)) {
            view->boot_mark = semlock_system_boot_mark(file, view);
        }
    }
    semlock_os_close(file);
    return semlock_is_gone(outcome) ? SEMLOCK_CHANGED : outcome;
}

/* SEMLOCK_OK with view and bytes; SEMLOCK_FREE if nothing is there; SEMLOCK_CHANGED if the
 * lock changed hands meanwhile, so that the caller inspects again; or an error.  Errors of
 * opening and reading the content (denied, not shared, locked, or too large, which comes with
 * as many bytes as fit) also come with a view. */
int
semlock_inspect(const char *path, semlock_pool *pool, semlock_view *view, char *bytes,
                int32_t capacity)
{
    int outcome;

    semlock_enter(pool);
    outcome = inspect(path, view, bytes, capacity);
    semlock_leave(pool);
    return outcome;
}

/* Is the inspected instance still at the path, unchanged?  Called after its process was found
 * to have ended: it may have released just before.  SEMLOCK_OK also if this is not known. */
int
semlock_confirm(const char *path, semlock_pool *pool, const semlock_view *judged)
{
    semlock_os_char place[SEMLOCK_PATH_ROOM];
    semlock_view now;
    int outcome;

    semlock_enter(pool);
    outcome = semlock_os_path(place, path);
    if (outcome == 0) {
        outcome = semlock_describe_path(place, &now);
    }
    if (outcome < 0) {
        outcome = SEMLOCK_OK;
    }
    else if (outcome == SEMLOCK_OK &&
             (!semlock_same_view(&now, judged) || now.ctime_ns != judged->ctime_ns)) {
        outcome = SEMLOCK_CHANGED;
    }
    semlock_leave(pool);
    return outcome;
}

/* Is the witness of the file at the path taken? 1, 0, or -1 if it is not known. */
int
semlock_witness_at(const char *path)
{
    semlock_os_char place[SEMLOCK_PATH_ROOM];
    semlock_os_file file;
    int taken;

    if (semlock_os_path(place, path) != 0 || semlock_open_to_read(place, &file) != 0) {
        return -1;
    }
    taken = semlock_system_witness(file);
    semlock_os_close(file);
    return taken;
}

/* For a status: does the kernel have the file locked?  It is locked for a moment to find
 * out. */
int
semlock_kernel_locked(const semlock_lock *lock, semlock_pool *pool)
{
    int is_free;

    semlock_enter(pool);
    is_free = semlock_kernel_is_free(lock);
    semlock_leave(pool);
    return !is_free;
}
