// The functions that Python calls.
//
// OpenMP's symbols are left open and resolved to the library that torch has loaded: two of them in one process compete
// for the cores.

#include "step.h"
#include "tiles.h"

#define PUBLIC extern "C" __attribute__((visibility("default")))

template <class W> static void multiply_all(Product job, int threads) {
    job.prepared = (char *)std::aligned_alloc(64, (W::bytes(job.rows, job.inner) + 63) / 64 * 64);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && job.rows > 4)
    for (long r = 0; r < job.rows; r++) W::prepare(job.x + r * job.inner, job.inner, job.prepared, r);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const long id = omp_get_thread_num(), count = omp_get_num_threads(), tiles = tiles_of(job);
        multiply_tiles<W>(job, tiles * id / count, tiles * (id + 1) / count);
    }
    std::free(job.prepared);
}

// bits: 32 or 16, rows of W; 8 or 4: tiles, with scales for ``size`` weights of a row, a multiple of BLOCK; 0: a row.
// tiled_from: rows of x from which the processor's tiles are used; 0: never.
PUBLIC void qkv_product(int bits, const void *weights, long stride, const uint16_t *scales, long groups, long size,
                        long tiled_from, const float *bias, const float *x, float *y, long rows, long inner, long outer,
                        int threads) {
    const Product job{bits,  (const char *)weights, scales, bias,         x,     y,          rows,
                      inner, outer,                 stride, groups, size / BLOCK, false, tiled_from, nullptr};
    with_tiles(job, rows, [&](auto format) { multiply_all<decltype(format)>(job, threads); });
}

// 1 if x is rounded to bf16 for weights in bf16, else 0.
PUBLIC const int qkv_rounds_to_bf16 = Bf16::ROUNDS;

// To *found: 1 if products can be computed in tiles here, else 0.
PUBLIC void qkv_tiles(int *found) { *found = tiles_permitted(); }

// y = φ(x) for ``count`` numbers; activation: one of ``Input``.
PUBLIC void qkv_activation(long activation, const float *x, float *y, long count, int threads) {
    constexpr long PART = 1 << 12;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < count; i += PART)
        mapped(x + i, std::min(PART, count - i), y + i,
               [&](long, Floats v) __attribute__((always_inline)) { return activated(v, activation); });
}

// New positions of ``rows`` rows, one span each, through ``count`` steps. buffers: of (vectors, width) numbers each; the
// first is the residual stream x, before and after, or, with an embedding, only after.
PUBLIC void qkv_step(const Step *steps, long count, float *const *buffers, const Span *spans, long rows,
                     const Store *stores, const Rotation *rotations, const Embedding *embedding, const long *tokens,
                     int threads) {
    std::vector<std::atomic<long>> taken(count);
    const long vectors = spans[rows - 1].first + spans[rows - 1].count;
    run_steps({steps, count, buffers, spans, rows, vectors, stores, rotations, embedding, tokens, taken.data()}, threads);
}
