// The board (see board.h): shared memory under a lock that survives the death of who holds it.
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1024ull * 1024ull)
static const uint64_t MAGIC = 0x316472616f62ull;  // "board1"

struct slot {
    uint32_t pid;  // 0: free
    uint32_t device;
    uint64_t born;  // start of the process in clock ticks, tells a reused pid; 0: a made-up process
    uint64_t bytes;
};

struct board {
    uint64_t magic;
    pthread_mutex_t lock;
    uint32_t answers[STANDIN_MAX_DEVICES][QUERY_COUNT];
    uint32_t views[STANDIN_MAX_DEVICES];
    struct slot slots[STANDIN_MAX_PROCESSES];
};

static struct board *board;
static pthread_once_t board_once = PTHREAD_ONCE_INIT;
static struct standin_settings settings;
static pthread_once_t settings_once = PTHREAD_ONCE_INIT;

// ---- settings ------------------------------------------------------------------------------------------

static void die(const char *what, const char *which) {
    fprintf(stderr, "stand-in: %s: %s\n", what, which);
    abort();
}

uint64_t standin_number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    if (!text || !*text) {
        return otherwise;
    }
    char *end;
    uint64_t number = strtoull(text, &end, 10);
    if (*end || *text == '-') {
        die("this variable is not a whole number", name);
    }
    return number;
}

static void read_settings(void) {
    settings.capacity = standin_number("STANDIN_TOTAL_MIB", 81559) * MIB;
    settings.context = standin_number("STANDIN_CONTEXT_MIB", 500) * MIB;
    settings.reserve = standin_number("STANDIN_RESERVE_MIB", 600) * MIB;
    settings.devices = (unsigned)standin_number("STANDIN_DEVICES", 1);
    if (settings.devices > STANDIN_MAX_DEVICES) {
        die("at most 16 devices", "STANDIN_DEVICES");
    }
}

const struct standin_settings *standin_settings(void) {
    pthread_once(&settings_once, read_settings);
    return &settings;
}

// ---- opening -------------------------------------------------------------------------------------------

static void set_up(struct board *new_board) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&new_board->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    new_board->magic = MAGIC;
}

static struct board *map(int file) {
    int flags = file < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
    void *memory = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, flags, file, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

// The file's lock is held while the board is set up: of several processes that start, one does it.
static struct board *map_file(int file) {
    struct stat status;
    if (fstat(file, &status) || (status.st_size == 0 && ftruncate(file, sizeof(struct board)))) {
        return NULL;
    }
    if (status.st_size != 0 && status.st_size != (off_t)sizeof(struct board)) {
        errno = EINVAL;  // somebody else's file
        return NULL;
    }
    struct board *mapped = map(file);
    if (mapped && mapped->magic != MAGIC) {
        set_up(mapped);
    }
    return mapped;
}

int standin_open(const char *path) {
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) {
        return errno;
    }
    flock(file, LOCK_EX);
    struct board *opened = map_file(file);
    int error = opened ? 0 : errno;
    flock(file, LOCK_UN);  // closing would not do: the mapping keeps the file, and with it the lock
    close(file);
    if (opened) {
        if (board) {
            munmap(board, sizeof *board);
        }
        board = opened;
    }
    return error;
}

static void open_board(void) {
    const char *path = getenv("STANDIN_BOARD");
    if (board) {
        return;  // standin_open came first
    }
    if (path && *path) {
        int error = standin_open(path);
        if (error) {
            die("STANDIN_BOARD cannot be opened", strerror(error));
        }
        return;
    }
    board = map(-1);
    if (!board) {
        die("no memory for the board", strerror(errno));
    }
    set_up(board);
}

static void lock(void) {
    pthread_once(&board_once, open_board);
    if (pthread_mutex_lock(&board->lock) == EOWNERDEAD) {
        pthread_mutex_consistent(&board->lock);  // each change is one store: nothing can be half done
    }
}

static void unlock(void) {
    pthread_mutex_unlock(&board->lock);
}

// ---- processes -----------------------------------------------------------------------------------------

// When a process started, in clock ticks since boot; 0 if it is gone or only waits to be buried.
static uint64_t born(uint32_t pid) {
    char path[32];
    char text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file) {
        return 0;
    }
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    char state = 'X';
    unsigned long long start = 0;
    const char *rest = strrchr(text, ')');  // the name before it may hold anything
    if (!rest || sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
                        &state, &start) != 2) {
        return 0;
    }
    return state == 'Z' || state == 'X' ? 0 : start;
}

static bool is_alive(const struct slot *slot) {
    return slot->born == 0 || slot->born == born(slot->pid);
}

// A process that died holds nothing, as on a real device. The lock is held.
static void bury_the_dead(void) {
    for (struct slot *slot = board->slots; slot < board->slots + STANDIN_MAX_PROCESSES; slot++) {
        if (slot->pid && !is_alive(slot)) {
            slot->pid = 0;
        }
    }
}

// The slot of a process on a device, or NULL. The lock is held.
static struct slot *find(unsigned device, uint32_t pid) {
    for (struct slot *slot = board->slots; slot < board->slots + STANDIN_MAX_PROCESSES; slot++) {
        if (slot->pid == pid && (pid == 0 || slot->device == device)) {
            return slot;
        }
    }
    return NULL;
}

// A new slot, or NULL if there is none left. The lock is held.
static struct slot *add(unsigned device, uint32_t pid, uint64_t process_born, uint64_t bytes) {
    struct slot *slot = find(device, 0);
    if (slot) {
        slot->device = device;
        slot->born = process_born;
        slot->bytes = bytes;
        slot->pid = pid;  // last: from here on it counts
    }
    return slot;
}

static uint64_t sum(unsigned device) {
    uint64_t bytes = 0;
    for (const struct slot *slot = board->slots; slot < board->slots + STANDIN_MAX_PROCESSES; slot++) {
        if (slot->pid && slot->device == device) {
            bytes += slot->bytes;
        }
    }
    return bytes;
}

bool standin_take(unsigned device, uint64_t bytes) {
    uint32_t ours = (uint32_t)getpid();
    lock();
    bury_the_dead();
    struct slot *slot = find(device, ours);
    uint64_t wanted = bytes + (slot ? 0 : standin_settings()->context);
    bool fits = sum(device) + wanted <= standin_settings()->capacity;
    if (fits && slot) {
        slot->bytes += bytes;
    } else if (fits) {
        fits = add(device, ours, born(ours), wanted) != NULL;
    }
    unlock();
    return fits;
}

void standin_give(unsigned device, uint64_t bytes) {
    lock();
    struct slot *slot = find(device, (uint32_t)getpid());
    if (slot) {
        slot->bytes -= bytes;
    }
    unlock();
}

bool standin_has_context(unsigned device) {
    lock();
    bury_the_dead();  // an earlier process may have had our pid
    bool has = find(device, (uint32_t)getpid()) != NULL;
    unlock();
    return has;
}

uint64_t standin_used(unsigned device) {
    lock();
    bury_the_dead();
    uint64_t bytes = sum(device);
    unlock();
    return bytes;
}

size_t standin_processes(unsigned device, struct standin_process *found, size_t room) {
    size_t count = 0;
    lock();
    bury_the_dead();
    for (const struct slot *slot = board->slots; slot < board->slots + STANDIN_MAX_PROCESSES; slot++) {
        if (slot->pid && slot->device == device) {
            if (count < room) {
                found[count] = (struct standin_process){slot->pid, slot->bytes};
            }
            count++;
        }
    }
    unlock();
    return count;
}

bool standin_set_other(unsigned device, uint32_t pid, uint64_t bytes) {
    lock();
    bury_the_dead();
    struct slot *slot = find(device, pid);
    bool is_real = slot && slot->born != 0;
    if (slot && !is_real) {
        slot->bytes = bytes;
        slot->pid = bytes ? pid : 0;
    } else if (!slot && bytes) {
        slot = add(device, pid, 0, bytes);
    }
    unlock();
    return !is_real && (slot || !bytes);
}

// ---- what NVML shall say -------------------------------------------------------------------------------

void standin_set_answer(unsigned device, unsigned query, uint32_t code) {
    lock();
    board->answers[device][query] = code;
    unlock();
}

uint32_t standin_answer(unsigned device, unsigned query) {
    lock();
    uint32_t code = board->answers[device][query];
    unlock();
    return code;
}

void standin_set_view(unsigned device, unsigned view) {
    lock();
    board->views[device] = view;
    unlock();
}

unsigned standin_view(unsigned device) {
    lock();
    unsigned view = board->views[device];
    unlock();
    return view;
}

void standin_uuid(unsigned device, uint8_t uuid[STANDIN_UUID_BYTES]) {
    static const uint8_t pattern[STANDIN_UUID_BYTES] = {0x57, 0xa2, 0xd1, 0x00, 0x5c, 0x0b, 0x4e, 0x00,
                                                        0x80, 0x00, 0xfa, 0x6e, 0x00, 0x00, 0x00, 0x00};
    memcpy(uuid, pattern, sizeof pattern);
    uuid[0] = (uint8_t)(uuid[0] + 29 * device);  // the first characters differ: they may serve as a prefix
    uuid[STANDIN_UUID_BYTES - 1] = (uint8_t)(device + 1);
}

void standin_uuid_text(unsigned device, char text[STANDIN_UUID_TEXT]) {
    uint8_t uuid[STANDIN_UUID_BYTES];
    standin_uuid(device, uuid);
    char *end = text + sprintf(text, "GPU-");
    for (int byte = 0; byte < STANDIN_UUID_BYTES; byte++) {
        const char *dash = byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "";
        end += sprintf(end, "%s%02x", dash, uuid[byte]);
    }
}
