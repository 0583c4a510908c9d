// A decoding step: a few new positions of some rows pass through all blocks of a model, as a list of products, norms
// and attentions, run by one team of threads. Inputs are vectors or tokens, outputs are vectors or logits. Buffers have
// one vector per new position, row by row.
//
// Each thread computes a part of the outputs of a product, or the attention of some heads. Each thread prepares the
// whole input of a product itself: norms and activations of a few thousand numbers take less time than waiting for
// other threads.

#pragma once

#include <atomic>
#include <cmath>
#include <omp.h>
#include <vector>

#include "attend.h"
#include "tiles.h"

// In the order of ``INPUTS`` in step.py.
enum Input { AS_IT_IS, LAYER_NORM, RMS_NORM, RELU, RELU2, GELU, GELU_TANH, SILU, QUICK_GELU };

// A product; attention if ``heads`` is not 0; only the input function if the product has no weights. ``from`` and
// ``to`` are buffer indices; buffer 0 is the residual stream x. Attention reads concatenated queries, keys and values;
// that to a memory, whose store has ``lengths``, reads queries only.
struct Step {
    Product product;  // without x, y, rows
    long input;       // function applied to the product's input, an ``Input``
    long gated;       // true: the input is (a, b), and input(a) ⊙ b is multiplied
    const float *norm_weight, *norm_bias;  // null: none
    double eps;
    long from, to;
    long heads, kv_heads, key_width, value_width;
    double scale;
    long rotation;  // index of the rotation of queries and keys, or -1
    const float *query_bias, *value_bias;  // added where the product has no bias of its own, because keys have none; null: none
};

// Rotation (RoPE) of queries and keys: cosines and sines (number, rotated). Vector v uses row v mod ``number``.
struct Rotation {
    const float *cosines, *sines;
    long rotated, number;
};

// New positions of a row: ``count`` vectors from vector ``first`` on, which follow ``past`` cached positions.
struct Span {
    long first, count, past;
};

// Input of the blocks: E[token] from a table in 32, 16 or 8 bits, plus a position vector if ``positions`` is not null.
// positions: (rows, width); position p reads row ``offset`` + p.
struct Embedding {
    Product table;
    const float *positions;
    long offset;
};

// KV cache of one attention: contiguous (rows, heads, capacity, width), or page addresses (rows, row_pages). A page
// holds ``capacity`` positions: keys (heads, capacity, width), then values.
struct Store {
    float *keys, *values;
    float *const *pages;  // null: none
    long row_pages, capacity;
    const long *lengths;  // (rows): positions of a memory, which is only read; null: the cache of a self-attention

    Held held(const Step &step, long row, long group) const {
        const long to_key = capacity * step.key_width, to_value = capacity * step.value_width;
        const long first = pages ? group : row * step.kv_heads + group;
        if (!pages) return {keys + first * to_key, values + first * to_value, nullptr, 0, 0, 0, to_key, to_value};
        return {nullptr, nullptr, pages + row * row_pages, capacity, first * to_key,
                step.kv_heads * to_key + first * to_value, to_key, to_value};
    }
};

struct Scratch {
    std::vector<float> queries, scores, sum;
};

static INLINE Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

// The error function with an error below 2e-7 (Abramowitz and Stegun 1964, 7.1.26).
static INLINE Floats error_function(Floats x) {
    const Floats size = either(x < 0.0f, -x, x), t = 1.0f / (1.0f + 0.3275911f * size);
    Floats p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const Floats found = 1.0f - p * t * exponential(-size * size);
    return either(x < 0.0f, -found, found);
}

static INLINE Floats activated(Floats x, long input) {
    switch (input) {
    case RELU: return either(x < 0.0f, Floats{}, x);
    case RELU2: x = either(x < 0.0f, Floats{}, x); return x * x;
    case GELU: return 0.5f * x * (1.0f + error_function(x * 0.70710678f));
    case GELU_TANH: return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
    case SILU: return x * sigmoid(x);
    case QUICK_GELU: return x * sigmoid(1.702f * x);
    default: return x;
    }
}

// Compute the input of a product from one row of the buffer, with norm or activation.
static void read_input(const Step &step, const float *x, float *to) {
    const long count = step.product.inner;
    if (step.input == LAYER_NORM || step.input == RMS_NORM) {
        if (step.input == LAYER_NORM) {
            Floats sum = {};
            vectors_of(x, count, [&](long, Floats v) __attribute__((always_inline)) { sum += v; });
            const float mean = total(sum) / count;
            mapped(x, count, to, [&](long, Floats v) __attribute__((always_inline)) { return v - mean; });
            x = to;
        }
        const float factor = (float)(1.0 / std::sqrt((double)dot(x, x, count) / count + step.eps));
        const float *const weight = step.norm_weight, *const bias = step.norm_bias;
        mapped(x, count, to, [&](long i, Floats v) __attribute__((always_inline)) {
            v *= factor;
            if (weight) v *= vector_at(weight, i, count);
            return bias ? v + vector_at(bias, i, count) : v;
        });
    } else {
        mapped(x, count, to, [&](long i, Floats v) __attribute__((always_inline)) {
            v = activated(v, step.input);
            return step.gated ? v * vector_at(x + count, i, count) : v;
        });
    }
}

// Apply RoPE to vector ``number``: rotate pairs (i, i + rotated / 2) of the first features. by: null for a plain copy.
static void rotate(const float *x, long width, const Rotation *by, long number, float *to) {
    const long rotated = by ? by->rotated : 0, half = rotated / 2, from = by ? number % by->number * rotated : 0;
    for (long i = 0; i < half; i++) {
        to[i] = x[i] * by->cosines[from + i] - x[i + half] * by->sines[from + i];
        to[i + half] = x[i + half] * by->cosines[from + i + half] + x[i] * by->sines[from + i + half];
    }
    std::memcpy(to + rotated, x + rotated, (width - rotated) * sizeof *x);
}

// to = x + bias; bias: null for none.
static void add_bias(const float *x, const float *bias, long width, float *to) {
    for (long i = 0; i < width; i++) to[i] = x[i] + (bias ? bias[i] : 0.0f);
}

// For one row and ``groups`` key heads of a memory of ``length`` positions: attend from the query heads that read these
// key heads.
static void attend_memory(const Step &step, const Store &store, const float *from, float *to, long row, const Span &span,
                          long group, long groups, Scratch &scratch) {
    const long width = step.key_width, value_width = step.value_width, share = step.heads / step.kv_heads;
    const long heads = groups * share, first = group * share, whole = step.heads * value_width, length = store.lengths[row];
    float *const out = to + span.first * whole + first * value_width;
    if (!length) {
        for (long n = 0; n < span.count; n++) std::memset(out + n * whole, 0, heads * value_width * sizeof *out);
        return;
    }
    scratch.queries.resize(heads * span.count * width);
    for (long n = 0; n < span.count; n++)
        for (long i = 0; i < heads; i++)
            std::memcpy(scratch.queries.data() + (i * span.count + n) * width,
                        from + ((span.first + n) * step.heads + first + i) * width, width * sizeof *from);
    attend({width, value_width, (float)step.scale, 0, nullptr, nullptr}, store.held(step, row, group),
           {scratch.queries.data(), heads, share, span.count, first, length - 1, length, out, value_width, whole},
           scratch.scores);
}

// For one row and ``groups`` key heads: store the new keys and values, and attend from the query heads that read these
// key heads.
static void attend_groups(const Step &step, const Store &store, const Rotation *by, const float *from, float *to, long row,
                          const Span &span, long group, long groups, Scratch &scratch) {
    const long width = step.key_width, value_width = step.value_width, share = step.heads / step.kv_heads;
    const long heads = groups * share, first = group * share, whole = step.heads * value_width;
    const Held held = store.held(step, row, group);
    scratch.queries.resize(heads * span.count * width);
    float *const q = scratch.queries.data();
    for (long n = 0; n < span.count; n++) {
        const long vector = span.first + n;
        const float *const own = from + vector * ((step.heads + step.kv_heads) * width + step.kv_heads * value_width);
        const float *const new_keys = own + (step.heads + group) * width;
        const float *const new_values = own + (step.heads + step.kv_heads) * width + group * value_width;
        float *const key = held.key(span.past + n, width), *const value = held.value(span.past + n, value_width);
        for (long g = 0; g < groups; g++) {
            const float *const biases = step.value_bias ? step.value_bias + (group + g) * value_width : nullptr;
            rotate(new_keys + g * width, width, by, vector, key + g * held.to_key);
            add_bias(new_values + g * value_width, biases, value_width, value + g * held.to_value);
        }
        for (long i = 0; i < heads; i++) {
            const float *query = own + (first + i) * width;
            if (step.query_bias) {
                scratch.sum.resize(width);
                add_bias(query, step.query_bias + (first + i) * width, width, scratch.sum.data());
                query = scratch.sum.data();
            }
            rotate(query, width, by, vector, q + (i * span.count + n) * width);
        }
    }
    attend({width, value_width, (float)step.scale, 0, nullptr, nullptr}, held,
           {q, heads, share, span.count, first, span.past, span.past + span.count,
            to + span.first * whole + first * value_width, value_width, whole},
           scratch.scores);
}

struct Team {
    const Step *steps;
    long count;
    float *const *buffers;
    const Span *spans;    // (rows)
    long rows, vectors;   // vectors: number of new positions of all rows
    const Store *stores;  // one for each attention, in order
    const Rotation *rotations;
    const Embedding *embedding;  // null: the stream holds the input of the blocks
    const long *tokens;          // (vectors): token ids for the embedding
    std::atomic<long> *taken;    // per step: number of dynamically scheduled tiles that threads have taken
};

// Compute one thread's part of an attention: key heads of some rows, with about the same number of scores per thread.
static void attend_part(const Team &team, const Step &step, const Store &store, Scratch &scratch, long id, long threads) {
    const auto scores = [&](long row) {
        const Span &span = team.spans[row];
        return span.count * (store.lengths ? std::max(store.lengths[row], 1L) : span.past + span.count);
    };
    long whole = 0, at = 0;  // number of scores of all key heads: in all rows, in the rows before ``row``
    for (long row = 0; row < team.rows; row++) whole += scores(row) * step.kv_heads;
    for (long row = 0; row < team.rows; row++) {
        const long each = scores(row);
        if (!each) continue;
        // Index of the first head whose middle lies after the scores of all threads before ``thread``.
        const auto first = [&](long thread) {
            const long half = (2 * (whole * thread / threads - at) + each - 1) / (2 * each);
            return std::min(std::max(half, 0L), step.kv_heads);
        };
        const long end = first(id + 1);
        for (long group = first(id); group < end;) {
            const long count = store.pages ? end - group : 1;
            const float *const from = team.buffers[step.from];
            float *const to = team.buffers[step.to];
            if (store.lengths)
                attend_memory(step, store, from, to, row, team.spans[row], group, count, scratch);
            else
                attend_groups(step, store, step.rotation < 0 ? nullptr : team.rotations + step.rotation, from, to, row,
                              team.spans[row], group, count, scratch);
            group += count;
        }
        at += each * step.kv_heads;
    }
}

// Buffers in which one thread prepares the input vectors of a product.
struct Prepared {
    std::vector<float> row;
    char *rows;

    explicit Prepared(const Team &team) {
        long inner = 0, bytes = 0;
        for (long i = 0; i < team.count; i++) {
            const Product &job = team.steps[i].product;
            inner = std::max(inner, job.inner);
            with_tiles(job, team.vectors, [&](auto format) {
                bytes = std::max(bytes, decltype(format)::bytes(team.vectors, job.inner));
            });
        }
        row.resize(inner);
        rows = (char *)std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    }
    ~Prepared() { std::free(rows); }
};

// Compute one thread's part of a product: an equal share of most tiles, scheduled statically. The last tiles are
// scheduled dynamically, since cores do not read memory equally fast.
static void multiply_part(const Team &team, const Step &step, Prepared &prepared, long id, long threads) {
    constexpr long SHARED = 16, TURNS = 2;  // one tile of sixteen is scheduled dynamically, in two turns per thread
    with_tiles(step.product, team.vectors, [&](auto format) {
        using W = decltype(format);
        Product job = step.product;
        const long tiles = tiles_of(job);
        job.rows = team.vectors, job.y = team.buffers[step.to], job.prepared = prepared.rows;
        for (long r = 0; r < team.vectors; r++) {
            const float *x = team.buffers[step.from] + r * job.inner * (step.gated ? 2 : 1);
            if (step.input != AS_IT_IS || step.gated) {
                read_input(step, x, prepared.row.data());
                x = prepared.row.data();
            }
            W::prepare(x, job.inner, job.prepared, r);
        }
        const long fixed = threads > 1 ? tiles - tiles / SHARED : tiles;
        const long turn = std::max(1L, (tiles - fixed) / (TURNS * threads));
        multiply_tiles<W>(job, fixed * id / threads, fixed * (id + 1) / threads);
        std::atomic<long> &taken = team.taken[&step - team.steps];
        for (long tile = fixed; tile < tiles;) {
            tile = fixed + taken.fetch_add(turn, std::memory_order_relaxed);
            if (tile < tiles) multiply_tiles<W>(job, tile, std::min(tile + turn, tiles));
        }
    });
}

// Embed one thread's share of the vectors of the residual stream.
static void embed_part(const Team &team, long id, long threads) {
    const Embedding &its = *team.embedding;
    const long width = its.table.inner;
    for (long row = 0; row < team.rows; row++) {
        const Span &span = team.spans[row];
        for (long n = 0; n < span.count; n++) {
            const long vector = span.first + n;
            if (vector % threads != id) continue;
            float *const x = team.buffers[0] + vector * width;
            read_row(its.table, team.tokens[vector], x);
            if (!its.positions) continue;
            const float *const place = its.positions + (its.offset + span.past + n) * width;
            for (long i = 0; i < width; i++) x[i] += place[i];
        }
    }
}

// Normalise or activate one thread's share of the vectors, without a product.
static void read_part(const Team &team, const Step &step, long id, long threads) {
    const long width = step.product.inner;
    for (long r = id; r < team.vectors; r += threads)
        read_input(step, team.buffers[step.from] + r * width, team.buffers[step.to] + r * width);
}

static void run_steps(const Team &team, int wanted) {
#pragma omp parallel num_threads(wanted) if (wanted > 1)
    {
        const long id = omp_get_thread_num(), threads = omp_get_num_threads();
        Prepared prepared(team);
        Scratch scratch;
        const Store *store = team.stores;
        if (team.embedding) {
            embed_part(team, id, threads);
#pragma omp barrier
        }
        for (long i = 0; i < team.count; i++) {
            const Step &step = team.steps[i];
            if (step.heads) {
                attend_part(team, step, *store, scratch, id, threads);
                store++;
            } else if (!step.product.weights) {
                read_part(team, step, id, threads);
            } else {
                multiply_part(team, step, prepared, id, threads);
            }
#pragma omp barrier
        }
    }
}
