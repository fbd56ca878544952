/* What a process can be. */
#ifndef STANDIN_SYS_PROC_H
#define STANDIN_SYS_PROC_H

#define SRUN 2
#define SZOMB 5
#define SDEAD 6

#endif
