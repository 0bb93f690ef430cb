// What the threads of a block find out about the columns of a tile: their maxima and their sums of exponentials.
#pragma once

#include "online.h"
#include "reduce.h"
#include "row_ops.h"
#include "tile_steps.h"

namespace onepass::cuda {

// total_of for columns: what the additions between threads lose counts in a logarithm only.
template <class Op, class C, int N, class Reduce>
__device__ __forceinline__ void total_of_columns(Sum<C> (&sum)[N], Reduce& reduce) {
    if constexpr (Op::kExact) {
        reduce(sum, Merge());
    } else {
        C value[N];
#pragma unroll
        for (int i = 0; i < N; ++i) value[i] = sum[i].value();
        reduce(value, Add());
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] = {value[i], C(0)};
    }
}

// Of columns that wait in shared memory, in the order in which a thread put them there. kKeep: their exponentials,
// relative to the columns' maxima, take their place. kMasked: as exponential_of has it.
template <class Op, class V, bool kMasked, bool kKeep, int kAhead, class Part, class Staged, class C, int N,
          class Reduce>
__device__ __forceinline__ void staged_totals(const Part& part, const Staged& staged, int64 begin, int64 end,
                                              Reduce& reduce, C (&max)[N], Sum<C> (&sum)[N]) {
    const auto read = [&](int64 step, C(&to)[N]) { staged.read(step, to); };
#pragma unroll
    for (C& m : max) m = -kInfinity<C>;
    for_each_step<C, kAhead>(part, begin, end, read, [&](int64, C(&x)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) max[i] = Max()(max[i], x[i]);
    });
    reduce(max, Max());
    ExponentialOf<Op, V> exponential[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        exponential[i] = exponential_of<Op, V, kMasked>(max[i]);
        sum[i] = Sum<C>::identity();
    }
    for_each_group<C, kAhead>(part, begin, end, read, [&]<int kCount>(int64 step, C(&x)[kCount][N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            C terms[kCount];
#pragma unroll
            for (int k = 0; k < kCount; ++k) x[k][i] = terms[k] = exponential[i](x[k][i]);
            sum[i].add(sum_of(terms));
        }
        if constexpr (kKeep) {
#pragma unroll
            for (int k = 0; k < kCount; ++k) staged.keep(step + k * Part::kSteps, x[k]);
        }
    });
    total_of_columns<Op>(sum, reduce);
}

// Adds a thread's steps to what it has seen of its columns.
template <int kAhead, class V, int N, class Part>
__device__ __forceinline__ void push_steps(OnlineStates<V, N>& mine, const Part& part, int64 begin, int64 end) {
    using C = typename OnlineStates<V>::C;
    const auto read = [&](int64 step, C(&to)[N]) { part.load(step, to); };
    for_each_filled_group<C, kAhead>(part, begin, end, -kInfinity<C>, read, [&](const auto& x) { mine.push(x); });
}

// Of columns that wait nowhere, from the running maxima and sums of threads.
template <class Op, class V, bool kMasked, class C, int N, class Reduce>
__device__ __forceinline__ void totals_of(const OnlineStates<V, N>& mine, Reduce& reduce, C (&max)[N],
                                          Sum<C> (&sum)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) max[i] = mine.max(i);
    reduce(max, Max());
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = mine.sum_at(i, max[i]);
    total_of_columns<Op>(sum, reduce);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] = anchored<Op, V>(sum[i], max[i], exponential_of<Op, V, kMasked>(max[i]));
}

template <class Op, class V, bool kMasked, int kAhead, class Part, class C, int N, class Reduce>
__device__ __forceinline__ void online_totals(const Part& part, int64 begin, int64 end, Reduce& reduce, C (&max)[N],
                                              Sum<C> (&sum)[N]) {
    OnlineStates<V, N> mine;
    // As many bytes of 16-bit elements under way as of others: logsumexp of 20000x2000 bfloat16, dim 0, 46 us for 62.
    constexpr bool kMore = N == 1 || (N <= 4 && Part::kElementBytes == 2 && kAhead == kInFlight);
    push_steps<kMore ? 2 * kAhead : kAhead>(mine, part, begin, end);
    totals_of<Op, V, kMasked>(mine, reduce, max, sum);
}

// Of a plain reduction: columns that are read once. A thread asks for 16 elements at a time, or for kWide steps.
template <class Op, class In, int kWide = kInFlight, class Part, class State, int N>
__device__ __forceinline__ void push_columns(const Part& part, int64 begin, int64 end, State (&state)[N]) {
    using C = typename Part::C;
    constexpr int kAhead = N < 4 ? 16 / N : kWide;
#pragma unroll
    for (State& s : state) s = Op::template identity<C>();
    const auto read = [&](int64 step, C(&to)[N]) { part.load(step, to); };
    const auto push = [&]<int kCount>(const C(&x)[kCount][N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            C of_column[kCount];
#pragma unroll
            for (int k = 0; k < kCount; ++k) of_column[k] = x[k][i];
            Op::template push<In>(state[i], of_column);
        }
    };
    for_each_filled_group<C, kAhead>(part, begin, end, Op::template fill<C>(), read, push);
}

}  // namespace onepass::cuda
