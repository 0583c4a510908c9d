// Vectors of numbers, as wide as the instructions that the compiler's flags allow.

#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512BW__) && defined(__AVX512VNNI__)
#define WIDE 1
constexpr int UNROLLED = 8;
constexpr int LANES = 16;
#elif defined(__AVX2__)
#define MIDDLE 1
constexpr int UNROLLED = 8;
constexpr int LANES = 8;
#else
constexpr int UNROLLED = 1;  // small code, which compiles fast
constexpr int LANES = 4;
#endif
constexpr int VECTOR = 4 * LANES;     // bytes
constexpr int BLOCK = 32;             // numbers of x per scale; also the smallest group of weights
constexpr int TILE = 16;              // rows of W that are stored interleaved
constexpr int PARTS = TILE / LANES;   // vectors that have one lane per row of a tile

typedef float Floats __attribute__((vector_size(VECTOR)));
typedef int32_t Ints __attribute__((vector_size(VECTOR)));
typedef uint32_t Words __attribute__((vector_size(VECTOR)));
typedef int8_t Bytes __attribute__((vector_size(VECTOR)));
typedef uint16_t Shorts __attribute__((vector_size(VECTOR / 2)));

#define INLINE inline __attribute__((always_inline))

// Call f(0), f(1), … f(N - 1) with compile-time constants, so that arrays of vectors become registers.
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
static INLINE void store(float *to, Floats x) { std::memcpy(to, &x, sizeof x); }

// a b + sum, rounded once. Compilers may split a product and a sum into two instructions in one loop and not in
// another, as GCC 13 does for Sapphire Rapids. Then a row's result would have different bits alone and in a batch.
static INLINE Floats fused(Floats a, Floats b, Floats sum) {
#if WIDE
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif MIDDLE
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return sum + a * b;
#endif
}

// x in all lanes: x - 0 compiles to a broadcast from memory; 0 + x would remain an addition, as it differs for x = -0.
static INLINE Floats all(float x) { return x - Floats{}; }

#if WIDE || MIDDLE
static INLINE float total_of(__m256 numbers) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(numbers), _mm256_extractf128_ps(numbers, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
#endif

static INLINE float total(Floats numbers) {
#if WIDE
    const __m256 lower = _mm512_castps512_ps256((__m512)numbers), upper = _mm512_extractf32x8_ps((__m512)numbers, 1);
    return total_of(_mm256_add_ps(lower, upper));
#elif MIDDLE
    return total_of((__m256)numbers);
#else
    return (numbers[0] + numbers[1]) + (numbers[2] + numbers[3]);
#endif
}

// Return the same vector; if YES, force it into a register, since compilers would load it again at each use.
template <bool YES> static INLINE Floats held(Floats numbers) {
#if WIDE || MIDDLE
    if constexpr (YES) asm("" : "+v"(numbers));
#endif
    return numbers;
}

// found[r][k] = total(sums[k][r]), with far fewer instructions.
static INLINE void totals(const Floats (&sums)[4][LANES / 4], float (&found)[LANES / 4][4]) {
#if WIDE
    __m512 pairs[4];  // one vector per k, with a quarter per r
    times<4>(OF(k) {
        const __m512 a = (__m512)sums[k][0], b = (__m512)sums[k][1], c = (__m512)sums[k][2], d = (__m512)sums[k][3];
        const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
        pairs[k] = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    });
    auto halves = [](__m512 a, __m512 b) __attribute__((always_inline)) {
        return _mm512_add_ps((__m512)_mm512_unpacklo_pd((__m512d)a, (__m512d)b),
                             (__m512)_mm512_unpackhi_pd((__m512d)a, (__m512d)b));
    };
    const __m512 first = halves(pairs[0], pairs[1]), last = halves(pairs[2], pairs[3]);
    const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(first, last, 0x88), _mm512_shuffle_ps(first, last, 0xdd));
    std::memcpy(found, &all, sizeof all);
#elif MIDDLE
    __m256 pairs[4];  // one vector per k, with a half per r
    times<4>(OF(k) {
        const __m256 a = (__m256)sums[k][0], b = (__m256)sums[k][1];
        pairs[k] = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    });
    auto halves = [](__m256 a, __m256 b) __attribute__((always_inline)) {
        return _mm256_add_ps((__m256)_mm256_unpacklo_pd((__m256d)a, (__m256d)b),
                             (__m256)_mm256_unpackhi_pd((__m256d)a, (__m256d)b));
    };
    const __m256 first = halves(pairs[0], pairs[1]), last = halves(pairs[2], pairs[3]);
    const __m256 all = _mm256_add_ps(_mm256_shuffle_ps(first, last, 0x88), _mm256_shuffle_ps(first, last, 0xdd));
    std::memcpy(found, &all, sizeof all);
#else
    times<4>(OF(k) { found[0][k] = total(sums[k][0]); });
#endif
}

static INLINE Floats floats(Ints numbers) { return __builtin_convertvector(numbers, Floats); }

// Load one bf16 number per lane.
static INLINE Floats lanes_of(const uint16_t *numbers) {
#if WIDE
    return (Floats)((Words)_mm512_cvtepu16_epi32(load<__m256i>(numbers)) << 16);
#elif MIDDLE
    return (Floats)((Words)_mm256_cvtepu16_epi32(load<__m128i>(numbers)) << 16);
#else
    return (Floats)(__builtin_convertvector(load<Shorts>(numbers), Words) << 16);
#endif
}

// Load one fp16 number per lane.
static INLINE Floats halves_of(const uint16_t *numbers) {
#if WIDE
    return (Floats)_mm512_cvtph_ps(load<__m256i>(numbers));
#elif MIDDLE && defined(__F16C__)
    return (Floats)_mm256_cvtph_ps(load<__m128i>(numbers));
#else
    // With the bits in place, an exponent is 112 too small, and a factor corrects it for subnormal numbers too.
    const Words bits = __builtin_convertvector(load<Shorts>(numbers), Words);
    const Floats size = (Floats)((bits & 0x7fffu) << 13) * 0x1p112f;
    return (Floats)((Words)size | (bits & 0x8000u) << 16);
#endif
}

// The same four bytes in all lanes.
static INLINE Bytes repeated(const int8_t *four) { return (Bytes)(Ints{} + load<int32_t>(four)); }

static INLINE Floats either(Ints chosen, Floats yes, Floats no) {
    return chosen ? yes : no;
}

// e^x with a relative error below 3e-7 (Cephes' polynomial); x is clamped so that the result is a normal number.
static INLINE Floats exponential(Floats x) {
    const Floats least = Floats{} - 87.0f, most = Floats{} + 88.0f;
    x = either(x < least, least, x);
    x = either(x > most, most, x);
    const Floats shifted = x * 1.44269504f + 12582912.0f;  // the last bits are the nearest integer
    const Floats n = shifted - 12582912.0f;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return (Floats)((Ints)p + (((Ints)shifted - 0x4b400000) << 23));
}

// Call f(i, vector of x from index i) for all of x; the last vector is padded with zeros beyond ``count``.
template <class F> static INLINE void vectors_of(const float *x, long count, F f) {
    long i = 0;
    for (; i + LANES <= count; i += LANES) f(i, load<Floats>(x + i));
    if (i < count) {
        float rest[LANES] = {};
        std::memcpy(rest, x + i, (count - i) * sizeof *x);
        f(i, load<Floats>(rest));
    }
}

// to[i] = f(i, vector of x from index i) for all of x; in the last vector, only ``count`` numbers are written.
template <class F> static INLINE void mapped(const float *x, long count, float *to, F f) {
    vectors_of(x, count, [&](long i, Floats v) __attribute__((always_inline)) {
        const Floats found = f(i, v);
        if (i + LANES <= count) std::memcpy(to + i, &found, sizeof found);
        else std::memcpy(to + i, &found, (count - i) * sizeof *to);
    });
}

// Load the vector of ``x`` from index ``i``, padded as in ``vectors_of``.
static INLINE Floats vector_at(const float *x, long i, long count) {
    if (i + LANES <= count) return load<Floats>(x + i);
    float rest[LANES] = {};
    std::memcpy(rest, x + i, (count - i) * sizeof *x);
    return load<Floats>(rest);
}

static INLINE float dot(const float *a, const float *b, long count) {
    Floats sum = {};
    vectors_of(a, count, [&](long i, Floats x) __attribute__((always_inline)) { sum += x * vector_at(b, i, count); });
    return total(sum);
}

// Transpose a square of LANES vectors by exchanging halves, then quarters, and so on.
template <int STEP> static INLINE void exchange(Floats (&a)[LANES]) {
    if constexpr (STEP > 0) {
        Ints low, high;
        for (int i = 0; i < LANES; i++) {
            low[i] = i & STEP ? i - STEP + LANES : i;
            high[i] = i & STEP ? i + LANES : i + STEP;
        }
        times<LANES>(OF(i) {
            if constexpr (!(i & STEP)) {
                const Floats one = a[i], other = a[i + STEP];
                a[i] = __builtin_shuffle(one, other, low);
                a[i + STEP] = __builtin_shuffle(one, other, high);
            }
        });
        exchange<STEP / 2>(a);
    }
}
