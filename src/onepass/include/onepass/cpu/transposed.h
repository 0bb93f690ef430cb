// Which rows are transposed: those that are short and lie one behind the other in memory. Their lanes would be idle,
// and what a row needs once would cost more than its elements. As many as fill a vector's lanes are transposed instead,
// and are columns side by side (transposed_rows.h).
//
// The same for a short inner axis: a row is then all of its steps times `inner` elements, each of those a column of its
// own (packed, where a tile would have little to do but what it does once).
#pragma once

#include "access.h"

namespace onepass {
inline namespace ONEPASS_ISA {

constexpr bool kTransposesMore = kVectorBytes >= 32;         // than 16 steps, or 64 elements: where it was measured
constexpr int kMostTransposed = kTransposesMore ? 512 : 64;  // elements of a row
constexpr int kMostTransposedGradient = kVectorBytes == 64 ? 256 : kTransposesMore ? 128 : 64;

// How rows lie in lanes. A vector takes as many as it holds whole ones, or one row takes several vectors; a batch is as
// many of either as a vector has lanes.
class RowBatch {
   public:
    RowBatch(std::int64_t elements, std::int64_t inner, int lanes)
        : elements_(static_cast<int>(elements)),
          inner_(static_cast<int>(inner)),
          together_(elements < lanes ? lanes / elements_ : 1),
          rows_(lanes * together_) {}

    int elements() const { return elements_; }  // of a row
    int inner() const { return inner_; }        // of what is left of one that is reduced
    int together() const { return together_; }  // rows side by side in a vector
    int rows() const { return rows_; }          // of a batch

   private:
    int elements_;
    int inner_;
    int together_;
    int rows_;
};

// Whether rows of so many steps follow each other without a gap.
inline bool adjoin(const Job& job, Stride stride, std::int64_t steps) {
    const std::int64_t inner = job.inner.size;
    if (inner > 1 && job.inner.*stride != 1) return false;
    if (steps > 1 && job.reduce[0].*stride != inner) return false;
    return job.rows == 1 || job.outer[0].*stride == steps * inner;
}

// Whether the rows of this job, and their results, follow each other so in memory, and are of type T.
template <class T>
inline bool in_sequence(const Job& job) {
    if (job.split || job.outer.count > 1 || job.reduce.count != 1 || job.length < 2) return false;
    return job.in == DTypeOf<T>::value && job.out == DTypeOf<T>::value && adjoin(job, &Axis::x_stride, job.length) &&
           adjoin(job, &Axis::y_stride, is_elementwise(job.op) ? job.length : 1);
}

// The elements that a row may have for that; longer ones are tiles (packed). Measured with one thread, times of tiles
// over those of transposed rows, by AVX2 (Zen 3): logsumexp of 12 x 7 6.0, of 30 x 3 5.1, of 100 x 5 1.35; softmax 2.0,
// 2.3, 1.1, of 60 x 4 0.8, of 15 x 8 0.7; its gradient of 30 x 3 2.2, of 12 x 10 1.3, of 60 x 4 0.6; sums of 6 x
// 12 4.3, of 30 x 16 0.8. By AVX-512 (Zen 5, whole batches; others take the same limits): logsumexp of 20 x 5 5.8, of
// 102 x 5 1.5, of 32 x 16 1.3; log_softmax 4.5 (25 x 5), 1.5 and 1.1, of 17 x 16 1.3, of 25 x 16 1.0; softmax 3.4, 1.2
// and 0.8, of 80 x 5 1.35, of 50 x 8 and of 42 x 12 1.0, of 8 x 16 1.1, of float64 0.9; its gradient of 25 x 5 2.2, of
// 93 x 3 1.1, of 35 x 8 0.9, of 8 x 16 0.65; sums of float64 (others fold) of 25 x 5 2.2, of 35 x 8 1.2, of 50 x 8 0.9.
template <class T>
constexpr int most_transposed(Op op, std::int64_t inner) {
    constexpr int kFew = 64;
    const bool whole_vectors = inner % kLanes<Compute<T>> == 0;
    if constexpr (kVectorBytes == 64) {
        if (is_gradient(op)) return whole_vectors ? kFew : kMostTransposedGradient;
        if (op == Op::softmax) return whole_vectors ? (sizeof(T) > 4 ? kFew : 128) : 400;
        if (op == Op::log_softmax) return whole_vectors ? 280 : kMostTransposed;
        return op == Op::logsumexp ? kMostTransposed : 280;
    } else if constexpr (kVectorBytes == 32) {
        if (is_gradient(op)) return whole_vectors ? kFew : kMostTransposedGradient;
        if (is_elementwise(op)) return whole_vectors ? kFew : 200;
        if (sizeof(T) > 4 && op != Op::logsumexp) return kFew;
        return whole_vectors ? kMostTransposed / 2 : kMostTransposed;
    } else {
        return kFew;
    }
}

// The steps that rows with an inner axis of 1 may have for that; longer ones are faster where they are. Measured on a
// Zen 5, one thread, times over those: logsumexp of 17 float32 0.46, of 24 0.56, of 32 0.76, of 40 0.83, of 48 0.96,
// of float64 0.34 to 0.62; log_softmax of 17 0.61, of 24 0.87, of 28 0.87, of 32 1.03, bfloat16 0.60 to 0.78 and 0.97,
// float64 0.56 to 0.65; softmax of 17 0.89, of 20 1.04, of 24 1.6; by AVX2 logsumexp 0.57 to 0.91, log_softmax 0.64 to
// 0.84 and 1.10.
constexpr int most_transposed_steps(Op op) {
    if (!kTransposesMore) return 16;
    return op == Op::logsumexp ? 40 : op == Op::log_softmax ? 28 : 16;
}

// Whether plain reductions are folded where they lie (folded_rows.h), or go across (rows_across.h). Where there are
// instructions for it; not of float64, whose sums are compensated.
template <class T>
constexpr bool kFolds = kLookupLanes == kLanes<float> && sizeof(Compute<T>) == 4;

// Rows of float32, read twice by a gradient and written, that cost less where they are (gradient_short_rows.h): those
// that fill more than half of a vector; of processors that permute lanes twice as fast (a Zen 5, of which that is asked
// by another name) those that fill all of it. Measured on a Zen 5, one thread, times of transposed rows over those:
// softmax's gradient of 9 float32 0.59, of 12 0.65, of 15 0.63, of 16 1.8, log_softmax's 0.78, 0.95, 0.91 and 2.0; by
// AVX2 of 5 1.36, of 7 1.17, 1.24 and 1.38.
inline bool stays_held(std::int64_t elements) {
    constexpr std::int64_t kAll = kLanes<float>;
    return kVectorBytes == 64 && looks_far_ahead ? elements == kAll : 2 * elements > kAll;
}

// Whether those are tiny. How many there are is not asked: it would show in the last bits. Of gradients neither
// float64, which short_columns.h does not sum, nor what stays held.
template <class T>
inline bool transposes(const Job& job) {
    const std::int64_t elements = job.length * job.inner.size;
    if (elements > most_transposed<T>(job.op, job.inner.size) || !in_sequence<T>(job)) return false;
    if ((job.inner.size == 1 || !kTransposesMore) && job.length > most_transposed_steps(job.op)) return false;
    if (is_gradient(job.op)) {
        const bool pairs = job.op != Op::logsumexp_backward && job.second == job.in && sizeof(T) <= 4;
        const bool held = sizeof(T) == 4 && job.inner.size == 1 && stays_held(elements);
        if (!pairs || held || !adjoin(job, &Axis::z_stride, job.length)) return false;
    }
    return true;
}

// Elements of a row that is folded, and of one whose steps fill whole vectors, at most. Of longer ones several vectors
// at a time (tiles.h) are faster. Measured with two threads, times of folding over those of tiles. AVX-512, a Zen 5:
// float32 sums of 2222x600x9 0.71, 2000x600x10 0.96, 1500x800x10 1.16, 750x1000x16 0.90, 375x2000x16 0.95 and by one
// thread 1.04, maxima up to 0.1 less; bfloat16 1600x1500x10 0.80, 800x10000x3 0.87, 750x2000x16 0.66. AVX2: float32
// 1024x300x3 1.2 on a Zen 4; bfloat16 8000x1000x3 0.80, 1600x5000x3 1.11 on a Zen 5.
template <class T>
constexpr int kMostFolded = kVectorBytes == 64 ? (sizeof(T) == 2 ? 32768 : 6144) : (sizeof(T) == 2 ? 4096 : 512);
template <class T>
constexpr int kMostFoldedWhole = kVectorBytes == 64 && sizeof(T) == 4 ? 16384 : kMostFolded<T>;
// Whether this is a plain reduction of rows like that: whose steps have several elements, and which fill more than half
// of a vector (of fewer, several share one when transposed).
template <class T>
inline bool folds(const Job& job) {
    constexpr int W = kLanes<float>;
    const std::int64_t inner = job.inner.size, elements = job.length * inner;
    if (!kFolds<T> || !is_plain(job.op) || inner == 1 || inner > W) return false;
    const std::int64_t most = W % inner == 0 ? kMostFoldedWhole<T> : kMostFolded<T>;
    return 2 * elements > W && elements <= most && in_sequence<T>(job);
}

// Whether plain reductions of short rows go many at a time (rows_across.h).
template <class T>
constexpr int kMostAcross = 4 * kVectorBytes / static_cast<int>(sizeof(T));  // elements of a row (ACROSS_ROW_VECTORS)
template <class T>
inline bool goes_across(const Job& job) {
    return kFolds<T> && is_plain(job.op) && job.inner.size == 1 && job.length <= kMostAcross<T> && in_sequence<T>(job);
}

template <class T>
Form run_folded(const Job& job, const void* x, void* y);
template <class T>
Form run_across(const Job& job, const void* x, void* y);
template <class T>
Form run_transposed(const Job& job, const void* x, void* y);
template <class T>
Form run_transposed_gradient(const Job& job, const Addresses& in, void* y);

}  // namespace ONEPASS_ISA
}  // namespace onepass
