// The last norm and the output matrix: hidden states to logits, or to the best token of each row.
//
// Knows: one matrix. Does not know: layers.
#pragma once
#include "matmul.h"
#include "pool.h"

struct HeadCall {
    const void *x, *matrix;  // x [R, D]; matrix packed [V, D]
    const float* norm;
    int64_t rows, hidden, vocab;
    float eps;
    float* logits;     // [R, V rounded up to 16], or null
    int64_t* best;     // [R]
    void* work;        // [R, D] normed rows, then per thread and row a value and an index, then the rows that count
};

// Rows that are not all zeros, in order; how many. A pad row is zeros, and so would all of its logits be: its best token
// is the first one, without reading the matrix for it.
template <class W>
static int64_t rows_that_count(const HeadCall& c, int64_t* index) {
    int64_t n = 0;
    for (int64_t r = 0; r < c.rows; r++) {
        const W* x = static_cast<const W*>(c.x) + r * c.hidden;
        bool any = c.logits != nullptr;
        for (int64_t j = 0; j < c.hidden && !any; j++) any = to_float(x[j]) != 0.0f;
        if (any) index[n++] = r;
        else c.best[r] = 0;
    }
    return n;
}

template <class W>
static void head_job(void* what, int rank, int size, Barrier& barrier) {
    const HeadCall& c = *static_cast<const HeadCall*>(what);
    const int64_t d = c.hidden, vw = align16(c.vocab);
    W* normed = static_cast<W*>(c.work);
    float* top = reinterpret_cast<float*>(static_cast<char*>(c.work) + (c.rows * d * int64_t(sizeof(W)) + 63) / 64 * 64);
    int64_t* where = reinterpret_cast<int64_t*>(top + align16(c.rows * size));
    int64_t *index = where + c.rows * size, *count = index + c.rows;
    if (rank == 0) *count = rows_that_count<W>(c, index);
    barrier.wait();
    const int64_t rows = *count;
    for (int64_t i = rank; i < rows; i += size)
        rms_norm(static_cast<const W*>(c.x) + index[i] * d, c.norm, d, c.eps, normed + i * d);
    for (int64_t i = 0; i < rows; i++) top[rank * c.rows + i] = -INFINITY, where[rank * c.rows + i] = 0;
    barrier.wait();
    Range mine = share(vw / LANES, rank, size);
    multiply<W>(c.matrix, d, normed, d, rows, mine.first, mine.last, [&](int64_t r, int64_t b, f32x16 v) {
        if (c.logits) store16(c.logits + index[r] * vw + b * LANES, v);
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
    for (int64_t i = 0; i < rows; i++) {  // ranks hold ascending tokens: the first of equals wins
        int best = 0;
        for (int t = 1; t < size; t++)
            if (top[t * c.rows + i] > top[best * c.rows + i]) best = t;
        c.best[index[i]] = where[best * c.rows + i];
    }
}
