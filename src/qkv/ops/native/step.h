// A decoding step: a few new positions of some rows through all blocks of a model, as a list of products, norms and
// attentions, by one team of threads; from vectors or from tokens, to vectors or to logits. Buffers have a vector for
// each new position, those of a row one after the other.
//
// Each thread computes a part of the outputs of a product, or the attention of some heads, and prepares the whole input
// of a product itself: norms and activations of a few thousand numbers take less time than waiting for other threads.

#pragma once

#include <atomic>
#include <cmath>
#include <omp.h>
#include <vector>

#include "attend.h"
#include "tiles.h"

// The order is that of ``INPUTS`` in step.py.
enum Input { AS_IT_IS, LAYER_NORM, RMS_NORM, RELU, RELU2, GELU, GELU_TANH, SILU, QUICK_GELU };

// A product; attention if ``heads`` is not 0; only what becomes of the input if the product has no weights. ``from`` and
// ``to`` number the buffers, of which 0 is the residual stream x. Attention reads queries, keys and values side by side.
struct Step {
    Product product;  // without x, y, rows
    long input;       // what becomes of its input first
    long gated;       // the input is (a, b), and becomes input(a) ⊙ b
    const float *norm_weight, *norm_bias;  // null: none
    double eps;
    long from, to;
    long heads, kv_heads, key_width, value_width;
    double scale;
    long rotation;  // of queries and keys: its number, or -1
};

// Rotation of queries and keys, cosines and sines (number, rotated), of which vector v has those at v mod ``number``.
struct Rotation {
    const float *cosines, *sines;
    long rotated, number;
};

// New positions of a row of a store: ``count`` vectors from the ``first`` on, after ``past`` positions.
struct Span {
    long first, count, past;
};

// Input of the blocks: E[token] of a table in 32, 16 or 8 bits, plus the vector of the position, if ``positions`` is not
// null: (rows, width), from the row ``offset`` on.
struct Embedding {
    Product table;
    const float *positions;
    long offset;
};

// Of one attention: its store (rows, heads, capacity, width), or the pages of each row (rows, row_pages), which hold
// ``capacity`` positions: keys (heads, capacity, width), then values.
struct Store {
    float *keys, *values;
    float *const *pages;  // null: none
    long row_pages, capacity;

    Held held(const Step &step, long row, long group) const {
        const long to_key = capacity * step.key_width, to_value = capacity * step.value_width;
        const long first = pages ? group : row * step.kv_heads + group;
        if (!pages) return {keys + first * to_key, values + first * to_value, nullptr, 0, 0, 0, to_key, to_value};
        return {nullptr, nullptr, pages + row * row_pages, capacity, first * to_key,
                step.kv_heads * to_key + first * to_value, to_key, to_value};
    }
};

struct Scratch {
    std::vector<float> queries, scores;
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

// The input of a product: one row of the buffer, normalised or activated.
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

// RoPE of the vector ``number``: pairs (i, i + rotated / 2) of the first features. by: null: none.
static void rotate(const float *x, long width, const Rotation *by, long number, float *to) {
    const long rotated = by ? by->rotated : 0, half = rotated / 2, from = by ? number % by->number * rotated : 0;
    for (long i = 0; i < half; i++) {
        to[i] = x[i] * by->cosines[from + i] - x[i + half] * by->sines[from + i];
        to[i + half] = x[i + half] * by->cosines[from + i + half] + x[i] * by->sines[from + i + half];
    }
    std::memcpy(to + rotated, x + rotated, (width - rotated) * sizeof *x);
}

// One row and ``groups`` heads of keys: stores the new keys and values, and attends from the heads of queries that read
// them.
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
            rotate(new_keys + g * width, width, by, vector, key + g * held.to_key);
            std::memcpy(value + g * held.to_value, new_values + g * value_width, value_width * sizeof *own);
        }
        for (long i = 0; i < heads; i++)
            rotate(own + (first + i) * width, width, by, vector, q + (i * span.count + n) * width);
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
    long rows, vectors;   // vectors: of all rows
    const Store *stores;  // one for each attention, in order
    const Rotation *rotations;
    const Embedding *embedding;  // null: the stream holds the input of the blocks
    const long *tokens;          // (vectors), of the embedding
    std::atomic<long> *taken;    // of each step: tiles that the threads have taken by turns
};

// The part of an attention that a thread computes: heads of keys of some rows, of about as many scores as the others.
static void attend_part(const Team &team, const Step &step, const Store &store, Scratch &scratch, long id, long threads) {
    const auto scores = [&](long row) {
        const Span &span = team.spans[row];
        return span.count * (span.past + span.count);
    };
    long whole = 0, at = 0;  // scores of all heads of keys, of those of the rows before
    for (long row = 0; row < team.rows; row++) whole += scores(row) * step.kv_heads;
    for (long row = 0; row < team.rows; row++) {
        const long each = scores(row);
        if (!each) continue;
        // The first head whose middle lies after the scores of the threads before ``thread``.
        const auto first = [&](long thread) {
            const long half = (2 * (whole * thread / threads - at) + each - 1) / (2 * each);
            return std::min(std::max(half, 0L), step.kv_heads);
        };
        const long end = first(id + 1);
        for (long group = first(id); group < end;) {
            const long count = store.pages ? end - group : 1;
            attend_groups(step, store, step.rotation < 0 ? nullptr : team.rotations + step.rotation,
                          team.buffers[step.from], team.buffers[step.to], row, team.spans[row], group, count, scratch);
            group += count;
        }
        at += each * step.kv_heads;
    }
}

// Vectors of the input that one thread prepares for a product.
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

// The part of a product that a thread computes: an equal share of most tiles, and of the last ones as many as it gets to
// while others are still at theirs, as no two processors read memory equally fast.
static void multiply_part(const Team &team, const Step &step, Prepared &prepared, long id, long threads) {
    constexpr long SHARED = 16, TURNS = 2;  // one tile of sixteen is shared, in two turns for each thread
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

// The vectors of the stream that a thread embeds.
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

// The vectors that a thread normalises or activates, without a product.
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
