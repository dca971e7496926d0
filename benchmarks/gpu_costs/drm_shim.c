/* A kernel driver for an Intel GPU that is not there, as a library to preload: it stands before libdrm and ioctl.
 *
 * Mesa's ANV asks the kernel's i915 driver what the GPU has before it opens it. The answers here are those of a GPU
 * of SUBSLICES subslices of UNITS execution units with the PCI id DEVICE_ID and LOCAL_MEMORY 0 or 1 regions of memory of
 * its own (all given with -D). Memory is a sparse file, GPU_COSTS_CARD, which is also the card's device node; whatever is
 * submitted is dropped, and everything is done at once. Numbers and layouts are those of the kernel's interface
 * (drm.h, i915_drm.h). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PRIMARY_NODE = 0, RENDER_NODE = 2, MOST_BUFFERS = 65536 };
static const uint64_t MEMORY_NBYTES = (uint64_t)16 << 30, ADDRESSES = (uint64_t)1 << 48;
static const uint64_t PAGE = 0x10000;

/* libdrm: one device on the PCI bus. */

typedef struct { uint16_t domain; uint8_t bus, device, function; } PciBus;
typedef struct { uint16_t vendor, device, subvendor, subdevice; uint8_t revision; } PciDevice;
typedef struct { char **nodes; int available, bus_type; PciBus *bus; PciDevice *device; } DrmDevice;
typedef struct {
    int major, minor, patch, name_length;
    char *name;
    int date_length;
    char *date;
    int text_length;
    char *text;
} DrmVersion;

static PciBus bus = {0, 0, 2, 0};
static PciDevice device = {0x8086, DEVICE_ID, 0, 0, 1};
static char *nodes[3];
static DrmDevice card = {nodes, 1 << PRIMARY_NODE | 1 << RENDER_NODE, 0, &bus, &device};
static char driver[] = "i915";
static DrmVersion version = {.major = 1, .minor = 6, .name_length = 4, .name = driver};

/* ANV keeps 19 letters of a node's path, so the file goes by its number. */
static char *node(void) {
    static char path[20];
    if (!path[0]) snprintf(path, sizeof path, "/proc/self/fd/%d", open(getenv("GPU_COSTS_CARD"), O_RDWR));
    return path;
}

int drmGetDevices2(uint32_t flags, DrmDevice **found, int most) {
    nodes[PRIMARY_NODE] = nodes[RENDER_NODE] = node();
    if (found && most > 0) found[0] = &card;
    return 1;
}

int drmGetDevice2(int file, uint32_t flags, DrmDevice **found) { return drmGetDevices2(flags, found, 1) - 1; }
void drmFreeDevices(DrmDevice **found, int count) {}
void drmFreeDevice(DrmDevice **found) {}
DrmVersion *drmGetVersion(int file) { return &version; }
void drmFreeVersion(DrmVersion *found) {}

int drmGetCap(int file, uint64_t capability, uint64_t *value) {
    *value = 1;
    return 0;
}

/* What the driver asks by number. */

enum {
    PARAM_CHIPSET = 4, PARAM_REVISION = 32, PARAM_SUBSLICES = 33, PARAM_UNITS = 34, PARAM_MMAP = 40,
    PARAM_SUBSLICE_MASK = 47, PARAM_TIMESTAMPS = 51, PARAM_OTHER_TIMESTAMPS = 57,
};

static int parameter(int which) {
    switch (which) {
    case PARAM_CHIPSET: return DEVICE_ID;
    case PARAM_SUBSLICES: return SUBSLICES;
    case PARAM_UNITS: return SUBSLICES * UNITS;
    case PARAM_MMAP: return 4;
    case PARAM_SUBSLICE_MASK: return (int)((UINT64_C(1) << SUBSLICES) - 1);
    case PARAM_TIMESTAMPS: case PARAM_OTHER_TIMESTAMPS: return 19200000;
    default: return 1;
    }
}

/* What it asks as tables: which subslices and units there are, engines, regions of memory. */

enum { QUERY_TOPOLOGY = 1, QUERY_ENGINES = 2, QUERY_REGIONS = 4, QUERY_GEOMETRY = 6 };
typedef struct { uint64_t id; int32_t length; uint32_t flags; void *data; } QueryItem;
typedef struct { uint32_t count, flags; QueryItem *items; } Query;
typedef struct { uint16_t flags, slices, subslices, units, subslice_at, subslice_step, unit_at, unit_step; } Topology;
typedef struct { uint16_t kind, instance; uint32_t reserved; uint64_t size, free, more[8]; } Region;
typedef struct { uint16_t kind, instance; uint32_t reserved; uint64_t flags, abilities, more[4]; } Engine;
typedef union {
    uint8_t bytes[1024];
    Topology topology;
    struct { uint32_t count, reserved[3]; Region of[2]; } regions;
    struct { uint32_t count, reserved[3]; Engine of[1]; } engines;
} Table;

static int topology(Table *out) {
    const int mask = (SUBSLICES + 7) / 8, units = UNITS / 8;
    out->topology = (Topology){0, 1, SUBSLICES, UNITS, 1, mask, 1 + mask, units};
    uint8_t *masks = out->bytes + sizeof(Topology);
    masks[0] = 1;
    for (int i = 0; i < SUBSLICES; i++) masks[1 + i / 8] |= 1 << i % 8;
    memset(masks + 1 + mask, 0xff, SUBSLICES * units);
    return sizeof(Topology) + 1 + mask + SUBSLICES * units;
}

static int regions(Table *out) {
    out->regions.count = 1 + LOCAL_MEMORY;
    for (int i = 0; i < 1 + LOCAL_MEMORY; i++)
        out->regions.of[i] = (Region){.kind = i, .size = MEMORY_NBYTES, .free = MEMORY_NBYTES, .more = {MEMORY_NBYTES, MEMORY_NBYTES}};
    return 16 + (1 + LOCAL_MEMORY) * sizeof(Region);
}

static int answered(QueryItem *item) {
    Table table = {{0}};
    int length = -EINVAL;
    if (item->id == QUERY_TOPOLOGY || item->id == QUERY_GEOMETRY) length = topology(&table);
    if (item->id == QUERY_REGIONS) length = regions(&table);
    if (item->id == QUERY_ENGINES) length = (table.engines.count = 1, 16 + sizeof(Engine)); /* class 0 renders */
    if (item->length > 0 && length > 0) memcpy(item->data, &table, length);
    return length;
}

/* Buffers lie one behind the other in the file. */

static uint64_t offsets[MOST_BUFFERS], end = 1 << 20;
static uint32_t buffers, numbers;

static uint32_t new_buffer(uint64_t nbytes) {
    uint32_t made = __atomic_add_fetch(&buffers, 1, __ATOMIC_RELAXED) % MOST_BUFFERS;
    offsets[made] = __atomic_fetch_add(&end, (nbytes + PAGE - 1) & ~(PAGE - 1), __ATOMIC_RELAXED);
    return made;
}

enum {
    GETPARAM = 0x46, CREATE = 0x5b, MMAP_OFFSET = 0x64, NEW_CONTEXT = 0x6d, READ_REGISTER = 0x71, USER_POINTER = 0x73,
    CONTEXT_PARAM = 0x74, QUERY = 0x79, NEW_ADDRESS_SPACE = 0x7a, CREATE_EXTENDED = 0x7c, NEW_SYNCOBJ = 0xbf,
    CONTEXT_PARAM_ADDRESSES = 3,
};

static int answer(int request, void *argument) {
    uint32_t *words = argument;
    uint64_t *longs = argument;
    switch (request) {
    case GETPARAM: **(int **)(longs + 1) = parameter(words[0]); break;
    case CREATE: case CREATE_EXTENDED: words[2] = new_buffer(longs[0]); break;
    case MMAP_OFFSET: longs[1] = offsets[words[0] % MOST_BUFFERS]; break;
    case NEW_CONTEXT: words[0] = 1; break;
    case READ_REGISTER: longs[1] = 1; break;
    case USER_POINTER: words[5] = new_buffer(0); break;
    case CONTEXT_PARAM: longs[2] = longs[1] == CONTEXT_PARAM_ADDRESSES ? ADDRESSES : 1; break;
    case NEW_ADDRESS_SPACE: words[4] = 1; break;
    case NEW_SYNCOBJ: words[0] = __atomic_add_fetch(&numbers, 1, __ATOMIC_RELAXED); break;
    case QUERY:
        for (uint32_t i = 0; i < ((Query *)argument)->count; i++) {
            QueryItem *item = &((Query *)argument)->items[i];
            item->length = answered(item);
        }
    }
    return 0;
}

int ioctl(int file, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    int is_drm = (request >> 8 & 0xff) == 'd';
    return is_drm ? answer(request & 0xff, argument) : (int)syscall(SYS_ioctl, file, request, argument);
}

int drmIoctl(int file, unsigned long request, void *argument) { return ioctl(file, request, argument); }
