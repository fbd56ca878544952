/* Windows: waiting for a lock to change hands, told in semlock.h under WAITING.
 *
 * The system tells of every name that comes or goes in a directory, so the directory of the
 * lock is watched and not its file, and a mark is such a watch.  Watched first and looked at
 * then: a change after the look is told, and one before it is seen.
 *
 * That a holder has died is told by its process, if the caller has named that.  Otherwise its
 * witness is asked from time to time.  Python can't be woken here to run a signal handler, so
 * a wait comes back to it that often anyway, as if it had been interrupted. */
#include <errno.h>
#include <string.h>

#include "windows_system.h"

#define SLICE 100000000 /* nanoseconds that a signal handler may have to wait */
#define RACES 16
#define MOST (MAXIMUM_WAIT_OBJECTS - 2) /* paths in a wait that can hear */

/* Nobody else reads the events of a wait here. */
int64_t
semlock_events_take(semlock_pool *pool)
{
    (void)pool;
    return -1;
}

void
semlock_events_give(semlock_pool *pool, int64_t events)
{
    (void)pool;
    (void)events;
}

int
semlock_events_read(int64_t events, int64_t *marks, int32_t room)
{
    (void)events;
    (void)marks;
    (void)room;
    return 0;
}

int
semlock_waiting_told(semlock_waiting *waiting, const int64_t *marks, int32_t count)
{
    (void)waiting;
    (void)marks;
    (void)count;
    return 0;
}

static HANDLE
handle_of(int64_t number)
{
    return (HANDLE)(intptr_t)number;
}

/* Have it told when a name comes or goes in a directory.  The mark stays -1 if that can't
 * be. */
void
semlock_watch_directory(int64_t *mark, const WCHAR *directory)
{
    HANDLE handle;

    if (*mark == -1) {
        handle = FindFirstChangeNotificationW(directory, FALSE, FILE_NOTIFY_CHANGE_FILE_NAME);
        *mark = handle == INVALID_HANDLE_VALUE ? -1 : (int64_t)(intptr_t)handle;
    }
}

void
semlock_unwatch(int64_t *mark)
{
    if (*mark != -1) {
        FindCloseChangeNotification(handle_of(*mark));
    }
    *mark = -1;
}

/* The directory of a path, as a path of its own. */
static int
directory_of(WCHAR *room, const char *path)
{
    int32_t length = (int32_t)strlen(path);

    while (length > 0 && path[length - 1] != '/' && path[length - 1] != '\\') {
        length--;
    }
    return semlock_join(room, path, length, "");
}

/* Does this machine hear of every change in this directory?  Not where others make them. */
static int
hears(const char *path)
{
    WCHAR directory[SEMLOCK_WIDE_ROOM];
    HANDLE handle;
    int local;

    if (directory_of(directory, path) != 0) {
        return 0;
    }
    handle = CreateFileW(directory, FILE_READ_ATTRIBUTES, SEMLOCK_SHARE_ALL, NULL,
                         OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        return 0;
    }
    local = semlock_is_local(handle);
    CloseHandle(handle);
    return local;
}

/* Begin a wait whose places and paths are filled in. */
int
semlock_waiting_start(semlock_waiting *waiting, semlock_pool *pool)
{
    int deaf;

    waiting->started = 1;
    waiting->queued = -1;
    (void)pool;
    for (int32_t i = 0; i < waiting->count; i++) {
        waiting->watches[i].mark = -1;
        waiting->watches[i].due = 1;
    }
    waiting->process = waiting->events = -1;
    deaf = waiting->count > MOST ||
           !hears(waiting->place != NULL ? waiting->place->path : waiting->watches[0].path);
    /* A loop's wait is told nothing, but looks often enough to stand in a queue. */
    waiting->blind = waiting->lent || deaf;
    if (waiting->place != NULL) {
        waiting->place->ticket.handle = waiting->place->mark = -1;
        waiting->place->refused = deaf;
    }
    return waiting->blind ? SEMLOCK_BLIND : SEMLOCK_OK;
}

/* Is the witness of the file at the path taken?  1, 0, or -1 if nobody can tell. */
static int
witness_at(const WCHAR *path)
{
    HANDLE handle = CreateFileW(path, GENERIC_READ, SEMLOCK_SHARE_ALL, NULL, OPEN_EXISTING,
                                FILE_FLAG_OPEN_REPARSE_POINT, NULL);
    int taken;

    if (handle == INVALID_HANDLE_VALUE) {
        return -1;
    }
    taken = semlock_witness(handle);
    CloseHandle(handle);
    return taken;
}

/* Need nobody judge this instance?  Not if its holder vouches for itself by its witness, nor
 * if the caller has judged it already; but if the witness was taken when it was seen last
 * (`dev` and `ino` of the watch) and is not now, then it must be judged again. */
static int
vouched_for(semlock_watch *watch, const WCHAR *path, const semlock_view *seen,
            semlock_pool *pool)
{
    int judged = watch->judged_ino == seen->ino && watch->judged_dev == seen->dev &&
                 watch->judged_ctime_ns == seen->ctime_ns;
    int had_witness = watch->ino == seen->ino && watch->dev == seen->dev;

    if (!judged && semlock_held_here(pool, seen->ino)) {
        return 0; /* the caller may be about to wait for itself */
    }
    if (seen->kind != SEMLOCK_REGULAR) {
        return judged;
    }
    watch->ino = watch->dev = 0;
    if (witness_at(path) == 1) {
        watch->ino = seen->ino;
        watch->dev = seen->dev;
        return 1;
    }
    return judged && !had_witness;
}

/* SEMLOCK_FREE if there is nothing at the path, SEMLOCK_LOOK if it must be judged, or
 * SEMLOCK_ARMED. */
static int
look_at_path(semlock_watch *watch, semlock_pool *pool)
{
    WCHAR path[SEMLOCK_WIDE_ROOM];
    semlock_view seen;
    HANDLE handle;
    int outcome = semlock_wide(path, watch->path, (int32_t)strlen(watch->path));

    if (outcome != 0) {
        return SEMLOCK_FREE; /* the try says what is wrong with it */
    }
    handle = CreateFileW(path, FILE_READ_ATTRIBUTES, SEMLOCK_SHARE_ALL, NULL, OPEN_EXISTING,
                         FILE_FLAG_OPEN_REPARSE_POINT | FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (handle == INVALID_HANDLE_VALUE) {
        /* What is there and can't be looked at is on its way out, and that will be told. */
        return semlock_exists(path) == 1 ? SEMLOCK_ARMED : SEMLOCK_FREE;
    }
    outcome = semlock_describe(handle, &seen);
    CloseHandle(handle);
    if (outcome != 0) {
        return SEMLOCK_LOOK;
    }
    return vouched_for(watch, path, &seen, pool) ? SEMLOCK_ARMED : SEMLOCK_LOOK;
}

static int
look(semlock_waiting *waiting, semlock_watch *watch, semlock_pool *pool)
{
    WCHAR directory[SEMLOCK_WIDE_ROOM];
    int outcome;

    if (!waiting->blind) {
        if (directory_of(directory, watch->path) == 0) {
            semlock_watch_directory(&watch->mark, directory);
        }
        waiting->blind = watch->mark == -1;
    }
    outcome = look_at_path(watch, pool);
    if (outcome == SEMLOCK_ARMED) {
        watch->due = 0;
    }
    return outcome;
}

/* Make sure, before standing in a queue, that the lock's holder lives and is not the caller.
 */
static int
look_first(semlock_waiting *waiting, semlock_pool *pool)
{
    for (int32_t i = 0; i < waiting->count; i++) {
        if (look_at_path(&waiting->watches[i], pool) == SEMLOCK_LOOK) {
            waiting->which = i;
            return SEMLOCK_LOOK;
        }
    }
    waiting->looked = 1;
    return SEMLOCK_OK;
}

static int
stand_in_queue(semlock_waiting *waiting)
{
    WCHAR path[SEMLOCK_WIDE_ROOM];
    semlock_place *place = waiting->place;
    int asked = place->due || place->ticket.handle == -1;
    int outcome = semlock_place_update(place, waiting);
    int free = 0;

    if (outcome == SEMLOCK_OK || !asked) {
        return outcome;
    }
    for (int32_t i = 0; i < waiting->count && !free; i++) {
        const char *name = waiting->watches[i].path;

        free = (waiting->queued < 0 || waiting->queued == i) &&
               semlock_wide(path, name, (int32_t)strlen(name)) == 0 &&
               semlock_exists(path) == 0;
    }
    semlock_place_overtake(place, free);
    return outcome;
}

/* See to it that something will be told when there is a change; or say that it has changed. */
int
semlock_waiting_arm(semlock_waiting *waiting, semlock_pool *pool)
{
    int outcome, behind = SEMLOCK_OK;

    if (waiting->place != NULL) {
        outcome = waiting->looked ? SEMLOCK_OK : look_first(waiting, pool);
        if (outcome != SEMLOCK_OK) {
            return outcome;
        }
        behind = stand_in_queue(waiting);
        if (behind != SEMLOCK_OK && waiting->queued < 0) {
            return behind;
        }
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        if (waiting->watches[i].due && (behind == SEMLOCK_OK || i != waiting->queued)) {
            outcome = look(waiting, &waiting->watches[i], pool);
            if (outcome != SEMLOCK_ARMED) {
                waiting->which = i;
                return outcome;
            }
        }
    }
    return waiting->blind || behind == SEMLOCK_BLIND ? SEMLOCK_BLIND : SEMLOCK_ARMED;
}

/* Everything must be looked at again. */
void
semlock_waiting_due(semlock_waiting *waiting)
{
    if (waiting->place != NULL) {
        waiting->place->due = 1;
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        waiting->watches[i].due = 1;
    }
}

/* Something was told: have it looked at, and the next thing told. */
static void
take_in(int64_t *mark, int32_t *due)
{
    *due = 1;
    if (!FindNextChangeNotification(handle_of(*mark))) {
        semlock_unwatch(mark);
    }
}

/* Wait for one of the handles of a wait, rounded up to milliseconds: which one, or -1. */
static int
sleep_on(const HANDLE *handles, DWORD count, int64_t left)
{
    DWORD milliseconds = left <= 0 ? 0 : (DWORD)((left + 999999) / 1000000);
    DWORD woken;

    if (count == 0) {
        Sleep(milliseconds);
        return -1;
    }
    woken = WaitForMultipleObjects(count, handles, FALSE, milliseconds);
    if (woken == WAIT_FAILED) {
        Sleep(1); /* it must not become a loop without a pause */
        return -1;
    }
    return woken < WAIT_OBJECT_0 + count ? (int)(woken - WAIT_OBJECT_0) : -1;
}

/* Sleep until something is told, until a time or until Python may want to run a signal
 * handler: SEMLOCK_OK, SEMLOCK_LOOK if the holder has ended, SEMLOCK_TIME or -EINTR. */
int
semlock_waiting_sleep(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    HANDLE handles[MAXIMUM_WAIT_OBJECTS];
    int64_t *marks[MAXIMUM_WAIT_OBJECTS];
    int32_t *dues[MAXIMUM_WAIT_OBJECTS];
    int64_t now = semlock_now_ns();
    int64_t end = until < now + SLICE ? until : now + SLICE;
    DWORD count = 0;
    int woken;

    (void)pool;
    if (waiting->process != -1) {
        marks[count] = &waiting->process;
        handles[count++] = handle_of(waiting->process);
    }
    if (waiting->place != NULL && waiting->place->mark != -1) {
        marks[count] = &waiting->place->mark;
        dues[count] = &waiting->place->due;
        handles[count++] = handle_of(waiting->place->mark);
    }
    for (int32_t i = 0; i < waiting->count && i < MOST; i++) {
        if (waiting->watches[i].mark != -1) {
            marks[count] = &waiting->watches[i].mark;
            dues[count] = &waiting->watches[i].due;
            handles[count++] = handle_of(waiting->watches[i].mark);
        }
    }
    woken = sleep_on(handles, count, end - now);
    if (woken < 0) {
        /* A wait that failed is over before its time. */
        return semlock_now_ns() >= until ? SEMLOCK_TIME : -EINTR;
    }
    if (marks[woken] == &waiting->process) {
        CloseHandle(handle_of(waiting->process)); /* the holder has ended; look what it left */
        waiting->process = -1;
        waiting->which = waiting->followed;
        semlock_waiting_due(waiting);
        return SEMLOCK_LOOK;
    }
    take_in(marks[woken], dues[woken]);
    return SEMLOCK_OK;
}

/* Wait in one call, until there is something to do (SEMLOCK_FREE: try; SEMLOCK_LOOK: judge),
 * no event can help any more (SEMLOCK_BLIND), the time is over (SEMLOCK_TIME), or Python may
 * want to run a signal handler (-EINTR). */
int
semlock_waiting_wait(semlock_waiting *waiting, semlock_pool *pool, int64_t until)
{
    int64_t end = semlock_now_ns() + SLICE;

    for (;;) {
        int outcome = semlock_waiting_arm(waiting, pool);

        if (outcome != SEMLOCK_ARMED) {
            return outcome;
        }
        outcome = semlock_waiting_sleep(waiting, pool, until < end ? until : end);
        if (outcome != SEMLOCK_OK) {
            semlock_waiting_due(waiting); /* the witness is asked then, too */
            return outcome != SEMLOCK_TIME || until < end ? outcome : -EINTR;
        }
    }
}

/* Wait, and try as soon as it makes sense; as in posix_wait.c. */
int
semlock_waiting_take(semlock_waiting *waiting, semlock_lock *lock, semlock_pool *pool,
                     int64_t until)
{
    for (int races = 0; races < RACES; races++) {
        int outcome = semlock_waiting_wait(waiting, pool, until);

        if (outcome != SEMLOCK_FREE) {
            return outcome;
        }
        outcome = semlock_try_free(lock, pool);
        if (outcome == SEMLOCK_OK) {
            semlock_waiting_end(waiting, pool, lock);
        }
        if (outcome != SEMLOCK_HELD && outcome != SEMLOCK_LOOK) {
            return outcome;
        }
    }
    return SEMLOCK_HELD;
}

/* Give up the place in the queue, and go on waiting. */
void
semlock_waiting_leave(semlock_waiting *waiting, semlock_pool *pool)
{
    if (waiting->place != NULL) {
        semlock_enter(pool);
        semlock_place_leave(waiting->place, waiting, NULL);
        semlock_leave(pool);
    }
    waiting->place = NULL;
    waiting->queued = -1;
}

/* May the caller try now, without passing by those who came before? */
int
semlock_waiting_in_turn(const semlock_waiting *waiting, int fair)
{
    const semlock_place *place = waiting->place;

    if (place == NULL || place->refused ||
        (waiting->queued >= 0 && waiting->queued != waiting->which)) {
        return 1;
    }
    return place->ticket.handle != -1 ? place->before == 0 : !fair;
}

/* Hear of the end of the holder's process too. */
int
semlock_waiting_follow(semlock_waiting *waiting, int64_t pid, int64_t start)
{
    int fate;

    if (waiting->process != -1) {
        CloseHandle(handle_of(waiting->process));
    }
    waiting->process = semlock_process_open(pid);
    waiting->followed = waiting->which;
    fate = semlock_probe(pid, start);
    if (fate == SEMLOCK_GONE || fate == SEMLOCK_RECYCLED || fate == SEMLOCK_ZOMBIE) {
        /* It ended before it could be followed: what was judged is so no more. */
        waiting->watches[waiting->which].judged_ino = 0;
        return SEMLOCK_LOOK;
    }
    return SEMLOCK_OK;
}

/* The wait is over, however it ended: with a lock that was won, or without one. */
void
semlock_waiting_end(semlock_waiting *waiting, semlock_pool *pool, semlock_lock *won)
{
    (void)pool;
    if (!waiting->started) {
        return;
    }
    if (won != NULL) {
        won->waited = 1;
    }
    if (waiting->place != NULL) {
        semlock_place_leave(waiting->place, waiting, won);
    }
    for (int32_t i = 0; i < waiting->count; i++) {
        semlock_unwatch(&waiting->watches[i].mark);
    }
    if (waiting->process != -1) {
        CloseHandle(handle_of(waiting->process));
        waiting->process = -1;
    }
}

/* Windows has no fork, so nobody comes here with a wait of another process. */
void
semlock_waiting_forget(semlock_waiting *waiting)
{
    semlock_waiting_end(waiting, NULL, NULL);
}
