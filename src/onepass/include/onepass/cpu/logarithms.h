// Logarithms of many rows' sums, by vectors: a row's own takes as long as sixteen of its exponentials.
#pragma once

#include "span.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// m + log(d * unit), d a sum of exponentials relative to m: rounded, and what that has lost, of a vector of float64.
// (With a float64 result, the rounding of a float64 logarithm would show.)
template <class C>
ONEPASS_INLINE void lse_of(VecD m, VecD d, double unit, VecD& sum, VecD& rest) {
    const LogOfSum<C> logarithm(d * VecD(unit));
    VecD log, log_low = 0.0;
    if constexpr (sizeof(C) == 4) {
        log = logarithm.value();
    } else {
        logarithm.split(log, log_low);
    }
    two_sum(m, log, sum, rest);
    rest = rest + log_low;
}

// The same in two parts for n rows, whole vectors of float64. NaN of an infinite m, as log_softmax wants it.
template <class C>
inline void split_all_lse(const C* m, const double* d, double unit, int n, C* high, C* low) {
    for (int i = 0; i < n; i += kLanes<double>) {
        const VecD at = load_double(m + i);
        VecD sum, rest;
        lse_of<C>(at, load(d + i), unit, sum, rest);
        sum = where_not_above(abs(at), VecD(kLargest<C>), sum, VecD(__builtin_nan("")));
        store_rounded(high + i, sum);
        store_rounded(low + i, (sum - load_double(high + i)) + rest);
    }
}

// The same rounded. False if an m is infinite: the results of those rows are not to be used.
template <class C>
inline bool all_lse(const C* m, const double* d, double unit, int n, C* lse) {
    VecD furthest = 0.0;
    for (int i = 0; i < n; i += kLanes<double>) {
        const VecD at = load_double(m + i);
        VecD sum, rest;
        lse_of<C>(at, load(d + i), unit, sum, rest);
        furthest = max(abs(at), furthest);
        store_rounded(lse + i, sum + rest);
    }
    return !any_above(furthest, VecD(kLargest<C>));
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
