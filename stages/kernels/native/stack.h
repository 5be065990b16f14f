// A stack of layers as the caller describes it, a call's rows, and the memory that a call works in.
//
// Knows: where every cache row lies. Does not know: how a layer is computed. Layer and Stack are mirrored in decoder.py.
#pragma once
#include "matmul.h"

struct Layer {  // pointers; biases, q_norm and k_norm may be null. Norms and biases are float.
    const float* attn_norm;
    const void* qkv;
    const float *qkv_bias, *q_norm, *k_norm;
    const void* o;
    const float* o_bias;
    const float* ffn_norm;
    const void* gate_up;  // blocks of sixteen rows of gate and of up in turn
    const float* gate_up_bias;
    const void* down;
    const float* down_bias;
    void *keys, *values;  // [cache rows, kv heads * head_dim]
};

struct Stack {
    const Layer* layers;
    const void* embed;                  // [V, D], not packed
    const float *enorm, *hnorm;         // with eh_proj: the input is a mix of embedding and hidden state
    const void* eh_proj;
    const float* freqs;                 // [head_dim / 2]
    int64_t num_layers, hidden, inner, heads, kv_heads, head_dim;
    int64_t page_size, pages_per_slot;  // paged cache; page_size 0: a ring of ``ring`` rows per slot
    int64_t ring, window;               // window 0: all positions
    float eps, rope_scale;
};

struct Call {
    const Stack* s;
    int64_t rows;
    const int64_t *tokens, *positions, *slots, *pages;  // pages [slots, pages_per_slot]
    const void* hidden;                                 // [R, D] or null
    void* out;                                          // [R, D]
    float* work;
    int64_t max_len;
};

static int64_t cache_row(const Call& c, int64_t slot, int64_t position) {
    const Stack& s = *c.s;
    if (!s.page_size) return slot * s.ring + position % s.ring;
    int64_t page = position / s.page_size;
    page = page < s.pages_per_slot ? c.pages[slot * s.pages_per_slot + page] : -1;
    return page < 0 ? -1 : page * s.page_size + position % s.page_size;
}

static int64_t first_seen(const Stack& s, int64_t position) {
    return s.window && position >= s.window ? position - s.window + 1 : 0;
}

template <class W>
struct Work {  // the call's scratch memory, by part
    float *x, *qkv, *scores;
    W *normed, *attended, *inner;
    int64_t *index, real, wide;
    static int64_t width(const Stack& s) {  // of a row of query, key and value, or of gate and up
        return std::max(align16((s.heads + 2 * s.kv_heads) * s.head_dim), 2 * align16(s.inner));
    }
    float* turns;     // per row: cosines, then sines
    int32_t* places;  // per row: the cache row of each position that it sees
    static int64_t bytes(const Stack& s, int64_t rows, int64_t max_len, int threads) {
        int64_t q = s.heads * s.head_dim;
        int64_t floats = rows * (align16(s.hidden) + width(s) + align16(s.head_dim)) + threads * align16(max_len);
        int64_t values = rows * (std::max(2 * s.hidden, q) + q + align16(s.inner)) + 256;
        return floats * 4 + values * int64_t(sizeof(W)) + rows * 8 + rows * align16(max_len) * 4 + 1024;
    }
    Work(const Call& c, int threads) {
        const Stack& s = *c.s;
        int64_t q = s.heads * s.head_dim;
        wide = width(s);
        x = c.work;
        qkv = x + c.rows * align16(s.hidden);
        turns = qkv + c.rows * wide;
        scores = turns + c.rows * align16(s.head_dim);
        places = reinterpret_cast<int32_t*>(scores + threads * align16(c.max_len));
        index = reinterpret_cast<int64_t*>(places + c.rows * align16(c.max_len));
        normed = reinterpret_cast<W*>(index + c.rows);
        attended = normed + c.rows * std::max(2 * s.hidden, q);
        inner = attended + c.rows * q;
        real = 0;  // every thread finds the same, so none has to be told
        for (int64_t r = 0; r < c.rows; r++)
            if (c.positions[r] >= 0 && c.slots[r] >= 0) real++;
    }
    // Fill what is shared: which rows are real, where they look, how they are turned.
    void prepare(const Call& c) {
        const Stack& s = *c.s;
        int64_t n = 0;
        for (int64_t r = 0; r < c.rows; r++)
            if (c.positions[r] >= 0 && c.slots[r] >= 0) index[n++] = r;
        for (int64_t i = 0; i < n; i++) {
            const int64_t row = index[i], last = c.positions[row], half = s.head_dim / 2;
            int32_t* to = places + i * align16(c.max_len);
            for (int64_t p = first_seen(s, last); p <= last; p++) *to++ = int32_t(cache_row(c, c.slots[row], p));
            float* turn = turns + i * align16(s.head_dim);
            for (int64_t j = 0; j < half; j++) {
                float angle = float(last) * s.freqs[j];
                turn[j] = std::cos(angle) * s.rope_scale, turn[half + j] = std::sin(angle) * s.rope_scale;
            }
        }
    }
};
