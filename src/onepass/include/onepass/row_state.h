// The state of an online softmax: sum over the row of exp(x) = exp(m) * d.
//
// m is any anchor near the maximum of what was seen (the maximum itself, or a nearby power of two in log space),
// d the sum of exp(x - m). An empty state has m = -inf and d = 0, and merges with anything without making a NaN.
// Source of the recurrence: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
//
// No include: the CPU engine (g++, clang) and the run-time compiler of the GPU read the same file. They provide
// exp(T) and log(T) for the T they use.
#pragma once

#ifdef __CUDACC__
#define ONEPASS_HD __host__ __device__ __forceinline__
#else
#define ONEPASS_HD inline
#endif

#ifndef ONEPASS_ISA
#define ONEPASS_ISA generic
#endif

namespace onepass {
// One copy of every inline function per instruction set: the linker must never fold an AVX-512 one into the baseline.
inline namespace ONEPASS_ISA {

template <class T>
struct RowState {
    T m;
    T d;

    // -inf by its bits: the GPU's compiler has no name for it.
    static ONEPASS_HD RowState identity() {
        return {static_cast<T>(__builtin_bit_cast(double, 0xfff0000000000000ull)), static_cast<T>(0)};
    }

    // Adds one element. NaN goes into d, which every later merge keeps.
    ONEPASS_HD void push(T x) { merge({x, x == x ? static_cast<T>(1) : x}); }

    // Adds another state. Equal anchors are compared first: that is the common case, it is exact, and it keeps
    // (-inf) - (-inf) and inf - inf out of the exponent.
    ONEPASS_HD void merge(RowState other) {
        if (other.m == m || other.m != other.m) {
            d += other.d;
        } else if (other.m > m) {
            d = (d == static_cast<T>(0) ? static_cast<T>(0) : d * exp(m - other.m)) + other.d;
            m = other.m;
        } else {
            d += other.d == static_cast<T>(0) ? static_cast<T>(0) : other.d * exp(other.m - m);
        }
    }

    // logsumexp of everything pushed: -inf for an empty row or a row of -inf, +inf if there was one, NaN if there was
    // one.
    ONEPASS_HD T lse() const { return m + log(d); }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
