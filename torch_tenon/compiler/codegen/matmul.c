/* C = A B in float32, any strides. Panels of both operands are packed so that the inner kernel reads
 * memory in order; it keeps a block of ROWS x 32 of C in registers. Threads share the rows. */
typedef float lanes_t __attribute__((vector_size(64), aligned(4)));
#define ROWS 14
#define COLUMNS 32
#define DEPTH 256
#define HEIGHT (ROWS * 16)
#define WIDTH 4096

/* One block, multiplied and added in one rounding: `a` holds ROWS values and `b` COLUMNS values for each step of `depth`. */
static __attribute__((noinline, optimize("fp-contract=fast"))) void block_@NAME@(const float *a, const float *b, int64_t depth,
                                                   float *c, int64_t stride, int64_t rows,
                                                   int64_t columns, int first) {
  lanes_t sum[ROWS][2];
#pragma GCC unroll 14
  for (int i = 0; i < ROWS; ++i) sum[i][0] = sum[i][1] = (lanes_t){0};
  for (int64_t k = 0; k < depth; ++k, a += ROWS, b += COLUMNS) {
    lanes_t left = *(const lanes_t *)b, right = *(const lanes_t *)(b + 16);
#pragma GCC unroll 14
    for (int i = 0; i < ROWS; ++i) {
      sum[i][0] += a[i] * left;
      sum[i][1] += a[i] * right;
    }
  }
  float edge[ROWS][COLUMNS];
  if (rows == ROWS && columns == COLUMNS) {
#pragma GCC unroll 14
    for (int i = 0; i < ROWS; ++i) {
      lanes_t *p = (lanes_t *)(c + i * stride), *q = (lanes_t *)(c + i * stride + 16);
      *p = first ? sum[i][0] : *p + sum[i][0];
      *q = first ? sum[i][1] : *q + sum[i][1];
    }
    return;
  }
#pragma GCC unroll 14
  for (int i = 0; i < ROWS; ++i) {
    *(lanes_t *)edge[i] = sum[i][0];
    *(lanes_t *)(edge[i] + 16) = sum[i][1];
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      c[i * stride + j] = first ? edge[i][j] : c[i * stride + j] + edge[i][j];
}

/* a: A, B, C and room for the packed panels; s: M, N, K, the strides of A and B, threads. */
void @NAME@(void *const *a, const int64_t *s, int64_t *status) {
  const float *A = a[0], *B = a[1];
  float *C = a[2], *room = a[3];
  const int64_t m = s[0], n = s[1], k = s[2], ai = s[3], ak = s[4], bk = s[5], bj = s[6];
  for (int64_t j0 = 0; j0 < n; j0 += WIDTH) {
    const int64_t width = n - j0 < WIDTH ? n - j0 : WIDTH;
    for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
      const int64_t depth = k - k0 < DEPTH ? k - k0 : DEPTH;
#pragma omp parallel num_threads((int)s[7])
      {
#pragma omp for schedule(static)
        for (int64_t j = 0; j < width; j += COLUMNS) {
          float *panel = room + j * DEPTH;
          const int64_t some = width - j < COLUMNS ? width - j : COLUMNS;
          for (int64_t q = 0; q < depth; ++q)
            for (int64_t l = 0; l < COLUMNS; ++l)
              panel[q * COLUMNS + l] = l < some ? B[(k0 + q) * bk + (j0 + j + l) * bj] : 0.0f;
        }
        float packed[HEIGHT * DEPTH] __attribute__((aligned(64)));
#pragma omp for schedule(dynamic)
        for (int64_t i0 = 0; i0 < m; i0 += HEIGHT) {
          const int64_t height = m - i0 < HEIGHT ? m - i0 : HEIGHT;
          for (int64_t i = 0; i < height; i += ROWS)
            for (int64_t q = 0; q < depth; ++q)
              for (int64_t l = 0; l < ROWS; ++l)
                packed[i * DEPTH + q * ROWS + l] =
                    i + l < height ? A[(i0 + i + l) * ai + (k0 + q) * ak] : 0.0f;
          for (int64_t j = 0; j < width; j += COLUMNS)
            for (int64_t i = 0; i < height; i += ROWS)
              block_@NAME@(packed + i * DEPTH, room + j * DEPTH, depth,
                           C + (i0 + i) * n + j0 + j, n, height - i < ROWS ? height - i : ROWS,
                           width - j < COLUMNS ? width - j : COLUMNS, k0 == 0);
        }
      }
    }
  }
}
