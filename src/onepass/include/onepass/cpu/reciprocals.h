// What many rows' exponentials are scaled by.
#pragma once

#include "simd.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// 1 / sums[i] in two parts, the rounded and what is missing, for i < n, whole vectors of float64. By vectors and not
// element by element: left to the compiler, a loop of one vector's lanes is unrolled into as many divisions.
template <class C>
inline void reciprocals(const double* sums, int n, C* high, C* low) {
    for (int i = 0; i < n; i += kLanes<double>) {
        const VecD sum = load(sums + i), reciprocal = VecD(1.0) / sum;
        store_rounded(high + i, reciprocal);
        if constexpr (sizeof(C) == 4) {
            store_rounded(low + i, reciprocal - load_double(high + i));
        } else {
            store(low + i, fma(VecD(0.0) - reciprocal, sum, VecD(1.0)) * reciprocal);
        }
    }
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
