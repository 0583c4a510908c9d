// Entry points that Python calls.
//
// OpenMP is not linked: its symbols resolve to the OpenMP library that torch has loaded, since two OpenMP libraries in
// one process compete for the cores.

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

// y = x W^T + b. bits: 32 or 16: W is stored in rows; 8 or 4: W is stored in tiles, with a scale per ``size`` weights
// of a row, a multiple of BLOCK, in bf16 or, if ``half`` is not 0, in fp16, and a minimum if ``minimums`` is not null;
// size 0: one scale per row. levels: 16 numbers of which 4-bit weights are indices, or null. tiled_from: rows of x from
// which AMX tiles are used, or 0.
PUBLIC void qkv_product(int bits, const void *weights, long stride, const uint16_t *scales, const uint16_t *minimums,
                        const int8_t *levels, int half, long groups, long size, long tiled_from, const float *bias,
                        const float *x, float *y, long rows, long inner, long outer, int threads) {
    const Product job{bits,  (const char *)weights, scales, minimums, levels,       bias,      x,     y,          rows,
                      inner, outer,                 stride, groups,   size / BLOCK, half != 0, false, tiled_from, nullptr};
    with_tiles(job, rows, [&](auto format) { multiply_all<decltype(format)>(job, threads); });
}

// 1 if x is rounded to bf16 for weights in bf16, else 0.
PUBLIC const int qkv_rounds_to_bf16 = Bf16::ROUNDS;

// Set *found to 1 if products can use AMX tiles here, else to 0.
PUBLIC void qkv_tiles(int *found) { *found = tiles_permitted(); }

// y = φ(x) for ``count`` numbers; activation: a value of the enum ``Input``.
PUBLIC void qkv_activation(long activation, const float *x, float *y, long count, int threads) {
    constexpr long PART = 1 << 12;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < count; i += PART)
        mapped(x + i, std::min(PART, count - i), y + i,
               [&](long, Floats v) __attribute__((always_inline)) { return activated(v, activation); });
}

// Run ``count`` steps for the new positions of ``rows`` rows, given by one span per row. buffers: (vectors, width)
// numbers each; the first is the residual stream x, as output, and without an embedding also as input.
PUBLIC void qkv_step(const Step *steps, long count, float *const *buffers, const Span *spans, long rows,
                     const Store *stores, const Rotation *rotations, const Embedding *embedding, const long *tokens,
                     int threads) {
    std::vector<std::atomic<long>> taken(count);
    const long vectors = spans[rows - 1].first + spans[rows - 1].count;
    run_steps({steps, count, buffers, spans, rows, vectors, stores, rotations, embedding, tokens, taken.data()}, threads);
}
