// Rows that need no maximum.
//
// Most rows have their maximum within reach of one exponent, kExponent: their exponentials neither overflow nor vanish
// relative to that. So those are taken first, and what came out tells whether it was so: no element above kMostX, every
// sum between kLeastSum and kMostSum. If it was, the results have the same bits as with the exponent of the row, which
// only scales everything by a power of two. If not (NaN and infinities do not pass either), it is done again the long
// way.
#pragma once

#include "exp.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class C>
struct Usual;
template <>
struct Usual<float> {
    static constexpr int kExponent = 16;        // sums of e^-2 to e^30
    static constexpr float kMostX = 44;         // its exponential, 2^107.5 with the bias, is the largest used
    static constexpr float kLeastX = -2;        // that of a maximum from here on is sum enough,
    static constexpr float kLikelyX = 20;       // up to here it leaves room for 2^15 as large
    static constexpr float kMostSum = 0x1p88;   // beyond: the low part of its reciprocal might be subnormal
    static constexpr float kLeastSum = 0x1p41;  // below: what the floor cuts off might still show in the result
};
template <>
struct Usual<double> {
    static constexpr int kExponent = 0;
    static constexpr double kMostX = 300;
    static constexpr double kLeastX = -117;
    static constexpr double kLikelyX = 280;
    static constexpr double kMostSum = 0x1p940;
    static constexpr double kLeastSum = 0x1p330;
};

template <class C>
inline Anchor<Vec<C>, false> usual_anchor() {
    const auto anchor = anchor_at(Vec<C>(static_cast<C>(Usual<C>::kExponent * kLn2)), false);
    return {anchor.shift, anchor.floor, anchor.magic};
}

// Worth trying, from one vector of many: elements far beyond kMostX overflow into numbers that are slow to compute
// with.
template <class C>
inline bool may_be_usual(Vec<C> some) {
    return !(reduce_max(some) > Usual<C>::kMostX);
}

// An exponent in the usual one's place: that of a row before.
template <class C>
struct Expected {
    Anchor<Vec<C>, false> anchor = usual_anchor<C>();
    C moved = 0;  // how far from the usual one's place, and so are its bounds

    // Whether a row with this maximum would be served.
    bool serves(C max) const { return max >= Usual<C>::kLeastX + moved && max <= Usual<C>::kLikelyX + moved; }
    // Whether a row was, from its largest elements, NaN left out, and its sum. If that is NaN so is all of the row,
    // whatever the exponent.
    bool served(Vec<C> top, double sum) const {
        const bool beyond = any_above(top, Vec<C>(Usual<C>::kMostX + moved));
        return !beyond && !(sum < Usual<C>::kLeastSum) && !(sum > Usual<C>::kMostSum);
    }
};

// That of a row with this maximum. False if there is none: it is infinite, or near the limit from which on maxima are
// subtracted. Rows that are served are within kMostX of it, so none of them has to subtract its own; nor has one of
// their chunks, if they were computed by chunks, but those of less than e^-kMostX of a sum, which is nothing in a
// float64.
template <class C>
inline bool expect(C max, Expected<C>& expected) {
    constexpr C kFarthest = kShiftLimit<C> - 2 * Usual<C>::kMostX;
    if (!(max >= -kFarthest && max <= kFarthest)) return false;
    const auto anchor = anchor_at(Vec<C>(max), false);
    const double exponent = log_of_anchor<C>(anchor.shift.v[0], anchor.magic.v[0]);
    expected = {{anchor.shift, anchor.floor, anchor.magic}, static_cast<C>(exponent - Usual<C>::kExponent * kLn2)};
    return true;
}

// top: the largest elements, NaN left out; sums: n sums of exponentials.
template <class C>
inline bool are_usual(Vec<C> top, const double* sums, int n) {
    if (any_above(top, Vec<C>(Usual<C>::kMostX))) return false;
    const VecD least = static_cast<double>(Usual<C>::kLeastSum), most = static_cast<double>(Usual<C>::kMostSum);
    VecD strange = 0.0;
    int i = 0;
    for (; i + kLanes<double> <= n; i += kLanes<double>) {
        const VecD sum = load(sums + i);
        strange = where_not_above(sum, most, strange, VecD(1.0));
        strange = where_not_above(least, sum, strange, VecD(1.0));
    }
    for (; i < n; ++i) {
        if (!(sums[i] >= Usual<C>::kLeastSum && sums[i] <= Usual<C>::kMostSum)) return false;
    }
    return !any_above(strange, VecD(0.5));
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
