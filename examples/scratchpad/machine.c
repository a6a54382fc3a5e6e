/* A machine with a scratchpad, which a DMA engine fills, and a vector and a matrix unit, which read
 * it: their memory, and their cycles.
 *
 * Kernels run as functions of the host. What takes cycles on the machine is told here. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  LANES = 16,    /* numbers in a vector */
  BEAT = 16,     /* bytes that cross the bus in a cycle */
  LATENCY = 100, /* cycles from a copy's last beat until the vector unit may read it */
  ALONE = 40,    /* cycles for a number that is read from memory by itself */
  PENDING = 64,  /* copies that are started at once */
  SIDE = 16      /* rows and columns of a tile of sums, and cycles for a product of two tiles */
};

typedef struct {
  char *array, *to;
  const char *from;
  int64_t to_steps[2], from_steps[2], rows, columns, nbytes, filled[2], arrival;
} copy;

typedef struct {
  int64_t cycles;      /* in all */
  int64_t waiting;     /* ... of them, in which the vector unit waited for a copy */
  int64_t copying;     /* in which the DMA engine moved something */
  int64_t copies;      /* blocks */
  int64_t alone;       /* numbers that were read from memory by themselves */
  int64_t multiplying; /* of the cycles, those of the matrix unit */
} counters;

_Alignas(64) char machine_scratch[1 << 16];
_Alignas(64) char machine_sums[1 << 16]; /* what the matrix unit adds up */
static counters counted;
static copy started[PENDING];
static int pending;
static int64_t engine; /* the cycle from which the DMA engine is free */

void machine_counted(counters *found) {
  *found = counted;
  memset(&counted, 0, sizeof(counted));
  engine = 0;
}

/* Statements for one number, or for a vector of them at a time; what is written crosses the bus. */
void machine_spend(int64_t count, int64_t statements, int64_t alone, int64_t written) {
  if (count <= 0)
    return;
  counted.cycles += (count + LANES - 1) / LANES * statements + count * alone * ALONE;
  counted.cycles += (count * written + BEAT - 1) / BEAT;
  counted.alone += count * alone;
}

static int64_t beats(int64_t nbytes) {
  return (nbytes + BEAT - 1) / BEAT;
}

/* Neighbours in memory cross the bus together. */
static int64_t beats_of(const copy *c) {
  const int64_t down = c->from_steps[0], across = c->from_steps[1];
  if (across == 1 && (down == c->columns || c->rows == 1))
    return beats(c->rows * c->columns * c->nbytes);
  if (across == 1)
    return c->rows * beats(c->columns * c->nbytes);
  return down == 1 ? c->columns * beats(c->rows * c->nbytes) : c->rows * c->columns;
}

static char *element(const copy *c, int64_t row, int64_t column) {
  return c->to + (row * c->to_steps[0] + column * c->to_steps[1]) * c->nbytes;
}

void machine_wait(void *array) {
  int left = 0;
  for (int k = 0; k < pending; ++k) {
    const copy *c = &started[k];
    if (c->array != array) {
      started[left++] = *c;
      continue;
    }
    if (c->arrival > counted.cycles) {
      counted.waiting += c->arrival - counted.cycles;
      counted.cycles = c->arrival;
    }
    for (int64_t row = 0; row < c->rows; ++row)
      for (int64_t column = 0; column < c->columns; ++column) {
        const int64_t from = row * c->from_steps[0] + column * c->from_steps[1];
        memcpy(element(c, row, column), c->from + from * c->nbytes, c->nbytes);
      }
    for (int64_t row = 0; row < c->filled[0]; ++row)
      for (int64_t column = 0; column < c->filled[1]; ++column)
        if (row >= c->rows || column >= c->columns)
          memset(element(c, row, column), 0, c->nbytes);
  }
  pending = left;
}

static int64_t greater(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static void stop(const char *why) {
  fprintf(stderr, "%s\n", why);
  abort();
}

static void look(const void *from, const void *to, const char *memory) {
  if ((const char *)from < memory || (const char *)to > memory + (1 << 16))
    stop("the machine has no memory there");
}

/* What the engine writes is of no use before the wait; what it reads is read then. Zeros do not
 * cross the bus. */
void machine_start(
    void *array,
    void *to,
    int64_t to_down,
    int64_t to_across,
    const void *from,
    int64_t from_down,
    int64_t from_across,
    int64_t rows,
    int64_t columns,
    int64_t nbytes,
    int64_t filled_rows,
    int64_t filled_columns) {
  copy c = {
      array,
      to,
      from,
      {to_down, to_across},
      {from_down, from_across},
      rows,
      columns,
      nbytes,
      {filled_rows, filled_columns},
      0};
  if (rows <= 0 || columns <= 0)
    return;
  const int64_t below = greater(rows, filled_rows), beyond = greater(columns, filled_columns);
  if (pending == PENDING)
    stop("the machine has no room for a copy");
  look(to, element(&c, below - 1, beyond - 1) + nbytes, machine_scratch);
  for (int64_t row = 0; row < below; ++row)
    for (int64_t column = 0; column < beyond; ++column)
      memset(element(&c, row, column), 0xA5, nbytes);
  const int64_t start = engine > counted.cycles ? engine : counted.cycles;
  engine = start + beats_of(&c);
  c.arrival = engine + LATENCY;
  counted.copying += engine - start;
  counted.copies += 1;
  started[pending++] = c;
}

static float number(const void *from, int64_t element, int64_t nbytes) {
  if (nbytes == 4)
    return ((const float *)from)[element];
  const uint32_t bits = (uint32_t)((const uint16_t *)from)[element] << 16;
  float found;
  memcpy(&found, &bits, sizeof(found));
  return found;
}

static float sum_of_floats(
    float sum,
    const void *left,
    const void *right,
    int64_t left_step,
    int64_t right_step,
    int64_t depth,
    int64_t nbytes) {
  for (int64_t k = 0; k < depth; ++k)
    sum += number(left, k * left_step, nbytes) * number(right, k * right_step, nbytes);
  return sum;
}

/* It wraps. */
static uint32_t sum_of_bytes(
    uint32_t sum,
    const int8_t *left,
    const int8_t *right,
    int64_t left_step,
    int64_t right_step,
    int64_t depth) {
  for (int64_t k = 0; k < depth; ++k)
    sum += (uint32_t)(left[k * left_step] * right[k * right_step]);
  return sum;
}

/* Adds the product of two tiles to a tile of sums, which begin with it where nothing was added
 * before. Numbers of one byte are int8 and have sums of int32, others are bfloat16 or float32. */
void machine_multiply(
    void *sums,
    int64_t down,
    int64_t across,
    const void *left,
    int64_t left_down,
    int64_t left_across,
    const void *right,
    int64_t right_down,
    int64_t right_across,
    int64_t before,
    int64_t depth,
    int64_t nbytes) {
  const int64_t end = SIDE - 1, last = depth - 1;
  const int64_t left_end = end * left_down + last * left_across;
  const int64_t right_end = last * right_down + end * right_across;
  look(sums, (const uint32_t *)sums + end * (down + across) + 1, machine_sums);
  look(left, (const char *)left + (left_end + 1) * nbytes, machine_scratch);
  look(right, (const char *)right + (right_end + 1) * nbytes, machine_scratch);
  for (int64_t i = 0; i < SIDE; ++i)
    for (int64_t j = 0; j < SIDE; ++j) {
      const int64_t at = i * down + j * across;
      const char *row = (const char *)left + i * left_down * nbytes;
      const char *column = (const char *)right + j * right_across * nbytes;
      if (nbytes == 1) {
        uint32_t *sum = (uint32_t *)sums + at;
        *sum = sum_of_bytes(
            before ? *sum : 0,
            (const int8_t *)row,
            (const int8_t *)column,
            left_across,
            right_down,
            depth);
      } else {
        float *sum = (float *)sums + at;
        *sum = sum_of_floats(
            before ? *sum : 0, row, column, left_across, right_down, depth, nbytes);
      }
    }
  counted.cycles += SIDE;
  counted.multiplying += SIDE;
}
