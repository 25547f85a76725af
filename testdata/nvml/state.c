// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "state.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct entry {
  int dev;
  char *key, *value;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry *entries;
static int entry_count;
static struct stat seen;      // the file as it was when it was read
static int readable;          // the file was there
static int inits;             // nvmlInit less nvmlShutdown
static char boot[32];         // the value of "boot" at nvmlInit
static struct handle *handles;

static const struct {
  const char *word;
  nvmlReturn_t code;
} codes[] = {
    {"ok", NVML_SUCCESS},
    {"uninitialized", NVML_ERROR_UNINITIALIZED},
    {"invalid_argument", NVML_ERROR_INVALID_ARGUMENT},
    {"not_supported", NVML_ERROR_NOT_SUPPORTED},
    {"no_permission", NVML_ERROR_NO_PERMISSION},
    {"not_found", NVML_ERROR_NOT_FOUND},
    {"driver_not_loaded", NVML_ERROR_DRIVER_NOT_LOADED},
    {"timeout", NVML_ERROR_TIMEOUT},
    {"irq_issue", NVML_ERROR_IRQ_ISSUE},
    {"library_not_found", NVML_ERROR_LIBRARY_NOT_FOUND},
    {"function_not_found", NVML_ERROR_FUNCTION_NOT_FOUND},
    {"corrupted_inforom", NVML_ERROR_CORRUPTED_INFOROM},
    {"lost", NVML_ERROR_GPU_IS_LOST},
    {"reset_required", NVML_ERROR_RESET_REQUIRED},
    {"operating_system", NVML_ERROR_OPERATING_SYSTEM},
    {"mismatch", NVML_ERROR_LIB_RM_VERSION_MISMATCH},
    {"in_use", NVML_ERROR_IN_USE},
    {"memory", NVML_ERROR_MEMORY},
    {"no_data", NVML_ERROR_NO_DATA},
    {"insufficient_resources", NVML_ERROR_INSUFFICIENT_RESOURCES},
    {"not_ready", NVML_ERROR_NOT_READY},
    {"gpu_not_found", NVML_ERROR_GPU_NOT_FOUND},
    {"invalid_state", NVML_ERROR_INVALID_STATE},
    {"unknown", NVML_ERROR_UNKNOWN},
};

nvmlReturn_t code_of(const char *word) {
  if (word == NULL) return NVML_SUCCESS;
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
    if (strcmp(codes[i].word, word) == 0) return codes[i].code;
  return NVML_ERROR_UNKNOWN;
}

static const char *state_path(void) {
  static char path[PATH_MAX];
  const char *env = getenv("BC_NVML_STATE");
  if (env != NULL && *env != '\0') return env;
  if (path[0] == '\0') {
    Dl_info info;
    char file[PATH_MAX];
    if (dladdr((void *)state_path, &info) == 0 || info.dli_fname == NULL) return "nvml.state";
    snprintf(file, sizeof file, "%s", info.dli_fname);
    snprintf(path, sizeof path, "%s/nvml.state", dirname(file));
  }
  return path;
}

static char *read_file(const char *path, struct stat *st) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NULL;
  char *text = NULL;
  if (fstat(fd, st) == 0 && (text = malloc((size_t)st->st_size + 1)) != NULL) {
    ssize_t n = read(fd, text, (size_t)st->st_size);
    text[n < 0 ? 0 : n] = '\0';
  }
  close(fd);
  return text;
}

// parse_line splits "device 0 key value" or "key value" in place. It answers 0
// for a comment, an empty line, or one it cannot read.
static int parse_line(char *line, struct entry *e) {
  line += strspn(line, " \t");
  if (*line == '\0' || *line == '#') return 0;
  e->dev = GLOBAL;
  if (strncmp(line, "device ", 7) == 0) {
    char *which = line + 7;
    line = strchr(which, ' ');
    if (line == NULL) return 0;
    *line++ = '\0';
    e->dev = strcmp(which, "*") == 0 ? EVERY_DEVICE : atoi(which);
  }
  e->key = line;
  char *space = strchr(line, ' ');
  if (space == NULL) return 0;
  *space = '\0';
  e->value = space + 1 + strspn(space + 1, " \t");
  return 1;
}

static void refresh(void) {
  struct stat now;
  const char *path = state_path();
  if (stat(path, &now) != 0) {
    readable = 0;
    return;
  }
  if (readable && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
      now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
    return;
  // Values point into the text; nobody holds one without the lock or across put.
  static char *all;
  free(all);
  all = read_file(path, &seen);
  readable = all != NULL;
  free(entries);
  entries = NULL;
  entry_count = 0;
  for (char *save, *line = all ? strtok_r(all, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
    struct entry e;
    if (!parse_line(line, &e)) continue;
    entries = realloc(entries, (size_t)(entry_count + 1) * sizeof *entries);
    entries[entry_count++] = e;
  }
}

static int applies(const struct entry *e, int dev) {
  return e->dev == dev || (e->dev == EVERY_DEVICE && dev >= 0);
}

const char *get(int dev, const char *key) {
  for (int i = entry_count - 1; i >= 0; i--)
    if (applies(&entries[i], dev) && strcmp(entries[i].key, key) == 0)
      return strcmp(entries[i].value, "-") == 0 ? NULL : entries[i].value;
  return NULL;
}

int get_yes(int dev, const char *key) {
  const char *v = get(dev, key);
  return v != NULL && (strcmp(v, "yes") == 0 || strcmp(v, "on") == 0);
}

int each(int dev, const char *prefix, each_fn f, void *arg) {
  size_t n = strlen(prefix);
  for (int i = 0; i < entry_count; i++) {
    const struct entry *e = &entries[i];
    if (!applies(e, dev) || strncmp(e->key, prefix, n) != 0) continue;
    if (get(dev, e->key) != e->value) continue; // a later line has another value
    int r = f(arg, e->key + n, e->value);
    if (r != 0) return r;
  }
  return 0;
}

static int write_all(const char *path, const char *text, size_t n) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return -1;
  ssize_t written = write(fd, text, n);
  close(fd);
  return written == (ssize_t)n ? 0 : -1;
}

// rewrite gives the file's text without the lines that set this value, and
// with the new line at the end.
static char *rewrite(const char *old, const char *line, const char *mark) {
  char *out = malloc(strlen(old) + strlen(line) + 2), *end = out;
  if (out == NULL) return NULL;
  while (*old != '\0') {
    size_t n = strcspn(old, "\n");
    if (strncmp(old, mark, strlen(mark)) != 0) {
      memcpy(end, old, n);
      end += n;
      *end++ = '\n';
    }
    old += n + (old[n] == '\n');
  }
  strcpy(end, line);
  return out;
}

nvmlReturn_t put(int dev, const char *key, const char *value) {
  char mark[128], line[512], temp[PATH_MAX], locked[PATH_MAX];
  const char *path = state_path();
  if (dev == GLOBAL)
    snprintf(mark, sizeof mark, "%s ", key);
  else
    snprintf(mark, sizeof mark, "device %d %s ", dev, key);
  snprintf(line, sizeof line, "%s%s\n", mark, value);
  snprintf(temp, sizeof temp, "%s.%d.new", path, (int)getpid());
  snprintf(locked, sizeof locked, "%s.lock", path);

  int fd = open(locked, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return NVML_ERROR_NO_PERMISSION;
  nvmlReturn_t ret = NVML_ERROR_OPERATING_SYSTEM;
  struct stat st;
  char *old = NULL, *fresh = NULL;
  if (flock(fd, LOCK_EX) == 0 && (old = read_file(path, &st)) != NULL && (fresh = rewrite(old, line, mark)) != NULL &&
      write_all(temp, fresh, strlen(fresh)) == 0 && rename(temp, path) == 0)
    ret = NVML_SUCCESS;
  free(old);
  free(fresh);
  close(fd);
  refresh();
  return ret;
}

nvmlReturn_t putf(int dev, const char *key, const char *format, ...) {
  char value[256];
  va_list args;
  va_start(args, format);
  vsnprintf(value, sizeof value, format, args);
  va_end(args);
  return put(dev, key, value);
}

nvmlReturn_t number(const struct call *c, const char *key, unsigned int *out) {
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  const char *v = get(c->dev, key);
  if (v == NULL) return NVML_ERROR_NOT_SUPPORTED;
  *out = (unsigned int)strtoul(v, NULL, 0);
  return NVML_SUCCESS;
}

nvmlReturn_t text(const struct call *c, const char *key, char *out, unsigned int size) {
  if (out == NULL) return NVML_ERROR_INVALID_ARGUMENT;
  const char *v = get(c->dev, key);
  if (v == NULL) return NVML_ERROR_NOT_SUPPORTED;
  if (strlen(v) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
  strncpy(out, v, size); // fills the rest with NUL, as the real library does
  return NVML_SUCCESS;
}

int device_at(unsigned index) {
  const char *v = get(GLOBAL, "devices");
  int n = v == NULL ? 0 : atoi(v);
  for (int dev = 0; dev < n && dev < MAX_DEVICES; dev++) {
    if (get_yes(dev, "absent")) continue;
    if (index-- == 0) return dev;
  }
  return -1;
}

int device_count(void) {
  int n = 0;
  while (device_at((unsigned)n) >= 0) n++;
  return n;
}

void *intern(enum kind kind, int dev, int gi, int ci) {
  struct handle *h;
  for (h = handles; h != NULL; h = h->next)
    if (h->kind == kind && h->dev == dev && h->gi == gi && h->ci == ci) return h;
  h = calloc(1, sizeof *h);
  *h = (struct handle){kind, dev, gi, ci, handles};
  handles = h;
  return h;
}

static const struct handle *find_handle(const void *p) {
  for (const struct handle *h = handles; h != NULL; h = h->next)
    if (h == p) return h;
  return NULL;
}

// gone tells whether what the handle stood for is no longer there.
static int gone(const struct handle *h) {
  char key[64];
  if (h->dev >= MAX_DEVICES || get_yes(h->dev, "absent")) return 1;
  if (h->kind == GPU) return 0;
  snprintf(key, sizeof key, "gi.%d", h->gi);
  if (get(h->dev, key) == NULL) return 1;
  if (h->kind == GPU_INSTANCE) return 0;
  snprintf(key, sizeof key, "ci.%d.%d", h->gi, h->ci);
  return get(h->dev, key) == NULL;
}

static nvmlReturn_t library_state(void) {
  if (!readable) return NVML_ERROR_UNKNOWN;
  const char *b = get(GLOBAL, "boot");
  if (inits > 0 && strcmp(boot, b == NULL ? "" : b) != 0) inits = 0;
  if (inits == 0) return NVML_ERROR_UNINITIALIZED;
  return code_of(get(GLOBAL, "run"));
}

static void delay(void) {
  const char *v = get(GLOBAL, "delay-ms");
  if (v == NULL) return;
  long ms = atol(v);
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  pthread_mutex_unlock(&lock);
  nanosleep(&t, NULL);
  pthread_mutex_lock(&lock);
}

struct call enter(const void *handle, const char *function, int kinds) {
  struct call c = {NVML_SUCCESS, GLOBAL, -1, -1, SYSTEM};
  pthread_mutex_lock(&lock);
  refresh();
  delay();
  c.ret = library_state();
  if (c.ret != NVML_SUCCESS) return c;
  char key[128];
  snprintf(key, sizeof key, "error.%s", function);
  if (kinds == SYSTEM) {
    c.ret = code_of(get(GLOBAL, key));
    return c;
  }
  const struct handle *h = find_handle(handle);
  if (h == NULL || (h->kind & kinds) == 0 || gone(h)) {
    c.ret = h != NULL && h->kind == MIG && !gone(h) ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
    return c;
  }
  c = (struct call){NVML_SUCCESS, h->dev, h->gi, h->ci, h->kind};
  c.ret = code_of(get(c.dev, "error"));
  if (c.ret == NVML_SUCCESS) c.ret = code_of(get(c.dev, key));
  return c;
}

void leave(struct call *c) {
  (void)c;
  pthread_mutex_unlock(&lock);
}

nvmlReturn_t init_library(void) {
  pthread_mutex_lock(&lock);
  refresh();
  delay();
  nvmlReturn_t ret = readable ? code_of(get(GLOBAL, "init")) : NVML_ERROR_DRIVER_NOT_LOADED;
  if (ret == NVML_SUCCESS) {
    const char *b = get(GLOBAL, "boot");
    snprintf(boot, sizeof boot, "%s", b == NULL ? "" : b);
    inits++;
  }
  pthread_mutex_unlock(&lock);
  return ret;
}

nvmlReturn_t shutdown_library(void) {
  pthread_mutex_lock(&lock);
  nvmlReturn_t ret = inits == 0 ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
  if (inits > 0) inits--;
  pthread_mutex_unlock(&lock);
  return ret;
}
