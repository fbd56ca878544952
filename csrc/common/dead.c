/* Judging the holder of a semlock record in the core (semlock.h, PROOF OF DEATH).
 *
 * Only the plain case is decided here: a record exactly as semlock writes it, of this boot and
 * this PID namespace, whose witness was kept and is free, and whose process has ended.  The
 * caller judges everything else.  So what is dead here is dead by the caller's rule too. */
#include <string.h>

#include "core.h"

#define LONGEST 1024 /* bytes of a record that is judged here */
#define DIGITS 18    /* of a number; most of Windows' PID spaces have more: not judged here */
#define TOKEN 32

/* What is left of a record. */
typedef struct {
    const char *at;
    const char *end;
} rest;

static int
comes(rest *text, const char *expected)
{
    size_t length = strlen(expected);

    if ((size_t)(text->end - text->at) < length || memcmp(text->at, expected, length) != 0) {
        return 0;
    }
    text->at += length;
    return 1;
}

static int
number(rest *text, const char *key, int64_t *value)
{
    int digits = 0;

    *value = 0;
    if (!comes(text, key)) {
        return 0;
    }
    for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
        if (++digits > DIGITS) {
            return 0;
        }
        *value = 10 * *value + (*text->at - '0');
    }
    return digits > 0 && comes(text, "\n");
}

/* Skip a line for people, if it comes.  One that is not plain ASCII is left where it is. */
static void
skip_line(rest *text, const char *key)
{
    rest line = *text;

    if (!comes(&line, key)) {
        return;
    }
    while (line.at < line.end && *line.at >= ' ' && *line.at <= '~') {
        line.at++;
    }
    if (comes(&line, "\n")) {
        *text = line;
    }
}

static int
token(rest *text)
{
    if (!comes(text, "token=") || text->end - text->at < TOKEN) {
        return 0;
    }
    for (int i = 0; i < TOKEN; i++, text->at++) {
        char digit = *text->at;

        if (!((digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f'))) {
            return 0;
        }
    }
    return comes(text, "\n");
}

/* Which process does the record name, if it is semlock's own, of this boot and this PID
 * namespace, and says that the witness was kept?  0: it is another one. */
static int
names_process(const char *bytes, int32_t length, const semlock_pool *pool, int64_t *pid,
              int64_t *start)
{
    rest text = {bytes, bytes + length};
    int64_t seconds, pidns = 0;

    if (pool->boot_id[0] == 0 || !number(&text, "pid=", pid) ||
        !number(&text, "timestamp=", &seconds)) {
        return 0;
    }
    skip_line(&text, "tag=");
    skip_line(&text, "host=");
    if (!number(&text, "start=", start) || !comes(&text, "boot=") ||
        !comes(&text, pool->boot_id) || !comes(&text, "\n") ||
        (pool->pidns != 0 && !number(&text, "pidns=", &pidns))) {
        return 0;
    }
    return (uint64_t)pidns == pool->pidns && token(&text) && comes(&text, "witness=kept\n") &&
           text.at == text.end && *pid > 0 && *start > 0;
}

/* The PID of a text record, whose first line it is; 0 if there is none. */
static int64_t
pid_in(semlock_os_file file)
{
    char bytes[24];
    rest text = {bytes, bytes};
    int64_t pid;
    int length = semlock_read_at(file, bytes, sizeof bytes, 0);

    if (length > 0) {
        text.end += length;
    }
    return number(&text, "pid=", &pid) ? pid : 0;
}

/* Judge the holder of an open file whose witness was free a moment ago: SEMLOCK_FREE if it is
 * dead, and else as semlock_judge_holder. */
static int
judge(semlock_os_file file, int64_t patience, semlock_holder *holder, semlock_view *seen,
      const semlock_pool *pool, char *bytes)
{
    int local, fate;

    if (semlock_describe(file, seen) != 0 || seen->kind != SEMLOCK_REGULAR ||
        seen->unfinished || seen->size >= LONGEST) {
        return SEMLOCK_LOOK;
    }
    local = semlock_system_local(file);
    if (local == 0 || local == SEMLOCK_LAYERED) {
        return SEMLOCK_LOOK; /* the witness may be taken, unseen from here */
    }
    seen->local = local;
    seen->length = semlock_read_at(file, bytes, LONGEST, 0);
    if (seen->length != seen->size ||
        !names_process(bytes, seen->length, pool, &holder->pid, &holder->start)) {
        return SEMLOCK_LOOK;
    }
    fate = semlock_probe_ending(holder->pid, holder->start, patience);
    if (fate == SEMLOCK_RUNS) {
        return SEMLOCK_ALIVE;
    }
    return fate == SEMLOCK_GONE || fate == SEMLOCK_RECYCLED || fate == SEMLOCK_ZOMBIE
               ? SEMLOCK_FREE
               : SEMLOCK_LOOK;
}

/* Is the record still the one that was judged, under the guard, and the witness free? */
static int
is_same(semlock_os_file file, const semlock_view *seen, const char *bytes)
{
    char now[LONGEST];

    return semlock_read_at(file, now, LONGEST, 0) == seen->length &&
           memcmp(now, bytes, (size_t)seen->length) == 0 && semlock_hold_off(file) != 1;
}

/* The holder is dead: remove its file; closes it.
 *
 * This asks less than semlock_remove_judged, which doesn't know why a file is removed.  It
 * need not see the path before the bytes: the file of a released lock is written anew while it
 * is not at the path, but only by a process that has its witness.  That was free before the
 * record was read, and the process of the record has ended since, so none is left. */
static int
remove_dead(const char *path, const semlock_os_char *place, semlock_os_file file,
            semlock_pool *pool, const semlock_view *seen, const char *bytes)
{
    semlock_file exact = semlock_file_of(seen);
    int outcome = SEMLOCK_CHANGED;
    int guard;

    if (semlock_reopen_to_remove(place, &exact, &file) != SEMLOCK_OK) {
        return SEMLOCK_LOOK;
    }
    guard = semlock_guard_judged(place, &exact, &file);
    if (semlock_is_kept_out(guard)) {
        semlock_os_close(file);
        return SEMLOCK_LOOK;
    }
    if (is_same(file, seen, bytes)) {
        outcome = semlock_remove_opened(path, seen, file, guard, pool);
    }
    semlock_close_guarded(file);
    return outcome == SEMLOCK_OK || outcome == SEMLOCK_LOST || outcome == SEMLOCK_CHANGED ||
                   semlock_is_gone(outcome)
               ? SEMLOCK_FREE
               : SEMLOCK_LOOK;
}

/* Judge the holder of what is at the lock's path, as far as the lock permits:
 *
 *   SEMLOCK_HELD    its witness is taken
 *   SEMLOCK_FREE    it was dead, and its file is removed: try now
 *   SEMLOCK_ALIVE   it has closed the file, or is about to end: held until its process ends
 *   SEMLOCK_CHANGED nothing is there
 *   SEMLOCK_LOOK    the caller must judge it
 *
 * A holder that has closed the file is given so many nanoseconds to end. */
int
semlock_judge_holder(const semlock_lock *lock, semlock_pool *pool, int64_t patience,
                     semlock_holder *holder, semlock_view *seen)
{
    semlock_os_char place[SEMLOCK_PATH_ROOM];
    char bytes[LONGEST];
    semlock_os_file file;
    int outcome, taken;

    if (lock->vouched == SEMLOCK_BY_CALLER || semlock_os_path(place, lock->path) != 0) {
        return SEMLOCK_LOOK;
    }
    outcome = semlock_open_to_read(place, &file);
    if (outcome != SEMLOCK_OK) {
        return outcome == SEMLOCK_FREE ? SEMLOCK_CHANGED : SEMLOCK_LOOK;
    }
    taken = semlock_system_witness(file);
    outcome = SEMLOCK_LOOK;
    if (taken == 1 && semlock_describe(file, seen) == 0 && !seen->unfinished) {
        holder->pid = pid_in(file);
        outcome = SEMLOCK_HELD;
    }
    else if (taken == 0 && lock->vouched == SEMLOCK_BY_PROOF &&
             !semlock_load32(&pool->watched)) {
        outcome = judge(file, patience, holder, seen, pool, bytes);
        if (outcome == SEMLOCK_FREE) {
            return remove_dead(lock->path, place, file, pool, seen, bytes);
        }
    }
    semlock_os_close(file);
    return outcome;
}
