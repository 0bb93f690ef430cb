// A row is handled by one block, which keeps a running maximum and a sum relative to it: one read for both, a second
// read to write the result, none for a logsumexp. For rows that no memory of a multiprocessor holds.
//
// The recurrence is Milakov and Gimelshein's online softmax. Here it takes some elements at a time: their maximum
// first, so that the sum is rescaled once for all of them.
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

// RowState (row_state.h) of what one thread has seen of N columns, or of a row: 1. Sums are in units of 2^kBias, like
// every sum of exponentials, and keep what their additions lose.
//
// Threads do not merge their states as RowState does, which rounds an exponential and a product in every step: they
// agree on the row's maximum first, and each brings its sum to that once.
template <class V, int N = 1>
class OnlineStates {
   public:
    using C = typename ExpTable<V>::Compute;

    __device__ __forceinline__ OnlineStates() {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            max_[i] = kLowest<C>;
            sum_[i] = Sum<C>::identity();
        }
    }

    // Adds kCount elements to each. Without a branch: of 32 lanes, one or another meets a new maximum at most steps.
    template <int kCount>
    __device__ __forceinline__ void push(const C (&x)[kCount][N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            C top = max_[i];
#pragma unroll
            for (int k = 0; k < kCount; ++k) top = Max()(top, x[k][i]);
            sum_[i].scale(exp_of_drop<V>(max_[i] - top));
            max_[i] = top;

            constexpr int kTerms = kCount < kGroup ? kCount : kGroup;
            static_assert(kCount % kTerms == 0);
            const ExponentialBelow<V> exponential{top};
#pragma unroll
            for (int first = 0; first < kCount; first += kTerms) {
                C terms[kTerms];
#pragma unroll
                for (int k = 0; k < kTerms; ++k) terms[k] = exponential(x[first + k][i]);
                sum_[i].add(sum_of(terms));
            }
        }
    }

    // Of a row.
    template <int kCount>
    __device__ __forceinline__ void push(const C (&x)[kCount]) {
        C of_row[kCount][N];
        static_assert(N == 1);
#pragma unroll
        for (int k = 0; k < kCount; ++k) of_row[k][0] = x[k];
        push(of_row);
    }

    __device__ __forceinline__ C max(int i) const {
        return max_[i] == kLowest<C> && sum_[i].high < C(1) ? -kInfinity<C> : max_[i];
    }
    __device__ __forceinline__ Sum<C> sum(int i) const { return sum_[i]; }

    // The sum relative to the row's maximum. Where the two are equal, as where nothing but -inf was seen, it stays.
    __device__ __forceinline__ Sum<C> sum_at(int i, C row_max) const {
        Sum<C> sum = sum_[i];
        if (max(i) != row_max) sum.scale(exp(max(i) - row_max));
        return sum;
    }

   private:
    static constexpr int kGroup = 8;  // terms that are added up plainly: in pairs, they lose what three additions do

    C max_[N];  // the lowest number for -inf, which may then be subtracted from -inf
    Sum<C> sum_[N];
};

// Adds what a thread of a block has of a row, or of a slice of it, that is read once. Packs are asked for when the
// places of those before them are free, so that some are under way all the time; what only some lanes of a warp have
// comes first of all.
template <class Rows, class Row>
__device__ __forceinline__ void push_all(OnlineStates<typename Rows::V>& mine, const Row& row) {
    using C = typename Rows::C;
    using Waiting = typename Rows::Waiting;
    constexpr int N = Rows::N, kThreads = Rows::kThreads;
    // Looked at together: of one small pack after the other, a thread waits for its own sum.
    constexpr int kTogether = sizeof(C) == 4 && N <= 4 ? 2 : 1;
    constexpr int kGroups = kInFlight / kTogether / (sizeof(C) / 4);  // doubles leave registers for half as many
    const int thread = static_cast<int>(threadIdx.x), last_lane = thread | (kWarpLanes - 1);
    const auto pack_of = [&](int group, int k) {
        return static_cast<int64>(group * kTogether + k) * kThreads + thread;
    };
    const auto ask = [&](int group, int k, Waiting& to) { row.reader.ask(row.cut.pack_column(pack_of(group, k)), to); };
    const auto ask_for = [&](int group, Waiting(&to)[kTogether]) {
#pragma unroll
        for (int k = 0; k < kTogether; ++k) ask(group, k, to[k]);
    };
    // The first so many of these packs. (Told by a lambda which of them are there, NVRTC 13.0 crashes.)
    const auto push = [&](const Waiting(&packs)[kTogether], int present) {
        C x[kTogether * N];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
            C of_pack[N];
            if (k < present) packs[k].get(of_pack);
#pragma unroll
            for (int i = 0; i < N; ++i) x[k * N + i] = k < present ? of_pack[i] : -kInfinity<C>;
        }
        mine.push(x);
    };
    const int64 beyond = row.cut.packs - 1 - last_lane - (kTogether - 1) * kThreads;
    const int groups = beyond < 0 ? 0 : static_cast<int>(beyond / (kTogether * kThreads)) + 1;  // of every lane
    int rest = 0;  // packs that this thread has beside those
#pragma unroll
    for (int k = 0; k < kTogether; ++k) rest += pack_of(groups, k) < row.cut.packs;

    static_assert(decltype(row.cut)::kMostEdges <= kThreads);
    const bool has_edge = thread < row.cut.edges();
    C edge[1] = {-kInfinity<C>};
    if (has_edge) edge[0] = row.reader.one(row.cut.edge_column(thread));
    Waiting left[kTogether], ring[kGroups][kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
        if (k < rest) ask(groups, k, left[k]);
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        if (g < groups) ask_for(g, ring[g]);
    }
    for (int group = 0; group < groups; group += kGroups) {
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
            if (group + g >= groups) break;
            push(ring[g], kTogether);
            if (group + g + kGroups < groups) ask_for(group + g + kGroups, ring[g]);
        }
    }
    if (rest > 0) push(left, rest);
    if (has_edge) mine.push(edge);
}

// The same; what is read again has no registers for that.
template <class Rows, bool kReadAgain, class Row>
__device__ __forceinline__ void push_row(OnlineStates<typename Rows::V>& mine, const Row& row) {
    if constexpr (kReadAgain) {
        for_each<Rows::kThreads, Rows::N>(row, threadIdx.x, [&](int64, const auto& values) { mine.push(values); });
    } else {
        push_all<Rows>(mine, row);
    }
}

// The sum relative to the anchor that results of `Op` want, from that relative to the maximum.
template <class Op, class V, class C>
__device__ __forceinline__ Sum<C> anchored(Sum<C> sum, C max, const ExponentialOf<Op, V>& exponential) {
    if constexpr (!Op::kExact) sum.scale(exponential(max) * ExpTable<V>::kUnbias);
    return sum;
}

// What is read once with 64 registers, doubles and what is read again with as many as it takes: told no number, ptxas
// spills to make room for another block.
template <class Op, class In, class Out, Online kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, Op::kElementwise || kSame<Compute<In, Out>, double>
                                                      ? 1
                                                      : blocks_of_1024(kShape.threads))
    online(const __grid_constant__ Job<kShape.axes, Load, Store> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using Reduce = BlockReduce<kShape.threads>;
    constexpr int T = kShape.threads;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);

    for (int64 r = blockIdx.x; r < job.rows; r += gridDim.x) {
        const auto row = Rows::at(job, r);
        OnlineStates<typename Rows::V> mine;
        push_row<Rows, Op::kElementwise>(mine, row);
        const auto max = reduce(mine.max(0), Max());
        const auto sum = total_of<Op>(mine.sum_at(0, max), reduce);

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
