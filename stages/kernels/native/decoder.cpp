// A stack of Llama-style decoder layers, and an output matrix, for R rows: one call, one team of threads.
//
// Knows: rows with tokens, positions, slots and a cache row for each position. Does not know: requests, layouts.
//
// Exactness: each value is one chain of additions whose order depends on the weights' shape only. So a row's result is
// bitwise the same for any number of rows, any place among them and any number of threads. Rows that stand for nobody
// (position -1) are skipped and give zeros.
#include "attention.h"
#include "output.h"
#include "pool.h"

template <class W>
static void start(const Call& c, Work<W>& w, int rank, int size, Barrier& barrier) {
    const Stack& s = *c.s;
    const W* embed = static_cast<const W*>(s.embed);
    const int64_t d = s.hidden, wide = align16(d);
    if (!s.eh_proj) {
        for (int64_t i = rank; i < w.real; i += size)
            for (int64_t j = 0; j < d; j++) w.x[i * wide + j] = to_float(embed[c.tokens[w.index[i]] * d + j]);
    } else {
        for (int64_t i = rank; i < w.real; i += size) {
            W* both = w.normed + i * 2 * d;
            rms_norm(embed + c.tokens[w.index[i]] * d, s.enorm, d, s.eps, both);
            rms_norm(static_cast<const W*>(c.hidden) + w.index[i] * d, s.hnorm, d, s.eps, both + d);
        }
        barrier.wait();
        Range mine = share(wide / LANES, rank, size);
        multiply<W>(s.eh_proj, 2 * d, w.normed, 2 * d, w.real, mine.first, mine.last,
                    [&](int64_t r, int64_t b, f32x16 v) { store16(w.x + r * wide + b * LANES, v); });
    }
    barrier.wait();
}

static inline f32x16 with_bias(f32x16 v, const float* bias, int64_t block) {
    return bias ? v + load16(bias + block * LANES) : v;
}

template <class W>
static void layer(const Call& c, const Layer& l, Work<W>& w, int rank, int size, Barrier& barrier) {
    const Stack& s = *c.s;
    const int64_t d = s.hidden, xw = align16(d), hd = s.head_dim, q = s.heads * hd, kv = s.kv_heads * hd;
    const int64_t qb = align16(q + 2 * kv), qw = w.wide, iw = align16(s.inner);
    for (int64_t i = rank; i < w.real; i += size) rms_norm(w.x + i * xw, l.attn_norm, d, s.eps, w.normed + i * d);
    barrier.wait();
    Range mine = share(qb / LANES, rank, size);
    multiply<W>(l.qkv, d, w.normed, d, w.real, mine.first, mine.last, [&](int64_t r, int64_t b, f32x16 v) {
        store16(w.qkv + r * qw + b * LANES, with_bias(v, l.qkv_bias, b));
    });
    barrier.wait();
    for (int64_t i = rank; i < w.real; i += size) {
        const float* turn = w.turns + i * align16(hd);
        float* mineq = w.qkv + i * qw;
        for (int64_t h = 0; h < s.heads; h++) {
            W rounded[256];
            place_head(s, mineq + h * hd, l.q_norm, turn, rounded);
            for (int64_t j = 0; j < hd; j++) mineq[h * hd + j] = to_float(rounded[j]);
        }
        const int64_t row = w.index[i], to = cache_row(c, c.slots[row], c.positions[row]);
        if (to < 0) continue;
        for (int64_t h = 0; h < s.kv_heads; h++)
            place_head(s, mineq + q + h * hd, l.k_norm, turn, static_cast<W*>(l.keys) + to * kv + h * hd);
        for (int64_t j = 0; j < kv; j++) store(static_cast<W*>(l.values) + to * kv + j, mineq[q + kv + j]);
    }
    barrier.wait();
    float* score = w.scores + rank * align16(c.max_len);
    const auto attend_one = attend_for<W>(hd);
    for (int64_t item = rank; item < w.real * s.heads; item += size) {
        const int64_t i = item / s.heads, h = item % s.heads, last = c.positions[w.index[i]];
        const int32_t* places = w.places + i * align16(c.max_len);
        attend_one(c, l, places, last - first_seen(s, last) + 1, h, w.qkv + i * qw + h * hd, score,
                   w.attended + i * q + h * hd);
    }
    barrier.wait();
    auto add = [&](const float* bias) {
        return [&w, xw, bias](int64_t r, int64_t b, f32x16 v) {
            float* x = w.x + r * xw + b * LANES;
            store16(x, load16(x) + with_bias(v, bias, b));
        };
    };
    mine = share(xw / LANES, rank, size);
    multiply<W>(l.o, q, w.attended, q, w.real, mine.first, mine.last, add(l.o_bias));
    barrier.wait();
    for (int64_t i = rank; i < w.real; i += size) rms_norm(w.x + i * xw, l.ffn_norm, d, s.eps, w.normed + i * d);
    barrier.wait();
    // Gate and up of one block stand side by side, and a thread has both.
    mine = share(iw / LANES, rank, size);
    multiply<W>(l.gate_up, d, w.normed, d, w.real, 2 * mine.first, 2 * mine.last, [&](int64_t r, int64_t b, f32x16 v) {
        store16(w.qkv + r * w.wide + b * LANES, with_bias(v, l.gate_up_bias, b));
    });
    for (int64_t r = 0; r < w.real; r++)
        for (int64_t b = mine.first; b < mine.last; b++) {
            const float* pair = w.qkv + r * w.wide + 2 * b * LANES;
            f32x16 g = load16(pair), y = g / (1.0f + exp16(-g)) * load16(pair + LANES);
            for (int j = 0; j < LANES; j++) store(w.inner + r * iw + b * LANES + j, y[j]);
        }
    barrier.wait();
    mine = share(xw / LANES, rank, size);
    multiply<W>(l.down, s.inner, w.inner, iw, w.real, mine.first, mine.last, add(l.down_bias));
    barrier.wait();
}

template <class W>
static void stack_job(void* what, int rank, int size, Barrier& barrier) {
    const Call& c = *static_cast<const Call*>(what);
    const int64_t d = c.s->hidden, xw = align16(d);
    Work<W> w(c, size);
    if (rank == 0) w.prepare(c);
    barrier.wait();
    start<W>(c, w, rank, size, barrier);
    for (int64_t i = 0; i < c.s->num_layers; i++) layer<W>(c, c.s->layers[i], w, rank, size, barrier);
    W* out = static_cast<W*>(c.out);
    for (int64_t i = rank; i < w.real; i += size)
        for (int64_t j = 0; j < d; j++) store(out + w.index[i] * d + j, w.x[i * xw + j]);
}

extern "C" {
int64_t dl_work_bytes(const Stack* s, int64_t rows, int64_t max_len, int threads, int is_bf16) {
    return is_bf16 ? Work<bf16>::bytes(*s, rows, max_len, threads) : Work<float>::bytes(*s, rows, max_len, threads);
}
void dl_pack(const void* w, int64_t out, int64_t in, int is_bf16, void* to) {
    if (is_bf16) pack(static_cast<const bf16*>(w), out, in, static_cast<bf16*>(to));
    else pack(static_cast<const float*>(w), out, in, static_cast<float*>(to));
}
void dl_stack(const Stack* s, int64_t rows, const int64_t* tokens, const int64_t* positions, const int64_t* slots,
              const int64_t* pages, const void* hidden, void* out, void* work, int64_t max_len, int threads, int is_bf16) {
    Call c{s, rows, tokens, positions, slots, pages, hidden, out, static_cast<float*>(work), max_len};
    run_team(threads, is_bf16 ? stack_job<bf16> : stack_job<float>, &c);
}
void dl_head(const void* x, const void* matrix, const float* norm, int64_t rows, int64_t hidden, int64_t vocab, float eps,
             float* logits, int64_t* best, void* work, int threads, int is_bf16) {
    HeadCall c{x, matrix, norm, rows, hidden, vocab, eps, logits, best, work};
    run_team(threads, is_bf16 ? head_job<bf16> : head_job<float>, &c);
}
}
