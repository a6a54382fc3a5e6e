/* A vector machine with a scratchpad, which a DMA engine fills: its memory, and its cycles.
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
  PENDING = 64   /* copies that are started at once */
};

typedef struct {
  char *array, *to;
  const char *from;
  int64_t to_steps[2], from_steps[2], rows, columns, nbytes, arrival;
} copy;

typedef struct {
  int64_t cycles;  /* in all */
  int64_t waiting; /* ... of them, in which the vector unit waited for a copy */
  int64_t copying; /* in which the DMA engine moved something */
  int64_t copies;  /* blocks */
  int64_t alone;   /* numbers that were read from memory by themselves */
} counters;

_Alignas(64) char machine_scratch[1 << 16];
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
  }
  pending = left;
}

/* What the engine writes is of no use before the wait; what it reads is read then. */
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
    int64_t nbytes) {
  copy c = {
      array, to, from, {to_down, to_across}, {from_down, from_across}, rows, columns, nbytes, 0};
  if (rows <= 0 || columns <= 0)
    return;
  const char *last = element(&c, rows - 1, columns - 1) + nbytes;
  if (pending == PENDING || c.to < machine_scratch ||
      last > machine_scratch + sizeof(machine_scratch)) {
    fprintf(stderr, "the machine has no room for a copy\n");
    abort();
  }
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      memset(element(&c, row, column), 0xA5, nbytes);
  const int64_t start = engine > counted.cycles ? engine : counted.cycles;
  engine = start + beats_of(&c);
  c.arrival = engine + LATENCY;
  counted.copying += engine - start;
  counted.copies += 1;
  started[pending++] = c;
}
