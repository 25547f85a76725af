// SPDX-License-Identifier: Apache-2.0

// What mig.c knows of profiles and instances, for the MIG devices of migdevice.c.

#ifndef BC_NVML_MIG_H
#define BC_NVML_MIG_H

#include "state.h"

#include <stddef.h>

struct profile {
  unsigned number; // NVML_GPU_INSTANCE_PROFILE_*
  unsigned id, slices, memory, max;
  int starts[8]; // ends with -1
  unsigned column;   // which of the board's sizes
  unsigned first_id; // GPU instance ids begin here
  const char *suffix;
};

extern const struct profile four[]; // the table of four-slice boards
extern const unsigned widths[5];    // slices of each kind of compute instance

const struct profile *table(int dev); // of the board, NULL without MIG
int mig_on(int dev);

// size_of reads one "GB:MiB" pair of the "mig" value.
void size_of(int dev, unsigned column, unsigned *gb, unsigned long long *mib);

// gi_profile answers whether the GPU instance exists, and what it is.
int gi_profile(int dev, int gi, const struct profile **p, unsigned *start);
void profile_name(int dev, const struct profile *p, char *out, size_t size);

struct ci_list {
  int gi; // -1: of every GPU instance
  int n;
  int of[32][3]; // gi, ci, profile
};

int collect_ci(void *list, const char *suffix, const char *value); // for each

#endif
