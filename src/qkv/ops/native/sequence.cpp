// Attention of many queries, Y = softmax(scale Q K^T) V in fp32, causal or full, without storing the scores: a running
// maximum and sum per query (Milakov & Gimelshein 2018) over blocks of keys, in tiles that stay in registers (Dao et
// al. 2022).
//
// OpenMP is not linked: its symbols resolve to the OpenMP library that torch has loaded.

#include "vectors.h"

#include <cmath>
#include <vector>

constexpr int COLUMNS = LANES == 16 ? 4 : 2;  // vectors of keys or features per tile
constexpr int TALL = 6;  // queries per tile, whose sums fill the registers
constexpr int KEYS = 64;  // keys per block
constexpr int VECTORS = KEYS / LANES;
constexpr int QUERIES = 8 * TALL;  // queries per task, which share a block of keys in the cache

static INLINE Floats larger(Floats a, Floats b) { return either(a > b, a, b); }
// exp(x) for x <= 0; 0 for x < -87.
static INLINE Floats weight_of(Floats x) { return either(x < all(-87.0f), Floats{}, exponential(x)); }

// Swap each lane i with lane i ^ STEP.
template <int STEP> static INLINE Floats turned(Floats x) {
    Ints from;
    for (int i = 0; i < LANES; i++) from[i] = i ^ STEP;
    return __builtin_shuffle(x, from);
}
static INLINE float largest_of(Floats x) {
    if constexpr (LANES > 8) x = larger(x, turned<8>(x));
    if constexpr (LANES > 4) x = larger(x, turned<4>(x));
    x = larger(x, turned<2>(x));
    return larger(x, turned<1>(x))[0];
}

struct Matrix {
    const float *data;
    long batch, head, row;  // strides; features are contiguous
    const float *at(long b, long h) const { return data + b * batch + h * head; }
};

struct Job {
    Matrix q, k, v;
    float *y;  // (batch, queries, heads, value width)
    long heads, group, queries, keys, width, value_width;
    float scale;
    bool causal;  // query i sees the keys up to i + keys - queries

    long key_heads() const { return heads / group; }
    long out_row() const { return heads * value_width; }
    long blocks() const { return (keys + KEYS - 1) / KEYS; }
    long parts() const { return (queries + QUERIES - 1) / QUERIES; }
    long packed() const { return blocks() * KEYS * width; }  // numbers of a head of keys
    long seen(long query) const { return causal ? std::min(keys, query + 1 + keys - queries) : keys; }
};

// Running maximum and sum of a task's queries.
struct Running {
    float top[QUERIES];
    Floats sum[QUERIES];
};

// Transpose a block of keys, with zeros after the last key. packed (blocks, width, KEYS): packed keys of the head.
static void pack(const Job &job, long head, long block, float *packed) {
    const float *from = job.k.at(head / job.key_heads(), head % job.key_heads()) + block * KEYS * job.k.row;
    float *to = packed + block * KEYS * job.width;
    const long count = std::min<long>(KEYS, job.keys - block * KEYS);
    for (long first = 0; first < KEYS; first += LANES)
        for (long x = 0; x < job.width; x += LANES) {
            Floats square[LANES];
            for (int i = 0; i < LANES; i++)
                square[i] = first + i < count ? load<Floats>(from + (first + i) * job.k.row + x) : Floats{};
            exchange<LANES / 2>(square);
            for (int i = 0; i < LANES; i++) store(to + (x + i) * KEYS + first, square[i]);
        }
}

// scores (R, W vectors) = scale q k^T for R queries and W vectors of a packed block's keys, from key ``first`` on.
template <int R, int W>
static INLINE void multiply(const Job &job, const float *q, const float *k, long first, float (&scores)[TALL][KEYS]) {
    Floats sum[R][W] = {};
    for (long x = 0; x < job.width; x++) {
        Floats key[W];
        times<W>(OF(w) { key[w] = load<Floats>(k + x * KEYS + first + w * LANES); });
        times<R>(OF(r) {
            const Floats query = all(q[r * job.q.row + x]);
            times<W>(OF(w) { sum[r][w] += query * key[w]; });
        });
    }
    times<R>(OF(r) {
        times<W>(OF(w) { store(&scores[r][first + w * LANES], sum[r][w] * job.scale); });
    });
}

// Replace a query's scores by weights exp(score - maximum), 0 from key ``seen`` on. Returns the factor by which
// previous sums must be multiplied, as the running maximum changes.
static INLINE float weigh(float (&scores)[KEYS], long seen, long count, float &top, Floats &sum) {
    Floats s[VECTORS], most = all(-INFINITY);
    const Ints lanes = [] {
        Ints found;
        for (int i = 0; i < LANES; i++) found[i] = i;
        return found;
    }();
    times<VECTORS>(OF(w) {
        if (w * LANES < count) {
            s[w] = load<Floats>(&scores[w * LANES]);
            if (seen < (w + 1) * LANES) s[w] = either(lanes >= Ints{} + (int)(seen - w * LANES), all(-INFINITY), s[w]);
            most = larger(s[w], most);
        }
    });
    const float before = top, found = largest_of(most);
    top = found > before ? found : before;
    const float base = top == -INFINITY ? 0.0f : top;
    Floats added{};
    times<VECTORS>(OF(w) {
        if (w * LANES < count) {
            const Floats weight = weight_of(s[w] - base);
            added += weight;
            store(&scores[w * LANES], weight);
        }
    });
    const float factor = before == top ? 1.0f : before == -INFINITY ? 0.0f : weight_of(all(before - base))[0];
    sum = sum * factor + added;
    return factor;
}

// out (R, VW vectors) = factor out + weights v over ``count`` keys; ``fresh``: out is uninitialised and taken as 0.
template <int R, int VW>
static INLINE void add(const Job &job, const float (&weights)[TALL][KEYS], const float *v, long count,
                       const float (&factor)[TALL], bool fresh, float *out) {
    Floats sum[R][VW] = {};
    if (!fresh)
        times<R>(OF(r) {
            times<VW>(OF(w) { sum[r][w] = load<Floats>(out + r * job.out_row() + w * LANES) * factor[r]; });
        });
    for (long key = 0; key < count; key++) {
        Floats value[VW];
        times<VW>(OF(w) { value[w] = load<Floats>(v + key * job.v.row + w * LANES); });
        times<R>(OF(r) {
            const Floats weight = all(weights[r][key]);
            times<VW>(OF(w) { sum[r][w] += weight * value[w]; });
        });
    }
    times<R>(OF(r) {
        times<VW>(OF(w) { store(out + r * job.out_row() + w * LANES, sum[r][w]); });
    });
}

// Process R queries and the keys from ``begin`` on. first, place: index of the first query in the sequence and in its
// task.
template <int R>
static void tile(const Job &job, const float *q, const float *k, const float *v, long first, long begin, float *out,
                 Running &running, long place) {
    const long count = std::min<long>(KEYS, job.seen(first + R - 1) - begin);
    if (count <= 0) return;
    float scores[TALL][KEYS], factor[TALL];
    long key = 0;
    for (; key + (COLUMNS - 1) * LANES < count; key += COLUMNS * LANES) multiply<R, COLUMNS>(job, q, k, key, scores);
    for (; key < count; key += LANES) multiply<R, 1>(job, q, k, key, scores);
    times<R>(OF(r) {
        float &top = running.top[place + r];
        factor[r] = weigh(scores[r], job.seen(first + r) - begin, count, top, running.sum[place + r]);
    });
    long x = 0;
    for (; x + COLUMNS * LANES <= job.value_width; x += COLUMNS * LANES)
        add<R, COLUMNS>(job, scores, v + x, count, factor, begin == 0, out + x);
    for (; x < job.value_width; x += LANES) add<R, 1>(job, scores, v + x, count, factor, begin == 0, out + x);
}

// Attend from part ``part`` of the queries of one head. packed: packed keys of the head.
static void attend(const Job &job, long b, long h, long part, const float *packed) {
    const long first = part * QUERIES, rows = std::min<long>(QUERIES, job.queries - first);
    const float *q = job.q.at(b, h) + first * job.q.row, *v = job.v.at(b, h / job.group);
    float *out = job.y + (b * job.queries + first) * job.out_row() + h * job.value_width;
    Running running;
    for (long r = 0; r < rows; r++) {
        running.top[r] = -INFINITY;
        running.sum[r] = Floats{};
    }
    for (long begin = 0; begin < job.seen(first + rows - 1); begin += KEYS) {
        const float *k = packed + begin * job.width, *values = v + begin * job.v.row;
        long r = 0;
        for (; r + TALL <= rows; r += TALL)
            tile<TALL>(job, q + r * job.q.row, k, values, first + r, begin, out + r * job.out_row(), running, r);
        for (; r < rows; r++)
            tile<1>(job, q + r * job.q.row, k, values, first + r, begin, out + r * job.out_row(), running, r);
    }
    for (long r = 0; r < rows; r++) {
        const float whole = 1.0f / total(running.sum[r]);
        float *const y = out + r * job.out_row();
        for (long x = 0; x < job.value_width; x += LANES) store(y + x, load<Floats>(y + x) * whole);
    }
}

// Distribute whole key heads over threads, so that their keys and values stay in a thread's cache.
static void attend_heads(const Job &job, long batch, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        std::vector<float> packed(job.packed());
#pragma omp for schedule(dynamic, 1)
        for (long head = 0; head < batch * job.key_heads(); head++) {
            for (long block = 0; block < job.blocks(); block++) pack(job, head, block, packed.data());
            const long b = head / job.key_heads(), first = head % job.key_heads() * job.group;
            for (long i = 0; i < job.group * job.parts(); i++)
                attend(job, b, first + i / job.parts(), i % job.parts(), packed.data());
        }
    }
}

// Distribute parts of the queries of each head over threads.
static void attend_parts(const Job &job, long batch, int threads) {
    const long packs = batch * job.key_heads() * job.blocks();
    std::vector<float> packed(batch * job.key_heads() * job.packed());
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (long i = 0; i < packs; i++)
            pack(job, i / job.blocks(), i % job.blocks(), packed.data() + i / job.blocks() * job.packed());
        // The last parts first, since they see the most keys.
#pragma omp for schedule(dynamic, 1)
        for (long i = 0; i < batch * job.heads * job.parts(); i++) {
            const long b = i % (batch * job.heads) / job.heads, h = i % job.heads;
            attend(job, b, h, job.parts() - 1 - i / (batch * job.heads),
                   packed.data() + (b * job.key_heads() + h / job.group) * job.packed());
        }
    }
}

constexpr long MANY_HEADS = 4;  // key heads per thread from which whole heads balance the load well

// strides: of batch, head and row of q, k and v. Widths are multiples of 16.
extern "C" __attribute__((visibility("default"))) void
qkv_attention(const float *q, const float *k, const float *v, float *y, const long *strides, long batch, long heads,
              long group, long queries, long keys, long width, long value_width, float scale, int causal, int threads) {
    const auto matrix = [&](const float *data, int i) {
        return Matrix{data, strides[3 * i], strides[3 * i + 1], strides[3 * i + 2]};
    };
    const Job job{matrix(q, 0), matrix(k, 1), matrix(v, 2), y, heads, group, queries, keys, width, value_width,
                  scale, causal != 0};
    if (batch * job.key_heads() >= MANY_HEADS * threads) attend_heads(job, batch, threads);
    else attend_parts(job, batch, threads);
}
