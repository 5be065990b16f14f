// A stack of Llama-style decoder layers, and an output matrix, for R rows: one call, one team of threads.
//
// Knows: rows with tokens, positions, slots and a cache row for each position. Does not know: requests, layouts.
//
// Exactness: each value is one chain of additions whose order depends on the weights' shape only. So a row's result is
// bitwise the same for any number of rows, any place among them and any number of threads. Rows that stand for nobody
// (position -1) are skipped and give zeros. The layout of Layer and Stack is mirrored in decoder.py.
#include <algorithm>
#include "pool.h"
#include "vectors.h"

constexpr int LANES = 16;
constexpr int ROW_BLOCK = 8;

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

struct HeadCall {
    const void *x, *matrix;  // x [R, D]; matrix packed [V, D]
    const float* norm;
    int64_t rows, hidden, vocab;
    float eps;
    float* logits;     // [R, V rounded up to 16], or null
    int64_t* best;     // [R]
    void* work;        // [R, D] normed rows, then per thread and row a value and an index
};

template <class W>
static void head_job(void* what, int rank, int size, Barrier& barrier) {
    const HeadCall& c = *static_cast<const HeadCall*>(what);
    const int64_t d = c.hidden, vw = align16(c.vocab);
    W* normed = static_cast<W*>(c.work);
    float* top = reinterpret_cast<float*>(static_cast<char*>(c.work) + (c.rows * d * int64_t(sizeof(W)) + 63) / 64 * 64);
    int64_t* where = reinterpret_cast<int64_t*>(top + align16(c.rows * size));
    for (int64_t i = rank; i < c.rows; i += size)
        rms_norm(static_cast<const W*>(c.x) + i * d, c.norm, d, c.eps, normed + i * d);
    for (int64_t i = 0; i < c.rows; i++) top[rank * c.rows + i] = -INFINITY, where[rank * c.rows + i] = 0;
    barrier.wait();
    Range mine = share(vw / LANES, rank, size);
    multiply<W>(c.matrix, d, normed, d, c.rows, mine.first, mine.last, [&](int64_t r, int64_t b, f32x16 v) {
        if (c.logits) store16(c.logits + r * vw + b * LANES, v);
        float& most = top[rank * c.rows + r];
        i32x16 above = v > most;
        int32_t any = 0;
        for (int j = 0; j < LANES; j++) any |= above[j];
        if (!any) return;
        for (int j = 0; j < LANES && b * LANES + j < c.vocab; j++)
            if (v[j] > most) most = v[j], where[rank * c.rows + r] = b * LANES + j;
    });
    barrier.wait();
    if (rank) return;
    for (int64_t i = 0; i < c.rows; i++) {  // ranks hold ascending tokens: the first of equals wins
        int best = 0;
        for (int t = 1; t < size; t++)
            if (top[t * c.rows + i] > top[best * c.rows + i]) best = t;
        c.best[i] = where[best * c.rows + i];
    }
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
