// y = x W^T + b for rows x in fp32, with weights in fp32, bf16, int8 or int4. The weights are read once, in the order of
// their addresses, so that a product of a few rows takes the time of reading them.
//
// Weights in fp32 and bf16 are multiplied in fp32. For weights in int8 and int4, x is rounded to int8 with a scale per
// block of 32, and the products of a block are added as integers, which is exact.

#pragma once

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
    char *prepared;          // rows of x as the format reads them, each ``width`` bytes
};

// Plain formats: rows of weights, one after the other. A step is what is read at once, COUNT weights in BYTES. ``prepare``
// writes a row of x in the order in which steps read it, with zeros up to a whole step.

struct Single {
    static constexpr long COUNT = 2 * LANES, BYTES = 4 * COUNT;

    static long width(long inner) { return (inner + COUNT - 1) / COUNT * COUNT * sizeof(float); }

    static void prepare(const float *x, long inner, char *to) {
        std::memcpy(to, x, inner * sizeof *x);
        std::memset(to + inner * sizeof *x, 0, width(inner) - inner * sizeof *x);
    }
    static INLINE void read(const char *from, Floats (&w)[2]) {
        times<2>(OF(v) { w[v] = load<Floats>(from + VECTOR * v); });
    }
};

// A vector holds pairs of weights, of which the upper halves are those of odd places: x has its even places first.
struct Bf16 {
    static constexpr long COUNT = 2 * LANES, BYTES = 2 * COUNT;

    static long width(long inner) { return Single::width(inner); }

    static void prepare(const float *x, long inner, char *to) {
        float *packed = (float *)to;
        for (long begin = 0; begin < inner; begin += COUNT)
            for (long i = 0; i < COUNT; i++) {
                const long from = begin + i % LANES * 2 + i / LANES;
                *packed++ = from < inner ? x[from] : 0.0f;
            }
    }
    static INLINE void read(const char *from, Floats (&w)[2]) {
        const Words pairs = load<Words>(from);
        w[0] = (Floats)(pairs << 16);
        w[1] = (Floats)(pairs & 0xffff0000u);
    }
};

// R rows of x, from the row ``first``, times one row of W. Rows of W are read one by one, since processors read one
// stream of addresses faster than several at once.
template <class W, int R> static INLINE void multiply_row(const Product &job, long row, long first) {
    const char *const from = job.weights + row * job.stride;
    const long whole = job.inner / W::COUNT, rest = job.inner % W::COUNT, width = W::width(job.inner) / sizeof(float);
    const float *const x = (const float *)job.prepared + first * width;
    Floats sum[R][2] = {};
    auto add = [&](const char *step, const float *its) __attribute__((always_inline)) {
        Floats w[2];
        W::read(step, w);
        times<R>(OF(r) { times<2>(OF(v) { sum[r][v] += w[v] * load<Floats>(its + r * width + LANES * v); }); });
    };
    for (long step = 0; step < whole; step++) add(from + step * W::BYTES, x + step * W::COUNT);
    if (rest) {
        char last[W::BYTES] = {};
        std::memcpy(last, from + whole * W::BYTES, rest * W::BYTES / W::COUNT);
        add(last, x + whole * W::COUNT);
    }
    const float bias = job.bias ? job.bias[row] : 0.0f;
    times<R>(OF(r) {
        float *const y = job.y + (first + r) * job.outer + row;
        *y = total(sum[r][0] + sum[r][1]) + bias + (job.adds ? *y : 0.0f);
    });
}

template <class W, int R, long = W::COUNT> static void multiply(const Product &job, long tile, long first) {
    const long end = std::min((tile + 1) * TILE, job.outer);
    for (long row = tile * TILE; row < end; row++) multiply_row<W, R>(job, row, first);
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
    static void prepare(const float *x, long inner, char *to) { round_row(x, inner, OFFSET, to); }

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
    static void prepare(const float *x, long inner, char *to) { round_row(x, inner, OFFSET, to); }

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
                total[r][part] += floats(sum[r][part]) * (GROUPED ? scale * its : Floats{} + its);
            });
        });
        if (GROUPED && --left == 0) group++, left = job.size;
    }
    const long row = tile * TILE, count = std::min((long)TILE, job.outer - row);
    times<R>(OF(r) {
        float y[TILE];
        times<PARTS>(OF(part) {
            const Floats whole = GROUPED ? total[r][part] : total[r][part] * lanes_of(scales + part * LANES);
            std::memcpy(y + part * LANES, &whole, sizeof whole);
        });
        float *const to = job.y + (first + r) * job.outer + row;
        for (long i = 0; i < count; i++)
            to[i] = y[i] + (job.bias ? job.bias[row + i] : 0.0f) + (job.adds ? to[i] : 0.0f);
    });
}

// Tiles of W from ``begin`` to ``end``, each times all rows of x while it is in the cache.
template <class W> static void multiply_tiles(const Product &job, long begin, long end) {
    for (long tile = begin; tile < end; tile++) {
        long first = 0;
        for (; first + 4 <= job.rows; first += 4) multiply<W, 4>(job, tile, first);
        for (; first + 2 <= job.rows; first += 2) multiply<W, 2>(job, tile, first);
        for (; first < job.rows; first++) multiply<W, 1>(job, tile, first);
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

template <class W> static void multiply_all(Product job, int threads) {
    const long width = W::width(job.inner);
    job.prepared = (char *)std::aligned_alloc(64, (job.rows * width + 63) / 64 * 64);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && job.rows > 4)
    for (long r = 0; r < job.rows; r++) W::prepare(job.x + r * job.inner, job.inner, job.prepared + r * width);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long tile = 0; tile < tiles_of(job); tile++) multiply_tiles<W>(job, tile, tile + 1);
    std::free(job.prepared);
}
