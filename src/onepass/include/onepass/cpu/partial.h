// Merging and finishing the partial results of every reduction, in float64.
#pragma once

#include <math.h>

// after the scalar exp and log that it uses
#include "../row_state.h"
#include "exp.h"
#include "job.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// A part of a row, reduced. Exponentials: a RowState. sum and mean: d, and in m what its additions have lost. amax and
// amin: m, NaN if there was one.
using Partial = RowState<double>;

inline Partial empty_partial(Op op) {
    switch (op) {
        case Op::sum:
        case Op::mean: return {0, 0};
        case Op::amin: return {__builtin_huge_val(), 0};
        default: return Partial::identity();
    }
}

// What a sum of softmax's exponentials is when they are relative to exp(m). Powers of two are scaled as such: their
// logs are rounded, and a difference of two would cost a result as many digits as they have before the point.
inline double relative_to(double m, const Partial& part) {
    using Table = ExpTable<double>;
    double from, to;
    const bool from_octave = is_octave(part.m, from), to_octave = is_octave(m, to);
    if (from_octave && to_octave) return ::ldexp(part.d, static_cast<int>(from - to));
    const double high = (from_octave ? from * Table::kLn2High : part.m) - (to_octave ? to * Table::kLn2High : m);
    const double low = (from_octave ? from * Table::kLn2Low : 0) - (to_octave ? to * Table::kLn2Low : 0);
    return part.d * ::exp(high + low);
}

inline void merge_softmax(Partial& total, const Partial& part) {
    if (total.m == part.m || __builtin_isinf(total.m) || __builtin_isinf(part.m)) return total.merge(part);
    if (part.m > total.m) {
        total = {part.m, relative_to(part.m, total) + part.d};
    } else {
        total.d += relative_to(total.m, part);
    }
}

inline void merge(Op op, Partial& total, const Partial& part) {
    switch (op) {
        case Op::sum:
        case Op::mean: {
            const double sum = total.d + part.d;
            const double back = sum - total.d;
            const double lost = (total.d - (sum - back)) + (part.d - back);
            if (lost == lost) total.m += lost;  // an infinite sum has lost NaN
            total.m += part.m;
            total.d = sum;
            break;
        }
        case Op::amax:
            if (part.m > total.m || part.m != part.m) total.m = part.m;
            break;
        case Op::amin:
            if (part.m < total.m || part.m != part.m) total.m = part.m;
            break;
        case Op::softmax: merge_softmax(total, part); break;
        default: total.merge(part);
    }
}

inline double finish(Op op, const Partial& total, std::int64_t length) {
    switch (op) {
        case Op::sum: return total.d + total.m;
        case Op::mean: return (total.d + total.m) / static_cast<double>(length);
        case Op::amax:
        case Op::amin: return total.m;
        default: return total.lse();
    }
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
