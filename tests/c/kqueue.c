/* Waiting as on macOS and the BSDs: csrc/kqueue/events.c on the kqueue of tests/c/kqueue/,
 * with the system's own source on the kernel of tests/c/bsd/.
 *
 * Run by tests/c/test_kqueue.py.  The first argument is an empty directory.  Every wait that
 * is ended by nothing but the time that it was given fails the test.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/event.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "posix/system.h"

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, \
                    errno);                                                                   \
            abort();                                                                          \
        }                                                                                     \
    } while (0)

#define LONG 20000000000 /* nanoseconds: no test waits for it */
#define SHORT 50000000

static const char text[] = "pid=1\ntimestamp=0000000000\ntoken="
                           "00000000000000000000000000000000\nwitness=none\n";
static const semlock_record record = {.text = text,
                                      .length = (int32_t)sizeof text - 1,
                                      .stamp_at = 16,
                                      .token_at = 33,
                                      .witness_at = 74,
                                      .mode = 0644};
static char directory[300];
static semlock_pool *pool;

/* A lock, and one wait for it. */
typedef struct {
    char path[400];
    semlock_lock lock;
    semlock_watch watch;
    semlock_place place;
    semlock_waiting waiting;
} user;

static void
start(user *u, const char *name)
{
    memset(u, 0, sizeof *u);
    snprintf(u->path, sizeof u->path, "%s/%s", directory, name);
    semlock_set_path(&u->lock, u->path, (int32_t)strlen(u->path));
    u->lock.record = &record;
    u->lock.turns = SEMLOCK_FAIR;
}

static void
begin(user *u, int queues)
{
    memset(&u->watch, 0, sizeof u->watch);
    memset(&u->waiting, 0, sizeof u->waiting);
    memset(&u->place, 0, sizeof u->place);
    u->watch.path = u->place.path = u->path;
    u->place.directory_length = u->lock.directory_length;
    u->place.name_hash = u->lock.name_hash;
    u->place.record = &record;
    u->waiting.place = queues ? &u->place : NULL;
    u->waiting.watches = &u->watch;
    u->waiting.count = 1;
    CHECK(semlock_waiting_start(&u->waiting, pool) == SEMLOCK_OK);
}

static int
wait_for(user *u, int64_t time)
{
    return semlock_waiting_wait(&u->waiting, pool, semlock_now_ns() + time);
}

/* Let be what is there now, as a caller does that has looked at it. */
static void
judge(user *u)
{
    semlock_view view;
    char bytes[500];

    CHECK(semlock_inspect(u->path, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
    u->watch.judged_dev = view.dev;
    u->watch.judged_ino = view.ino;
    u->watch.judged_ctime_ns = view.ctime_ns;
}

/* Judge as often as is asked for, which must come to an end. */
static void
let_be(user *u)
{
    int outcome;

    for (int looks = 0; (outcome = wait_for(u, SHORT)) == SEMLOCK_LOOK; looks++) {
        CHECK(looks < 4);
        judge(u);
    }
    CHECK(outcome == SEMLOCK_TIME);
}

static int
entries(const char *path)
{
    DIR *listing = opendir(path);
    int count = -2;

    while (readdir(listing) != NULL) {
        count++;
    }
    closedir(listing);
    return count;
}

static void *
let_go_later(void *argument)
{
    user *holder = argument;
    struct timespec pause = {0, SHORT / 2};
    int outcome;

    nanosleep(&pause, NULL);
    outcome = semlock_release(&holder->lock, pool);
    CHECK(outcome == SEMLOCK_OK || outcome == SEMLOCK_KEPT);
    return NULL;
}

/* The first release renames a file, later ones remove one of its two names. */
static void
releases(void)
{
    user holder, waiter;
    pthread_t thread;

    start(&holder, "released");
    start(&waiter, "released");
    for (int round = 0; round < 4; round++) {
        CHECK(semlock_try_anyway(&holder.lock, pool) == SEMLOCK_OK);
        begin(&waiter, 0);
        CHECK(wait_for(&waiter, LONG) == SEMLOCK_LOOK);
        let_be(&waiter);
        CHECK(pthread_create(&thread, NULL, let_go_later, &holder) == 0);
        CHECK(wait_for(&waiter, LONG) == SEMLOCK_FREE);
        semlock_waiting_end(&waiter.waiting, pool, NULL);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

/* What changes is told of once, and what was judged since is let be. */
static void
changes(void)
{
    user waiter;

    start(&waiter, "foreign");
    CHECK(close(open(waiter.path, O_CREAT | O_EXCL | O_WRONLY, 0600)) == 0);
    begin(&waiter, 0);
    CHECK(wait_for(&waiter, LONG) == SEMLOCK_LOOK);
    let_be(&waiter);
    CHECK(chmod(waiter.path, 0644) == 0);
    CHECK(wait_for(&waiter, LONG) == SEMLOCK_LOOK);
    let_be(&waiter);
    CHECK(unlink(waiter.path) == 0);
    CHECK(wait_for(&waiter, LONG) == SEMLOCK_FREE);
    semlock_waiting_end(&waiter.waiting, pool, NULL);
}

/* Some systems don't find a process any more that has ended and was not reaped. */
static int
is_dead(int fate)
{
    return fate == SEMLOCK_ZOMBIE || fate == SEMLOCK_GONE;
}

static pid_t
hold_elsewhere(user *waiter, int64_t *began)
{
    int done[2];
    char word;
    pid_t child;

    CHECK(pipe(done) == 0);
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test must not leave it behind */
        CHECK(semlock_try_anyway(&waiter->lock, pool) == SEMLOCK_OK);
        CHECK(write(done[1], "!", 1) == 1);
        for (;;) {
            pause();
        }
    }
    /* The path exists before the call returns.  If the child was killed then, the random name
     * would stay under which it created the file. */
    CHECK(read(done[0], &word, 1) == 1 && close(done[0]) == 0 && close(done[1]) == 0);
    CHECK(semlock_start_time(child, began) == 0);
    begin(waiter, 0);
    CHECK(wait_for(waiter, LONG) == SEMLOCK_LOOK);
    judge(waiter);
    return child;
}

/* The end of the holder's process is told of before it shows, and only once. */
static void
deaths(void)
{
    user waiter;
    int64_t began;
    pid_t child;

    start(&waiter, "dead");
    child = hold_elsewhere(&waiter, &began);
    CHECK(semlock_waiting_follow(&waiter.waiting, child, began) == SEMLOCK_OK);
    let_be(&waiter);
    standin.late = 3;
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(wait_for(&waiter, LONG) == SEMLOCK_LOOK);
    /* Where the closing of its files is told too, that is told first. */
    for (int looks = 0; !is_dead(semlock_probe(child, began)); looks++) {
        CHECK(looks < 4);
        judge(&waiter);
        CHECK(wait_for(&waiter, LONG) == SEMLOCK_LOOK);
    }
    CHECK(semlock_waiting_follow(&waiter.waiting, child, began) == SEMLOCK_LOOK);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(semlock_waiting_follow(&waiter.waiting, child, began) == SEMLOCK_LOOK);
    semlock_waiting_end(&waiter.waiting, pool, NULL);
    CHECK(unlink(waiter.path) == 0);
}

/* Who begins to follow a process that has ended, and doesn't show it yet, hears of it too. */
static void
late_followers(void)
{
    user waiter;
    siginfo_t info;
    int64_t began;
    pid_t child;

    start(&waiter, "late");
    child = hold_elsewhere(&waiter, &began);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0);
    while (wait_for(&waiter, SHORT) == SEMLOCK_LOOK) {
        judge(&waiter); /* its files were closed before it was followed */
    }
    standin.late = 3;
    if (semlock_waiting_follow(&waiter.waiting, child, began) == SEMLOCK_OK) {
        CHECK(wait_for(&waiter, LONG) == SEMLOCK_LOOK);
    }
    CHECK(is_dead(semlock_probe(child, began)));
    semlock_waiting_end(&waiter.waiting, pool, NULL);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(unlink(waiter.path) == 0);
}

static void
marks(void)
{
    char one[400], two[400];
    int64_t told[4], first, second;
    int64_t events = semlock_events_open();

    snprintf(one, sizeof one, "%s/one", directory);
    snprintf(two, sizeof two, "%s/two", directory);
    CHECK(semlock_events_watch(events, one, -1) == -ENOENT);
    CHECK(mkfifo(one, 0600) == 0);
    CHECK(semlock_events_watch(events, one, -1) == -EOPNOTSUPP);
    CHECK(unlink(one) == 0 && close(open(one, O_CREAT | O_WRONLY, 0600)) == 0);
    first = semlock_events_watch(events, one, -1);
    CHECK(first >= 0 && (fcntl((int)first, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((fcntl((int)events, F_GETFD) & FD_CLOEXEC) != 0);
    CHECK(semlock_events_watch(events, one, first) == first);
    CHECK(semlock_events_read(events, told, 4) == 0);
    CHECK(rename(one, two) == 0 && close(open(one, O_CREAT | O_WRONLY, 0600)) == 0);
    second = semlock_events_watch(events, one, first);
    CHECK(second >= 0 && second != first);
    CHECK(semlock_events_read(events, told, 4) == 1 && told[0] == first);
    CHECK(fcntl((int)first, F_GETFD) >= 0); /* it is the wait's until that was told */
    semlock_mark_over(first);
    CHECK(fcntl((int)first, F_GETFD) < 0);
    CHECK(unlink(one) == 0 && unlink(two) == 0);
    semlock_events_unwatch(events, second);
    CHECK(semlock_events_read(events, told, 4) == 0);
    close((int)events);
}

/* A child has copies of the watched files, and must not keep them; what it opens then may have
 * their numbers. */
static void
forks(void)
{
    user holder, waiter;
    int status;
    pid_t child;

    start(&holder, "forked");
    start(&waiter, "forked");
    CHECK(semlock_try_anyway(&holder.lock, pool) == SEMLOCK_OK);
    begin(&waiter, 1);
    CHECK(wait_for(&waiter, LONG) == SEMLOCK_LOOK);
    let_be(&waiter);
    CHECK(waiter.watch.mark >= 0 && waiter.place.ticket.handle >= 0);
    child = fork();
    if (child == 0) {
        int mark = (int)waiter.watch.mark;

        CHECK(fcntl(mark, F_GETFD) < 0 && errno == EBADF);
        CHECK(fcntl((int)waiter.waiting.events, F_GETFD) < 0 && errno == EBADF);
        CHECK(dup2(STDERR_FILENO, mark) == mark);
        semlock_waiting_forget(&waiter.waiting);
        CHECK(fcntl(mark, F_GETFD) >= 0);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(semlock_release(&holder.lock, pool) >= 0);
    CHECK(wait_for(&waiter, LONG) == SEMLOCK_FREE);
    semlock_waiting_end(&waiter.waiting, pool, NULL);
}

/* Have what is open under one number under another. */
static void
move(int from, int to)
{
    CHECK(from >= 0);
    if (from != to) {
        CHECK(dup2(from, to) == to && close(from) == 0);
    }
}

/* A daemon closes all that it finds open, and its own files and kqueues get the numbers: none
 * of them is closed, and nothing is asked of that kqueue, or taken from it. */
static void
strangers(void)
{
    const struct timespec now = {0, 0};
    user holder, waiter;
    struct kevent event;
    char own[400];
    int events, mark, ticket;
    int64_t began;

    start(&holder, "taken");
    start(&waiter, "taken");
    snprintf(own, sizeof own, "%s/own", directory);
    CHECK(semlock_try_anyway(&holder.lock, pool) == SEMLOCK_OK);
    begin(&waiter, 1);
    CHECK(wait_for(&waiter, LONG) == SEMLOCK_LOOK);
    let_be(&waiter);
    events = (int)waiter.waiting.events;
    mark = (int)waiter.watch.mark;
    ticket = (int)waiter.place.ticket.handle;
    CHECK(events > 2 && mark > 2 && ticket > 2);
    CHECK(close(events) == 0 && close(mark) == 0 && close(ticket) == 0);

    move(kqueue(), events);
    move(open(own, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600), mark);
    move(open(own, O_RDWR | O_CLOEXEC), ticket);
    EV_SET(&event, (uintptr_t)mark, EVFILT_VNODE, EV_ADD | EV_CLEAR, NOTE_ATTRIB, 0, 0);
    CHECK(kevent(events, &event, 1, NULL, 0, NULL) == 0 && fchmod(mark, 0400) == 0);

    CHECK(!semlock_events_ours(events));
    CHECK(semlock_events_watch(events, own, -1) == -ENOENT);
    CHECK(semlock_process_open(events, getpid()) == -ENOENT);
    /* The wait goes on without it: with a ticket anew, by looks at the lock. */
    began = semlock_now_ns();
    for (int outcome = 0; outcome != SEMLOCK_TIME;) {
        outcome = wait_for(&waiter, SHORT);
        CHECK(outcome == SEMLOCK_LOOK || outcome == SEMLOCK_TIME);
        CHECK(semlock_now_ns() - began < LONG);
        if (outcome == SEMLOCK_LOOK) {
            judge(&waiter);
        }
    }
    semlock_waiting_end(&waiter.waiting, pool, NULL);
    CHECK(semlock_release(&holder.lock, pool) >= 0);
    CHECK(kevent(events, NULL, 0, &event, 1, &now) == 1);
    CHECK(event.ident == (uintptr_t)mark && event.filter == EVFILT_VNODE);
    CHECK(close(events) == 0 && close(mark) == 0 && close(ticket) == 0);
    CHECK(unlink(own) == 0);
}

/* The numbers of the program's first three files are not used, even where they are free. */
static void
low_numbers(void)
{
    char path[400];
    int64_t events, mark;
    int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);

    snprintf(path, sizeof path, "%s/low", directory);
    CHECK(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0);
    CHECK(input > 2 && close(STDIN_FILENO) == 0);
    events = semlock_events_open();
    mark = semlock_events_watch(events, path, -1);
    CHECK(events > 2 && mark > 2 && fcntl(STDIN_FILENO, F_GETFD) < 0);
    semlock_events_unwatch(events, mark);
    semlock_descriptor_close_signed(events);
    CHECK(dup2(input, STDIN_FILENO) == STDIN_FILENO && close(input) == 0);
    CHECK(unlink(path) == 0);
}

enum { CROWD = 4, ROUNDS = 100 };

static int inside;
static pthread_barrier_t gate;

static void *
contend(void *argument)
{
    const struct timespec hold = {0, 20000};
    user *u = argument;
    int outcome;

    start(u, "crowded");
    pthread_barrier_wait(&gate);
    for (int round = 0; round < ROUNDS; round++) {
        outcome = semlock_try(&u->lock, pool);
        if (outcome != SEMLOCK_OK) {
            begin(u, 1);
            while (outcome != SEMLOCK_OK) {
                outcome = wait_for(u, LONG);
                CHECK(outcome == SEMLOCK_FREE || outcome == SEMLOCK_LOOK);
                if (outcome == SEMLOCK_LOOK) {
                    semlock_view view;
                    char bytes[500];

                    if (semlock_inspect(u->path, pool, &view, bytes, sizeof bytes) ==
                        SEMLOCK_OK) {
                        u->watch.judged_dev = view.dev;
                        u->watch.judged_ino = view.ino;
                        u->watch.judged_ctime_ns = view.ctime_ns;
                    }
                }
                outcome = semlock_try_anyway(&u->lock, pool);
            }
            semlock_waiting_end(&u->waiting, pool, &u->lock);
        }
        CHECK(__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 1);
        nanosleep(&hold, NULL);
        CHECK(__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST) == 0);
        CHECK(semlock_release(&u->lock, pool) >= 0);
    }
    return NULL;
}

static void
crowds(void)
{
    static user users[CROWD];
    pthread_t threads[CROWD];

    CHECK(pthread_barrier_init(&gate, NULL, CROWD) == 0);
    for (int i = 0; i < CROWD; i++) {
        CHECK(pthread_create(&threads[i], NULL, contend, &users[i]) == 0);
    }
    for (int i = 0; i < CROWD; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    pthread_barrier_destroy(&gate);
}

int
main(int count, char **words)
{
    int before;

    CHECK(count == 2 && strlen(words[1]) < sizeof directory);
    strcpy(directory, words[1]);
    pool = calloc(1, sizeof *pool);
    pool->seed[0] = 1;
    pool->keep = SEMLOCK_POOL_SLOTS;
    /* What is kept on purpose is there from the second time on. */
    for (int time = 0; time < 2; time++) {
        before = entries("/proc/self/fd");
        marks();
        releases();
        changes();
        deaths();
        late_followers();
        forks();
        strangers();
        low_numbers();
        semlock_pool_drain(pool, NULL, 0);
        CHECK(entries(directory) == 0);
        CHECK(time == 0 || entries("/proc/self/fd") == before);
    }
    puts("heard");
    crowds();
    semlock_pool_drain(pool, NULL, 0);
    CHECK(entries(directory) == 0);
    free(pool);
    puts("all well");
    return 0;
}
