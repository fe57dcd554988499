
/* All rows times all blocks. */
void NAME(void *const *a, const long *dims, egg_ctx *ctx) {
  const long rows = M, blocks = (N + 7) / 8 * STREAMS, share = CAT(NAME, _share)(rows);
  (void)dims;
  for (long c; (c = egg_claim(ctx)) * share < blocks;)
    CAT(NAME, _product)(a, rows, c * share, (c + 1) * share < blocks ? (c + 1) * share : blocks, ctx);
}
