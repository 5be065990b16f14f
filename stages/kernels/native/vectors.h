// Sixteen floats at a time, on any machine: GCC's vector types, and AVX-512 BF16 where the compiler says it is there.
//
// Knows: bf16 <-> fp32, dot products of packed weights, exp. Does not know: models.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

using bf16 = uint16_t;
typedef float f32x16 __attribute__((vector_size(64), aligned(4)));
typedef int32_t i32x16 __attribute__((vector_size(64), aligned(4)));

static inline float to_float(bf16 h) {
    uint32_t u = uint32_t(h) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}
static inline float to_float(float f) { return f; }

// Round to nearest, ties to even; NaN stays NaN.
static inline void store(bf16* p, float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    *p = f == f ? bf16((u + 0x7fff + ((u >> 16) & 1)) >> 16) : bf16(0x7fc0);
}
static inline void store(float* p, float f) { *p = f; }

static inline f32x16 load16(const float* p) {
    f32x16 v;
    std::memcpy(&v, p, 64);
    return v;
}
static inline f32x16 load16(const bf16* p) {
    typedef uint16_t u16x16 __attribute__((vector_size(32)));
    u16x16 h;
    std::memcpy(&h, p, 32);
    i32x16 wide = __builtin_convertvector(h, i32x16) << 16;
    return (f32x16)wide;
}
static inline void store16(float* p, f32x16 v) { std::memcpy(p, &v, 64); }

// Sum of the lanes, always in the same order.
static inline float sum16(f32x16 v) {
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    return v[0] + v[1];
}

// exp to 2 ulp or so: e^x = 2^n e^r with |r| <= ln2/2 and a polynomial (Cephes' coefficients). Below -87 it is 0.
static inline f32x16 exp16(f32x16 x) {
    f32x16 lo = x > 88.0f ? f32x16{} + 88.0f : x;
    f32x16 z = lo < -87.0f ? f32x16{} - 87.0f : lo;
    f32x16 t = z * 1.44269504f;
    i32x16 n = __builtin_convertvector(t + (t < 0.0f ? f32x16{} - 0.5f : f32x16{} + 0.5f), i32x16);
    f32x16 f = __builtin_convertvector(n, f32x16);
    f32x16 r = z - f * 0.693359375f - f * -2.12194440e-4f;
    f32x16 p = f32x16{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    f32x16 y = p * (f32x16)((n + 127) << 23);
    return x < -87.0f ? f32x16{} : y;
}

// One step of a dot product: sixteen outputs, two channels (bf16) or one (float), as sixteen packed words (see pack()).
static inline i32x16 broadcast_step(const void* x) {
    int32_t word;
    std::memcpy(&word, x, 4);
    return i32x16{} + word;
}
template <class W> static inline f32x16 dot_step(f32x16 acc, i32x16 w, i32x16 x);
template <> inline f32x16 dot_step<bf16>(f32x16 acc, i32x16 w, i32x16 x) {
#ifdef __AVX512BF16__
    return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)w, (__m512bh)x);
#else
    acc += (f32x16)(w << 16) * (f32x16)(x << 16);
    return acc + (f32x16)(w & int32_t(0xffff0000)) * (f32x16)(x & int32_t(0xffff0000));
#endif
}
template <> inline f32x16 dot_step<float>(f32x16 acc, i32x16 w, i32x16 x) {
#ifdef __AVX512F__
    return (f32x16)_mm512_fmadd_ps((__m512)w, (__m512)x, (__m512)acc);
#else
    return acc + (f32x16)w * (f32x16)x;
#endif
}

template <class W> constexpr int channels_per_step = sizeof(W) == 2 ? 2 : 1;
