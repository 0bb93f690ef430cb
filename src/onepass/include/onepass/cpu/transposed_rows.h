// Tiny rows (transposed.h) as columns: transposed in registers, then side by side in a near cache, where
// short_columns.h and column_reductions.h do the rest.
#pragma once

#include "across.h"
#include "column_reductions.h"
#include "gradient_ops.h"
#include "short_columns.h"
#include "transpose.h"
#include "transposed.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class TransposedRows {
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr int W = kLanes<C>;

   public:
    TransposedRows(const Job& job, const Addresses& in, void* y)
        : job_(job),
          x_(static_cast<const T*>(in.x)),
          second_(static_cast<const T*>(in.second)),
          y_(static_cast<T*>(y)),
          batch_(job.length * job.inner.size, job.inner.size, W),
          of_result_(is_elementwise(job.op) ? batch_.elements() : batch_.inner()) {}

    // compute(columns) for each group of batches turns columns into results.
    template <class Work>
    void run(Work&& compute) const {
        const std::int64_t batches = (job_.rows + batch_.rows() - 1) / batch_.rows();
        const std::int64_t bytes = batch_.rows() * batch_.elements() * static_cast<std::int64_t>(sizeof(T));
        auto body = [&](std::int64_t begin, std::int64_t end) { run_range(begin, end, compute); };
        parallel_ranges(batches, grain_of(batches, bytes, kPlainRun, job_.threads), job_.threads, body);
    }

    // The columns of a group of batches, in scratch memory: 64 KiB at most by AVX-512, which is all that some threads
    // have of a stack. Apart from each other, and handed on by value: softmax of rows of 3 takes 1.08 of the time where
    // the compiler has to suppose that a store changes one of these, or what another points to.
    struct Columns {
        C* __restrict x;
        C* __restrict second;
        C* __restrict y;
        std::int64_t length;
        int width;
        const T* soon;  // what the next columns are made of: as many elements, one behind the other
        const T* second_soon;

        ShortRowsOf<const C, const T> x_steps() const { return {x, width, soon}; }
        ShortRowsOf<const C, const T> second_steps() const { return {second, width, second_soon}; }
        ShortColumns<C, sizeof(T) == 4, true, T> results() const { return {length, width, {y, width}, false}; }
        ColumnReduction<C> reduction() const { return {{x, width, length, false}, width}; }
    };

   private:
    // Where the elements of the rows of a vector lie among the columns of so many batches, which lie side by side, of
    // rows of so many elements.
    struct Places {
        int begin[kMostTransposed];

        Places(const RowBatch& batch, int elements, int batches) {
            const int apart = batch.together() * batches * W;
            for (int row = 0; row < batch.together(); ++row) {
                for (int e = 0; e < elements; ++e) begin[row * elements + e] = e * apart + row * W;
            }
        }
    };

    // Batches whose columns lie side by side.
    struct Group {
        int batches;
        Places places, of_results;

        Group(const RowBatch& batch, int of_result, int count)
            : batches(count), places(batch, batch.elements(), count), of_results(batch, of_result, count) {}
    };

    // Batches of a group. What a column needs once is a chain of steps that wait for each other, so several vectors of
    // columns are better than one. Measured on a Zen 5, one thread, rows of 3 and of 8, times over those of single
    // batches: logsumexp 0.90 and 0.79, by 4 KiB 0.95 and 0.83, log_softmax 0.91 and 0.87, softmax 0.97 and 1.02, of 16
    // 0.94; maxima 0.81, sums 0.89, by 8 KiB 0.81 and 0.92, of 8 float64 0.48 and 0.53; by AVX2 logsumexp 0.83 and
    // 0.73, log_softmax 0.86 and 0.71, softmax 1.06 and 0.95, of 16 0.85. Gradients need a sum, by AVX-512 1.0 to 1.1;
    // by AVX2 softmax's of 3, 4 and 8 0.73, 0.63 and 1.0, bfloat16 0.76 and 0.74.
    int batches_together() const {
        constexpr int kOfGradient = kVectorBytes == 64 ? 0 : 2048, kOfLogsumexp = 8192, kOfOthers = 4096;
        const int bytes = is_gradient(job_.op) ? kOfGradient : job_.op == Op::logsumexp ? kOfLogsumexp : kOfOthers;
        const int most = bytes / (columns_of(1) * batch_.elements() * static_cast<int>(sizeof(C)));
        return most < 1 ? 1 : most;
    }
    // Rows side by side of so many batches.
    int columns_of(int batches) const { return batches * batch_.rows(); }

    template <class Work>
    void run_range(std::int64_t begin, std::int64_t end, Work&& compute) const {
        const int most = batches_together();
        C* const scratch = scratch_of<C>(Scratch::values, (second_ ? 3 : 2) * columns_of(most) * batch_.elements());
        Carry carry;
        const auto run_groups = [&](std::int64_t first, std::int64_t stop, int batches) {
            const Group group(batch_, of_result_, batches);
            for (std::int64_t i = first; i < stop; i += batches) run_group(group, i, end, scratch, carry, compute);
        };
        const std::int64_t whole = end - (end - begin) % most;
        if (begin < whole) run_groups(begin, whole, most);
        if (whole < end) run_groups(whole, end, static_cast<int>(end - whole));
        carry.flush();
        if (job_.nontemporal) stream_fence();
    }

    // The batches from `first` on, and hints for those that follow before `end`.
    template <class Work>
    ONEPASS_INLINE void run_group(const Group& group, std::int64_t first, std::int64_t end, C* scratch, Carry& carry,
                                  Work&& compute) const {
        const int size = columns_of(group.batches) * batch_.elements();
        const std::int64_t next = first + group.batches, after = next * batch_.rows() * batch_.elements();
        const bool fetches = come_at_once() && next < end;
        const Columns columns{scratch,
                              scratch + 2 * size,
                              scratch + size,
                              job_.length,
                              columns_of(group.batches) * batch_.inner(),
                              fetches ? x_ + after : nullptr,
                              fetches && second_ ? second_ + after : nullptr};
        const auto each_batch = [&](auto&& visit) ONEPASS_INLINE_BODY {
            for (int b = 0; b < group.batches; ++b) {
                const std::int64_t row = (first + b) * batch_.rows(), left = job_.rows - row;
                visit(row, left < batch_.rows() ? static_cast<int>(left) : batch_.rows(), columns_of(b));
            }
        };
        each_batch([&](std::int64_t row, int rows, int column) ONEPASS_INLINE_BODY {
            bring(x_ + row * batch_.elements(), rows, columns.x + column, group.places);
            if (second_) bring(second_ + row * batch_.elements(), rows, columns.second + column, group.places);
        });
        compute(columns);
        each_batch([&](std::int64_t row, int rows, int column) ONEPASS_INLINE_BODY {
            T* const y = y_ + row * of_result_;
            if (job_.nontemporal) {
                send_past_cache(columns.y + column, group.of_results, rows, y, carry);
            } else {
                send(columns.y + column, group.of_results, rows, y);
            }
        });
    }

    // Results that are only to be put where they belong.
    struct Put {
        const C* from = nullptr;
        ONEPASS_INLINE V operator()(std::int64_t i) const { return load(from + i); }
        V operator()(std::int64_t i, int n) const { return load_n(from + i, n, C(0)); }
    };

    // Whether a row of so many elements takes several vectors: those of a batch are then read and written out of the
    // order of memory.
    bool spans_vectors(int elements) const { return batch_.together() * elements > W; }

    // Whether whole batches are loaded all at once, and what follows is fetched meanwhile, or rows are read as they
    // lie, one by one. What is read out of order is fetched, since there the processor does not look ahead. Measured on
    // a Zen 5, one thread, dim 1, times over those without, from memory: softmax of 65536x32x4 0.49, logsumexp 0.45,
    // their gradients 0.53 and 0.57, softmax of 213333x30x5 0.46; of 15000x30x5, from L3, 0.84, its gradient 0.73; by
    // AVX2 0.38 to 0.8. Others are read one by one by a Zen 5: loaded all at once, softmax's gradient of rows of 3
    // float32 takes up to twice as long from L3, and hints cost softmax 1.05 to 1.1. Not so by AVX2: on a Zen 3, one
    // thread, rows of 2 to 8, from L3 and from memory, times over those one by one, softmax of float32 0.91 to 0.96 and
    // 0.94 to 0.98, log_softmax 0.93 to 0.97 and 0.95 to 1.01, softmax's gradient 0.80 to 0.86 and 0.84 to 0.92; of
    // bfloat16 0.85 to 0.89, 0.86 to 0.93 and 0.67 to 0.74, from memory 0.88 to 0.94, 0.90 to 0.96 and 0.78 to 0.88.
    // And with hints over that, by one thread and by two, from memory softmax of rows of 3 0.91 and 0.96, of 8 0.90 and
    // 0.95, log_softmax 0.91 and 0.95, logsumexp 0.94 and 0.89, gradients 0.99 to 1.0, from L3 all of these 0.95
    // to 1.06. By AVX-512 (a Zen 4, rows of 2 to 16, with hints): logsumexp from L3 0.89 to 0.97, from memory 0.71 to
    // 1.0; of bfloat16 softmax 0.87 to 0.96 and 0.88 to 1.0, log_softmax 0.92 to 0.98 and 0.86 to 1.06, gradients 0.64
    // to 0.90 and 0.72 to 0.95; but what writes float32 0.94 to 1.15 from L3, and from memory 1.1 to 1.3 (with hints
    // 1.0 to 1.2).
    bool come_at_once() const { return rows_at_once() || spans_vectors(batch_.elements()); }
    // Whether they are stored all at once: where no vector of results reaches into the next one's.
    bool go_at_once() const {
        return spans_vectors(of_result_) || (rows_at_once() && batch_.together() * of_result_ == W);
    }

    // Whether the rows of a vector, too.
    bool rows_at_once() const {
        const bool by_avx512 = kVectorBytes == 64 && !looks_far_ahead;
        return kVectorBytes == 32 || (by_avx512 && (sizeof(T) == 2 || !is_elementwise(job_.op)));
    }

    // The columns of the n rows of a batch; of lanes beyond them, whatever that makes of zeros.
    void bring(const T* x, int n, C* to, const Places& places) const {
        const bool at_once = n == batch_.rows() && come_at_once();
        at_once ? bring_by<true>(x, n, to, places) : bring_by<false>(x, n, to, places);
    }
    // Nothing behind the rows is read: another thread may be writing there.
    template <bool kAtOnce>
    ONEPASS_APART void bring_by(const T* x, int n, C* to, const Places& places) const {
        const int elements = batch_.elements(), step = batch_.together() * elements;
        for (int begin = 0; begin < step; begin += W) {
            V v[W];
            const int count = step - begin;
            if constexpr (kAtOnce) {
                const T* const from = x + begin;
                unrolled<W - 1>([&](auto i) ONEPASS_INLINE_BODY { v[i] = load(from + i * step); });
                const T* const last = from + (W - 1) * step;
                v[W - 1] = count < W ? load_n(last, count, C(0)) : load(last);
            } else {
                const int whole = n == batch_.rows() ? W - 1 : 0;  // of these a vector ends before the last row does
                for (int i = 0; i < W; ++i) {
                    const int at = i * step + begin, left = n * elements - at;
                    if (i < whole || left >= W) {
                        v[i] = load(x + at);
                    } else {
                        v[i] = left > 0 ? load_n(x + at, left, C(0)) : V(C(0));
                    }
                }
            }
            transpose(v);
            unrolled<W>([&](auto j) ONEPASS_INLINE_BODY {
                if (j < count) store(to + places.begin[begin + j], v[j]);
            });
        }
    }

    // Writes the results of n rows, one behind the other.
    template <class To>
    void send(const C* from, const Places& places, int n, To* y) const {
        const bool at_once = n == batch_.rows() && go_at_once();
        at_once ? send_by<true>(from, places, n, y) : send_by<false>(from, places, n, y);
    }
    template <bool kAtOnce, class To>
    ONEPASS_APART void send_by(const C* from, const Places& places, int n, To* y) const {
        const int step = batch_.together() * of_result_, all = n * of_result_;
        if (step == 1) {
            n == W ? store(y, load(from)) : store_n(y, load(from), n);
            return;
        }
        for (int begin = 0; begin < step; begin += W) {
            V v[W];
            const int count = step - begin;
            unrolled<W>([&](auto j)
                            ONEPASS_INLINE_BODY { v[j] = j < count ? load(from + places.begin[begin + j]) : V(C(0)); });
            transpose(v);
            if constexpr (kAtOnce) {
                if (count >= W) {
                    unrolled<W>([&](auto i) ONEPASS_INLINE_BODY { store(y + begin + i * step, v[i]); });
                    continue;
                }
            }
            for (int i = 0; i < W; ++i) {
                // What reaches past its own rows is written over by those: only the last ones, and ends of rows that
                // take several vectors, must not.
                const int at = i * step + begin, left = all - at;
                if (left <= 0) break;
                const int own = step > W && count < W ? count : W, lanes = left < own ? left : own;
                lanes == W ? store(y + at, v[i]) : store_n(y + at, v[i], lanes);
            }
        }
    }

    // The same by way of memory of its own.
    ONEPASS_APART void send_past_cache(const C* from, const Places& places, int n, T* y, Carry& carry) const {
        C* const side_by_side = scratch_of<C>(Scratch::output, (of_result_ * batch_.together() + 1) * W);
        send(from, places, n, side_by_side);
        Emitter<T, Put>(y, n * of_result_, true, {side_by_side}, &carry).finish();
    }

    const Job& job_;
    const T* x_;
    const T* second_;
    T* y_;
    RowBatch batch_;
    int of_result_;  // elements of what a row becomes
};

// NaN where there is one, else the largest or the smallest.
template <int kSign, class Columns>
inline void extremes_of(const Columns& c) {
    if (c.reduction().template extremes<kSign>(c.y)) return;
    for (std::int64_t i = 0; i < c.length * c.width; ++i) {
        if (c.x[i] != c.x[i]) c.y[i % c.width] = c.x[i];
    }
}

template <class T>
Form run_transposed(const Job& job, const void* x, void* y) {
    using Columns = typename TransposedRows<T>::Columns;
    TransposedRows<T>(job, {x}, y).run([&](const Columns c) {
        switch (job.op) {
            case Op::softmax: return c.results().softmax(c.x_steps());
            case Op::log_softmax: return c.results().log_softmax(c.x_steps());
            case Op::logsumexp: return c.results().logsumexp(c.x_steps());
            case Op::amax: return extremes_of<1>(c);
            case Op::amin: return extremes_of<-1>(c);
            default: return c.reduction().results(job.op == Op::mean, c.y);
        }
    });
    return Form::transposed;
}

template <class T>
Form run_transposed_gradient(const Job& job, const Addresses& in, void* y) {
    using Columns = typename TransposedRows<T>::Columns;
    TransposedRows<T>(job, in, y).run([&](const Columns c) {
        if (job.op == Op::softmax_backward) {
            c.results().template gradient<SoftmaxGradient<float>>(c.x_steps(), c.second_steps());
        } else {
            c.results().template gradient<LogSoftmaxGradient<float>>(c.x_steps(), c.second_steps());
        }
    });
    return Form::transposed;
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
