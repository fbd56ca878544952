/* What the system sources of macOS and the BSDs make of what their kernels tell: who a process
 * is, whether it lives, which filesystems are local, how a file is brought to the disk.
 *
 * Run by tests/c/test_kqueue.py on the kernel of tests/c/bsd/.  The first argument is an empty
 * directory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "posix/system.h"

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, \
                    errno);                                                                   \
            abort();                                                                          \
        }                                                                                     \
    } while (0)

#define HOUR ((int64_t)3600 * 1000000000)

static char directory[300];
static semlock_pool *pool;

static pid_t
sleeper(void)
{
    pid_t child = fork();

    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test must not leave it behind */
        for (;;) {
            pause();
        }
    }
    return child;
}

static void
end(pid_t child)
{
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* Setting the clock makes no holder a dead one, neither by its start nor by the boot. */
static void
clocks(void)
{
    const int64_t was = standin.boot;
    const int64_t steps[] = {-3 * HOUR, -1, 1, 999, 1001, 123456789, 3 * HOUR + 1};
    semlock_process before, after;
    pid_t child = sleeper();
    int64_t start, now;

    CHECK(semlock_identify(&before) == 0 && before.boot[0] != 0);
    CHECK(semlock_start_time(child, &start) == 0 && start > 0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        standin.boot = was + steps[i];
        CHECK(semlock_probe(child, start) == SEMLOCK_RUNS);
        CHECK(semlock_start_time(child, &now) == 0);
        CHECK(now - start >= -1 && now - start <= 1);
        CHECK(semlock_identify(&after) == 0);
        if (strcmp(before.boot, after.boot) != 0) {
            /* Readers know by the word that this one is no proof of another boot. */
            CHECK(strncmp(before.boot, "boottime-", 9) == 0);
            CHECK(strncmp(after.boot, "boottime-", 9) == 0);
        }
#if !defined(__OpenBSD__)
        CHECK(strcmp(before.boot, after.boot) == 0);
#endif
    }
    standin.boot = was;
    CHECK(semlock_probe(child, start + 2) == SEMLOCK_RECYCLED);
    CHECK(semlock_probe(child, start - 2) == SEMLOCK_RECYCLED);
    end(child);
    CHECK(semlock_probe(child, start) == SEMLOCK_GONE);
}

/* A process that has ended is known as that by everybody who asks for it. */
static void
ends(void)
{
    pid_t child = sleeper();
    siginfo_t info;
    int64_t start, none = 1;
    int fate;

    CHECK(semlock_start_time(child, &start) == 0);
    CHECK(kill(child, SIGKILL) == 0);
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0);
    fate = semlock_probe(child, start);
#if defined(__NetBSD__) || defined(__OpenBSD__)
    CHECK(fate == SEMLOCK_GONE);
#else
    CHECK(fate == SEMLOCK_ZOMBIE);
    CHECK(semlock_probe(child, start + 1000000) == SEMLOCK_RECYCLED);
#endif
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(semlock_start_time(child, &none) != 0);
    CHECK(semlock_probe(child, start) == SEMLOCK_GONE);
}

/* Processes of other users are told of too, or at least never taken for dead. */
static void
others(void)
{
    pid_t child = sleeper();
    int64_t start, seen;

    CHECK(semlock_start_time(child, &start) == 0);
    standin.others = child;
    CHECK(semlock_start_time(child, &seen) == 0 && seen == start);
    CHECK(semlock_probe(child, start) == SEMLOCK_RUNS);
    CHECK(semlock_probe(child, start + 1000000) == SEMLOCK_RECYCLED);
    standin.others = 0;
#if defined(__FreeBSD__)
    standin.hidden = child;
    CHECK(semlock_probe(child, start) == SEMLOCK_GONE); /* nothing says that any are hidden */
    standin.hides = 1;
    CHECK(semlock_probe(child, start) == -ESRCH);
    standin.hidden = standin.hides = 0;
#endif
    end(child);
}

#if defined(__FreeBSD__)
static semlock_process
identity(void)
{
    semlock_process me;

    CHECK(semlock_identify(&me) == 0);
    return me;
}

/* The numbers of two processes are compared only if they mean the same to both. */
static void
jails(void)
{
    semlock_process host = identity(), one, two;
    int ends[2];

    CHECK(host.pidns == 0);
    standin.jailed = 1;
    one = identity();
    CHECK(one.pidns != 0 && identity().pidns == one.pidns);
    standin.machine = "another";
    CHECK(identity().pidns != one.pidns && identity().pidns != 0);
    /* Both are in service jails, or in one: their root and their names are the machine's. */
    standin.kind = "zfs";
    standin.flags = MNT_LOCAL | MNT_ROOTFS;
    one = identity();
    CHECK(one.pidns != 0 && identity().pidns == one.pidns && pipe(ends) == 0);
    if (fork() == 0) {
        two = identity();
        _exit(write(ends[1], &two, sizeof two) == sizeof two ? 0 : 1);
    }
    CHECK(read(ends[0], &two, sizeof two) == sizeof two && wait(NULL) > 0);
    CHECK(two.pidns != 0 && two.pidns != one.pidns && strcmp(two.boot, one.boot) == 0);
    close(ends[0]);
    close(ends[1]);
    standin.jailed = 0;
    standin.machine = "one";
    standin.kind = "ufs";
    standin.flags = MNT_LOCAL;

    standin.no_boot_id = ENXIO;
    CHECK(identity().boot[0] == 0);
    standin.no_boot_id = ENOENT;
    CHECK(strncmp(identity().boot, "boottime-", 9) == 0);
    standin.no_boot_id = 0;
    CHECK(strlen(identity().boot) == 32 && strcmp(identity().boot, host.boot) == 0);
}
#endif

/* What is shared with other machines is not local, whatever its mount says of itself. */
static void
kinds(void)
{
    const char *const own = standin.kind;
    static const char *const shared[] = {
        "nfs",  "smbfs",  "macfuse", "fusefs", "fuse",         "p9fs", "puffs",
        "lifs", "nullfs", "vboxvfs", "webdav", "fusefs.sshfs", "acfs", ""};
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    CHECK(fd >= 0 && semlock_system_local(fd) && semlock_system_hears(directory));
    standin.flags = 0;
    CHECK(!semlock_system_local(fd) && !semlock_system_hears(directory));
    standin.flags = MNT_LOCAL;
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++) {
        standin.kind = shared[i];
        CHECK(!semlock_system_local(fd) && !semlock_system_hears(directory));
    }
    standin.kind = "tmpfs";
    CHECK(semlock_system_local(fd) && semlock_system_hears(directory));
    standin.kind = own;
    close(fd);
    CHECK(!semlock_system_local(fd) && !semlock_system_hears("/nowhere"));
}

static void
syncs(void)
{
    char path[400];
    int fd;

    snprintf(path, sizeof path, "%s/synced", directory);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    standin.syncs = 0;
    for (int overwritten = 0; overwritten < 2; overwritten++) {
        CHECK(semlock_system_sync(fd, SEMLOCK_SYNC_NONE, overwritten) == 0);
        CHECK(standin.syncs == 0);
    }
    for (int durability = SEMLOCK_SYNC_DATA; durability <= SEMLOCK_SYNC_FULL; durability++) {
        CHECK(semlock_system_sync(fd, durability, 0) == 0);
    }
#if defined(__APPLE__)
    CHECK(standin.syncs == 0); /* asking the drive is enough */
#endif
#if defined(__APPLE__) || defined(__NetBSD__)
    /* The words of several filesystems and devices for not knowing the call. */
    for (int i = 0; i < 4; i++) {
        const int words[] = {ENOTSUP, EINVAL, ENOTTY, ENODEV};

        standin.sync_error = words[i];
        standin.syncs = 0;
        CHECK(semlock_system_sync(fd, SEMLOCK_SYNC_FULL, 0) == 0 && standin.syncs == 1);
    }
    standin.sync_error = EIO;
    standin.syncs = 0;
    CHECK(semlock_system_sync(fd, SEMLOCK_SYNC_FULL, 0) == -EIO && standin.syncs == 0);
    standin.sync_error = 0;
#endif
    CHECK(close(fd) == 0 && unlink(path) == 0);
}

static const char text[] = "pid=1\ntimestamp=0000000000\ntoken="
                           "00000000000000000000000000000000\nwitness=????\n";

static void
start(semlock_lock *lock, char *path, const char *name, const semlock_record *record)
{
    memset(lock, 0, sizeof *lock);
    sprintf(path, "%s/%s", directory, name);
    semlock_set_path(lock, path, (int32_t)strlen(path));
    lock->record = record;
}

/* What a record says of its place, and what is done at a path that became a link. */
static void
records(void)
{
    semlock_record record = {.text = text,
                             .length = (int32_t)sizeof text - 1,
                             .stamp_at = 16,
                             .token_at = 33,
                             .witness_at = 74,
                             .mode = 0644};
    const char *const own = standin.kind;
    semlock_lock lock;
    semlock_view view;
    char path[400], bytes[500];
    struct stat made;

    for (int in_place = 0; in_place < 2; in_place++) {
        record.in_place = in_place;
        for (int shared = 0; shared < 2; shared++) {
            standin.kind = shared ? "fusefs" : own;
            start(&lock, path, "lock", &record);
            CHECK(semlock_try(&lock, pool) == SEMLOCK_OK);
            CHECK(stat(path, &made) == 0 && (made.st_mode & 07777) == 0644);
            CHECK(semlock_inspect(path, pool, &view, bytes, sizeof bytes) == SEMLOCK_OK);
            CHECK(memcmp(bytes + record.witness_at, shared ? "none" : "left", 4) == 0);
            CHECK(view.local == !shared && view.witness == -1 && !view.unfinished);
            CHECK(semlock_check(&lock, pool) == SEMLOCK_OK);
            if (shared) {
                CHECK(unlink(path) == 0 && symlink("nowhere", path) == 0);
                CHECK(semlock_remove(path, pool, &view, bytes, 0) == SEMLOCK_LOST);
                CHECK(semlock_rewrite(path, pool, &view, bytes, bytes, view.length) ==
                      SEMLOCK_LOST);
                CHECK(semlock_check(&lock, pool) == SEMLOCK_LOST);
                CHECK(semlock_release(&lock, pool) == SEMLOCK_LOST);
                CHECK(unlink(path) == 0);
            }
            else {
                CHECK(semlock_release(&lock, pool) >= 0);
            }
        }
    }
    standin.kind = own;
    semlock_pool_drain(pool, NULL, 0);
}

/* A queue is as open to others as the directory of its lock, though mkdir() gives no sticky
 * bit. */
static void
queues(void)
{
    const semlock_record record = {
        .text = text, .length = 0, .stamp_at = -1, .token_at = -1, .witness_at = -1};
    semlock_watch watch = {.mark = -1};
    semlock_place place = {0};
    semlock_waiting waiting = {.place = &place, .watches = &watch, .count = 1};
    semlock_lock lock;
    char path[400], queue[400];
    struct stat made;

    CHECK(chmod(directory, 01777) == 0);
    start(&lock, path, "queued", &record);
    CHECK(close(open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) == 0);
    watch.path = place.path = path;
    place.directory_length = lock.directory_length;
    place.name_hash = lock.name_hash;
    place.record = &record;
    CHECK(semlock_waiting_start(&waiting, pool) == SEMLOCK_OK);
    CHECK(lstat(path, &made) == 0);
    watch.judged_dev = (uint64_t)made.st_dev;
    watch.judged_ino = (uint64_t)made.st_ino;
    watch.judged_ctime_ns = (int64_t)made.st_ctim.tv_sec * 1000000000 + made.st_ctim.tv_nsec;
    semlock_waiting_arm(&waiting, pool);
    snprintf(queue, sizeof queue, "%s/.semlock-%016llx.queue", directory,
             (unsigned long long)lock.name_hash);
    CHECK(stat(queue, &made) == 0 && (made.st_mode & 07777) == 01777);
    CHECK(semlock_queue_exists(&lock));
    semlock_waiting_end(&waiting, pool, NULL);
    CHECK(!semlock_queue_exists(&lock) && unlink(path) == 0);
    CHECK(chmod(directory, 0700) == 0);
}

int
main(int count, char **words)
{
    CHECK(count == 2 && strlen(words[1]) < sizeof directory);
    strcpy(directory, words[1]);
    pool = calloc(1, sizeof *pool);
    pool->seed[0] = 1;
    clocks();
    puts("clocks");
    ends();
    puts("ends");
    others();
    puts("others");
#if defined(__FreeBSD__)
    jails();
    puts("jails");
#endif
    kinds();
    puts("kinds");
    syncs();
    puts("syncs");
    records();
    puts("records");
    queues();
    puts("queues");
    CHECK(rmdir(directory) == 0);
    free(pool);
    puts("all well");
    return 0;
}
