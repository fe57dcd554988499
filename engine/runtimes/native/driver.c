/* Walks a program's tables with a pool of threads: one call a step, one parallel region, no allocation in it.

   Every thread runs every op and claims chunks of its work; where the tables say so, they meet at a barrier. Waiting
   spins for a bounded time and then sleeps, so that a busy neighbour on the machine does not lose whole time slices. */
#include "prelude.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

typedef struct { int32_t base, step; } egg_operand;
typedef struct { egg_kernel *fn; int32_t n_args, barrier; egg_operand args[16]; } egg_op;
typedef struct { int32_t iterations, n_ops; egg_op *ops; } egg_phase;
typedef struct { int32_t n_phases, reserved; egg_phase *phases; void **slots; } egg_program;

#define MAX_CLAIMS 1024 /* ops between two barriers */
#define SPINS 4000      /* about 30 us */

typedef struct { _Atomic long value; char pad[64 - sizeof(long)]; } claim_line;

typedef struct egg_pool egg_pool;
typedef struct { egg_pool *pool; int index; } worker_seat;

struct egg_pool {
  int threads;
  pthread_t *workers;
  worker_seat *seats;
  char *scratch;
  _Atomic uint32_t step;        /* counts steps: workers wait for it to change */
  _Atomic uint32_t generation;  /* counts barriers passed */
  _Atomic int arrived;
  _Atomic int inside;           /* workers that may still read the tables of this step */
  _Atomic int stopping;
  const egg_program *program;
  const long *dims;
  double *seconds;
  claim_line claims[MAX_CLAIMS];
};

static void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Until *word is no longer `old`. */
static void wait_for_change(_Atomic uint32_t *word, uint32_t old) {
  for (int spin = 0; spin < SPINS; spin++) {
    if (atomic_load_explicit(word, memory_order_acquire) != old) return;
    pause_briefly();
  }
  while (atomic_load_explicit(word, memory_order_acquire) == old) {
#if defined(__linux__)
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
#else
    usleep(50);
#endif
  }
}

static void change(_Atomic uint32_t *word) {
  atomic_fetch_add_explicit(word, 1, memory_order_release);
#if defined(__linux__)
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
#endif
}

/* All threads meet; the last to come makes `claims` counters ready for the ops that follow. */
static void meet(egg_pool *pool, int claims) {
  const uint32_t generation = atomic_load_explicit(&pool->generation, memory_order_acquire);
  if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) + 1 < pool->threads) {
    wait_for_change(&pool->generation, generation);
    return;
  }
  for (int i = 0; i < claims; i++) atomic_store_explicit(&pool->claims[i].value, 0, memory_order_relaxed);
  atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
  change(&pool->generation);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void walk(egg_pool *pool, int thread) {
  const egg_program *program = pool->program;
  egg_ctx ctx = {thread, pool->threads, NULL, pool->scratch + thread * EGG_SCRATCH};
  int since_barrier = 0;
  long first_op = 0;
  for (int p = 0; p < program->n_phases; p++) {
    const egg_phase *phase = &program->phases[p];
    for (int iteration = 0; iteration < phase->iterations; iteration++)
      for (int n = 0; n < phase->n_ops; n++) {
        const egg_op *op = &phase->ops[n];
        void *args[16];
        for (int k = 0; k < op->n_args; k++)
          args[k] = program->slots[op->args[k].base + iteration * op->args[k].step];
        const double start = pool->seconds && thread == 0 ? now() : 0;
        ctx.claim = &pool->claims[since_barrier++].value;
        op->fn(args, pool->dims, &ctx);
        if (op->barrier || pool->seconds || since_barrier == MAX_CLAIMS) {
          meet(pool, since_barrier);
          since_barrier = 0;
        }
        if (pool->seconds && thread == 0) pool->seconds[first_op + n] += now() - start;
      }
    first_op += phase->n_ops;
  }
  if (since_barrier) meet(pool, since_barrier);
}

static void *work(void *argument) {
  const worker_seat *seat = argument;
  egg_pool *pool = seat->pool;
  for (uint32_t step = 0;; step++) {
    wait_for_change(&pool->step, step);
    if (atomic_load_explicit(&pool->stopping, memory_order_acquire)) return NULL;
    walk(pool, seat->index);
    atomic_fetch_sub_explicit(&pool->inside, 1, memory_order_release);
  }
}

egg_pool *egg_pool_new(int threads) {
  egg_pool *pool = calloc(1, sizeof *pool);
  if (!pool) return NULL;
  pool->threads = threads;
  pool->scratch = aligned_alloc(64, (size_t)threads * EGG_SCRATCH);
  pool->workers = calloc((size_t)threads, sizeof *pool->workers);
  pool->seats = calloc((size_t)threads, sizeof *pool->seats);
  if (!pool->scratch || !pool->workers || !pool->seats) return NULL;
  for (int i = 1; i < threads; i++) {
    pool->seats[i].pool = pool;
    pool->seats[i].index = i;
    if (pthread_create(&pool->workers[i], NULL, work, &pool->seats[i])) return NULL;
  }
  return pool;
}

void egg_pool_free(egg_pool *pool) {
  atomic_store_explicit(&pool->stopping, 1, memory_order_release);
  change(&pool->step);
  for (int i = 1; i < pool->threads; i++) pthread_join(pool->workers[i], NULL);
  free(pool->scratch);
  free(pool->workers);
  free(pool->seats);
  free(pool);
}

/* Times, with a barrier after each op, are added to seconds[op] where it is not NULL. */
void egg_run_timed(egg_pool *pool, const egg_program *program, const long *dims, double *seconds) {
  pool->program = program;
  pool->dims = dims;
  pool->seconds = seconds;
  atomic_store_explicit(&pool->inside, pool->threads - 1, memory_order_relaxed);
  if (pool->threads > 1) change(&pool->step);
  walk(pool, 0);
  /* The caller may free the tables: wait for the workers to be done with them. */
  while (atomic_load_explicit(&pool->inside, memory_order_acquire)) pause_briefly();
}

void egg_run(egg_pool *pool, const egg_program *program, const long *dims) {
  egg_run_timed(pool, program, dims, NULL);
}

/* Zeroed memory in huge pages where the system has them. */
void *egg_alloc(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
#if defined(MADV_HUGEPAGE)
  if (bytes >= (2u << 20)) madvise(p, bytes, MADV_HUGEPAGE);
#endif
  return p;
}

void egg_free(void *p, size_t bytes) { munmap(p, bytes); }

/* Sweep a buffer that is larger than any cache. */
void egg_flush_cache(egg_pool *pool) {
  static char *buffer;
  const size_t size = 64u << 20;
  (void)pool;
  if (!buffer) buffer = egg_alloc(size);
  if (!buffer) return;
  for (size_t i = 0; i < size; i += 64) buffer[i]++;
}
