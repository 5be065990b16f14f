// Products of a few rows with packed weights, and what stands beside them: packing, norms, shares of work.
//
// Knows: blocks of sixteen outputs. Does not know: layers.
#pragma once
#include <algorithm>
#include "vectors.h"

constexpr int LANES = 16;
constexpr int ROW_BLOCK = 8;

static int64_t align16(int64_t n) { return (n + 15) / 16 * 16; }

// y[r, out] = x[r, :] . w[out, :] for blocks [first, last) of sixteen outputs; ``done(row, block, values)`` takes each.
template <class W, int M, int N, class Done>
static inline void multiply_block(const W* w, int64_t in, const W* x, int64_t stride, int64_t row, int64_t block, Done done) {
    f32x16 acc[N][M] = {};
    const int64_t size = in * LANES;
    const W* at = w + block * size;
    for (int64_t k = 0; k < in; k += channels_per_step<W>) {
        i32x16 weights[N];
        for (int n = 0; n < N; n++) std::memcpy(&weights[n], at + n * size + k * LANES, 64);
        for (int m = 0; m < M; m++) {
            i32x16 value = broadcast_step(x + m * stride + k);
            for (int n = 0; n < N; n++) acc[n][m] = dot_step<W>(acc[n][m], weights[n], value);
        }
    }
    for (int n = 0; n < N; n++)
        for (int m = 0; m < M; m++) done(row + m, block + n, acc[n][m]);
}

template <class W, int M, class Done>
static void multiply_rows(const W* w, int64_t in, const W* x, int64_t stride, int64_t row, int64_t first, int64_t last, Done done) {
    constexpr int N = M <= 2 ? 8 : M <= 4 ? 4 : 3;
    int64_t b = first;
    for (; b + N <= last; b += N) multiply_block<W, M, N>(w, in, x, stride, row, b, done);
    for (; b < last; b++) multiply_block<W, M, 1>(w, in, x, stride, row, b, done);
}

template <class W, class Done>
static void multiply(const void* weights, int64_t in, const W* x, int64_t stride, int64_t rows, int64_t first, int64_t last, Done done) {
    const W* w = static_cast<const W*>(weights);
    for (int64_t r = 0; r < rows; r += ROW_BLOCK) {
        const W* at = x + r * stride;
        switch (std::min<int64_t>(ROW_BLOCK, rows - r)) {
            case 1: multiply_rows<W, 1>(w, in, at, stride, r, first, last, done); break;
            case 2: multiply_rows<W, 2>(w, in, at, stride, r, first, last, done); break;
            case 3: multiply_rows<W, 3>(w, in, at, stride, r, first, last, done); break;
            case 4: multiply_rows<W, 4>(w, in, at, stride, r, first, last, done); break;
            case 5: multiply_rows<W, 5>(w, in, at, stride, r, first, last, done); break;
            case 6: multiply_rows<W, 6>(w, in, at, stride, r, first, last, done); break;
            case 7: multiply_rows<W, 7>(w, in, at, stride, r, first, last, done); break;
            default: multiply_rows<W, 8>(w, in, at, stride, r, first, last, done);
        }
    }
}

struct Range { int64_t first, last; };
static Range share(int64_t n, int rank, int size) { return {n * rank / size, n * (rank + 1) / size}; }

// RMS norm of x [n] to y [n]; n is a multiple of 16 or the rest is done one by one.
template <class In, class Out>
static void rms_norm(const In* x, const float* weight, int64_t n, float eps, Out* y) {
    f32x16 squares = {};
    int64_t i = 0;
    float rest = 0;
    for (; i + 16 <= n; i += 16) {
        f32x16 v = load16(x + i);
        squares += v * v;
    }
    for (; i < n; i++) rest += to_float(x[i]) * to_float(x[i]);
    float scale = 1.0f / std::sqrt((sum16(squares) + rest) / float(n) + eps);
    for (i = 0; i < n; i++) store(y + i, to_float(x[i]) * scale * weight[i]);
}

// w [out, in] to blocks of sixteen rows: [out / 16][in / step][16][step]; missing rows are zero.
template <class W>
static void pack(const W* w, int64_t out, int64_t in, W* to) {
    constexpr int step = channels_per_step<W>;
    for (int64_t b = 0; b < align16(out); b += LANES)
        for (int64_t k = 0; k < in; k += step)
            for (int64_t o = b; o < b + LANES; o++)
                for (int64_t j = 0; j < step; j++) *to++ = o < out ? w[o * in + k + j] : W(0);
}
