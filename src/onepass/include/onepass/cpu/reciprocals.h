// What many rows' exponentials are scaled by.
#pragma once

#include "simd.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// 1 / sums[i] in two parts, the rounded and what is missing, for i < n, whole vectors. By vectors and not element by
// element: left to the compiler, a loop of one vector's lanes is unrolled into as many divisions.
template <class C>
inline void reciprocals(const double* sums, int n, C* high, C* low) {
    for (int i = 0; i < n; i += kLanes<C>) {
        VecD reciprocal[kHalves<C>], rest[kHalves<C>];
        for (int k = 0; k < kHalves<C>; ++k) {
            const VecD sum = load(sums + i + k * kLanes<double>);
            reciprocal[k] = VecD(1.0) / sum;
            rest[k] = 0.0;
            if constexpr (sizeof(C) == 8) rest[k] = fma(VecD(0.0) - reciprocal[k], sum, VecD(1.0)) * reciprocal[k];
        }
        store_in_parts(reciprocal, rest, high + i, low + i);
    }
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
