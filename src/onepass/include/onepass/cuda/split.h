// A row is handled by several blocks, all of them at work at once: few rows keep the whole GPU busy, and a row may be
// as long as all memory on the chip.
//
// `split`: each block's slice waits in its registers or in its shared memory; x is read once, y written once. While a
// block waits for what the others of its team have found, other blocks of the same multiprocessor, which have other
// rows, load and store. `stream`: the slice waits nowhere; x is read a second time, backwards, to write the result.
// `split_reduce`: sum, mean, amax and amin.
#pragma once

#include "block_smem.h"
#include "online.h"
#include "row_reduce.h"
#include "slice.h"

namespace onepass::cuda {

struct Split {
    int axes;      // kept axes of the job
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int packs;     // that a thread holds of a slice; 0: it waits in shared memory
    int slots;     // states of other blocks that a thread looks after
    int pack;      // elements per access
    Alignment alignment;
};

// Of a slice or a row: its maximum and its sum of exponentials. One number is enough for a sum that becomes a quotient.
template <class C, bool kExact>
struct Total {
    C max;
    Sum<C> sum;
};
template <class C>
struct Total<C, false> {
    C max;
    C sum;
};

// Merges the totals that the lanes of a warp have: every lane gets the row's. The sums of slices are brought to the
// row's anchor by the quotient of one exponential at both anchors, which is a power of two unless they are exact.
template <class Op, class V, bool kMasked>
struct MergeTotals {
    using C = typename ExpTable<V>::Compute;
    using State = Total<C, Op::kExact>;

    static __device__ __forceinline__ State identity() {
        if constexpr (Op::kExact) return {-kInfinity<C>, Sum<C>::identity()};
        else return {-kInfinity<C>, C(0)};
    }

    // The exponential of a slice. Of one without a number in it: relative to 0; its sum will not count.
    static __device__ __forceinline__ Exponential<V> exponential_of_slice(C max) {
        return exponential_of<Op, V, true>(max);
    }

    static __device__ __forceinline__ C to_row(C slice_max, const Exponential<V>& row) {
        if (slice_max == -kInfinity<C>) return C(0);
        return row(slice_max) / exponential_of_slice(slice_max)(slice_max);
    }

    template <int kSlots>
    __device__ __forceinline__ State operator()(const State (&states)[kSlots]) const {
        C max = states[0].max;
#pragma unroll
        for (int s = 1; s < kSlots; ++s) max = Max()(max, states[s].max);
        max = all_reduce_lanes<kWarpLanes>(max, Max());
        const auto row = exponential_of<Op, V, kMasked>(max);
        State total = identity();
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
            const C factor = to_row(states[s].max, row);
            if constexpr (Op::kExact) {
                Sum<C> sum = states[s].sum;
                sum.scale(factor);
                total.sum.merge(sum);
            } else {
                total.sum += states[s].sum * factor;
            }
        }
        total.max = max;
        if constexpr (Op::kExact) total.sum = all_reduce_lanes<kWarpLanes>(total.sum, Merge());
        else total.sum = all_reduce_lanes<kWarpLanes>(total.sum, Add());
        return total;
    }

    static __device__ __forceinline__ State pack(C max, Sum<C> sum) {
        if constexpr (Op::kExact) return {max, sum};
        else return {max, sum.value()};
    }
    static __device__ __forceinline__ Sum<C> sum_of(const State& state) {
        if constexpr (Op::kExact) return state.sum;
        else return {state.sum, C(0)};
    }
};

// The rows of a team, one after the other: calls visit(row, whether it is the last).
template <class Job, class Visit>
__device__ __forceinline__ void for_each_row(const Job& job, const TeamPlace& place, Visit&& visit) {
    for (int64 r = place.team; r < job.rows; r += place.teams) visit(r, r + place.teams >= job.rows);
}

__device__ __forceinline__ int64 exchanges_of(int64 rows, const TeamPlace& place) {
    return (rows + place.teams - 1) / place.teams;
}

template <class Op, class In, class Out, Split kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    split(const __grid_constant__ TeamJob<kShape.axes, Load, Store> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store>;
    using C = typename Rows::C;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Totals = MergeTotals<Op, typename Rows::V, Rows::kMasked>;
    using Reduce = BlockReduce<kShape.threads>;
    using Others = Exchange<typename Totals::State, kShape.threads, kShape.slots>;
    constexpr int T = kShape.threads;
    constexpr bool kHeld = kShape.packs > 0;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);
    const TeamPlace place(job);
    Others exchange(job, place, team_scratch, exchanges_of(job.rows, place));
    unsigned leaving = 0;

    for_each_row(job, place, [&](int64 r, bool last) {
        const auto slice = Slice<Rows>::at(job, r, job, place.rank);
        C max = -kInfinity<C>;
        auto sum = Sum<C>::identity();
        const auto find_max = [&](auto& values) {
#pragma unroll
            for (C x : values) max = Max()(max, x);
        };
        const auto row_total = [&] {
            const auto total = exchange(Totals::pack(max, sum), Totals::identity(), Totals());
            if (last) leaving = exchange.leave();
            max = total.max;
            return Rows::finish(max, Rows::exponential_of(max), Totals::sum_of(total));
        };

        if constexpr (kHeld) {
            HeldSlice<Kept, C, T, kShape.packs, typename Rows::RowCut> held;
            held.load(slice.reader, slice.cut, threadIdx.x);
            held.for_all(find_max);
            max = reduce(max, Max());
            const auto exponential = Totals::exponential_of_slice(max);
            held.for_all([&](auto& values) { sum.add(sum_of_each(values, exponential)); });
            sum = total_of<Op>(sum, reduce);
            const auto result = row_total();
            held.for_present(slice.cut, threadIdx.x, [&](int64 column, auto& values) {
                write_results(slice.writer, column, values, result);
            });
        } else {
            constexpr int kAhead = T < 1024 ? kInFlight : 2;  // 1024 threads have 64 registers each
            const KeptRow<Kept, C, typename Rows::RowCut> kept{{reinterpret_cast<Kept*>(memory), slice.cut}, slice.cut};
            for_each<T, kShape.pack>(slice, threadIdx.x, [&](int64 column, auto& values) {
                kept.keep(column, values);
                find_max(values);
            });
            max = reduce(max, Max());
            const auto exponential = Totals::exponential_of_slice(max);
            for_each<T, kShape.pack, kAhead>(kept, threadIdx.x,
                                   [&](int64, auto& values) { sum.add(sum_of_each(values, exponential)); });
            sum = total_of<Op>(sum, reduce);
            const auto result = row_total();
            for_each<T, kShape.pack, kAhead>(kept, threadIdx.x, [&](int64 column, auto& values) {
                write_results(slice.writer, column, values, result);
            });
        }
    });
    exchange.left(leaving);
}

template <class Op, class In, class Out, Split kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    stream(const __grid_constant__ TeamJob<kShape.axes, Load, Store> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store>;
    using C = typename Rows::C;
    using V = typename Rows::V;
    using Totals = MergeTotals<Op, V, Rows::kMasked>;
    using Reduce = BlockReduce<kShape.threads>;
    using Others = Exchange<typename Totals::State, kShape.threads, kShape.slots>;
    constexpr int T = kShape.threads;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    Reduce reduce(scratch);
    const TeamPlace place(job);
    Others exchange(job, place, team_scratch, exchanges_of(job.rows, place));
    unsigned leaving = 0;

    for_each_row(job, place, [&](int64 r, bool last) {
        const auto slice = Slice<Rows>::at(job, r, job, place.rank);
        OnlineState<V> mine;
        for_each<T, N>(slice, threadIdx.x, [&](int64, auto& values) { mine.push(values); });
        C max = reduce(mine.m, Max());
        auto sum = total_of<Op>(mine.sum_at(max), reduce);
        if (max != -kInfinity<C>) sum = anchored<Op, V>(sum, max, Totals::exponential_of_slice(max));
        const auto total = exchange(Totals::pack(max, sum), Totals::identity(), Totals());
        if (last) leaving = exchange.leave();
        const auto result = Rows::finish(total.max, Rows::exponential_of(total.max), Totals::sum_of(total));
        if constexpr (Op::kElementwise) {
            for_each_back<T, N>(slice, threadIdx.x, [&](int64 column, auto& values) {
                write_results(slice.writer, column, values, result);
            });
        } else {
            if (place.rank == 0 && threadIdx.x == 0) slice.writer.one(0, result);
        }
    });
    exchange.left(leaving);
}

// Merges the states that the lanes of a warp have.
template <class State, class Combine>
struct MergeStates {
    template <int kSlots>
    __device__ __forceinline__ State operator()(const State (&states)[kSlots]) const {
        State total = states[0];
#pragma unroll
        for (int s = 1; s < kSlots; ++s) total = Combine()(total, states[s]);
        return all_reduce_lanes<kWarpLanes>(total, Combine());
    }
};

template <class Op, class In, class Out, Split kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    split_reduce(const __grid_constant__ TeamJob<kShape.axes, Load, Store> job) {
    using Rows = Rows<Reduction, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store>;
    using C = typename Rows::C;
    using State = typename Op::template State<C>;
    using Reduce = BlockReduce<kShape.threads>;
    using Others = Exchange<State, kShape.threads, kShape.slots>;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    Reduce reduce(scratch);
    const TeamPlace place(job);
    Others exchange(job, place, team_scratch, exchanges_of(job.rows, place));
    unsigned leaving = 0;

    for_each_row(job, place, [&](int64 r, bool last) {
        const auto slice = Slice<Rows>::at(job, r, job, place.rank);
        auto state = Op::template identity<C>();
        for_each<kShape.threads, kShape.pack>(slice, threadIdx.x,
                                              [&](int64, auto& values) { Op::template push<In>(state, values); });
        state = reduce(state, typename Op::Combine());
        state = exchange(state, Op::template identity<C>(), MergeStates<State, typename Op::Combine>());
        if (last) leaving = exchange.leave();
        if (place.rank == 0 && threadIdx.x == 0) slice.writer.one(0, Op::finish(state, job.length));
    });
    exchange.left(leaving);
}

}  // namespace onepass::cuda
