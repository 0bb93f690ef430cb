// The largest element of packs as they lie in memory: two of 16 bits are compared at a time, and none is widened.
#pragma once

#include "pack.h"
#include "reduce.h"

namespace onepass::cuda {

template <class T, class C, bool kPairs = sizeof(T) == 2 && ptx::kComparesPairs>
class PackMax {
   public:
    template <int N>
    __device__ __forceinline__ void push(const typename Pack<T, N>::Words& words) {
        C values[N];
        widen_words<T>(words, values);
        push(values);
    }
    template <int N>
    __device__ __forceinline__ void push(const C (&values)[N]) {
        for (C x : values) max_ = Max()(max_, x);
    }
    __device__ __forceinline__ C value() const { return max_; }

   private:
    C max_ = -kInfinity<C>;
};

template <class T, class C>
class PackMax<T, C, true> {
   public:
    template <int N>
    __device__ __forceinline__ void push(const typename Pack<T, N>::Words& words) {
        if constexpr (kInPairs<T, N>) {
            const auto pairs = __builtin_bit_cast(Pairs<N>, words);
            pair_ = largest(pair_, in_pairs(pairs.at, [](unsigned a, unsigned b) { return largest(a, b); }));
        } else {
            one_.template push<N>(words);
        }
    }
    template <int N>
    __device__ __forceinline__ void push(const C (&values)[N]) {
        one_.push(values);
    }
    __device__ __forceinline__ C value() const {
        C pair[2];
        widen_words<T>(__builtin_bit_cast(typename Pack<T, 2>::Words, pair_), pair);
        return Max()(one_.value(), Max()(pair[0], pair[1]));
    }

   private:
    static __device__ __forceinline__ unsigned largest(unsigned a, unsigned b) {
        return kSame<T, half> ? ptx::max_half_pair(a, b) : ptx::max_bfloat16_pair(a, b);
    }

    unsigned pair_ = kMinusInfinity<T>.bits * 0x10001u;
    PackMax<T, C, false> one_;
};

}  // namespace onepass::cuda
