// Gradients: what a row's second pass computes from its elements and a few constants of the row, and the sum over a
// span that the constants come from.
//
// An operation is a handful of constants per row, the same in every lane or, in a tile, one row per lane. set() makes
// them from the row's sum, or from what logsumexp_backward reads once for each row; k[i * apart] is the i-th. Those of
// many rows are set in one loop, which has no branch so that it vectorizes.
//
// exp is exp_anchored (exp.h): good to 1.5 ULP of the result at any distance from the anchor, because no difference is
// rounded first. It takes elements up to kMostAbove above the anchor; those of a softmax are never above it, so lanes
// that are get their results one by one. Nowhere does a lane's result depend on the lanes beside it: which those are
// depends on where the result begins in memory.
#pragma once

#include "exp.h"
#include "span_results.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class C>
constexpr C kMostAbove = sizeof(C) == 4 ? 40 : 300;

// e * factor, factor > 0, without the microcode that subnormal products cost (scaled.h). Exponents that add up to less
// than this, with bias, make one.
constexpr std::uint32_t kSubnormalProduct = std::uint32_t{128} << 23;
ONEPASS_INLINE bool may_be_subnormal(VecF e, VecF factor) {
    return __builtin_expect(any_below(above_zero(e), small_beside(factor, kSubnormalProduct)), 0);
}
ONEPASS_INLINE bool may_be_subnormal(VecD, VecD) { return false; }
inline VecD scaled_small(VecD e, VecD high, VecD) { return e * high; }  // never called

template <class C>
inline C magnitude(C a) {
    return a < 0 ? -a : a;
}

// y * (dy - sum(dy * y)).
template <class C>
struct SoftmaxGradient {
    static constexpr bool kSums = true, kOfProducts = true;
    enum { kSum, kSumLow, kConstants };
    Vec<C> k[kConstants];

    ONEPASS_INLINE static void set(C* k, std::int64_t apart, double sum) {
        const C high = static_cast<C>(sum);
        const C low = static_cast<C>(sum - static_cast<double>(high));
        k[kSum * apart] = high;
        k[kSumLow * apart] = is_infinite(high) ? C(0) : low;
    }
    // Of sums that are what they are rounded to.
    static ONEPASS_INLINE SoftmaxGradient of(Vec<C> sums) { return {{sums, Vec<C>(C(0))}}; }
    static ONEPASS_INLINE SoftmaxGradient of(const WideSum<float>& sums) {
        const VecF high = sums.rounded(), low = rounded(sums.low - low_half(high), sums.high - high_half(high));
        return {{high, where_not_above(abs(high), VecF(kLargest<float>), low, VecF(0.0f))}};
    }
    ONEPASS_INLINE Vec<C> operator()(Vec<C> y, Vec<C> dy) const { return y * ((dy - k[kSum]) - k[kSumLow]); }
};

// dy - exp(y) * sum(dy). Nearly always no y is as far from 0 as kLimit, whatever sign: then exp(y) is a normal number,
// and so is its product with the sum.
template <class C>
struct LogSoftmaxGradient {
    static constexpr bool kSums = true, kOfProducts = false;
    enum { kMinus, kLimit, kConstants };
    Vec<C> k[kConstants];

    ONEPASS_INLINE static void set(C* k, std::int64_t apart, double sum) {
        const C minus = static_cast<C>(-sum);
        k[kMinus * apart] = minus;
        k[kLimit * apart] = limit_of(minus);
    }
    static ONEPASS_INLINE LogSoftmaxGradient of(Vec<C> sums) {
        const Vec<C> minus = -sums.v;
        return {{minus, limit_of(minus)}};
    }
    static ONEPASS_INLINE LogSoftmaxGradient of(const WideSum<float>& sums) { return of(sums.rounded()); }
    ONEPASS_INLINE Vec<C> operator()(Vec<C> y, Vec<C> dy) const {
        if (!is_usual(abs(y))) return of_any(y, dy, k[kMinus], k[kLimit]);
        return of_usual(y, dy);
    }
    ONEPASS_INLINE bool is_usual(Vec<C> magnitudes) const {
        return __builtin_expect(!any_above(magnitudes, k[kLimit]), 1);
    }
    ONEPASS_INLINE Vec<C> of_usual(Vec<C> y, Vec<C> dy) const { return of_usual(y, dy, k[kMinus]); }

   private:
    using Table = ExpTable<C>;

    // e^-80 is 2^-115.5: down to 2^-9 of a sum its product with that is normal. Of smaller sums the limit is an octave
    // less for each of theirs, and of 0 products are 0.
    static constexpr float kMostLimit = 80;
    static constexpr int kOctavesOfOne = 125, kExponentOfOne = 127;  // the second with float32's bias
    ONEPASS_INLINE static float limit_of(float minus) {
        const auto exponent = static_cast<std::int32_t>(bit_cast<std::uint32_t>(minus) >> 23 & 255);
        const float limit = static_cast<float>(exponent + (kOctavesOfOne - kExponentOfOne)) * static_cast<float>(kLn2);
        return minus == 0 || limit > kMostLimit ? kMostLimit : limit;
    }
    // Of a vector of sums; a loop over its lanes is unrolled into as many scalars where several vectors are.
    ONEPASS_INLINE static VecF limit_of(VecF minus) {
        typedef std::int32_t Signed __attribute__((vector_size(kVectorBytes)));
        const auto exponents = (Signed)(bit_cast<VecF::Bits>(minus.v) >> 23 & 255);
        const VecF octaves = __builtin_convertvector(exponents + (kOctavesOfOne - kExponentOfOne), VecF::Native);
        const VecF limit = min(octaves * VecF(static_cast<float>(kLn2)), VecF(kMostLimit));
        return minus.v == VecF(0.0f).v ? VecF(kMostLimit).v : limit.v;
    }
    ONEPASS_INLINE static double limit_of(double) { return kMostAbove<double>; }

    ONEPASS_INLINE static Vec<C> of_usual(Vec<C> y, Vec<C> dy, Vec<C> minus_sum) {
        const Vec<C> zero = C(0), magic = Table::kRound + static_cast<C>(Table::kExponentBias);
        return fma(exp_in<Vec<C>, false>(y, Anchor<Vec<C>, false>{zero, zero, magic}), minus_sum, dy);
    }

    // Exponentials are scaled by 2^kBias, the sum by its inverse; where that would be subnormal, neither is: whatever
    // exp then loses is too small to show. Not a member: for the sake of a call with `this` the compiler would store
    // all constants for every vector, whether or not it is made.
    ONEPASS_APART static Vec<C> of_any(Vec<C> y, Vec<C> dy, Vec<C> minus_sum, Vec<C> limit) {
        Vec<C> floor, magic, minus;
        for (int i = 0; i < kLanes<C>; ++i) {
            const bool scaled_down = !(magnitude(minus_sum.v[i]) < kUnbias<C>);
            // What anchor_at has for 0, and for kBias * ln2.
            constexpr C far = static_cast<C>(Table::kBias * kLn2);
            constexpr C round = Table::kRound + static_cast<C>(Table::kExponentBias);
            floor.v[i] = (scaled_down ? C(0) : far) - static_cast<C>(kDepth<C>);
            magic.v[i] = scaled_down ? round + static_cast<C>(Table::kBias * Table::kSteps) : round;
            minus.v[i] = scaled_down ? minus_sum.v[i] * static_cast<C>(kUnbias<C>) : minus_sum.v[i];
        }
        const Vec<C> e = exp_anchored(y, Anchor<Vec<C>, false>{Vec<C>(C(0)), floor, magic});
        Vec<C> dx = subtract_small(e, dy, fma(e, minus, dy), minus);
        for (int i = 0; i < kLanes<C>; ++i) {
            if (!(y.v[i] > kMostAbove<C>)) continue;
            dx.v[i] = static_cast<C>(static_cast<double>(dy.v[i]) +
                                     ::exp(static_cast<double>(y.v[i])) * static_cast<double>(minus_sum.v[i]));
        }
        // What lies beside an element must not show in its result.
        return where_not_above(abs(y), limit, of_usual(y, dy, minus_sum), dx);
    }

    // dy less the product where that may be subnormal, dx elsewhere.
    static VecF subtract_small(VecF e, VecF dy, VecF dx, VecF minus) {
        const VecF factor = minus.v == VecF(0.0f).v ? VecF(1.0f).v : abs(minus).v;
        if (!may_be_subnormal(e, factor)) return dx;
        const VecF product = scaled_small(e, factor, 0.0f);
        const VecF more = minus.v > VecF(0.0f).v ? (dy + product).v : dx.v;
        const VecF small = minus.v < VecF(0.0f).v ? (dy - product).v : more.v;
        return bit_cast<VecF::Bits>(e.v) + bit_cast<VecF::Bits>(factor.v) < kSubnormalProduct ? small.v : dx.v;
    }
    static VecD subtract_small(VecD, VecD, VecD dx, VecD) { return dx; }
};

// dy * exp(x - lse), dy and lse being the row's. A row whose lse is -inf is 0.
template <class C>
struct LogsumexpGradient {
    static constexpr bool kSums = false, kOfProducts = false;
    enum { kShift, kFloor, kMagic, kFactor, kTimes, kLimit, kLse, kDy, kConstants };
    Vec<C> k[kConstants];

    static void set(C* k, std::int64_t apart, double dy, double lse) {
        const bool finite = lse - lse == 0;
        const auto anchor = anchor_at(Vec<C>(static_cast<C>(finite ? lse : 0)), false);
        k[kShift * apart] = anchor.shift.v[0];
        k[kFloor * apart] = anchor.floor.v[0];
        k[kMagic * apart] = anchor.magic.v[0];
        k[kLse * apart] = static_cast<C>(lse);
        k[kDy * apart] = static_cast<C>(dy);
        // What is above this goes lane by lane: of a row whose lse is infinite or NaN everything but -inf, which is 0
        // times whatever dy is, or NaN.
        k[kLimit * apart] = finite ? static_cast<C>(lse) + kMostAbove<C> : -kInfinity<C>;
        k[kFactor * apart] = C(1);
        k[kTimes * apart] = static_cast<C>(lse < 0 ? 0 : lse == lse ? dy * 0 : lse);
        if (!finite) return;
        // dy is part of the factor where that can neither overflow nor be subnormal: one rounding less, and a result
        // that is right where exp(x - lse) by itself is too small to be.
        const bool together = magnitude(dy) >= kUnbias<C> && magnitude(dy) <= 1 / kUnbias<C>;
        const double factor = ::exp(anchor_less_lse(anchor, lse)) * kUnbias<C>;
        k[kFactor * apart] = static_cast<C>(together ? factor * magnitude(dy) : factor);
        k[kTimes * apart] = !together ? static_cast<C>(dy) : dy < 0 ? C(-1) : C(1);
    }
    ONEPASS_INLINE Vec<C> operator()(Vec<C> x) const {
        const Vec<C> e = exp_anchored(x, Anchor<Vec<C>, true>{k[kShift], k[kFloor], k[kMagic]});
        Vec<C> p = e * k[kFactor];
        if (may_be_subnormal(e, k[kFactor])) p = scaled_small(e, k[kFactor], C(0));
        const Vec<C> dx = p * k[kTimes];
        return __builtin_expect(any_above(x, k[kLimit]), 0) ? mended(dx, x, k[kLimit], k[kLse], k[kDy]) : dx;
    }

   private:
    // The log of what exponentials are relative to, less lse: a multiple of ln2 that is next to it, in two parts.
    static double anchor_less_lse(const Anchor<Vec<C>, true>& anchor, double lse) {
        using Table = ExpTable<double>;
        const auto shift = static_cast<double>(anchor.shift.v[0]);
        const double octaves = __builtin_rint(log_of_anchor<C>(0, anchor.magic.v[0]) * kLog2E);
        return (octaves * Table::kLn2High - (lse - shift)) + octaves * Table::kLn2Low;
    }
    // Not a member, as LogSoftmaxGradient's.
    ONEPASS_APART static Vec<C> mended(Vec<C> dx, Vec<C> x, Vec<C> limit, Vec<C> lse_of, Vec<C> dy) {
        for (int i = 0; i < kLanes<C>; ++i) {
            if (!(x.v[i] > limit.v[i])) continue;
            const auto lse = static_cast<double>(lse_of.v[i]);
            const double exponential = ::exp(static_cast<double>(x.v[i]) - lse);
            const double all = static_cast<double>(dy.v[i]) * exponential;
            dx.v[i] = lse == -__builtin_huge_val() ? C(0) : static_cast<C>(all);
        }
        return dx;
    }
};

// The sum over a span of dy, or of dy * y, blocked as sum_of is. Float64: with what its products and additions have
// lost. beside(i) is work to do next to every four vectors.
template <bool kOfProducts, class T, class Beside>
ONEPASS_INLINE double gradient_sum(const T* y, const T* dy, std::int64_t n, Beside&& beside) {
    using C = Compute<T>;
    constexpr int W = kLanes<C>;
    WideSum<C> total;
    const auto add = [&](Vec<C>& sum, Vec<C> d, auto&& factor) ONEPASS_INLINE_BODY {
        if constexpr (!kOfProducts) {
            if constexpr (sizeof(C) == 8) {
                total.add(d);
            } else {
                sum = sum + d;
            }
        } else if constexpr (sizeof(C) == 8) {
            const Vec<C> f = factor();
            const Vec<C> product = d * f;
            total.add(product);
            total.lost = total.lost + fma(d, f, Vec<C>(C(0)) - product);
        } else {
            sum = fma(d, factor(), sum);
        }
    };
    for (std::int64_t begin = 0; begin < n; begin += kSumBlock<C>) {
        const std::int64_t size = n - begin < kSumBlock<C> ? n - begin : kSumBlock<C>;
        Vec<C> sum[4] = {C(0), C(0), C(0), C(0)};
        visit_vectors(dy + begin, size, C(0), [&](int k, std::int64_t i, Vec<C> d, int lanes) ONEPASS_INLINE_BODY {
            add(sum[k], d, [&]() ONEPASS_INLINE_BODY {
                return lanes == W ? load(y + begin + i) : load_n(y + begin + i, lanes, C(0));
            });
            if (k == 3) beside(begin + i - 3 * W);
        });
        if constexpr (sizeof(C) == 4) {
            for (const Vec<C>& part : sum) total.add(part);  // in float64: products have been rounded once already
        }
    }
    return total.value();
}

// The same constants in every lane.
template <class RowOp, class C>
ONEPASS_INLINE RowOp all_lanes(const C* k, std::int64_t apart = 1) {
    RowOp op;
    for (int i = 0; i < RowOp::kConstants; ++i) op.k[i] = Vec<C>(k[i * apart]);
    return op;
}

// Where the values of a gradient come from: y and dy of the same row, or x alone.
template <class T, class RowOp>
struct GradientOf {
    const T* y = nullptr;
    const T* dy = nullptr;
    RowOp op;
    ONEPASS_INLINE auto operator()(std::int64_t i) const {
        if constexpr (RowOp::kSums) {
            return op(load(y + i), load(dy + i));
        } else {
            return op(load(y + i));
        }
    }
    // Several at once, of one row: one question for all. False: they have to be looked at one by one.
    template <int kCount, class C>
    ONEPASS_INLINE bool vectors(std::int64_t i, Vec<C> (&results)[kCount]) const
        requires requires { op.is_usual(results[0]); }
    {
        Vec<C> most = C(0);
        for (int k = 0; k < kCount; ++k) {
            results[k] = load(y + i + k * kLanes<C>);
            most = max(abs(results[k]), most);
        }
        if (!op.is_usual(most)) return false;
        for (int k = 0; k < kCount; ++k) results[k] = op.of_usual(results[k], load(dy + i + k * kLanes<C>));
        return true;
    }
    auto operator()(std::int64_t i, int n) const {
        using C = Compute<T>;
        if constexpr (RowOp::kSums) {
            return op(load_n(y + i, n, C(0)), load_n(dy + i, n, C(0)));
        } else {
            return op(load_n(y + i, n, C(0)));
        }
    }
};

// Fetches what `n` elements at p will be followed by; the processor itself stops looking ahead at the end of a page.
template <std::int64_t kBytes, class T>
ONEPASS_INLINE void fetch_ahead(const T* p, int n) {
    fetch_soon(p + kBytes / static_cast<std::int64_t>(sizeof(T)), n);
}

// Results that stay in the cache: of a row in the first one faster than an Emitter.
template <class T, class Source>
ONEPASS_INLINE void write_in_cache(T* y, std::int64_t n, const Source& value) {
    constexpr int W = kLanes<Compute<T>>;
    std::int64_t i = 0;
    if constexpr (sizeof(T) == 2) {
        for (; i + 2 * W <= n; i += 2 * W) store_two(y + i, value(i), value(i + W));
    }
    for (; i + W <= n; i += W) store(y + i, value(i));
    const int rest = static_cast<int>(n - i);
    if (rest > 0) store_n(y + i, value(i, rest), rest);
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
