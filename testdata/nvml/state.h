// SPDX-License-Identifier: Apache-2.0

// The recorded machine behind the library: one text file, read again whenever
// it changed. README.md beside this file describes the format.

#ifndef BC_NVML_STATE_H
#define BC_NVML_STATE_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "nvml.h"

#define API __attribute__((visibility("default")))

enum { MAX_DEVICES = 16, EVERY_DEVICE = -2, GLOBAL = -1 };

// What a handle stands for.
enum kind { SYSTEM = 0, GPU = 1, MIG = 2, GPU_INSTANCE = 4, COMPUTE_INSTANCE = 8 };

struct handle {
  enum kind kind;
  int dev, gi, ci;
  struct handle *next;
};

// One call of the library, from lock to unlock.
struct call {
  nvmlReturn_t ret;
  int dev, gi, ci;
  enum kind kind;
};

// enter takes the lock, reads the state again if the file changed, and answers
// what stops the call: the library's own state, the device's, or an error
// asked for this one function. leave gives the lock back.
struct call enter(const void *handle, const char *function, int kinds);
void leave(struct call *c);

#define ENTER_AS(handle_, kinds_)                                                             \
  struct call c __attribute__((cleanup(leave))) = enter((handle_), __func__, (kinds_));       \
  if (c.ret != NVML_SUCCESS) return c.ret
#define ENTER(device_) ENTER_AS((device_).handle, GPU)
#define ENTER_SYSTEM() ENTER_AS(NULL, SYSTEM)

// intern gives the one handle for a thing, so that handles compare equal.
void *intern(enum kind kind, int dev, int gi, int ci);

// get answers a device's value (GLOBAL: the machine's), NULL when unset or "-".
const char *get(int dev, const char *key);
int get_yes(int dev, const char *key);

// each calls f for every set key that begins with prefix, in order of the
// last line that set it, until f answers non-zero, which it then returns.
typedef int (*each_fn)(void *arg, const char *suffix, const char *value);
int each(int dev, const char *prefix, each_fn f, void *arg);

// put writes one value back to the file, for every reader of it.
nvmlReturn_t put(int dev, const char *key, const char *value);
nvmlReturn_t putf(int dev, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));

// number and text copy a device's value out; unset is NOT_SUPPORTED.
nvmlReturn_t number(const struct call *c, const char *key, unsigned int *out);
nvmlReturn_t text(const struct call *c, const char *key, char *out, unsigned int size);

int device_count(void);        // devices present
int device_at(unsigned index); // the nth present device, -1: none

nvmlReturn_t code_of(const char *word); // "lost" -> NVML_ERROR_GPU_IS_LOST

// running is a machine-wide count of nvmlInit calls less nvmlShutdown calls.
nvmlReturn_t init_library(void);
nvmlReturn_t shutdown_library(void);

// has_process tells whether a process runs on the device; gi and ci narrow it,
// -1 means any.
int has_process(int dev, int gi, int ci);

// mig_device_name writes "… MIG 1g.10gb" for a MIG device.
nvmlReturn_t mig_device_name(const struct call *c, char *out, unsigned int size);
nvmlReturn_t mig_device_uuid(int dev, int gi, int ci, char *out, unsigned int size);
nvmlReturn_t mig_device_memory(const struct call *c, unsigned long long *mib);

#endif
