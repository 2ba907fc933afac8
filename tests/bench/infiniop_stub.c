/* A small libinfiniop.so for the tests: float32 batch norm backward in doubles, host memory.
   BUG 1: the mean of dy is forgotten.  2: a dtype that should be refused is taken.
   BUG 3: one element past grad_weight is written.  4: crashes on a null descriptor.
   BUG 5: a descriptor computes once, then nothing.  6: there is no device.
   BUG 7: shapes are looked at before types.  8: grad_bias is cleared before the workspace is looked at. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#ifndef BUG
#define BUG 0
#endif
enum { BAD_PARAM = 3, NULL_POINTER = 4, BAD_DTYPE = 10, BAD_SHAPE = 11, BAD_STRIDES = 12, SMALL = 13 };
typedef struct { size_t rank, shape[8]; ptrdiff_t strides[8]; int dtype; } Tensor;
typedef struct { int device, id; } Handle;
typedef struct { int device, id; size_t n, c, l; ptrdiff_t step[5]; int dtype, runs; } Operator;
static Handle the_handle;

int infiniopCreateHandle(Handle **handle) {
  if (BUG == 6) return 7;
  if (!handle) return NULL_POINTER;
  *handle = &the_handle;
  return 0;
}
int infiniopCreateTensorDescriptor(Tensor **made, size_t rank, const size_t *shape,
                                   const ptrdiff_t *strides, int dtype) {
  Tensor *t = calloc(1, sizeof *t);
  t->rank = rank;
  t->dtype = dtype;
  memcpy(t->shape, shape, rank * sizeof *shape);
  memcpy(t->strides, strides, rank * sizeof *strides);
  *made = t;
  return 0;
}
int infiniopDestroyTensorDescriptor(Tensor *t) { free(t); return 0; }

int infiniopCreateBatchNormBackwardDescriptor(Handle *handle, Operator **made, Tensor *dx, Tensor *dw,
                                              Tensor *db, Tensor *x, Tensor *dy, Tensor *w, Tensor *mean,
                                              Tensor *var) {
  Tensor *all[8] = {dx, dw, db, x, dy, w, mean, var}, *big[3] = {dx, x, dy};
  Tensor *vectors[5] = {dw, db, w, mean, var};
  if (!handle || !made) return BAD_PARAM;
  for (int i = 0; i < 8; i++)
    if (!all[i]) {
#if BUG == 4
      return *(volatile int *)8;
#endif
      return BAD_PARAM;
    }
  for (int i = 0; i < 5; i++)
    if (BUG == 7 && vectors[i]->shape[0] != x->shape[1]) return BAD_SHAPE;
  for (int i = 0; i < 8; i++) {
    int known = all[i]->dtype == 12 || all[i]->dtype == 13 || all[i]->dtype == 19;
    if (BUG != 2 && (!known || all[i]->dtype != x->dtype)) return BAD_DTYPE;
  }
  for (int i = 0; i < 3; i++)
    if (big[i]->rank != 3 || x->rank != 3 || memcmp(big[i]->shape, x->shape, 3 * sizeof(size_t)))
      return BAD_SHAPE;
  for (int i = 0; i < 5; i++)
    if (vectors[i]->rank != 1 || vectors[i]->shape[0] != x->shape[1]) return BAD_SHAPE;
  for (int i = 0; i < 3; i++) {
    ptrdiff_t l = x->shape[2], c = x->shape[1], *s = big[i]->strides;
    if (s[2] != 1 || s[1] != l || s[0] != c * l) return BAD_STRIDES;
  }
  Operator *op = calloc(1, sizeof *op);
  op->n = x->shape[0], op->c = x->shape[1], op->l = x->shape[2], op->dtype = x->dtype;
  for (int i = 0; i < 5; i++) op->step[i] = vectors[i]->strides[0];
  *made = op;
  return 0;
}
int infiniopGetBatchNormBackwardWorkspaceSize(Operator *op, size_t *size) {
  if (!op || !size) return BAD_PARAM;
  *size = 16;
  return 0;
}
int infiniopBatchNormBackward(Operator *op, void *workspace, size_t size, float *dx, float *dw, float *db,
                              const float *x, const float *dy, const float *w, const float *mean,
                              const float *var, void *stream) {
  if (!op || !dx || !dw || !db || !x || !dy || !w || !mean || !var) return BAD_PARAM;
  if (BUG == 8) memset(db, 0, sizeof *db);
  if (size < 16 || !workspace) return SMALL;
  if (op->runs++ && BUG == 5) return 0;
  double m = (double)op->n * op->l;
  for (size_t c = 0; c < op->c; c++) {
    double rstd = 1 / sqrt(var[c * op->step[4]]), mu = mean[c * op->step[3]], sum = 0, dot = 0;
    for (size_t n = 0; n < op->n; n++)
      for (size_t i = (n * op->c + c) * op->l, end = i + op->l; i < end; i++)
        sum += dy[i], dot += dy[i] * (x[i] - mu) * rstd;
    for (size_t n = 0; n < op->n; n++)
      for (size_t i = (n * op->c + c) * op->l, end = i + op->l; i < end; i++)
        dx[i] = w[c * op->step[2]] * rstd *
                (dy[i] - (BUG == 1 ? 0 : sum / m) - (x[i] - mu) * rstd * dot / m);
    dw[c * op->step[0]] = dot, db[c * op->step[1]] = sum;
  }
  if (BUG == 3) dw[op->c * op->step[0]] = 7;
  return 0;
}
int infiniopDestroyBatchNormBackwardDescriptor(Operator *op) { free(op); return 0; }
