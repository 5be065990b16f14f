// Rotation, and attention of one row over its positions.
//
// Knows: one head at a time. Does not know: threads, who else attends.
#pragma once
#include "stack.h"

// Norms (Qwen3) and rotation of one head in place, then out to ``to``.
template <class W>
static void place_head(const Stack& s, float* head, const float* norm, const float* turn, W* to) {
    const int64_t half = s.head_dim / 2;
    if (norm) rms_norm(head, norm, s.head_dim, s.eps, head);
    for (int64_t i = 0; i < half; i++) {
        float a = head[i], b = head[i + half], cos = turn[i], sin = turn[half + i];
        store(to + i, a * cos - b * sin);
        store(to + half + i, b * cos + a * sin);
    }
}

// Attention of one row and one query head over the ``n`` positions at ``places``; ``score`` has room for all of them.
// C is head_dim / 16.
template <class W, int C>
static void attend(const Call& c, const Layer& l, const int32_t* places, int64_t n, int64_t h, const float* q, float* score, W* out) {
    const Stack& s = *c.s;
    const int64_t d = C * 16, kv = s.kv_heads * d, at = (h / (s.heads / s.kv_heads)) * d;
    const W *keys = static_cast<const W*>(l.keys) + at, *values = static_cast<const W*>(l.values) + at;
    const float scale = 1.0f / std::sqrt(float(d));
    float most = -INFINITY;
    f32x16 query[C];
    for (int i = 0; i < C; i++) query[i] = load16(q + i * 16);
    for (int64_t p = 0; p < n; p++) {
        if (places[p] < 0) { score[p] = -INFINITY; continue; }
        const W* k = keys + places[p] * kv;
        f32x16 sum = query[0] * load16(k);
        for (int i = 1; i < C; i++) sum += query[i] * load16(k + i * 16);
        score[p] = sum16(sum) * scale;
        most = std::max(most, score[p]);
    }
    for (int64_t p = n; p < align16(n); p++) score[p] = -INFINITY;
    f32x16 total = {};
    for (int64_t p = 0; p < n; p += 16) {
        f32x16 e = exp16(load16(score + p) - most);
        store16(score + p, e);
        total += e;
    }
    const float norm = 1.0f / sum16(total);
    f32x16 sum[C] = {};
    for (int64_t p = 0; p < n; p++) {
        if (places[p] < 0) continue;
        const W* v = values + places[p] * kv;
        for (int i = 0; i < C; i++) sum[i] += load16(v + i * 16) * score[p];
    }
    for (int i = 0; i < C; i++)
        for (int j = 0; j < 16; j++) store(out + i * 16 + j, sum[i][j] * norm);
}

template <class W>
static auto attend_for(int64_t head_dim) {
    switch (head_dim) {
        case 16: return attend<W, 1>;
        case 32: return attend<W, 2>;
        case 48: return attend<W, 3>;
        case 64: return attend<W, 4>;
        case 80: return attend<W, 5>;
        case 96: return attend<W, 6>;
        case 112: return attend<W, 7>;
        case 128: return attend<W, 8>;
        default: return attend<W, 16>;  // 256; what else there is, decoder.py refuses
    }
}
