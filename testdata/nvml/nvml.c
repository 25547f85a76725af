// SPDX-License-Identifier: Apache-2.0

// A small libnvidia-ml.so.1 for tests: the machine it shows stands in a text
// file. This file has the library and its devices; mig.c and migdevice.c MIG,
// links.c NVLink and topology, events.c the event sets, state.c the file.

#define _GNU_SOURCE
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

API nvmlReturn_t nvmlInit_v2(void) { return init_library(); }
API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  (void)flags;
  return init_library();
}
API nvmlReturn_t nvmlShutdown(void) { return shutdown_library(); }

API const char *nvmlErrorString(nvmlReturn_t code) {
  switch (code) {
  case NVML_SUCCESS: return "The operation was successful";
  case NVML_ERROR_UNINITIALIZED: return "NVML was not first initialized with nvmlInit()";
  case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
  case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
  case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
  case NVML_ERROR_NOT_FOUND: return "Not Found";
  case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
  case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
  case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
  case NVML_ERROR_IN_USE: return "In use by another client";
  case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
  default: return "Unknown Error";
  }
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
  ENTER_SYSTEM();
  return text(&c, "driver", version, length);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
  ENTER_SYSTEM();
  return text(&c, "nvml", version, length);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
  ENTER_SYSTEM();
  int major, minor;
  const char *v = get(GLOBAL, "cuda");
  if (version == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (v == NULL || sscanf(v, "%d.%d", &major, &minor) != 2) return NVML_ERROR_NOT_SUPPORTED;
  *version = major * 1000 + minor * 10;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
  ENTER_SYSTEM();
  if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  *count = (unsigned)device_count();
  return NVML_SUCCESS;
}

// A device that is lost or that the caller may not open gives no handle.
static nvmlReturn_t handle_of(int dev, nvmlDevice_t *out) {
  nvmlReturn_t ret = code_of(get(dev, "error"));
  if (ret == NVML_SUCCESS) ret = code_of(get(dev, "error.nvmlDeviceGetHandleByIndex_v2"));
  if (ret == NVML_SUCCESS) out->handle = intern(GPU, dev, -1, -1);
  return ret;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *out) {
  ENTER_SYSTEM();
  int dev = device_at(index);
  if (out == NULL || dev < 0) return NVML_ERROR_INVALID_ARGUMENT;
  return handle_of(dev, out);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
  ENTER_SYSTEM();
  if (uuid == NULL || out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; device_at(i) >= 0; i++) {
    const char *v = get(device_at(i), "uuid");
    if (v != NULL && strcmp(v, uuid) == 0) return handle_of(device_at(i), out);
  }
  return NVML_ERROR_NOT_FOUND;
}

static int same_address(const char *a, const char *b) {
  unsigned x[3], y[3];
  return sscanf(a, "%x:%x:%x", &x[0], &x[1], &x[2]) == 3 && sscanf(b, "%x:%x:%x", &y[0], &y[1], &y[2]) == 3 &&
         memcmp(x, y, sizeof x) == 0;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *out) {
  ENTER_SYSTEM();
  if (bus == NULL || out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; device_at(i) >= 0; i++) {
    const char *v = get(device_at(i), "pci");
    if (v != NULL && same_address(v, bus)) return handle_of(device_at(i), out);
  }
  return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
  ENTER(device);
  if (index == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; device_at(i) >= 0; i++)
    if (device_at(i) == c.dev) *index = i;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
  ENTER_AS(device.handle, GPU | MIG);
  if (name == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (c.kind == MIG) return mig_device_name(&c, name, length);
  return text(&c, "name", name, length);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
  ENTER_AS(device.handle, GPU | MIG);
  if (uuid == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (c.kind == MIG) return mig_device_uuid(c.dev, c.gi, c.ci, uuid, length);
  return text(&c, "uuid", uuid, length);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
  ENTER(device);
  return text(&c, "serial", serial, length);
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
  ENTER(device);
  return number(&c, "minor", minor);
}

API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand) {
  ENTER(device);
  return number(&c, "brand", (unsigned *)brand);
}

static const struct {
  const char *word;
  unsigned code;
} architectures[] = {{"kepler", 2}, {"maxwell", 3}, {"pascal", 4}, {"volta", 5},     {"turing", 6},
                     {"ampere", 7}, {"ada", 8},     {"hopper", 9}, {"blackwell", 10}};

API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture) {
  ENTER(device);
  const char *v = get(c.dev, "architecture");
  if (architecture == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (v == NULL) return NVML_ERROR_NOT_SUPPORTED;
  *architecture = NVML_DEVICE_ARCH_UNKNOWN;
  for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
    if (strcmp(architectures[i].word, v) == 0) *architecture = architectures[i].code;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
  ENTER(device);
  const char *v = get(c.dev, "compute");
  if (major == NULL || minor == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  return v != NULL && sscanf(v, "%d.%d", major, minor) == 2 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  ENTER(device);
  const char *v = get(c.dev, "pci");
  unsigned id = 0, sub = 0;
  if (pci == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (v == NULL) return NVML_ERROR_NOT_SUPPORTED;
  memset(pci, 0, sizeof *pci);
  if (sscanf(v, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3) return NVML_ERROR_UNKNOWN;
  number(&c, "pci-id", &id);
  number(&c, "pci-sub-id", &sub);
  pci->pciDeviceId = id;
  pci->pciSubSystemId = sub;
  snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(pci));
  snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
           pci->device & 0xff);
  return NVML_SUCCESS;
}

static nvmlReturn_t memory(const struct call *c, unsigned long long *total, unsigned long long *reserved,
                           unsigned long long *used) {
  unsigned t = 0, r = 0, u = 0;
  if (c->kind == MIG) {
    nvmlReturn_t ret = mig_device_memory(c, total);
    *total <<= 20;
    *reserved = *used = 0;
    return ret;
  }
  nvmlReturn_t ret = number(c, "memory-mib", &t);
  number(c, "memory-reserved-mib", &r);
  number(c, "memory-used-mib", &u);
  *total = (unsigned long long)t << 20;
  *reserved = (unsigned long long)r << 20;
  *used = (unsigned long long)u << 20;
  return ret;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
  ENTER_AS(device.handle, GPU | MIG);
  unsigned long long total, reserved, used;
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t ret = memory(&c, &total, &reserved, &used);
  if (ret == NVML_SUCCESS) *out = (nvmlMemory_t){total, total - reserved - used, reserved + used};
  return ret;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
  ENTER_AS(device.handle, GPU | MIG);
  unsigned long long total, reserved, used;
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (out->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlReturn_t ret = memory(&c, &total, &reserved, &used);
  if (ret == NVML_SUCCESS) *out = (nvmlMemory_v2_t){out->version, total, reserved, total - reserved - used, used};
  return ret;
}

static nvmlReturn_t state(const struct call *c, const char *key, nvmlEnableState_t *out) {
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (get(c->dev, key) == NULL) return NVML_ERROR_NOT_SUPPORTED;
  *out = get_yes(c->dev, key) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *out) {
  ENTER(device);
  return state(&c, "display-mode", out);
}

API nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *out) {
  ENTER(device);
  return state(&c, "display-active", out);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min,
                                                              unsigned int *max) {
  ENTER(device);
  nvmlReturn_t ret = number(&c, "power-min-mw", min);
  return ret == NVML_SUCCESS ? number(&c, "power-max-mw", max) : ret;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *limit) {
  ENTER(device);
  return number(&c, "power-default-mw", limit);
}

static nvmlReturn_t power_limit(const struct call *c, unsigned int *limit) {
  nvmlReturn_t ret = number(c, "power-limit-mw", limit);
  return ret == NVML_ERROR_NOT_SUPPORTED ? number(c, "power-default-mw", limit) : ret;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *limit) {
  ENTER(device);
  return power_limit(&c, limit);
}

API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *limit) {
  ENTER(device);
  nvmlReturn_t ret = number(&c, "power-enforced-mw", limit);
  return ret == NVML_ERROR_NOT_SUPPORTED ? power_limit(&c, limit) : ret;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *usage) {
  ENTER(device);
  return number(&c, "power-usage-mw", usage);
}

API nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int limit) {
  ENTER(device);
  unsigned min, max;
  nvmlReturn_t ret = number(&c, "power-min-mw", &min);
  if (ret == NVML_SUCCESS) ret = number(&c, "power-max-mw", &max);
  if (ret != NVML_SUCCESS) return ret;
  if (limit < min || limit > max) return NVML_ERROR_INVALID_ARGUMENT;
  return putf(c.dev, "power-limit-mw", "%u", limit);
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
  ENTER(device);
  nvmlReturn_t ret = state(&c, "ecc", current);
  if (ret != NVML_SUCCESS) return ret;
  return state(&c, get(c.dev, "ecc-pending") != NULL ? "ecc-pending" : "ecc", pending);
}

API nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, nvmlEnableState_t ecc) {
  ENTER(device);
  if (get(c.dev, "ecc") == NULL) return NVML_ERROR_NOT_SUPPORTED;
  return put(c.dev, "ecc-pending", ecc == NVML_FEATURE_ENABLED ? "on" : "off");
}

API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
  ENTER(device);
  return state(&c, "persistence", mode);
}

API nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode) {
  ENTER(device);
  if (get(c.dev, "persistence") == NULL) return NVML_ERROR_NOT_SUPPORTED;
  return put(c.dev, "persistence", mode == NVML_FEATURE_ENABLED ? "on" : "off");
}

API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode) {
  ENTER(device);
  return number(&c, "compute-mode", (unsigned *)mode);
}

API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
  ENTER(device);
  if (get(c.dev, "compute-mode") == NULL) return NVML_ERROR_NOT_SUPPORTED;
  if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD || mode >= NVML_COMPUTEMODE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return putf(c.dev, "compute-mode", "%u", (unsigned)mode);
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out) {
  ENTER(device);
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  return number(&c, "temperature", out);
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
  ENTER(device);
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  // As the real library does: the numbers have no meaning for a whole GPU in MIG mode.
  if (get_yes(c.dev, "mig-mode")) return NVML_ERROR_NOT_SUPPORTED;
  nvmlReturn_t ret = number(&c, "utilization-gpu", &out->gpu);
  return ret == NVML_SUCCESS ? number(&c, "utilization-memory", &out->memory) : ret;
}

static const char *const clock_keys[] = {"graphics", "sm", "memory", "video"};

static nvmlReturn_t clock_of(const struct call *c, const char *prefix, nvmlClockType_t type, unsigned int *out) {
  char key[64];
  if ((unsigned)type >= 4) return NVML_ERROR_INVALID_ARGUMENT;
  snprintf(key, sizeof key, "%s-%s-mhz", prefix, clock_keys[type]);
  return number(c, key, out);
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *out) {
  ENTER(device);
  return clock_of(&c, "clock", type, out);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *out) {
  ENTER(device);
  return clock_of(&c, "max-clock", type, out);
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t counter, unsigned long long *out) {
  ENTER(device);
  char key[64];
  if (out == NULL || (unsigned)type > 1 || (unsigned)counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
  if (!get_yes(c.dev, "ecc")) return NVML_ERROR_NOT_SUPPORTED;
  snprintf(key, sizeof key, "ecc-%s-%s", counter == NVML_VOLATILE_ECC ? "volatile" : "aggregate",
           type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? "corrected" : "uncorrected");
  const char *v = get(c.dev, key);
  *out = v == NULL ? 0 : strtoull(v, NULL, 10);
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *out) {
  ENTER(device);
  return state(&c, "retired-pending", out);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected,
                                           unsigned int *pending, unsigned int *failed) {
  ENTER(device);
  const char *v = get(c.dev, "remapped"); // corrected uncorrected pending failed
  if (v == NULL) return NVML_ERROR_NOT_SUPPORTED;
  return sscanf(v, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

// A process is "process.<pid> compute|graphics <MiB> [gi ci]"
struct process {
  unsigned pid, mib;
  int gi, ci, graphics;
};

struct process_list {
  struct process of[64];
  int n;
};

static int collect_process(void *arg, const char *suffix, const char *value) {
  struct process_list *l = arg;
  char kind[16];
  struct process p = {.gi = -1, .ci = -1, .pid = (unsigned)strtoul(suffix, NULL, 10)};
  if (l->n < 64 && sscanf(value, "%15s %u %d %d", kind, &p.mib, &p.gi, &p.ci) >= 2) {
    p.graphics = strcmp(kind, "graphics") == 0;
    l->of[l->n++] = p;
  }
  return 0;
}

int has_process(int dev, int gi, int ci) {
  struct process_list l = {.n = 0};
  each(dev, "process.", collect_process, &l);
  for (int i = 0; i < l.n; i++)
    if ((gi < 0 || l.of[i].gi == gi) && (ci < 0 || l.of[i].ci == ci)) return 1;
  return 0;
}

static nvmlReturn_t processes(const struct call *c, int graphics, unsigned int *count, nvmlProcessInfo_t *out) {
  struct process_list l = {.n = 0};
  unsigned n = 0;
  if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  each(c->dev, "process.", collect_process, &l);
  for (int i = 0; i < l.n; i++) {
    if (l.of[i].graphics != graphics || (c->kind == MIG && (l.of[i].gi != c->gi || l.of[i].ci != c->ci))) continue;
    if (out != NULL && n < *count)
      out[n] = (nvmlProcessInfo_t){l.of[i].pid, (unsigned long long)l.of[i].mib << 20, (unsigned)l.of[i].gi,
                                   (unsigned)l.of[i].ci};
    n++;
  }
  unsigned room = *count;
  *count = n;
  return n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_t *out) {
  ENTER_AS(device.handle, GPU | MIG);
  return processes(&c, 0, count, out);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                          nvmlProcessInfo_t *out) {
  ENTER_AS(device.handle, GPU | MIG);
  return processes(&c, 1, count, out);
}
