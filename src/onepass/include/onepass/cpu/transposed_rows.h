// Tiny rows (transposed.h) as columns: transposed in registers, then side by side in a near cache, where
// short_columns.h and column_reductions.h do the rest.
#pragma once

#include "across.h"
#include "column_reductions.h"
#include "gradient_ops.h"
#include "short_columns.h"
#include "transposed.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Lane i of vector j becomes lane j of vector i: log2(W) times, vectors exchange halves of ever fewer lanes.
template <int kHalf, class C>
ONEPASS_INLINE void transpose_from(Vec<C> (&v)[kLanes<C>]) {
    constexpr auto kEach = std::make_integer_sequence<int, kLanes<C>>();
    unrolled<kLanes<C> / 2>([&](auto pair) ONEPASS_INLINE_BODY {
        constexpr int i = pair / kHalf * 2 * kHalf + pair % kHalf;
        const Vec<C> a = v[i], b = v[i + kHalf];
        v[i] = halves<kHalf, false>(a, b, kEach);
        v[i + kHalf] = halves<kHalf, true>(a, b, kEach);
    });
    if constexpr (kHalf > 1) transpose_from<kHalf / 2>(v);
}
template <class C>
ONEPASS_INLINE void transpose(Vec<C> (&v)[kLanes<C>]) {
    transpose_from<kLanes<C> / 2>(v);
}

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
          places_(batch_, batch_.elements()) {}

    // compute(columns, their number) for each batch turns columns into results.
    template <class Work>
    void run(Work&& compute) const {
        const std::int64_t batches = (job_.rows + batch_.rows() - 1) / batch_.rows();
        const std::int64_t bytes = batch_.rows() * batch_.elements() * static_cast<std::int64_t>(sizeof(T));
        auto body = [&](std::int64_t begin, std::int64_t end) { run_range(begin, end, compute); };
        parallel_ranges(batches, grain_of(batches, bytes, kPlainRun, job_.threads), job_.threads, body);
    }

    // Columns of a batch, in scratch memory: 64 KiB at most by AVX-512, which is all that some threads have of a stack.
    // Apart from each other, and handed on by value: softmax of rows of 3 takes 1.08 of the time where the compiler has
    // to suppose that a store changes one of these, or what another points to.
    struct Columns {
        C* __restrict x;
        C* __restrict second;
        C* __restrict y;
        std::int64_t length;
        int width;

        ShortRowsOf<const C> steps(const C* of) const { return {of, width}; }
        ShortColumns<C, sizeof(T) == 4, true> results() const { return {length, width, {y, width}, false}; }
        ColumnReduction<C> reduction() const { return {{x, width, length, false}, width}; }
    };

   private:
    template <class Work>
    void run_range(std::int64_t begin, std::int64_t end, Work&& compute) const {
        const std::int64_t size = batch_.elements() * batch_.together() * W;
        C* const x = scratch_of<C>(Scratch::values, (second_ ? 3 : 2) * size);
        const Columns columns{x, x + 2 * size, x + size, job_.length, batch_.inner() * batch_.together() * W};
        const int of_result = is_elementwise(job_.op) ? batch_.elements() : batch_.inner();
        const Places places(batch_, of_result);
        Carry carry;
        for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t first = i * batch_.rows();
            const std::int64_t left = job_.rows - first;
            const int n = left < batch_.rows() ? static_cast<int>(left) : batch_.rows();
            bring(x_, first, n, columns.x);
            if (second_) bring(second_, first, n, columns.second);
            compute(columns);
            T* const y = y_ + first * of_result;
            if (job_.nontemporal) {
                send_past_cache(columns.y, of_result, places, n, y, carry);
            } else {
                send(columns.y, of_result, places, n, y);
            }
        }
        carry.flush();
        if (job_.nontemporal) stream_fence();
    }

    // Results that are only to be put where they belong.
    struct Put {
        const C* from = nullptr;
        ONEPASS_INLINE V operator()(std::int64_t i) const { return load(from + i); }
        V operator()(std::int64_t i, int n) const { return load_n(from + i, n, C(0)); }
    };

    // Where the elements of the rows of a vector lie among the columns, of rows of so many elements.
    struct Places {
        int begin[kMostTransposed];

        Places(const RowBatch& batch, int elements) {
            for (int e = 0; e < elements * batch.together(); ++e) {
                begin[e] = (e % elements * batch.together() + e / elements) * W;
            }
        }
    };

    // The columns of n rows from row `first` on; of lanes beyond them, whatever that makes of zeros. Nothing behind the
    // rows is read: another thread may be writing there.
    ONEPASS_APART void bring(const T* rows, std::int64_t first, int n, C* to) const {
        const int elements = batch_.elements(), step = batch_.together() * elements;
        const T* x = rows + first * elements;
        for (int begin = 0; begin < step; begin += W) {
            V v[W];
            const int whole = n == batch_.rows() ? W - 1 : 0;  // of these a vector ends before the last row does
            for (int i = 0; i < W; ++i) {
                const int at = i * step + begin, left = n * elements - at;
                if (i < whole || left >= W) {
                    v[i] = load(x + at);
                } else {
                    v[i] = left > 0 ? load_n(x + at, left, C(0)) : V(C(0));
                }
            }
            transpose(v);
            const int count = step - begin;
            unrolled<W>([&](auto j) ONEPASS_INLINE_BODY {
                if (j < count) store(to + places_.begin[begin + j], v[j]);
            });
        }
    }

    // Writes n rows of so many elements each, one behind the other.
    template <class To>
    ONEPASS_APART void send(const C* from, int elements, const Places& places, int n, To* y) const {
        const int step = batch_.together() * elements;
        const int all = n * elements;
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
    ONEPASS_APART void send_past_cache(const C* from, int elements, const Places& places, int n, T* y,
                                       Carry& carry) const {
        C* const side_by_side = scratch_of<C>(Scratch::output, (elements * batch_.together() + 1) * W);
        send(from, elements, places, n, side_by_side);
        Emitter<T, Put>(y, n * elements, true, {side_by_side}, &carry).finish();
    }

    const Job& job_;
    const T* x_;
    const T* second_;
    T* y_;
    RowBatch batch_;
    Places places_;
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
            case Op::softmax: return c.results().softmax(c.steps(c.x));
            case Op::log_softmax: return c.results().log_softmax(c.steps(c.x));
            case Op::logsumexp: return c.results().logsumexp(c.steps(c.x));
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
            c.results().template gradient<SoftmaxGradient<float>>(c.steps(c.x), c.steps(c.second));
        } else {
            c.results().template gradient<LogSoftmaxGradient<float>>(c.steps(c.x), c.steps(c.second));
        }
    });
    return Form::transposed;
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
