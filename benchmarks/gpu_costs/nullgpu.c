/* A Vulkan layer that lets programs use a null device of RADV, on which pipelines compile and nothing runs.
 *
 * The null device (RADV_FORCE_FAMILY=…) has no memory, fences, or streams of commands: the layer offers one heap,
 * backs what is mapped by memory of the host, calls every fence signalled and drops every command. Of each compute
 * pipeline it writes, into the folder that GPU_COSTS_OUT names:
 *
 *     NUMBER.json      what the compiler says of it: registers, spills, latency, …
 *     NUMBER.s         assembly
 *     NUMBER.nir       the intermediate form that the compiler's back end was given
 *     NUMBER.name      what a program calls it, where it does
 *
 * Made for one device at a time. See tools.py for how it is built and enabled. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "vulkan_subset.h"

#define EXPORT __attribute__((visibility("default")))
#define LENGTH(array) (sizeof(array) / sizeof *(array))
#define NEXT_OF(device_function) ((PFN_##device_function)next_device_proc(device, #device_function))

enum { MOST_EXECUTABLES = 8, MOST_STATISTICS = 64, MOST_REPRESENTATIONS = 8, MOST_ALLOCATIONS = 65536, MOST_PIPELINES = 16384 };
static const VkDeviceSize HEAP_NBYTES = (VkDeviceSize)24 << 30;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static PFN_vkGetInstanceProcAddr next_instance_proc;
static PFN_vkGetDeviceProcAddr next_device_proc;
static VkInstance the_instance;
static unsigned pipelines;
static VkHandle handles[MOST_PIPELINES]; /* of each number */

/* Opening: the loader hands each layer a link to the next one. */

static LayerCreateInfo *link_info(const void *create_info, int32_t type) {
    for (Chained *each = ((Chained *)create_info)->next; each; each = each->next) {
        LayerCreateInfo *info = (LayerCreateInfo *)each;
        if (each->type == type && info->function == LAYER_LINK_INFO) return info;
    }
    return NULL;
}

typedef void (*PFN_memory)(VkPhysicalDevice, MemoryProperties *);
typedef void (*PFN_memory2)(VkPhysicalDevice, MemoryProperties2 *);
typedef void (*PFN_features2)(VkPhysicalDevice, Chained *);
static PFN_memory next_memory;
static PFN_memory2 next_memory2;
static PFN_features2 next_features2;

static void *instance_function(const char *name, const char *older_name) {
    void *found = (void *)next_instance_proc(the_instance, name);
    return found ? found : (void *)next_instance_proc(the_instance, older_name);
}

typedef VkResult (*PFN_create_instance)(const void *, const void *, VkInstance *);

static VkResult create_instance(const void *info, const void *allocator, VkInstance *instance) {
    LayerCreateInfo *own = link_info(info, TYPE_LOADER_INSTANCE);
    if (!own) return VK_ERROR_INITIALIZATION_FAILED;
    InstanceLink *link = own->link;
    next_instance_proc = link->instance_proc;
    own->link = link->next;
    PFN_create_instance create = (PFN_create_instance)next_instance_proc(NULL, "vkCreateInstance");
    VkResult result = create(info, allocator, instance);
    if (result != VK_SUCCESS) return result;
    the_instance = *instance; /* asked for now: later the loader's table has the layer's own functions */
    next_memory = instance_function("vkGetPhysicalDeviceMemoryProperties", "");
    next_memory2 = instance_function("vkGetPhysicalDeviceMemoryProperties2", "vkGetPhysicalDeviceMemoryProperties2KHR");
    next_features2 = instance_function("vkGetPhysicalDeviceFeatures2", "vkGetPhysicalDeviceFeatures2KHR");
    return result;
}

static int has_extension(const DeviceCreateInfo *info, const char *name) {
    for (uint32_t i = 0; i < info->extension_count; i++)
        if (!strcmp(info->extensions[i], name)) return 1;
    return 0;
}

typedef VkResult (*PFN_create_device)(VkPhysicalDevice, const DeviceCreateInfo *, const void *, VkDevice *);

/* Opens the device with the extension that tells what became of a pipeline. */
static VkResult create_device(VkPhysicalDevice gpu, const DeviceCreateInfo *info, const void *allocator, VkDevice *device) {
    LayerCreateInfo *own = link_info(info, TYPE_LOADER_DEVICE);
    if (!own) return VK_ERROR_INITIALIZATION_FAILED;
    DeviceLink *link = own->link;
    next_device_proc = link->device_proc;
    own->link = link->next;
    DeviceCreateInfo changed = *info;
    OneFeature feature = {TYPE_EXECUTABLE_FEATURES, (void *)info->next, 1};
    const char **names = calloc(info->extension_count + 1, sizeof *names);
    memcpy(names, info->extensions, info->extension_count * sizeof *names);
    if (!has_extension(info, EXECUTABLE_EXTENSION)) {
        names[changed.extension_count++] = EXECUTABLE_EXTENSION;
        changed.next = &feature;
    }
    changed.extensions = names;
    PFN_create_device create = (PFN_create_device)link->instance_proc(the_instance, "vkCreateDevice");
    VkResult result = create(gpu, &changed, allocator, device);
    free(names);
    return result;
}

/* Memory: the null device has none to offer, and requirements that no type meets. */

static void offer_heap(MemoryProperties *found) {
    if (found->type_count) return;
    const uint32_t device_local = 1, all_kinds = 0xf; /* local, visible, coherent, cached */
    found->heap_count = found->type_count = 1;
    found->heaps[0] = (MemoryHeap){HEAP_NBYTES, device_local};
    found->types[0] = (MemoryType){all_kinds, 0};
}

static void memory_properties(VkPhysicalDevice gpu, MemoryProperties *found) {
    next_memory(gpu, found);
    offer_heap(found);
}

static void memory_properties2(VkPhysicalDevice gpu, MemoryProperties2 *found) {
    next_memory2(gpu, found);
    offer_heap(&found->properties);
    for (Chained *each = found->next; each; each = each->next)
        if (each->type == TYPE_MEMORY_BUDGET) {
            ((MemoryBudget *)each)->budget[0] = HEAP_NBYTES;
            ((MemoryBudget *)each)->usage[0] = 0;
        }
}

static void fit(MemoryRequirements *needed) {
    needed->types |= 1;
    if (needed->alignment < 16) needed->alignment = 16;
}

typedef void (*PFN_requirements)(VkDevice, VkHandle, MemoryRequirements *);
typedef void (*PFN_requirements2)(VkDevice, const void *, MemoryRequirements2 *);
#define REQUIREMENTS(name)                                                                     \
    static void name(VkDevice device, VkHandle object, MemoryRequirements *needed) {           \
        ((PFN_requirements)next_device_proc(device, "vk" #name))(device, object, needed);      \
        fit(needed);                                                                           \
    }
#define REQUIREMENTS2(name)                                                                    \
    static void name(VkDevice device, const void *info, MemoryRequirements2 *needed) {         \
        ((PFN_requirements2)next_device_proc(device, "vk" #name))(device, info, needed);       \
        fit(&needed->requirements);                                                            \
    }
REQUIREMENTS(GetBufferMemoryRequirements)
REQUIREMENTS(GetImageMemoryRequirements)
REQUIREMENTS2(GetBufferMemoryRequirements2)
REQUIREMENTS2(GetImageMemoryRequirements2)
REQUIREMENTS2(GetDeviceBufferMemoryRequirements)

/* What is mapped is memory of the host; pages that nobody touches cost nothing. */
static struct {
    VkHandle memory;
    void *pages;
    VkDeviceSize nbytes;
} allocations[MOST_ALLOCATIONS];

static int allocation_of(VkHandle memory) {
    for (int i = 0; i < MOST_ALLOCATIONS; i++)
        if (allocations[i].memory == memory) return i;
    return -1;
}

typedef VkResult (*PFN_vkAllocateMemory)(VkDevice, const MemoryAllocateInfo *, const void *, VkHandle *);
typedef void (*PFN_vkFreeMemory)(VkDevice, VkHandle, const void *);

static VkResult allocate_memory(VkDevice device, const MemoryAllocateInfo *info, const void *allocator, VkHandle *memory) {
    VkResult result = NEXT_OF(vkAllocateMemory)(device, info, allocator, memory);
    if (result != VK_SUCCESS) return result;
    pthread_mutex_lock(&lock);
    int i = allocation_of(0);
    if (i >= 0) {
        allocations[i].memory = *memory;
        allocations[i].nbytes = info->size;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void free_memory(VkDevice device, VkHandle memory, const void *allocator) {
    pthread_mutex_lock(&lock);
    int i = memory ? allocation_of(memory) : -1;
    if (i >= 0) {
        if (allocations[i].pages) munmap(allocations[i].pages, allocations[i].nbytes);
        memset(&allocations[i], 0, sizeof allocations[i]);
    }
    pthread_mutex_unlock(&lock);
    NEXT_OF(vkFreeMemory)(device, memory, allocator);
}

static VkResult map_memory(VkDevice device, VkHandle memory, VkDeviceSize offset, VkDeviceSize size, uint32_t flags, void **out) {
    pthread_mutex_lock(&lock);
    int i = allocation_of(memory);
    if (i >= 0 && !allocations[i].pages) {
        void *pages = mmap(NULL, allocations[i].nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        allocations[i].pages = pages == MAP_FAILED ? NULL : pages;
    }
    *out = i >= 0 && allocations[i].pages ? (char *)allocations[i].pages + offset : NULL;
    pthread_mutex_unlock(&lock);
    return *out ? VK_SUCCESS : VK_ERROR_INITIALIZATION_FAILED;
}

/* Waiting: no timeline semaphores are offered, a semaphore is a plain one, a fence a number. */

static void features2(VkPhysicalDevice gpu, Chained *found) {
    next_features2(gpu, found);
    for (Chained *each = found->next; each; each = each->next) {
        if (each->type == TYPE_TIMELINE_SEMAPHORE_FEATURES) ((OneFeature *)each)->enabled = 0;
        if (each->type == TYPE_VULKAN_1_2_FEATURES) ((Features12 *)each)->enabled[TIMELINE_OF_1_2] = 0;
    }
}

typedef VkResult (*PFN_vkCreateSemaphore)(VkDevice, const SemaphoreCreateInfo *, const void *, VkHandle *);

static VkResult create_semaphore(VkDevice device, const SemaphoreCreateInfo *info, const void *allocator, VkHandle *semaphore) {
    SemaphoreCreateInfo plain = {TYPE_SEMAPHORE, NULL, 0};
    return NEXT_OF(vkCreateSemaphore)(device, &plain, allocator, semaphore);
}

static VkResult create_fence(VkDevice device, const void *info, const void *allocator, VkHandle *fence) {
    static VkHandle last = 0x1000;
    pthread_mutex_lock(&lock);
    *fence = ++last;
    pthread_mutex_unlock(&lock);
    return VK_SUCCESS;
}

static VkResult nothing(void) { return VK_SUCCESS; }

/* Pipelines: compiled with statistics, which go into files. */

typedef VkResult (*PFN_vkGetPipelineExecutablePropertiesKHR)(VkDevice, const PipelineInfo *, uint32_t *, Executable *);
typedef VkResult (*PFN_vkGetPipelineExecutableStatisticsKHR)(VkDevice, const ExecutableInfo *, uint32_t *, Statistic *);
typedef VkResult (*PFN_vkGetPipelineExecutableInternalRepresentationsKHR)(VkDevice, const ExecutableInfo *, uint32_t *, Representation *);
typedef VkResult (*PFN_vkCreateComputePipelines)(VkDevice, VkHandle, uint32_t, const ComputePipelineCreateInfo *, const void *, VkHandle *);

static FILE *opened(unsigned number, const char *suffix) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%05u.%s", getenv("GPU_COSTS_OUT"), number, suffix);
    return fopen(name, "w");
}

static void write_value(FILE *out, const Statistic *each) {
    switch (each->format) {
    case FORMAT_BOOL32: fprintf(out, "%u", each->value.b32); break;
    case FORMAT_INT64: fprintf(out, "%lld", (long long)each->value.i64); break;
    case FORMAT_UINT64: fprintf(out, "%llu", (unsigned long long)each->value.u64); break;
    default: fprintf(out, "%g", each->value.f64);
    }
}

static void write_statistics(VkDevice device, const ExecutableInfo *which, unsigned number, uint32_t subgroup_size) {
    static Statistic found[MOST_STATISTICS];
    uint32_t count = MOST_STATISTICS;
    for (uint32_t i = 0; i < count; i++) found[i] = (Statistic){.type = TYPE_STATISTIC};
    NEXT_OF(vkGetPipelineExecutableStatisticsKHR)(device, which, &count, found);
    FILE *out = opened(number, "json");
    if (!out) return;
    fprintf(out, "{\"Subgroup size\": %u", subgroup_size);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, ", \"%s\": ", found[i].name); /* names that the driver chose: letters and blanks */
        write_value(out, &found[i]);
    }
    fprintf(out, "}\n");
    fclose(out);
}

static const char *suffix_of(const char *name) {
    if (strstr(name, "ssembly")) return "s";
    return strstr(name, "NIR") ? "nir" : NULL;
}

static void write_text(const Representation *each, unsigned number) {
    const char *suffix = suffix_of(each->name);
    FILE *out = suffix && each->data ? opened(number, suffix) : NULL;
    if (!out) return;
    fwrite(each->data, 1, strnlen(each->data, each->size), out);
    fclose(out);
}

static void write_representations(VkDevice device, const ExecutableInfo *which, unsigned number) {
    static Representation found[MOST_REPRESENTATIONS];
    uint32_t count = MOST_REPRESENTATIONS;
    for (uint32_t i = 0; i < count; i++) found[i] = (Representation){.type = TYPE_REPRESENTATION};
    PFN_vkGetPipelineExecutableInternalRepresentationsKHR get = NEXT_OF(vkGetPipelineExecutableInternalRepresentationsKHR);
    get(device, which, &count, found); /* once for the sizes, once for the texts */
    for (uint32_t i = 0; i < count; i++) found[i].data = malloc(found[i].size + 1);
    get(device, which, &count, found);
    for (uint32_t i = 0; i < count; i++) {
        write_text(&found[i], number);
        free(found[i].data);
    }
}

static void write_pipeline(VkDevice device, VkHandle pipeline) {
    static Executable found[MOST_EXECUTABLES];
    PipelineInfo of = {TYPE_PIPELINE_INFO, NULL, pipeline};
    uint32_t count = MOST_EXECUTABLES;
    for (uint32_t i = 0; i < count; i++) found[i] = (Executable){.type = TYPE_EXECUTABLE};
    NEXT_OF(vkGetPipelineExecutablePropertiesKHR)(device, &of, &count, found);
    for (uint32_t i = 0; i < count; i++) {
        ExecutableInfo which = {TYPE_EXECUTABLE_INFO, NULL, pipeline, i};
        write_representations(device, &which, pipelines);
        if (pipelines < MOST_PIPELINES) handles[pipelines] = pipeline;
        write_statistics(device, &which, pipelines++, found[i].subgroup_size);
    }
}

static VkResult create_pipelines(VkDevice device, VkHandle cache, uint32_t count, const ComputePipelineCreateInfo *infos, const void *allocator, VkHandle *made) {
    ComputePipelineCreateInfo *changed = malloc(count * sizeof *changed);
    memcpy(changed, infos, count * sizeof *changed);
    for (uint32_t i = 0; i < count; i++) changed[i].flags |= CAPTURE_STATISTICS | CAPTURE_REPRESENTATIONS;
    VkResult result = NEXT_OF(vkCreateComputePipelines)(device, 0, count, changed, allocator, made);
    free(changed);
    if (result != VK_SUCCESS || !getenv("GPU_COSTS_OUT")) return result;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < count; i++) write_pipeline(device, made[i]);
    pthread_mutex_unlock(&lock);
    return result;
}

static VkResult name_object(VkDevice device, const ObjectName *info) {
    (void)device;
    if (info->object_type != OBJECT_PIPELINE || !info->name || !getenv("GPU_COSTS_OUT")) return VK_SUCCESS;
    pthread_mutex_lock(&lock);
    for (unsigned i = pipelines < MOST_PIPELINES ? pipelines : MOST_PIPELINES; i-- > 0;) {
        FILE *out = handles[i] == info->handle ? opened(i, "name") : NULL;
        if (!out) continue;
        fputs(info->name, out);
        fclose(out);
        break;
    }
    pthread_mutex_unlock(&lock);
    return VK_SUCCESS;
}

/* The table of functions; every command (vkCmd…) is dropped, as nothing is recorded. */

static PFN_vkVoidFunction device_proc(VkDevice device, const char *name);
static PFN_vkVoidFunction instance_proc(VkInstance instance, const char *name);
#define OURS(name, function) {name, (PFN_vkVoidFunction)(function)}

static const struct {
    const char *name;
    PFN_vkVoidFunction function;
} ours[] = {
    OURS("vkGetInstanceProcAddr", instance_proc),
    OURS("vkGetDeviceProcAddr", device_proc),
    OURS("vkCreateInstance", create_instance),
    OURS("vkCreateDevice", create_device),
    OURS("vkGetPhysicalDeviceMemoryProperties", memory_properties),
    OURS("vkGetPhysicalDeviceMemoryProperties2", memory_properties2),
    OURS("vkGetPhysicalDeviceMemoryProperties2KHR", memory_properties2),
    OURS("vkGetPhysicalDeviceFeatures2", features2),
    OURS("vkGetPhysicalDeviceFeatures2KHR", features2),
    OURS("vkGetBufferMemoryRequirements", GetBufferMemoryRequirements),
    OURS("vkGetImageMemoryRequirements", GetImageMemoryRequirements),
    OURS("vkGetBufferMemoryRequirements2", GetBufferMemoryRequirements2),
    OURS("vkGetImageMemoryRequirements2", GetImageMemoryRequirements2),
    OURS("vkGetDeviceBufferMemoryRequirements", GetDeviceBufferMemoryRequirements),
    OURS("vkAllocateMemory", allocate_memory),
    OURS("vkFreeMemory", free_memory),
    OURS("vkMapMemory", map_memory),
    OURS("vkUnmapMemory", nothing),
    OURS("vkFlushMappedMemoryRanges", nothing),
    OURS("vkInvalidateMappedMemoryRanges", nothing),
    OURS("vkCreateSemaphore", create_semaphore),
    OURS("vkWaitSemaphores", nothing),
    OURS("vkWaitSemaphoresKHR", nothing),
    OURS("vkCreateFence", create_fence),
    OURS("vkDestroyFence", nothing),
    OURS("vkResetFences", nothing),
    OURS("vkGetFenceStatus", nothing),
    OURS("vkWaitForFences", nothing),
    OURS("vkBeginCommandBuffer", nothing),
    OURS("vkEndCommandBuffer", nothing),
    OURS("vkResetCommandBuffer", nothing),
    OURS("vkResetCommandPool", nothing),
    OURS("vkGetQueryPoolResults", nothing),
    OURS("vkQueueSubmit", nothing),
    OURS("vkQueueSubmit2", nothing),
    OURS("vkQueueSubmit2KHR", nothing),
    OURS("vkQueueWaitIdle", nothing),
    OURS("vkDeviceWaitIdle", nothing),
    OURS("vkSetDebugUtilsObjectNameEXT", name_object),
    OURS("vkCreateComputePipelines", create_pipelines),
};

static PFN_vkVoidFunction our_function(const char *name) {
    for (size_t i = 0; i < LENGTH(ours); i++)
        if (!strcmp(ours[i].name, name)) return ours[i].function;
    return strncmp(name, "vkCmd", 5) ? NULL : (PFN_vkVoidFunction)nothing;
}

static PFN_vkVoidFunction device_proc(VkDevice device, const char *name) {
    PFN_vkVoidFunction found = our_function(name);
    return found ? found : next_device_proc(device, name);
}

static PFN_vkVoidFunction instance_proc(VkInstance instance, const char *name) {
    PFN_vkVoidFunction found = our_function(name);
    return found || !next_instance_proc ? found : next_instance_proc(instance, name);
}

EXPORT VkResult vkNegotiateLoaderLayerInterfaceVersion(LayerInterface *interface) {
    interface->version = 2;
    interface->instance_proc = instance_proc;
    interface->device_proc = device_proc;
    interface->physical_device_proc = NULL;
    return VK_SUCCESS;
}
