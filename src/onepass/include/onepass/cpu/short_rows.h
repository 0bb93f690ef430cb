// registers: rows of up to sixteen vectors, as many rows at once as a vector has lanes.
//
// A short row is mostly what it needs once: its maximum, the reciprocal of its sum, its logarithm. For a batch of rows
// these are computed together, row r in lane r of one vector (across.h).
#pragma once

#include "access.h"
#include "reciprocals.h"
#include "row_batches.h"
#include "row_reductions.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class ShortRows : RowBatches<T> {
    using Batches = RowBatches<T>;
    using C = Compute<T>;
    using V = Vec<C>;
    using P = Precision<T>;
    using Batches::W, Batches::n_, Batches::last_, Batches::adjacent_, Batches::wide_sums;

   public:
    using Batches::kMostVectors;

    ShortRows(const Job& job, const char* x, char* y)
        : Batches(job, is_elementwise(job.op) ? job.length : 1),
          job_(job),
          x_(x),
          y_(y),
          stride_((n_ + W - 1) / W * W) {}

    void run(std::int64_t begin, std::int64_t end) const {
        switch (job_.op) {
            case Op::softmax: return each(begin, end, [this](const Batch& b) { softmax(b); });
            case Op::log_softmax: return each(begin, end, [this](const Batch& b) { log_softmax(b); });
            case Op::logsumexp: return each(begin, end, [this](const Batch& b) { logsumexp(b); });
            case Op::sum:
            case Op::mean: return each(begin, end, [this](const Batch& b) { sum(b); });
            case Op::amax: return each(begin, end, [this](const Batch& b) { extreme<1>(b); });
            case Op::amin: return each(begin, end, [this](const Batch& b) { extreme<-1>(b); });
            default: return;
        }
    }

   private:
    struct Batch {
        int count;  // of rows, at most W
        const T* x[W];
        char* y[W];
        std::int64_t ahead;  // elements from a row to the one a batch later
    };

    template <class Run>
    void each(std::int64_t begin, std::int64_t end, Run&& run) const {
        Batch batch;
        batch.ahead = job_.outer.count == 1 ? W * job_.outer[0].x_stride : 0;
        for (std::int64_t first = begin; first < end; first += W) {
            batch.count = static_cast<int>(end - first < W ? end - first : W);
            for (int r = 0; r < batch.count; ++r) {
                const Offsets at = offsets(first + r);
                batch.x[r] = reinterpret_cast<const T*>(x_) + at.x;
                batch.y[r] = y_ + at.y * size_of(job_.out);
            }
            run(batch);
        }
    }

    Offsets offsets(std::int64_t r) const {
        if (job_.outer.count == 1) return {r * job_.outer[0].x_stride, r * job_.outer[0].y_stride};
        return offsets_of(job_.outer, r);
    }

    // ---- rows ----

    // Calls visit(i, the vector at i) over a row; the last vector is filled up with `fill`.
    template <class Visit>
    ONEPASS_INLINE void visit_row(const T* x, C fill, Visit&& visit) const {
        int i = 0;
        for (; i + W <= n_; i += W) visit(i, load(x + i));
        if (last_ > 0) visit(i, load_n(x + i, last_, fill));
    }

    // Row r of the next batch: the processor sees rows this short begin and end too often to look far ahead itself.
    ONEPASS_INLINE void fetch(const Batch& b, int r) const {
        const char* p = reinterpret_cast<const char*>(b.x[r] + b.ahead);
        for (int i = 0; i < n_ * static_cast<int>(sizeof(T)); i += kCacheLine) __builtin_prefetch(p + i, 0, 2);
    }

    // Lane r of each of these, for the W rows of a batch. What lies beyond its last row repeats the first.
    static void repeat_first(const Batch& b, V (&rows)[W]) {
        for (int r = b.count; r < W; ++r) rows[r] = rows[0];
    }

    // ---- softmax ----

    void softmax(const Batch& b) const {
        alignas(kCacheLine) C e[W * kMostVectors * W];
        alignas(kCacheLine) double sum[W];
        Least<C> least;
        if (!softmax_sums_if_usual(b, e, sum, least)) softmax_sums_of_any(b, e, sum, least);
        alignas(kCacheLine) C scale[W], scale_low[W];
        reciprocals(sum, W, scale, scale_low);
        const auto write = [&](auto&& value) ONEPASS_INLINE_BODY {
            Batches::store_rows(
                b.y, b.count,
                [&](int r, int i, int)
                    ONEPASS_INLINE_BODY { return value(load(e + r * stride_ + i), V(scale[r]), V(scale_low[r])); },
                Nothing{});
        };
        if (__builtin_expect(least.small_beside_any(scale, W), 0)) {
            write([](V v, V high, V low) ONEPASS_INLINE_BODY { return V(scaled(P(v), P(high), P(low))); });
        } else {
            write([](V v, V high, V low) ONEPASS_INLINE_BODY { return times<T>(v, high, low); });
        }
    }

    // Every row's exponentials, and their sum.
    ONEPASS_INLINE bool softmax_sums_if_usual(const Batch& b, C* e, double (&sum)[W], Least<C>& least) const {
        if (n_ >= W && !may_be_usual(load(b.x[0]))) return false;
        V part[W];
        V top = -kInfinity<C>;
        const auto anchor = usual_anchor<C>();
        for (int r = 0; r < b.count; ++r) {
            fetch(b, r);
            part[r] = exponentials(b.x[r], anchor, e + r * stride_, top, least);
        }
        repeat_first(b, part);
        wide_sums(part, sum);
        return are_usual(top, sum, W);
    }

    template <bool kShifted>
    ONEPASS_INLINE V exponentials(const T* x, const Anchor<V, kShifted>& anchor, C* e, V& top, Least<C>& least) const {
        V sum = C(0);
        visit_row(x, -kInfinity<C>, [&](int i, V v) ONEPASS_INLINE_BODY {
            top = max(v, top);
            const V exponential = exp_of<T>(v, anchor);
            store(e + i, exponential);
            sum = sum + exponential;
            least.add(exponential);
        });
        return sum;
    }

    ONEPASS_APART void softmax_sums_of_any(const Batch& b, C* e, double (&sum)[W], Least<C>& least) const {
        const auto anchors = anchor_at(tops(b), false);
        V part[W], unused = C(0);
        for (int r = 0; r < b.count; ++r) {
            const Anchor<V, true> anchor{V(anchors.shift.v[r]), V(anchors.floor.v[r]), V(anchors.magic.v[r])};
            part[r] = exponentials(b.x[r], anchor, e + r * stride_, unused, least);
        }
        repeat_first(b, part);
        wide_sums(part, sum);
    }

    // The maximum of every row, NaN left out.
    ONEPASS_INLINE V tops(const Batch& b) const {
        V part[W];
        for (int r = 0; r < b.count; ++r) {
            V top = -kInfinity<C>;
            visit_row(b.x[r], -kInfinity<C>, [&](int, V v) ONEPASS_INLINE_BODY { top = max(v, top); });
            part[r] = top;
        }
        repeat_first(b, part);
        return maxima_across(part);
    }

    // ---- log_softmax and logsumexp ----

    // Every row's maximum, and its sum of exponentials relative to that.
    ONEPASS_INLINE void states(const Batch& b, C (&top)[W], double (&sum)[W]) const {
        const V maxima = tops(b);
        store(top, maxima);
        const auto zero = anchor_at(V(C(0)), true);
        if constexpr (sizeof(C) == 8) {
            for (int r = 0; r < b.count; ++r) {
                const Anchor<V, true> anchor{V(top[r]), zero.floor, zero.magic};
                WideSum<C> all;
                visit_row(b.x[r], -kInfinity<C>, [&](int, V v) ONEPASS_INLINE_BODY { all.add(exp_of<T>(v, anchor)); });
                sum[r] = all.value() * kUnbias<C>;
            }
        } else {
            // Of each row as in sum_exp: what is at its top is counted, the others are added up.
            V others[W], tops[W];
            for (int r = 0; r < b.count; ++r) {
                fetch(b, r);
                const Anchor<V, true> anchor{V(top[r]), zero.floor, zero.magic};
                V sum_of_others = C(0), tops_of_row = C(0);
                visit_row(b.x[r], -kInfinity<C>, [&](int, V v) ONEPASS_INLINE_BODY {
                    add_or_count(v, anchor.shift, exp_of<T>(v, anchor), sum_of_others, tops_of_row);
                });
                others[r] = sum_of_others;
                tops[r] = tops_of_row;
            }
            repeat_first(b, others);
            repeat_first(b, tops);
            wide_sums(others, sum);
            const V counts = sums_across(tops);
            for (int r = 0; r < W; ++r) sum[r] = sum[r] * kUnbias<C> + static_cast<double>(counts.v[r]);
        }
    }

    void log_softmax(const Batch& b) const {
        alignas(kCacheLine) C top[W], high[W], low[W];
        alignas(kCacheLine) double sum[W];
        states(b, top, sum);
        for (int r = b.count; r < W; ++r) sum[r] = 1;
        for (int r = 0; r < W; ++r) split_lse(static_cast<double>(top[r]), sum[r], high[r], low[r]);
        Batches::store_rows(
            b.y, b.count,
            [&](int r, int i, int lanes) ONEPASS_INLINE_BODY {
                const LogSoftmaxOp<V> op{V(high[r]), V(low[r])};
                const T* x = b.x[r] + i;
                return op(lanes == W ? load(x) : load_n(x, lanes, C(0)));
            },
            Nothing{});
    }

    void logsumexp(const Batch& b) const {
        alignas(kCacheLine) C top[W];
        alignas(kCacheLine) double sum[W];
        states(b, top, sum);
        for (int r = 0; r < b.count; ++r) {
            if (is_infinite(top[r])) {
                const Partial state = state_at_infinity(b.x[r], n_, static_cast<double>(top[r]));
                sum[r] = state.d;
            }
        }
        double result[W];
        for (int r = 0; r < W; ++r)
            result[r] = sizeof(C) == 4 ? static_cast<double>(top[r]) + log_of_sum(sum[r])
                                       : Partial{static_cast<double>(top[r]), sum[r]}.lse();
        store_results(b, result);
    }

    // ---- plain reductions ----

    void sum(const Batch& b) const {
        double result[W];
        if constexpr (sizeof(C) == 8) {
            for (int r = 0; r < b.count; ++r) result[r] = sum_of(b.x[r], n_);
        } else {
            V part[W];
            for (int r = 0; r < b.count; ++r) {
                fetch(b, r);
                V all = C(0);
                visit_row(b.x[r], C(0), [&](int, V v) ONEPASS_INLINE_BODY { all = all + v; });
                part[r] = all;
            }
            repeat_first(b, part);
            wide_sums(part, result);
        }
        if (job_.op == Op::mean) {
            for (int r = 0; r < b.count; ++r) result[r] /= n_;
        }
        store_results(b, result);
    }

    // kSign = 1: maxima, -1: minima. NaN where there is one.
    template <int kSign>
    void extreme(const Batch& b) const {
        constexpr C worst = -kSign * kInfinity<C>;
        V part[W], nan = C(0);
        for (int r = 0; r < b.count; ++r) {
            fetch(b, r);
            V best = worst;
            visit_row(b.x[r], worst, [&](int, V v) ONEPASS_INLINE_BODY {
                best = kSign > 0 ? max(v, best) : min(v, best);
                nan = nan_or(v, nan);
            });
            part[r] = best;
        }
        repeat_first(b, part);
        const V all = kSign > 0 ? maxima_across(part) : minima_across(part);
        double result[W];
        for (int r = 0; r < W; ++r) result[r] = static_cast<double>(all.v[r]);
        if (reduce_sum(nan) != 0) {
            for (int r = 0; r < b.count; ++r) result[r] = extreme_of<kSign>(b.x[r], n_);
        }
        store_results(b, result);
    }

    void store_results(const Batch& b, const double (&result)[W]) const {
        T* y = reinterpret_cast<T*>(b.y[0]);
        if constexpr (sizeof(T) >= 4) {
            if (adjacent_ && b.count == W) {
                for (int r = 0; r < W; ++r) y[r] = static_cast<T>(result[r]);
                return;
            }
        }
        for (int r = 0; r < b.count; ++r) *reinterpret_cast<T*>(b.y[r]) = narrow_scalar<T>(result[r]);
    }

    const Job& job_;
    const char* x_;
    char* y_;
    int stride_;  // n_, rounded up to whole vectors
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
