// What many rows' exponentials are scaled by.
#pragma once

#include "simd.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Stores v rounded, and what that lacks beside v + rest. Whole vectors: one that is put together from two stores has to
// wait for both when it is loaded again.
template <class C, int kCount = kHalves<C>>
ONEPASS_INLINE void store_in_parts(const VecD (&v)[kCount], const VecD (&rest)[kCount], C* high, C* low) {
    const Vec<C> nearest = rounded(v);
    VecD back[kCount], lacking[kCount];
    widen(nearest, back);
    for (int k = 0; k < kCount; ++k) lacking[k] = (v[k] - back[k]) + rest[k];
    store(high, nearest);
    store(low, rounded(lacking));
}

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
