/* As much of mount.h as the system sources ask for. */
#ifndef STANDIN_SYS_MOUNT_H
#define STANDIN_SYS_MOUNT_H

#include <stdint.h>

#define MNT_LOCAL 0x1000
#define MNT_ROOTFS 0x4000

struct statfs {
    uint64_t f_flags;
    char f_fstypename[16];
};

#endif
