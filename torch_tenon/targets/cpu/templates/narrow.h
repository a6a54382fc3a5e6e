/* Products of a few rows with weights of few bits. Weights are read once, as they lie, and widened in
 * registers, so that the product takes as long as reading them. Sums are float32. */
#ifndef TENON_NARROW
#define TENON_NARROW
#include <stdlib.h>
#if defined(__AVX512F__)
#define NARROW_LANES 16
#define NARROW_TILE 4 /* rows whose sums stay in registers */
#elif defined(__AVX__)
#define NARROW_LANES 8
#define NARROW_TILE 2
#else
#define NARROW_LANES 4
#define NARROW_TILE 2
#endif
#ifdef __clang__
#define NARROW_CONTRACTED noinline
#pragma clang fp contract(fast)
#else
#define NARROW_CONTRACTED noinline, optimize("fp-contract=fast")
#endif

typedef float narrow_t __attribute__((vector_size(NARROW_LANES * 4), aligned(4)));
typedef int32_t narrow_i32_t __attribute__((vector_size(NARROW_LANES * 4), aligned(4)));
typedef int8_t narrow_i8_t __attribute__((vector_size(NARROW_LANES), aligned(1)));
typedef uint8_t narrow_u8_t __attribute__((vector_size(NARROW_LANES), aligned(1)));
/* Bytes as integers. Of a conversion of vectors gcc makes three times as many instructions. */
#if defined(__AVX2__)
#define NARROW_WIDEN(BYTE, BYTES, INSTRUCTION)                                                     \
  INLINE narrow_i32_t narrow_of_##BYTE(const void *p) {                                            \
    narrow_i32_t x;                                                                                \
    __asm__(INSTRUCTION " %1, %0" : "=v"(x) : "m"(*(const BYTES *)p));                             \
    return x;                                                                                      \
  }
#else
#define NARROW_WIDEN(BYTE, BYTES, INSTRUCTION)                                                     \
  INLINE narrow_i32_t narrow_of_##BYTE(const void *p) {                                            \
    return __builtin_convertvector(*(const BYTES *)p, narrow_i32_t);                               \
  }
#endif
NARROW_WIDEN(int8, narrow_i8_t, "vpmovsxbd")
NARROW_WIDEN(uint8, narrow_u8_t, "vpmovzxbd")
#define NARROW_F32(x) __builtin_convertvector(x, narrow_t)
/* Words of four bytes, at least a row of 32 bytes of them. */
#define NARROW_WORDS (NARROW_LANES < 8 ? 8 : NARROW_LANES)
typedef float narrow_words_t __attribute__((vector_size(NARROW_WORDS * 4), aligned(4)));
typedef int32_t narrow_i32_words_t __attribute__((vector_size(NARROW_WORDS * 4), aligned(4)));
typedef uint32_t narrow_bits_t __attribute__((vector_size(NARROW_WORDS * 4), aligned(4)));
#define NARROW_MASKED(x, q)                                                                        \
  __builtin_convertvector((narrow_i32_words_t)((x) & (15u << 4 * (q))), narrow_words_t)
#define NARROW_LESS(x, y) ((x) < (y) ? (x) : (y))

/* Weights of four bits, as PyTorch packs them for one processor: blocks of `block` columns, in each of
 * which a row is block / 2 bytes. A byte has columns n and n + block / 2 of a whole block, and columns
 * 2 n and 2 n + 1 of a last one that is less. For each `group` of rows, `scales` has of each column
 * the scale and what 8 stands for. */
typedef struct {
  const void *scales;
  int64_t group, block;
} tenon_four_bits_t;

static inline float narrow_element(const void *x, int64_t i, int64_t dtype) {
  if (dtype == 0) return ((const float *)x)[i];
  return dtype == 1 ? from_bf16(((const uint16_t *)x)[i]) : from_f16(((const uint16_t *)x)[i]);
}

/* The rows of A as float32, dense: where they lie, or in memory that `made` has to be freed of. For
 * weights of four bits each number is there for each word of a row of a block. The sums of each row's
 * groups follow, infinite where products with masked bits could be. */
static const float *narrow_rows(const tenon_matmul_t *p, const tenon_four_bits_t *w, float **made) {
  const int64_t *s = p->a_strides, rows = p->batch * p->m, words = w == NULL ? 1 : w->block / 8;
  const int dense = (p->m == 1 || s[1] == p->k) && (p->batch == 1 || s[0] == p->m * p->k);
  if (p->dtype == 0 && s[2] == 1 && dense && w == NULL) return p->a;
  const int64_t count = rows * p->k * words + (w == NULL ? 0 : rows * (p->k / w->group));
  float *to = *made = malloc(count * sizeof(float));
  if (to == NULL) abort();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t start = r / p->m * s[0] + r % p->m * s[1];
    if (p->dtype == 1 && s[2] == 1 && w == NULL)
      for (int64_t k = 0; k < p->k; ++k) *to++ = from_bf16(((const uint16_t *)p->a)[start + k]);
    else
      for (int64_t k = 0; k < p->k; ++k) {
        const float x = narrow_element(p->a, start + k * s[2], p->dtype);
        for (int64_t l = 0; l < words; ++l) *to++ = x;
      }
  }
  if (w == NULL) return *made;
  for (const float *x = *made, *end = to; x != end; ++to) {
    float most = 0; /* that the sum of a group can be, with bits up to 15 << 12 */
    *to = 0;
    for (int64_t k = 0; k < w->group; ++k, x += words) *to += *x, most += 65536 * __builtin_fabsf(*x);
    if (!(most < INFINITY)) *to = INFINITY;
  }
  return *made;
}

/* A finished piece: converted where the product is not float32, and handed to the epilogue. `room` has
 * as many elements as `sums`. */
static void narrow_finish(const tenon_matmul_t *p, const float *sums, int64_t step, uint16_t *room,
                          const int64_t *box) {
  const void *piece = sums;
  const int64_t rows = box[1] - box[0], width = box[3] - box[2];
  const int kept = p->kept || p->epilogue == NULL;
  const int64_t start = box[4] * p->c_strides[0] + box[0] * p->c_strides[1] + box[2];
  const int64_t to_step = kept ? p->c_strides[1] : step;
  if (p->dtype != 0) {
    uint16_t *to = kept ? (uint16_t *)p->c + start : room;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < width; ++j)
        to[i * to_step + j] = p->dtype == 1 ? to_bf16(sums[i * step + j]) : to_f16(sums[i * step + j]);
    piece = to;
  } else if (kept) {
    float *to = (float *)p->c + start;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < width; ++j) to[i * to_step + j] = sums[i * step + j];
    piece = to;
  }
  if (p->epilogue != NULL) p->epilogue(piece, to_step, box, p->arguments, p->sizes, p->status);
}

/* Pieces go to whichever thread is free: others may use the processors. ROWS is a literal. PIECE
 * computes so many columns, from j, of matrix `number`, into rows of sums that are WIDTH apart. */
#define NARROW_PRODUCT(NAME, PIECE, ROWS, WIDTH)                                                   \
  static void multiply_##NAME(const tenon_matmul_t *p, const tenon_four_bits_t *w) {               \
    float *made = NULL;                                                                            \
    const float *const a = narrow_rows(p, w, &made);                                               \
    const int64_t pieces = (p->n + WIDTH - 1) / WIDTH;                                             \
    int64_t next = 0;                                                                              \
    _Pragma("omp parallel if (!tenon_matmul_is_small(p))")                                         \
    for (int64_t t; (t = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < p->batch * pieces;) {   \
      const int64_t number = t / pieces, j = t % pieces * WIDTH;                                   \
      const int64_t columns = NARROW_LESS(WIDTH, p->n - j);                                        \
      float sums[ROWS * WIDTH];                                                                    \
      uint16_t room[ROWS * WIDTH];                                                                 \
      PIECE(p, w, a + number * ROWS * p->k, ROWS, number, j, columns, sums, WIDTH);                \
      const int64_t box[5] = {0, ROWS, j, j + columns, number};                                    \
      narrow_finish(p, sums, WIDTH, room, box);                                                    \
    }                                                                                              \
    free(made);                                                                                    \
  }

/* Bytes whose columns are dense: each element is a sum over lanes, of R rows and C columns. */
#define NARROW_DOTS(NAME, BYTE, R, C)                                                              \
  static __attribute__((NARROW_CONTRACTED)) void NAME(                                             \
      const float *a, int64_t depth, const BYTE##_t *b, int64_t bj, float *c, int64_t step) {      \
    narrow_t sum[R][C];                                                                            \
    _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i)                                            \
        _Pragma("GCC unroll 8") for (int j = 0; j < C; ++j) sum[i][j] = (narrow_t){0};             \
    int64_t k = 0;                                                                                 \
    /* A line of each column at once: columns a page apart share few places in the cache. */       \
    /* Processors look ahead within a page alone: the next columns are asked for. */               \
    for (; R == 1 && k + 64 <= depth; k += 64)                                                     \
      _Pragma("GCC unroll 8") for (int j = 0; j < C; ++j) {                                        \
        __builtin_prefetch(b + (C + j) * bj + k);                                                  \
        _Pragma("GCC unroll 16") for (int64_t l = k; l < k + 64; l += NARROW_LANES)                    \
          sum[0][j] += *(const narrow_t *)(a + l) * NARROW_F32(narrow_of_##BYTE(b + j * bj + l));  \
      }                                                                                            \
    for (; k + NARROW_LANES <= depth; k += NARROW_LANES) {                                         \
      narrow_t left[R];                                                                            \
      _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i)                                          \
          left[i] = *(const narrow_t *)(a + i * depth + k);                                        \
      _Pragma("GCC unroll 8") for (int j = 0; j < C; ++j) {                                        \
        const narrow_t right = NARROW_F32(narrow_of_##BYTE(b + j * bj + k));                       \
        _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i) sum[i][j] += left[i] * right;          \
      }                                                                                            \
    }                                                                                              \
    for (int i = 0; i < R; ++i)                                                                    \
      for (int j = 0; j < C; ++j) {                                                                \
        float total = 0;                                                                           \
        for (int l = 0; l < NARROW_LANES; ++l) total += sum[i][j][l];                              \
        for (int64_t q = k; q < depth; ++q) total += a[i * depth + q] * b[j * bj + q];             \
        c[i * step + j] = total;                                                                   \
      }                                                                                            \
  }
/* Bytes whose rows are dense: FOUR of them are added to the sums of R rows at once. */
#define NARROW_ROWS(NAME, BYTE, R, FOUR)                                                           \
  static __attribute__((NARROW_CONTRACTED)) void NAME(const float *a, int64_t ai, const BYTE##_t *b, \
                                                      int64_t bk, int64_t columns, float *c,       \
                                                      int64_t step) {                              \
    int64_t j = 0;                                                                                 \
    for (; j + NARROW_LANES <= columns; j += NARROW_LANES) {                                       \
      narrow_t right[FOUR];                                                                        \
      _Pragma("GCC unroll 4") for (int k = 0; k < FOUR; ++k)                                       \
          right[k] = NARROW_F32(narrow_of_##BYTE(b + k * bk + j));                                 \
      _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i) {                                        \
        narrow_t sum = *(const narrow_t *)(c + i * step + j);                                      \
        _Pragma("GCC unroll 4") for (int k = 0; k < FOUR; ++k) sum += a[i * ai + k] * right[k];    \
        *(narrow_t *)(c + i * step + j) = sum;                                                     \
      }                                                                                            \
    }                                                                                              \
    for (; j < columns; ++j)                                                                       \
      for (int i = 0; i < R; ++i)                                                                  \
        for (int k = 0; k < FOUR; ++k) c[i * step + j] += a[i * ai + k] * b[k * bk + j];           \
  }
#define NARROW_EACH(BYTE, R)                                                                       \
  NARROW_DOTS(narrow_dots_##BYTE##_##R, BYTE, R, 4)                                                \
  NARROW_DOTS(narrow_dot_##BYTE##_##R, BYTE, R, 1)                                                 \
  NARROW_ROWS(narrow_rows_##BYTE##_##R, BYTE, R, 4)                                                \
  NARROW_ROWS(narrow_row_##BYTE##_##R, BYTE, R, 1)

/* CALL of a function for a literal number of rows, which is cut into tiles. */
#define NARROW_TILES(FUNCTION, ROWS, CALL)                                                         \
  _Pragma("GCC unroll 4") for (int i = 0; i < ROWS; i += NARROW_TILE) switch (NARROW_LESS(ROWS - i, NARROW_TILE)) { \
      case 1: FUNCTION##_1 CALL; break;                                                            \
      case 2: FUNCTION##_2 CALL; break;                                                            \
      case 3: FUNCTION##_3 CALL; break;                                                            \
      default: FUNCTION##_4 CALL;                                                                  \
    }

#define NARROW_BYTES(BYTE)                                                                         \
  NARROW_EACH(BYTE, 1) NARROW_EACH(BYTE, 2) NARROW_EACH(BYTE, 3) NARROW_EACH(BYTE, 4)              \
  NARROW_DOTS(narrow_wide_##BYTE, BYTE, 1, 8) /* of one row there are sums for more columns */     \
  INLINE void narrow_columns_##BYTE(const tenon_matmul_t *p, const tenon_four_bits_t *w,           \
                                    const float *a, int rows, int64_t number, int64_t first,       \
                                    int64_t columns, float *sums, int64_t step) {                  \
    const int64_t bj = p->b_strides[2], k = p->k;                                                  \
    const BYTE##_t *const b = (const BYTE##_t *)p->b + number * p->b_strides[0] + first * bj;      \
    int64_t j = 0;                                                                                 \
    for (; rows == 1 && j + 8 <= columns; j += 8)                                                  \
      narrow_wide_##BYTE(a, k, b + j * bj, bj, sums + j, step);                                    \
    for (; j + 4 <= columns; j += 4)                                                               \
      NARROW_TILES(narrow_dots_##BYTE, rows, (a + i * k, k, b + j * bj, bj, sums + i * step + j, step)) \
    for (; j < columns; ++j)                                                                       \
      NARROW_TILES(narrow_dot_##BYTE, rows, (a + i * k, k, b + j * bj, bj, sums + i * step + j, step)) \
  }                                                                                                \
  INLINE void narrow_rows_##BYTE(const tenon_matmul_t *p, const tenon_four_bits_t *w,              \
                                 const float *a, int rows, int64_t number, int64_t first,          \
                                 int64_t columns, float *sums, int64_t step) {                     \
    const int64_t bk = p->b_strides[1];                                                            \
    const BYTE##_t *b = (const BYTE##_t *)p->b + number * p->b_strides[0] + first;                 \
    for (int64_t l = 0; l < rows * step; ++l) sums[l] = 0;                                         \
    int64_t k = 0;                                                                                 \
    for (; k + 4 <= p->k; k += 4)                                                                  \
      NARROW_TILES(narrow_rows_##BYTE, rows,                                                       \
                   (a + i * p->k + k, p->k, b + k * bk, bk, columns, sums + i * step, step))       \
    for (; k < p->k; ++k)                                                                          \
      NARROW_TILES(narrow_row_##BYTE, rows,                                                        \
                   (a + i * p->k + k, p->k, b + k * bk, bk, columns, sums + i * step, step))       \
  }
NARROW_BYTES(int8)
NARROW_BYTES(uint8)

/* A group of rows of a whole block of four bits, times R rows of A: added to their sums, if that is not
 * the first. `totals` are the sums of A's rows in the group. Bytes stay where they are in words, and four
 * bits where they are in 16: a mask and a conversion give them times a power of 16, which is exact. */
#define NARROW_NIBBLES(R, HALF)                                                                    \
  static __attribute__((NARROW_CONTRACTED)) void narrow_nibbles_##HALF##_##R(                      \
      const float *a, int64_t ai, const uint8_t *b, int64_t depth, const float *scales,            \
      const float *zeros, const float *totals, int64_t groups, float *c, int64_t step,             \
      int is_first) {                                                                              \
    enum { WORDS = HALF / 4, ROWS = NARROW_WORDS / WORDS, MASKS = R == 1 ? 4 : 2 };                \
    float bits[R][2 * HALF];                                                                       \
    _Pragma("GCC unroll 2") for (int first = 0; first < 4; first += MASKS) {                       \
      narrow_words_t sum[R][2 * MASKS];                                                            \
      _Pragma("GCC unroll 8") for (int v = 0; v < 2 * MASKS; ++v)                                  \
          _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i) sum[i][v] = (narrow_words_t){0};     \
      for (int64_t k = 0; k < depth; k += ROWS) {                                                  \
        __builtin_prefetch(b + k * HALF + 4096); /* where processors stop to look ahead */         \
        const narrow_bits_t low = *(const narrow_bits_t *)(b + k * HALF), high = low >> 16;        \
        _Pragma("GCC unroll 4") for (int q = 0; q < MASKS; ++q)                                    \
            _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i) {                                  \
          const narrow_words_t left = *(const narrow_words_t *)(a + i * ai + k * WORDS);           \
          sum[i][q] += left * NARROW_MASKED(low, first + q);                                       \
          sum[i][MASKS + q] += left * NARROW_MASKED(high, first + q);                              \
        }                                                                                          \
      }                                                                                            \
      _Pragma("GCC unroll 8") for (int v = 0; v < 2 * MASKS; ++v)                                  \
          _Pragma("GCC unroll 4") for (int i = 0; i < R; ++i) {                                    \
        const int q = first + v % MASKS;                                                           \
        float *const to = bits[i] + q % 2 * HALF + v / MASKS * 2 + q / 2;                          \
        for (int l = 0; l < WORDS; ++l) {                                                          \
          float total = 0;                                                                         \
          for (int r = 0; r < ROWS; ++r) total += sum[i][v][r * WORDS + l];                        \
          to[4 * l] = total * (1.0f / (1 << 4 * q));                                               \
        }                                                                                          \
      }                                                                                            \
    }                                                                                              \
    for (int i = 0; i < R; ++i)                                                                    \
      for (int l = 0; l < 2 * HALF; l += NARROW_LANES) {                                           \
        narrow_t *const to = (narrow_t *)(c + i * step + l);                                       \
        const float total = totals[i * groups];                                                    \
        const narrow_t scaled =                                                                    \
            (*(const narrow_t *)(bits[i] + l) - 8 * total) * *(const narrow_t *)(scales + l) +     \
            total * *(const narrow_t *)(zeros + l);                                                \
        *to = is_first ? scaled : *to + scaled;                                                    \
      }                                                                                            \
  }

/* Scales and zeros of some columns of a group; gives whether all of them are finite. */
INLINE int narrow_scales(const void *from, int64_t dtype, int64_t columns, float *scales,
                         float *zeros) {
  for (int64_t l = 0; l < columns; ++l) {
    scales[l] = narrow_element(from, 2 * l, dtype);
    zeros[l] = narrow_element(from, 2 * l + 1, dtype);
  }
  uint32_t most = 0;
  for (int64_t l = 0; l < columns; ++l) {
    const uint32_t x = bits_u32(scales[l]) & INT32_MAX, y = bits_u32(zeros[l]) & INT32_MAX;
    most = x > most ? x : most;
    most = y > most ? y : most;
  }
  return most < 0x7f800000;
}

/* The same for a block that is not whole, and for what is not finite: each weight is computed. */
static __attribute__((NARROW_CONTRACTED)) void narrow_any_nibbles(
    const float *a, int64_t ai, int64_t rows, const uint8_t *b, int64_t block, int64_t columns,
    int64_t depth, const float *scales, const float *zeros, float *c, int64_t step, int is_first) {
  if (is_first)
    for (int64_t l = 0; l < rows * step; ++l) c[l] = 0;
  const int64_t half = columns / 2;
  for (int64_t k = 0; k < depth; ++k, b += half) {
    float wide[64];
    for (int64_t l = 0; l < columns; ++l) {
      const int bits = columns == block ? b[l % half] >> l / half * 4 : b[l / 2] >> l % 2 * 4;
      wide[l] = (float)((bits & 15) - 8) * scales[l] + zeros[l];
    }
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t l = 0; l < columns; ++l) c[i * step + l] += a[i * ai + k * (block / 8)] * wide[l];
  }
}

INLINE int narrow_finite(const float *x, int64_t step, int64_t count) {
  int finite = 1;
  for (int64_t i = 0; i < count; ++i) finite &= (bits_u32(x[i * step]) & INT32_MAX) < 0x7f800000;
  return finite;
}

#define NARROW_FOUR_BITS(HALF)                                                                     \
  NARROW_NIBBLES(1, HALF) NARROW_NIBBLES(2, HALF) NARROW_NIBBLES(3, HALF) NARROW_NIBBLES(4, HALF)  \
  INLINE void narrow_four_bits_##HALF(const tenon_matmul_t *p, const tenon_four_bits_t *w,         \
                                      const float *a, int rows, int64_t number, int64_t first,     \
                                      int64_t columns, float *sums, int64_t step) {                \
    const uint8_t *b = (const uint8_t *)p->b + first * (p->k / 2);                                 \
    const int64_t groups = p->k / w->group, words = HALF / 4;                                      \
    float scales[2 * HALF], zeros[2 * HALF];                                                       \
    for (int64_t g = 0; g < groups; ++g, b += w->group * columns / 2) {                            \
      const float *const x = a + g * w->group * words;                                             \
      const float *const totals = a + rows * p->k * words + g;                                     \
      const int64_t of_number = p->dtype ? 2 : 4, next = 2 * 4 * p->n * of_number;                 \
      const char *const from = (const char *)w->scales + 2 * (g * p->n + first) * of_number;       \
      if (g + 4 < groups) /* too far apart for processors to look ahead */                         \
        for (int64_t l = 0; l < 2 * columns * of_number; l += 64) __builtin_prefetch(from + next + l); \
      const int finite = p->dtype == 0   ? narrow_scales(from, 0, columns, scales, zeros)          \
                         : p->dtype == 1 ? narrow_scales(from, 1, columns, scales, zeros)          \
                                         : narrow_scales(from, 2, columns, scales, zeros);         \
      const int whole = columns == 2 * HALF && w->group % (NARROW_WORDS / words) == 0;             \
      if (whole && finite && narrow_finite(totals, groups, rows))                                  \
        NARROW_TILES(narrow_nibbles_##HALF, rows,                                                  \
                     (x + i * p->k * words, p->k * words, b, w->group, scales, zeros, totals + i * groups, groups, \
                      sums + i * step, step, g == 0))                                              \
      else                                                                                         \
        narrow_any_nibbles(x, p->k * words, rows, b, 2 * HALF, columns, w->group, scales, zeros, sums,     \
                           step, g == 0);                                                          \
    }                                                                                              \
  }
NARROW_FOUR_BITS(16)
NARROW_FOUR_BITS(32)
#endif
