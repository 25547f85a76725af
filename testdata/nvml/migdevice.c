// SPDX-License-Identifier: Apache-2.0

// MIG devices: a compute instance seen as a device.

#define _GNU_SOURCE
#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
  ENTER(device);
  if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  const struct profile *t = table(c.dev);
  *count = t == NULL ? 0 : t == four ? 4 : 7;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out) {
  ENTER(device);
  struct ci_list l = {.gi = -1};
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (table(c.dev) == NULL) return NVML_ERROR_NOT_SUPPORTED;
  if (mig_on(c.dev)) each(c.dev, "ci.", collect_ci, &l);
  if (index >= (unsigned)l.n) return NVML_ERROR_NOT_FOUND;
  out->handle = intern(MIG, c.dev, l.of[index][0], l.of[index][1]);
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *out) {
  ENTER_AS(mig.handle, MIG);
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  out->handle = intern(GPU, c.dev, -1, -1);
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is) {
  ENTER_AS(device.handle, GPU | MIG);
  if (is == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  *is = c.kind == MIG;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned int *id) {
  ENTER_AS(mig.handle, MIG);
  if (id == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  *id = (unsigned)c.gi;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned int *id) {
  ENTER_AS(mig.handle, MIG);
  if (id == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  *id = (unsigned)c.ci;
  return NVML_SUCCESS;
}

static unsigned mig_width(const struct call *c) {
  char key[32];
  snprintf(key, sizeof key, "ci.%d.%d", c->gi, c->ci);
  unsigned profile = (unsigned)atoi(get(c->dev, key));
  return profile < 5 ? widths[profile] : 0;
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t mig, nvmlDeviceAttributes_t *out) {
  ENTER_AS(mig.handle, MIG);
  const struct profile *p;
  unsigned gb;
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  if (!gi_profile(c.dev, c.gi, &p, NULL)) return NVML_ERROR_NOT_FOUND;
  memset(out, 0, sizeof *out);
  out->gpuInstanceSliceCount = p->slices;
  out->computeInstanceSliceCount = mig_width(&c);
  out->multiprocessorCount = out->computeInstanceSliceCount * 16;
  out->sharedJpegCount = out->sharedOfaCount = p->suffix[0] == '+';
  size_of(c.dev, p->column, &gb, &out->memorySizeMB);
  return NVML_SUCCESS;
}

nvmlReturn_t mig_device_memory(const struct call *c, unsigned long long *mib) {
  const struct profile *p;
  unsigned gb;
  if (!gi_profile(c->dev, c->gi, &p, NULL)) return NVML_ERROR_NOT_FOUND;
  size_of(c->dev, p->column, &gb, mib);
  return NVML_SUCCESS;
}

nvmlReturn_t mig_device_name(const struct call *c, char *out, unsigned int size) {
  const struct profile *p;
  char profile[64], whole[256], width[16] = "";
  const char *board = get(c->dev, "name");
  if (board == NULL || !gi_profile(c->dev, c->gi, &p, NULL)) return NVML_ERROR_NOT_FOUND;
  profile_name(c->dev, p, profile, sizeof profile);
  if (mig_width(c) != p->slices) snprintf(width, sizeof width, "%uc.", mig_width(c));
  snprintf(whole, sizeof whole, "%s MIG %s%s", board, width, profile);
  if (strlen(whole) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
  strncpy(out, whole, size);
  return NVML_SUCCESS;
}

// The UUID of a MIG device follows from its GPU and place, so that a recorded
// machine gives the same ones every time.
nvmlReturn_t mig_device_uuid(int dev, int gi, int ci, char *out, unsigned int size) {
  char seed[160], uuid[64];
  const char *gpu = get(dev, "uuid");
  snprintf(seed, sizeof seed, "%s/%d/%d", gpu == NULL ? "" : gpu, gi, ci);
  unsigned long long h[2] = {14695981039346656037ull, 1099511628211ull * 7};
  for (const char *s = seed; *s; s++) { // FNV-1a, twice
    h[0] = (h[0] ^ (unsigned char)*s) * 1099511628211ull;
    h[1] = (h[1] ^ (unsigned char)(*s + 13)) * 1099511628211ull;
  }
  snprintf(uuid, sizeof uuid, "MIG-%08llx-%04llx-5%03llx-8%03llx-%012llx", h[0] >> 32, h[0] >> 16 & 0xffff,
           h[0] & 0xfff, h[1] >> 52, h[1] & 0xffffffffffffull);
  if (strlen(uuid) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
  strncpy(out, uuid, size);
  return NVML_SUCCESS;
}
