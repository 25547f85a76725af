// SPDX-License-Identifier: Apache-2.0

// GPU instances and compute instances, with the placement rules of seven-slice
// boards (A100, H100, H200, B200) and four-slice boards (A30), as printed by
// "nvidia-smi mig -lgip" and "-lgipp".

#define _GNU_SOURCE
#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct profile seven[] = {
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE, 19, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6, -1}, 0, 7, ""},
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 20, 1, 1, 1, {0, 1, 2, 3, 4, 5, 6, -1}, 0, 7, "+me"},
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, 15, 1, 2, 4, {0, 2, 4, 6, -1}, 1, 7, ""},
    {NVML_GPU_INSTANCE_PROFILE_2_SLICE, 14, 2, 2, 3, {0, 2, 4, -1}, 2, 3, ""},
    {NVML_GPU_INSTANCE_PROFILE_3_SLICE, 9, 3, 4, 2, {0, 4, -1}, 3, 1, ""},
    {NVML_GPU_INSTANCE_PROFILE_4_SLICE, 5, 4, 4, 1, {0, -1}, 4, 1, ""},
    {NVML_GPU_INSTANCE_PROFILE_7_SLICE, 0, 7, 8, 1, {0, -1}, 5, 0, ""},
    {.max = 0},
};

const struct profile four[] = {
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE, 14, 1, 1, 4, {0, 1, 2, 3, -1}, 0, 3, ""},
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 21, 1, 1, 1, {0, 1, 2, 3, -1}, 0, 3, "+me"},
    {NVML_GPU_INSTANCE_PROFILE_2_SLICE, 5, 2, 2, 2, {0, 2, -1}, 1, 1, ""},
    {NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1, 6, 2, 2, 1, {0, 2, -1}, 1, 1, "+me"},
    {NVML_GPU_INSTANCE_PROFILE_4_SLICE, 0, 4, 4, 1, {0, -1}, 2, 0, ""},
    {.max = 0},
};

// table answers the board's profiles from its "mig" value, NULL without MIG.
const struct profile *table(int dev) {
  const char *v = get(dev, "mig");
  if (v == NULL) return NULL;
  return strncmp(v, "four ", 5) == 0 ? four : seven;
}

// size_of reads one "GB:MiB" pair of the "mig" value.
void size_of(int dev, unsigned column, unsigned *gb, unsigned long long *mib) {
  const char *v = get(dev, "mig");
  *gb = 0;
  *mib = 0;
  for (unsigned i = 0; v != NULL && i <= column; i++) {
    v = strchr(v, ' ');
    if (v == NULL) return;
    v++;
  }
  if (v != NULL) sscanf(v, "%u:%llu", gb, mib);
}

static const struct profile *by_id(int dev, unsigned id) {
  for (const struct profile *p = table(dev); p != NULL && p->max > 0; p++)
    if (p->id == id) return p;
  return NULL;
}

static const struct profile *by_number(int dev, unsigned number) {
  for (const struct profile *p = table(dev); p != NULL && p->max > 0; p++)
    if (p->number == number) return p;
  return NULL;
}

int mig_on(int dev) { return get_yes(dev, "mig-mode"); }

struct instance {
  int id;
  unsigned profile, start;
};

struct instances {
  struct instance of[16];
  int n;
};

static int collect_gi(void *arg, const char *suffix, const char *value) {
  struct instances *all = arg;
  struct instance i = {atoi(suffix), 0, 0};
  if (all->n < 16 && sscanf(value, "%u %u", &i.profile, &i.start) == 2) all->of[all->n++] = i;
  return 0;
}

static struct instances gpu_instances(int dev) {
  struct instances all = {.n = 0};
  if (mig_on(dev)) each(dev, "gi.", collect_gi, &all);
  return all;
}

// The memory slices in use, a bit for each.
static unsigned occupied(int dev) {
  unsigned mask = 0;
  struct instances all = gpu_instances(dev);
  for (int i = 0; i < all.n; i++) {
    const struct profile *p = by_id(dev, all.of[i].profile);
    if (p != NULL) mask |= ((1u << p->memory) - 1) << all.of[i].start;
  }
  return mask;
}

static unsigned mask_of(const struct profile *p, int start) { return ((1u << p->memory) - 1) << start; }

// more answers how many of this profile are allowed beside what exists,
// before looking for a place.
static unsigned more(int dev, const struct profile *p) {
  struct instances all = gpu_instances(dev);
  unsigned same = 0, media = 0;
  for (int i = 0; i < all.n; i++) {
    const struct profile *q = by_id(dev, all.of[i].profile);
    if (q == NULL) continue;
    same += q == p;
    media += q->suffix[0] == '+';
  }
  if (p->suffix[0] == '+' && media > 0) return 0;
  return same >= p->max ? 0 : p->max - same;
}

// places_left counts the placements of all profiles that stay open under mask.
static int places_left(int dev, unsigned mask) {
  int n = 0;
  for (const struct profile *p = table(dev); p != NULL && p->max > 0; p++)
    for (const int *s = p->starts; *s >= 0; s++) n += (mask & mask_of(p, *s)) == 0;
  return n;
}

// best_place is where the driver puts an instance that names no place: where
// it closes the fewest other placements. -1: nowhere.
static int best_place(int dev, const struct profile *p) {
  unsigned used = occupied(dev);
  int best = -1, left = -1;
  for (const int *s = p->starts; *s >= 0; s++) {
    if (used & mask_of(p, *s)) continue;
    int n = places_left(dev, used | mask_of(p, *s));
    if (n > left) {
      left = n;
      best = *s;
    }
  }
  return best;
}

int gi_profile(int dev, int gi, const struct profile **p, unsigned *start) {
  struct instances all = gpu_instances(dev);
  for (int i = 0; i < all.n; i++)
    if (all.of[i].id == gi) {
      *p = by_id(dev, all.of[i].profile);
      if (start != NULL) *start = all.of[i].start;
      return *p != NULL;
    }
  return 0;
}

void profile_name(int dev, const struct profile *p, char *out, size_t size) {
  unsigned gb;
  unsigned long long mib;
  size_of(dev, p->column, &gb, &mib);
  snprintf(out, size, "%ug.%ugb%s", p->slices, gb, p->suffix);
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
  ENTER(device);
  if (current == NULL || pending == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (table(c.dev) == NULL) return NVML_ERROR_NOT_SUPPORTED;
  *current = mig_on(c.dev) ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
  *pending = *current;
  if (get(c.dev, "mig-pending") != NULL) *pending = get_yes(c.dev, "mig-pending");
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation) {
  ENTER(device);
  if (mode > NVML_DEVICE_MIG_ENABLE || activation == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (table(c.dev) == NULL) return NVML_ERROR_NOT_SUPPORTED;
  const char *word = mode == NVML_DEVICE_MIG_ENABLE ? "on" : "off";
  *activation = NVML_SUCCESS;
  if ((unsigned)mig_on(c.dev) == mode) return put(c.dev, "mig-pending", "-");
  if (has_process(c.dev, -1, -1) || gpu_instances(c.dev).n > 0) {
    *activation = NVML_ERROR_IN_USE;
    return put(c.dev, "mig-pending", word);
  }
  if (get_yes(c.dev, "mig-reset")) {
    *activation = NVML_ERROR_RESET_REQUIRED;
    return put(c.dev, "mig-pending", word);
  }
  nvmlReturn_t ret = put(c.dev, "mig-pending", "-");
  return ret == NVML_SUCCESS ? put(c.dev, "mig-mode", word) : ret;
}

static nvmlReturn_t profile_info(int dev, unsigned number, nvmlGpuInstanceProfileInfo_v3_t *out) {
  if (number >= NVML_GPU_INSTANCE_PROFILE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  const struct profile *p = by_number(dev, number);
  if (p == NULL) return NVML_ERROR_NOT_SUPPORTED;
  unsigned gb, sms = 16;
  const char *v = get(dev, "mig-sms");
  if (v != NULL) sms = (unsigned)atoi(v);
  memset(out, 0, sizeof *out);
  out->id = p->id;
  out->sliceCount = p->slices;
  out->instanceCount = p->max;
  out->multiprocessorCount = p->slices * sms;
  out->copyEngineCount = p->slices;
  out->jpegCount = out->ofaCount = p->suffix[0] == '+';
  size_of(dev, p->column, &gb, &out->memorySizeMB);
  char name[64];
  profile_name(dev, p, name, sizeof name);
  snprintf(out->name, sizeof out->name, "MIG %s", name);
  return NVML_SUCCESS;
}

// FILL copies what all versions of the struct have.
#define FILL(to, all)                                                                                      \
  memset(&(to), 0, sizeof(to)), (to).id = (all).id, (to).sliceCount = (all).sliceCount,                    \
      (to).instanceCount = (all).instanceCount, (to).multiprocessorCount = (all).multiprocessorCount,      \
      (to).copyEngineCount = (all).copyEngineCount, (to).jpegCount = (all).jpegCount,                      \
      (to).ofaCount = (all).ofaCount, (to).memorySizeMB = (all).memorySizeMB

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                                     nvmlGpuInstanceProfileInfo_t *info) {
  ENTER(device);
  nvmlGpuInstanceProfileInfo_v3_t all;
  nvmlReturn_t ret = info == NULL ? NVML_ERROR_INVALID_ARGUMENT : profile_info(c.dev, profile, &all);
  if (ret != NVML_SUCCESS) return ret;
  FILL(*info, all);
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                                      nvmlGpuInstanceProfileInfo_v2_t *info) {
  ENTER(device);
  nvmlGpuInstanceProfileInfo_v3_t all;
  if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned version = info->version;
  if (version != nvmlGpuInstanceProfileInfo_v2 && version != nvmlGpuInstanceProfileInfo_v3)
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlReturn_t ret = profile_info(c.dev, profile, &all);
  if (ret != NVML_SUCCESS) return ret;
  if (version == nvmlGpuInstanceProfileInfo_v3) {
    all.version = version;
    memcpy(info, &all, sizeof all);
    return NVML_SUCCESS;
  }
  FILL(*info, all);
  info->version = version;
  memcpy(info->name, all.name, sizeof info->name);
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int profile,
                                                               nvmlGpuInstancePlacement_t *places,
                                                               unsigned int *count) {
  ENTER(device);
  const struct profile *p = by_id(c.dev, profile);
  if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (p == NULL || !mig_on(c.dev)) return NVML_ERROR_NOT_SUPPORTED;
  unsigned n = 0;
  for (const int *s = p->starts; *s >= 0; s++, n++)
    if (places != NULL) {
      if (n >= *count) return NVML_ERROR_INSUFFICIENT_SIZE;
      places[n] = (nvmlGpuInstancePlacement_t){(unsigned)*s, p->memory};
    }
  *count = n;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int profile,
                                                           unsigned int *count) {
  ENTER(device);
  const struct profile *p = by_id(c.dev, profile);
  if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (p == NULL || !mig_on(c.dev)) return NVML_ERROR_NOT_SUPPORTED;
  unsigned used = occupied(c.dev), n = 0, allowed = more(c.dev, p);
  // The starts are in order, so taking each free one in turn finds the most.
  for (const int *s = p->starts; *s >= 0 && n < allowed; s++)
    if ((used & mask_of(p, *s)) == 0) {
      used |= mask_of(p, *s);
      n++;
    }
  *count = n;
  return NVML_SUCCESS;
}

static nvmlReturn_t create_gi(int dev, const struct profile *p, int start, nvmlGpuInstance_t *out) {
  char key[32];
  if (start < 0 || more(dev, p) == 0 || (occupied(dev) & mask_of(p, start)))
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
  int id = (int)p->first_id;
  for (;; id++) {
    snprintf(key, sizeof key, "gi.%d", id);
    if (get(dev, key) == NULL) break;
  }
  nvmlReturn_t ret = putf(dev, key, "%u %d", p->id, start);
  if (ret == NVML_SUCCESS) out->handle = intern(GPU_INSTANCE, dev, id, -1);
  return ret;
}

API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int profile, nvmlGpuInstance_t *out) {
  ENTER(device);
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  const struct profile *p = by_id(c.dev, profile);
  if (p == NULL || !mig_on(c.dev)) return NVML_ERROR_NOT_SUPPORTED;
  return create_gi(c.dev, p, best_place(c.dev, p), out);
}

API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int profile,
                                                          const nvmlGpuInstancePlacement_t *place,
                                                          nvmlGpuInstance_t *out) {
  ENTER(device);
  if (out == NULL || place == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  const struct profile *p = by_id(c.dev, profile);
  if (p == NULL || !mig_on(c.dev)) return NVML_ERROR_NOT_SUPPORTED;
  for (const int *s = p->starts; *s >= 0; s++)
    if ((unsigned)*s == place->start && p->memory == place->size) return create_gi(c.dev, p, *s, out);
  return NVML_ERROR_INVALID_ARGUMENT;
}

static int any_ci(void *arg, const char *suffix, const char *value) {
  (void)value;
  return atoi(suffix) == *(int *)arg;
}

API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
  ENTER_AS(instance.handle, GPU_INSTANCE);
  char key[32];
  if (each(c.dev, "ci.", any_ci, &c.gi) || has_process(c.dev, c.gi, -1)) return NVML_ERROR_IN_USE;
  snprintf(key, sizeof key, "gi.%d", c.gi);
  return put(c.dev, key, "-");
}

API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int profile, nvmlGpuInstance_t *out,
                                           unsigned int *count) {
  ENTER(device);
  if (out == NULL || count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (by_id(c.dev, profile) == NULL || !mig_on(c.dev)) return NVML_ERROR_NOT_SUPPORTED;
  struct instances all = gpu_instances(c.dev);
  unsigned n = 0;
  for (int i = 0; i < all.n; i++)
    if (all.of[i].profile == profile) out[n++].handle = intern(GPU_INSTANCE, c.dev, all.of[i].id, -1);
  *count = n;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out) {
  ENTER(device);
  const struct profile *p;
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (!mig_on(c.dev)) return NVML_ERROR_NOT_SUPPORTED;
  if (!gi_profile(c.dev, (int)id, &p, NULL)) return NVML_ERROR_NOT_FOUND;
  out->handle = intern(GPU_INSTANCE, c.dev, (int)id, -1);
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
  ENTER_AS(instance.handle, GPU_INSTANCE);
  const struct profile *p;
  unsigned start;
  if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (!gi_profile(c.dev, c.gi, &p, &start)) return NVML_ERROR_NOT_FOUND;
  info->device.handle = intern(GPU, c.dev, -1, -1);
  info->id = (unsigned)c.gi;
  info->profileId = p->id;
  info->placement = (nvmlGpuInstancePlacement_t){start, p->memory};
  return NVML_SUCCESS;
}

// Profile n of a compute instance has id n, and so many slices:
const unsigned widths[5] = {1, 2, 3, 4, 7};

static int ci_width(void *arg, const char *suffix, const char *value) {
  int *gi_and_sum = arg;
  unsigned profile = (unsigned)atoi(value);
  if (atoi(suffix) == gi_and_sum[0] && profile < 5) gi_and_sum[1] += (int)widths[profile];
  return 0;
}

static unsigned slices_used(int dev, int gi) {
  int gi_and_sum[2] = {gi, 0};
  each(dev, "ci.", ci_width, gi_and_sum);
  return (unsigned)gi_and_sum[1];
}

static nvmlReturn_t ci_profile(const struct call *c, unsigned number, nvmlComputeInstanceProfileInfo_v2_t *out) {
  const struct profile *p;
  unsigned gb;
  unsigned long long mib;
  if (!gi_profile(c->dev, c->gi, &p, NULL)) return NVML_ERROR_NOT_FOUND;
  if (number >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  if (number >= 5 || widths[number] > p->slices) return NVML_ERROR_NOT_SUPPORTED;
  memset(out, 0, sizeof *out);
  out->id = number;
  out->sliceCount = widths[number];
  out->instanceCount = p->slices / widths[number];
  size_of(c->dev, p->column, &gb, &mib);
  if (widths[number] == p->slices)
    snprintf(out->name, sizeof out->name, "MIG %ug.%ugb%s", p->slices, gb, p->suffix);
  else
    snprintf(out->name, sizeof out->name, "MIG %uc.%ug.%ugb%s", widths[number], p->slices, gb, p->suffix);
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                              unsigned int engine,
                                                              nvmlComputeInstanceProfileInfo_t *info) {
  ENTER_AS(instance.handle, GPU_INSTANCE);
  nvmlComputeInstanceProfileInfo_v2_t all;
  if (info == NULL || engine != NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t ret = ci_profile(&c, profile, &all);
  if (ret == NVML_SUCCESS)
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = all.id, .sliceCount = all.sliceCount, .instanceCount = all.instanceCount};
  return ret;
}

API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile,
                                                      nvmlComputeInstance_t *out) {
  ENTER_AS(instance.handle, GPU_INSTANCE);
  const struct profile *p;
  char key[32];
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (!gi_profile(c.dev, c.gi, &p, NULL)) return NVML_ERROR_NOT_FOUND;
  if (profile >= 5 || widths[profile] > p->slices) return NVML_ERROR_NOT_SUPPORTED;
  if (slices_used(c.dev, c.gi) + widths[profile] > p->slices) return NVML_ERROR_INSUFFICIENT_RESOURCES;
  for (int id = 0;; id++) {
    snprintf(key, sizeof key, "ci.%d.%d", c.gi, id);
    if (get(c.dev, key) != NULL) continue;
    nvmlReturn_t ret = putf(c.dev, key, "%u", profile);
    if (ret == NVML_SUCCESS) out->handle = intern(COMPUTE_INSTANCE, c.dev, c.gi, id);
    return ret;
  }
}

API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance) {
  ENTER_AS(instance.handle, COMPUTE_INSTANCE);
  char key[32];
  if (has_process(c.dev, c.gi, c.ci)) return NVML_ERROR_IN_USE;
  snprintf(key, sizeof key, "ci.%d.%d", c.gi, c.ci);
  return put(c.dev, key, "-");
}

int collect_ci(void *arg, const char *suffix, const char *value) {
  struct ci_list *l = arg;
  int gi, ci;
  if (l->n < 32 && sscanf(suffix, "%d.%d", &gi, &ci) == 2 && (l->gi < 0 || l->gi == gi)) {
    l->of[l->n][0] = gi;
    l->of[l->n][1] = ci;
    l->of[l->n++][2] = atoi(value);
  }
  return 0;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile,
                                                    nvmlComputeInstance_t *out, unsigned int *count) {
  ENTER_AS(instance.handle, GPU_INSTANCE);
  struct ci_list l = {.gi = c.gi};
  if (out == NULL || count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  each(c.dev, "ci.", collect_ci, &l);
  unsigned n = 0;
  for (int i = 0; i < l.n; i++)
    if ((unsigned)l.of[i][2] == profile) out[n++].handle = intern(COMPUTE_INSTANCE, c.dev, c.gi, l.of[i][1]);
  *count = n;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                                       nvmlComputeInstance_t *out) {
  ENTER_AS(instance.handle, GPU_INSTANCE);
  char key[32];
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  snprintf(key, sizeof key, "ci.%d.%d", c.gi, (int)id);
  if (get(c.dev, key) == NULL) return NVML_ERROR_NOT_FOUND;
  out->handle = intern(COMPUTE_INSTANCE, c.dev, c.gi, (int)id);
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info) {
  ENTER_AS(instance.handle, COMPUTE_INSTANCE);
  char key[32];
  if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  snprintf(key, sizeof key, "ci.%d.%d", c.gi, c.ci);
  unsigned profile = (unsigned)atoi(get(c.dev, key));
  info->device.handle = intern(GPU, c.dev, -1, -1);
  info->gpuInstance.handle = intern(GPU_INSTANCE, c.dev, c.gi, -1);
  info->id = (unsigned)c.ci;
  info->profileId = profile;
  info->placement = (nvmlComputeInstancePlacement_t){0, profile < 5 ? widths[profile] : 0};
  return NVML_SUCCESS;
}
