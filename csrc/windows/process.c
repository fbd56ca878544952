/* Windows: clocks, the identity of a process, and whether it still runs. */
#include <stdio.h>
#include <string.h>

#include "windows/system.h"

#if defined(_MSC_VER)
#pragma comment(lib, "advapi32") /* the registry */
#endif

#define PID_LIMIT 0xffffffff

/* Asking costs as much as a judgement, so that decides. */
int
semlock_process_exists(int64_t pid)
{
    (void)pid;
    return 1;
}

void
semlock_yield(void)
{
    SwitchToThread();
}

/* The number of the calling thread, as in posix/fork.c.  TLS calls are used instead of a
 * thread-local variable: where a compiler emulates those, as mingw does, each ending thread
 * calls the system for them while it holds the loader lock. */
int64_t
semlock_thread(void)
{
    static int64_t drawn;
    static int64_t slot; /* the index of the TLS slot, plus one */
    int64_t known = semlock_load64(&slot);
    int64_t number;

    if (known == 0) {
        DWORD made = TlsAlloc();

        if (made == TLS_OUT_OF_INDEXES) {
            return (int64_t)GetCurrentThreadId() + ((int64_t)1 << 40);
        }
        if (!semlock_swap_if64(&slot, 0, (int64_t)made + 1)) {
            TlsFree(made);
        }
        known = semlock_load64(&slot);
    }
    number = (int64_t)(intptr_t)TlsGetValue((DWORD)(known - 1));
    if (number == 0) {
        number = semlock_add64(&drawn, 1) + 1;
        TlsSetValue((DWORD)(known - 1), (LPVOID)(intptr_t)number);
    }
    return number;
}

/* A time of Windows as nanoseconds since 1970. */
int64_t
semlock_filetime_ns(FILETIME time)
{
    return ((int64_t)((uint64_t)time.dwHighDateTime << 32 | time.dwLowDateTime) -
            SEMLOCK_FILETIME_OF_1970) *
           100;
}

int64_t
semlock_wall_ns(void)
{
    FILETIME now;

    GetSystemTimePreciseAsFileTime(&now);
    return semlock_filetime_ns(now);
}

int64_t
semlock_now_ns(void)
{
    LARGE_INTEGER count, rate;

    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&rate);
    return count.QuadPart / rate.QuadPart * 1000000000 +
           count.QuadPart % rate.QuadPart * 1000000000 / rate.QuadPart;
}

static int64_t
creation_time(HANDLE process)
{
    FILETIME began, ended, kernel, user;

    if (!GetProcessTimes(process, &began, &ended, &kernel, &user)) {
        return 0;
    }
    return (int64_t)((uint64_t)began.dwHighDateTime << 32 | began.dwLowDateTime);
}

/* Open a process by its PID: 0, or an error.  Windows ignores the two lowest bits of a PID,
 * which are always zero in a real one.  If the opened process has another PID, the given one
 * belongs to no process. */
static int
open_process(int64_t pid, DWORD rights, HANDLE *process)
{
    DWORD number;
    int error;

    if (pid < 1 || pid > PID_LIMIT) {
        return -ERROR_INVALID_PARAMETER;
    }
    *process = OpenProcess(rights, FALSE, (DWORD)pid);
    if (*process == NULL) {
        return semlock_last_error();
    }
    number = GetProcessId(*process);
    if (number == (DWORD)pid) {
        return 0;
    }
    /* An error of GetProcessId does not mean that the process is gone. */
    error = number == 0 ? semlock_last_error() : -ERROR_INVALID_PARAMETER;
    CloseHandle(*process);
    return error;
}

/* A process handle that can be waited for, or -1. */
int64_t
semlock_process_open(int64_t events, int64_t pid)
{
    HANDLE process;
    int error = open_process(pid, SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION, &process);

    (void)events;
    return error == 0 ? (int64_t)(intptr_t)process : -1;
}

void
semlock_process_close(int64_t events, int64_t process)
{
    (void)events;
    CloseHandle((HANDLE)(intptr_t)process);
}

/* The start time in units of 100 nanoseconds since 1601, as Windows stores it. */
int
semlock_start_time(int64_t pid, int64_t *start)
{
    HANDLE process;
    int error = open_process(pid, PROCESS_QUERY_LIMITED_INFORMATION, &process);

    if (error != 0) {
        return error;
    }
    *start = creation_time(process);
    error = *start == 0 ? semlock_last_error() : 0;
    CloseHandle(process);
    return error;
}

/* Read a value of the registry as 64-bit programs see it: 0 with its size, or an error
 * (registry functions return theirs). */
static int
read_registry(const char *key, const char *name, DWORD type, void *value, DWORD *size)
{
    REGSAM rights = KEY_QUERY_VALUE | KEY_WOW64_64KEY;
    DWORD found;
    HKEY opened;
    LSTATUS error = RegOpenKeyExA(HKEY_LOCAL_MACHINE, key, 0, rights, &opened);

    if (error == ERROR_SUCCESS) {
        error = RegQueryValueExA(opened, name, NULL, &found, value, size);
        RegCloseKey(opened);
        if (error == ERROR_SUCCESS && found != type) {
            error = ERROR_INVALID_DATA;
        }
    }
    return -(int)error;
}

/* The machine and its boot.  Where the system does not count boots the machine alone is used;
 * that is enough, because the start times of processes differ between boots.  If the system
 * counts them but the count cannot be read, the text stays empty: two texts for one boot would
 * make a living holder look like one of an earlier boot. */
static void
name_boot(char *text, size_t room)
{
    char guid[40];
    DWORD size = sizeof guid - 1;
    DWORD boots, boots_size = sizeof boots;
    size_t used = 0;
    int error;

    if (read_registry("SOFTWARE\\Microsoft\\Cryptography", "MachineGuid", REG_SZ, guid,
                      &size) != 0) {
        return;
    }
    error = read_registry("SYSTEM\\CurrentControlSet\\Control\\Session Manager\\"
                          "Memory Management\\PrefetchParameters",
                          "BootId", REG_DWORD, &boots, &boots_size);
    if (error != 0 && !semlock_is_gone(error)) {
        return;
    }
    for (DWORD i = 0; i < size && guid[i] != 0; i++) {
        if (guid[i] > ' ' && guid[i] <= '~') {
            text[used++] = guid[i];
        }
    }
    text[used] = 0;
    if (error == 0 && used != 0) {
        snprintf(text + used, room - used, "-%lu", (unsigned long)boots);
    }
}

/* PIDs are valid within one machine only, and containers and clones of a machine have the same
 * registry.  Two of them cannot have the same computer name at the same time in one network,
 * so a hash of the name identifies the space of PIDs. */
static uint64_t
process_space(void)
{
    WCHAR name[MAX_COMPUTERNAME_LENGTH + 1];
    DWORD length = MAX_COMPUTERNAME_LENGTH + 1;
    uint64_t hash = SEMLOCK_NO_HASH;

    if (!GetComputerNameW(name, &length)) {
        return 0;
    }
    for (DWORD i = 0; i < length; i++) {
        hash = (hash ^ name[i]) * 1099511628211u;
    }
    return hash;
}

int
semlock_identify(semlock_process *process)
{
    memset(process, 0, sizeof *process);
    process->pid = (int64_t)GetCurrentProcessId();
    process->start = creation_time(GetCurrentProcess());
    process->pidns = process_space();
    name_boot(process->boot, sizeof process->boot);
    return 0;
}

/* The state of the process with this number and start time (0 if unknown).  A process can be
 * opened as long as any handle to it exists, long after its end, and its exit code may be any
 * number.  So only a wait with timeout zero shows whether it runs. */
int
semlock_probe(int64_t pid, int64_t start)
{
    HANDLE process;
    DWORD waited;
    int64_t began;
    int error;

    if (pid < 1 || pid > PID_LIMIT) {
        return -ERROR_INVALID_PARAMETER;
    }
    error = open_process(pid, SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION, &process);
    if (error == -ERROR_INVALID_PARAMETER) {
        return SEMLOCK_GONE;
    }
    if (error == -ERROR_ACCESS_DENIED) {
        return SEMLOCK_EXISTS;
    }
    if (error != 0) {
        return error;
    }
    waited = WaitForSingleObject(process, 0);
    began = creation_time(process);
    CloseHandle(process);
    if (start != 0 && began != 0 && began != start) {
        /* The remains of another process that had the PID do not run either. */
        return waited == WAIT_OBJECT_0 ? SEMLOCK_GONE : SEMLOCK_RECYCLED;
    }
    if (waited == WAIT_OBJECT_0) {
        return SEMLOCK_ZOMBIE;
    }
    if (waited == WAIT_TIMEOUT && start != 0 && began != 0) {
        return SEMLOCK_RUNS;
    }
    return SEMLOCK_EXISTS;
}

/* The system closes the files of a process when it has ended. */
int
semlock_probe_ending(int64_t pid, int64_t start, int64_t patience)
{
    (void)patience;
    return semlock_probe(pid, start);
}

/* The time of the boot, in nanoseconds since 1970 by the clock as it is set now. */
int64_t
semlock_boot_time(void)
{
    return semlock_wall_ns() - (int64_t)GetTickCount64() * 1000000;
}

/* Windows has no fork: a process has one life, and calls need no protection from it. */
void
semlock_enter(semlock_pool *pool)
{
    if (semlock_load64(&pool->life) == 0) {
        semlock_store64(&pool->life, 1);
    }
}

void
semlock_leave(semlock_pool *pool)
{
    (void)pool;
}

int64_t
semlock_life(semlock_pool *pool)
{
    (void)pool;
    return 1;
}

int64_t
semlock_busy(void)
{
    return 0;
}
