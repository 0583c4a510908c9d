// y = x W^T + b for rows x in fp32, with weights in fp32, bf16, int8 or int4. The weights are read once, in the order
// of their addresses, so that a product of a few rows takes only the time of reading them.
//
// Weights in fp32 are multiplied in fp32. Weights in bf16 are multiplied in fp32, or with x rounded to bf16 if the
// processor has bf16 product instructions; sums are in fp32. For weights in int8 and int4, x is rounded to int8 with a
// scale per block of 32, and the products of a block are added as integers, which is exact.

#pragma once

#include <omp.h>

#include "vectors.h"

struct Product {
    int bits;                // 32, 16, 8 or 4
    const char *weights;
    const uint16_t *scales;  // scales of quantised weights in bf16, or fp16 if ``half``: (tiles, groups, 16)
    const uint16_t *minimums;  // in fp16 like ``scales``; 4-bit weights are then from 0 to 15; null: none
    const int8_t *levels;    // 4-bit weights: the 16 numbers that they are indices of; null: the numbers -8 to 7
    const float *bias;       // null: none
    const float *x;          // (rows, inner)
    float *y;                // (rows, outer)
    long rows, inner, outer;
    long stride;             // plain weights: bytes from one row of W to the next
    long groups, size;       // quantised weights: groups per row, blocks per group
    bool half;               // true: scales are fp16
    bool adds;               // true: add the product to y; false: overwrite y
    long tiled_from;         // rows of x from which tiles are used; 0: never
    char *prepared;          // rows of x in the layout that the weight format reads
};

// Plain formats: W is stored row by row. A step processes COUNT weights of a row, BYTES bytes, at once.
// ``prepare`` writes row r of x in the order in which steps read it, STEP bytes per step, padded with zeros.
// ``bytes``: size of all prepared rows; ``width``: size of one prepared row.
// ``add`` adds the products of one step of K rows of W, ``stride`` bytes apart, and R rows of x, ``width`` bytes apart.

// sum[k][r] += w · x, in fp32; W::read<v> loads vector v of a step's weights. MANY: x has many rows, so that vector
// loads limit the speed, and each vector is loaded once and held in a register. Else memory limits it, and repeated
// loads are faster.
template <class W, bool MANY, int K, int R>
static INLINE void add_floats(const char *from, long stride, const char *x, long width, Floats (&sum)[K][R]) {
    times<2>(OF(v) {
        Floats w[K];
        times<K>(OF(k) { w[k] = held<MANY || LANES == 16>(W::template read<v>(from + k * stride)); });
        times<R>(OF(r) {
            const Floats its = held<MANY>(load<Floats>(x + r * width + VECTOR * v));
            times<K>(OF(k) { sum[k][r] = fused(w[k], its, sum[k][r]); });
        });
    });
}

struct Single {
    static constexpr long COUNT = 2 * LANES, BYTES = 4 * COUNT, STEP = 4 * COUNT;

    static long width(long inner) { return (inner + COUNT - 1) / COUNT * STEP; }
    static long bytes(long rows, long inner) { return rows * width(inner); }

    static void prepare(const float *x, long inner, char *prepared, long r) {
        char *to = prepared + r * width(inner);
        std::memcpy(to, x, inner * sizeof *x);
        std::memset(to + inner * sizeof *x, 0, width(inner) - inner * sizeof *x);
    }
    template <int V> static INLINE Floats read(const char *from) { return load<Floats>(from + VECTOR * V); }

    template <bool MANY, int K, int R>
    static INLINE void add(const char *from, long stride, const char *x, long width, Floats (&sum)[K][R]) {
        add_floats<Single, MANY>(from, stride, x, width, sum);
    }
};

#if WIDE && defined(__AVX512BF16__)
// x is rounded to bf16. One instruction adds pairs of products, twice as many products as in fp32.
struct Bf16 {
    static constexpr bool ROUNDS = true;
    static constexpr long COUNT = 2 * LANES, BYTES = 2 * COUNT, STEP = 2 * COUNT;

    static long width(long inner) { return (inner + COUNT - 1) / COUNT * STEP; }
    static long bytes(long rows, long inner) { return rows * width(inner); }

    static void prepare(const float *x, long inner, char *prepared, long r) {
        char *to = prepared + r * width(inner);
        for (long i = 0; i < inner; i += COUNT, to += STEP) {
            float step[COUNT] = {};
            std::memcpy(step, x + i, std::min(COUNT, inner - i) * sizeof *x);
            const __m512bh rounded = _mm512_cvtne2ps_pbh(load<__m512>(step + LANES), load<__m512>(step));
            std::memcpy(to, &rounded, STEP);
        }
    }
    template <bool, int K, int R>
    static INLINE void add(const char *from, long stride, const char *x, long width, Floats (&sum)[K][R]) {
        times<K>(OF(k) {
            const Floats w = held<true>(load<Floats>(from + k * stride));
            times<R>(OF(r) {
                const Floats its = load<Floats>(x + r * width);
                sum[k][r] = (Floats)_mm512_dpbf16_ps((__m512)sum[k][r], (__m512bh)w, (__m512bh)its);
            });
        });
    }
};
#else
// A 32-bit lane holds two weights, the odd-indexed weight in its upper half. So x is stored with even indices first.
struct Bf16 {
    static constexpr bool ROUNDS = false;
    static constexpr long COUNT = 2 * LANES, BYTES = 2 * COUNT, STEP = 4 * COUNT;

    static long width(long inner) { return (inner + COUNT - 1) / COUNT * STEP; }
    static long bytes(long rows, long inner) { return rows * width(inner); }

    static void prepare(const float *x, long inner, char *prepared, long r) {
        char *to = prepared + r * width(inner);
        for (long i = 0; i < inner; i += COUNT, to += STEP) {
            float step[COUNT] = {};
            std::memcpy(step, x + i, std::min(COUNT, inner - i) * sizeof *x);
            float packed[COUNT];
            for (long j = 0; j < LANES; j++) packed[j] = step[2 * j], packed[LANES + j] = step[2 * j + 1];
            std::memcpy(to, packed, STEP);
        }
    }
    template <int V> static INLINE Floats read(const char *from) {
        const Words pairs = load<Words>(from);
        return (Floats)(V == 0 ? pairs << 16 : pairs & 0xffff0000u);
    }

    template <bool MANY, int K, int R>
    static INLINE void add(const char *from, long stride, const char *x, long width, Floats (&sum)[K][R]) {
        add_floats<Bf16, MANY>(from, stride, x, width, sum);
    }
};
#endif

// Multiply R rows of x, from row ``first``, by K rows of W, from row ``row``, ``apart`` rows from each other. Each
// element of y has the same bits for all K and R. Meanwhile memory from ``next`` on is prefetched, ``share`` bytes per
// step.
template <class W, bool MANY, int K, int R>
static INLINE void multiply_rows(const Product &job, long row, long first, const char *next, long share, long apart = 1) {
    const long whole = job.inner / W::COUNT, rest = job.inner % W::COUNT, width = W::width(job.inner);
    const long stride = job.stride * apart;
    const char *from = job.weights + row * job.stride, *x = job.prepared + first * width;
    Floats sum[K][R] = {};
    constexpr long ONCE = R == 1 && K < 4 ? 8 : 1;  // with few instructions per load, processors load further ahead
    const char *const end = from + whole * W::BYTES, *const last_of_many = from + whole / ONCE * ONCE * W::BYTES;
    const char *fetched = next;
    for (; from < last_of_many; from += ONCE * W::BYTES, x += ONCE * W::STEP) {
        for (next += share; fetched < next; fetched += 64) __builtin_prefetch(fetched, 0, 2);
        times<ONCE>(OF(i) { W::template add<MANY>(from + i * W::BYTES, stride, x + i * W::STEP, width, sum); });
    }
    for (; from < end; from += W::BYTES, x += W::STEP) W::template add<MANY>(from, stride, x, width, sum);
    if (rest) {
        char last[K * W::BYTES] = {};
        times<K>(OF(k) { std::memcpy(last + k * W::BYTES, from + k * stride, rest * W::BYTES / W::COUNT); });
        W::template add<MANY>(last, W::BYTES, x, width, sum);
    }
    float found[R][K];
    if constexpr (K == 4 && R == LANES / 4) totals(sum, found);
    else times<R>(OF(r) { times<K>(OF(k) { found[r][k] = total(sum[k][r]); }); });
    times<R>(OF(r) {
        float *const y = job.y + (first + r) * job.outer + row;
        const float *const bias = job.bias ? job.bias + row : nullptr;
        times<K>(OF(k) {
            y[k * apart] = found[r][k] + (bias ? bias[k * apart] : 0.0f) + (job.adds ? y[k * apart] : 0.0f);
        });
    });
}

constexpr int ROWS = LANES / 4;  // rows of x whose sums with four rows of W fit the registers
constexpr int MOST_FEW = 12;         // rows of x up to which reading W takes most of the time

// Multiply rows of W from ``row`` to ``end``, four at a time, by R rows of x. ``next``: address to prefetch from.
template <class W, bool MANY, int R>
static INLINE void multiply_fours(const Product &job, long row, long end, long first, const char *&next, long share) {
    for (; row < end; row += 4, next += share * (job.inner / W::COUNT))
        multiply_rows<W, MANY, 4, R>(job, row, first, next, share);
}

// Multiply all rows of x by the rows of W from ``row`` to ``end``. Meanwhile the next rows of W are prefetched in the
// order of their addresses: processors read one stream of addresses faster than four at once.
template <class W, bool MANY> static void multiply_block(const Product &job, long row, long end) {
    const long height = end - row, steps = std::max(1L, job.inner / W::COUNT) * (height / 4) * ((job.rows + ROWS - 1) / ROWS);
    const long share = end + height <= job.outer ? height * job.stride / steps + 1 : 0;
    const char *next = job.weights + end * job.stride;
    // One row of x takes nearly as long as three, whose sums fit the registers if vectors are wide.
    constexpr bool THREES = LANES == 16;
    long first = THREES && job.rows % ROWS == 1 ? 3 : 0;
    if (first) multiply_fours<W, MANY, 3>(job, row, end, 0, next, share);
    for (; first + ROWS <= job.rows; first += ROWS) multiply_fours<W, MANY, ROWS>(job, row, end, first, next, share);
    if (THREES && first + 3 == job.rows) {
        multiply_fours<W, MANY, 3>(job, row, end, first, next, share);
        first += 3;
    }
    for (; first + 2 <= job.rows; first += 2) multiply_fours<W, MANY, 2>(job, row, end, first, next, share);
    for (; first < job.rows; first++) multiply_fours<W, MANY, 1>(job, row, end, first, next, share);
}

// Multiply tiles of W from ``begin`` to ``end`` by all rows of x.
template <class W, long = W::COUNT> static void multiply_tiles(const Product &job, long begin, long end) {
    constexpr long HEIGHT = TILE / 2;
    long row = begin * TILE;
    end = std::min(end * TILE, job.outer);
    if (job.rows > MOST_FEW)
        for (; row + HEIGHT <= end; row += HEIGHT) multiply_block<W, true>(job, row, row + HEIGHT);
    else if (job.rows > 1)
        for (; row + HEIGHT <= end; row += HEIGHT) multiply_block<W, false>(job, row, row + HEIGHT);
    // One row of x: two streams, far apart in W, so that additions wait less for the previous sum.
    const long half = job.rows == 1 ? (end - row) / 2 : 0;
    for (long i = 0; i < half; i++) multiply_rows<W, false, 2, 1>(job, row + i, 0, nullptr, 0, half);
    for (row += 2 * half; row < end; row++)
        for (long first = 0; first < job.rows; first++) multiply_rows<W, false, 1, 1>(job, row, first, nullptr, 0);
}

// Quantised formats: tiles of rows. The bytes of a block of a tile are (BYTES / 64, 16 rows, 4), so that each lane
// belongs to one row of W. The instructions multiply unsigned by signed bytes: an OFFSET makes weights unsigned, and
// the initial value of a block's sum compensates it. GROUPED: a row has several scales. HALF: they are fp16. MINIMUM: a
// group has a number that is added to its weights.

struct Rounded {
    int8_t x[BLOCK];
    float scale;
    int32_t start;  // initial value of a block's sum, which compensates the offset of the weights
    float sum;      // sum of the rounded numbers times the scale; a minimum is multiplied by it
};

// Round a block of x to int8, to multiples of its largest absolute value / 127. If a number is not finite, neither is
// the scale, nor are the products of the row.
static void round_block(const float *x, long count, int offset, Rounded &to) {
    float block[BLOCK] = {};
    std::memcpy(block, x, count * sizeof *x);
    int32_t largest = 0;  // bits of the largest absolute value; the bits of NaN are larger than those of any number
    for (int i = 0; i < BLOCK; i++) largest = std::max(largest, load<int32_t>(block + i) & 0x7fffffff);
    const float most = load<float>(&largest), inverse = most > 1e-35f ? 127.0f / most : 0.0f;
    to.scale = most / 127.0f;
    for (int i = 0; i < BLOCK; i++) {
        const float shifted = block[i] * inverse + 12582912.0f;  // 1.5 · 2^23: the last bits are the nearest integer
        to.x[i] = (int8_t)(load<int32_t>(&shifted) - 0x4b400000);
    }
    int32_t sum = 0;
    for (int i = 0; i < BLOCK; i++) sum += to.x[i];
    to.start = -offset * sum;
    to.sum = to.scale * (float)sum;
}

static void round_row(const float *x, long inner, int offset, char *to) {
    Rounded *const blocks = (Rounded *)to;
    for (long i = 0; i < inner; i += BLOCK) round_block(x + i, std::min((long)BLOCK, inner - i), offset, blocks[i / BLOCK]);
}

static INLINE Ints add_products(Ints sum, Bytes unsigned_weights, Bytes x) {
#if WIDE
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)unsigned_weights, (__m512i)x);
#elif MIDDLE
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)unsigned_weights, (__m256i)x);
    return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    times<4>(OF(i) {
        const Ints weight = (Ints)((Words)unsigned_weights >> 8 * i & 255);
        sum += weight * ((Ints)((Words)x << (24 - 8 * i)) >> 24);
    });
    return sum;
#endif
}

// Add products of weights in int8 with x.
static INLINE Ints add_signed(Ints sum, Bytes weights, Bytes x) {
#if MIDDLE
    // Sums of two products with an offset of 128 do not fit 16 bits: move the weight's sign to x.
    const Bytes with_sign = (Bytes)_mm256_sign_epi8((__m256i)x, (__m256i)weights);
    return add_products(sum, (Bytes)_mm256_abs_epi8((__m256i)weights), with_sign);
#else
    return add_products(sum, weights ^ (int8_t)-128, x);
#endif
}

template <bool SEVERAL> struct Int8 {
    static constexpr bool GROUPED = SEVERAL, HALF = false, MINIMUM = false;
    static constexpr float LEAST = 0.0f;  // smallest weight, whose value is the group's minimum
    static constexpr long BYTES = BLOCK * TILE;
#if MIDDLE
    static constexpr int OFFSET = 0;
#else
    static constexpr int OFFSET = 128;
#endif

    static long width(long inner) { return (inner + BLOCK - 1) / BLOCK * sizeof(Rounded); }
    static long bytes(long rows, long inner) { return rows * width(inner); }
    static void prepare(const float *x, long inner, char *prepared, long r) {
        round_row(x, inner, OFFSET, prepared + r * width(inner));
    }

    template <int R>
    static INLINE void add(const Product &, const char *from, const Rounded *x, long width, Ints (&sum)[R][PARTS]) {
#pragma GCC unroll UNROLLED
        for (int four = 0; four < BLOCK / 4; four++)
            times<PARTS>(OF(part) {
                const Bytes w = load<Bytes>(from + four * 4 * TILE + part * VECTOR);
                times<R>(OF(r) { sum[r][part] = add_signed(sum[r][part], w, repeated(x[r * width].x + 4 * four)); });
            });
    }
};

// Byte i < 16 of a block has weight i in its lower half and weight i + 16 in its upper half, each plus the offset.
template <bool SEVERAL> struct Int4 {
    static constexpr bool GROUPED = SEVERAL, HALF = false, MINIMUM = false;
    static constexpr float LEAST = -8.0f;
    static constexpr long BYTES = BLOCK * TILE / 2;
    static constexpr int OFFSET = 8, MIDDLE_OF_BLOCK = BLOCK / 2;

    static long width(long inner) { return (inner + BLOCK - 1) / BLOCK * sizeof(Rounded); }
    static long bytes(long rows, long inner) { return rows * width(inner); }
    static void prepare(const float *x, long inner, char *prepared, long r) {
        round_row(x, inner, OFFSET, prepared + r * width(inner));
    }

    template <int R>
    static INLINE void add(const Product &, const char *from, const Rounded *x, long width, Ints (&sum)[R][PARTS]) {
        Ints other[R][PARTS] = {};
#pragma GCC unroll UNROLLED
        for (int four = 0; four < MIDDLE_OF_BLOCK / 4; four++)
            times<PARTS>(OF(part) {
                const Words both = load<Words>(from + four * 4 * TILE + part * VECTOR);
                const Bytes low = (Bytes)(both & 0x0f0f0f0fu), high = (Bytes)(both >> 4 & 0x0f0f0f0fu);
                times<R>(OF(r) {
                    const int8_t *const its = x[r * width].x + 4 * four;
#if MIDDLE
                    // The largest sum of a block, 8 · 2 · 15 · 127, fits the 16 bits of pairs.
                    const __m256i lower = _mm256_maddubs_epi16((__m256i)low, (__m256i)repeated(its));
                    const __m256i upper = _mm256_maddubs_epi16((__m256i)high, (__m256i)repeated(its + MIDDLE_OF_BLOCK));
                    const __m256i pairs = _mm256_add_epi16((__m256i)other[r][part], lower);
                    other[r][part] = (Ints)_mm256_add_epi16(pairs, upper);
#else
                    sum[r][part] = add_products(sum[r][part], low, repeated(its));
                    other[r][part] = add_products(other[r][part], high, repeated(its + MIDDLE_OF_BLOCK));
#endif
                });
            });
        times<R>(OF(r) {
            times<PARTS>(OF(part) {
#if MIDDLE
                other[r][part] = (Ints)_mm256_madd_epi16((__m256i)other[r][part], _mm256_set1_epi16(1));
#endif
                sum[r][part] += other[r][part];
            });
        });
    }
};

// Replace each byte, a number from 0 to 15, by the level with this index.
static INLINE Bytes looked_up(const int8_t *levels, Bytes indices) {
#if WIDE
    return (Bytes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(load<__m128i>(levels)), (__m512i)indices);
#elif MIDDLE
    return (Bytes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load<__m128i>(levels)), (__m256i)indices);
#else
    for (int i = 0; i < VECTOR; i++) indices[i] = levels[indices[i]];
    return indices;
#endif
}

// Stored as Int4; the half bytes are indices of 16 levels in int8. Groups of weights have scales.
struct Leveled : Int8<true> {
    static constexpr long BYTES = BLOCK * TILE / 2;

    template <int R>
    static INLINE void add(const Product &job, const char *from, const Rounded *x, long width, Ints (&sum)[R][PARTS]) {
        constexpr int HALF_BLOCK = BLOCK / 2;
#pragma GCC unroll UNROLLED
        for (int four = 0; four < HALF_BLOCK / 4; four++)
            times<PARTS>(OF(part) {
                const Words both = load<Words>(from + four * 4 * TILE + part * VECTOR);
                const Bytes low = looked_up(job.levels, (Bytes)(both & 0x0f0f0f0fu));
                const Bytes high = looked_up(job.levels, (Bytes)(both >> 4 & 0x0f0f0f0fu));
                times<R>(OF(r) {
                    const int8_t *const its = x[r * width].x + 4 * four;
                    sum[r][part] = add_signed(sum[r][part], low, repeated(its));
                    sum[r][part] = add_signed(sum[r][part], high, repeated(its + HALF_BLOCK));
                });
            });
    }
};

// Groups of 32 weights with a scale in fp16 and, if LOWEST, a minimum: the values of llama.cpp's formats without rounding.
template <class F, bool LOWEST> struct Fp16Scales : F {
    static constexpr bool HALF = true, MINIMUM = LOWEST;
};

// Scale and minimum of a group of weights, one per row of a part of a tile.
template <class F> struct GroupScale {
    Floats scale, minimum;

    static INLINE GroupScale read(const Product &job, long tile, long group, int part) {
        const long at = (tile * job.groups + group) * TILE + part * LANES;
        GroupScale found = {};
        if (F::GROUPED) found.scale = F::HALF ? halves_of(job.scales + at) : lanes_of(job.scales + at);
        if (F::MINIMUM) found.minimum = halves_of(job.minimums + at) - F::LEAST * found.scale;
        return found;
    }

    // Add the products of a block, whose integer sums are ``sums``, with a block of x.
    INLINE Floats add(Floats sums, float factor, float its_sum, Floats total) const {
        total = fused(sums, F::GROUPED ? scale * factor : Floats{} + factor, total);
        return F::MINIMUM ? fused(minimum, Floats{} + its_sum, total) : total;
    }
};

// Write y for a row of x and a tile of W from the total of the blocks; scales: scales of the tile.
template <class W>
static INLINE void write_row(const Product &job, const Floats (&total)[PARTS], const uint16_t *scales, long tile, long r) {
    const long row = tile * TILE, count = std::min((long)TILE, job.outer - row);
    float y[TILE];
    times<PARTS>(OF(part) {
        const Floats whole = W::GROUPED ? total[part] : total[part] * lanes_of(scales + part * LANES);
        std::memcpy(y + part * LANES, &whole, sizeof whole);
    });
    float *const to = job.y + r * job.outer + row;
    for (long i = 0; i < count; i++) to[i] = y[i] + (job.bias ? job.bias[row + i] : 0.0f) + (job.adds ? to[i] : 0.0f);
}

// Multiply R rows of x, from row ``first``, by a tile of W.
template <class W, int R, bool GROUPED = W::GROUPED>
static void multiply(const Product &job, long tile, long first) {
    const long blocks = (job.inner + BLOCK - 1) / BLOCK;
    const char *const from = job.weights + tile * blocks * W::BYTES;
    const uint16_t *const scales = job.scales + tile * job.groups * TILE;
    const Rounded *const x = (const Rounded *)job.prepared + first * blocks;
    Floats total[R][PARTS] = {};
    for (long block = 0, group = 0, left = job.size; block < blocks; block++) {
        Ints sum[R][PARTS];
        times<R>(OF(r) {
            times<PARTS>(OF(part) { sum[r][part] = Ints{} + x[r * blocks + block].start; });
        });
        W::template add<R>(job, from + block * W::BYTES, x + block, blocks, sum);
        times<PARTS>(OF(part) {
            const auto by = GroupScale<W>::read(job, tile, group, part);
            times<R>(OF(r) {
                const Rounded &its = x[r * blocks + block];
                total[r][part] = by.add(floats(sum[r][part]), its.scale, its.sum, total[r][part]);
            });
        });
        if (GROUPED && --left == 0) group++, left = job.size;
    }
    times<R>(OF(r) { write_row<W>(job, total[r], scales, tile, first + r); });
}

// Multiply tiles of W from ``begin`` to ``end``, each by all rows of x while the tile is in the cache.
template <class W, bool = W::GROUPED> static void multiply_tiles(const Product &job, long begin, long end) {
    for (long tile = begin; tile < end; tile++) {
        long first = 0;
        for (; first + 4 <= job.rows; first += 4) multiply<W, 4>(job, tile, first);
        for (; first + 2 <= job.rows; first += 2) multiply<W, 2>(job, tile, first);
        for (; first < job.rows; first++) multiply<W, 1>(job, tile, first);
    }
}

// Scale or minimum in fp16, or in bf16 if not ``half``.
static INLINE float single(uint16_t number, bool half) {
    uint16_t lanes[LANES] = {number};
    const Floats found = half ? halves_of(lanes) : lanes_of(lanes);
    return load<float>(&found);
}

// Read row ``row`` of a quantised table as fp32, block by block.
static void read_quantized(const Product &table, long row, float *to) {
    const bool four = table.bits == 4;
    const long tile = row / TILE, lane = row % TILE, blocks = (table.inner + BLOCK - 1) / BLOCK, size = four ? BLOCK / 2 : BLOCK;
    for (long block = 0; block < blocks; block++) {
        const long at = (tile * table.groups + (table.groups > 1 ? block / table.size : 0)) * TILE + lane;
        const float scale = single(table.scales[at], table.half);
        const float minimum = table.minimums ? single(table.minimums[at], true) + (four ? 8 * scale : 0.0f) : 0.0f;
        const char *const from = table.weights + ((tile * blocks + block) * size * TILE) + lane * 4;
        const long count = std::min((long)BLOCK, table.inner - block * BLOCK);
        for (long i = 0; i < count; i++) {
            const long j = i % size;
            const char byte = from[j / 4 * TILE * 4 + j % 4];
            const int half_byte = (uint8_t)byte >> (i < size ? 0 : 4) & 15;
            const int weight = !four ? (int8_t)byte : table.levels ? table.levels[half_byte] : half_byte - 8;
            *to++ = weight * scale + minimum;
        }
    }
}

// Read row ``row`` of a table as fp32.
static void read_row(const Product &table, long row, float *to) {
    const char *const from = table.weights + row * table.stride;
    if (table.bits == 32) {
        std::memcpy(to, from, table.inner * sizeof *to);
    } else if (table.bits == 16) {
        for (long i = 0; i < table.inner; i++) {
            const uint32_t number = (uint32_t)load<uint16_t>(from + 2 * i) << 16;
            std::memcpy(to + i, &number, sizeof *to);
        }
    } else read_quantized(table, row, to);
}

// Call f(W{}) with the format W of quantised weights, of which ``Plain`` has one scale per row and ``Grouped`` several.
template <class Plain, class Grouped, class F> static void with_scales(const Product &job, F f) {
    if (job.half && job.minimums) f(Fp16Scales<Grouped, true>{});
    else if (job.half) f(Fp16Scales<Grouped, false>{});
    else if (job.groups == 1) f(Plain{});
    else f(Grouped{});
}

template <class F> static void with_integers(const Product &job, F f) {
    if (job.bits == 8) with_scales<Int8<false>, Int8<true>>(job, f);
    else if (job.levels && job.half) f(Fp16Scales<Leveled, false>{});
    else if (job.levels) f(Leveled{});
    else with_scales<Int4<false>, Int4<true>>(job, f);
}

// Call f(W{}) with the format W of the weights.
template <class F> static void with_format(const Product &job, F f) {
    if (job.bits == 32) f(Single{});
    else if (job.bits == 16) f(Bf16{});
    else with_integers(job, f);
}

static INLINE long tiles_of(const Product &job) { return (job.outer + TILE - 1) / TILE; }
