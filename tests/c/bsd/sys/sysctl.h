/* As much of sysctl.h as the system sources ask for. */
#ifndef STANDIN_SYS_SYSCTL_H
#define STANDIN_SYS_SYSCTL_H

#include <stdint.h>
#include <sys/time.h>

#define CTL_KERN 1
#define KERN_PROC 14
#define KERN_PROC_PID 1
#define KERN_BOOTTIME 21
#define KERN_PROC2 47

#if defined(__APPLE__)
struct kinfo_proc {
    struct {
        struct timeval p_starttime;
        char p_stat;
    } kp_proc;
};
#elif defined(__OpenBSD__)
struct kinfo_proc {
    int32_t p_pid;
    int8_t p_stat;
    uint64_t p_ustart_sec;
    uint32_t p_ustart_usec;
};
#elif defined(__NetBSD__)
struct kinfo_proc2 {
    int32_t p_pid;
    int64_t p_uvalid;
    uint32_t p_ustart_sec;
    uint32_t p_ustart_usec;
    int32_t p_realstat;
};
#endif

#endif
