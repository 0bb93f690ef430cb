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

// exp_of(x) * factor is a row's factor times exp(x), x <= 0, as much of it as a result of type Dx shows: 16 bits show
// nothing of what ex2.approx and the rounding of x * log2e lose. ex2.approx takes subnormal numbers for 0, of which
// float16 shows none; bfloat16 does, so that its exponentials are brought up and the factor down by as much, unless the
// product is 0 anyway.
template <class Dx, class C>
class TimesExp {
    static constexpr bool kCoarse = sizeof(Dx) == 2 && kSame<C, float>;
    static constexpr bool kBringsUp = kCoarse && !kSame<Dx, half>;

   public:
    C factor;

    explicit __device__ __forceinline__ TimesExp(C by) : factor(by), up_(0) {
        if constexpr (kBringsUp) {
            const bool up = fabs(by) >= 0x1p-102f;
            factor = up ? by * 0x1p-24f : by;
            up_ = up ? 24 : 0;
        }
    }

    __device__ __forceinline__ C exp_of(C x) const {
        if constexpr (!kCoarse) {
            return exp(x);
        } else {
            return ptx::exp2_approx(fma(x, ExpTable<float>::kLog2E, up_));
        }
    }

   private:
    C up_;
};

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
        const TimesExp<Dx, C> times(sum);  // the same for all of a row
        return fma(-times.exp_of(y), times.factor, dy);
    }
};

// dx = dy * exp(x - lse) in a row, and 0 in one of nothing but -inf. The difference is rounded, and its exponential off
// by as much: what the subtraction lost is put back where it would be seen.
template <class Dx, class C>
class LogSumExpRow {
   public:
    // A row without a number is one of zeros: asked once here, and not of every element.
    __device__ __forceinline__ LogSumExpRow(C dy, C lse)
        : dy_(lse == -kInfinity<C> ? C(0) : dy), lse_(lse == -kInfinity<C> ? kInfinity<C> : lse) {}

    __device__ __forceinline__ C gradient(C x) const {
        const C difference = x - lse_;
        const C e = dy_.exp_of(difference);
        if constexpr (sizeof(Dx) == 2 && kSame<C, float>) return dy_.factor * e;
        const C back = difference - x;
        const C lost = (x - (difference - back)) - (lse_ + back);
        return dy_.factor * (lost == lost ? fma(e, lost, e) : e);  // nothing is lost of an infinite difference
    }

   private:
    TimesExp<Dx, C> dy_;
    C lse_;
};

}  // namespace onepass::cuda
