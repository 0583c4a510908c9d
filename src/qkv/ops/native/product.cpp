// y = x W^T + b for a few rows x in fp32. The weights are fp32, bf16, int8 or int4 and are widened in registers, so
// that a product takes the time of reading them.
//
// Vectors are GCC's vector extensions, as wide as the instructions that the compiler's flags allow. OpenMP's symbols
// are left open and resolved to the library that torch has loaded: two of them in one process compete for the cores.

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Shorts __attribute__((vector_size(2 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));

constexpr int BLOCK = 32;   // weights that are widened at once; also the smallest group of a scale
constexpr int VECTORS = BLOCK / LANES;
constexpr int OUTPUTS = 4;  // rows of W that share the vectors of x in registers
constexpr int LINE = 64;    // bytes of a cache line

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

// Request the cache lines of a block in advance.
template <long BYTES> static INLINE void request(const char *from) {
    times<(BYTES + LINE - 1) / LINE>(OF(i) { __builtin_prefetch(from + LINE * i); });
}

// The compiler has no single instruction for these conversions of narrow vectors, the processors do.
static INLINE Ints signed_bytes(const char *from) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
#else
    return __builtin_convertvector(load<Bytes>(from), Ints);
#endif
}

static INLINE Ints unsigned_shorts(const char *from) {
#if defined(__AVX512F__)
    return (Ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
#else
    return __builtin_convertvector(load<Shorts>(from), Ints);
#endif
}

static INLINE Floats floats(Ints numbers) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtepi32_ps((__m512i)numbers);
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtepi32_ps((__m256i)numbers);
#else
    return __builtin_convertvector(numbers, Floats);
#endif
}

// A number in bf16 in all lanes.
static INLINE Floats from_bf16(uint16_t bits) { return (Floats)((Ints{} + bits) << 16); }

// One block of each format: its bytes, and its weights as vectors.

struct Single {
    static constexpr long bytes = 4 * BLOCK;
    static INLINE void widen(const char *from, Floats (&w)[VECTORS]) {
        times<VECTORS>(OF(v) { w[v] = load<Floats>(from + 4 * LANES * v); });
    }
};

struct Bf16 {
    static constexpr long bytes = 2 * BLOCK;
    static INLINE void widen(const char *from, Floats (&w)[VECTORS]) {
        times<VECTORS>(OF(v) { w[v] = (Floats)(unsigned_shorts(from + 2 * LANES * v) << 16); });
    }
};

struct Int8 {
    static constexpr long bytes = BLOCK;
    static INLINE void widen(const char *from, Floats (&w)[VECTORS]) {
        times<VECTORS>(OF(v) { w[v] = floats(signed_bytes(from + LANES * v)); });
    }
};

// Byte i holds weight i in its lower half and weight i + 16 in its upper half, each from -8 to 7.
struct Int4 {
    static constexpr long bytes = BLOCK / 2;
    static INLINE void widen(const char *from, Floats (&w)[VECTORS]) {
        times<VECTORS / 2>(OF(v) {
            const Ints both = signed_bytes(from + LANES * v);
#if defined(__AVX512F__)
            // One instruction, which reads the lowest four bits of each index.
            const __m512 values = {0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1};
            w[v] = (Floats)_mm512_permutexvar_ps((__m512i)both, values);
            w[v + VECTORS / 2] = (Floats)_mm512_permutexvar_ps((__m512i)(both >> 4), values);
#else
            w[v] = floats((both << 28) >> 28);
            w[v + VECTORS / 2] = floats(both >> 4);
#endif
        });
    }
};

struct Job {
    const char *weights;
    const uint16_t *scales;  // bf16, (outer, groups); null: none
    const float *bias;       // null: none
    const float *x;          // (rows, at least inner rounded up to blocks)
    float *y;                // (rows, outer)
    long rows, inner, outer, stride, groups, size, x_stride;  // stride: bytes of a row of W; size: blocks of a group
};

// Adds B rows of W times R rows of x in one block to the sums.
template <class W, int R, int B>
static INLINE void add(const char *const (&from)[B], const float *x, long x_stride, Floats (&sum)[B][R]) {
    times<B>(OF(b) {
        Floats w[VECTORS];
        W::widen(from[b], w);
        times<VECTORS>(OF(v) {
            times<R>(OF(r) { sum[b][r] += w[v] * load<Floats>(x + r * x_stride + v * LANES); });
        });
    });
}

// R rows of x, from the row ``first``, times B rows of W, from ``row``. ONE: every block is a group of its own. The
// rows of W lie one after the other, so the next B rows are requested in the order of their bytes, which processors
// read faster than B places at once.
template <class W, bool ONE, int R, int B> static INLINE void tile(const Job &job, long row, long first) {
    const char *const w = job.weights + row * job.stride;
    const float *const x = job.x + first * job.x_stride;
    const long whole = job.inner / BLOCK, rest = job.inner % BLOCK;
    const long size = ONE ? 1 : job.size ? job.size : whole ? whole : 1;
    const char *from[B];
    Floats total[B][R] = {};
    for (long begin = 0, group = 0; begin < whole; begin += size, group++) {
        Floats sum[B][R] = {};
        const long end = ONE ? begin + 1 : begin + size < whole ? begin + size : whole;
        for (long block = begin; block < end; block++) {
            times<B>(OF(b) {
                from[b] = w + b * job.stride + block * W::bytes;
                request<W::bytes>(w + B * job.stride + (block * B + b) * W::bytes);
            });
            add<W, R, B>(from, x + block * BLOCK, job.x_stride, sum);
        }
        times<B>(OF(b) {
            const uint16_t one = 0x3f80;
            const Floats scale = from_bf16(job.scales ? job.scales[(row + b) * job.groups + group] : one);
            times<R>(OF(r) { total[b][r] += sum[b][r] * scale; });
        });
    }
    if (rest) {  // only plain formats: rows of the others are stored in whole blocks
        char last[B][W::bytes] = {};
        times<B>(OF(b) {
            std::memcpy(last[b], w + b * job.stride + whole * W::bytes, rest * W::bytes / BLOCK);
            from[b] = last[b];
        });
        add<W, R, B>(from, x + whole * BLOCK, job.x_stride, total);
    }
    times<B>(OF(b) {
        times<R>(OF(r) {
            float sum = 0;
            for (int lane = 0; lane < LANES; lane++) sum += total[b][r][lane];
            job.y[(first + r) * job.outer + row + b] = sum + (job.bias ? job.bias[row + b] : 0.0f);
        });
    });
}

template <class W, bool ONE, int B> static INLINE void rows_of(const Job &job, long row) {
    long first = 0;
    for (; first + 4 <= job.rows; first += 4) tile<W, ONE, 4, B>(job, row, first);
    for (; first + 2 <= job.rows; first += 2) tile<W, ONE, 2, B>(job, row, first);
    for (; first < job.rows; first++) tile<W, ONE, 1, B>(job, row, first);
}

template <class W, bool ONE> static void product(const Job &job, int threads) {
    const long tiles = (job.outer + OUTPUTS - 1) / OUTPUTS;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long i = 0; i < tiles; i++) {
        const long row = i * OUTPUTS;
        if (row + OUTPUTS <= job.outer)
            rows_of<W, ONE, OUTPUTS>(job, row);
        else
            for (long last = row; last < job.outer; last++) rows_of<W, ONE, 1>(job, last);
    }
}

// bits: 32, 16, 8 or 4. size: weights of a group, a multiple of BLOCK; 0: one scale for a row.
extern "C" __attribute__((visibility("default"))) void
qkv_product(int bits, const void *weights, long stride, const uint16_t *scales, long groups, long size,
            const float *bias, const float *x, long x_stride, float *y, long rows, long inner, long outer, int threads) {
    const Job job{(const char *)weights, scales, bias, x, y, rows, inner, outer, stride, groups, size / BLOCK, x_stride};
    if (bits == 32) product<Single, false>(job, threads);
    else if (bits == 16) product<Bf16, false>(job, threads);
    else if (bits == 8) product<Int8, false>(job, threads);
    else if (size == BLOCK) product<Int4, true>(job, threads);
    else product<Int4, false>(job, threads);
}
