// Plain reductions of one contiguous span: its sum, its largest and its smallest element.
#pragma once

#include "span.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
constexpr std::int64_t stream_apart = 16384 / sizeof(T);
constexpr int kStreamVectors = 16;

// Four streams through a long span, 16 KiB apart: a processor looks ahead in each, as far as its page goes, and what is
// there beyond is fetched. Calls visit(stream, Vec), and flush() after sixteen vectors of each. Returns how many
// elements were visited: blocks of 64 KiB. Sums of 128 x 262144 float32 on a Zen 4, pages of 4 KiB, against one
// stream: 1.2x. A processor that looks further ahead by itself is only kept from its work (looks_far_ahead).
template <class T, class Visit, class Flush>
ONEPASS_INLINE std::int64_t visit_streams(const T* x, std::int64_t n, Visit&& visit, Flush&& flush) {
    constexpr std::int64_t kAhead = 4096 / sizeof(T), W = kLanes<Compute<T>>, kApart = stream_apart<T>;
    const bool fetches = !looks_far_ahead;
    std::int64_t done = 0;
    for (; done + 4 * kApart <= n; done += 4 * kApart) {
        for (std::int64_t i = 0; i < kApart; i += kStreamVectors * W) {
            const T* at = x + done + i;
            // A stream goes on where the next block has it.
            const T* ahead = at + kAhead + (i + kAhead < kApart ? 0 : 3 * kApart);
            for (std::int64_t v = 0; v < kStreamVectors * W; v += W) {
                for (int k = 0; k < 4; ++k) {
                    if (fetches && v * static_cast<int>(sizeof(T)) % kCacheLine == 0) {
                        __builtin_prefetch(ahead + k * kApart + v, 0, 2);
                    }
                    visit(k, load(at + k * kApart + v));
                }
            }
            flush();
        }
    }
    return done;
}

// Sums of what the cache has are faster in the order of memory. The additions of streams, and so their bits (sum_of's
// end_block): of sixteen vectors a stream's sum is one chain, and the processor has the next chains under way
// meanwhile.
template <class T>
ONEPASS_INLINE std::int64_t add_in_order(const T* x, std::int64_t n, WideSum<Compute<T>>& total) {
    using C = Compute<T>;
    static_assert(sizeof(C) == 4, "float64 is added up by twos");
    constexpr int W = kLanes<C>, kGroups = static_cast<int>(stream_apart<T> / (kStreamVectors * W));
    Vec<C> first_two[kGroups], third[kGroups];
    std::int64_t done = 0;
    for (; done + 4 * stream_apart<T> <= n; done += 4 * stream_apart<T>) {
        const T* at = x + done;
        const auto each_group = [&](auto&& take) ONEPASS_INLINE_BODY {
            for (int g = 0; g < kGroups; ++g) {
                Vec<C> sum = C(0);
                for (int v = 0; v < kStreamVectors; ++v, at += W) sum = sum + load(at);
                take(g, sum);
            }
        };
        each_group([&](int g, Vec<C> sum) ONEPASS_INLINE_BODY { first_two[g] = sum; });
        each_group([&](int g, Vec<C> sum) ONEPASS_INLINE_BODY { first_two[g] = first_two[g] + sum; });
        each_group([&](int g, Vec<C> sum) ONEPASS_INLINE_BODY { third[g] = sum; });
        each_group([&](int g, Vec<C> sum) ONEPASS_INLINE_BODY { total.add(first_two[g] + (third[g] + sum)); });
    }
    return done;
}

// Short rows. With so few instructions between them, and those in one loop, the processor has enough rows under way to
// look ahead in memory as it does in a long one. To batches of sixteen (short_rows.h) are left rows of less than a
// vector and, of extremes, a few.

// Up to so many vectors, by two accumulators: a short row's are quickly brought together.
template <class C>
constexpr std::int64_t kFew = 16 * kLanes<C>;

// Calls visit(accumulator, Vec) over the span, of which the last vector is filled up with `fill`; beside(i) for every
// kAccumulators vectors.
template <int kAccumulators, class T, class Visit, class Beside = Nothing>
ONEPASS_INLINE void visit_few(const T* x, int n, Compute<T> fill, Visit&& visit, const Beside& beside = {}) {
    constexpr int W = kLanes<Compute<T>>;
    const int last = n % W;  // nothing that a loop changes: a mask of it is made once for all rows
    int i = 0;
    for (; i + kAccumulators * W <= n; i += kAccumulators * W) {
        for (int k = 0; k < kAccumulators; ++k) visit(k, load(x + i + k * W));
        beside(i);
    }
    for (; i + W <= n; i += W) visit(0, load(x + i));
    if (last > 0) visit(1, load_n(x + (n - last), last, fill));
}

// Of no more vectors than may be added up before a sum goes to float64, kSumBlock. By four accumulators in the order of
// sum_of.
template <int kAccumulators, class T, class Beside = Nothing, class C = Compute<T>>
ONEPASS_INLINE double sum_of_few(const T* x, std::int64_t n, const Beside& beside = {}) {
    Vec<C> sum[kAccumulators];
    for (Vec<C>& s : sum) s = C(0);
    visit_few<kAccumulators>(
        x, static_cast<int>(n), C(0), [&](int k, Vec<C> v) ONEPASS_INLINE_BODY { sum[k] = sum[k] + v; }, beside);
    if constexpr (kAccumulators == 2) return reduce_sum(sum[0] + sum[1]);
    if constexpr (kAccumulators == 4) return reduce_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// Sums of sixteen float32 vectors go to float64. Float64 ones, whose own total is seven operations a vector, by twos.
// cached: whether x may be in the last-level cache (Job). Streams of a processor that looks far ahead have no hints,
// and were not measured against the order of memory. beside(i) is called for every four vectors that do not go by
// streams, and for none of a row of kFew.
template <class T, class Beside = Nothing>
inline double sum_of(const T* x, std::int64_t n, bool cached, const Beside& beside = {}) {
    using C = Compute<T>;
    constexpr int W = kLanes<C>;
    if (sizeof(C) == 4 && n <= kFew<C>) return sum_of_few<2>(x, n);  // the same bits as row by row
    WideSum<C> total;
    Vec<C> sum[4] = {C(0), C(0), C(0), C(0)};
    const auto add = [&](int k, Vec<C> v) ONEPASS_INLINE_BODY {
        if constexpr (sizeof(C) == 4) {
            sum[k] = sum[k] + v;
        } else if (k % 2 == 0) {
            sum[k] = v;
        } else {
            total.add(sum[k - 1] + v);
        }
    };
    const auto end_block = [&]() ONEPASS_INLINE_BODY {
        if constexpr (sizeof(C) == 4) {
            total.add((sum[0] + sum[1]) + (sum[2] + sum[3]));
            for (Vec<C>& s : sum) s = C(0);
        }
    };
    std::int64_t i = 0;
    if constexpr (sizeof(T) == 4) {  // what is converted on the way is slower in order, and never said to be cached
        if (cached && !looks_far_ahead) i = add_in_order(x, n, total);
    }
    if (i == 0) i = visit_streams(x, n, add, end_block);
    if constexpr (sizeof(C) == 4) {
        for (; i < n; i += kSumBlock<C>) {
            const std::int64_t size = n - i < kSumBlock<C> ? n - i : kSumBlock<C>;
            visit_vectors(x + i, size, C(0), [&](int k, std::int64_t j, Vec<C> v, int) ONEPASS_INLINE_BODY {
                add(k, v);
                if (k == 3) beside(i + j - 3 * W);
            });
            end_block();
        }
    } else {
        for (; i + 4 * W <= n; i += 4 * W) {
            total.add(load(x + i) + load(x + i + W));
            total.add(load(x + i + 2 * W) + load(x + i + 3 * W));
            beside(i);
        }
        for (; i + 2 * W <= n; i += 2 * W) total.add(load(x + i) + load(x + i + W));
        for (; i < n; i += W) total.add(i + W <= n ? load(x + i) : load_n(x + i, static_cast<int>(n - i), C(0)));
    }
    return total.value();
}

template <int kSign, class C>
ONEPASS_INLINE double extreme_lane(Vec<C> v) {
    const Vec<C> negative = Vec<C>(C(-0.0)) - v;  // and back: the sign of a zero is kept
    return static_cast<double>(kSign > 0 ? reduce_max(v) : -reduce_max(negative));
}

// kSign = 1: the maximum, -1: the minimum. NaN if there is one.
template <int kSign, class T, class Beside = Nothing, class C = Compute<T>>
ONEPASS_INLINE double extreme_of_few(const T* x, std::int64_t n, const Beside& beside = {}) {
    constexpr C worst = -kSign * kInfinity<C>;
    Vec<C> best[2] = {worst, worst}, nan[2] = {C(0), C(0)};
    const auto take = [&](int k, Vec<C> v) ONEPASS_INLINE_BODY {
        best[k] = more_extreme<kSign>(v, best[k]);
        nan[k] = nan_or(v, nan[k]);
    };
    visit_few<2>(x, static_cast<int>(n), worst, take, beside);
    const Vec<C> of_nan = nan[0] + nan[1];  // to add up its lanes costs a short row more than to look at them
    return any_nan(of_nan) ? reduce_sum(of_nan) : extreme_lane<kSign>(more_extreme<kSign>(best[0], best[1]));
}

template <int kSign, class T, class Beside = Nothing>
inline double extreme_of(const T* x, std::int64_t n, const Beside& beside = {}) {
    using C = Compute<T>;
    constexpr int W = kLanes<C>;
    constexpr C worst = -kSign * kInfinity<C>;
    Vec<C> best[4] = {worst, worst, worst, worst};
    // 0 * v is NaN for NaN, but for an infinity too: one operation for what is nearly always neither.
    Vec<C> flag[4] = {C(0), C(0), C(0), C(0)};
    const auto look = [&](int k, Vec<C> v) ONEPASS_INLINE_BODY { flag[k] = fma(v, Vec<C>(C(0)), flag[k]); };
    const auto take = [&](int k, Vec<C> v) ONEPASS_INLINE_BODY { best[k] = more_extreme<kSign>(v, best[k]); };
    const std::int64_t first = visit_streams(
        x, n,
        [&](int k, Vec<C> v) ONEPASS_INLINE_BODY {
            look(k, v);
            take(k, v);
        },
        [] {});
    visit_vectors(x + first, n - first, C(0), [&](int k, std::int64_t i, Vec<C> v, int lanes) ONEPASS_INLINE_BODY {
        look(k, v);
        take(k, lanes < W ? load_n(x + n - lanes, lanes, worst) : v);
        if (k == 3) beside(first + i - 3 * W);
    });
    const Vec<C> flags = (flag[0] + flag[1]) + (flag[2] + flag[3]);
    if (any_nan(flags) && has_nan(x, n)) return reduce_sum(flags);
    return extreme_lane<kSign>(
        more_extreme<kSign>(more_extreme<kSign>(best[0], best[1]), more_extreme<kSign>(best[2], best[3])));
}

// Calls body(beside), where beside(x) is done beside a pass over row x: fetching rows that lie apart.
template <class T, class Body>
void with_hints(const Job& job, std::int64_t ahead, Body&& body) {
    const std::int64_t n = job.length;
    if (reductions_are_fetched<T>(job)) {
        return body([=](const T* x) ONEPASS_INLINE_BODY { return FetchAhead<T>(x, n, ahead); });
    }
    body([](const T*) ONEPASS_INLINE_BODY { return Nothing{}; });
}

// The same of no more than kFew elements, two vectors at a time: fetching what follows.
template <class T, class Body>
void with_hints_of_few(const Job& job, std::int64_t ahead, Body&& body) {
    if constexpr (kVectorBytes == 32) {
        if (few_are_fetched<T>(job)) {
            return body([=](const T* x) ONEPASS_INLINE_BODY {
                return [at = x + ahead](int i) ONEPASS_INLINE_BODY { __builtin_prefetch(at + i, 0, 3); };
            });
        }
    }
    body([](const T*) ONEPASS_INLINE_BODY { return Nothing{}; });
}

// Calls body(reduce), where reduce(x) is the sum of a row: nothing that depends on its length is asked of each.
template <class T, class Body>
void with_sum(const Job& job, std::int64_t ahead, Body&& body) {
    using C = Compute<T>;
    const std::int64_t n = job.length;
    if constexpr (sizeof(C) == 4) {
        if (n <= kFew<C>) {
            return with_hints_of_few<T>(job, ahead, [&](auto beside) {
                body([=](const T* x) ONEPASS_INLINE_BODY { return sum_of_few<2>(x, n, beside(x)); });
            });
        }
    }
    with_hints<T>(job, ahead, [&](auto beside) {
        if (sizeof(C) == 4 && n <= kSumBlock<C>)
            return body([=](const T* x) ONEPASS_INLINE_BODY { return sum_of_few<4>(x, n, beside(x)); });
        body([=, cached = job.cached](const T* x) { return sum_of(x, n, cached, beside(x)); });
    });
}

// The same of its maximum, or minimum.
template <int kSign, class T, class Body>
void with_extreme(const Job& job, std::int64_t ahead, Body&& body) {
    const std::int64_t n = job.length;
    if (n <= kFew<Compute<T>>) {
        return with_hints_of_few<T>(job, ahead, [&](auto beside) {
            body([=](const T* x) ONEPASS_INLINE_BODY { return extreme_of_few<kSign>(x, n, beside(x)); });
        });
    }
    with_hints<T>(job, ahead,
                  [&](auto beside) { body([=](const T* x) { return extreme_of<kSign>(x, n, beside(x)); }); });
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
