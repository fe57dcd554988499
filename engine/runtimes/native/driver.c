/* Walks a program's tables with a pool of threads: one call a step, one parallel region, no allocation in it.

   Ops that need nothing from each other form a group. A thread joins the group that is due, claims chunks of its ops until
   none are left, and leaves; when the last one has left, the next group is due. So nobody waits for a thread that holds no
   work: where a busy neighbour keeps a worker off its processor, the others do its share. Waiting spins for a bounded time
   and then sleeps, so that the neighbour is not kept off its processor either. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

typedef struct { int32_t base, step; } egg_operand;
typedef struct { egg_kernel *fn; int32_t n_args, barrier; egg_operand *args; } egg_op;
typedef struct { int32_t iterations, n_ops; egg_op *ops; } egg_phase;
typedef struct { int32_t n_phases, reserved; egg_phase *phases; void **slots; } egg_program;

#define MAX_GROUP 256 /* ops of one group */
#define SPINS 4000    /* about 30 us */
#define ACTIVE 255u   /* the part of `due` that counts threads inside the group; all ones: the next group is being set up */

typedef struct { _Atomic long value; char pad[64 - sizeof(long)]; } claim_line;

typedef struct egg_pool egg_pool;
typedef struct { egg_pool *pool; int index; } worker_seat;

struct egg_pool {
  int threads;
  pthread_t *workers;
  worker_seat *seats;
  char *scratch;
  _Atomic uint32_t due;      /* number of the group that is due, times 256, plus the threads inside it */
  _Atomic uint32_t step;     /* counts steps: workers wait for it to change */
  _Atomic uint32_t sleepers; /* threads that wait in the kernel, for either */
  _Atomic int running;       /* a step's tables may be read */
  _Atomic int inside;        /* workers that may be reading them */
  _Atomic int stopping;
  const egg_program *program;
  const long *dims;
  double *seconds;
  claim_line claims[2][MAX_GROUP]; /* of the groups with even and odd numbers */
};

static void pause_briefly(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Until *word, without the bits in `ignored`, is no longer `old`. */
static void wait_for_change(egg_pool *pool, _Atomic uint32_t *word, uint32_t old, uint32_t ignored) {
  for (int spin = 0; spin < SPINS; spin++) {
    if ((atomic_load_explicit(word, memory_order_acquire) | ignored) != (old | ignored)) return;
    pause_briefly();
  }
  atomic_fetch_add(&pool->sleepers, 1);
  for (uint32_t now; ((now = atomic_load(word)) | ignored) == (old | ignored);) {
#if defined(__linux__)
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
#else
    usleep(50);
#endif
  }
  atomic_fetch_sub(&pool->sleepers, 1);
}

static void wake(egg_pool *pool, _Atomic uint32_t *word) {
#if defined(__linux__)
  if (atomic_load(&pool->sleepers)) syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL, NULL, 0);
#else
  (void)pool, (void)word;
#endif
}

/* Whether this thread is now inside group `number`; no if the group is done. */
static int join(egg_pool *pool, uint32_t number) {
  uint32_t due = atomic_load_explicit(&pool->due, memory_order_acquire);
  for (;;) {
    if (due >> 8 != number) return 0;
    if ((due & ACTIVE) == ACTIVE) {
      pause_briefly();
      due = atomic_load_explicit(&pool->due, memory_order_acquire);
    } else if (atomic_compare_exchange_weak_explicit(&pool->due, &due, due + 1, memory_order_acq_rel, memory_order_acquire)) {
      return 1;
    }
  }
}

/* Out of group `number`, all of whose work is claimed; the last one out makes the next group due. */
static void leave(egg_pool *pool, uint32_t number) {
  const uint32_t left = atomic_fetch_sub_explicit(&pool->due, 1, memory_order_acq_rel) - 1;
  uint32_t empty = number << 8;
  if (left != empty || !atomic_compare_exchange_strong(&pool->due, &empty, empty | ACTIVE)) return;
  for (int i = 0; i < MAX_GROUP; i++)
    if (atomic_load_explicit(&pool->claims[(number + 1) & 1][i].value, memory_order_relaxed))
      atomic_store_explicit(&pool->claims[(number + 1) & 1][i].value, 0, memory_order_relaxed);
    else
      break; /* the counters are used from the first on */
  atomic_store(&pool->due, (number + 1) << 8);
  wake(pool, &pool->due);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void walk(egg_pool *pool, int thread) {
  const egg_program *program = pool->program;
  egg_ctx ctx = {thread, pool->threads, NULL, pool->scratch + thread * EGG_SCRATCH};
  uint32_t group = 0;
  long first_op = 0;
  for (int p = 0; p < program->n_phases; first_op += program->phases[p++].n_ops) {
    const egg_phase *phase = &program->phases[p];
    for (int iteration = 0; iteration < phase->iterations; iteration++)
      for (int n = 0, end; n < phase->n_ops; n = end, group++) {
        for (end = n + 1; end < phase->n_ops && end - n < MAX_GROUP && !phase->ops[end - 1].barrier && !pool->seconds;) end++;
        const double start = pool->seconds && thread == 0 ? now() : 0;
        if (join(pool, group)) {
          for (int o = n; o < end; o++) {
            const egg_op *op = &phase->ops[o];
            void *args[op->n_args];
            for (int k = 0; k < op->n_args; k++) args[k] = program->slots[op->args[k].base + iteration * op->args[k].step];
            ctx.claim = &pool->claims[group & 1][o - n].value;
            op->fn(args, pool->dims, &ctx);
          }
          leave(pool, group);
        }
        wait_for_change(pool, &pool->due, group << 8, ACTIVE);
        if (pool->seconds && thread == 0) pool->seconds[first_op + n] += now() - start;
      }
  }
}

static void *work(void *argument) {
  const worker_seat *seat = argument;
  egg_pool *pool = seat->pool;
  for (uint32_t step = 0;;) {
    wait_for_change(pool, &pool->step, step, 0);
    step = atomic_load(&pool->step);
    if (atomic_load(&pool->stopping)) return NULL;
    atomic_fetch_add(&pool->inside, 1);
    if (atomic_load(&pool->running)) walk(pool, seat->index);
    atomic_fetch_sub(&pool->inside, 1);
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
  atomic_store(&pool->stopping, 1);
  atomic_fetch_add(&pool->step, 1);
  wake(pool, &pool->step);
  for (int i = 1; i < pool->threads; i++) pthread_join(pool->workers[i], NULL);
  free(pool->scratch);
  free(pool->workers);
  free(pool->seats);
  free(pool);
}

/* Times, with each op a group of its own, are added to seconds[op] where it is not NULL. */
void egg_run_timed(egg_pool *pool, const egg_program *program, const long *dims, double *seconds) {
  pool->program = program;
  pool->dims = dims;
  pool->seconds = seconds;
  for (int i = 0; i < MAX_GROUP; i++) atomic_store_explicit(&pool->claims[0][i].value, 0, memory_order_relaxed);
  for (int i = 0; i < MAX_GROUP; i++) atomic_store_explicit(&pool->claims[1][i].value, 0, memory_order_relaxed);
  atomic_store(&pool->due, 0);
  atomic_store(&pool->running, 1);
  atomic_fetch_add(&pool->step, 1);
  wake(pool, &pool->step);
  walk(pool, 0);
  /* The caller may free the tables: no worker may read them any more. */
  atomic_store(&pool->running, 0);
  for (int spin = 0; atomic_load(&pool->inside); spin++)
    if (spin < SPINS) pause_briefly();
    else sched_yield();
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
