// Columns side by side, in groups of a few vectors: what is summed up down a group of columns then waits in registers.
#pragma once

#include <utility>

#include "job.h"
#include "simd.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Calls body(k) for the constants k from 0 to kCount - 1. A loop would be unrolled only after the compiler has decided
// what lies in registers, and an array that it indexes would not.
template <int kCount, class Body>
ONEPASS_INLINE void unrolled(Body&& body) {
    [&]<int... k>(std::integer_sequence<int, k...>) ONEPASS_INLINE_BODY {
        (body(std::integral_constant<int, k>{}), ...);
    }(std::make_integer_sequence<int, kCount>{});
}

// Calls visit.operator()<vectors>(column, lanes) for kMost vectors of columns at a time, then for kFewer, then for half
// of those and so on, at last for one of which only so many lanes are columns.
template <class C, int kMost, int kFewer = kMost / 2, class Visit>
ONEPASS_INLINE void each_group(int width, Visit&& visit, int j = 0) {
    constexpr int W = kLanes<C>;
    if constexpr (kMost > 1) {
        for (; j + kMost * W <= width; j += kMost * W) visit.template operator()<kMost>(j, W);
        each_group<C, kFewer>(width, visit, j);
    } else {
        for (; j < width; j += W) visit.template operator()<1>(j, width - j < W ? width - j : W);
    }
}

// Vector k of the group of kCount that begins at p; of a group of one, `lanes` of it.
template <int kCount, class T, class C = Compute<T>>
ONEPASS_INLINE Vec<C> vector_of(const T* p, int k, int lanes, C fill) {
    return kCount > 1 || lanes == kLanes<C> ? load(p + k * kLanes<C>) : load_n(p, lanes, fill);
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
