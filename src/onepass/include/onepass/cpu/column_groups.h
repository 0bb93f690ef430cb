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

// Where vectors have masks, a group of fewer than the most may end within one: 49 columns of float32 are one of four
// vectors, and not one of two and two of one, each of which goes down all rows. Measured on a Zen 5, two threads, dim
// 1, times over those by whole vectors: softmax's gradient of 200x100x49 0.83, 500x12x49 0.85, 500x12x60 0.92,
// log_softmax's 0.86, 0.89 and 0.91, log_softmax 0.95, 0.90 and 0.89, logsumexp 0.92, 0.91 and 0.93, softmax 1.03, 0.81
// and 0.82.
constexpr bool kGroupsEndAnywhere = kVectorBytes == 64;

// Calls visit.operator()<vectors>(column, lanes) for kMost vectors of columns at a time, then for kFewer, then for half
// of those and so on. So many lanes of a group's last vector are columns.
template <class C, int kMost, int kFewer = kMost / 2, bool kFirst = true, class Visit>
ONEPASS_INLINE void each_group(int width, Visit&& visit, int j = 0) {
    constexpr int W = kLanes<C>;
    if constexpr (kMost > 1) {
        for (; j + kMost * W <= width; j += kMost * W) visit.template operator()<kMost>(j, W);
        if constexpr (kGroupsEndAnywhere && !kFirst) {
            const int lanes = width - j - (kMost - 1) * W;
            if (lanes > 0) return visit.template operator()<kMost>(j, lanes);
        }
        each_group<C, kFewer, kFewer / 2, false>(width, visit, j);
    } else {
        for (; j < width; j += W) visit.template operator()<1>(j, width - j < W ? width - j : W);
    }
}

// Vector k of the group of kCount that begins at p; of the last one `lanes` of it.
template <int kCount, class T, class C = Compute<T>>
ONEPASS_INLINE Vec<C> vector_of(const T* p, int k, int lanes, C fill) {
    const bool whole = kGroupsEndAnywhere ? k < kCount - 1 : kCount > 1;
    return whole || lanes == kLanes<C> ? load(p + k * kLanes<C>) : load_n(p + k * kLanes<C>, lanes, fill);
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
