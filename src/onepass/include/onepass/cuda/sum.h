// A sum that keeps what its additions lose.
//
// A thread adds thousands of terms one after the other, all of one sign: a plain float32 sum would drift by as many
// ULP. The correction costs six operations per pack of terms, beside the forty that a pack of exponentials takes.
#pragma once

#include "types.h"

namespace onepass::cuda {

template <class C>
struct Sum {
    C high;
    C low;  // what was lost, itself a plain sum

    static __device__ __forceinline__ Sum identity() { return {C(0), C(0)}; }

    // Knuth's TwoSum: sum + lost is high + x exactly.
    __device__ __forceinline__ void add(C x) {
        const C sum = high + x;
        const C back = sum - high;
        low += (high - (sum - back)) + (x - back);
        high = sum;
    }

    __device__ __forceinline__ void merge(Sum other) {
        const C rest = low + other.low;
        low = C(0);
        add(other.high);
        low += rest;
    }

    __device__ __forceinline__ void scale(C factor) {
        high *= factor;
        low *= factor;
    }

    // An infinite sum has lost NaN.
    __device__ __forceinline__ C value() const { return low == low ? high + low : high; }
};

// A few terms combined in pairs: what waits for what, and the error of additions, is the logarithm of N.
template <int N, class C, class Combine>
__device__ __forceinline__ C in_pairs(const C (&terms)[N], const Combine& combine) {
    if constexpr (N == 1) {
        return terms[0];
    } else {
        constexpr int kHalf = (N + 1) / 2;
        C pairs[kHalf];
#pragma unroll
        for (int i = 0; i < kHalf; ++i) pairs[i] = i + kHalf < N ? combine(terms[i], terms[i + kHalf]) : terms[i];
        return in_pairs(pairs, combine);
    }
}

template <int N, class C>
__device__ __forceinline__ C sum_of(const C (&terms)[N]) {
    return in_pairs(terms, [](C a, C b) { return a + b; });
}

// The sum of a few terms that are at hand together: plainly in pairs within groups of kGroup, which takes one addition
// a term, and as a Sum from group to group.
template <int kGroup, int kCount, class C>
__device__ __forceinline__ Sum<C> sum_in_groups(C (&terms)[kCount]) {
#pragma unroll
    for (int apart = 1; apart < kGroup; apart *= 2) {
#pragma unroll
        for (int i = 0; i + apart < kCount; i += 2 * apart) {
            if (i % kGroup + apart < kGroup) terms[i] += terms[i + apart];
        }
    }
    Sum<C> sum{terms[0], C(0)};
#pragma unroll
    for (int i = kGroup; i < kCount; i += kGroup) sum.add(terms[i]);
    return sum;
}

}  // namespace onepass::cuda
