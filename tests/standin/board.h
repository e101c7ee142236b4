// The board: what the stand-in runtime and the stand-in NVML know in common.
//
// It counts the bytes that every process holds on every made-up device, and carries the answers a test
// wants from NVML. With STANDIN_BOARD=PATH it lies in that file, so that several processes share the same
// devices; without, a process and its forks have devices of their own.
//
// Devices are numbered physically here; CUDA_VISIBLE_DEVICES is the runtime's affair, NVML's order NVML's.
#ifndef STANDIN_BOARD_H
#define STANDIN_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    STANDIN_MAX_DEVICES = 16,
    STANDIN_MAX_PROCESSES = 256,
    STANDIN_UUID_BYTES = 16,
    STANDIN_UUID_TEXT = 41,  // "GPU-", 36 characters, the end
};

// What NVML can be asked; python/standin.py lists the same names in the same order.
enum standin_query {
    QUERY_INIT,
    QUERY_HANDLE,
    QUERY_MEMORY,
    QUERY_MEMORY_V2,
    QUERY_PROCESSES,
    QUERY_UTILIZATION,
    QUERY_POWER,
    QUERY_TEMPERATURE,
    QUERY_CLOCKS,
    QUERY_COUNT,
};

// How NVML tells of processes; python/standin.py lists the same names in the same order.
enum standin_view {
    VIEW_ALL,        // pids and bytes
    VIEW_NO_BYTES,   // pids only, as under WDDM
    VIEW_HOST_PIDS,  // pids of another namespace, as in a container
    VIEW_NOTHING,    // an empty list, as in a container without the right
};

struct standin_settings {
    uint64_t capacity;  // bytes of a device that CUDA can hand out, contexts included
    uint64_t context;   // bytes a process takes on a device with its first use of it
    uint64_t reserve;   // bytes the driver keeps: in NVML's total, not in CUDA's
    unsigned devices;
};

struct standin_process {
    uint32_t pid;
    uint64_t bytes;
};

// From the environment, read once.
EXPORT const struct standin_settings *standin_settings(void);

// A number from the environment; ends the process with a message if it is not one.
EXPORT uint64_t standin_number(const char *name, uint64_t otherwise);

// Use the board in the file at path from now on; it is created if need be. 0, or an errno.
EXPORT int standin_open(const char *path);

// This process takes bytes on device (and its context, if it had none). False: they do not fit.
EXPORT bool standin_take(unsigned device, uint64_t bytes);

// This process gives bytes on device back.
EXPORT void standin_give(unsigned device, uint64_t bytes);

// Has this process used device yet?
EXPORT bool standin_has_context(unsigned device);

// Bytes that all living processes hold on device, contexts included.
EXPORT uint64_t standin_used(unsigned device);

// Up to room of the living processes on device; returns how many there are.
EXPORT size_t standin_processes(unsigned device, struct standin_process *found, size_t room);

// Another, made-up process holds bytes on device from now on; 0 ends it. False: no room, or pid is a real one.
EXPORT bool standin_set_other(unsigned device, uint32_t pid, uint64_t bytes);

// NVML answers query about device with this code from now on; 0 is success.
EXPORT void standin_set_answer(unsigned device, unsigned query, uint32_t code);
EXPORT uint32_t standin_answer(unsigned device, unsigned query);

EXPORT void standin_set_view(unsigned device, unsigned view);
EXPORT unsigned standin_view(unsigned device);

EXPORT void standin_uuid(unsigned device, uint8_t uuid[STANDIN_UUID_BYTES]);
EXPORT void standin_uuid_text(unsigned device, char text[STANDIN_UUID_TEXT]);

#endif
