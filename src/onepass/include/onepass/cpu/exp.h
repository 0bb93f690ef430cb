// The exponential of a softmax, without the rounding of x - max.
//
// exp(x) = 2^n * exp(r), n a multiple of 1 / kSteps next to x * log2e, r = x - n * ln2, and dividing by 2^k, k the
// row's exponent, only changes n by an integer. So the maximum is never subtracted from x, and exp keeps its full
// accuracy however far x lies below the maximum; subtracting first costs up to half an ULP of the difference, 32 ULP of
// the result 64 below the maximum. Changing k by merging two partial sums is exact for the same reason.
//
// A row whose maximum is beyond kShiftLimit has it subtracted first (Anchor::shift). By then the subtraction is exact
// for every x that matters: either x is within a factor of two of the maximum, or exp(x - max) is zero.
//
// Everything is scaled by 2^kBias on top, which the reciprocal of the sum takes out again: no exponential that matters
// to the result is subnormal, and only the final multiplication rounds into the subnormal range. What lies further
// below is raised to the floor, where the bits of the power of two are all zero: so exp(-inf) is 0, and no mask is
// needed.
//
// Where a vector can be looked up in another one by lanes (simd.h), float32 takes as many powers of two per octave as
// that holds (kSteps): r is that much shorter, and three coefficients do for six. Each power comes with what rounding
// it to float32 has lost. Measured from 0 to -100: 0.57 ULP with 16 steps, 1.0 with 8, 1.32 with the long polynomial.
//
// Of a row that is read and written in 16 bits nobody sees more than 11 of them: its exponentials are Coarse, one FMA
// instead of two to reduce the range, a coefficient less, and nothing made good. They are wrong by 2^-20 at most, 1/500
// ULP of float16.
#pragma once

#include <math.h>

// after the scalar exp and log that it uses
#include "../ops.h"
#include "job.h"
#include "scaled.h"
#include "simd.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class C>
constexpr C kLargest = sizeof(C) == 4 ? static_cast<C>(0x1.fffffep127) : static_cast<C>(0x1.fffffffffffffp1023);

constexpr double kLog2E = 0x1.71547652b82fep0;
constexpr double kLn2 = 0x1.62e42fefa39efp-1;

template <class C>
struct ExpTable;

// float32, by look-up: steps, exp(r) = 1 + r * q(r) (Lawson fits), 2^(i / steps) and its relative rounding error.
template <int kSteps>
struct Powers;

template <>
struct Powers<16> {  // |r| <= ln2 / 32: relative error 1.2e-9
    static constexpr int kStepBits = 4;
    static constexpr float kPolynomial[] = {0.16666074097156525f, 0.5000162124633789f, 1.0f};
    static constexpr float kCoarse[] = {0.499999865f, 1.00005849f};  // 4.3e-7
    // Bit patterns, less what adding the index shifted into place puts there.
    alignas(64) static constexpr std::int32_t kPower[] = {
        0x3f800000, 0x3f7daac3, 0x3f7b95c2, 0x3f79c3d3, 0x3f7837f0, 0x3f76f532, 0x3f75fed7, 0x3f75583f,
        0x3f7504f3, 0x3f7508a4, 0x3f75672a, 0x3f76248c, 0x3f7744fd, 0x3f78ccdf, 0x3f7ac0c7, 0x3f7d257d};
    alignas(64) static constexpr float kLost[] = {0,
                                                  4.62854708e-08f,
                                                  -1.19921571e-08f,
                                                  4.72978236e-08f,
                                                  3.19341809e-08f,
                                                  3.62105731e-08f,
                                                  -3.09907208e-08f,
                                                  -7.47521317e-09f,
                                                  1.71142713e-08f,
                                                  -3.04768342e-08f,
                                                  5.23333425e-09f,
                                                  6.10759162e-09f,
                                                  -1.47196054e-08f,
                                                  -5.25879512e-09f,
                                                  -6.12825982e-09f,
                                                  5.14060921e-09f};
};

template <>
struct Powers<8> {  // |r| <= ln2 / 16: relative error 1.8e-8
    static constexpr int kStepBits = 3;
    static constexpr float kPolynomial[] = {0.16664297878742218f, 0.5000647902488708f, 1.0f};
    static constexpr float kCoarse[] = {0.166642984f, 0.500064778f, 1.00000005f};  // 2.7e-8
    alignas(32) static constexpr std::int32_t kPower[] = {0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7,
                                                          0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7};
    alignas(32) static constexpr float kLost[] = {0,
                                                  -1.19921571e-08f,
                                                  3.19341809e-08f,
                                                  -3.09907208e-08f,
                                                  1.71142713e-08f,
                                                  5.23333425e-09f,
                                                  -1.47196054e-08f,
                                                  -6.12825982e-09f};
};

// Without: the polynomial alone.
template <>
struct Powers<1> {  // |r| <= ln2 / 2: relative error 2.1e-9
    static constexpr float kPolynomial[] = {0.0013843010367f, 0.00837453745604f, 0.0416680296877f,
                                            0.166664267558f,  0.499999940464f,   1.00000003316f};
    static constexpr float kCoarse[] = {0.00829031473f, 0.04189793f, 0.166676362f, 0.499991495f,
                                        0.999999707f};  // 9.5e-8
};

template <>
struct ExpTable<float> : Powers<kLookupLanes> {
    static constexpr int kSteps = kLookupLanes;
    static constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer and leaves that in the low bits
    static constexpr int kMantissaBits = 23;
    static constexpr int kExponentBias = kSteps > 1 ? 0 : 127;  // the powers bring it along
    static constexpr int kBias = 60;
    // ln2 / kSteps in two parts: n * high is exact (9 bits times n), and so is x - n * high, which n brings near.
    static constexpr float kLn2High = 0x1.63p-1f / kSteps;
    static constexpr float kLn2Low = -0x1.bd0106p-13f / kSteps;
};

template <>
struct ExpTable<double> {
    static constexpr int kSteps = 1;
    static constexpr double kRound = 0x1.8p52;
    static constexpr int kMantissaBits = 52;
    static constexpr int kExponentBias = 1023;
    static constexpr int kBias = 500;
    static constexpr double kLn2High = 0x1.62e42feep-1;  // 32 bits
    static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
    // relative error 3.9e-18 before rounding (Lawson fit)
    static constexpr double kPolynomial[] = {2.5000777540752993969e-8,
                                             2.7630992255702951625e-7,
                                             2.7557587176702152325e-6,
                                             0.000024801491138363901735,
                                             0.00019841269502394274645,
                                             0.0013888888945386763614,
                                             0.0083333333334977885014,
                                             0.041666666666524076186,
                                             0.16666666666666405591,
                                             0.50000000000000112587,
                                             1.0};
};

// From the row's exponent down to the floor: 2^kBias becomes 2^-127, or 2^-1023, which as bits is zero.
template <class C>
constexpr double kDepth = ((sizeof(C) == 4 ? 127 : 1023) + ExpTable<C>::kBias) * kLn2;

template <class C>
constexpr C kShiftLimit = sizeof(C) == 4 ? 512 : 4096;

template <class C>
constexpr double kUnbias = 1.0;  // 2^-kBias
template <>
inline constexpr double kUnbias<float> = 0x1p-60;
template <>
inline constexpr double kUnbias<double> = 0x1p-500;

// A float32 vector of which only as much will be seen as a 16-bit result shows.
struct Coarse {
    VecF value;

    Coarse() = default;
    ONEPASS_INLINE Coarse(VecF v) : value(v) {}
    ONEPASS_INLINE operator VecF() const { return value; }

    // e * (high + low): the second product would not be seen.
    friend ONEPASS_INLINE Coarse scaled(Coarse e, Coarse high, Coarse) { return scaled(e.value, high.value); }
};

// What exponentials of elements are computed in if both they and the results are T in memory.
template <class T>
constexpr bool kCoarse = sizeof(T) == 2;
template <class T>
using Precision = std::conditional_t<kCoarse<T>, Coarse, Vec<Compute<T>>>;

// How many vectors take each step of an exponential together. One after the other they fill the queues of a processor
// with operations that wait for the one before: on a Zen 4, 10.0 cycles a vector, 8.6 by twos or fours. Fours want the
// registers of what is done beside: with that 12.7 cycles, by twos 12.2.
constexpr int kTogether = 2;

// An exponential half-way: x = n * ln2 / kSteps + r. In t's low bits is n + (kBias - k) * kSteps, and the exponent's
// bias.
template <class C, int kCount>
struct Reduced {
    Vec<C> t[kCount], r[kCount];
};

// Not kFloored: no x lies at the floor or below it.
template <class P, bool kFloored = true, int kCount, class C, bool kShifted>
ONEPASS_INLINE Reduced<C, kCount> reduce_range(const Vec<C> (&elements)[kCount],
                                               const Anchor<Vec<C>, kShifted>& anchor) {
    using Table = ExpTable<C>;
    using V = Vec<C>;
    V x[kCount], n[kCount];
    Reduced<C, kCount> half;
    for (int k = 0; k < kCount; ++k) x[k] = elements[k];
    if constexpr (kShifted) {
        for (V& each : x) each = each - anchor.shift;
    }
    if constexpr (kFloored) {
        for (V& each : x) each = max(anchor.floor, each);
    }
    for (int k = 0; k < kCount; ++k) half.t[k] = fma(x[k], V(static_cast<C>(kLog2E * Table::kSteps)), anchor.magic);
    for (int k = 0; k < kCount; ++k) n[k] = half.t[k] - anchor.magic;
    if constexpr (std::is_same_v<P, Coarse>) {
        for (int k = 0; k < kCount; ++k) half.r[k] = fma(n[k], V(static_cast<C>(-kLn2 / Table::kSteps)), x[k]);
    } else {
        for (int k = 0; k < kCount; ++k) half.r[k] = fma(n[k], V(-Table::kLn2High), x[k]);
        for (int k = 0; k < kCount; ++k) half.r[k] = fma(n[k], V(-Table::kLn2Low), half.r[k]);
    }
    return half;
}

template <class P, int kCount, class C>
ONEPASS_INLINE void finish_exp(const Reduced<C, kCount>& half, Vec<C> (&x)[kCount]) {
    using Table = ExpTable<C>;
    using V = Vec<C>;
    constexpr bool kOfCoarse = std::is_same_v<P, Coarse>;
    V q[kCount], power[kCount];
    const auto& r = half.r;
    const auto index = [&](int k) ONEPASS_INLINE_BODY { return bit_cast<typename V::Bits>(half.t[k].v); };
    const auto polynomial = [&]<int kTerms>(const C(&coefficients)[kTerms]) ONEPASS_INLINE_BODY {
        for (V& each : q) each = coefficients[0];
        for (int i = 1; i < kTerms; ++i) {
            for (int k = 0; k < kCount; ++k) q[k] = fma(q[k], r[k], V(coefficients[i]));
        }
    };
    if constexpr (kOfCoarse) {
        polynomial(Table::kCoarse);
    } else {
        polynomial(Table::kPolynomial);
    }
    // t's low bits, shifted into place, are that power of two.
    if constexpr (Table::kSteps > 1) {
        for (int k = 0; k < kCount; ++k) {
            const auto bits = (index(k) << (Table::kMantissaBits - Table::kStepBits)) + lookup(Table::kPower, index(k));
            power[k] = bit_cast<typename V::Native>(bits);
        }
        for (int k = 0; k < kCount; ++k) {
            q[k] = kOfCoarse ? q[k] * r[k] : fma(q[k], r[k], lookup(Table::kLost, index(k)));
        }
        for (int k = 0; k < kCount; ++k) x[k] = fma(power[k], q[k], power[k]);
    } else {
        // It is multiplied, not added to e's exponent, so that NaN stays NaN.
        for (int k = 0; k < kCount; ++k) power[k] = bit_cast<typename V::Native>(index(k) << Table::kMantissaBits);
        for (int k = 0; k < kCount; ++k) x[k] = fma(q[k], r[k], V(C(1))) * power[k];
    }
}

// x[k] = exp(x[k] - anchor) * 2^kBias, to better than 1.5 ULP unless P is Coarse. NaN gives NaN; -inf and everything at
// the floor or below it gives 0.
template <class P, bool kFloored = true, int kCount, class C, bool kShifted>
ONEPASS_INLINE void exp_all(Vec<C> (&x)[kCount], const Anchor<Vec<C>, kShifted>& anchor) {
    finish_exp<P>(reduce_range<P, kFloored>(x, anchor), x);
}

// The same of one.
template <class P, bool kFloored = true, class C, bool kShifted>
ONEPASS_INLINE Vec<C> exp_in(Vec<C> x, const Anchor<Vec<C>, kShifted>& anchor) {
    Vec<C> one[1] = {x};
    exp_all<P, kFloored>(one, anchor);
    return one[0];
}

// As precise as T shows.
template <class T, int kCount, class V, bool kShifted, class C = Compute<T>>
ONEPASS_INLINE void exp_all_of(Vec<C> (&x)[kCount], const Anchor<V, kShifted>& anchor) {
    exp_all<Precision<T>>(x, Anchor<Vec<C>, kShifted>{anchor.shift, anchor.floor, anchor.magic});
}
template <class T, bool kShifted, class C = Compute<T>>
ONEPASS_INLINE Vec<C> exp_of(Vec<C> x, const Anchor<Vec<C>, kShifted>& anchor) {
    return exp_in<Precision<T>>(x, anchor);
}

// Exponentials relative to the maximum of a row: what is there itself is counted, and its exponential 0. So the sum of
// a row with one dominant element keeps what the others add.
template <class T>
struct BelowTop {
    Anchor<VecF, true> anchor;
    VecF::Bits below{};  // elements, lane by lane

    template <int kCount>
    ONEPASS_INLINE void operator()(VecF (&x)[kCount]) {
        Which which[kCount];
        for (int k = 0; k < kCount; ++k) which[k] = differs(x[k], anchor.shift);
        exp_all_of<T>(x, anchor);
        for (int k = 0; k < kCount; ++k) {
            x[k] = or_zero(which[k], x[k]);
            count(which[k], below);
        }
    }
    // Of `length` elements, how many are at the top, lane by lane; lanes filled up are below it.
    ONEPASS_INLINE VecF tops(std::int64_t length) const {
        const auto seen = static_cast<std::uint32_t>((length + kLanes<float> - 1) / kLanes<float>);
        return __builtin_convertvector((VecF::Bits{} + seen) - below, VecF::Native);
    }
};

// What the operations of ops.h call.
template <class C, bool kShifted>
ONEPASS_INLINE Vec<C> exp_anchored(Vec<C> x, const Anchor<Vec<C>, kShifted>& anchor) {
    return exp_in<Vec<C>>(x, anchor);
}
template <bool kShifted>
ONEPASS_INLINE Coarse exp_anchored(Coarse x, const Anchor<Coarse, kShifted>& anchor) {
    return exp_in<Coarse>(x.value, Anchor<VecF, kShifted>{anchor.shift, anchor.floor, anchor.magic});
}

// The anchor for rows whose maximum is `max`, one row per lane, which have `shift` subtracted.
template <class C>
inline Anchor<Vec<C>, true> anchor_above(Vec<C> max, Vec<C> shift) {
    using Table = ExpTable<C>;
    const Vec<C> m = max - shift;
    const Vec<C> k = (m * Vec<C>(static_cast<C>(kLog2E)) + Vec<C>(Table::kRound)) - Vec<C>(Table::kRound);
    return {shift, k * Vec<C>(static_cast<C>(kLn2)) - Vec<C>(static_cast<C>(kDepth<C>)),
            Vec<C>(Table::kRound + static_cast<C>(Table::kExponentBias + Table::kBias * Table::kSteps)) -
                Vec<C>(static_cast<C>(Table::kSteps)) * k};
}

// The same where nobody has subtracted anything yet. `exact`: the maximum itself, so that its own exponential is
// exactly 1 (what log_softmax and logsumexp need); else the nearest power of two (softmax).
template <class C>
inline Anchor<Vec<C>, true> anchor_at(Vec<C> max, bool exact) {
    return anchor_above<C>(max, exact ? max : where_not_above(abs(max), Vec<C>(kShiftLimit<C>), Vec<C>(C(0)), max));
}

// Calls f with the anchor, without its shift if that is zero: the subtraction is one of 18 operations on an element.
template <class C, class F>
ONEPASS_INLINE auto with_anchor(const Anchor<Vec<C>, true>& anchor, F&& f) {
    if (anchor.shift.v[0] == 0) return f(Anchor<Vec<C>, false>{anchor.shift, anchor.floor, anchor.magic});
    return f(anchor);
}

// log of what the exponentials of this anchor are relative to, for one lane.
template <class C>
inline double log_of_anchor(C shift, C magic) {
    using Table = ExpTable<C>;
    const double steps = static_cast<double>(Table::kRound) + (Table::kExponentBias + Table::kBias * Table::kSteps) -
                         static_cast<double>(magic);
    return static_cast<double>(shift) + steps / Table::kSteps * kLn2;
}

// Whether that is the log of a power of two, no maximum having been subtracted, and of which. Maxima that are
// subtracted are beyond the limit, where no octave is: the last of float64 is 5909 ln2 = 4095.8, and of float32's,
// which go on to 739 ln2 = 512.2, none beyond 512 is a float32.
inline bool is_octave(double log, double& octave) {
    octave = __builtin_rint(log * kLog2E);
    return octave * kLn2 == log && __builtin_fabs(log) <= kShiftLimit<double>;
}

// log(d / 2^kBias) for d from 2^-512 on, lane by lane: exponent * ln2 + 2s + cubic, NaN for NaN. Relative accuracy also
// next to 1, where log_softmax of a row with one dominant element lives: of a result of type C, and more.
template <class C, int kBias = 0>
struct LogOfSum {
    VecD exponent, s, divisor, f, cubic;

    ONEPASS_INLINE explicit LogOfSum(VecD d) {
        constexpr std::uint64_t kLow = 512;  // is added to exponents: AVX2 shifts nothing negative
        // d = 2^offset * m, m in [sqrt(1/2), sqrt(2))
        const auto offset = bit_cast<VecD::Bits>(d) - (0x3fe6a09e667f3bcd - (kLow << 52));
        exponent = bit_cast<VecD>((offset >> 52) + 0x4338000000000000) - VecD(0x1.8p52 + kLow + kBias);
        const auto inverse = ((1023 + kLow) << 52) - (offset & 0xfff0000000000000);
        f = fma(d, bit_cast<VecD>(inverse), VecD(-1.0));  // m - 1, exactly
        divisor = VecD(2.0) + f;
        s = f / divisor;
        const VecD z = s * s;
        // 2 * atanh(s) = 2s + s * z * (2/3 + 2/5 z + ...), |s| <= 0.1716: 10 terms leave 2e-18, 6 leave 1e-12
        constexpr int kLast = sizeof(C) == 8 ? 23 : 13;
        VecD p = 2.0 / kLast;
        for (int odd = kLast - 2; odd >= 3; odd -= 2) p = fma(p, z, VecD(2.0 / odd));
        cubic = s * z * p;
    }
    ONEPASS_INLINE VecD value() const { return fma(exponent, VecD(kLn2), s + s + cubic); }
    // The logarithm in two parts, what rounding s has lost with them: 2^-59 of it.
    ONEPASS_INLINE void split(VecD& high, VecD& low) const {
        using Table = ExpTable<double>;
        const VecD lost = (fma(VecD(0.0) - s, divisor, f) - s * (f - (divisor - VecD(2.0)))) / divisor;
        const VecD a = exponent * VecD(Table::kLn2High), b = s + s;  // the product is exact
        const VecD sum = a + b, back = sum - a;
        const VecD rest = ((a - (sum - back)) + (b - back)) + (exponent * VecD(Table::kLn2Low) + (lost + lost) + cubic);
        high = sum + rest;
        low = rest - (high - sum);
    }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
