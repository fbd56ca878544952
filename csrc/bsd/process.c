/* FreeBSD, NetBSD and OpenBSD: processes and the boot, one small function per question and
 * system. */
#define _NETBSD_SOURCE
#include <sys/param.h>
#include <sys/mount.h>
#include <sys/proc.h>
#include <sys/stat.h>
#include <sys/sysctl.h>
#include <sys/time.h>
#if defined(__FreeBSD__)
#include <sys/user.h>
#elif !defined(__NetBSD__) && !defined(__OpenBSD__)
#error "semlock has no system source for this platform"
#endif
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "posix/system.h"

static int64_t
microseconds(int64_t seconds, int64_t rest)
{
    return seconds * 1000000 + rest;
}

#if defined(__FreeBSD__)
static int
look_up_once(int64_t pid, semlock_fate *found)
{
    int name[4] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, (int)pid};
    struct kinfo_proc entry;
    size_t size = sizeof entry;

    if (sysctl(name, 4, &entry, &size, NULL, 0) != 0) {
        return -errno;
    }
    if (size < sizeof entry || entry.ki_pid != (pid_t)pid) {
        return -ESRCH;
    }
    found->start = microseconds(entry.ki_start.tv_sec, entry.ki_start.tv_usec);
    found->zombie = entry.ki_stat == SZOMB;
    return 0;
}
#elif defined(__OpenBSD__)
static int
look_up_once(int64_t pid, semlock_fate *found)
{
    struct kinfo_proc entry;
    int name[6] = {CTL_KERN, KERN_PROC, KERN_PROC_PID, (int)pid, (int)sizeof entry, 1};
    size_t size = sizeof entry;

    if (sysctl(name, 6, &entry, &size, NULL, 0) != 0) {
        return -errno;
    }
    if (size < sizeof entry || entry.p_pid != (pid_t)pid) {
        return -ESRCH;
    }
    found->zombie = entry.p_stat == SDEAD || entry.p_stat == SZOMB;
    found->start =
        found->zombie ? 0 : microseconds((int64_t)entry.p_ustart_sec, entry.p_ustart_usec);
    return 0;
}
#endif

#if defined(__NetBSD__)
/* NetBSD records the wall clock at the fork and never changes it.  Zombies have lost it. */
int
semlock_system_look_up(int64_t pid, semlock_fate *found)
{
    struct kinfo_proc2 entry;
    int name[6] = {CTL_KERN, KERN_PROC2, KERN_PROC_PID, (int)pid, (int)sizeof entry, 1};
    size_t size = sizeof entry;

    if (sysctl(name, 6, &entry, &size, NULL, 0) != 0) {
        return -errno;
    }
    if (size < sizeof entry || entry.p_pid != (pid_t)pid) {
        return -ESRCH;
    }
    found->zombie = entry.p_realstat == SZOMB || entry.p_realstat == SDEAD;
    found->start =
        entry.p_uvalid == 0 ? 0 : microseconds(entry.p_ustart_sec, entry.p_ustart_usec);
    return 0;
}
#else
/* FreeBSD and OpenBSD record the uptime at the fork and add the boot time when asked, so the
 * sum moves with the clock.  Subtracting the boot time gives what was recorded.  If the boot
 * time changed between the two questions, both are asked again. */
int
semlock_system_look_up(int64_t pid, semlock_fate *found)
{
    int64_t before, after;
    int outcome;

    for (int again = 0; again < 8; again++) {
        outcome = semlock_system_booted(&before);
        if (outcome == 0) {
            outcome = look_up_once(pid, found);
        }
        if (outcome != 0 || found->start == 0) {
            return outcome;
        }
        if (semlock_system_booted(&after) == 0 && before == after) {
            found->start -= before;
            return 0;
        }
    }
    found->start = 0;
    return 0;
}
#endif

#if defined(__FreeBSD__)
/* A random number of this boot.  A kernel too old to have one: the boot time is used.  A
 * kernel that has one but cannot give it yet: the text stays empty, because two texts for one
 * boot would make a living holder look like one of an earlier boot. */
static void
name_boot(char *text, size_t room)
{
    unsigned char id[16];
    size_t size = sizeof id;
    int64_t moment;

    if (sysctlbyname("kern.boot_id", id, &size, NULL, 0) != 0) {
        if (errno == ENOENT && semlock_system_booted(&moment) == 0) {
            snprintf(text, room, "boottime-%lld", (long long)moment);
        }
        return;
    }
    for (size_t i = 0; i < size; i++) {
        snprintf(text + 2 * i, room - 2 * i, "%02x", id[i]);
    }
}
#elif defined(__NetBSD__)
/* The start time of process 1 is the boot time, and it does not change when the clock is set.
 */
static void
name_boot(char *text, size_t room)
{
    semlock_fate first;

    if (semlock_system_look_up(1, &first) == 0 && first.start != 0) {
        snprintf(text, room, "init-%lld", (long long)first.start);
    }
}
#else
/* OpenBSD has no value that is constant during a boot and differs between boots.  The prefix
 * "boottime-" lets readers know that this text changes with the clock, so that a different
 * text does not prove another boot. */
static void
name_boot(char *text, size_t room)
{
    int64_t moment;

    if (semlock_system_booted(&moment) == 0) {
        snprintf(text, room, "boottime-%lld", (long long)moment);
    }
}
#endif

#if defined(__FreeBSD__)
static int
setting(const char *name)
{
    int value = 0;
    size_t size = sizeof value;

    return sysctlbyname(name, &value, &size, NULL, 0) == 0 ? value : -1;
}

/* Is this directory the machine's own root?  On UFS the root is inode 2.  On ZFS it has no
 * fixed number; it is only known whether this filesystem is the one with the root. */
static int
may_be_the_machines(const struct stat *root)
{
    struct statfs about;

    return statfs("/", &about) != 0 ||
           ((about.f_flags & MNT_ROOTFS) != 0 &&
            (strcmp(about.f_fstypename, "ufs") != 0 || root->st_ino == 2));
}

/* A jail sees no process outside itself, so its PIDs mean nothing to processes outside.  It
 * cannot learn its own jail number; a hash of its host name, host UUID and root directory is
 * used instead.  A service jail shares these with the machine and with other service jails.
 * So there the process's own number and start go into the hash, and no other process judges it
 * by its PID. */
static uint64_t
process_space(const semlock_process *process)
{
    static const char *const names[] = {"kern.hostuuid", "kern.hostname"};
    uint64_t hash = SEMLOCK_NO_HASH;
    struct stat root;
    char text[256];

    if (setting("security.jail.jailed") != 1) {
        return 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t size = sizeof text;

        if (sysctlbyname(names[i], text, &size, NULL, 0) == 0) {
            hash = semlock_hash(hash, text, size);
        }
    }
    memset(&root, 0, sizeof root);
    if (stat("/", &root) == 0) {
        hash = semlock_hash(hash, &root.st_dev, sizeof root.st_dev);
        hash = semlock_hash(hash, &root.st_ino, sizeof root.st_ino);
    }
    if (may_be_the_machines(&root)) {
        hash = semlock_hash(hash, &process->pid, sizeof process->pid);
        hash = semlock_hash(hash, &process->start, sizeof process->start);
    }
    return hash | 1;
}

/* An administrator can hide processes of other users, and policies can hide those with other
 * labels even from root; a hidden process answers as if it did not exist. */
int
semlock_system_hides_processes(void)
{
    static const char *const labels[] = {
        "security.mac.partition.enabled", "security.mac.biba.enabled",
        "security.mac.mls.enabled", "security.mac.lomac.enabled"};

    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++) {
        if (setting(labels[i]) == 1) {
            return 1;
        }
    }
    if (setting("security.mac.seeotheruids.enabled") == 1 &&
        (geteuid() != 0 || setting("security.mac.seeotheruids.suser_privileged") == 0)) {
        return 1;
    }
    return geteuid() != 0 && (setting("security.bsd.see_other_uids") == 0 ||
                              setting("security.bsd.see_other_gids") == 0 ||
                              setting("security.bsd.see_jail_proc") == 0);
}
#else
static uint64_t
process_space(const semlock_process *process)
{
    (void)process;
    return 0;
}

int
semlock_system_hides_processes(void)
{
    return 0; /* signal 0 to a process of another user gives EPERM: it exists */
}
#endif

void
semlock_system_name_space(semlock_process *process)
{
    process->pidns = process_space(process);
    name_boot(process->boot, sizeof process->boot);
}

#if defined(__NetBSD__)
/* The start of process 1. */
int
semlock_system_booted(int64_t *microseconds_since_1970)
{
    semlock_fate first;
    int error = semlock_system_look_up(1, &first);

    *microseconds_since_1970 = error == 0 ? first.start : 0;
    return error;
}
#endif
