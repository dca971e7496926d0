/* The few declarations of Vulkan's interface that the layer needs, so that no headers have to be installed.
 * Numbers and layouts are those of the Vulkan specification and of the loader's interface for layers, for
 * 64-bit systems. Structures that are only passed on are left out: pointers to them are `const void *`. */
#ifndef VULKAN_SUBSET_H
#define VULKAN_SUBSET_H

#include <stdint.h>

typedef int32_t VkResult;
typedef uint32_t VkBool32;
typedef uint64_t VkDeviceSize;
typedef struct VkInstance_T *VkInstance; /* handles that the loader dispatches on */
typedef struct VkPhysicalDevice_T *VkPhysicalDevice;
typedef struct VkDevice_T *VkDevice;
typedef uint64_t VkHandle; /* all others */

typedef void (*PFN_vkVoidFunction)(void);
typedef PFN_vkVoidFunction (*PFN_vkGetInstanceProcAddr)(VkInstance, const char *);
typedef PFN_vkVoidFunction (*PFN_vkGetDeviceProcAddr)(VkDevice, const char *);

enum { VK_SUCCESS = 0, VK_ERROR_INITIALIZATION_FAILED = -3 };

enum {
    TYPE_SEMAPHORE = 9,
    TYPE_LOADER_INSTANCE = 47,
    TYPE_LOADER_DEVICE = 48,
    TYPE_VULKAN_1_2_FEATURES = 51,
    TYPE_TIMELINE_SEMAPHORE_FEATURES = 1000207000,
    TYPE_MEMORY_BUDGET = 1000237000,
    TYPE_EXECUTABLE_FEATURES = 1000269000,
    TYPE_PIPELINE_INFO = 1000269001,
    TYPE_EXECUTABLE = 1000269002,
    TYPE_EXECUTABLE_INFO = 1000269003,
    TYPE_STATISTIC = 1000269004,
    TYPE_REPRESENTATION = 1000269005,
};

enum { LAYER_LINK_INFO = 0 };
enum { CAPTURE_STATISTICS = 0x40, CAPTURE_REPRESENTATIONS = 0x80 };
enum { FORMAT_BOOL32, FORMAT_INT64, FORMAT_UINT64, FORMAT_FLOAT64 };
#define EXECUTABLE_EXTENSION "VK_KHR_pipeline_executable_properties"

typedef struct Chained {
    int32_t type;
    struct Chained *next;
} Chained;

/* The loader's links between layers. */
typedef struct InstanceLink {
    struct InstanceLink *next;
    PFN_vkGetInstanceProcAddr instance_proc;
    void *physical_device_proc;
} InstanceLink;

typedef struct DeviceLink {
    struct DeviceLink *next;
    PFN_vkGetInstanceProcAddr instance_proc;
    PFN_vkGetDeviceProcAddr device_proc;
} DeviceLink;

typedef struct {
    int32_t type;
    void *next;
    int32_t function;
    void *link;
} LayerCreateInfo;

typedef struct {
    int32_t type;
    void *next;
    uint32_t version;
    PFN_vkGetInstanceProcAddr instance_proc;
    PFN_vkGetDeviceProcAddr device_proc;
    void *physical_device_proc;
} LayerInterface;

/* Memory. */
typedef struct { uint32_t flags, heap; } MemoryType;
typedef struct { VkDeviceSize size; uint32_t flags; } MemoryHeap;

typedef struct {
    uint32_t type_count;
    MemoryType types[32];
    uint32_t heap_count;
    MemoryHeap heaps[16];
} MemoryProperties;

typedef struct {
    int32_t type;
    Chained *next;
    MemoryProperties properties;
} MemoryProperties2;

typedef struct {
    int32_t type;
    void *next;
    VkDeviceSize budget[16], usage[16];
} MemoryBudget;

typedef struct { VkDeviceSize size, alignment; uint32_t types; } MemoryRequirements;

typedef struct {
    int32_t type;
    void *next;
    MemoryRequirements requirements;
} MemoryRequirements2;

typedef struct {
    int32_t type;
    const void *next;
    VkDeviceSize size;
    uint32_t memory_type;
} MemoryAllocateInfo;

/* Devices, features, pipelines. */
typedef struct {
    int32_t type;
    const void *next;
    uint32_t flags, queue_count;
    const void *queues;
    uint32_t layer_count;
    const char *const *layers;
    uint32_t extension_count;
    const char *const *extensions;
    const void *features;
} DeviceCreateInfo;

typedef struct { int32_t type; void *next; VkBool32 enabled; } OneFeature;
enum { TIMELINE_OF_1_2 = 37 }; /* which flag of Vulkan 1.2's it is */
typedef struct { int32_t type; void *next; VkBool32 enabled[47]; } Features12;
typedef struct { int32_t type; const void *next; uint32_t flags; } SemaphoreCreateInfo;

typedef struct {
    int32_t type;
    const void *next;
    uint32_t flags;
    uint64_t rest[9]; /* stage, layout, base pipeline */
} ComputePipelineCreateInfo;

typedef struct { int32_t type; const void *next; VkHandle pipeline; } PipelineInfo;
typedef struct { int32_t type; const void *next; VkHandle pipeline; uint32_t index; } ExecutableInfo;

typedef struct {
    int32_t type;
    void *next;
    uint32_t stages;
    char name[256], description[256];
    uint32_t subgroup_size;
} Executable;

typedef struct {
    int32_t type;
    void *next;
    char name[256], description[256];
    int32_t format;
    union { VkBool32 b32; int64_t i64; uint64_t u64; double f64; } value;
} Statistic;

typedef struct {
    int32_t type;
    void *next;
    char name[256], description[256];
    VkBool32 is_text;
    size_t size;
    void *data;
} Representation;

enum { OBJECT_PIPELINE = 19 };
typedef struct { int32_t type; const void *next; int32_t object_type; VkHandle handle; const char *name; } ObjectName;

#endif
