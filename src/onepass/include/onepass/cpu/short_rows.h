// registers: rows of up to sixteen vectors, as many rows at once as a vector has lanes.
//
// A short row is mostly what it needs once: its maximum, the reciprocal of its sum, its logarithm. For a batch of rows
// these are computed together, row r in lane r of one vector (across.h).
#pragma once

#include "access.h"
#include "column_groups.h"
#include "logarithms.h"
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
            case Op::softmax: return softmax(begin, end);
            case Op::log_softmax: return log_softmax(begin, end);
            case Op::logsumexp: return each(begin, end, [this](const Batch& b) { logsumexp(b); });
            default: return reduce(begin, end);
        }
    }

   private:
    struct Batch {
        int count;  // of rows, at most W
        const T* x[W];
        char* y[W];
        std::int64_t ahead;  // elements from a row to the one two batches later
    };

    // The batch that begins with row `first`, if that is before `end`.
    void take(Batch& batch, std::int64_t first, std::int64_t end) const {
        const std::int64_t left = end - first;
        batch.count = static_cast<int>(left <= 0 ? 0 : left < W ? left : W);
        batch.ahead = job_.outer.count == 1 ? 2 * W * job_.outer[0].x_stride : 0;
        const auto x = reinterpret_cast<const T*>(x_);
        const std::int64_t y_size = size_of(job_.out);
        if (job_.outer.count == 1) {
            const std::int64_t x_stride = job_.outer[0].x_stride, y_stride = job_.outer[0].y_stride;
            for (int r = 0; r < batch.count; ++r) {
                batch.x[r] = x + (first + r) * x_stride;
                batch.y[r] = y_ + (first + r) * y_stride * y_size;
            }
            return;
        }
        for (int r = 0; r < batch.count; ++r) {
            const Offsets at = offsets_of(job_.outer, first + r);
            batch.x[r] = x + at.x;
            batch.y[r] = y_ + at.y * y_size;
        }
    }
    template <class Run>
    void each(std::int64_t begin, std::int64_t end, Run&& run) const {
        Batch batch;
        for (std::int64_t first = begin; first < end; first += W) {
            take(batch, first, end);
            run(batch);
        }
    }

    // ---- rows ----

    // Calls visit(i, the vectors from i on) over a row, several of them (kTogether) or one; the last vector is filled
    // up with `fill`.
    template <class Visit>
    ONEPASS_INLINE void visit_row(const T* x, C fill, Visit&& visit) const {
        int i = 0;
        for (; i + kTogether * W <= n_; i += kTogether * W) {
            V v[kTogether];
            for (int k = 0; k < kTogether; ++k) v[k] = load(x + i + k * W);
            visit(i, v);
        }
        for (; i < n_; i += W) {
            V v[1] = {i + W <= n_ ? load(x + i) : load_n(x + i, last_, fill)};
            visit(i, v);
        }
    }

    // Row r of the batch after the next: the processor sees rows this short begin and end too often to look far ahead
    // itself. Measured on a Zen 5, times by this over those by the next, from memory: logsumexp of 32 to 256 float32
    // 0.83 to 0.99, log_softmax of 32 and 64 0.9, of others 0.96 to 1.03, softmax 0.98 to 1.03.
    ONEPASS_INLINE void fetch(const Batch& b, int r) const { fetch_soon(b.x[r] + b.ahead, n_); }

    // Lane r of each of these, for the W rows of a batch. What lies beyond its last row repeats the first.
    static void repeat_first(const Batch& b, V (&rows)[W]) {
        for (int r = b.count; r < W; ++r) rows[r] = rows[0];
    }

    // ---- softmax ----

    // What the exponentials of a batch have shown.
    struct Seen {
        V top = -kInfinity<C>;
        Least<C> least = {};
    };

    // The results of a batch are written while the exponentials of the next one are computed, row by row.
    void softmax(std::int64_t begin, std::int64_t end) const {
        // 32 KiB at most by AVX-512: much of what some threads have of a stack.
        C* const both = scratch_of<C>(Scratch::values, 2 * W * stride_);
        C* const e[2] = {both, both + W * stride_};
        alignas(kCacheLine) double sum[W];
        alignas(kCacheLine) C scale[W], scale_low[W];
        const auto anchor = usual_anchor<C>();
        V part[W];
        Batch two[2];
        Carry carry;
        take(two[0], begin, end);
        Seen seen = look_at_all(two[0], e[0], part);
        for (std::int64_t first = begin, i = 0; first < end; first += W, ++i) {
            const Batch& now = two[i & 1];
            Batch& next = two[(i + 1) & 1];
            const C* const kept = e[i & 1];
            C* const keep = e[(i + 1) & 1];
            repeat_first(now, part);
            wide_sums(part, sum);
            if (!are_usual(seen.top, sum, W)) seen = exponentials_of_any(now, e[i & 1], sum);
            reciprocals(sum, W, scale, scale_low);
            take(next, first + W, end);
            const bool small = seen.least.small_beside_any(scale, W);
            if (__builtin_expect(small || !worth_trying(next), 0)) {
                write(now, kept, scale, scale_low, small, carry);
                seen = look_at_all(next, keep, part);
                continue;
            }
            seen = {};
            Batches::template store_rows<true>(
                now.y, now.count, carry,
                [&](int r, int at, int) ONEPASS_INLINE_BODY {
                    return times<T>(load(kept + r * stride_ + at), V(scale[r]), V(scale_low[r]));
                },
                [&](int r) ONEPASS_INLINE_BODY {
                    if (r < next.count) look(next, r, anchor, keep, part, seen);
                });
        }
        carry.flush();
    }

    // Row r for the first time, taken for a usual one: its exponentials, and their sum.
    ONEPASS_INLINE void look(const Batch& b, int r, const Anchor<V, false>& anchor, C* e, V (&part)[W],
                             Seen& seen) const {
        fetch(b, r);
        part[r] = exponentials(b.x[r], anchor, e + r * stride_, seen);
    }
    bool worth_trying(const Batch& b) const { return b.count == 0 || n_ < W || may_be_usual(load(b.x[0])); }
    ONEPASS_APART Seen look_at_all(const Batch& b, C* e, V (&part)[W]) const {
        if (!worth_trying(b)) {
            for (V& each : part) each = C(0);
            return {kInfinity<C>, {}};
        }
        const auto anchor = usual_anchor<C>();
        Seen seen;
        for (int r = 0; r < b.count; ++r) look(b, r, anchor, e, part, seen);
        return seen;
    }

    template <bool kShifted>
    ONEPASS_INLINE V exponentials(const T* x, const Anchor<V, kShifted>& anchor, C* e, Seen& seen) const {
        V sum = C(0);
        visit_row(x, -kInfinity<C>, [&](int i, auto& v) ONEPASS_INLINE_BODY {
            for (const V& each : v) seen.top = max(each, seen.top);
            exp_all_of<T>(v, anchor);
            for (const V& each : v) {
                store(e + i, each);
                i += W;
                sum = sum + each;
                seen.least.add(each);
            }
        });
        return sum;
    }

    // The same relative to each row's maximum.
    ONEPASS_APART Seen exponentials_of_any(const Batch& b, C* e, double (&sum)[W]) const {
        alignas(kCacheLine) C top[W];
        find_tops(b, top);
        const auto anchors = anchor_at(load(top), false);
        V part[W];
        Seen seen;
        for (int r = 0; r < b.count; ++r) {
            const Anchor<V, true> anchor{V(anchors.shift.v[r]), V(anchors.floor.v[r]), V(anchors.magic.v[r])};
            part[r] = exponentials(b.x[r], anchor, e + r * stride_, seen);
        }
        repeat_first(b, part);
        wide_sums(part, sum);
        return seen;
    }

    // The results of a batch and nothing beside. `small`: some of them may be subnormal.
    ONEPASS_APART void write(const Batch& b, const C* e, const C (&scale)[W], const C (&scale_low)[W], bool small,
                             Carry& carry) const {
        const auto each = [&](auto&& value) ONEPASS_INLINE_BODY {
            Batches::template store_rows<false>(
                b.y, b.count, carry,
                [&](int r, int i, int)
                    ONEPASS_INLINE_BODY { return value(load(e + r * stride_ + i), V(scale[r]), V(scale_low[r])); },
                Nothing{});
        };
        if (small) {
            each([](V v, V high, V low) ONEPASS_INLINE_BODY { return V(scaled(P(v), P(high), P(low))); });
        } else {
            each([](V v, V high, V low) ONEPASS_INLINE_BODY { return times<T>(v, high, low); });
        }
    }

    // The maximum of every row, NaN left out.
    ONEPASS_APART void find_tops(const Batch& b, C (&top)[W]) const {
        V part[W];
        for (int r = 0; r < b.count; ++r) part[r] = top_of(b.x[r]);
        repeat_first(b, part);
        store(top, maxima_across(part));
    }
    ONEPASS_INLINE V top_of(const T* x) const {
        V top = -kInfinity<C>;
        visit_row(x, -kInfinity<C>, [&](int, auto& v) ONEPASS_INLINE_BODY {
            for (const V& each : v) top = max(each, top);
        });
        return top;
    }

    // ---- log_softmax and logsumexp ----

    // Sums of exponentials relative to each row's maximum: lane by lane what is below that, and how often that is
    // there; or, of float64, altogether.
    struct SumsBelow {
        V others[W], tops[W];
        alignas(kCacheLine) double sum[W];
    };

    ONEPASS_INLINE void add_below(const Batch& b, int r, C top, SumsBelow& sums) const {
        const auto zero = anchor_at(V(C(0)), true);
        if constexpr (sizeof(C) == 8) {
            WideSum<C> all;
            visit_row(b.x[r], -kInfinity<C>, [&](int, auto& v) ONEPASS_INLINE_BODY {
                exp_all_of<T>(v, Anchor<V, true>{V(top), zero.floor, zero.magic});
                for (const V& each : v) all.add(each);
            });
            sums.sum[r] = all.value() * kUnbias<C>;
        } else {
            BelowTop<T> exponential{{V(top), zero.floor, zero.magic}};
            V others = C(0);
            visit_row(b.x[r], -kInfinity<C>, [&](int, auto& v) ONEPASS_INLINE_BODY {
                exponential(v);
                for (const V& each : v) others = others + each;
            });
            sums.others[r] = others;
            sums.tops[r] = exponential.tops(n_);
        }
    }
    ONEPASS_APART void add_all_below(const Batch& b, const C (&top)[W], SumsBelow& sums) const {
        for (int r = 0; r < b.count; ++r) {
            fetch(b, r);
            add_below(b, r, top[r], sums);
        }
    }
    // After all rows: sums.sum.
    void finish_below(const Batch& b, SumsBelow& sums) const {
        if constexpr (sizeof(C) == 8) {
            for (int r = b.count; r < W; ++r) sums.sum[r] = 1;
        } else {
            repeat_first(b, sums.others);
            repeat_first(b, sums.tops);
            Batches::wide_sums(sums.others, sums.sum);
            const V counts = sums_across(sums.tops);
            for (int r = 0; r < W; ++r) sums.sum[r] = sums.sum[r] * kUnbias<C> + static_cast<double>(counts.v[r]);
        }
    }

    // The results of a batch are written beside the exponentials of the next and the maxima of the one after, row by
    // row.
    void log_softmax(std::int64_t begin, std::int64_t end) const {
        alignas(kCacheLine) C top[2][W], high[W], low[W];
        SumsBelow sums;
        V part[W];
        Batch three[3];
        Carry carry;
        for (int i = 0; i < 2; ++i) {
            // In variables of its own: what a call has had the address of is read again after every store.
            Batch batch;
            take(batch, begin + i * W, end);
            three[i] = batch;
            if (batch.count == 0) continue;
            alignas(kCacheLine) C found[W];
            find_tops(batch, found);
            store(top[i], load(found));
            if (i > 0) continue;
            SumsBelow below;
            add_all_below(batch, found, below);
            sums = below;
        }
        for (std::int64_t first = begin, i = 0; first < end; first += W, ++i) {
            const Batch& now = three[i % 3];
            const Batch& next = three[(i + 1) % 3];
            Batch& after = three[(i + 2) % 3];
            finish_below(now, sums);
            split_all_lse<0>(top[i & 1], sums.sum, W, high, low);
            take(after, first + 2 * W, end);
            const C* const next_top = top[(i + 1) & 1];
            Batches::template store_rows<true>(
                now.y, now.count, carry,
                [&](int r, int at, int lanes) ONEPASS_INLINE_BODY {
                    const LogSoftmaxOp<V> op{V(high[r]), V(low[r])};
                    const T* x = now.x[r] + at;
                    return op(lanes == W ? load(x) : load_n(x, lanes, C(0)));
                },
                [&](int r) ONEPASS_INLINE_BODY {
                    if (r < next.count) add_below(next, r, next_top[r], sums);
                    if (r < after.count) {
                        fetch(after, r);
                        part[r] = top_of(after.x[r]);
                    }
                });
            if (after.count == 0) continue;
            repeat_first(after, part);
            store(top[i & 1], maxima_across(part));
        }
        carry.flush();
    }

    void logsumexp(const Batch& b) const {
        alignas(kCacheLine) C top[W];
        find_tops(b, top);
        SumsBelow sums;
        add_all_below(b, top, sums);
        finish_below(b, sums);
        alignas(kCacheLine) C result[W];
        if (!all_lse<0>(top, sums.sum, W, result)) {
            for (int r = 0; r < b.count; ++r) {
                if (is_infinite(top[r])) result[r] = has_nan(b.x[r], n_) ? static_cast<C>(__builtin_nan("")) : top[r];
            }
        }
        store_results(b, result);
    }

    // ---- plain reductions ----

    // Vectors of a row: the planner gives none that have more (_SUM_REGISTER_ROW, _EXTREME_REGISTER_ROW).
    static constexpr int kMostSummed = 2, kMostCompared = 8;

    void reduce(std::int64_t begin, std::int64_t end) const {
        switch (job_.op) {
            case Op::amax: return each(begin, end, [this](const Batch& b) { extreme<1>(b); });
            case Op::amin: return each(begin, end, [this](const Batch& b) { extreme<-1>(b); });
            default: return each(begin, end, [this](const Batch& b) { sum(b); });
        }
    }

    // Calls run for the number of vectors of a row, as a constant: most of what short ones take are loops and masks, if
    // it is a variable.
    template <int kMost, int kVectors = 1, class Run>
    ONEPASS_INLINE void with_vectors(Run&& run) const {
        if constexpr (kVectors < kMost) {
            if (n_ > kVectors * W) return with_vectors<kMost, kVectors + 1>(run);
        }
        run.template operator()<kVectors>();
    }

    // Calls visit(vector k) for the vectors of a row, the last one filled up.
    template <int kVectors, class Visit>
    ONEPASS_INLINE void visit_vectors_of(const T* x, int last, C fill, Visit&& visit) const {
        unrolled<kVectors>([&](auto k) ONEPASS_INLINE_BODY {
            visit(k == kVectors - 1 ? load_n(x + k * W, last, fill) : load(x + k * W));
        });
    }

    // part[r]: the sum of row r's vectors.
    template <int kVectors>
    ONEPASS_APART void add_up(const Batch& b, V (&part)[W]) const {
        const int last = last_ == 0 ? W : last_;
        for (int r = 0; r < b.count; ++r) {
            V all = C(0);
            visit_vectors_of<kVectors>(b.x[r], last, C(0), [&](V v) ONEPASS_INLINE_BODY { all = all + v; });
            part[r] = all;
        }
    }

    void sum(const Batch& b) const {
        double result[W];
        if constexpr (sizeof(C) == 8) {
            for (int r = 0; r < b.count; ++r) result[r] = sum_of(b.x[r], n_, false);
        } else {
            V part[W];
            with_vectors<kMostSummed>([&]<int kVectors>() ONEPASS_INLINE_BODY { this->add_up<kVectors>(b, part); });
            repeat_first(b, part);
            wide_sums(part, result);
        }
        if (job_.op == Op::mean) {
            for (int r = 0; r < b.count; ++r) result[r] /= n_;
        }
        store_results(b, result);
    }

    // part[r]: the maximum of row r's vectors, or with kSign = -1 the minimum. Returns NaN in some lane where there is
    // one.
    template <int kSign, int kVectors>
    ONEPASS_APART V extremes_of(const Batch& b, V (&part)[W]) const {
        constexpr C worst = -kSign * kInfinity<C>;
        // Measured on a Zen 5 from memory: maxima of 64 to 128 bfloat16 0.71 to 0.86 of the time; in cache 1.0 to 1.03,
        // of float32, which come from there, up to 1.18.
        constexpr bool kFetches = sizeof(T) == 2 && kVectors > 2;
        const int last = last_ == 0 ? W : last_;
        V nan = C(0);
        for (int r = 0; r < b.count; ++r) {
            V best = worst;
            if constexpr (kFetches) fetch(b, r);
            visit_vectors_of<kVectors>(b.x[r], last, worst, [&](V v) ONEPASS_INLINE_BODY {
                nan = nan_or(v, nan);
                best = more_extreme<kSign>(v, best);
            });
            part[r] = best;
        }
        return nan;
    }

    // NaN where there is one.
    template <int kSign>
    void extreme(const Batch& b) const {
        V part[W], nan;
        with_vectors<kMostCompared>([&]<int kVectors>()
                                        ONEPASS_INLINE_BODY { nan = this->extremes_of<kSign, kVectors>(b, part); });
        repeat_first(b, part);
        const V all = kSign > 0 ? maxima_across(part) : minima_across(part);
        alignas(kCacheLine) C result[W];
        store(result, all);
        if (reduce_sum(nan) != 0) {
            for (int r = 0; r < b.count; ++r) {
                if (has_nan(b.x[r], n_)) result[r] = static_cast<C>(__builtin_nan(""));
            }
        }
        store_results(b, result);
    }

    template <class Result>
    void store_results(const Batch& b, const Result (&result)[W]) const {
        if (adjacent_) return write_results(reinterpret_cast<T*>(b.y[0]), result, b.count);
        for (int r = 0; r < b.count; ++r) *reinterpret_cast<T*>(b.y[r]) = narrow_scalar<T>(result[r]);
    }

    const Job& job_;
    const char* x_;
    char* y_;
    int stride_;  // n_, rounded up to whole vectors
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
