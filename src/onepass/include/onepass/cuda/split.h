// A row is handled by several blocks, all of them at work at once: few rows keep the whole GPU busy, and a row may be
// as long as all memory on the chip.
//
// `split`: each block's slice waits in its registers or in its shared memory; x is read once, y written once. While a
// block waits for what the others of its team have found, other blocks of the same multiprocessor, which have other
// rows, load and store, and its own next slice is on its way to shared memory. `stream`: the slice waits nowhere; x is
// read a second time, backwards, to write the result. `split_reduce`: sum, mean, amax and amin.
#pragma once

#include "online.h"
#include "row_reduce.h"
#include "slice.h"

namespace onepass::cuda {

struct Split {
    int axes;      // kept axes of the job
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int packs;     // that a thread holds of a slice in registers; 0: it waits in shared memory
    int stages;    // slices that there is shared memory for: one, or the next one too
    int slots;     // states of other blocks that a thread looks after
    int pack;      // elements per access
    Alignment alignment;
};

// Of a part of a row: its maximum and its sum of exponentials. One number is enough for a sum that becomes a quotient.
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

// Merges the totals that the lanes of a warp have: every lane gets that of all. Sums are brought to the anchor of all
// by the quotient of one exponential at both anchors, which is a power of two unless they are exact.
template <class Op, class V, bool kMasked>
struct MergeTotals {
    using C = typename ExpTable<V>::Compute;
    using State = Total<C, Op::kExact>;

    static __device__ __forceinline__ State identity() {
        if constexpr (Op::kExact)
            return {-kInfinity<C>, Sum<C>::identity()};
        else
            return {-kInfinity<C>, C(0)};
    }

    // The exponential of a part. Of one without a number in it: relative to 0; its sum will not count.
    static __device__ __forceinline__ Exponential<V> exponential_of_part(C max) {
        return exponential_of<Op, V, true>(max);
    }

    static __device__ __forceinline__ C to_row(C part_max, const Exponential<V>& row) {
        if (part_max == -kInfinity<C>) return C(0);
        return row(part_max) / exponential_of_part(part_max)(part_max);
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
        if constexpr (Op::kExact)
            total.sum = all_reduce_lanes<kWarpLanes>(total.sum, Merge());
        else
            total.sum = all_reduce_lanes<kWarpLanes>(total.sum, Add());
        return total;
    }

    static __device__ __forceinline__ State pack(C max, Sum<C> sum) {
        if constexpr (Op::kExact)
            return {max, sum};
        else
            return {max, sum.value()};
    }
    static __device__ __forceinline__ Sum<C> sum_of(const State& state) {
        if constexpr (Op::kExact)
            return state.sum;
        else
            return {state.sum, C(0)};
    }
};

template <class Op, class In, class Out, Split kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    split(const __grid_constant__ TeamJob<Job<kShape.axes, Load, Store>> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store>;
    using C = typename Rows::C;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Totals = MergeTotals<Op, typename Rows::V, Rows::kMasked>;
    using Others = Exchange<typename Totals::State, kShape.threads, kShape.slots>;
    using Held = HeldSlice<Kept, C, kShape.threads, (kShape.packs > 0 ? kShape.packs : 1), typename Rows::RowCut>;
    using Staged = StagedSlice<Kept, C, kShape.threads, typename Rows::RowCut>;
    // The exponentials wait in the row's place, each thread's relative to the maximum of its own elements.
    constexpr bool kKeep = Op::kKeepsExponentials && kSame<Kept, C>;
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    const TeamPlace place(job);
    Others exchange(job, place, team_scratch);
    unsigned leaving = 0;

    const auto slice_of = [&](int64 r) { return Slice<Rows>::at(job, r, job, place.rank); };
    const auto run = [&](int64 r, auto& waiting, const auto& write_all) {
        C max = -kInfinity<C>;
        waiting.for_all([&](auto& values) {
#pragma unroll
            for (C x : values) max = Max()(max, x);
        });
        const auto own = Totals::exponential_of_part(max);
        auto sum = Sum<C>::identity();
        waiting.template for_all<kKeep>([&](auto& values) {
#pragma unroll
            for (C& x : values) x = own(x);
            sum.add(sum_of(values));
        });
        const auto total = exchange(Totals::pack(max, sum), Totals::identity(), Totals());
        if (r + place.teams >= job.rows) leaving = exchange.leave();
        const auto row = Rows::exponential_of(total.max);
        const auto result = Rows::finish(total.max, row, Totals::sum_of(total));
        if constexpr (kKeep) {
            const C to_row = Totals::to_row(max, row);
            write_all([&](C e) { return result.normalize(e * to_row); });
        } else {
            write_all(result);
        }
    };

    if constexpr (kShape.packs > 0) {
        for (int64 r = place.team; r < job.rows; r += place.teams) {
            const auto slice = slice_of(r);
            Held held;
            held.load(slice.reader, slice.cut, threadIdx.x);
            run(r, held, [&](const auto& result) {
                held.for_present(slice.cut, threadIdx.x, [&](int64 column, auto& values) {
                    write_results(slice.writer, column, values, result);
                });
            });
        }
    } else {
        const int stage_bytes = static_cast<int>(job.slice + Staged::Row::kEdgeRoom / kShape.pack) * kShape.pack *
                                static_cast<int>(sizeof(Kept));
        const auto bring = [&](int64 r, int stage) {
            if (r < job.rows) {
                const auto slice = slice_of(r);
                Staged(memory + stage * stage_bytes, slice.cut).bring(slice);
            }
            ptx::end_group();
        };
        int stage = 0;
        if constexpr (kShape.stages > 1) bring(place.team, 0);
        for (int64 r = place.team; r < job.rows; r += place.teams) {
            if constexpr (kShape.stages > 1) {
                bring(r + place.teams, stage ^ 1);
            } else {
                bring(r, 0);
            }
            ptx::wait_for_copies<kShape.stages - 1>();
            const auto slice = slice_of(r);
            const Staged staged(memory + stage * stage_bytes, slice.cut);
            run(r, staged, [&](const auto& result) {
                staged.for_present(
                    [&](int64 column, auto& values) { write_results(slice.writer, column, values, result); });
            });
            if constexpr (kShape.stages > 1) stage ^= 1;
        }
    }
    exchange.left(leaving, exchanges_of(job.rows, place));
}

template <class Op, class In, class Out, Split kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    stream(const __grid_constant__ TeamJob<Job<kShape.axes, Load, Store>> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store>;
    using C = typename Rows::C;
    using V = typename Rows::V;
    using Totals = MergeTotals<Op, V, Rows::kMasked>;
    using Others = Exchange<typename Totals::State, kShape.threads, kShape.slots>;
    constexpr int T = kShape.threads;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    const TeamPlace place(job);
    Others exchange(job, place, team_scratch);
    unsigned leaving = 0;

    for (int64 r = place.team; r < job.rows; r += place.teams) {
        const auto slice = Slice<Rows>::at(job, r, job, place.rank);
        OnlineState<V> mine;
        for_each<T, N>(slice, threadIdx.x, [&](int64, auto& values) { mine.push(values); });
        auto sum = mine.d;
        if (mine.m != -kInfinity<C>) sum = anchored<Op, V>(sum, mine.m, Totals::exponential_of_part(mine.m));
        const auto total = exchange(Totals::pack(mine.m, sum), Totals::identity(), Totals());
        if (r + place.teams >= job.rows) leaving = exchange.leave();
        const auto result = Rows::finish(total.max, Rows::exponential_of(total.max), Totals::sum_of(total));
        if constexpr (Op::kElementwise) {
            for_each_back<T, N>(slice, threadIdx.x, [&](int64 column, auto& values) {
                write_results(slice.writer, column, values, result);
            });
        } else {
            if (place.rank == 0 && threadIdx.x == 0) slice.writer.one(0, result);
        }
    }
    exchange.left(leaving, exchanges_of(job.rows, place));
}

template <class Op, class In, class Out, Split kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    split_reduce(const __grid_constant__ TeamJob<Job<kShape.axes, Load, Store>> job) {
    using Rows = Rows<Reduction, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store>;
    using C = typename Rows::C;
    using State = typename Op::template State<C>;
    using Others = Exchange<State, kShape.threads, kShape.slots>;
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    const TeamPlace place(job);
    Others exchange(job, place, team_scratch);
    unsigned leaving = 0;

    for (int64 r = place.team; r < job.rows; r += place.teams) {
        const auto slice = Slice<Rows>::at(job, r, job, place.rank);
        auto state = Op::template identity<C>();
        for_each<kShape.threads, kShape.pack>(slice, threadIdx.x,
                                              [&](int64, auto& values) { Op::template push<In>(state, values); });
        state = exchange(state, Op::template identity<C>(), MergeStates<State, typename Op::Combine>());
        if (r + place.teams >= job.rows) leaving = exchange.leave();
        if (place.rank == 0 && threadIdx.x == 0) slice.writer.one(0, Op::finish(state, job.length));
    }
    exchange.left(leaving, exchanges_of(job.rows, place));
}

}  // namespace onepass::cuda
