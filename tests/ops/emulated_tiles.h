// The instructions of AMX, computed number by number after their description (Intel 64 manual, volume 2), so that a
// kernel that uses them runs on every processor.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

struct EmulatedTile {
    uint8_t bytes[16][64];
};
struct EmulatedSizes {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};
static thread_local EmulatedTile emulated[8];
static thread_local EmulatedSizes emulated_sizes;

static bool tiles_permitted() { return true; }
static inline void TILE_SIZES(const void *sizes) {
    std::memcpy(&emulated_sizes, sizes, sizeof emulated_sizes);
    std::memset(emulated, 0, sizeof emulated);
}
static inline void TILE_RELEASE() { std::memset(&emulated_sizes, 0, sizeof emulated_sizes); }
static inline void TILE_ZERO(int tile) { std::memset(&emulated[tile], 0, sizeof emulated[tile]); }
static inline void TILE_LOAD(int tile, const void *from, long stride) {
    TILE_ZERO(tile);
    for (int row = 0; row < emulated_sizes.rows[tile]; row++)
        std::memcpy(emulated[tile].bytes[row], (const char *)from + row * stride, emulated_sizes.bytes[tile]);
}
static inline void TILE_STORE(int tile, void *to, long stride) {
    for (int row = 0; row < emulated_sizes.rows[tile]; row++)
        std::memcpy((char *)to + row * stride, emulated[tile].bytes[row], emulated_sizes.bytes[tile]);
}

template <class T> static inline T emulated_at(int tile, int row, int i) {
    T found;
    std::memcpy(&found, emulated[tile].bytes[row] + i * sizeof found, sizeof found);
    return found;
}
template <class T> static inline void emulated_put(int tile, int row, int i, T value) {
    std::memcpy(emulated[tile].bytes[row] + i * sizeof value, &value, sizeof value);
}
static inline float emulated_float(uint16_t bf16) {
    const uint32_t bits = (uint32_t)bf16 << 16;
    float found;
    std::memcpy(&found, &bits, sizeof found);
    return std::fpclassify(found) == FP_SUBNORMAL ? 0.0f : found;
}

// to[m][n] += Σ of pairs a[m][k] b[k][n], the even and the odd numbers of the pairs apart, in fp32.
static inline void TILE_ADD_BF16(int to, int a, int b) {
    for (int m = 0; m < emulated_sizes.rows[to]; m++)
        for (int n = 0; n < emulated_sizes.bytes[to] / 4; n++) {
            float even = 0.0f, odd = 0.0f;
            for (int k = 0; k < emulated_sizes.bytes[a] / 4; k++) {
                even = std::fma(emulated_float(emulated_at<uint16_t>(a, m, 2 * k)),
                                emulated_float(emulated_at<uint16_t>(b, k, 2 * n)), even);
                odd = std::fma(emulated_float(emulated_at<uint16_t>(a, m, 2 * k + 1)),
                               emulated_float(emulated_at<uint16_t>(b, k, 2 * n + 1)), odd);
            }
            emulated_put(to, m, n, emulated_at<float>(to, m, n) + (even + odd));
        }
}

// to[m][n] += Σ of fours of signed bytes a[m][k] b[k][n].
static inline void TILE_ADD_INT8(int to, int a, int b) {
    for (int m = 0; m < emulated_sizes.rows[to]; m++)
        for (int n = 0; n < emulated_sizes.bytes[to] / 4; n++) {
            int32_t sum = emulated_at<int32_t>(to, m, n);
            for (int k = 0; k < emulated_sizes.bytes[a] / 4; k++)
                for (int i = 0; i < 4; i++)
                    sum += (int32_t)emulated_at<int8_t>(a, m, 4 * k + i) * emulated_at<int8_t>(b, k, 4 * n + i);
            emulated_put(to, m, n, sum);
        }
}
