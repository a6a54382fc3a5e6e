/* A product of matrices, as generated kernels, the native core and the driver tell each other. */
#ifndef TENON_MATMUL
#define TENON_MATMUL
#include <stdint.h>

/* Consumes a finished piece of the product: rows box[0] to box[1] and columns box[2] to box[3] of
 * the matrix with number box[4]. `product` points to the piece, whose rows are `step` apart. */
typedef void (*tenon_epilogue_t)(const void *product, int64_t step, const int64_t *box,
                                 void *const *a, const int64_t *s, int64_t *status);

/* B as the windows of an image: row k, as a position in `rows` (channels and the kernel, from the
 * outermost), and column j, as one in `columns`, meet at the sum of their steps. */
typedef struct {
  int64_t rows[4], row_steps[4];
  int64_t columns[3], column_steps[3];
  int64_t length; /* elements that may be read from where a matrix of the batch begins */
} tenon_windows_t;

/* Weights that were laid out once lie in panels of so many columns each, one after the other, the
 * last one filled up with zeros: row k of a panel begins at element k * TENON_PANEL of it. */
#define TENON_PANEL 32

/* A as the windows of an image whose channels are dense in memory: row i of A is what place i of
 * `places` meets, by rows and columns of the kernel and then by channels. Beyond the image are zeros.
 * B lies in panels. */
typedef struct {
  int64_t size[2], step[2]; /* of the image: rows and columns, and elements from one to the next */
  int64_t places[2], kernel[2], stride[2], padding[2], dilation[2];
  int64_t channels;
} tenon_places_t;

typedef struct {
  const void *a, *b;
  void *c; /* rows are dense; with an epilogue it may be null: nobody else needs the product */
  int64_t kept; /* whether the product has to be in c in the end */
  int64_t dtype; /* 0: float32, 1: bfloat16, 2: float16; sums are always float32 */
  int64_t batch, m, n, k;
  int64_t a_strides[3], b_strides[3], c_strides[2]; /* by matrix, row, column; in elements */
  int64_t threads;
  tenon_epilogue_t epilogue; /* null: the product is the result */
  void *const *arguments; /* what the epilogue is called with */
  const int64_t *sizes;
  int64_t *status;
  const tenon_windows_t *windows; /* null: B lies by its strides */
  const tenon_places_t *places;   /* null: A lies by its strides */
  int64_t panels; /* whether B, of float32, lies in panels */
} tenon_matmul_t;

/* Too small for a second thread, whatever multiplies: waking that takes as long as it saves, and,
 * where others use the processors, far longer. */
static inline int tenon_matmul_is_small(const tenon_matmul_t *p) {
  const int64_t multiplications = 1 << 18; /* that are worth it */
  const int64_t read = 1 << 15;            /* elements that are, where each is used a few times */
  return p->batch * p->m * p->n * p->k < multiplications &&
         p->batch * (p->m + p->n) * p->k < read;
}

#endif
