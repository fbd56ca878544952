/* The core without Python: every call, its outcomes, and what is on disk after it.
 *
 * Run by tests/c/test_core.py, plain, under the sanitizers and under valgrind.  The first
 * argument is an empty directory.  Prints one line for each part and "all well" at the end.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "posix/system.h"

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, \
                    errno);                                                                   \
            abort();                                                                          \
        }                                                                                     \
    } while (0)

static const char text[] = "pid=1\ntimestamp=0000000000\ntoken="
                           "00000000000000000000000000000000\nwitness=none\n";
static char directory[300];
static int witnessed; /* this system has a witness */

static semlock_record
record_of(int32_t in_place)
{
    semlock_record record = {.text = text,
                             .length = (int32_t)sizeof text - 1,
                             .stamp_at = 16,
                             .token_at = 33,
                             .witness_at = 74,
                             .mode = 0644,
                             .durability = SEMLOCK_SYNC_NONE,
                             .in_place = in_place};
    return record;
}

static void
start(semlock_lock *lock, char *room, const char *name, const semlock_record *record)
{
    memset(lock, 0, sizeof *lock);
    sprintf(room, "%s/%s", directory, name);
    semlock_set_path(lock, room, (int32_t)strlen(room));
    lock->record = record;
}

static int
files(void)
{
    DIR *listing = opendir(directory);
    int count = 0;

    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(listing);
    return count;
}

static int
descriptors(void)
{
    DIR *listing = opendir("/proc/self/fd");
    int count = 0;

    while (readdir(listing) != NULL) {
        count++;
    }
    closedir(listing);
    return count;
}

static int
has_a_witness(void)
{
    char path[320];
    int fd, has;

    sprintf(path, "%s/asked", directory);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0);
    has = semlock_system_witness(fd) >= 0;
    CHECK(close(fd) == 0 && unlink(path) == 0);
    return has;
}

static void
one_lock(semlock_pool *pool, int32_t in_place)
{
    semlock_record record = record_of(in_place);
    semlock_lock first, second;
    semlock_view view;
    char a[400], b[400], bytes[500];
    int before = descriptors();

    start(&first, a, "one", &record);
    start(&second, b, "one", &record);
    for (int round = 0; round < 6; round++) {
        CHECK(semlock_try(&first, pool) == SEMLOCK_OK);
        CHECK(semlock_try(&first, pool) == SEMLOCK_MINE);
        second.look_at = 0;
        CHECK(semlock_try(&second, pool) == SEMLOCK_LOOK);
        second.look_at = semlock_now_ns() + 1000000000000;
        CHECK(semlock_try(&second, pool) == SEMLOCK_HELD);
        CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
        CHECK(view.length == record.length && !view.unfinished && view.local);
        CHECK(view.witness == (witnessed ? 1 : -1));
        CHECK(memcmp(bytes + record.token_at, first.token, 32) == 0);
        CHECK(memcmp(bytes + record.witness_at, witnessed ? "kept" : "left", 4) == 0);
        CHECK(semlock_check(&first, pool) == SEMLOCK_OK);
        CHECK(semlock_refresh(&first, pool, bytes, record.length, first.serial) == SEMLOCK_OK);
        CHECK(semlock_refresh(&first, pool, bytes, record.length - 1, first.serial) ==
              -EINVAL);
        CHECK(semlock_refresh(&first, pool, bytes, record.length, first.serial - 1) ==
              SEMLOCK_CHANGED);
        CHECK(semlock_remove(a, pool, &view, bytes, 0) == SEMLOCK_CHANGED);
        CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
        CHECK(!witnessed || semlock_remove(a, pool, &view, bytes, 0) == SEMLOCK_ALIVE);
        bytes[0] ^= 1;
        CHECK(semlock_remove(a, pool, &view, bytes, SEMLOCK_DESPITE_WITNESS) ==
              SEMLOCK_CHANGED);
        int outcome = semlock_release(&first, pool);
        CHECK(outcome == SEMLOCK_OK || outcome == SEMLOCK_KEPT);
        CHECK(semlock_release(&first, pool) == SEMLOCK_FREE);
        CHECK(semlock_check(&first, pool) == SEMLOCK_FREE);
        CHECK(access(a, F_OK) != 0);
    }
    semlock_pool_drain(pool, NULL, 0);
    CHECK(files() == 0);
    CHECK(descriptors() == before);
}

static void
lost(semlock_pool *pool)
{
    semlock_record record = record_of(0);
    semlock_lock lock;
    semlock_view view;
    char a[400], bytes[500];

    start(&lock, a, "lost", &record);
    for (int round = 0; round < 4; round++) {
        CHECK(semlock_try(&lock, pool) == SEMLOCK_OK);
        CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
        CHECK(semlock_remove(a, pool, &view, bytes, SEMLOCK_DESPITE_WITNESS) == SEMLOCK_OK);
        CHECK(semlock_remove(a, pool, &view, bytes, SEMLOCK_DESPITE_WITNESS) == SEMLOCK_LOST);
        CHECK(semlock_check(&lock, pool) == SEMLOCK_LOST);
        CHECK(semlock_refresh(&lock, pool, bytes, record.length, lock.serial) == SEMLOCK_LOST);
        CHECK(close(open(a, O_CREAT | O_EXCL | O_WRONLY, 0600)) == 0);
        CHECK(semlock_release(&lock, pool) == SEMLOCK_LOST);
        CHECK(access(a, F_OK) == 0 && unlink(a) == 0);
    }
    semlock_pool_drain(pool, NULL, 0);
    CHECK(files() == 0);
}

static void
odd_paths(semlock_pool *pool)
{
    semlock_record record = record_of(0);
    semlock_lock lock;
    semlock_view view;
    char a[400], bytes[64];

    start(&lock, a, "missing/x", &record);
    CHECK(semlock_try(&lock, pool) == -ENOENT);
    CHECK(lock.owner == 0 && lock.file.handle == -1);
    CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_FREE);
    start(&lock, a, "odd", &record);
    CHECK(mkdir(a, 0700) == 0);
    CHECK(semlock_try(&lock, pool) == SEMLOCK_LOOK);
    CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
    CHECK(view.kind == SEMLOCK_DIRECTORY && rmdir(a) == 0);
    CHECK(symlink("nowhere", a) == 0);
    CHECK(semlock_try(&lock, pool) == SEMLOCK_LOOK);
    CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
    CHECK(view.kind == SEMLOCK_SYMLINK && unlink(a) == 0);
    CHECK(mkfifo(a, 0600) == 0);
    CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
    CHECK(view.kind == SEMLOCK_OTHER && unlink(a) == 0);
    int fd = open(a, O_CREAT | O_WRONLY, 0600);
    CHECK(ftruncate(fd, 65) == 0 && close(fd) == 0);
    CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == -EFBIG);
    CHECK(view.size == 65 && unlink(a) == 0);
    CHECK(files() == 0);
}

static void
rewriting(semlock_pool *pool)
{
    static const char old[] = "{\"owner\": \"a\"}";
    static const char new[] = "{\"owner\": \"pid-a\"}";
    static const char page[SEMLOCK_REWRITE_LIMIT + 1];
    const int32_t length = (int32_t)sizeof new - 1;
    semlock_record record = record_of(0);
    semlock_lock lock;
    semlock_view view;
    char a[400], bytes[500];
    int before = descriptors();
    int fd;

    start(&lock, a, "rewritten", &record);
    CHECK(semlock_try(&lock, pool) == SEMLOCK_OK);
    CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
    CHECK(semlock_rewrite(a, pool, &view, bytes, bytes, view.length) ==
          (witnessed ? SEMLOCK_ALIVE : SEMLOCK_OK));
    CHECK(semlock_release(&lock, pool) >= SEMLOCK_OK && !lock.held);
    CHECK(semlock_rewrite(a, pool, &view, bytes, bytes, view.length) == SEMLOCK_LOST);

    fd = open(a, O_WRONLY | O_CREAT | O_EXCL, 0600);
    CHECK(write(fd, old, sizeof old - 1) == sizeof old - 1);
    CHECK(semlock_rewrite(a, pool, &view, bytes, bytes, view.length) != SEMLOCK_OK);
    CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
    CHECK(semlock_rewrite(a, pool, &view, bytes, new, view.length - 1) == -EINVAL);
    CHECK(semlock_rewrite(a, pool, &view, bytes, page, sizeof page) == -EINVAL);
    CHECK(flock(fd, LOCK_EX) == 0);
    CHECK(semlock_rewrite(a, pool, &view, bytes, new, length) == SEMLOCK_GUARDED);
    CHECK(flock(fd, LOCK_UN) == 0);
    CHECK(semlock_rewrite(a, pool, &view, bytes, new, length) == SEMLOCK_OK);
    CHECK(semlock_rewrite(a, pool, &view, bytes, new, length) == SEMLOCK_CHANGED);
    CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
    CHECK(view.length == length && memcmp(bytes, new, (size_t)length) == 0);
    CHECK(semlock_rewrite(a, pool, &view, bytes, new, length) == SEMLOCK_OK);
    CHECK(semlock_rewrite(a, pool, &view, bytes, page, SEMLOCK_REWRITE_LIMIT) == SEMLOCK_OK);
    close(fd);
    CHECK(unlink(a) == 0);
    semlock_pool_drain(pool, NULL, 0);
    CHECK(files() == 0);
    CHECK(descriptors() == before);
}

static void
nested(semlock_pool *pool)
{
    semlock_record record = record_of(0);
    semlock_lock lock;
    char a[400];

    start(&lock, a, "nested", &record);
    lock.reentrant = 1;
    CHECK(semlock_try(&lock, pool) == SEMLOCK_OK);
    CHECK(semlock_try(&lock, pool) == SEMLOCK_NESTED);
    CHECK(lock.depth == 2);
    CHECK(semlock_release(&lock, pool) == SEMLOCK_NESTED);
    CHECK(lock.held && access(a, F_OK) == 0);
    CHECK(semlock_release(&lock, pool) != SEMLOCK_NESTED);
    CHECK(!lock.held && access(a, F_OK) != 0);
}

/* A thread that tries and one that holds have different words in the object: between another
 * thread's look and its swap, the holder may let go and try again. */
static void
words_of_owners(void)
{
    semlock_record record = record_of(0);
    semlock_pool *pool = calloc(1, sizeof *pool);
    semlock_lock lock;
    char a[400];
    int64_t trying, owner;

    start(&lock, a, "words", &record);
    CHECK(semlock_life(pool) > 0);
    CHECK(semlock_object_begin(&lock, pool) == SEMLOCK_OK);
    trying = lock.owner;
    CHECK(semlock_object_begin(&lock, pool) == SEMLOCK_MINE);
    CHECK(semlock_object_borrow(&lock, pool, &owner) == SEMLOCK_FREE);
    CHECK(semlock_object_end(&lock, pool, &owner) == SEMLOCK_FREE);
    CHECK(semlock_object_won(&lock, &record) == SEMLOCK_OK);
    CHECK(lock.owner == semlock_thread() && lock.owner != trying);
    semlock_object_freed(&lock);
    CHECK(lock.owner == 0);
    free(pool);
}

static void
batch(semlock_pool *pool)
{
    enum { COUNT = 50 };
    semlock_record record = record_of(0);
    semlock_lock locks[COUNT], others[COUNT], *pointers[COUNT];
    char rooms[2 * COUNT][400], name[40], outcomes[COUNT];
    int32_t errors[COUNT];

    for (int i = 0; i < COUNT; i++) {
        sprintf(name, "batch%d", i);
        start(&locks[i], rooms[i], name, &record);
        start(&others[i], rooms[COUNT + i], name, &record);
        pointers[i] = &others[i];
        if (i % 2 == 0) {
            CHECK(semlock_try(&locks[i], pool) == SEMLOCK_OK);
        }
    }
    semlock_try_many(pointers, outcomes, errors, COUNT, 1, pool);
    for (int i = 0; i < COUNT; i++) {
        CHECK(outcomes[i] == (i % 2 == 0 ? SEMLOCK_LOOK : SEMLOCK_OK));
        semlock_release(i % 2 == 0 ? &locks[i] : &others[i], pool);
    }
    semlock_pool_drain(pool, NULL, 0);
    CHECK(files() == 0);
}

static void
after_a_kill(semlock_pool *pool)
{
    semlock_record record = record_of(0);
    semlock_lock lock;
    semlock_view view;
    char a[400], bytes[500];
    int status;

    start(&lock, a, "killed", &record);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            semlock_pool own = {.seed = {7, (uint64_t)round}, .keep = 4};
            for (int i = 0; i < 3; i++) {
                CHECK(semlock_try(&lock, &own) == SEMLOCK_OK);
                semlock_release(&lock, &own);
            }
            CHECK(semlock_try(&lock, &own) == SEMLOCK_OK);
            raise(SIGKILL);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        CHECK(files() == 2); /* the lock, and the private name of the kept claim */
        CHECK(semlock_try(&lock, pool) == SEMLOCK_LOOK);
        CHECK(semlock_inspect(a, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
        CHECK(view.witness == (witnessed ? 0 : -1) && view.links == 2);
        CHECK(semlock_probe(child, 0) == SEMLOCK_GONE);
        CHECK(semlock_remove(a, pool, &view, bytes, 0) == SEMLOCK_OK);
        CHECK(files() == 0);
    }
}

static void
processes(void)
{
    semlock_process me;
    int64_t start;

    CHECK(semlock_identify(&me) == 0 && me.pid == getpid() && me.start > 0);
    CHECK(semlock_probe(me.pid, me.start) == SEMLOCK_RUNS);
    CHECK(semlock_probe(me.pid, me.start + 2) == SEMLOCK_RECYCLED);
    CHECK(semlock_probe(me.pid, 0) == SEMLOCK_EXISTS);
    CHECK(semlock_probe(0, 0) == -EINVAL && semlock_probe(-1, 0) == -EINVAL);
    CHECK(semlock_probe((int64_t)1 << 32, 0) == -EINVAL);
    pid_t child = fork();
    if (child == 0) {
        _exit(0);
    }
    siginfo_t info;
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0);
    CHECK(semlock_start_time(child, &start) == 0);
    int fate = semlock_probe(child, start);
    CHECK(fate == SEMLOCK_ZOMBIE || (!witnessed && fate == SEMLOCK_GONE));
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(semlock_probe(child, start) == SEMLOCK_GONE);
}

static semlock_pool *shared_pool;
static semlock_record shared_record;
static int inside;
static semlock_lock one_object;
static char one_room[400];

static void *
contend(void *argument)
{
    int own_objects = argument != NULL;
    semlock_lock mine, *lock = &one_object;
    char a[400];
    int won = 0;

    if (own_objects) {
        start(&mine, a, "threads", &shared_record);
        lock = &mine;
    }
    while (won < 200) {
        int outcome = semlock_try(lock, shared_pool);

        if (outcome == SEMLOCK_OK) {
            CHECK(__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 1);
            won++;
            CHECK(semlock_check(lock, shared_pool) == SEMLOCK_OK);
            CHECK(__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 0);
            outcome = semlock_release(lock, shared_pool);
            CHECK(outcome == SEMLOCK_OK || outcome == SEMLOCK_KEPT);
        }
        else {
            CHECK(outcome == SEMLOCK_HELD || outcome == SEMLOCK_LOOK);
            semlock_yield();
        }
    }
    return NULL;
}

static void *
beat(void *argument)
{
    int *stop = argument;

    while (!__atomic_load_n(stop, __ATOMIC_SEQ_CST)) {
        int outcome = semlock_refresh(&one_object, shared_pool, text, (int32_t)sizeof text - 1,
                                      (uint64_t)semlock_load64(&one_object.serial));

        CHECK(outcome == SEMLOCK_OK || outcome == SEMLOCK_FREE || outcome == SEMLOCK_CHANGED ||
              outcome == SEMLOCK_GUARDED);
        semlock_yield();
    }
    return NULL;
}

static void
threads(semlock_pool *pool)
{
    pthread_t runners[4], heart;
    int stop = 0;

    shared_pool = pool;
    shared_record = record_of(0);
    start(&one_object, one_room, "threads", &shared_record);
    pthread_create(&heart, NULL, beat, &stop);
    for (int i = 0; i < 4; i++) {
        pthread_create(&runners[i], NULL, contend, i % 2 ? &shared_record : NULL);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(runners[i], NULL);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(heart, NULL);
    semlock_pool_drain(pool, NULL, 0);
    CHECK(files() == 0);
}

/* One wait of one thread for one lock, in its queue. */
typedef struct {
    semlock_waiting waiting;
    semlock_watch watch;
    semlock_place place;
} one_wait;

static void
start_wait(one_wait *w, semlock_lock *lock, semlock_pool *pool)
{
    memset(w, 0, sizeof *w);
    w->watch.path = lock->path;
    w->watch.vouched = SEMLOCK_BY_WITNESS;
    w->place.path = lock->path;
    w->place.directory_length = lock->directory_length;
    w->place.name_hash = lock->name_hash;
    w->place.record = lock->record;
    w->waiting.place = &w->place;
    w->waiting.watches = &w->watch;
    w->waiting.count = 1;
    CHECK(semlock_waiting_start(&w->waiting, pool) == SEMLOCK_OK);
}

static int64_t
in_seconds(int seconds)
{
    return semlock_now_ns() + seconds * (int64_t)1000000000;
}

/* Let be what is there now, as a caller does that has looked at it. */
static void
let_be(one_wait *w, const semlock_lock *lock)
{
    struct stat seen;

    if (lstat(lock->path, &seen) == 0) {
        w->watch.judged_dev = (uint64_t)seen.st_dev;
        w->watch.judged_ino = (uint64_t)seen.st_ino;
        w->watch.judged_ctime_ns =
            (int64_t)seen.st_ctim.tv_sec * 1000000000 + seen.st_ctim.tv_nsec;
    }
}

/* Take the lock by waiting; the holder is a thread here where no witness vouches for it. */
static void
take(semlock_lock *lock, semlock_pool *pool)
{
    one_wait w;
    int outcome = semlock_try(lock, pool);

    if (outcome == SEMLOCK_OK) {
        return;
    }
    start_wait(&w, lock, pool);
    do {
        outcome = semlock_waiting_take(&w.waiting, lock, pool, in_seconds(20));
        if (outcome == SEMLOCK_LOOK) {
            let_be(&w, lock);
        }
        CHECK(outcome == SEMLOCK_OK || outcome == SEMLOCK_LOOK || outcome == SEMLOCK_RACED);
    } while (outcome != SEMLOCK_OK);
    semlock_waiting_end(&w.waiting, pool, lock);
}

static void *
queue_up(void *argument)
{
    semlock_lock mine;
    char a[400];

    start(&mine, a, "queue", &shared_record);
    mine.turns = argument != NULL ? SEMLOCK_FAIR : SEMLOCK_TAKE_TURNS;
    for (int i = 0; i < 300; i++) {
        int outcome;

        take(&mine, shared_pool);
        CHECK(__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 1);
        CHECK(semlock_check(&mine, shared_pool) == SEMLOCK_OK);
        CHECK(__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 0);
        outcome = semlock_release(&mine, shared_pool);
        CHECK(outcome == SEMLOCK_OK || outcome == SEMLOCK_KEPT);
    }
    return NULL;
}

static void
waiting_threads(semlock_pool *pool)
{
    pthread_t runners[6];

    shared_pool = pool;
    for (int i = 0; i < 6; i++) {
        pthread_create(&runners[i], NULL, queue_up, i % 2 ? &shared_record : NULL);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(runners[i], NULL);
    }
    semlock_pool_drain(pool, NULL, 0);
    CHECK(files() == 0);
}

/* The holder is another process, so that its death and its release can be told apart. */
static pid_t
hold_elsewhere(const char *name, int *go, int kill_itself)
{
    int ready[2], end[2];
    char byte = 0;
    pid_t child;

    CHECK(pipe(ready) == 0 && pipe(end) == 0);
    child = fork();
    if (child == 0) {
        semlock_pool *pool = calloc(1, sizeof *pool);
        semlock_lock lock;
        char a[400];

        start(&lock, a, name, &shared_record);
        CHECK(semlock_try(&lock, pool) == SEMLOCK_OK);
        CHECK(write(ready[1], "x", 1) == 1 && read(end[0], &byte, 1) == 1);
        if (kill_itself) {
            kill(getpid(), SIGKILL);
        }
        CHECK(semlock_release(&lock, pool) == SEMLOCK_OK);
        _exit(0);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    close(end[0]);
    *go = end[1];
    return child;
}

/* Without a witness the caller judges the holder, and hears of its death by its process. */
static void
wait_for_child(one_wait *w, const semlock_lock *lock, semlock_pool *pool, pid_t child)
{
    int64_t began;
    int outcome = semlock_waiting_arm(&w->waiting, pool);

    if (!witnessed) {
        CHECK(outcome == SEMLOCK_LOOK);
        CHECK(semlock_start_time(child, &began) == 0);
        CHECK(semlock_waiting_follow(&w->waiting, child, began) == SEMLOCK_OK);
        for (int looks = 0; outcome == SEMLOCK_LOOK && looks < 4; looks++) {
            let_be(w, lock);
            outcome = semlock_waiting_arm(&w->waiting, pool);
        }
    }
    CHECK(outcome == SEMLOCK_ARMED);
}

static void
waiting_for_others(semlock_pool *pool)
{
    semlock_lock lock;
    char a[400];
    int open_before, go, outcome;
    pid_t child;
    one_wait w;

    start(&lock, a, "other", &shared_record);
    semlock_events_give(pool, semlock_events_take(pool)); /* one stays in the pool */
    open_before = descriptors();

    child = hold_elsewhere("other", &go, 0);
    start_wait(&w, &lock, pool);
    wait_for_child(&w, &lock, pool, child);
    CHECK(files() == 2); /* the lock and its queue */
    CHECK(semlock_waiting_wait(&w.waiting, pool, semlock_now_ns() + 1000000) == SEMLOCK_TIME);
    CHECK(write(go, "x", 1) == 1);
    CHECK(semlock_waiting_wait(&w.waiting, pool, in_seconds(20)) == SEMLOCK_FREE);
    semlock_waiting_end(&w.waiting, pool, NULL);
    CHECK(waitpid(child, NULL, 0) == child && files() == 0);
    close(go);
    CHECK(descriptors() == open_before);

    child = hold_elsewhere("other", &go, 1);
    start_wait(&w, &lock, pool);
    wait_for_child(&w, &lock, pool, child);
    CHECK(write(go, "x", 1) == 1);
    /* No witness vouches for it any more, so the caller is to judge, and may remove it. */
    CHECK(semlock_waiting_wait(&w.waiting, pool, in_seconds(20)) == SEMLOCK_LOOK);
    CHECK(unlink(a) == 0);
    outcome = semlock_waiting_take(&w.waiting, &lock, pool, in_seconds(20));
    CHECK(outcome == SEMLOCK_OK && lock.held);
    CHECK(files() == 1);
    outcome = semlock_release(&lock, pool);
    CHECK(outcome == SEMLOCK_OK || outcome == SEMLOCK_KEPT);
    semlock_pool_drain(pool, NULL, 0);
    CHECK(waitpid(child, NULL, 0) == child && files() == 0);
    close(go);
    CHECK(descriptors() == open_before);
}

int
main(int count, char **words)
{
    semlock_pool *pool = calloc(1, sizeof *pool);

    CHECK(count == 2 && strlen(words[1]) < sizeof directory);
    strcpy(directory, words[1]);
    pool->seed[0] = 1;
    pool->keep = SEMLOCK_POOL_SLOTS;
    witnessed = has_a_witness();
    one_lock(pool, 0);
    puts("whole");
    one_lock(pool, 1);
    puts("in place");
    lost(pool);
    puts("lost");
    odd_paths(pool);
    puts("odd paths");
    rewriting(pool);
    puts("rewriting");
    nested(pool);
    puts("nested");
    words_of_owners();
    puts("words of owners");
    batch(pool);
    puts("batch");
    after_a_kill(pool);
    puts("after a kill");
    processes();
    puts("processes");
    threads(pool);
    puts("threads");
    waiting_threads(pool);
    puts("waiting threads");
    waiting_for_others(pool);
    puts("waiting for others");
    free(pool);
    puts("all well");
    return 0;
}
