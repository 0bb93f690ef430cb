// Rows of up to sixteen vectors, as many at once as a vector has lanes: what the kernels of short rows have in common.
// Gradients of up to 32 vectors that hold one row at a time do not come here.
#pragma once

#include "across.h"
#include "span_results.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Writes results that are side by side while later rows of the batch are still computed. Measured on a Zen 5, times
// over those of writing a batch when it is complete, rows of 21 to 197 float32 from memory: by two threads 0.73 to
// 0.87, by one 0.94 to 1.08. Batches of short vectors are half as many rows: by AVX2 1.05 to 1.15 times, of a batch a
// quarter as long. Without kBeside: when it is complete.
template <class T, bool kBeside = kVectorBytes == 64>
class SideBySideWriter {
   public:
    // Of so many rows of n elements, to be put at `all`; the first goes to y.
    SideBySideWriter(T* y, const Compute<T>* all, int rows, int n, Carry& carry)
        : y_(y), source_{all}, rows_(rows), n_(n), carry_(carry) {}

    // Row r is there.
    ONEPASS_INLINE void done(int r) {
        if (!kBeside || r % kEvery != kEvery - 1) return;
        const int end = (r + 1 - kBehind) * n_;
        if (end < kLine) return;
        if (!begun_) begin();
        out_.step_to(end);
    }
    void finish() {
        if constexpr (!kBeside) return emit(y_, std::int64_t{rows_} * n_, true, source_, &carry_);
        if (!begun_) begin();
        out_.finish();
    }

   private:
    // A vector that reaches over two stores can be loaded when both have left the queue, where they wait behind others
    // on their way to memory: two rows later. How many steps a row is worth is hard to foresee, of two rows less so.
    static constexpr int kBehind = 2, kEvery = 2;
    static constexpr int kLine = kCacheLine / static_cast<int>(sizeof(T));  // elements, as many as a head may have

    void begin() {
        out_ = Emitter<T, SideBySide<T>>(y_, std::int64_t{rows_} * n_, true, source_, &carry_);
        begun_ = true;
    }

    T* y_;
    SideBySide<T> source_;
    int rows_;
    int n_;
    Carry& carry_;
    bool begun_ = false;
    Emitter<T, SideBySide<T>> out_;
};

template <class T>
class RowBatches {
   public:
    static constexpr int kMostVectors = 16;

   protected:
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr int W = kLanes<C>;

    // `results`: in each row.
    RowBatches(const Job& job, std::int64_t results)
        : n_(static_cast<int>(job.length)),
          last_(n_ % W),
          adjacent_((job.outer.count == 1 ? job.outer[0].y_stride : 0) == results),
          nontemporal_(job.nontemporal) {}

    // Whether rows of results from this one on are whole cache lines that may go past the cache.
    bool lines_at(const void* first) const {
        const bool whole = n_ * static_cast<int>(sizeof(T)) % kCacheLine == 0 && adjacent_;
        return nontemporal_ && whole && reinterpret_cast<std::uintptr_t>(first) % kCacheLine == 0;
    }

    // Writes the rows of a batch; value(r, i, lanes) is the vector at i of row r's result, of which `lanes` are seen,
    // beside(r) work to do before row r. kNormal: none of the results is subnormal. So it is of softmax, and the
    // exponentials beside are most of the code: in one loop, whichever way results go. Gradients have a loop for each,
    // which in one took 10% longer (AVX2, log_softmax's of 1000 x 100).
    template <bool kNormal, class Value, class Beside>
    ONEPASS_INLINE void store_rows(char* const (&rows)[W], int count, Carry& carry, Value&& value,
                                   Beside&& beside) const {
        const bool past_cache = nontemporal_ && adjacent_ && count == W;
        const bool lines = past_cache && last_ == 0 && reinterpret_cast<std::uintptr_t>(rows[0]) % kCacheLine == 0;
        // W rows are whole cache lines together, though none of them is: put side by side first.
        const bool gathered = past_cache && !lines;
        alignas(kCacheLine) C all[(W * kMostVectors + 1) * W];
        SideBySideWriter<T> writer(reinterpret_cast<T*>(rows[0]), all, W, n_, carry);
        const auto store_each = [&](auto lines, auto gathered) ONEPASS_INLINE_BODY {
            for (int r = 0; r < count; ++r) {
                beside(r);
                T* y = reinterpret_cast<T*>(rows[r]);
                int i = 0;
                if (gathered) {
                    C* const to = all + r * n_;
                    for (; i + W <= n_; i += W) store(to + i, value(r, i, W));
                    if (last_ > 0) store(to + i, value(r, i, last_));
                    writer.done(r);
                } else if (lines) {
                    if constexpr (kNormal) {
                        const int pairs = n_ % (2 * W) == 0 ? n_ : 0;  // then each of them is aligned
                        for (; i < pairs; i += 2 * W) stream_normal(y + i, value(r, i, W), value(r, i + W, W));
                    }
                    for (; i < n_; i += W) stream(y + i, value(r, i, W));
                } else {
                    if constexpr (kNormal || sizeof(T) == 2) {
                        for (; i + 2 * W <= n_; i += 2 * W) {
                            const V a = value(r, i, W), b = value(r, i + W, W);
                            kNormal ? store_normal(y + i, a, b) : store_two(y + i, a, b);
                        }
                    }
                    for (; i + W <= n_; i += W) store(y + i, value(r, i, W));
                    if (last_ > 0) store_n(y + i, value(r, i, last_), last_);
                }
            }
        };
        if constexpr (kNormal) {
            store_each(lines, gathered);
        } else if (lines) {
            store_each(std::true_type{}, std::false_type{});
        } else if (gathered) {
            store_each(std::false_type{}, std::true_type{});
        } else {
            store_each(std::false_type{}, std::false_type{});
        }
        if (gathered) writer.finish();
    }

    // The sum of the lanes of each row, in float64.
    static void wide_sums(V (&part)[W], double (&sum)[W]) {
        if constexpr (sizeof(C) == 8) {
            store(sum, sums_across(part));
        } else {
            VecD halves[W];
            for (int r = 0; r < W; ++r) halves[r] = low_half(part[r]) + high_half(part[r]);
            wide_sums_of_halves(halves, sum);
        }
    }
    static void wide_sums_of_halves(VecD (&rows)[W], double (&sum)[W]) {
        constexpr int kHalf = kLanes<double>;
        VecD some[kHalf];
        for (int first = 0; first < W; first += kHalf) {
            for (int r = 0; r < kHalf; ++r) some[r] = rows[first + r];
            store(sum + first, sums_across(some));
        }
    }

    int n_;
    int last_;       // elements of the last vector, if it is not full
    bool adjacent_;  // results lie next to each other, row after row
    bool nontemporal_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
