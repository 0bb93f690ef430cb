// Logarithms of many rows' sums, by vectors: a row's own takes as long as sixteen of its exponentials.
#pragma once

#include "span_results.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Calls take(i, m, high, low) for each vector of n rows: m + log(d / 2^kBias) in two parts.
template <int kBias, class C, class Take>
ONEPASS_INLINE void each_lse(const C* m, const double* d, int n, Take&& take) {
    for (int i = 0; i < n; i += kLanes<C>) {
        VecD sums[kHalves<C>];
        for (int k = 0; k < kHalves<C>; ++k) sums[k] = load(d + i + k * kLanes<double>);
        Vec<C> high, low;
        lse_of<kBias>(load(m + i), sums, high, low);
        take(i, load(m + i), high, low);
    }
}

// m + log(d / 2^kBias) of n rows, whole vectors, d being sums of exponentials relative to m. In two parts.
template <int kBias, class C>
inline void split_all_lse(const C* m, const double* d, int n, C* high, C* low) {
    each_lse<kBias>(m, d, n, [&](int i, Vec<C>, Vec<C> first, Vec<C> second) ONEPASS_INLINE_BODY {
        store(high + i, first);
        store(low + i, second);
    });
}

// Rounded. False if an m is infinite: the results of those rows are not to be used.
template <int kBias, class C>
inline bool all_lse(const C* m, const double* d, int n, C* lse) {
    Vec<C> furthest = C(0);
    each_lse<kBias>(m, d, n, [&](int i, Vec<C> of_m, Vec<C> high, Vec<C> low) ONEPASS_INLINE_BODY {
        furthest = max(abs(of_m), furthest);
        store(lse + i, high + low);
    });
    return !any_above(furthest, Vec<C>(kLargest<C>));
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
