/*
 * A stand-in for NVML: no GPU is behind it. It answers from the scenario file that STANDIN_NVML_SCENARIO names, so that
 * the real nvidia-ml-py can be tested without a GPU. Its driver version always ends with "(stand-in)".
 *
 * A scenario holds lines `key = value`, of which the last of two counts; `#` starts a comment. Keys: `driver`, `init`, `count`, and of a GPU
 * `gpu.N.FIGURE`, or `gpu.*.FIGURE` for all of them, or `mig.N.M.FIGURE` for an instance. Every value may be `error:N`
 * (the call returns that nvmlReturn_t) or `hang` (the call never returns). A figure that is not there is not supported.
 * Sizes are in MiB. Prototypes and structures are written down from nvidia-ml-py's bindings.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7, UNKNOWN = 999 };

typedef struct { int gpu, instance; } device;
typedef device *handle;

static char keys[1024][96], values[1024][512];
static int lines, initialised;
static device gpus[16], instances[16][8];

static char *trimmed(char *text) {
    while (*text == ' ' || *text == '\t') text++;
    char *end = text + strlen(text);
    while (end > text && strchr(" \t\r\n", end[-1])) *--end = 0;
    return text;
}

static int load(void) {
    const char *path = getenv("STANDIN_NVML_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[640];
    if (!file) return 0;
    for (lines = 0; lines < 1024 && fgets(line, sizeof line, file);) {
        char *hash = strchr(line, '#'), *equals = strchr(line, '=');
        if (hash && (!equals || hash < equals)) *hash = 0, equals = NULL;
        if (!equals) continue;
        *equals = 0;
        snprintf(keys[lines], sizeof keys[0], "%s", trimmed(line));
        snprintf(values[lines], sizeof values[0], "%s", trimmed(equals + 1));
        lines++;
    }
    fclose(file);
    return 1;
}

static const char *value_of(const char *key) {
    for (int i = lines - 1; i >= 0; i--)
        if (!strcmp(keys[i], key)) return values[i];
    return NULL;
}

/* The value of a device's figure; sets *code. NULL when there is none to give. */
static const char *figure(handle which, const char *name, int *code) {
    char key[96];
    const char *found = NULL;
    *code = UNINITIALIZED;
    if (!initialised) return NULL;
    if (which && which->instance >= 0) {
        snprintf(key, sizeof key, "mig.%d.%d.%s", which->gpu, which->instance, name);
        found = value_of(key);
    } else if (which) {
        snprintf(key, sizeof key, "gpu.%d.%s", which->gpu, name);
        found = value_of(key);
        snprintf(key, sizeof key, "gpu.*.%s", name);
        if (!found) found = value_of(key);
    } else {
        found = value_of(name);
    }
    *code = NOT_SUPPORTED;
    if (!found) return NULL;
    while (!strcmp(found, "hang")) sleep(1000);
    *code = strncmp(found, "error:", 6) ? OK : atoi(found + 6);
    return *code ? NULL : found;
}

static int numbers(handle which, const char *name, unsigned long long *out, int wanted) {
    int code;
    const char *text = figure(which, name, &code);
    for (int i = 0; text && i < wanted; i++) {
        char *rest;
        out[i] = strtoull(text, &rest, 0);
        if (rest == text) return UNKNOWN;
        text = rest;
    }
    return code;
}

static int one_number(handle which, const char *name, unsigned *out) {
    unsigned long long found = 0;
    int code = numbers(which, name, &found, 1);
    if (!code) *out = (unsigned)found;
    return code;
}

static int text_of(handle which, const char *name, char *out, unsigned length) {
    int code;
    const char *text = figure(which, name, &code);
    if (text) snprintf(out, length, "%s", text);
    return code;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
    int code;
    (void)flags;
    if (!load()) return 9;
    initialised = 1;
    if (!value_of("init")) return OK;
    figure(NULL, "init", &code);
    if (code) initialised = 0;
    return code;
}
EXPORT int nvmlShutdown(void) { initialised = 0; return OK; }
EXPORT const char *nvmlErrorString(int code) { (void)code; return "an error of the stand-in"; }

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned length) {
    int code;
    const char *text = figure(NULL, "driver", &code);
    if (text) snprintf(out, length, "%s (stand-in)", text);
    return code;
}
EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned length) {
    snprintf(out, length, "stand-in");
    return OK;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 12080; return OK; }
EXPORT int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned length) {
    char key[32];
    snprintf(key, sizeof key, "process.%u", pid);
    const char *text = value_of(key);
    if (!text) return NOT_FOUND;
    snprintf(out, length, "%s", text);
    return OK;
}
EXPORT int nvmlDeviceGetCount_v2(unsigned *out) { return one_number(NULL, "count", out); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *out) {
    int code;
    if (index >= 16) return INVALID;
    gpus[index] = (device){(int)index, -1};
    figure(&gpus[index], "handle", &code);
    if (code && code != NOT_SUPPORTED) return code;
    *out = &gpus[index];
    return OK;
}
EXPORT int nvmlDeviceGetName(handle which, char *out, unsigned length) { return text_of(which, "name", out, length); }
EXPORT int nvmlDeviceGetUUID(handle which, char *out, unsigned length) {
    int code;
    const char *text = figure(which, "uuid", &code);
    if (text) snprintf(out, length, which->instance < 0 ? "%s-%012d" : "%s", text, which->gpu);
    return code;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci;
EXPORT int nvmlDeviceGetPciInfo_v3(handle which, pci *out) {
    unsigned bus = 0;
    int code = one_number(which, "bus", &bus);
    if (code) return code;
    memset(out, 0, sizeof *out);
    out->bus = bus;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", bus);
    return OK;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_2;
typedef struct { unsigned long long total, free, used; } memory_1;
/* memory = TOTAL USED FREE RESERVED */
EXPORT int nvmlDeviceGetMemoryInfo_v2(handle which, memory_2 *out) {
    unsigned long long found[4];
    int code = numbers(which, "memory", found, 4);
    if (code) return code;
    out->total = found[0] << 20, out->used = found[1] << 20, out->free = found[2] << 20, out->reserved = found[3] << 20;
    return OK;
}
EXPORT int nvmlDeviceGetMemoryInfo(handle which, memory_1 *out) {
    unsigned long long found[3];
    int code = numbers(which, "old_memory", found, 3);
    if (code) return code;
    out->total = found[0] << 20, out->used = found[1] << 20, out->free = found[2] << 20;
    return OK;
}

EXPORT int nvmlDeviceGetEccMode(handle which, unsigned *current, unsigned *pending) {
    int code = one_number(which, "ecc_mode", current);
    *pending = *current;
    return code;
}
/* ecc = UNCORRECTED_VOLATILE UNCORRECTED_AGGREGATE CORRECTED_VOLATILE CORRECTED_AGGREGATE */
EXPORT int nvmlDeviceGetTotalEccErrors(handle which, unsigned type, unsigned counter, unsigned long long *out) {
    unsigned long long found[4];
    int code = numbers(which, "ecc", found, 4);
    if (!code) *out = found[(type == 1 ? 0 : 2) + counter];
    return code;
}
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } sram;
EXPORT int nvmlDeviceGetSramEccErrorStatus(handle which, sram *out) {
    if (out->version != 0x1000068) return 25;
    return one_number(which, "sram_threshold", &out->exceeded);
}

/* remapped = CORRECTABLE UNCORRECTABLE PENDING FAILED */
EXPORT int nvmlDeviceGetRemappedRows(handle which, unsigned *c, unsigned *u, unsigned *pending, unsigned *failed) {
    unsigned long long found[4];
    int code = numbers(which, "remapped", found, 4);
    if (code) return code;
    *c = (unsigned)found[0], *u = (unsigned)found[1], *pending = (unsigned)found[2], *failed = (unsigned)found[3];
    return OK;
}
EXPORT int nvmlDeviceGetRowRemapperHistogram(handle which, unsigned *out) {
    unsigned long long found[5];
    int code = numbers(which, "histogram", found, 5);
    for (int i = 0; !code && i < 5; i++) out[i] = (unsigned)found[i];
    return code;
}
typedef struct { unsigned version, channel, block; } repair;
EXPORT int nvmlDeviceGetRepairStatus(handle which, repair *out) {
    unsigned long long found[2];
    int code = numbers(which, "repair", found, 2);
    if (!code) out->channel = (unsigned)found[0], out->block = (unsigned)found[1];
    return code;
}
typedef struct { unsigned version, flag; } flagged;
EXPORT int nvmlDeviceGetUnrepairableMemoryFlag_v1(handle which, flagged *out) {
    return one_number(which, "unrepairable", &out->flag);
}
/* retired = SINGLE_BIT DOUBLE_BIT, numbers of pages */
EXPORT int nvmlDeviceGetRetiredPages(handle which, unsigned cause, unsigned *count, unsigned long long *out) {
    unsigned long long found[2];
    int code = numbers(which, "retired", found, 2);
    if (code) return code;
    unsigned there = (unsigned)found[cause ? 1 : 0];
    if (*count < there || (there && !out)) { *count = there; return SMALL; }
    *count = there;
    for (unsigned i = 0; out && i < there; i++) out[i] = 0x1000ull * (i + 1);
    return OK;
}
EXPORT int nvmlDeviceGetRetiredPagesPendingStatus(handle which, unsigned *out) {
    return one_number(which, "retired_pending", out);
}
typedef struct {
    unsigned field, scope;
    long long stamp, latency;
    unsigned type, code;
    union { double d; unsigned u; unsigned long long ull; } value;
} field_value;
EXPORT int nvmlDeviceGetFieldValues(handle which, int count, field_value *out) {
    for (int i = 0; i < count; i++) {
        out[i].type = 1;
        out[i].code = (unsigned)(out[i].field == 230 ? one_number(which, "action", &out[i].value.u) : NOT_SUPPORTED);
    }
    return OK;
}
EXPORT int nvmlDeviceGetComputeMode(handle which, unsigned *out) { return one_number(which, "compute_mode", out); }
EXPORT int nvmlDeviceGetMinorNumber(handle which, unsigned *out) { return one_number(which, "minor", out); }

EXPORT int nvmlDeviceGetMigMode(handle which, unsigned *current, unsigned *pending) {
    int code = one_number(which, "mig", current);
    *pending = *current;
    return code;
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(handle which, unsigned *out) { (void)which; *out = 7; return OK; }
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(handle which, unsigned index, handle *out) {
    int code;
    if (index >= 8) return INVALID;
    instances[which->gpu][index] = (device){which->gpu, (int)index};
    if (!figure(&instances[which->gpu][index], "uuid", &code)) return NOT_FOUND;
    *out = &instances[which->gpu][index];
    return OK;
}
EXPORT int nvmlDeviceGetGpuInstanceId(handle which, unsigned *out) { return one_number(which, "gi", out); }
EXPORT int nvmlDeviceGetComputeInstanceId(handle which, unsigned *out) { return one_number(which, "ci", out); }

/* compute = PID:MIB[:GI:CI], PID:-, …; "none" for an empty list */
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
static int processes(handle which, const char *name, unsigned *count, process *out) {
    int code;
    const char *text = figure(which, name, &code);
    unsigned there = 0;
    if (!text) return code;
    for (const char *at = text; *at && strcmp(text, "none");) {
        unsigned pid = 0, gi = ~0u, ci = ~0u;
        char used[24] = "-";
        if (sscanf(at, " %u:%23[0-9-]:%u:%u", &pid, used, &gi, &ci) < 2) return UNKNOWN;
        if (out && there < *count)
            out[there] = (process){pid, *used == '-' ? ~0ull : strtoull(used, NULL, 10) << 20, gi, ci};
        there++;
        at = strchr(at, ',') ? strchr(at, ',') + 1 : at + strlen(at);
    }
    code = there && (!out || *count < there) ? SMALL : OK;
    *count = there;
    return code;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(handle which, unsigned *count, process *out) {
    return processes(which, "compute", count, out);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(handle which, unsigned *count, process *out) {
    return processes(which, "compute_v2", count, out);
}
/* old_compute: the first version's list, without instances */
typedef struct { unsigned pid; unsigned long long used; } process_1;
EXPORT int nvmlDeviceGetComputeRunningProcesses(handle which, unsigned *count, process_1 *out) {
    process found[64];
    unsigned there = 64;
    int code = processes(which, "old_compute", &there, found);
    if (code) return code;
    if (*count < there) { *count = there; return SMALL; }
    *count = there;
    for (unsigned i = 0; i < there; i++) out[i] = (process_1){found[i].pid, found[i].used};
    return OK;
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(handle which, unsigned *count, process *out) {
    return processes(which, "graphics", count, out);
}
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(handle which, unsigned *count, process *out) {
    return processes(which, "mps", count, out);
}
