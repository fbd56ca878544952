/* NetBSD: as much of statvfs.h as its system source asks for. */
#ifndef STANDIN_SYS_STATVFS_H
#define STANDIN_SYS_STATVFS_H

#define ST_LOCAL 0x1000

struct statvfs {
    unsigned long f_flag;
    char f_fstypename[32];
};

#endif
