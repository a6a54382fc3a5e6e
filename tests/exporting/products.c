/* A library that multiplies for a program: products of float32 whose weights lie in panels, element
 * by element. Compiled with REFUSES it does none, with OTHER_VERSION it does not open. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tenon.h"
#include "matmul.h"

typedef struct {
  tenon_products_t table;
  int done, refused;
  char text[100];
} opened_t;

typedef struct {
  const tenon_matmul_t *p;
  const tenon_host_t *host;
} job_t;

/* Every thread does some of the rows, each as a piece. */
static void rows(void *data) {
  const job_t *job = data;
  const tenon_matmul_t *p = job->p;
  float *row = malloc((size_t)p->n * sizeof(float));
  for (int64_t i = job->host->thread_number(); i < p->m; i += job->host->threads()) {
    for (int64_t j = 0; j < p->n; ++j) {
      const float *panel = (const float *)p->b + j / TENON_PANEL * TENON_PANEL * p->k;
      const float *a = (const float *)p->a + i * p->a_strides[1];
      row[j] = 0;
      for (int64_t k = 0; k < p->k; ++k)
        row[j] += a[k * p->a_strides[2]] * panel[k * TENON_PANEL + j % TENON_PANEL];
    }
    if (p->c != NULL && (p->kept || p->epilogue == NULL))
      memcpy((float *)p->c + i * p->c_strides[1], row, (size_t)p->n * sizeof(float));
    const int64_t box[5] = {i, i + 1, 0, p->n, 0};
    if (p->epilogue != NULL)
      p->epilogue(row, p->n, box, p->arguments, p->sizes, p->status);
  }
  free(row);
}

static int32_t multiply(
    void *context, const tenon_host_t *host, const void *product, size_t nbytes) {
  opened_t *opened = context;
  const tenon_matmul_t *p = product;
#ifndef REFUSES
  if (nbytes == sizeof(*p) && p->panels && p->places == NULL && p->batch == 1) {
    job_t job = {p, host};
    host->parallel(rows, &job, 0);
    ++opened->done;
    return 0;
  }
#endif
  (void)host, (void)nbytes, (void)p;
  ++opened->refused;
  return 1;
}

static const char *facts(void *context) {
  opened_t *opened = context;
  snprintf(
      opened->text,
      sizeof(opened->text),
      "{\"done\": %d, \"refused\": %d}",
      opened->done,
      opened->refused);
  return opened->text;
}

__attribute__((visibility("default"))) int closed;
static void close_it(void *context) {
  free(context);
  ++closed;
}

int32_t tenon_open_products(
    uint32_t interface, const tenon_products_t **found, tenon_status *status) {
#ifdef OTHER_VERSION
  const int is_ours = 0;
#else
  const int is_ours = interface == TENON_INTERFACE;
#endif
  if (!is_ours) {
    status->code = TENON_UNSUPPORTED;
    strcpy(status->text, "it is for another version");
    return status->code;
  }
  opened_t *opened = calloc(1, sizeof(opened_t));
  opened->table = (tenon_products_t){sizeof(tenon_products_t), opened, multiply, facts, close_it};
  *found = &opened->table;
  return TENON_OK;
}
