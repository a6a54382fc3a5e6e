/* What kernels call in a program without Python and PyTorch: instead of an OpenMP runtime the
 * threads of who loads them, and for products of matrices the generated driver. */
#include <stddef.h>

typedef struct {
  size_t size;
  /* Runs work(data) for each of so many threads, or shares; 0: on as many as there are. */
  void (*parallel)(void (*work)(void *), void *data, unsigned threads);
  int (*thread_number)(void); /* in `parallel`: of the thread that asks; else 0 */
  int (*threads)(void);       /* in `parallel`: how many there are; else 1 */
  int (*most_threads)(void);
} tenon_host_t;

const tenon_host_t *tenon_host; /* set when the object is loaded */

typedef struct {
  size_t size;
  void *context;
  /* 0: it is done, with what is fused with it; else nothing is. */
  int32_t (*multiply)(void *context, const tenon_host_t *host, const void *product, size_t nbytes);
} tenon_products_t;

/* Set when the object is loaded, where something else is to multiply. */
const tenon_products_t *tenon_products;

/* What gcc makes of its parallel loops. */
void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags) {
  (void)flags;
  tenon_host->parallel(work, data, threads);
}
int omp_get_thread_num(void) { return tenon_host->thread_number(); }
int omp_get_num_threads(void) { return tenon_host->threads(); }
int omp_get_max_threads(void) { return tenon_host->most_threads(); }

/* Parts of a convolution pack nothing, so there are more of them than threads, where a part is still
 * long: a processor that others use as well, or a slower one, does fewer of them. */
enum { PARTS = 4, LONG = 1 << 21 };
static int64_t parts_of(const tenon_matmul_t *p) {
  if (tenon_matmul_is_small(p)) return 1;
  const int64_t threads = tenon_host->most_threads();
  const double each = (double)p->batch * (double)p->m * (double)p->n * (double)p->k / (double)threads;
  if (p->places == NULL || threads == 1 || each < 2. * LONG) return threads;
  return threads * (each < (double)PARTS * LONG ? (int64_t)(each / LONG) : PARTS);
}
void tenon_generated_matmul(const tenon_matmul_t *);
static void multiply(const tenon_matmul_t *given) {
  const tenon_products_t *other = tenon_products;
  if (other && other->multiply(other->context, tenon_host, given, sizeof(*given)) == 0) return;
  tenon_matmul_t product = *given;
  product.threads = parts_of(given);
  tenon_generated_matmul(&product);
}
void *tenon_matmul = multiply;
