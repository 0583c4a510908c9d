// Attention of a few queries to the keys and values of one row, read in place from a contiguous or a paged KV cache.

#pragma once

#include <cmath>
#include <vector>

#include "vectors.h"

// A score is scale · q k^T, then cap · tanh(score / cap), then minus slope · (i - j). ``sink``: logit that takes part
// in the softmax but has no value. Slopes and sinks have one number per query head.
struct Scoring {
    long key_width, value_width;
    float scale, cap;  // cap 0: none
    const float *slopes, *sink;  // null: none
};

// Keys and values of some heads of one row. In pages, position p is the (p mod size)-th of page p / size, whose keys
// start at offset ``keys_at`` and values at ``values_at``. Without pages, they start at ``keys`` and ``values``.
// Strides from one head to the next are ``to_key`` and ``to_value`` numbers.
struct Held {
    float *keys, *values;
    float *const *pages;  // null: none
    long size, keys_at, values_at, to_key, to_value;

    float *key(long position, long width) const {
        return (pages ? pages[position / size] + keys_at + position % size * width : keys + position * width);
    }
    float *value(long position, long width) const {
        return (pages ? pages[position / size] + values_at + position % size * width : values + position * width);
    }
    // Number of positions from ``position`` on that are contiguous in memory, at most ``most``.
    long run(long position, long most) const {
        return pages ? std::min(most, size - position % size) : most;
    }
};

// Queries of one row, contiguous: (heads, count, key_width). ``share`` query heads read the same key head.
struct Queries {
    const float *q;
    long heads, share, count, first_head;
    long past, after;  // query n sees positions 0 to past + n; the cache holds ``after`` positions
    float *out;        // output of query n of head h at h · of_head + n · of_query
    long of_head, of_query;

    long total() const { return heads * count; }
    long seen(long i) const { return std::min(after, past + i % count + 1); }
    long group(long i) const { return i / (share * count); }
    float *to(long i) const { return out + i / count * of_head + i % count * of_query; }
};

constexpr long RUN = 64;  // positions that all queries read together, so that their keys stay in the cache

// Call f(first position, number of positions) for each contiguous run of the positions that the queries see.
template <class F> static INLINE void runs_of(const Held &held, const Queries &queries, F f) {
    const long end = queries.seen(queries.count - 1);
    for (long begin = 0; begin < end;) {
        const long count = held.run(begin, std::min(RUN, end - begin));
        f(begin, count);
        begin += count;
    }
}

// Replace scores by unnormalised softmax weights. Returns the factor that normalises them, together with the sink.
static INLINE float weigh(const Scoring &how, float *scores, long count, long position, long head) {
    if (how.cap != 0)
        for (long j = 0; j < count; j++) scores[j] = how.cap * std::tanh(scores[j] / how.cap);
    if (how.slopes)
        for (long j = 0; j < count; j++) scores[j] -= how.slopes[head] * (float)(position - j);
    float most = how.sink ? how.sink[head] : -INFINITY;
    for (long j = 0; j < count; j++) most = scores[j] > most ? scores[j] : most;
    mapped(scores, count, scores, [&](long, Floats s) __attribute__((always_inline)) { return exponential(s - most); });
    Floats sum = {};
    vectors_of(scores, count, [&](long, Floats s) __attribute__((always_inline)) { sum += s; });
    return 1.0f / (total(sum) + (how.sink ? exponential(Floats{} + (how.sink[head] - most))[0] : 0.0f));
}

// to += Σ weights · values over ``count`` positions of ``width`` features.
static INLINE void add_values(const float *weights, const float *values, long count, long width, float *to) {
    constexpr long TOGETHER = 4 * LANES;  // number of features whose sums fit in registers
    for (long begin = 0; begin < width; begin += TOGETHER) {
        const long part = std::min(TOGETHER, width - begin);
        Floats out[4] = {};
        std::memcpy(out, to + begin, part * sizeof *to);
        for (long j = 0; j < count; j++) {
            const float *const v = values + j * width + begin;
            if (part == TOGETHER) times<4>(OF(k) { out[k] += weights[j] * load<Floats>(v + k * LANES); });
            else for (long i = 0; i < part; i += LANES) out[i / LANES] += weights[j] * vector_at(v, i, part);
        }
        std::memcpy(to + begin, out, part * sizeof *to);
    }
}

// Compute softmax(scores) V for all queries. scores: scratch buffer, resized as needed.
static void attend(const Scoring &how, const Held &held, const Queries &queries, std::vector<float> &scores) {
    const long longest = queries.seen(queries.count - 1), number = queries.total();
    if ((long)scores.size() < number * longest) scores.resize(number * longest);
    // Page by page and not head by head, so that a page is read from its start to its end.
    runs_of(held, queries, [&](long begin, long count) {
        const float *const keys = held.key(begin, how.key_width);
        for (long i = 0; i < number; i++) {
            const float *const own = keys + queries.group(i) * held.to_key, *const q = queries.q + i * how.key_width;
            const long seen = std::min(count, queries.seen(i) - begin);
            for (long j = 0; j < seen; j++)
                scores[i * longest + begin + j] = how.scale * dot(q, own + j * how.key_width, how.key_width);
        }
    });
    std::vector<float> factors(number);
    for (long i = 0; i < number; i++) {
        const long head = queries.first_head + i / queries.count;
        factors[i] = weigh(how, scores.data() + i * longest, queries.seen(i), queries.past + i % queries.count, head);
        std::memset(queries.to(i), 0, how.value_width * sizeof(float));
    }
    runs_of(held, queries, [&](long begin, long count) {
        const float *const values = held.value(begin, how.value_width);
        for (long i = 0; i < number; i++)
            add_values(scores.data() + i * longest + begin, values + queries.group(i) * held.to_value,
                       std::min(count, queries.seen(i) - begin), how.value_width, queries.to(i));
    });
    for (long i = 0; i < number; i++) {
        float *const out = queries.to(i);
        mapped(out, how.value_width, out, [&](long, Floats x) __attribute__((always_inline)) { return x * factors[i]; });
    }
}
