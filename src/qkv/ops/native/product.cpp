// y = x W^T + b for rows x in fp32, with weights in fp32, bf16, int8 or int4. The weights are read once, in the order of
// their addresses, so that a product of a few rows takes the time of reading them.
//
// Weights in fp32 and bf16 are multiplied in fp32. For weights in int8 and int4, x is rounded to int8 with a scale per
// block of 32, and the products of a block are added as integers, which is exact.
//
// OpenMP's symbols are left open and resolved to the library that torch has loaded: two of them in one process compete
// for the cores.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Vectors are as wide as the instructions that the compiler's flags allow.
#if defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define WIDE 1
constexpr int UNROLLED = 8;
constexpr int LANES = 16;
#elif defined(__AVX2__)
#define MIDDLE 1
constexpr int UNROLLED = 8;
constexpr int LANES = 8;
#else
constexpr int UNROLLED = 1;  // code of a size that compiles fast
constexpr int LANES = 4;
#endif
constexpr int VECTOR = 4 * LANES;     // bytes
constexpr int BLOCK = 32;             // numbers of x with a scale of their own; also the smallest group of weights
constexpr int TILE = 16;              // rows of W that are stored side by side
constexpr int PARTS = TILE / LANES;   // vectors with a lane for each row of a tile

typedef float Floats __attribute__((vector_size(VECTOR)));
typedef int32_t Ints __attribute__((vector_size(VECTOR)));
typedef uint32_t Words __attribute__((vector_size(VECTOR)));
typedef int8_t Bytes __attribute__((vector_size(VECTOR)));
typedef uint16_t Shorts __attribute__((vector_size(VECTOR / 2)));

#define INLINE inline __attribute__((always_inline))

// f(0), f(1), … f(N - 1) with constant arguments, so that arrays of vectors become registers.
template <class F, int... I> static INLINE void each(std::integer_sequence<int, I...>, F f) {
    (f(std::integral_constant<int, I>{}), ...);
}
template <int N, class F> static INLINE void times(F f) { each(std::make_integer_sequence<int, N>{}, f); }
#define OF(name) [&](auto name) __attribute__((always_inline))

template <class T> static INLINE T load(const void *from) {
    T found;
    std::memcpy(&found, from, sizeof found);
    return found;
}

static INLINE float total(Floats numbers) {
#if WIDE
    return _mm512_reduce_add_ps((__m512)numbers);
#elif MIDDLE
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)numbers), _mm256_extractf128_ps((__m256)numbers, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    return (numbers[0] + numbers[1]) + (numbers[2] + numbers[3]);
#endif
}

static INLINE Floats floats(Ints numbers) { return __builtin_convertvector(numbers, Floats); }

// A number in bf16 for each lane.
static INLINE Floats lanes_of(const uint16_t *numbers) {
#if WIDE
    return (Floats)((Words)_mm512_cvtepu16_epi32(load<__m256i>(numbers)) << 16);
#elif MIDDLE
    return (Floats)((Words)_mm256_cvtepu16_epi32(load<__m128i>(numbers)) << 16);
#else
    return (Floats)(__builtin_convertvector(load<Shorts>(numbers), Words) << 16);
#endif
}

// The same four bytes in all lanes.
static INLINE Bytes repeated(const int8_t *four) { return (Bytes)(Ints{} + load<int32_t>(four)); }

// Plain formats: rows of weights, one after the other. A step is what is read at once, COUNT weights in BYTES. ``pack``
// writes a row of x in the order in which steps read it, with zeros up to a whole step.

struct Single {
    static constexpr long COUNT = 2 * LANES, BYTES = 4 * COUNT;

    static void pack(const float *x, long inner, long steps, float *to) {
        std::memcpy(to, x, inner * sizeof *x);
        std::fill(to + inner, to + steps * COUNT, 0.0f);
    }
    static INLINE void read(const char *from, Floats (&w)[2]) {
        times<2>(OF(v) { w[v] = load<Floats>(from + VECTOR * v); });
    }
};

// A vector holds pairs of weights, of which the upper halves are those of odd places: x has its even places first.
struct Bf16 {
    static constexpr long COUNT = 2 * LANES, BYTES = 2 * COUNT;

    static void pack(const float *x, long inner, long steps, float *to) {
        for (long begin = 0; begin < steps * COUNT; begin += COUNT)
            for (long i = 0; i < COUNT; i++) {
                const long from = begin + i % LANES * 2 + i / LANES;
                to[begin + i] = from < inner ? x[from] : 0.0f;
            }
    }
    static INLINE void read(const char *from, Floats (&w)[2]) {
        const Words pairs = load<Words>(from);
        w[0] = (Floats)(pairs << 16);
        w[1] = (Floats)(pairs & 0xffff0000u);
    }
};

struct Plain {
    const char *weights;
    const float *bias;  // null: none
    const float *x;     // (rows, inner)
    float *y;           // (rows, outer)
    long rows, inner, outer, stride;  // stride: bytes from a row of W to the next
    float *packed;      // (rows, whole steps)
};

// R rows of x, from the row ``first``, times one row of W. Rows of W are read one by one, since processors read one
// stream of addresses faster than several at once.
template <class W, int R> static INLINE void multiply(const Plain &job, long row, long first) {
    const char *const from = job.weights + row * job.stride;
    const long whole = job.inner / W::COUNT, rest = job.inner % W::COUNT, width = (whole + (rest > 0)) * W::COUNT;
    const float *const x = job.packed + first * width;
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
    times<R>(OF(r) { job.y[(first + r) * job.outer + row] = total(sum[r][0] + sum[r][1]) + bias; });
}

template <class W> static void multiply_all(Plain job, int threads) {
    const long steps = (job.inner + W::COUNT - 1) / W::COUNT, tiles = (job.outer + TILE - 1) / TILE;
    job.packed = (float *)std::aligned_alloc(64, (job.rows * steps * W::COUNT * sizeof(float) + 63) / 64 * 64);
    for (long r = 0; r < job.rows; r++) W::pack(job.x + r * job.inner, job.inner, steps, job.packed + r * steps * W::COUNT);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long tile = 0; tile < tiles; tile++) {  // which stays in the cache for all rows of x
        const long begin = tile * TILE, end = std::min(begin + TILE, job.outer);
        long first = 0;
        for (; first + 4 <= job.rows; first += 4)
            for (long row = begin; row < end; row++) multiply<W, 4>(job, row, first);
        for (; first + 2 <= job.rows; first += 2)
            for (long row = begin; row < end; row++) multiply<W, 2>(job, row, first);
        for (; first < job.rows; first++)
            for (long row = begin; row < end; row++) multiply<W, 1>(job, row, first);
    }
    std::free(job.packed);
}

// Quantised formats: tiles of rows. The bytes of a block of a tile are (BYTES / 64, 16 rows, 4), so that a lane belongs
// to a row of W. The instructions multiply unsigned bytes by signed ones: weights become unsigned by an OFFSET, which
// the start of a block's sum takes back.

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

struct Int8 {
    static constexpr long BYTES = BLOCK * TILE;
#if MIDDLE
    static constexpr int OFFSET = 0;
#else
    static constexpr int OFFSET = 128;
#endif

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
struct Int4 {
    static constexpr long BYTES = BLOCK * TILE / 2;
    static constexpr int OFFSET = 8, HALF = BLOCK / 2;

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

struct Quantized {
    const char *weights;     // (tiles, blocks) of BYTES
    const uint16_t *scales;  // bf16, (tiles, groups, 16)
    const float *bias;       // null: none
    const float *x;          // (rows, inner)
    float *y;                // (rows, outer)
    long rows, inner, outer, groups, size;  // size: blocks of a group
    Rounded *rounded;        // (rows, blocks)
};

// R rows of x, from the row ``first``, times the tile of W. GROUPED: it has several scales in a row.
template <class W, bool GROUPED, int R> static INLINE void multiply(const Quantized &job, long tile, long first) {
    const long blocks = (job.inner + BLOCK - 1) / BLOCK;
    const char *const from = job.weights + tile * blocks * W::BYTES;
    const uint16_t *const scales = job.scales + tile * job.groups * TILE;
    const Rounded *const x = job.rounded + first * blocks;
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
    const long count = std::min((long)TILE, job.outer - tile * TILE);
    times<R>(OF(r) {
        float y[TILE];
        times<PARTS>(OF(part) {
            const Floats whole = GROUPED ? total[r][part] : total[r][part] * lanes_of(scales + part * LANES);
            std::memcpy(y + part * LANES, &whole, sizeof whole);
        });
        float *const to = job.y + (first + r) * job.outer + tile * TILE;
        for (long i = 0; i < count; i++) to[i] = y[i] + (job.bias ? job.bias[tile * TILE + i] : 0.0f);
    });
}

template <class W, bool GROUPED> static void multiply_all(Quantized job, int threads) {
    const long blocks = (job.inner + BLOCK - 1) / BLOCK, tiles = (job.outer + TILE - 1) / TILE;
    job.rounded = (Rounded *)std::malloc(job.rows * blocks * sizeof(Rounded));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && job.rows > 4)
    for (long r = 0; r < job.rows; r++)
        for (long i = 0; i < blocks; i++) {
            const long count = std::min((long)BLOCK, job.inner - i * BLOCK);
            round_block(job.x + r * job.inner + i * BLOCK, count, W::OFFSET, job.rounded[r * blocks + i]);
        }
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long tile = 0; tile < tiles; tile++) {
        long first = 0;
        for (; first + 4 <= job.rows; first += 4) multiply<W, GROUPED, 4>(job, tile, first);
        for (; first + 2 <= job.rows; first += 2) multiply<W, GROUPED, 2>(job, tile, first);
        for (; first < job.rows; first++) multiply<W, GROUPED, 1>(job, tile, first);
    }
    std::free(job.rounded);
}

#define PUBLIC extern "C" __attribute__((visibility("default")))

// bits: 32 or 16.
PUBLIC void qkv_product(int bits, const void *weights, long stride, const float *bias, const float *x, float *y,
                        long rows, long inner, long outer, int threads) {
    const Plain job{(const char *)weights, bias, x, y, rows, inner, outer, stride, nullptr};
    if (bits == 32) multiply_all<Single>(job, threads);
    else multiply_all<Bf16>(job, threads);
}

// bits: 8 or 4. size: weights of a group, a multiple of BLOCK; 0: one scale for a row.
PUBLIC void qkv_quantized_product(int bits, const void *weights, const uint16_t *scales, long groups, long size,
                                  const float *bias, const float *x, float *y, long rows, long inner, long outer,
                                  int threads) {
    const Quantized job{(const char *)weights, scales, bias, x, y, rows, inner, outer, groups, size / BLOCK, nullptr};
    if (bits == 8 && groups == 1) multiply_all<Int8, false>(job, threads);
    else if (bits == 8) multiply_all<Int8, true>(job, threads);
    else if (groups == 1) multiply_all<Int4, false>(job, threads);
    else multiply_all<Int4, true>(job, threads);
}
