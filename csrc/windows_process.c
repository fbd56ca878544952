/* Windows: clocks, who a process is, and what became of it. */
#include <stdio.h>
#include <string.h>

#include "windows_system.h"

#if defined(_MSC_VER)
#pragma comment(lib, "advapi32") /* the registry */
#endif

#define PID_LIMIT 0xffffffff

int64_t
semlock_thread(void)
{
    return (int64_t)GetCurrentThreadId();
}

void
semlock_yield(void)
{
    SwitchToThread();
}

int64_t
semlock_wall_seconds(void)
{
    FILETIME now;

    GetSystemTimePreciseAsFileTime(&now);
    return ((int64_t)((uint64_t)now.dwHighDateTime << 32 | now.dwLowDateTime) -
            SEMLOCK_FILETIME_OF_1970) /
           10000000;
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

/* Open a process by its number: 0, or an error.  Windows ignores the two lowest bits of the
 * number, which are always zero in a real one; a number that comes back changed is
 * nobody's. */
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
    /* That the number can't be told is no sign that the process is gone. */
    error = number == 0 ? semlock_last_error() : -ERROR_INVALID_PARAMETER;
    CloseHandle(*process);
    return error;
}

int64_t
semlock_process_open(int64_t pid)
{
    HANDLE process;
    int error = open_process(pid, SYNCHRONIZE | PROCESS_QUERY_LIMITED_INFORMATION, &process);

    return error == 0 ? (int64_t)(intptr_t)process : -1;
}

/* Hundreds of nanoseconds since 1601: the form in which Windows keeps it. */
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

/* A value of the registry as 64-bit programs see it: 0 with how many bytes it has, or an
 * error (registry functions return theirs). */
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

/* Which machine, and which of its boots.  Where the system counts no boots the machine
 * alone must do, which is enough: the moments at which processes began tell boots apart.
 * But where it counts them and we aren't told, nothing is said, for two texts for one boot
 * would make a living holder look like one of an earlier boot. */
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
    if (error != 0 && !semlock_is_absent(error)) {
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

/* Process numbers mean something within one machine only, and containers and clones of a
 * machine have the same registry.  They can't have the same name at the same time and
 * place, so a number made of the name stands for the space of process numbers. */
static uint64_t
process_space(void)
{
    WCHAR name[MAX_COMPUTERNAME_LENGTH + 1];
    DWORD length = MAX_COMPUTERNAME_LENGTH + 1;
    uint64_t hash = 14695981039346656037u;

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

/* What became of the process with this number that began at `start` (0 if that is unknown)?
 * A process stays open to everybody for as long as somebody has a handle to it, long after
 * its end, and its exit code may be any number; only waiting for it, for no time, tells. */
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
        /* What is left of another process that had the number is nobody either. */
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
