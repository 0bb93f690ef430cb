// A row is handled by one block, which keeps a running maximum and a sum relative to it: one read for both, a second
// read to write the result, none for a logsumexp. For rows that no memory of a multiprocessor holds.
//
// The recurrence is Milakov and Gimelshein's online softmax. Here it takes a pack at a time: the maximum of the pack
// first, so that the sum is rescaled at most once for all of it, and then only where the maximum has risen.
#pragma once

#include "reduce.h"
#include "row.h"

namespace onepass::cuda {

struct Online {
    int axes;     // kept axes of the job
    int threads;  // of a block
    int pack;     // elements per access
    Alignment alignment;
};

// RowState (row_state.h) of what one thread has seen, with the sum kept as precisely as by one that knew its maximum.
// d counts in units of 2^kBias, like every sum of exponentials.
//
// Threads do not merge their states as RowState does, which rounds an exponential and a product in every step: they
// agree on the row's maximum first, and each brings its sum to that once.
template <class V>
struct OnlineState {
    using C = typename ExpTable<V>::Compute;
    C m = -kInfinity<C>;
    Sum<C> d{C(0), C(0)};

    template <int N>
    __device__ __forceinline__ void push(C (&x)[N]) {
        C top = m;
#pragma unroll
        for (C value : x) top = Max()(top, value);
        if (fabs(top) == kInfinity<C>) {  // nothing but -inf yet, or +inf: no exponential tells more
            if (top > m) *this = {top, {C(1), C(0)}};
            return;
        }
        if (top != m) {  // has risen, or is NaN
            d.scale(m == -kInfinity<C> ? C(0) : exp(m - top));
            m = top;
        }
        d.add(sum_of_each(x, Exponential<V>{anchor_at<V, true>(top)}));
    }

    // The sum relative to the row's maximum. Where the two are equal, as where nothing but -inf was seen, it stays.
    __device__ __forceinline__ Sum<C> sum_at(C max) const {
        Sum<C> sum = d;
        if (max != m) sum.scale(exp(m - max));
        return sum;
    }
};

// The sum relative to the anchor that results of `Op` want, from that relative to the maximum.
template <class Op, class V, class C>
__device__ __forceinline__ Sum<C> anchored(Sum<C> sum, C max, const Exponential<V>& exponential) {
    if constexpr (!Op::kExact) sum.scale(exponential(max) * ExpTable<V>::kUnbias);
    return sum;
}

// One block at least: told no number, ptxas spills to make room for another.
template <class Op, class In, class Out, Online kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, 1) online(const __grid_constant__ Job<kShape.axes, Load, Store> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using Reduce = BlockReduce<kShape.threads>;
    constexpr int T = kShape.threads;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);

    for (int64 r = blockIdx.x; r < job.rows; r += gridDim.x) {
        const auto row = Rows::at(job, r);
        OnlineState<typename Rows::V> mine;
        constexpr int kLeft = Op::kElementwise ? 1 : kInFlight - 1;
        for_each<T, N, kInFlight, kLeft>(row, threadIdx.x, [&](int64, auto& values) { mine.push(values); });
        const auto max = reduce(mine.m, Max());
        const auto sum = total_of<Op>(mine.sum_at(max), reduce);

        const auto exponential = Rows::exponential_of(max);
        const auto result = Rows::finish(max, exponential, anchored<Op, typename Rows::V>(sum, max, exponential));
        if constexpr (Op::kElementwise) {
            for_each<T, N>(row, threadIdx.x,
                           [&](int64 column, auto& values) { write_results(row.writer, column, values, result); });
        } else {
            if (threadIdx.x == 0) row.writer.one(0, result);
        }
    }
}

}  // namespace onepass::cuda
