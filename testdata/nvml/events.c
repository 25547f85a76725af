// SPDX-License-Identifier: Apache-2.0

// Event sets. A line "xid.<n> <device> <code> [gi ci]" is an Xid of that
// device; each process sees each number once, in order.

#define _GNU_SOURCE
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct event_set {
  unsigned long long types[MAX_DEVICES];
};

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
  ENTER_SYSTEM();
  if (set == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  set->handle = calloc(1, sizeof(struct event_set));
  return set->handle == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  ENTER_SYSTEM();
  free(set.handle);
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
  ENTER(device);
  if (types == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  *types = nvmlEventTypeXidCriticalError;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  ENTER(device);
  if (set.handle == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (types & ~(unsigned long long)nvmlEventTypeXidCriticalError) return NVML_ERROR_NOT_SUPPORTED;
  ((struct event_set *)set.handle)->types[c.dev] |= types;
  return NVML_SUCCESS;
}

struct search {
  const struct event_set *set;
  long after, number;
  int dev, gi, ci;
  unsigned long long code;
};

static int oldest_new(void *arg, const char *suffix, const char *value) {
  struct search *s = arg;
  long number = atol(suffix);
  int dev, gi = -1, ci = -1;
  unsigned long long code;
  if (number <= s->after || (s->number > 0 && number > s->number)) return 0;
  if (sscanf(value, "%d %llu %d %d", &dev, &code, &gi, &ci) < 2) return 0;
  if (dev < 0 || dev >= MAX_DEVICES || s->set->types[dev] == 0) return 0;
  s->number = number;
  s->dev = dev;
  s->gi = gi;
  s->ci = ci;
  s->code = code;
  return 0;
}

static nvmlReturn_t look(nvmlEventSet_t set, nvmlEventData_t *data) {
  static long delivered;
  ENTER_AS(NULL, SYSTEM);
  struct search s = {.set = (const struct event_set *)set.handle, .after = delivered};
  each(GLOBAL, "xid.", oldest_new, &s);
  if (s.number == 0) return NVML_ERROR_TIMEOUT;
  delivered = s.number;
  memset(data, 0, sizeof *data);
  data->device.handle = intern(GPU, s.dev, -1, -1);
  data->eventType = nvmlEventTypeXidCriticalError;
  data->eventData = s.code;
  data->gpuInstanceId = (unsigned)s.gi;
  data->computeInstanceId = (unsigned)s.ci;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
  const struct timespec step = {0, 2000000};
  if (set.handle == NULL || data == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned waited = 0;; waited += 2) {
    nvmlReturn_t ret = look(set, data);
    if (ret != NVML_ERROR_TIMEOUT || waited >= timeout_ms) return ret;
    nanosleep(&step, NULL);
  }
}
