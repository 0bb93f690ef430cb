// The exponential of a softmax, without the rounding of x - max. The algorithm, and why, is in cpu/exp.h: exp(x) =
// 2^n * exp(r), dividing by 2^k only changes the integer n, and a maximum beyond kShiftLimit is subtracted first.
//
// Two precisions:
// - float and double: range reduction by two FMAs, then a polynomial. Better than 1 ULP for any x, however far below
//   the maximum, and the same bits on a CPU: what the simulator measures is what a GPU computes. The polynomial takes
//   six FMAs where ex2.approx would take a multiplication and two cycles of the special-function unit; a float32 row
//   leaves about 60 operations per element on an H200 before memory waits.
//   What is only added up (exp_below) has its range reduced by one FMA.
// - Coarse: one FMA and ex2.approx. Its error, 2^-19 of the exponential, is 1/250 ULP of a float16 result. 16-bit rows
//   leave a quarter to a half of the time per element, and on a B200 no more than 18 operations.
//
// No operation here may be contracted with another: headers are compiled with --fmad=false and say fma where they mean
// it, so that every pass over a row computes the same exponential and probabilities sum to 1.
#pragma once

#include "../ops.h"
#include "types.h"

namespace onepass::cuda {

// A float32 of which only as much will be seen as a 16-bit result shows.
struct Coarse {
    float value;

    Coarse() = default;
    __device__ __forceinline__ Coarse(float x) : value(x) {}
    explicit __device__ __forceinline__ operator float() const { return value; }

    friend __device__ __forceinline__ Coarse operator-(Coarse a, Coarse b) { return a.value - b.value; }
    friend __device__ __forceinline__ Coarse operator*(Coarse a, Coarse b) { return a.value * b.value; }
    friend __device__ __forceinline__ Coarse fma(Coarse a, Coarse b, Coarse c) {
        return ::fma(a.value, b.value, c.value);
    }
    // e * (high + low): the second product would not be seen.
    friend __device__ __forceinline__ Coarse scaled(Coarse e, Coarse high, Coarse) { return e * high; }
};

// What exponentials of a row are computed in: as precise as the result can show.
template <class In, class Out>
using Precision = choose<sizeof(Out) == 2 && kSame<Compute<In, Out>, float>, Coarse, Compute<In, Out>>;

template <class V>
struct ExpTable;

template <>
struct ExpTable<float> {
    using Compute = float;
    using Bits = unsigned;
    static constexpr float kRound = 0x1.8p23f;  // adding it rounds to an integer and leaves that in the low bits
    static constexpr int kMantissaBits = 23;
    static constexpr int kExponentBias = 127;
    static constexpr int kBias = 60;  // exponentials are scaled by 2^60: none that matters is subnormal
    static constexpr float kUnbias = 0x1p-60f;
    static constexpr float kFloor = 118;  // e^-118 = 2^-170: far below the smallest subnormal, within reach of kBias
    static constexpr float kShiftLimit = 512;
    static constexpr float kLog2E = 0x1.715476p0f;
    // ln2 in two parts: n * high is exact, and so is x - n * high, which n brings near.
    static constexpr float kLn2High = 0x1.63p-1f;
    static constexpr float kLn2Low = -0x1.bd0106p-13f;
    static constexpr float kLn2 = 0x1.62e43p-1f;
    // exp(r) = 1 + r * q(r), |r| <= ln2 / 2: relative error 2.1e-9 before rounding
    static constexpr int kTerms = 6;
    static constexpr float kPolynomial[kTerms] = {0.0013843010367f, 0.00837453745604f, 0.0416680296877f,
                                                  0.166664267558f,  0.499999940464f,   1.00000003316f};
};

template <>
struct ExpTable<double> {
    using Compute = double;
    using Bits = unsigned long long;
    static constexpr double kRound = 0x1.8p52;
    static constexpr int kMantissaBits = 52;
    static constexpr int kExponentBias = 1023;
    static constexpr int kBias = 500;
    static constexpr double kUnbias = 0x1p-500;
    static constexpr double kFloor = 866;  // 2^-1250
    static constexpr double kShiftLimit = 4096;
    static constexpr double kLog2E = 0x1.71547652b82fep0;
    static constexpr double kLn2High = 0x1.62e42feep-1;
    static constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
    static constexpr double kLn2 = 0x1.62e42fefa39efp-1;
    // relative error 3.9e-18 before rounding
    static constexpr int kTerms = 11;
    static constexpr double kPolynomial[kTerms] = {2.5000777540752993969e-8,
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

template <>
struct ExpTable<Coarse> : ExpTable<float> {
    // The anchor's `magic` is the number to add to x * log2e, nothing to round with.
    static constexpr float kRound = 0;
    static constexpr int kExponentBias = 0;
};

// exp(r), |r| <= ln2 / 2.
template <class V>
__device__ __forceinline__ V exp_near_0(V r) {
    using Table = ExpTable<V>;
    V q = Table::kPolynomial[0];
#pragma unroll
    for (int i = 1; i < Table::kTerms; ++i) q = fma(q, r, Table::kPolynomial[i]);
    return fma(q, r, V(1));
}

// exp(x - n * ln2), for the integer n that brings x near 0.
template <class V>
__device__ __forceinline__ V exp_of_rest(V x, V n) {
    using Table = ExpTable<V>;
    const V r = fma(n, -Table::kLn2High, x);
    return exp_near_0(fma(n, -Table::kLn2Low, r));
}

// exp(x) * 2^kBias for x <= 0, to be added up beside that of 0: an exponential counts as little as it is small, and so
// does what it is wrong by. So ln2 comes in one part. The power of two is added to the exponent, where NaN is lost: the
// largest of a row with NaN is NaN, which tells.
template <class V>
__device__ __forceinline__ V exp_below(V x) {
    using Table = ExpTable<V>;
    using Bits = typename Table::Bits;
    constexpr V kMagic = Table::kRound + V(Table::kBias);
    x = fmax(x, -Table::kFloor);
    const V t = fma(x, Table::kLog2E, kMagic);
    const V e = exp_near_0(fma(t - kMagic, -Table::kLn2, x));
    return __builtin_bit_cast(V, __builtin_bit_cast(Bits, e) + (__builtin_bit_cast(Bits, t) << Table::kMantissaBits));
}
__device__ __forceinline__ Coarse exp_below(Coarse x) {
    return ptx::exp2_approx(::fma(x.value, ExpTable<Coarse>::kLog2E, float(ExpTable<Coarse>::kBias)));
}

// exp(x) for x <= 0, what a sum relative to one maximum is multiplied by when another is higher by -x; 1 of 0.
template <class V>
__device__ __forceinline__ typename ExpTable<V>::Compute exp_of_drop(typename ExpTable<V>::Compute x) {
    if constexpr (ExpTable<V>::kRound == 0) {
        return ptx::exp2_approx(x * ExpTable<V>::kLog2E);
    } else {
        return exp_below(x) * ExpTable<V>::kUnbias;
    }
}

}  // namespace onepass::cuda

namespace onepass {
inline namespace ONEPASS_ISA {  // where ops.h looks for it

// exp(x - anchor) * 2^kBias for V = float, double. NaN gives NaN.
template <class V, bool kShifted>
__device__ __forceinline__ V exp_anchored(V x, const Anchor<V, kShifted>& anchor) {
    using Table = cuda::ExpTable<V>;
    if constexpr (kShifted) x = x - anchor.shift;
    x = fmax(x, anchor.floor);
    const V t = fma(x, Table::kLog2E, anchor.magic);
    const V e = cuda::exp_of_rest(x, t - anchor.magic);
    // The low bits of t hold n - k + kBias + the exponent's bias: shifted into place they are that power of two. It is
    // multiplied, not added to e's exponent, so that NaN stays NaN.
    using Bits = typename Table::Bits;
    return e * __builtin_bit_cast(V, __builtin_bit_cast(Bits, t) << Table::kMantissaBits);
}

}  // namespace ONEPASS_ISA
}  // namespace onepass

namespace onepass::cuda {

template <bool kShifted>
__device__ __forceinline__ Coarse exp_anchored(Coarse x, const Anchor<Coarse, kShifted>& anchor) {
    if constexpr (kShifted) x = x - anchor.shift;
    return ptx::exp2_approx(::fma(x.value, ExpTable<Coarse>::kLog2E, anchor.magic.value));
}

// What has to be subtracted from a row with this maximum before its exponentials are computed: 0, unless it is huge,
// infinite or NaN.
template <class V>
__device__ __forceinline__ typename ExpTable<V>::Compute shift_of(typename ExpTable<V>::Compute max) {
    return fabs(max) <= ExpTable<V>::kShiftLimit ? 0 : max;
}

// The anchor for a row with this maximum; NaN and infinities give one whose exponentials are NaN. kExact: the maximum
// itself, so that its own exponential is exactly 1 (what logarithms need); else the nearest power of two. Not kShifted:
// shift_of has been subtracted from the row.
template <class V, bool kExact, bool kShifted = true>
__device__ __forceinline__ Anchor<V, kShifted> anchor_at(typename ExpTable<V>::Compute max) {
    using Table = ExpTable<V>;
    using C = typename Table::Compute;
    static_assert(kShifted || !kExact);
    const C shift = kExact ? max : kShifted ? shift_of<V>(max) : C(0);
    const C m = max - shift;
    const C k = kExact ? m : fma(m, Table::kLog2E, ExpTable<C>::kRound) - ExpTable<C>::kRound;
    return {shift, m - Table::kFloor, (Table::kRound + C(Table::kExponentBias + Table::kBias)) - k};
}

// exp(from - to): what brings exponentials relative to one anchor to another that is no lower. The anchors are k * ln2
// or, of huge numbers, a shift: a power of two, and the exponential of what the shifts are apart. Both factors are
// exact for numbers that are not huge.
template <class V>
__device__ __forceinline__ typename ExpTable<V>::Compute between(const Anchor<V, true>& from,
                                                                 const Anchor<V, true>& to) {
    using Table = ExpTable<V>;
    using C = typename Table::Compute;
    using Limits = ExpTable<C>;
    using Bits = typename Limits::Bits;
    using Exponent = choose<kSame<C, float>, int, int64>;
    constexpr C kFar = 4 * Table::kShiftLimit;  // nothing is left of what is further apart, whatever k
    constexpr Exponent kLeast = -(Limits::kExponentBias - 1) - Limits::kBias;

    Exponent n;
    if constexpr (Table::kRound != 0) {  // an integer in the low bits
        n = static_cast<Exponent>(__builtin_bit_cast(Bits, to.magic) - __builtin_bit_cast(Bits, from.magic));
    } else {
        n = static_cast<Exponent>(static_cast<C>(to.magic) - static_cast<C>(from.magic));
    }
    C e = 1;
    const C apart = static_cast<C>(from.shift) - static_cast<C>(to.shift);
    if (apart != C(0)) {  // or NaN, which stays
        const C x = apart < -kFar ? -kFar : apart;
        const C t = fma(x, Limits::kLog2E, Limits::kRound);
        e = exp_of_rest(x, t - Limits::kRound);
        n += static_cast<Exponent>(__builtin_bit_cast(Bits, t) - __builtin_bit_cast(Bits, Limits::kRound));
    }
    // In two steps, for what is below the normal numbers.
    n = n < kLeast ? kLeast : n;
    const Bits power = static_cast<Bits>(n + (Limits::kBias + Limits::kExponentBias)) << Limits::kMantissaBits;
    return e * __builtin_bit_cast(C, power) * Limits::kUnbias;
}

}  // namespace onepass::cuda
