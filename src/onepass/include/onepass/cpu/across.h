// Reducing as many vectors at once as a vector has lanes: row r of the argument becomes lane r of the result.
//
// One vector after the other would take log2(W) dependent steps each, most of them on lanes that no longer matter. Two
// vectors folded in half fill one, so W vectors take W - 1 steps in all.
#pragma once

#include <utility>

#include "simd.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Lane i of the result is lane kIndex of a, counted on through b.
template <int... kIndex, class Native>
ONEPASS_INLINE Native shuffle(Native a, Native b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, kIndex...);
#else
    using Index = std::conditional_t<sizeof(a[0]) == 4, VecF::Bits, VecD::Bits>;
    return __builtin_shuffle(a, b, Index{kIndex...});
#endif
}

// Of every group of 2 * kHalf lanes, one half from a and the same one from b, side by side.
template <int kHalf, bool kUpper, class C, int... kLane>
ONEPASS_INLINE Vec<C> halves(Vec<C> a, Vec<C> b, std::integer_sequence<int, kLane...>) {
    constexpr int W = kLanes<C>;
    return shuffle<(kLane % (2 * kHalf) < kHalf ? kLane + kUpper * kHalf : kLane - kHalf + kUpper * kHalf + W)...>(a.v,
                                                                                                                   b.v);
}

// Of vectors that follow each other, every kStep-th lane: `these` has those of the first kSeen.
template <int kStep, int kSeen = 1, class C, int... kLane>
ONEPASS_INLINE Vec<C> every(Vec<C> these, const Vec<C>* vectors, std::integer_sequence<int, kLane...> each) {
    if constexpr (kSeen == kStep) {
        return these;
    } else {
        // Until there are two, lanes are where they were read.
        constexpr int W = kLanes<C>, kBefore = kSeen > 1 ? 1 : kStep;
        const Vec<C> more = shuffle<(kLane * kStep / W == kSeen ? W + kLane * kStep % W
                                     : kLane * kBefore < W      ? kLane * kBefore
                                                                : 0)...>(these.v, vectors[kSeen].v);
        return every<kStep, kSeen + 1>(more, vectors, each);
    }
}

// Lane r of the result: all lanes of rows[r], combined. Overwrites rows. With kLeft > kHalf, of vectors whose groups of
// 2 * kHalf lanes are rows of their own: kLeft / kHalf vectors of results, in rows from 0 on.
template <int kHalf, int kLeft = kHalf, class C, class Combine>
ONEPASS_INLINE Vec<C> across_from(Vec<C>* rows, Combine&& combine) {
    constexpr auto kEach = std::make_integer_sequence<int, kLanes<C>>();
    for (int r = 0; r < kLeft; ++r) {
        rows[r] = combine(halves<kHalf, false>(rows[r], rows[r + kLeft], kEach),
                          halves<kHalf, true>(rows[r], rows[r + kLeft], kEach));
    }
    if constexpr (kHalf > 1) {
        return across_from<kHalf / 2, kLeft / 2>(rows, combine);
    } else {
        return rows[0];
    }
}

template <class C>
ONEPASS_INLINE Vec<C> sums_across(Vec<C> (&rows)[kLanes<C>]) {
    return across_from<kLanes<C> / 2>(rows, [](Vec<C> a, Vec<C> b) ONEPASS_INLINE_BODY { return a + b; });
}
template <class C>
ONEPASS_INLINE Vec<C> maxima_across(Vec<C> (&rows)[kLanes<C>]) {
    return across_from<kLanes<C> / 2>(rows, [](Vec<C> a, Vec<C> b) ONEPASS_INLINE_BODY { return max(a, b); });
}
template <class C>
ONEPASS_INLINE Vec<C> minima_across(Vec<C> (&rows)[kLanes<C>]) {
    return across_from<kLanes<C> / 2>(rows, [](Vec<C> a, Vec<C> b) ONEPASS_INLINE_BODY { return min(a, b); });
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
