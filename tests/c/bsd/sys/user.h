/* FreeBSD: what it tells of a process. */
#ifndef STANDIN_SYS_USER_H
#define STANDIN_SYS_USER_H

#include <sys/time.h>
#include <sys/types.h>

struct kinfo_proc {
    pid_t ki_pid;
    char ki_stat;
    struct timeval ki_start;
};

#endif
