/* macOS: what it tells of a process. */
#ifndef STANDIN_LIBPROC_H
#define STANDIN_LIBPROC_H

#include <stdint.h>

#define PROC_PIDTBSDINFO 3

struct proc_bsdinfo {
    uint32_t pbi_status;
    uint32_t pbi_pid;
    uint64_t pbi_start_tvsec;
    uint64_t pbi_start_tvusec;
};

int proc_pidinfo(int pid, int flavor, uint64_t argument, void *buffer, int size);

#endif
