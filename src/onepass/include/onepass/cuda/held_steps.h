// The steps of a tile that a thread holds in registers.
//
// Pairs of 16 bits wait as they were read, in half of the registers of what they are widened to, and are widened, and
// their exponentials computed, each time they are needed: an ex2.approx costs less than to have half as much on its way
// from memory.
#pragma once

#include "pack.h"
#include "row_ops.h"

namespace onepass::cuda {

template <class Op, class V, class In, int kHeld, int kPack, bool kDirect>
class HeldSteps {
   public:
    static constexpr int N = kPack;
    using C = typename ExpTable<V>::Compute;
    static constexpr bool kNarrow = kInPairs<In, N> && kSame<V, Coarse> && kDirect;
    // Exponentials take the place of what they are of.
    static constexpr bool kKeeps = Op::kKeepsExponentials && !kNarrow;

    // The last step may be missing: it counts nothing.
    __device__ __forceinline__ void clear_last() {
        C nothing[N];
#pragma unroll
        for (C& x : nothing) x = -kInfinity<C>;
        put(kHeld - 1, nothing);
    }

    template <class Part, class Offset>
    __device__ __forceinline__ void load(const Part& part, int k, int64 step, const Offset& at) {
        if constexpr (kNarrow) {
            steps_[k] = load_words<N>(static_cast<const In*>(part.job.x) + at.x);
        } else {
            part.load(step, at.x, steps_[k].at);
        }
    }

    __device__ __forceinline__ void get(int k, C (&to)[N]) const {
        if constexpr (kNarrow) {
            widen_words<In>(steps_[k], to);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = steps_[k].at[i];
        }
    }

    __device__ __forceinline__ void maxima(C (&max)[N]) {
        get(0, max);
#pragma unroll
        for (int k = 1; k < kHeld; ++k) {
            C x[N];
            get(k, x);
#pragma unroll
            for (int i = 0; i < N; ++i) max[i] = Max()(max[i], x[i]);
        }
        stay();
    }

    // Column i becomes f of it, where it can be changed.
    template <class F>
    __device__ __forceinline__ void transform(int i, const F& f) {
        if constexpr (!kNarrow) {
#pragma unroll
            for (int k = 0; k < kHeld; ++k) steps_[k].at[i] = f(steps_[k].at[i]);
        }
    }

    // The sums of exponentials; kKeeps: they take the steps' place.
    template <class Exponential>
    __device__ __forceinline__ void add_up(const Exponential (&exponential)[N], Sum<C> (&sum)[N]) {
        if constexpr (kNarrow) {
#pragma unroll
            for (Sum<C>& s : sum) s = Sum<C>::identity();
#pragma unroll
            for (int first = 0; first < kHeld; first += kGroup) {
                C terms[N][kGroup];
#pragma unroll
                for (int k = 0; k < kGroup; ++k) {
                    C x[N];
                    if (first + k < kHeld) get(first + k, x);
#pragma unroll
                    for (int i = 0; i < N; ++i) terms[i][k] = first + k < kHeld ? exponential[i](x[i]) : C(0);
                }
#pragma unroll
                for (int i = 0; i < N; ++i) add_to<Op, V>(sum[i], sum_of(terms[i]));
            }
            stay();
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                C terms[kHeld];
#pragma unroll
                for (int k = 0; k < kHeld; ++k) {
                    terms[k] = exponential[i](steps_[k].at[i]);
                    if constexpr (kKeeps) steps_[k].at[i] = terms[k];
                }
                sum[i] = sum_in_groups<Op::kExact ? kGroup : kHeld>(terms);
            }
        }
    }

   private:
    static constexpr int kGroup = 4;
    struct Wide {
        C at[N];
    };

    __device__ __forceinline__ void stay() {
        if constexpr (kNarrow) {
#pragma unroll
            for (auto& step : steps_) stay_narrow<In, N>(step);
        }
    }

    __device__ __forceinline__ void put(int k, const C (&values)[N]) {
        if constexpr (kNarrow) {
            steps_[k] = narrow_words<In>(values);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) steps_[k].at[i] = values[i];
        }
    }

    choose<kNarrow, typename Pack<In, N>::Words, Wide> steps_[kHeld];
};

}  // namespace onepass::cuda
