// The operations of the softmax family as functors over a value type V: a scalar on a GPU, a vector on a CPU.
//
// Each one turns an element x into its result once the row's total is known. V provides +, -, *, fma(V, V, V) and
// exp_anchored(V, Anchor<V>); ops.h itself includes nothing, so that the GPU's run-time compiler can read it.
#pragma once

#include "row_state.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// What exp_anchored needs to compute exp(x) * 2^(bias - k) without overflow, k being the row's exponent (exp.h).
// kShifted: `shift` is subtracted from x first. Softmax needs that only where the maximum is huge.
template <class V, bool kShifted>
struct Anchor {
    V shift;
    V floor;  // x - shift is raised to this: everything below it is an exact zero of the result
    V magic;  // 1.5 * 2^mantissa_bits + exponent bias + bias - k
};

// e * (high + low), rounded once. A processor that is slow with subnormal products has its own (cpu/scaled.h).
template <class V>
ONEPASS_HD V scaled(V e, V high, V low) {
    return fma(e, high, e * low);
}

// softmax: exp(x) / sum. The reciprocal of the sum comes in two parts, so that the product rounds once.
template <class V, bool kShifted>
struct SoftmaxOp {
    Anchor<V, kShifted> anchor;
    V scale;
    V scale_low;

    ONEPASS_HD V operator()(V x) const { return normalize(exp_anchored(x, anchor)); }
    ONEPASS_HD V normalize(V e) const { return scaled(e, scale, scale_low); }
};

// log_softmax: x - logsumexp. logsumexp comes in two parts: x - lse is right to one rounding of the result even
// when both are 1e8 apart from zero.
template <class V>
struct LogSoftmaxOp {
    V lse;
    V lse_low;

    ONEPASS_HD V operator()(V x) const { return (x - lse) - lse_low; }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
