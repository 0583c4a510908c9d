// Products by AMX tiles: registers of 16 rows of 64 bytes, two of which one instruction multiplies. The operating
// system gives a process the memory for these registers on request.
//
// Weights are read in the same storage format as in other products. In bf16, 16 rows of W are the first factor, and the
// rows of x, in pairs of numbers, are the second factor; the sums are W x^T, in fp32, over whole rows. In int8 and int4
// a block of a tile of W is the second factor as stored: the sums of a block are exact, and are scaled and added in the
// same way as in product.h, so that the results have the same bits.

#pragma once

#include <vector>

#include "product.h"

#if defined(QKV_TILES_HEADER)
#include QKV_TILES_HEADER  // for tests: an emulation of the same instructions
#define TILES 1
#elif defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define TILES 1
#define TILE_SIZES(sizes) _tile_loadconfig(sizes)
#define TILE_RELEASE() _tile_release()
#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define TILE_ADD_BF16(to, a, b) _tile_dpbf16ps(to, a, b)
#define TILE_ADD_INT8(to, a, b) _tile_dpbssd(to, a, b)
static bool tiles_permitted() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool permitted = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return permitted;
}
#else
#define TILES 0
static bool tiles_permitted() { return false; }
#endif

#if TILES
constexpr long HIGH = 16, BROAD = 64;  // rows and bytes of a tile

struct alignas(64) TileSizes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    TileSizes() {
        for (int i = 0; i < 8; i++) set(i, HIGH, BROAD);
    }
    void set(int tile, int high, int broad) { rows[tile] = high, bytes[tile] = broad; }
};

// Compiler barrier: data written at ``there`` is in memory, since the compiler does not see what tile loads read.
static INLINE void written(const void *there) { asm volatile("" ::"r"(there) : "memory"); }

// Configure tiles of these sizes, and release them at the end of the scope.
struct WithTiles {
    explicit WithTiles(const TileSizes &sizes) {
        written(&sizes);
        TILE_SIZES(&sizes);
    }
    ~WithTiles() { TILE_RELEASE(); }
};

static INLINE long whole_tiles(long rows) { return (rows + HIGH - 1) / HIGH; }

static INLINE uint16_t to_bf16(float x) {
    const uint32_t bits = load<uint32_t>(&x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);  // NaN remains NaN
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// x in bf16, in tiles of 16 rows and 32 numbers, each stored as (16 pairs, 16 rows of x, 2).
struct Bf16Tiles {
    static constexpr int IN_TILES = 1;
    static constexpr long WIDTH = 32;  // weights of a row in a tile

    static long steps(long inner) { return (inner + WIDTH - 1) / WIDTH; }
    static long bytes(long rows, long inner) { return whole_tiles(rows) * steps(inner) * HIGH * BROAD; }

    static void prepare(const float *x, long inner, char *prepared, long r) {
        char *to = prepared + r / HIGH * steps(inner) * HIGH * BROAD + r % HIGH * 4;
        for (long i = 0; i < inner; i += WIDTH, to += HIGH * BROAD) {
            uint16_t step[WIDTH] = {};
            for (long j = 0; j < std::min(WIDTH, inner - i); j++) step[j] = to_bf16(x[i + j]);
            for (long pair = 0; pair < HIGH; pair++) std::memcpy(to + pair * BROAD, step + 2 * pair, 4);
        }
    }
};

// Sums of one or two tiles of rows of x and two tiles of rows of W: of[tile of x][tile of W].
struct Sums {
    alignas(64) float of[2][2][HIGH][HIGH];
};

// Two tiles of rows of W that are read at once; ``stride``: bytes from row to row.
struct Pair {
    const char *first, *second;
    long stride;
};

// Load step ``s`` of both tiles of W. rest: number of weights in an incomplete last step, else 0.
static INLINE void load_weights(const Pair &w, long s, long rest, char *padded) {
    const char *first = w.first + s * BROAD, *second = w.second + s * BROAD;
    long stride = w.stride;
    if (rest) {
        std::memset(padded, 0, 2 * HIGH * BROAD);
        for (long i = 0; i < HIGH; i++) {
            std::memcpy(padded + i * BROAD, first + i * stride, 2 * rest);
            std::memcpy(padded + (HIGH + i) * BROAD, second + i * stride, 2 * rest);
        }
        first = padded, second = padded + HIGH * BROAD, stride = BROAD;
        written(padded);
    }
    TILE_LOAD(4, first, stride);
    TILE_LOAD(5, second, stride);
}

// Sum over whole rows. TWO: two tiles of rows of x, else one. Prefetches from ``next`` on, ``share`` bytes per step.
template <bool TWO>
static void add_tiles(const Pair &w, const char *x, long inner, const char *next, long share, Sums &sums) {
    const long steps = Bf16Tiles::steps(inner), size = steps * HIGH * BROAD;
    alignas(64) char padded[2 * HIGH * BROAD];
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (TWO) {
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    const char *fetched = next;
    for (long s = 0; s < steps; s++, x += HIGH * BROAD) {
        for (next += share; fetched < next; fetched += 64) __builtin_prefetch(fetched, 0, 2);
        load_weights(w, s, s + 1 == steps ? inner % Bf16Tiles::WIDTH : 0, padded);
        TILE_LOAD(6, x, BROAD);
        TILE_ADD_BF16(0, 4, 6);
        TILE_ADD_BF16(1, 5, 6);
        if (!TWO) continue;
        TILE_LOAD(7, x + size, BROAD);
        TILE_ADD_BF16(2, 4, 7);
        TILE_ADD_BF16(3, 5, 7);
    }
    TILE_STORE(0, sums.of[0][0], BROAD);
    TILE_STORE(1, sums.of[0][1], BROAD);
    if (TWO) {
        TILE_STORE(2, sums.of[1][0], BROAD);
        TILE_STORE(3, sums.of[1][1], BROAD);
    }
    written(&sums);
}

// Write y from sums (rows of W, rows of x), for ``count`` rows of W from ``row`` and ``rows`` rows of x from ``first``.
static void write_sums(const Product &job, float (&sums)[HIGH][HIGH], long row, long count, long first, long rows) {
    float turned[HIGH][HIGH];
    for (long a = 0; a < HIGH; a += LANES)
        for (long b = 0; b < HIGH; b += LANES) {
            Floats square[LANES];
            for (int i = 0; i < LANES; i++) square[i] = load<Floats>(&sums[a + i][b]);
            exchange<LANES / 2>(square);
            for (int i = 0; i < LANES; i++) store(&turned[b + i][a], square[i]);
        }
    for (long r = 0; r < rows; r++) {
        float *const y = job.y + (first + r) * job.outer + row;
        for (long k = 0; k < count; k++)
            y[k] = turned[r][k] + (job.bias ? job.bias[row + k] : 0.0f) + (job.adds ? y[k] : 0.0f);
    }
}

// Multiply all rows of x by ``count`` rows of W, at most 32, stored at ``w``.
static void multiply_pair(const Product &job, const Pair &w, long row, long count, const char *next, long share) {
    const long size = Bf16Tiles::steps(job.inner) * HIGH * BROAD;
    Sums sums;
    for (long first = 0; first < job.rows; first += 2 * HIGH, share = 0) {
        const char *x = job.prepared + first / HIGH * size;
        const bool two = job.rows - first > HIGH;
        if (two) add_tiles<true>(w, x, job.inner, next, share, sums);
        else add_tiles<false>(w, x, job.inner, next, share, sums);
        for (long i = 0; i <= two; i++)
            for (long j = 0; j * HIGH < count; j++)
                write_sums(job, sums.of[i][j], row + j * HIGH, std::min(HIGH, count - j * HIGH), first + i * HIGH,
                           std::min(HIGH, job.rows - first - i * HIGH));
    }
}

// Multiply tiles of W from ``begin`` to ``end``, two at a time, by all rows of x.
template <class W, int = W::IN_TILES> static void multiply_tiles(const Product &job, long begin, long end) {
    static_assert(HIGH == TILE, "tiles of W are those that threads share");
    const WithTiles tiles{TileSizes()};
    long row = begin * HIGH;
    const long last = std::min(end * HIGH, job.outer), steps = std::max(1L, job.inner / W::WIDTH);
    for (; row + HIGH <= last; row += 2 * HIGH) {
        const long count = std::min(2 * HIGH, (last - row) / HIGH * HIGH);
        const char *const from = job.weights + row * job.stride, *const next = from + count * job.stride;
        const long share = row + 2 * count <= job.outer ? count * job.stride / steps + 1 : 0;
        multiply_pair(job, {from, count > HIGH ? from + HIGH * job.stride : from, job.stride}, row, count, next, share);
        if (count == HIGH) row -= HIGH;
    }
    if (row >= last) return;
    std::vector<char> padded(HIGH * job.stride + BROAD);  // the last rows, fewer than a tile
    std::memcpy(padded.data(), job.weights + row * job.stride, (last - row - 1) * job.stride + 2 * job.inner);
    written(padded.data());
    multiply_pair(job, {padded.data(), padded.data(), job.stride}, row, last - row, nullptr, 0);
}

// Integer formats, for which rows of x are prepared in the same way as for products without tiles.
template <class FORMAT> struct IntTiles {
    using Format = FORMAT;
    static constexpr bool BY_BLOCKS = true;

    static long bytes(long rows, long inner) { return Format::bytes(whole_tiles(rows) * HIGH, inner); }
    static void prepare(const float *x, long inner, char *prepared, long r) { Format::prepare(x, inner, prepared, r); }
};

template <class F> static constexpr bool HALVES = F::BYTES < BLOCK * TILE;

// Return the blocks of a tile of W in int8: as stored, or unpacked from half bytes, which are weight + 8 or indices of
// ``levels``.
template <class F>
static const char *signed_blocks(const char *from, const int8_t *levels, long blocks, std::vector<char> &unpacked) {
    if (!HALVES<F>) return from;
    constexpr long HALF = BLOCK * TILE / 2;
    constexpr int8_t NUMBERS[] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    const int8_t *const numbers = levels ? levels : NUMBERS;
    for (long block = 0; block < blocks; block++) {
        const char *const bytes = from + block * HALF;
        char *const to = unpacked.data() + block * 2 * HALF;
        for (long i = 0; i < HALF; i++) {
            to[i] = numbers[bytes[i] & 15];
            to[HALF + i] = numbers[(uint8_t)bytes[i] >> 4];
        }
    }
    return unpacked.data();
}

constexpr int AT_ONCE = 2;  // blocks per call of add_blocks
typedef int32_t BlockSums[AT_ONCE][HIGH][HIGH];  // (rows of x, rows of W)

// Compute sums of ``count`` blocks, one or two, of a tile of W and 16 rows of x, which are ``width`` bytes apart.
static INLINE void add_blocks(const char *w, const Rounded *x, long width, long count, BlockSums &sums) {
    TILE_ZERO(0);
    TILE_LOAD(4, x->x, width);
    TILE_LOAD(5, w, BROAD);
    TILE_ADD_INT8(0, 4, 5);
    TILE_STORE(0, sums[0], BROAD);
    if (count > 1) {
        TILE_ZERO(1);
        TILE_LOAD(6, x[1].x, width);
        TILE_LOAD(7, w + BLOCK * TILE, BROAD);
        TILE_ADD_INT8(1, 6, 7);
        TILE_STORE(1, sums[1], BROAD);
    }
    written(sums);
}

// Multiply R rows of x from ``first`` on, of which ``rows`` exist, by the tile of W with its blocks at ``w``.
template <class F, int R>
static void multiply_blocks(const Product &job, const char *w, long tile, long first, long rows) {
    const long blocks = (job.inner + BLOCK - 1) / BLOCK;
    const uint16_t *const scales = job.scales + tile * job.groups * TILE;
    const Rounded *const x = (const Rounded *)job.prepared + first * blocks;
    Floats total[R][PARTS] = {};
    alignas(64) BlockSums sums;
    for (long block = 0, group = 0, left = job.size; block < blocks; block++) {
        const long which = block % AT_ONCE;
        if (!which)
            add_blocks(w + block * BLOCK * TILE, x + block, blocks * sizeof *x, std::min<long>(AT_ONCE, blocks - block), sums);
        times<PARTS>(OF(part) {
            const auto by = GroupScale<F>::read(job, tile, group, part);
            times<R>(OF(r) {
                const Rounded *const its = r < rows ? x + r * blocks + block : nullptr;
                const Floats sum = floats(load<Ints>(&sums[which][r][part * LANES]));
                total[r][part] = by.add(sum, its ? its->scale : 0.0f, its ? its->sum : 0.0f, total[r][part]);
            });
        });
        if (F::GROUPED && --left == 0) group++, left = job.size;
    }
    for (long r = 0; r < rows; r++) write_row<F>(job, total[r], scales, tile, first + r);
}

// Multiply tiles of W from ``begin`` to ``end``, each by all rows of x while the tile is in the cache.
template <class W, bool = W::BY_BLOCKS, class F = typename W::Format>
static void multiply_tiles(const Product &job, long begin, long end) {
    TileSizes sizes;
    for (int i = 4; i < 8; i += 2) sizes.set(i, HIGH, BLOCK), sizes.set(i + 1, BLOCK / 4, BROAD);
    const WithTiles tiles(sizes);
    const long blocks = (job.inner + BLOCK - 1) / BLOCK;
    std::vector<char> unpacked(HALVES<F> ? blocks * BLOCK * TILE : 0);
    for (long tile = begin; tile < end; tile++) {
        const char *const w = signed_blocks<F>(job.weights + tile * blocks * F::BYTES, job.levels, blocks, unpacked);
        written(w);
        for (long first = 0; first < job.rows; first += HIGH) {
            const long rows = std::min(HIGH, job.rows - first);
            if (rows > 8) multiply_blocks<F, HIGH>(job, w, tile, first, rows);
            else if (rows > 4) multiply_blocks<F, 8>(job, w, tile, first, rows);
            else multiply_blocks<F, 4>(job, w, tile, first, rows);
        }
    }
}
#endif

// Call f(W{}) with the format W of a product of ``rows`` rows of x, which is a tile format if tiles are used.
template <class F> static void with_tiles(const Product &job, long rows, F f) {
#if TILES
    if (job.tiled_from && rows >= job.tiled_from && job.bits < 32 && tiles_permitted()) {
        if (job.bits == 16) f(Bf16Tiles{});
        else with_integers(job, [&](auto format) { f(IntTiles<decltype(format)>{}); });
        return;
    }
#endif
    with_format(job, f);
}
