/* What every generated kernel may use is in the headers of `prelude.py`, this one first: a kernel's context. */
#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define EGG_CAT_(a, b) a##b
#define EGG_CAT(a, b) EGG_CAT_(a, b)
#define CAT(a, b) EGG_CAT(a, b)

/* Before a loop of few iterations whose arrays must stay in registers. */
#define EGG_UNROLL _Pragma("GCC unroll 16")

#define EGG_INLINE static inline __attribute__((always_inline))

/* One thread's view of the running op. */
typedef struct egg_ctx {
  int thread, threads;
  _Atomic long *claim; /* chunks of this op that are already taken */
  void *scratch;       /* EGG_SCRATCH bytes of this thread, 64-byte aligned */
} egg_ctx;

#define EGG_SCRATCH (2L << 20)

typedef void egg_kernel(void *const *a, const long *dims, egg_ctx *ctx);

/* The next chunk of the op's work that no thread has taken. */
static inline long egg_claim(egg_ctx *ctx) {
  return atomic_fetch_add_explicit(ctx->claim, 1, memory_order_relaxed);
}
