/* A small libopapi_nn.so for the tests: the runtime and float32 layer norm in doubles, all in one
   file, dense data alone.  BUG 1: gamma is left out of grad_input.  2: an executor can run twice.
   BUG 3: nothing is computed for the input of the call before.  4: there is no device.
   BUG 5: a stage 1 that refuses a type clears grad_input.  6: the mask decides about null alone. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifndef BUG
#define BUG 0
#endif
enum { NULLPTR = 161001, INVALID = 161002, SPENT = 561103 };
typedef struct { int64_t shape[9], size; uint64_t rank; int dtype; char *data; } Tensor;
typedef struct { int64_t size; bool bits[8]; } Bools;
typedef struct { int64_t size, values[8]; } Ints;
typedef struct {
  int64_t rows, cols; float *dx, *dw, *db; const float *dy, *x, *mean, *rstd, *w; bool spent;
} Executor;
static const char *words = "";
static int fail(int code, const char *why) { words = why; return code; }

const char *aclGetRecentErrMsg(void) { return words; }
int aclInit(const char *config) { return BUG == 4 ? fail(500000, "no driver is loaded") : 0; }
int aclrtSetDevice(int32_t device) { return 0; }
int aclrtCreateStream(void **stream) { *stream = NULL; return 0; }
int aclrtSynchronizeStream(void *stream) { return 0; }
int aclrtMalloc(void **made, size_t size, int policy) { *made = aligned_alloc(512, (size + 511) / 512 * 512); return 0; }
int aclrtFree(void *memory) { free(memory); return 0; }
int aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) { memcpy(to, from, size); return 0; }
Tensor *aclCreateTensor(const int64_t *dims, uint64_t rank, int dtype, const int64_t *strides, int64_t offset,
                        int format, const int64_t *storage, uint64_t storage_rank, void *data) {
  Tensor *t = calloc(1, sizeof *t);
  t->rank = rank, t->dtype = dtype, t->data = data, t->size = 1;
  for (uint64_t i = 0; i < rank && i < 9; i++) t->shape[i] = dims[i], t->size *= dims[i];
  return t;
}
int aclDestroyTensor(Tensor *t) { free(t); return 0; }
Bools *aclCreateBoolArray(const bool *bits, uint64_t size) {
  Bools *b = calloc(1, sizeof *b);
  b->size = size;
  memcpy(b->bits, bits, size * sizeof *bits);
  return b;
}
int aclDestroyBoolArray(Bools *b) { free(b); return 0; }
Ints *aclCreateIntArray(const int64_t *values, uint64_t size) {
  Ints *i = calloc(1, sizeof *i);
  i->size = size;
  memcpy(i->values, values, size * sizeof *values);
  return i;
}
int aclDestroyIntArray(Ints *i) { free(i); return 0; }
int aclDestroyAclOpExecutor(Executor *e) { return 0; }

static bool tail(Tensor *t, Ints *shape) {
  if ((int64_t)t->rank < shape->size) return false;
  for (int64_t i = 0; i < shape->size; i++)
    if (t->shape[t->rank - shape->size + i] != shape->values[i]) return false;
  return true;
}
int aclnnLayerNormBackwardGetWorkspaceSize(Tensor *dy, Tensor *x, Ints *shape, Tensor *mean, Tensor *rstd, Tensor *w,
                                           Tensor *b, Bools *mask, Tensor *dx, Tensor *dw, Tensor *db, uint64_t *size,
                                           Executor **made) {
  if (!size || !made) return fail(NULLPTR, "workspaceSize or executor is null");
  if (!dy || !x || !shape || !mean || !rstd || !mask) return fail(NULLPTR, "an input is null");
  Tensor *results[3] = {dx, dw, db}, *inputs[5] = {dy, x, mean, rstd, w};
  if (mask->size != 3) return fail(INVALID, "outputMask must have 3 elements");
  for (int i = 0; i < 3; i++)
    if (mask->bits[i] && !results[i]) return fail(NULLPTR, "a requested output is null");
  for (int i = 0; i < 5; i++)
    if (inputs[i] && inputs[i]->dtype) {
      if (BUG == 5) memset(dx->data, 0, dx->size * sizeof(float));
      return fail(INVALID, "this library has float32 alone");
    }
  for (int i = 0; i < 3; i++)
    if (mask->bits[i] && results[i]->dtype) return fail(INVALID, "this library has float32 alone");
  if (dy->rank != x->rank || memcmp(dy->shape, x->shape, sizeof x->shape)) return fail(INVALID, "gradOut's shape");
  if (shape->size < 1 || !tail(x, shape)) return fail(INVALID, "normalizedShape must be the tail of input's shape");
  int64_t cols = 1;
  for (int64_t i = 0; i < shape->size; i++) cols *= shape->values[i];
  int64_t rows = cols ? x->size / cols : 0;
  if (cols && (mean->size != rows || rstd->size != rows)) return fail(INVALID, "mean's or rstd's size");
  if ((w && w->size != cols) || (mask->bits[1] && dw->size != cols)) return fail(INVALID, "weight's shape");
  if ((mask->bits[0] && dx->size != x->size) || (mask->bits[2] && db->size != cols))
    return fail(INVALID, "a result's shape");
  Executor *e = calloc(1, sizeof *e);
  for (int i = 0; i < 3; i++)
    if (!mask->bits[i] && BUG != 6) results[i] = NULL;
  *e = (Executor){rows, cols, results[0] ? (float *)dx->data : 0, results[1] ? (float *)dw->data : 0,
                  results[2] ? (float *)db->data : 0, (float *)dy->data, (float *)x->data, (float *)mean->data,
                  (float *)rstd->data, w ? (float *)w->data : 0, false};
  *size = 0, *made = e;
  return 0;
}
int aclnnLayerNormBackward(void *workspace, uint64_t size, Executor *e, void *stream) {
  if (!e) return fail(NULLPTR, "executor is null");
  if (e->spent && BUG != 2) return fail(SPENT, "the executor has run");
  e->spent = true;
  static const float *last;
  if (BUG == 3 && e->x == last) return 0;
  last = e->x;
  double *dw = calloc(e->cols + 1, 8), *db = calloc(e->cols + 1, 8);
  for (int64_t r = 0; r < e->rows; r++) {
    const float *dy = e->dy + r * e->cols, *x = e->x + r * e->cols;
    double mu = e->mean[r], rs = e->rstd[r], s = 0, d = 0;
    for (int64_t c = 0; c < e->cols; c++) {
      double h = (x[c] - mu) * rs, g = dy[c] * (e->w && BUG != 1 ? e->w[c] : 1.0);
      s += g, d += g * h, dw[c] += dy[c] * h, db[c] += dy[c];
    }
    for (int64_t c = 0; e->dx && c < e->cols; c++) {
      double h = (x[c] - mu) * rs, g = dy[c] * (e->w && BUG != 1 ? e->w[c] : 1.0);
      e->dx[r * e->cols + c] = rs * (g - s / e->cols - h * d / e->cols);
    }
  }
  for (int64_t c = 0; c < e->cols; c++) {
    if (e->dw) e->dw[c] = dw[c];
    if (e->db) e->db[c] = db[c];
  }
  free(dw), free(db);
  return 0;
}
