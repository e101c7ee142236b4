// A stand-in for the CUDA runtime, and for the few driver functions that torch asks the runtime for.
//
// There is no GPU behind it: device memory is counted (board.h), addresses are made up, kernels and copies
// do nothing. So the genuine caching allocator of torch runs on any machine. What is not written here and
// torch links to, build.py makes as a function that returns 0.
#define CUDARTAPI
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "board.h"

#define GRANULE (2ull * 1024 * 1024)  // device memory is handed out in pages of 2 MiB

// Ranges of made-up addresses: apart from each other, and from where Linux maps memory of the host.
static const uintptr_t UPWARDS_FROM = 0x200000000000;
static const uintptr_t DOWNWARDS_FROM = 0x1ff000000000;
static const uintptr_t RANDOM_FROM = 0x400000000000;
static const uintptr_t VIRTUAL_FROM = 0x300000000000;  // cuMemAddressReserve
static const uintptr_t VIRTUAL_TO = 0x340000000000;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards every static variable below
static __thread int current_device;
static __thread cudaError_t last_error;

static cudaError_t fail(cudaError_t error) {
    last_error = error;
    return error;
}

static uint64_t in_granules(uint64_t bytes) {
    return (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

// ---- devices --------------------------------------------------------------------------------------------

static pthread_once_t visible_once = PTHREAD_ONCE_INIT;
static unsigned visible[STANDIN_MAX_DEVICES];  // physical number of each device that CUDA shows
static int n_visible;

// One entry of CUDA_VISIBLE_DEVICES, a number or the beginning of a UUID; -1 if there is no such device.
static int physical_device(const char *entry) {
    char uuid[STANDIN_UUID_TEXT];
    char *end;
    long number = strtol(entry, &end, 10);
    if (end != entry) {
        return number >= 0 && number < (long)standin_settings()->devices ? (int)number : -1;
    }
    for (unsigned device = 0; device < standin_settings()->devices; device++) {
        standin_uuid_text(device, uuid);
        if (strlen(entry) > 4 && !strncasecmp(entry, uuid, strlen(entry))) {
            return (int)device;
        }
    }
    return -1;
}

// As CUDA reads it: the first entry that names no device ends the list.
static void read_visible(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        n_visible = (int)standin_settings()->devices;
        for (int device = 0; device < n_visible; device++) {
            visible[device] = (unsigned)device;
        }
        return;
    }
    char *copy = strdup(text);
    char *rest = copy;
    for (char *entry; (entry = strsep(&rest, ",")) && n_visible < STANDIN_MAX_DEVICES;) {
        int device = physical_device(entry);
        if (device < 0) {
            break;
        }
        visible[n_visible++] = (unsigned)device;
    }
    free(copy);
}

static int device_count(void) {
    pthread_once(&visible_once, read_visible);
    return n_visible;
}

static bool is_device(int device) {
    return device >= 0 && device < device_count();
}

static unsigned physical(int device) {
    return is_device(device) ? visible[device] : 0;
}

// The first use of a device makes a context, which takes memory.
static cudaError_t need_context(void) {
    if (!is_device(current_device)) {
        return fail(cudaErrorNoDevice);
    }
    return standin_take(physical(current_device), 0) ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaGetDeviceCount(int *count) {
    *count = device_count();
    return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

EXPORT cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

EXPORT cudaError_t cudaSetDevice(int device) {
    if (!is_device(device)) {
        return fail(cudaErrorInvalidDevice);
    }
    current_device = device;
    return need_context();  // since CUDA 12
}

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    if (!is_device(device)) {
        return fail(cudaErrorInvalidDevice);
    }
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "Stand-in GPU %u", physical(device));
    standin_uuid(physical(device), (uint8_t *)properties->uuid.bytes);
    properties->pciBusID = (int)physical(device) + 1;
    properties->totalGlobalMem = standin_settings()->capacity;
    properties->major = 9;
    properties->minor = 0;
    properties->multiProcessorCount = 132;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->maxThreadsDim[0] = 1024;
    properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = 65535;
    properties->maxGridSize[2] = 65535;
    properties->sharedMemPerBlock = 49152;
    properties->sharedMemPerBlockOptin = 232448;
    properties->sharedMemPerMultiprocessor = 233472;
    properties->regsPerBlock = 65536;
    properties->regsPerMultiprocessor = 65536;
    properties->textureAlignment = 512;
    properties->l2CacheSize = 50 * 1024 * 1024;
    properties->memoryBusWidth = 5120;
    properties->totalConstMem = 65536;
    properties->unifiedAddressing = 1;
    properties->canMapHostMemory = 1;
    properties->concurrentKernels = 1;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    (void)device;
    switch ((int)attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = 132;
        break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = 2048;
        break;
    case cudaDevAttrMaxThreadsPerBlock:
        *value = 1024;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = 49152;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 232448;
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    default:
        *value = 1;
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int room, int device) {
    if (!is_device(device)) {
        return fail(cudaErrorInvalidDevice);
    }
    snprintf(text, (size_t)room, "0000:%02x:00.0", physical(device) + 1);
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    (void)device;
    (void)peer;
    *can = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDriverGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// ---- errors ---------------------------------------------------------------------------------------------

EXPORT cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

EXPORT const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorNotSupported:
        return "operation not supported (by the stand-in)";
    default:
        return "an error of the stand-in";
    }
}

EXPORT const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorStandIn";
}

// ---- memory ---------------------------------------------------------------------------------------------

enum address_mode { UP, DOWN, RANDOM, REUSE };

struct allocation {
    uintptr_t address;
    size_t size;
    unsigned device;
    bool is_live;
};

static struct allocation *allocations;
static size_t n_allocations, room_for_allocations;
static uintptr_t next_up = UPWARDS_FROM, next_down = DOWNWARDS_FROM, next_virtual = VIRTUAL_FROM;

static pthread_once_t mode_once = PTHREAD_ONCE_INIT;
static enum address_mode mode;

static void read_mode(void) {
    static const char *const names[] = {"up", "down", "random", "reuse"};
    const char *text = getenv("STANDIN_ADDRESSES");
    for (int number = 0; text && number < 4; number++) {
        if (!strcmp(text, names[number])) {
            mode = (enum address_mode)number;
            return;
        }
    }
    if (text && *text) {
        fprintf(stderr, "stand-in: STANDIN_ADDRESSES is up, down, random or reuse, not %s\n", text);
        abort();
    }
}

static bool is_taken(uintptr_t address, size_t size) {
    for (size_t i = 0; i < n_allocations; i++) {
        const struct allocation *other = &allocations[i];
        if (other->is_live && address < other->address + in_granules(other->size) && other->address < address + size) {
            return true;
        }
    }
    return false;
}

static uintptr_t random_address(void) {
    static uint64_t state = 88172645463325252;  // xorshift: the same addresses in every run
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return RANDOM_FROM + state % (1ull << 24) * GRANULE;
}

static uintptr_t new_address(size_t size) {
    uintptr_t address;
    switch (mode) {
    case DOWN:
        next_down -= size;
        return next_down;
    case RANDOM:
        do {
            address = random_address();
        } while (is_taken(address, size));
        return address;
    default:
        address = next_up;
        next_up += size;
        return address;
    }
}

// An entry for a new allocation of size bytes in whole granules; its address is set. The mutex is held.
static struct allocation *new_allocation(size_t size) {
    for (size_t i = 0; i < n_allocations; i++) {
        struct allocation *dead = &allocations[i];
        if (!dead->is_live && (mode != REUSE || in_granules(dead->size) == size)) {
            dead->address = mode == REUSE ? dead->address : new_address(size);
            return dead;
        }
    }
    if (n_allocations == room_for_allocations) {
        room_for_allocations = room_for_allocations ? 2 * room_for_allocations : 1024;
        allocations = realloc(allocations, room_for_allocations * sizeof *allocations);
    }
    struct allocation *fresh = &allocations[n_allocations++];
    fresh->is_live = false;
    fresh->address = new_address(size);
    return fresh;
}

EXPORT cudaError_t cudaMalloc(void **pointer, size_t size) {
    *pointer = NULL;
    pthread_once(&mode_once, read_mode);
    if (!is_device(current_device)) {
        return fail(cudaErrorNoDevice);
    }
    unsigned device = physical(current_device);
    if (size > standin_settings()->capacity || !standin_take(device, in_granules(size))) {
        return fail(cudaErrorMemoryAllocation);
    }
    pthread_mutex_lock(&mutex);
    struct allocation *allocation = new_allocation(in_granules(size));
    allocation->size = size;
    allocation->device = device;
    allocation->is_live = true;
    *pointer = (void *)allocation->address;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

// The allocation that pointer lies in, or NULL. The mutex is held.
static struct allocation *allocation_of(const void *pointer) {
    uintptr_t address = (uintptr_t)pointer;
    for (size_t i = 0; i < n_allocations; i++) {
        struct allocation *allocation = &allocations[i];
        if (allocation->is_live && address >= allocation->address && address < allocation->address + allocation->size) {
            return allocation;
        }
    }
    return NULL;
}

EXPORT cudaError_t cudaFree(void *pointer) {
    if (!pointer) {
        return need_context();  // the customary way to make one
    }
    pthread_mutex_lock(&mutex);
    struct allocation *allocation = allocation_of(pointer);
    bool is_start = allocation && allocation->address == (uintptr_t)pointer;
    if (is_start) {
        allocation->is_live = false;
        standin_give(allocation->device, in_granules(allocation->size));
    }
    pthread_mutex_unlock(&mutex);
    return is_start ? cudaSuccess : fail(cudaErrorInvalidValue);
}

EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    cudaError_t error = need_context();
    *total_bytes = standin_settings()->capacity;
    uint64_t used = standin_used(physical(current_device));
    *free_bytes = used < *total_bytes ? *total_bytes - used : 0;  // a test may add more than there is
    return error;
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    uintptr_t address = (uintptr_t)pointer;
    memset(attributes, 0, sizeof *attributes);
    pthread_mutex_lock(&mutex);
    bool is_on_device = allocation_of(pointer) || (address >= VIRTUAL_FROM && address < VIRTUAL_TO);
    pthread_mutex_unlock(&mutex);
    if (is_on_device) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = current_device;
        attributes->devicePointer = (void *)pointer;
    } else {
        attributes->type = cudaMemoryTypeUnregistered;
        attributes->hostPointer = (void *)pointer;
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned flags) {
    (void)flags;
    return posix_memalign(pointer, 4096, size ? size : 1) ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

EXPORT cudaError_t cudaMallocHost(void **pointer, size_t size) {
    return cudaHostAlloc(pointer, size, 0);
}

EXPORT cudaError_t cudaFreeHost(void *pointer) {
    free(pointer);
    return cudaSuccess;
}

// There are no values on the device: what comes back is zeros.
EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                                   cudaStream_t stream) {
    (void)from;
    (void)stream;
    if (kind == cudaMemcpyDeviceToHost) {
        memset(to, 0, size);
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, size, kind, NULL);
}

// Better refused than a pointer to nothing: CUDA's own memory pools, memory shared between processes.
EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream) {
    (void)size;
    (void)stream;
    *pointer = NULL;
    return fail(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
    (void)handle;
    (void)pointer;
    return fail(cudaErrorNotSupported);
}

// ---- streams and events ---------------------------------------------------------------------------------

static cudaError_t new_stream(cudaStream_t *stream) {
    static uintptr_t last = 0x55d000001000;  // looks like the pointers that CUDA gives
    pthread_mutex_lock(&mutex);
    last += 0x350;
    *stream = (cudaStream_t)last;
    pthread_mutex_unlock(&mutex);
    return need_context();
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return new_stream(stream);
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    return new_stream(stream);
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)flags;
    (void)priority;
    return new_stream(stream);
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    (void)stream;
    *priority = 0;
    return cudaSuccess;
}

// An event: how many more times it answers "not ready".
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof(uint64_t));
    return *event ? need_context() : fail(cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, 0);
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    (void)stream;
    *(uint64_t *)event = standin_number("STANDIN_EVENT_DELAY", 0);
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    (void)flags;
    return cudaEventRecord(event, stream);
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    uint64_t *delay = (uint64_t *)event;
    if (*delay == 0) {
        return cudaSuccess;
    }
    --*delay;
    return fail(cudaErrorNotReady);
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    *(uint64_t *)event = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    (void)start;
    (void)end;
    *milliseconds = 0.1f;
    return cudaSuccess;
}

// ---- graphs: one stream captures at a time, nothing is replayed -----------------------------------------

static cudaStream_t capturing_stream;
static bool is_capturing;
static unsigned long long capture_id;

static enum cudaStreamCaptureStatus capture_status(cudaStream_t stream) {
    pthread_mutex_lock(&mutex);
    bool is_active = is_capturing && stream == capturing_stream;
    pthread_mutex_unlock(&mutex);
    return is_active ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode capture_mode) {
    (void)capture_mode;
    pthread_mutex_lock(&mutex);
    capturing_stream = stream;
    is_capturing = true;
    capture_id++;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    (void)stream;
    pthread_mutex_lock(&mutex);
    is_capturing = false;
    pthread_mutex_unlock(&mutex);
    *graph = (cudaGraph_t)1;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = capture_status(stream);
    return cudaSuccess;
}

// What every version of cudaStreamGetCaptureInfo tells; any pointer but status may be NULL.
static void tell_capture(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                         cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *n_dependencies) {
    *status = capture_status(stream);
    if (id) {
        *id = capture_id;
    }
    if (graph) {
        *graph = (cudaGraph_t)1;
    }
    if (dependencies) {
        *dependencies = NULL;
    }
    if (n_dependencies) {
        *n_dependencies = 0;
    }
}

#if CUDART_VERSION >= 13000
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                            unsigned long long *id, cudaGraph_t *graph,
                                            const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                                            size_t *n_dependencies) {
    if (edges) {
        *edges = NULL;
    }
    tell_capture(stream, status, id, graph, dependencies, n_dependencies);
    return cudaSuccess;
}
#else
// In CUDA 12 the plain name stands for the newest version; torch links to the second.
#undef cudaStreamGetCaptureInfo
#undef cudaStreamGetCaptureInfo_v2
EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                               unsigned long long *id, cudaGraph_t *graph,
                                               const cudaGraphNode_t **dependencies, size_t *n_dependencies) {
    tell_capture(stream, status, id, graph, dependencies, n_dependencies);
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                            unsigned long long *id) {
    tell_capture(stream, status, id, NULL, NULL, NULL);
    return cudaSuccess;
}
#endif

// One node: torch warns of an empty graph.
EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    (void)graph;
    (void)nodes;
    *count = 1;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                                 unsigned long long flags) {
    (void)graph;
    (void)flags;
    *executable = (cudaGraphExec_t)1;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(executable, graph, flags);
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *capture_mode) {
    (void)capture_mode;
    return cudaSuccess;
}

// ---- kernels --------------------------------------------------------------------------------------------

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                          int block_size, size_t shared_size,
                                                                          unsigned flags) {
    (void)function;
    (void)block_size;
    (void)shared_size;
    (void)flags;
    *blocks = 8;
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int block_size,
                                                                 size_t shared_size) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_size, 0);
}

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    (void)function;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->binaryVersion = 90;
    attributes->ptxVersion = 90;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
    *address = (void *)symbol;
    return cudaSuccess;
}

EXPORT void **__cudaRegisterFatBinary(void *binary) {
    static void *handle[4];
    (void)binary;
    return handle;
}

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_size, void *stream) {
    (void)grid;
    (void)block;
    (void)shared_size;
    (void)stream;
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_size, void *stream) {
    *grid = (dim3){1, 1, 1};
    *block = (dim3){1, 1, 1};
    *shared_size = 0;
    *(void **)stream = NULL;
    return cudaSuccess;
}

#if CUDART_VERSION >= 12010
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}
#endif

// ---- the driver -----------------------------------------------------------------------------------------
//
// Newer versions of torch ask cudaGetDriverEntryPoint for these functions, older ones look them up in
// libcuda.so.1, which is linked with this library.

// Physical memory for expandable segments: it counts from cuMemCreate to cuMemRelease.
struct physical_memory {
    size_t size;
    unsigned device;
};

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wish,
                                unsigned long long flags) {
    (void)alignment;
    (void)wish;
    (void)flags;
    pthread_mutex_lock(&mutex);
    bool fits = size < VIRTUAL_TO - next_virtual;
    if (fits) {
        *pointer = next_virtual;
        next_virtual += in_granules(size) + GRANULE;
    }
    pthread_mutex_unlock(&mutex);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                              unsigned long long flags) {
    (void)flags;
#if CUDART_VERSION >= 12030
    if (properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
#endif
    unsigned device = physical(properties->location.id);
    if (!standin_take(device, in_granules(size))) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct physical_memory *memory = malloc(sizeof *memory);
    memory->size = in_granules(size);
    memory->device = device;
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct physical_memory *memory = (struct physical_memory *)(uintptr_t)handle;
    standin_give(memory->device, memory->size);
    free(memory);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *size, const CUmemAllocationProp *properties,
                            CUmemAllocationGranularity_flags option) {
    (void)properties;
    (void)option;
    *size = GRANULE;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)attribute;
    (void)device;
    *value = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "an error of the stand-in's driver";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = standin_has_context(physical(current_device)) ? (CUcontext)1 : NULL;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
    *flags = 0;
    *is_active = standin_has_context(physical(device));
    return CUDA_SUCCESS;
}

static CUresult succeed(void) {
    return CUDA_SUCCESS;
}

static void *driver_function(const char *name) {
    static const struct {
        const char *name;
        void *function;
    } table[] = {
        {"cuMemAddressReserve", cuMemAddressReserve},
        {"cuMemCreate", cuMemCreate},
        {"cuMemRelease", cuMemRelease},
        {"cuMemGetAllocationGranularity", cuMemGetAllocationGranularity},
        {"cuDeviceGetAttribute", cuDeviceGetAttribute},
        {"cuGetErrorString", cuGetErrorString},
        {"cuCtxGetCurrent", cuCtxGetCurrent},
        {"cuDeviceGet", cuDeviceGet},
        {"cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (!strcmp(name, table[i].name)) {
            return table[i].function;
        }
    }
    return succeed;
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *result) {
    (void)version;
    (void)flags;
    *function = driver_function(name);
    if (result) {
        *result = cudaDriverEntryPointSuccess;
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                           enum cudaDriverEntryPointQueryResult *result) {
    return cudaGetDriverEntryPointByVersion(name, function, 0, flags, result);
}
