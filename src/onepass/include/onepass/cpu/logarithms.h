// Logarithms of many rows' sums, by vectors: a row's own takes as long as sixteen of its exponentials.
#pragma once

#include "span.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// m + log(d * unit), d a sum of exponentials relative to m: in two parts for n rows, whole vectors of float64. NaN of
// an infinite m, as log_softmax wants it.
template <class C>
inline void split_all_lse(const C* m, const double* d, double unit, int n, C* high, C* low) {
    if constexpr (sizeof(C) == 8) {
        for (int i = 0; i < n; ++i) split_lse(m[i], d[i] * unit, high[i], low[i]);
    } else {
        for (int i = 0; i < n; i += kLanes<double>) {
            const VecD at = load_double(m + i);
            VecD sum, rest;
            two_sum(at, log_of_sum(load(d + i) * VecD(unit)), sum, rest);
            sum = where_not_above(abs(at), VecD(kLargest<C>), sum, VecD(__builtin_nan("")));
            store_rounded(high + i, sum);
            store_rounded(low + i, (sum - load_double(high + i)) + rest);
        }
    }
}

// The same rounded. False if an m is infinite: the results of those rows are not to be used.
template <class C>
inline bool all_lse(const C* m, const double* d, double unit, int n, C* lse) {
    if constexpr (sizeof(C) == 8) {
        bool finite = true;
        for (int i = 0; i < n; ++i) {
            finite &= !is_infinite(m[i]);
            lse[i] = Partial{m[i], d[i] * unit}.lse();
        }
        return finite;
    } else {
        VecD furthest = 0.0;
        for (int i = 0; i < n; i += kLanes<double>) {
            const VecD at = load_double(m + i);
            furthest = max(abs(at), furthest);
            store_rounded(lse + i, at + log_of_sum(load(d + i) * VecD(unit)));
        }
        return !any_above(furthest, VecD(kLargest<C>));
    }
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
