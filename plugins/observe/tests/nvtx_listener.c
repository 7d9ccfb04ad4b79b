/* A tool that listens to NVTX, as Nsight Systems does: NVTX loads it by NVTX_INJECTION64_PATH, and it writes
   what is pushed and popped in any domain to the file that NVTX_LISTENER_LOG names.
   Layouts and numbers are those of nvToolsExt.h and nvtxTypes.h of NVTX 3. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*Function)(void);
typedef struct { size_t size; int (*functions)(int module, Function ***table, unsigned *count); } Callbacks;
typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t color_kind;
  uint32_t color;
  int32_t payload_kind, reserved;
  uint64_t payload;
  int32_t text_kind;
  union { const char *ascii; const void *other; } text;
} Attributes;

enum { CALLBACKS = 1, CORE2 = 5, ASCII = 1, WIDE = 2, REGISTERED = 3 };
enum { PUSH = 4, POP = 5, REGISTER_ASCII = 10, REGISTER_WIDE = 11 };

static FILE *written;

static void write_wide(const wchar_t *text) { fprintf(written, "push %ls\n", text); }

static int push(void *domain, const Attributes *about) {
  (void)domain;
  if (about->text_kind == WIDE) write_wide(about->text.other);
  else fprintf(written, "push %s\n", about->text.ascii);
  fflush(written);
  return 0;
}

static int pop(void *domain) {
  (void)domain;
  fprintf(written, "pop\n");
  fflush(written);
  return 0;
}

static void *keep_ascii(void *domain, const char *text) {
  (void)domain;
  size_t size = 0;
  while (text[size]) size++;
  char *kept = malloc(size + 1);
  for (size_t k = 0; k <= size; k++) kept[k] = text[k];
  return kept;
}

static void *keep_wide(void *domain, const wchar_t *text) {
  (void)domain;
  size_t size = 0;
  while (text[size]) size++;
  char *kept = malloc(size + 1);
  for (size_t k = 0; k <= size; k++) kept[k] = (char)text[k];
  return kept;
}

int InitializeInjectionNvtx2(const void *(*table_of)(uint32_t)) {
  const Callbacks *known = table_of(CALLBACKS);
  Function **table;
  unsigned count;
  const char *path = getenv("NVTX_LISTENER_LOG");
  if (!known || !path || !known->functions(CORE2, &table, &count) || count <= REGISTER_WIDE) return 0;
  written = fopen(path, "a");
  if (!written) return 0;
  *table[PUSH] = (Function)push;
  *table[POP] = (Function)pop;
  *table[REGISTER_ASCII] = (Function)keep_ascii;
  *table[REGISTER_WIDE] = (Function)keep_wide;
  return 1;
}
