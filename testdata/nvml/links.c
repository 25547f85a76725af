// SPDX-License-Identifier: Apache-2.0

// NVLink and the place of a GPU in the machine. "links 18 switch" gives a
// device 18 links to the NVSwitch fabric; "link.3 gpu 0000:3b:00.0", "link.3
// switch" or "link.3 down" set one.

#define _GNU_SOURCE
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *link_of(const struct call *c, unsigned link) {
  char key[32];
  static const char up[] = "switch";
  snprintf(key, sizeof key, "link.%u", link);
  const char *v = get(c->dev, key);
  if (v != NULL) return v;
  v = get(c->dev, "links");
  return v != NULL && link < (unsigned)atoi(v) ? up : NULL;
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *out) {
  ENTER(device);
  if (out == NULL || link >= NVML_NVLINK_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
  const char *v = link_of(&c, link);
  if (v == NULL) return NVML_ERROR_NOT_SUPPORTED;
  *out = strcmp(v, "down") == 0 ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                     nvmlIntNvLinkDeviceType_t *out) {
  ENTER(device);
  if (out == NULL || link >= NVML_NVLINK_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
  const char *v = link_of(&c, link);
  if (v == NULL || strcmp(v, "down") == 0) return NVML_ERROR_NOT_SUPPORTED;
  *out = strncmp(v, "gpu", 3) == 0 ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
  ENTER(device);
  if (pci == NULL || link >= NVML_NVLINK_MAX_LINKS) return NVML_ERROR_INVALID_ARGUMENT;
  const char *v = link_of(&c, link);
  if (v == NULL || strcmp(v, "down") == 0) return NVML_ERROR_NOT_SUPPORTED;
  memset(pci, 0, sizeof *pci);
  if (strcmp(v, "switch") == 0) { // four switches, and links spread over them
    pci->bus = 0x07 + link % 4;
    pci->pciDeviceId = 0x22a310de;
  } else if (sscanf(v, "gpu %x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3) {
    return NVML_ERROR_UNKNOWN;
  }
  snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(pci));
  snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
           pci->device & 0xff);
  return NVML_SUCCESS;
}

// The NUMA node of the GPU's own memory: only boards that are a node have one.
API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node) {
  ENTER(device);
  return number(&c, "memory-numa", node);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set,
                                             nvmlAffinityScope_t scope) {
  ENTER(device);
  unsigned node, bits = 8 * sizeof *set;
  if (size == 0 || set == NULL || scope > NVML_AFFINITY_SCOPE_SOCKET) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlReturn_t ret = number(&c, "numa", &node);
  if (ret != NVML_SUCCESS) return ret;
  memset(set, 0, size * sizeof *set);
  if (node / bits < size) set[node / bits] |= 1ul << node % bits;
  return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other,
                                                     nvmlGpuTopologyLevel_t *out) {
  ENTER(one);
  const struct handle *h = (const struct handle *)other.handle;
  if (out == NULL || h == NULL || h->kind != GPU) return NVML_ERROR_INVALID_ARGUMENT;
  const char *a = get(c.dev, "numa"), *b = get(h->dev, "numa");
  if (a == NULL || b == NULL) return NVML_ERROR_NOT_SUPPORTED;
  *out = strcmp(a, b) == 0 ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
  return NVML_SUCCESS;
}
