// Passes over a contiguous span of one row: its maximum, its sum of exponentials. T is the type in memory, C =
// Compute<T> the type of the arithmetic.
#pragma once

#include "exp.h"
#include "fetch_ahead.h"
#include "partial.h"
#include "usual.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Vector sums are moved to float64 after sixteen additions each: the error of a sum then does not grow with the row,
// not even where every addition rounds the same way (a row of equal values).
template <class C>
constexpr std::int64_t kSumBlock = 16 * 4 * kLanes<C>;

template <class C>
constexpr C kInfinity = static_cast<C>(__builtin_huge_val());

// kSign = 1: the larger, -1: the smaller; b where either is NaN.
template <int kSign, class C>
ONEPASS_INLINE Vec<C> more_extreme(Vec<C> a, Vec<C> b) {
    return kSign > 0 ? max(a, b) : min(a, b);
}

// Calls visit(accumulator, index into x, Vec, lanes) over the span; the last, partial vector is filled up with `fill`.
// Four independent accumulators hide the latency of one.
template <class T, class Visit>
ONEPASS_INLINE void visit_vectors(const T* x, std::int64_t n, Compute<T> fill, Visit&& visit) {
    constexpr int W = kLanes<Compute<T>>;
    std::int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        visit(0, i, load(x + i), W);
        visit(1, i + W, load(x + i + W), W);
        visit(2, i + 2 * W, load(x + i + 2 * W), W);
        visit(3, i + 3 * W, load(x + i + 3 * W), W);
    }
    for (; i + W <= n; i += W) visit(0, i, load(x + i), W);
    if (i < n) visit(1, i, load_n(x + i, static_cast<int>(n - i), fill), static_cast<int>(n - i));
}

template <class T>
inline Compute<T> max_of(const T* x, std::int64_t n) {
    using V = Vec<Compute<T>>;
    V m[4] = {-kInfinity<Compute<T>>, -kInfinity<Compute<T>>, -kInfinity<Compute<T>>, -kInfinity<Compute<T>>};
    visit_vectors(x, n, -kInfinity<Compute<T>>,
                  [&](int k, std::int64_t, V v, int) ONEPASS_INLINE_BODY { m[k] = max(v, m[k]); });
    return reduce_max(max(max(m[0], m[1]), max(m[2], m[3])));
}

// The running maximum of four vectors at a time.
template <class T>
class RunningMax {
    using C = Compute<T>;
    static constexpr int W = kLanes<C>;

   public:
    ONEPASS_INLINE void add(const T* x) {
        for (int k = 0; k < 4; ++k) m_[k] = max(load(x + k * W), m_[k]);
    }
    C value() const { return reduce_max(max(max(m_[0], m_[1]), max(m_[2], m_[3]))); }

   private:
    Vec<C> m_[4] = {-kInfinity<C>, -kInfinity<C>, -kInfinity<C>, -kInfinity<C>};
};

// Of 16 bits as they lie in memory, twice as many in a vector, and no conversion. As integers with a sign, those above
// zero are in order; where a lane has none, the least without a sign is the maximum. Both are elements of the lane, so
// that the larger is its maximum, with nothing to be chosen. NaN is not left out: whatever the maximum of a row with
// NaN comes out as, its results are NaN.
template <class T>
    requires(sizeof(T) == 2)
class RunningMax<T> {
    typedef std::int16_t Signed __attribute__((vector_size(kVectorBytes)));
    typedef std::uint16_t Unsigned __attribute__((vector_size(kVectorBytes)));
    static constexpr int kLanes16 = kVectorBytes / 2;

   public:
    ONEPASS_INLINE void add(const T* x) {
        for (int k = 0; k < 2; ++k) {
            Signed v;
            __builtin_memcpy(&v, x + k * kLanes16, sizeof v);
            most_[k] = v > most_[k] ? v : most_[k];
            const Unsigned bits = (Unsigned)v;
            least_[k] = bits < least_[k] ? bits : least_[k];
        }
    }
    float value() const {
        const Signed most = most_[0] > most_[1] ? most_[0] : most_[1];
        const Unsigned least = least_[0] < least_[1] ? least_[0] : least_[1];
        return reduce_max(max(max_of_halves(&most), max_of_halves(&least)));
    }

   private:
    static Vec<float> max_of_halves(const void* lanes16) {
        alignas(kCacheLine) T lanes[kLanes16];
        __builtin_memcpy(lanes, lanes16, sizeof lanes);
        return max(load(lanes), load(lanes + kLanes<float>));
    }

    Signed most_[2] = {Signed{} + kLowest, Signed{} + kLowest};
    Unsigned least_[2] = {~Unsigned{}, ~Unsigned{}};
    static constexpr std::int16_t kLowest = -0x8000;
};

// The maximum of a span that is still on its way from memory, taken beside a pass over another: step(i) for every four
// vectors of that.
template <class T>
class MaxAhead {
    using C = Compute<T>;
    static constexpr int W = kLanes<C>;

   public:
    // Fetches so many elements ahead of itself (fetch_ahead.h).
    MaxAhead(const T* x, std::int64_t n, std::int64_t ahead) : x_(x), n_(n), fetched_(x, n, ahead) {}

    ONEPASS_INLINE void step(std::int64_t i) {
        if (i + 4 * W > n_) return;
        max_.add(x_ + i);
        fetched_(i);
        done_ = i + 4 * W;
    }
    C value() const {
        const C rest = max_of(x_ + done_, n_ - done_);
        if (done_ == 0) return rest;
        const C steps = max_.value();
        return rest > steps ? rest : steps;
    }

   private:
    const T* x_;
    std::int64_t n_;
    std::int64_t done_ = 0;
    FetchAhead<T> fetched_;
    RunningMax<T> max_;
};

template <class T>
inline bool has_nan(const T* x, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        const auto v = scalar<Compute<T>>(x[i]);
        if (v != v) return true;
    }
    return false;
}

// sum + lost is a + b exactly (Knuth's TwoSum).
template <class D>
inline void two_sum(D a, D b, D& sum, D& lost) {
    sum = a + b;
    const D back = sum - a;
    lost = (a - (sum - back)) + (b - back);
}

// A float64 sum over vectors. Of float32 vectors: one running sum for each half. Of float64 vectors, where there is no
// wider type to add up in: the running sum, and what its additions have lost.
template <class C>
struct WideSum;

template <>
struct WideSum<float> {
    VecD low{0.0};
    VecD high{0.0};

    ONEPASS_INLINE void add(VecF v) {
        low = low + low_half(v);
        high = high + high_half(v);
    }
    double value() const { return reduce_sum(low + high); }
    ONEPASS_INLINE void add_product(VecF a, VecF b) {
        low = low + low_half(a) * low_half(b);
        high = high + high_half(a) * high_half(b);
    }
    void divide_by(VecD n) {
        low = low / n;
        high = high / n;
    }
    VecF rounded() const { return onepass::ONEPASS_ISA::rounded(low, high); }
    void store_lanes(double* lanes) const {
        store(lanes, low);
        store(lanes + kLanes<double>, high);
    }
    // The sums lane by lane, and what they have lost.
    void store_parts(double* lanes, double* lost) const {
        store_lanes(lanes);
        store(lost, VecD(0.0));
        store(lost + kLanes<double>, VecD(0.0));
    }
};

template <>
struct WideSum<double> {
    VecD sum{0.0};
    VecD lost{0.0};

    ONEPASS_INLINE void add(VecD v) {
        VecD more;
        two_sum(sum, v, sum, more);
        lost = lost + more;
    }
    double value() const {
        double all = 0, rest = 0;
        for (int i = 0; i < kLanes<double>; ++i) {
            double more;
            two_sum(all, static_cast<double>(sum.v[i]), all, more);
            rest += more + lost.v[i];
        }
        return rest == rest ? all + rest : all;  // an infinite sum has lost NaN
    }
    void divide_by(VecD n) { *this = {rounded() / n, 0.0}; }
    VecD rounded() const { return sum + what_is_lost(); }
    void store_parts(double* lanes, double* rest) const {
        store(lanes, sum);
        store(rest, what_is_lost());
    }
    void store_lanes(double* lanes) const { store(lanes, rounded()); }

   private:
    VecD what_is_lost() const { return lost.v == lost.v ? lost.v : VecD(0.0).v; }  // by an infinite sum: NaN
};

// Work done beside a pass, once per four vectors: fetching what comes next, writing what is ready.
struct Nothing {
    ONEPASS_INLINE void operator()(std::int64_t) const {}
    ONEPASS_INLINE void rows(std::int64_t, std::int64_t) const {}
    static bool apart() { return false; }
};

// Fetches a span as long as the one that is visited into the second-level cache.
template <class T>
struct Fetch {
    const T* next;  // may be null
    ONEPASS_INLINE void operator()(std::int64_t i) const {
        // A Zen 5 gains nothing by the first cache here: exponentials hide the way to it (2048 x 1024 float32 1.03, for
        // asking which processor this is).
        if (next) fetch_into<2>(next + i, 4 * kLanes<Compute<T>>);
    }
};

// The sum of what the exponentials of a span come out as: four(i, add) calls add(k, a vector) for the vectors k = 0 to
// 3 from i on, one(i, lanes) returns the one that begins there.
template <class C, class Four, class One, class Beside>
ONEPASS_INLINE double sum_of_exponentials(std::int64_t n, Four&& four, One&& one, Beside&& beside) {
    constexpr int W = kLanes<C>;
    constexpr bool kDirect = sizeof(C) == 8;
    WideSum<C> total;
    for (std::int64_t begin = 0; begin < n; begin += kSumBlock<C>) {
        const std::int64_t end = n - begin < kSumBlock<C> ? n : begin + kSumBlock<C>;
        Vec<C> sum[4] = {C(0), C(0), C(0), C(0)};
        const auto add = [&](int k, Vec<C> e) ONEPASS_INLINE_BODY {
            if constexpr (kDirect) {
                total.add(e);
            } else {
                sum[k] = sum[k] + e;
            }
        };
        std::int64_t i = begin;
        for (; i + 4 * W <= end; i += 4 * W) {
            four(i, add);
            beside(i);
        }
        for (; i < end; i += W) add(0, one(i, static_cast<int>(end - i < W ? end - i : W)));
        if constexpr (!kDirect) total.add((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    return total.value();
}

// Of a span; exponential(v) turns an array of vectors into their exponentials.
template <class T, class Exponential, class Beside, class C = Compute<T>>
ONEPASS_INLINE double sum_exp(const T* x, std::int64_t n, Exponential&& exponential, Beside&& beside) {
    constexpr int W = kLanes<C>;
    return sum_of_exponentials<C>(
        n,
        [&](std::int64_t i, auto&& add) ONEPASS_INLINE_BODY {
            for (int first = 0; first < 4; first += kTogether) {
                Vec<C> e[kTogether];
                for (int k = 0; k < kTogether; ++k) e[k] = loaded_once(x + i + (first + k) * W);
                exponential(e);
                for (int k = 0; k < kTogether; ++k) add(first + k, e[k]);
            }
        },
        [&](std::int64_t i, int lanes) ONEPASS_INLINE_BODY {
            Vec<C> e[1] = {lanes == W ? load(x + i) : load_n(x + i, lanes, -kInfinity<C>)};
            exponential(e);
            return e[0];
        },
        beside);
}

// The same of a span whose exponentials are kept, and `top` the largest of its elements, lane by lane, NaN left out.
// Each pair of vectors is begun while the one before is finished: what waits for nothing then stands between what waits
// for each other, and there is more of both in a processor's queues. Measured on a Zen 5, one thread, rows of 1024 in
// L1: 5.8 cycles a vector with results written beside, and 6.3.
template <class T, bool kShifted, class Beside, class C = Compute<T>>
ONEPASS_INLINE double keep_exponentials(const T* x, std::int64_t n, const Anchor<Vec<C>, kShifted>& anchor, C* keep,
                                        Vec<C>& top, Beside&& beside) {
    using P = Precision<T>;
    constexpr int W = kLanes<C>;
    const std::int64_t whole = n - n % (4 * W);
    const auto begin = [&](std::int64_t i) ONEPASS_INLINE_BODY {
        Vec<C> v[kTogether];
        for (int k = 0; k < kTogether; ++k) {
            v[k] = loaded_once(x + i + k * W);
            top = max(v[k], top);
        }
        return reduce_range<P>(v, anchor);
    };
    Reduced<C, kTogether> half;
    if (whole > 0) half = begin(0);
    return sum_of_exponentials<C>(
        n,
        [&](std::int64_t i, auto&& add) ONEPASS_INLINE_BODY {
            const std::int64_t next = i + 4 * W < whole ? i + 4 * W : 0;  // after the last, something that is there
            for (int first = 0; first < 4; first += kTogether) {
                const auto begun = begin(first + kTogether < 4 ? i + (first + kTogether) * W : next);
                Vec<C> e[kTogether];
                finish_exp<P>(half, e);
                half = begun;
                for (int k = 0; k < kTogether; ++k) store(keep + i + (first + k) * W, e[k]);
                for (int k = 0; k < kTogether; ++k) add(first + k, e[k]);
            }
        },
        [&](std::int64_t i, int lanes) ONEPASS_INLINE_BODY {
            Vec<C> e[1] = {lanes == W ? load(x + i) : load_n(x + i, lanes, -kInfinity<C>)};
            top = max(e[0], top);
            exp_all<P>(e, anchor);
            lanes == W ? store(keep + i, e[0]) : store_n(keep + i, e[0], lanes);
            return e[0];
        },
        beside);
}

// The sum of a span's exponentials relative to its maximum, anchor.shift.
template <class T, class Beside, class C = Compute<T>>
ONEPASS_INLINE double sum_exp_below(const T* x, std::int64_t n, const Anchor<Vec<C>, true>& anchor, Beside&& beside) {
    if constexpr (sizeof(C) == 8) {
        const auto exponential = [&](auto& v) ONEPASS_INLINE_BODY { exp_all_of<T>(v, anchor); };
        return sum_exp(x, n, exponential, beside);
    } else {
        BelowTop<T> exponential{anchor};
        const double others = sum_exp(x, n, exponential, beside);
        return others + reduce_sum(exponential.tops(n)) / kUnbias<C>;
    }
}

// The state of a span whose maximum is not finite, where there is nothing to exponentiate.
template <class T>
inline Partial state_at_infinity(const T* x, std::int64_t n, double m) {
    return {m, has_nan(x, n) ? static_cast<double>(__builtin_nan("")) : (m > 0 ? 1.0 : 0.0)};
}

template <class T>
inline bool is_infinite(T m) {
    return m == kInfinity<T> || m == -kInfinity<T>;
}

// The state of a span of softmax's, relative to a power of two.
template <class T, class C = Compute<T>>
ONEPASS_APART Partial state_of(const T* x, std::int64_t n, const T* next) {
    const auto usual = usual_anchor<C>();
    Vec<C> top = -kInfinity<C>;
    const auto usual_exponential = [&](auto& v) ONEPASS_INLINE_BODY {
        for (const Vec<C>& each : v) top = max(each, top);
        exp_all_of<T>(v, usual);
    };
    if (n < kLanes<C> || may_be_usual(load(x))) {
        const double d = sum_exp(x, n, usual_exponential, Fetch<T>{next});
        if (are_usual(top, &d, 1)) return {Usual<C>::kExponent * kLn2, d * kUnbias<C>};
    }
    const C m = max_of(x, n);
    if (is_infinite(m)) return state_at_infinity(x, n, static_cast<double>(m));
    const auto anchor = anchor_at(Vec<C>(m), false);
    const auto exponential = [&](auto& v) ONEPASS_INLINE_BODY { exp_all_of<T>(v, anchor); };
    const double d = sum_exp(x, n, exponential, Fetch<T>{next});
    return {log_of_anchor<C>(anchor.shift.v[0], anchor.magic.v[0]), d * kUnbias<C>};
}

// The state of a span with this maximum, which that of the next takes the place of, found meanwhile: what one waits
// for in memory and the other in arithmetic goes on side by side. Measured on a Zen 5, two threads, the maximum of
// each found first: logsumexp of 4096 x 4096 bfloat16 0.81 of the time, of 128 x 262144 float32 0.84 and 0.92.
template <class T, class C = Compute<T>>
ONEPASS_APART Partial state_beside_max(const T* x, std::int64_t n, C& top, const T* next, std::int64_t next_n,
                                       std::int64_t ahead) {
    const C m = top;
    if (is_infinite(m)) {
        top = max_of(next, next_n);
        return state_at_infinity(x, n, static_cast<double>(m));
    }
    MaxAhead<T> next_max(next, next_n, ahead);
    const double sum =
        sum_exp_below(x, n, anchor_at(Vec<C>(m), true), [&](std::int64_t i) ONEPASS_INLINE_BODY { next_max.step(i); });
    top = next_max.value();
    return {static_cast<double>(m), sum * kUnbias<C>};
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
