// The stand-in libnvidia-ml.so.1: tells what the board knows, so that its figures move with the runtime's.
//
// Used memory is what the living processes hold (contexts included); version 1 of the memory query adds the
// driver's reserve, version 2 tells it apart. A test can add processes and make any query fail (board.h).
#include "board.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum {
    MEMORY_V2 = 0x02000028,
    TEMPERATURE_V1 = 0x0100000c,
    HOST_PID_OFFSET = 5000000,  // what VIEW_HOST_PIDS adds: above every pid Linux gives out
    FABRIC_NOT_SUPPORTED = 0,
    PCIE_SAMPLING_US = 20000,   // the real query takes that long
};

static const unsigned long long BYTES_UNKNOWN = ~0ull;
static const unsigned NO_INSTANCE = ~0u;

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct process_v1 {
    unsigned pid;
    unsigned long long used;
};

struct process_v2 {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

struct temperature {
    unsigned version;
    int sensor;
    int degrees;
};

struct pci_info {
    char legacy_bus_id[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct fabric_info {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
};

static int users;  // NVML counts its users; a query without one fails

// ---- handles: the device's number plus one --------------------------------------------------------------

static void *handle_of(unsigned device) {
    return (void *)(uintptr_t)(device + 1);
}

static unsigned device_of(void *handle) {
    return (unsigned)(uintptr_t)handle - 1;
}

// NVML may number the devices the other way round than CUDA.
static unsigned in_order(unsigned index) {
    return standin_number("STANDIN_NVML_REVERSED", 0) ? standin_settings()->devices - 1 - index : index;
}

static int check(void *handle, enum standin_query query) {
    if (!__atomic_load_n(&users, __ATOMIC_SEQ_CST)) {
        return UNINITIALIZED;
    }
    if (!handle || device_of(handle) >= standin_settings()->devices) {
        return INVALID_ARGUMENT;
    }
    return (int)standin_answer(device_of(handle), query);
}

static int give_handle(unsigned device, void **handle) {
    *handle = handle_of(device);
    return check(*handle, QUERY_HANDLE);
}

// ---- the library ----------------------------------------------------------------------------------------

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int answer = (int)standin_answer(0, QUERY_INIT);
    if (answer == SUCCESS) {
        __atomic_add_fetch(&users, 1, __ATOMIC_SEQ_CST);
    }
    return answer;
}

EXPORT int nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

EXPORT int nvmlShutdown(void) {
    if (!__atomic_load_n(&users, __ATOMIC_SEQ_CST)) {
        return UNINITIALIZED;
    }
    __atomic_sub_fetch(&users, 1, __ATOMIC_SEQ_CST);
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int error) {
    switch (error) {
    case UNINITIALIZED:
        return "Uninitialized";
    case INVALID_ARGUMENT:
        return "Invalid Argument";
    case NOT_SUPPORTED:
        return "Not Supported";
    case NO_PERMISSION:
        return "Insufficient Permissions";
    case NOT_FOUND:
        return "Not Found";
    case GPU_IS_LOST:
        return "GPU is lost";
    default:
        return "an error of the stand-in";
    }
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return SUCCESS;
}

EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned room) {
    snprintf(text, room, "580.00");
    return SUCCESS;
}

EXPORT int nvmlSystemGetNVMLVersion(char *text, unsigned room) {
    snprintf(text, room, "13.580.00");
    return SUCCESS;
}

// ---- devices --------------------------------------------------------------------------------------------

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = standin_settings()->devices;
    return __atomic_load_n(&users, __ATOMIC_SEQ_CST) ? SUCCESS : UNINITIALIZED;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= standin_settings()->devices) {
        return INVALID_ARGUMENT;
    }
    return give_handle(in_order(index), handle);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    char text[STANDIN_UUID_TEXT];
    for (unsigned device = 0; device < standin_settings()->devices; device++) {
        standin_uuid_text(device, text);
        if (!strcmp(uuid, text)) {
            return give_handle(device, handle);
        }
    }
    return NOT_FOUND;
}

// "0000:01:00.0" or "00000000:01:00.0": the bus is the device's number plus one.
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle) {
    unsigned domain, bus;
    if (sscanf(bus_id, "%x:%x:", &domain, &bus) != 2 || domain != 0) {
        return INVALID_ARGUMENT;
    }
    if (bus < 1 || bus > standin_settings()->devices) {
        return NOT_FOUND;
    }
    return give_handle(bus - 1, handle);
}

EXPORT int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    *index = in_order(device_of(handle));
    return check(handle, QUERY_HANDLE);
}

EXPORT int nvmlDeviceGetUUID(void *handle, char *text, unsigned room) {
    char uuid[STANDIN_UUID_TEXT];
    int answer = check(handle, QUERY_HANDLE);
    if (answer == SUCCESS) {
        standin_uuid_text(device_of(handle), uuid);
        snprintf(text, room, "%s", uuid);
    }
    return answer;
}

EXPORT int nvmlDeviceGetName(void *handle, char *text, unsigned room) {
    snprintf(text, room, "Stand-in GPU %u", device_of(handle));
    return check(handle, QUERY_HANDLE);
}

EXPORT int nvmlDeviceGetPciInfo_v3(void *handle, struct pci_info *info) {
    memset(info, 0, sizeof *info);
    info->bus = device_of(handle) + 1;
    snprintf(info->legacy_bus_id, sizeof info->legacy_bus_id, "0000:%02X:00.0", info->bus);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
    return check(handle, QUERY_HANDLE);
}

// No MIG: what most devices answer.
EXPORT int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    (void)handle;
    (void)current;
    (void)pending;
    return NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) {
    (void)handle;
    (void)link;
    (void)type;
    return NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *info) {
    (void)handle;
    (void)link;
    (void)info;
    return NOT_SUPPORTED;
}

// No NVLink fabric, which is an answer and not an error: torch asks before it makes expandable segments.
EXPORT int nvmlDeviceGetGpuFabricInfoV(void *handle, struct fabric_info *info) {
    (void)handle;
    info->status = SUCCESS;
    info->state = FABRIC_NOT_SUPPORTED;
    return SUCCESS;
}

// ---- memory and processes -------------------------------------------------------------------------------

EXPORT int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    int answer = check(handle, QUERY_MEMORY);
    if (answer == SUCCESS) {
        uint64_t reserve = standin_settings()->reserve;
        memory->total = standin_settings()->capacity + reserve;
        memory->used = standin_used(device_of(handle)) + reserve;
        memory->free = memory->total - memory->used;
    }
    return answer;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
    int answer = check(handle, QUERY_MEMORY_V2);
    if (answer == SUCCESS && memory->version != MEMORY_V2) {
        return ARGUMENT_VERSION_MISMATCH;
    }
    if (answer == SUCCESS) {
        memory->reserved = standin_settings()->reserve;
        memory->total = standin_settings()->capacity + memory->reserved;
        memory->used = standin_used(device_of(handle));
        memory->free = memory->total - memory->reserved - memory->used;
    }
    return answer;
}

// The processes as the device's view shows them; more than room: *count tells how many there are.
static int list(void *handle, unsigned *count, struct process_v2 *processes) {
    struct standin_process found[STANDIN_MAX_PROCESSES];
    int answer = check(handle, QUERY_PROCESSES);
    if (answer != SUCCESS) {
        return answer;
    }
    unsigned view = standin_view(device_of(handle));
    size_t n_found = view == VIEW_NOTHING ? 0 : standin_processes(device_of(handle), found, STANDIN_MAX_PROCESSES);
    bool fits = n_found <= *count && (processes || !n_found);
    for (size_t i = 0; fits && i < n_found; i++) {
        processes[i].pid = found[i].pid + (view == VIEW_HOST_PIDS ? HOST_PID_OFFSET : 0);
        processes[i].used = view == VIEW_NO_BYTES ? BYTES_UNKNOWN : found[i].bytes;
        processes[i].gpu_instance = NO_INSTANCE;
        processes[i].compute_instance = NO_INSTANCE;
    }
    *count = (unsigned)n_found;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process_v2 *processes) {
    return list(handle, count, processes);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, struct process_v2 *processes) {
    return list(handle, count, processes);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process_v1 *processes) {
    struct process_v2 found[STANDIN_MAX_PROCESSES];
    unsigned room = *count;
    *count = STANDIN_MAX_PROCESSES;
    int answer = list(handle, count, found);
    if (answer != SUCCESS || *count > room || (*count && !processes)) {
        return answer != SUCCESS ? answer : INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; i < *count; i++) {
        processes[i] = (struct process_v1){found[i].pid, found[i].used};
    }
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct process_v2 *processes) {
    (void)processes;
    *count = 0;
    return check(handle, QUERY_PROCESSES);
}

// ---- utilization and the like: always the same figures ------------------------------------------------------

EXPORT int nvmlDeviceGetUtilizationRates(void *handle, unsigned percent[2]) {
    percent[0] = 37;  // a kernel ran
    percent[1] = 12;  // memory was read or written
    return check(handle, QUERY_UTILIZATION);
}

EXPORT int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    *milliwatts = 123456;
    return check(handle, QUERY_POWER);
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) {
    *milliwatts = 700000;
    return check(handle, QUERY_POWER);
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    *millijoules = 1000000;
    return check(handle, QUERY_POWER);
}

EXPORT int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *degrees) {
    (void)sensor;
    *degrees = 41;
    return check(handle, QUERY_TEMPERATURE);
}

EXPORT int nvmlDeviceGetTemperatureV(void *handle, struct temperature *temperature) {
    if (temperature->version != TEMPERATURE_V1) {
        return ARGUMENT_VERSION_MISMATCH;
    }
    temperature->degrees = 41;
    return check(handle, QUERY_TEMPERATURE);
}

EXPORT int nvmlDeviceGetClockInfo(void *handle, int clock, unsigned *megahertz) {
    (void)clock;
    *megahertz = 1980;
    return check(handle, QUERY_CLOCKS);
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) {
    *reasons = 0;
    return check(handle, QUERY_CLOCKS);
}

EXPORT int nvmlDeviceGetPcieThroughput(void *handle, int direction, unsigned *kilobytes_per_second) {
    (void)direction;
    usleep(PCIE_SAMPLING_US);
    *kilobytes_per_second = 1000;
    return check(handle, QUERY_UTILIZATION);
}
