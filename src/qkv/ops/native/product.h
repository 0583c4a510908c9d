// y = x W^T + b for rows x in fp32, with weights in fp32, bf16, int8 or int4. The weights are read once, in the order of
// their addresses, so that a product of a few rows takes the time of reading them.
//
// Weights in fp32 are multiplied in fp32, and weights in bf16 in fp32 or, where the processor has products of bf16, with
// x rounded to bf16; sums are in fp32. For weights in int8 and int4, x is rounded to int8 with a scale per
// block of 32, and the products of a block are added as integers, which is exact.

#pragma once

#include <omp.h>

#include "vectors.h"

struct Product {
    int bits;                // 32, 16, 8 or 4
    const char *weights;
    const uint16_t *scales;  // of quantised weights: bf16, (tiles, groups, 16)
    const float *bias;       // null: none
    const float *x;          // (rows, inner)
    float *y;                // (rows, outer)
    long rows, inner, outer;
    long stride;             // of plain weights: bytes from a row of W to the next
    long groups, size;       // of quantised weights: number of groups of a row, blocks of a group
    bool adds;               // to y, instead of replacing it
    long tiled_from;         // rows of x from which tiles are used; 0: never
    char *prepared;          // rows of x as the format reads them
};

// Plain formats: rows of weights, one after the other. A step is what is read at once, COUNT weights in BYTES.
// ``prepare`` writes the row r of x in the order in which steps read it, STEP bytes each, with zeros up to a whole step.
// ``bytes``: of all prepared rows, each ``width``.
// ``add`` adds the products of a step of K rows of W, ``stride`` bytes apart, and of R rows of x, ``width`` apart.

// sum[k][r] += w · x, in fp32, where W::read gives the vector v of a step's weights. MANY: x has many rows, so that the
// loads of vectors bound the time and each is loaded once; else the memory does, and loading them again takes less time.
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
// x is rounded to bf16, and pairs of products are added by one instruction, twice as many as in fp32.
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
// A vector holds pairs of weights, of which the upper halves are those of odd places: x has its even places first.
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

// R rows of x, from the row ``first``, times K rows of W, from the row ``row`` and ``apart`` rows from each other. A number
// of y has the same value for all K and R. ``next`` is fetched meanwhile, ``share`` bytes for each step.
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

constexpr int ROWS = LANES / 4;  // of x, whose sums with four rows of W fit the registers
constexpr int MOST_FEW = 12;         // rows of x up to which reading W takes longest

// Rows of W from ``row`` to ``end``, four at a time, times R rows of x. ``next``: what is fetched meanwhile.
template <class W, bool MANY, int R>
static INLINE void multiply_fours(const Product &job, long row, long end, long first, const char *&next, long share) {
    for (; row < end; row += 4, next += share * (job.inner / W::COUNT))
        multiply_rows<W, MANY, 4, R>(job, row, first, next, share);
}

// All rows of x times the rows of W from ``row`` to ``end``, of which the next ones are fetched meanwhile, in the order of
// their addresses: processors read one stream of addresses faster than four at once.
template <class W, bool MANY> static void multiply_block(const Product &job, long row, long end) {
    const long height = end - row, steps = std::max(1L, job.inner / W::COUNT) * (height / 4) * ((job.rows + ROWS - 1) / ROWS);
    const long share = end + height <= job.outer ? height * job.stride / steps + 1 : 0;
    const char *next = job.weights + end * job.stride;
    // One row of x takes nearly the time of three, whose sums fit the registers where these are wide.
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

// Tiles of W from ``begin`` to ``end``, times all rows of x.
template <class W, long = W::COUNT> static void multiply_tiles(const Product &job, long begin, long end) {
    constexpr long HEIGHT = TILE / 2;
    long row = begin * TILE;
    end = std::min(end * TILE, job.outer);
    if (job.rows > MOST_FEW)
        for (; row + HEIGHT <= end; row += HEIGHT) multiply_block<W, true>(job, row, row + HEIGHT);
    else if (job.rows > 1)
        for (; row + HEIGHT <= end; row += HEIGHT) multiply_block<W, false>(job, row, row + HEIGHT);
    // One row of x: two streams, far from each other, so that a sum waits less for itself.
    const long half = job.rows == 1 ? (end - row) / 2 : 0;
    for (long i = 0; i < half; i++) multiply_rows<W, false, 2, 1>(job, row + i, 0, nullptr, 0, half);
    for (row += 2 * half; row < end; row++)
        for (long first = 0; first < job.rows; first++) multiply_rows<W, false, 1, 1>(job, row, first, nullptr, 0);
}

// Quantised formats: tiles of rows. The bytes of a block of a tile are (BYTES / 64, 16 rows, 4), so that a lane belongs
// to a row of W. The instructions multiply unsigned bytes by signed ones: weights become unsigned by an OFFSET, which
// the start of a block's sum takes back. GROUPED: a row has several scales.

struct Rounded {
    int8_t x[BLOCK];
    float scale;
    int32_t start;  // of a sum of products with weights that have an offset
};

// A block of x in int8, to multiples of its largest absolute value / 127. Numbers that are not finite make the scale so,
// and with it all products of the row.
static void round_block(const float *x, long count, int offset, Rounded &to) {
    float block[BLOCK] = {};
    std::memcpy(block, x, count * sizeof *x);
    int32_t largest = 0;  // as bits, among which NaN is larger than any number
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

template <bool SEVERAL> struct Int8 {
    static constexpr bool GROUPED = SEVERAL;
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

    template <int R> static INLINE void add(const char *from, const Rounded *x, long width, Ints (&sum)[R][PARTS]) {
#pragma GCC unroll UNROLLED
        for (int four = 0; four < BLOCK / 4; four++)
            times<PARTS>(OF(part) {
                const Bytes w = load<Bytes>(from + four * 4 * TILE + part * VECTOR);
                times<R>(OF(r) {
                    const Bytes its = repeated(x[r * width].x + 4 * four);
#if MIDDLE
                    // Sums of two products with an offset of 128 do not fit 16 bits: x takes the sign instead.
                    const Bytes size = (Bytes)_mm256_abs_epi8((__m256i)w);
                    const Bytes with_sign = (Bytes)_mm256_sign_epi8((__m256i)its, (__m256i)w);
                    sum[r][part] = add_products(sum[r][part], size, with_sign);
#else
                    sum[r][part] = add_products(sum[r][part], w ^ (int8_t)-128, its);
#endif
                });
            });
    }
};

// A byte of weight i of a block, i below 16, has weight i + 16 in its upper half; each is stored with the offset.
template <bool SEVERAL> struct Int4 {
    static constexpr bool GROUPED = SEVERAL;
    static constexpr long BYTES = BLOCK * TILE / 2;
    static constexpr int OFFSET = 8, HALF = BLOCK / 2;

    static long width(long inner) { return (inner + BLOCK - 1) / BLOCK * sizeof(Rounded); }
    static long bytes(long rows, long inner) { return rows * width(inner); }
    static void prepare(const float *x, long inner, char *prepared, long r) {
        round_row(x, inner, OFFSET, prepared + r * width(inner));
    }

    template <int R> static INLINE void add(const char *from, const Rounded *x, long width, Ints (&sum)[R][PARTS]) {
        Ints other[R][PARTS] = {};
#pragma GCC unroll UNROLLED
        for (int four = 0; four < HALF / 4; four++)
            times<PARTS>(OF(part) {
                const Words both = load<Words>(from + four * 4 * TILE + part * VECTOR);
                const Bytes low = (Bytes)(both & 0x0f0f0f0fu), high = (Bytes)(both >> 4 & 0x0f0f0f0fu);
                times<R>(OF(r) {
                    const int8_t *const its = x[r * width].x + 4 * four;
#if MIDDLE
                    // The largest sum of a block, 8 · 2 · 15 · 127, fits the 16 bits of pairs.
                    const __m256i lower = _mm256_maddubs_epi16((__m256i)low, (__m256i)repeated(its));
                    const __m256i upper = _mm256_maddubs_epi16((__m256i)high, (__m256i)repeated(its + HALF));
                    const __m256i pairs = _mm256_add_epi16((__m256i)other[r][part], lower);
                    other[r][part] = (Ints)_mm256_add_epi16(pairs, upper);
#else
                    sum[r][part] = add_products(sum[r][part], low, repeated(its));
                    other[r][part] = add_products(other[r][part], high, repeated(its + HALF));
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

// y of a row of x and a tile of W from the sums of its blocks; scales: of the tile.
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

// R rows of x, from the row ``first``, times the tile of W.
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
        W::template add<R>(from + block * W::BYTES, x + block, blocks, sum);
        times<PARTS>(OF(part) {
            const Floats scale = GROUPED ? lanes_of(scales + group * TILE + part * LANES) : Floats{};
            times<R>(OF(r) {
                const float its = x[r * blocks + block].scale;
                const Floats factor = GROUPED ? scale * its : Floats{} + its;
                total[r][part] = fused(floats(sum[r][part]), factor, total[r][part]);
            });
        });
        if (GROUPED && --left == 0) group++, left = job.size;
    }
    times<R>(OF(r) { write_row<W>(job, total[r], scales, tile, first + r); });
}

// Tiles of W from ``begin`` to ``end``, each times all rows of x while it is in the cache.
template <class W, bool = W::GROUPED> static void multiply_tiles(const Product &job, long begin, long end) {
    for (long tile = begin; tile < end; tile++) {
        long first = 0;
        for (; first + 4 <= job.rows; first += 4) multiply<W, 4>(job, tile, first);
        for (; first + 2 <= job.rows; first += 2) multiply<W, 2>(job, tile, first);
        for (; first < job.rows; first++) multiply<W, 1>(job, tile, first);
    }
}

// Row ``row`` of a table in 32, 16 or 8 bits, in fp32.
static void read_row(const Product &table, long row, float *to) {
    const char *const from = table.weights + row * table.stride;
    if (table.bits == 32) {
        std::memcpy(to, from, table.inner * sizeof *to);
    } else if (table.bits == 16) {
        for (long i = 0; i < table.inner; i++) {
            const uint32_t number = (uint32_t)load<uint16_t>(from + 2 * i) << 16;
            std::memcpy(to + i, &number, sizeof *to);
        }
    } else {
        const long tile = row / TILE, lane = row % TILE, blocks = (table.inner + BLOCK - 1) / BLOCK;
        const uint16_t *const scales = table.scales + tile * table.groups * TILE + lane;
        for (long i = 0; i < table.inner; i++) {
            const long block = tile * blocks + i / BLOCK, four = i % BLOCK / 4;
            const uint32_t scale = (uint32_t)scales[table.groups > 1 ? i / BLOCK / table.size * TILE : 0] << 16;
            to[i] = (int8_t)table.weights[((block * (BLOCK / 4) + four) * TILE + lane) * 4 + i % 4] * load<float>(&scale);
        }
    }
}

// f(W{}) with the format W of the weights.
template <class F> static void with_format(const Product &job, F f) {
    if (job.bits == 32) f(Single{});
    else if (job.bits == 16) f(Bf16{});
    else if (job.bits == 8 && job.groups == 1) f(Int8<false>{});
    else if (job.bits == 8) f(Int8<true>{});
    else if (job.groups == 1) f(Int4<false>{});
    else f(Int4<true>{});
}

static INLINE long tiles_of(const Product &job) { return (job.outer + TILE - 1) / TILE; }
