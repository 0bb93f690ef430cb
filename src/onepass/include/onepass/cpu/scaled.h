// An exponential times the reciprocal of its row's sum.
//
// Products below 2^-126 are subnormal, and processors take some 100 cycles of microcode to round each vector of those:
// a row of logits from -60 to 60 would take ten times as long as one from -6 to 6. So where a product may come out that
// small it is made 2^120 times as large. What is subnormal of it is then added to the smallest normal number, whose
// neighbours lie as far apart as subnormal numbers do, and that is taken away again from the bits.
#pragma once

#include "job.h"
#include "simd.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// e * (high + low), rounded once, by way of float64 where a multiply-add is rounded twice: the only probability of a
// row is 1 then, too.
ONEPASS_INLINE VecF times_parts(VecF e, VecF high, VecF low) {
    if constexpr (kRoundsOnce) {
        return fma(e, high, e * low);
    } else {
        return rounded(low_half(e) * (low_half(high) + low_half(low)),
                       high_half(e) * (high_half(high) + high_half(low)));
    }
}
ONEPASS_INLINE VecD times_parts(VecD e, VecD high, VecD low) { return fma(e, high, e * low); }

// Exponents of e and high add up to less than this, with bias: e * high is below 2^-71. Down to 2^-73 no part of the
// product is subnormal: low, which has the other bits of a float64, is at least 2^-53 of high.
constexpr std::uint32_t kSmallProduct = std::uint32_t{254 - 72} << 23;

ONEPASS_APART inline VecF scaled_small(VecF e, VecF high, VecF low) {
    const VecF zero = 0.0f, up = 0x1p120f, down = 0x1p-120f, smallest = 0x1p-126f;
    // Added up, not subtracted: beside a lane that is small, another's `high` may be beyond all limits.
    const auto small = bit_cast<VecF::Bits>(e.v) + bit_cast<VecF::Bits>(high.v) < kSmallProduct;
    const VecF large = small ? zero.v : e.v;
    const VecF tiny = small ? e.v : zero.v;
    const VecF product = fma(tiny, high * up, tiny * (low * up));
    const auto subnormal = product.v < VecF(0x1p-6f).v;
    const VecF normal = VecF(subnormal ? zero.v : product.v) * down;
    const VecF raised = fma(VecF(subnormal ? product.v : zero.v), down, smallest);
    const auto lowered = bit_cast<VecF::Bits>(raised.v) - bit_cast<VecF::Bits>(smallest.v);
    const VecF rest = times_parts(large, high, low);
    return small ? (subnormal ? bit_cast<VecF::Native>(lowered) : normal.v) : rest.v;
}

// Bits of a number not below 0, less one: so that 0, of which no product is subnormal, comes out as the largest.
ONEPASS_INLINE VecF::Bits above_zero(VecF e) { return bit_cast<VecF::Bits>(e.v) - 1; }

// Below this, above_zero(e) has an exponent that adds up to less than `limit` with that of factor, factor > 0.
ONEPASS_INLINE VecF::Bits small_beside(VecF factor, std::uint32_t limit) {
    const auto bits = bit_cast<VecF::Bits>(factor.v);
    return bits < limit ? limit - 1 - bits : bits - bits;
}
ONEPASS_INLINE bool may_be_small(VecF e, VecF high) {
    return __builtin_expect(any_below(above_zero(e), small_beside(high, kSmallProduct)), 0);
}

// e * (high + low), rounded once.
ONEPASS_INLINE VecF scaled(VecF e, VecF high, VecF low) {
    if (may_be_small(e, high)) return scaled_small(e, high, low);
    return times_parts(e, high, low);
}
ONEPASS_INLINE VecD scaled(VecD e, VecD high, VecD low) { return times_parts(e, high, low); }

// e * high.
ONEPASS_INLINE VecF scaled(VecF e, VecF high) {
    if (may_be_small(e, high)) return scaled_small(e, high, 0.0f);
    return e * high;
}

// What none_small asks of products with this factor.
ONEPASS_INLINE VecF::Bits limit_beside(VecF high) { return small_beside(high, kSmallProduct); }
ONEPASS_INLINE VecD::Bits limit_beside(VecD) { return VecD::Bits{}; }
// The same of products with any of several factors.
inline VecF::Bits limit_beside_all(const float* factors, int n) {
    std::uint32_t most = 0;
    for (int j = 0; j < n; ++j) {
        const std::uint32_t limit = limit_beside(VecF(factors[j]))[0];
        most = limit > most ? limit : most;
    }
    return VecF::Bits{} + most;
}
inline VecD::Bits limit_beside_all(const double*, int) { return VecD::Bits{}; }

// The same of several vectors with the same factors: one question for all. False where a product may be small: then
// they are not scaled.
template <int kCount>
ONEPASS_INLINE bool none_small(const VecF (&e)[kCount], VecF::Bits limit) {
    VecF::Bits least = above_zero(e[0]);
    for (int k = 1; k < kCount; ++k) {
        const auto bits = above_zero(e[k]);
        least = bits < least ? bits : least;
    }
    return __builtin_expect(!any_below(least, limit), 1);
}
ONEPASS_INLINE bool none_small(const VecD*, VecD::Bits) { return true; }

// The least of many exponentials that are not 0: beside the factors of all it tells whether any product may be small.
template <class C>
struct Least {
    ONEPASS_INLINE void add(Vec<C>) {}
    bool small_beside_any(const C*, int) const { return false; }
};
template <>
struct Least<float> {
    VecF::Bits bits = ~VecF::Bits{};

    ONEPASS_INLINE void add(VecF e) {
        const auto other = above_zero(e);
        bits = other < bits ? other : bits;
    }
    bool small_beside_any(const float* factors, int n) const {
        std::uint32_t least = bits[0];
        for (int i = 1; i < kLanes<float>; ++i) least = bits[i] < least ? bits[i] : least;
        bool any = false;
        for (int j = 0; j < n; j += kLanes<float>) {
            any |= any_below(VecF::Bits{} + least, small_beside(load(factors + j), kSmallProduct));
        }
        return any;
    }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
