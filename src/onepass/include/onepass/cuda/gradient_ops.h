// The gradients of the softmax family, each a type that kernels take as a template argument.
//
// dx of softmax and log_softmax needs a sum over the row first: `term` is what is summed, `gradient` what is written.
// That of logsumexp needs none.
#pragma once

#include "exp.h"
#include "sum.h"
#include "types.h"

namespace onepass::cuda {

// What is computed in: float64 where any of the three is, else float32.
template <class Dy, class Saved, class Dx>
using GradientCompute = choose<kSame<Dy, double>, double, Compute<Saved, Dx>>;

// exp(x), as much of it as a result of type Dx shows: 16 bits show nothing of what ex2.approx and the rounding of
// x * log2e lose, and float16 no subnormal float32.
template <class Dx, class C>
__device__ __forceinline__ C exp_for(C x) {
    if constexpr (sizeof(Dx) != 2 || !kSame<C, float>) {
        return exp(x);
    } else if constexpr (kSame<Dx, half>) {
        return ptx::exp2_approx(x * ExpTable<float>::kLog2E);
    } else {
        return ptx::exp2_approx_subnormal(x * ExpTable<float>::kLog2E);
    }
}

// kSumsSaved: the terms need what was saved; else they are dy alone.
struct SoftmaxBackward {
    static constexpr bool kSumsSaved = true;

    template <class C>
    static __device__ __forceinline__ C term(C dy, C y) {
        return dy * y;
    }
    template <class Dx, class C>
    static __device__ __forceinline__ C gradient(C dy, C y, C sum) {
        return y * (dy - sum);
    }
};

struct LogSoftmaxBackward {
    static constexpr bool kSumsSaved = false;

    template <class C>
    static __device__ __forceinline__ C term(C dy, C) {
        return dy;
    }
    template <class Dx, class C>
    static __device__ __forceinline__ C gradient(C dy, C y, C sum) {
        return fma(-exp_for<Dx>(y), sum, dy);
    }
};

// dy * exp(x - lse), and 0 in a row of nothing but -inf. The difference is rounded, and its exponential off by as much:
// what the subtraction lost is put back where it would be seen.
template <class Dx, class C>
__device__ __forceinline__ C logsumexp_gradient(C dy, C x, C lse) {
    const C difference = x - lse;
    if constexpr (sizeof(Dx) == 2 && kSame<C, float>) return lse == -kInfinity<C> ? C(0) : dy * exp_for<Dx>(difference);
    const C back = difference - x;
    const C lost = (x - (difference - back)) - (lse + back);
    const C e = exp(difference);
    if (lse == -kInfinity<C>) return C(0);
    return dy * (lost == lost ? fma(e, lost, e) : e);  // nothing is lost of an infinite difference
}

}  // namespace onepass::cuda
