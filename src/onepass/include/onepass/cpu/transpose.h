// A square of elements in registers, turned over.
#pragma once

#include "across.h"
#include "column_groups.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Lane i of vector j becomes lane j of vector i: log2(W) times, vectors exchange halves of ever fewer lanes.
template <int kHalf, class C>
ONEPASS_INLINE void transpose_from(Vec<C> (&v)[kLanes<C>]) {
    constexpr auto kEach = std::make_integer_sequence<int, kLanes<C>>();
    unrolled<kLanes<C> / 2>([&](auto pair) ONEPASS_INLINE_BODY {
        constexpr int i = pair / kHalf * 2 * kHalf + pair % kHalf;
        const Vec<C> a = v[i], b = v[i + kHalf];
        v[i] = halves<kHalf, false>(a, b, kEach);
        v[i + kHalf] = halves<kHalf, true>(a, b, kEach);
    });
    if constexpr (kHalf > 1) transpose_from<kHalf / 2>(v);
}
template <class C>
ONEPASS_INLINE void transpose(Vec<C> (&v)[kLanes<C>]) {
    transpose_from<kLanes<C> / 2>(v);
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
