// A row is handled by several blocks, all of them at work at once: few rows keep the whole GPU busy, and a row may be
// as long as all memory on the chip. Blocks that are a cluster tell each other by way of their shared memory.
//
// `split`: each block's slice waits in its registers, or in its shared memory, where the parts of its next slice arrive
// as soon as there is room; x is read once, y written once. `stream`: the slice waits nowhere; x is read a second time,
// backwards, to write the result. `split_reduce`: sum, mean, amax and amin.
#pragma once

#include "cluster_exchange.h"
#include "online.h"
#include "parts.h"
#include "row_reduce.h"

namespace onepass::cuda {

struct Split {
    int axes;      // kept axes of the job
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int packs;     // that a thread has of a slice, or of a part of it
    int slots;     // states of other blocks that a thread looks after
    int cluster;   // blocks of a row, if they are a cluster; 0: they meet in scratch memory
    bool handed;   // clusters take rows as they are ready for them; else each has one
    int parts;     // of a slice that waits in shared memory; 0: it waits in registers, or nowhere
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
// by a power of two, unless they are exact or of huge numbers.
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
    static __device__ __forceinline__ ExponentialOf<Op, V> exponential_of_part(C max) {
        return exponential_of<Op, V, true>(max);
    }
    // kChanges: `transform` may change the part.
    template <bool kChanges, class Transform>
    static __device__ __forceinline__ auto exponential_of_part(C max, const Transform& transform) {
        if constexpr (kChanges) {
            return exponential_of<Op, V, true>(max, transform);
        } else {
            return exponential_of_part(max);
        }
    }

    static __device__ __forceinline__ C to_row(C part_max, const ExponentialOf<Op, V>& row) {
        if (part_max == -kInfinity<C>) return C(0);
        if constexpr (Op::kExact) {
            return row(part_max) * C(ExpTable<V>::kUnbias);  // the exponential of the part's own maximum is 1
        } else {
            return between(exponential_of_part(part_max).anchor, row.anchor);
        }
    }

    // The total of states, relative to `max`, which is that of all of them at least.
    template <int kStates>
    static __device__ __forceinline__ State relative_to(C max, const ExponentialOf<Op, V>& row,
                                                        const State (&states)[kStates]) {
        State total = identity();
        total.max = max;
#pragma unroll
        for (const State& state : states) {
            const C factor = to_row(state.max, row);
            if constexpr (Op::kExact) {
                Sum<C> sum = state.sum;
                sum.scale(factor);
                total.sum.merge(sum);
            } else {
                total.sum += state.sum * factor;
            }
        }
        return total;
    }

    template <int kStates>
    static __device__ __forceinline__ C max_of(const State (&states)[kStates]) {
        C max = states[0].max;
#pragma unroll
        for (int s = 1; s < kStates; ++s) max = Max()(max, states[s].max);
        return max;
    }

    template <int kLanes, int kApart>
    static __device__ __forceinline__ C max_of_lanes(C max) {
        if constexpr (kApart == 1) {
            return all_max_lanes<kLanes>(max);
        } else {
            return all_reduce_lanes<kLanes, kApart>(max, Max());
        }
    }

    // Of the parts that one thread has.
    template <int kParts>
    static __device__ __forceinline__ State of_parts(const State (&parts)[kParts]) {
        if constexpr (kParts == 1) return parts[0];
        const C max = max_of(parts);
        return relative_to(max, exponential_of_part(max), parts);
    }

    // The sums of states that are relative to one maximum, of every kApart-th of kLanes.
    template <int kApart, int kLanes = kWarpLanes>
    static __device__ __forceinline__ State sum_over_lanes(State total) {
        if constexpr (Op::kExact)
            total.sum = all_reduce_lanes<kLanes, kApart>(total.sum, Merge());
        else
            total.sum = all_reduce_lanes<kLanes, kApart>(total.sum, Add());
        return total;
    }

    // Of every kApart-th of a group of kLanes neighbours.
    template <int kLanes, int kApart = 1>
    static __device__ __forceinline__ State of_lanes(const State& mine) {
        const C max = max_of_lanes<kLanes, kApart>(mine.max);
        const State states[1] = {mine};
        return sum_over_lanes<kApart, kLanes>(relative_to(max, exponential_of_part(max), states));
    }

    template <int kSlots>
    __device__ __forceinline__ State operator()(const State (&states)[kSlots]) const {
        const C max = max_of_lanes<kWarpLanes, 1>(max_of(states));
        return sum_over_lanes<1>(relative_to(max, exponential_of<Op, V, kMasked>(max), states));
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

// Teams that begin together stay together: all load, all wait for states, all write. So of three teams one begins 3 us
// after another, a part of what a row takes, if that is little beside all of its rows. H200, us: 64x1048576 float32 167
// for 178, 64x4194304 bfloat16 345 for 387.
__device__ __forceinline__ void begin_in_turn(const TeamPlace& place, int64 rows) {
    constexpr unsigned kTurns = 3, kCycles = 6000, kRowsOfTeam = 8;
    if (rows >= static_cast<int64>(kRowsOfTeam) * place.teams) ptx::wait_for_cycles(place.team % kTurns * kCycles);
}

template <class Op, class In, class Out, Split kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    split(const __grid_constant__ TeamJob<Job<kShape.axes, Load, Store>> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using C = typename Rows::C;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Totals = MergeTotals<Op, typename Rows::V, Rows::kMasked>;
    using State = typename Totals::State;
    using Others = TeamExchange<State, kShape.threads, kShape.slots, kShape.cluster, kShape.handed>;
    // The exponentials wait in the row's place, each thread's relative to the maximum of its own elements of a part.
    // Registers hold what is computed in, shared memory what was read.
    constexpr bool kKeep = Op::kKeepsExponentials && (kShape.parts == 0 || kSame<Kept, C>);
    // A part with huge numbers is brought near 0 in place. In float64, edges leave no registers for that. (g++
    // does not see its use in the lambda.) Nor has a part that is the whole slice.
    [[maybe_unused]] constexpr bool kTransforms =
        kKeep && kShape.parts != 1 && (kSame<C, float> || kShape.alignment == Alignment::whole);
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    const auto place = TeamPlace::of<kShape.cluster>(job);
    Others exchange(job, place, job.rows, team_scratch);
    unsigned leaving = 0;

    // Blocks of a cluster, which are at work at the same time, take turns at the packs of a row: the whole of it comes
    // and goes in the order of memory. Off the boundaries of packs, clusters that take rows as they are ready gain
    // nothing by it.
    constexpr bool kInTurn = kShape.alignment == Alignment::whole || !kShape.handed;
    constexpr int kSpread = kInTurn && kShape.cluster > 0 ? kShape.cluster : 1;
    using RowSlice = Slice<Rows, kShape.threads, kSpread>;
    const auto slice_of = [&](int64 r) { return RowSlice::at(job, r, job, place.rank); };
    const auto max_of = [](const auto&... held) {
        PackMax<Kept, C> max;
        (held.push_to(max), ...);
        return max.value();
    };
    // Of packs and perhaps an edge with that maximum. kKeep: the exponentials take their place.
    const auto part_of = [](C max, auto&... held) {
        const auto transform = [&](auto f) {
            const auto visit = [&](auto& values) {
#pragma unroll
                for (C& x : values) x = f(x);
            };
            (held.template for_all<true>(visit), ...);
        };
        const auto own = Totals::template exponential_of_part<kTransforms>(max, transform);
        auto sum = Sum<C>::identity();
        const auto add = [&](auto& values) {
#pragma unroll
            for (C& x : values) x = own(x);
            add_to<Op, typename Rows::V, true>(sum, sum_of(values));
        };
        (held.template for_all<kKeep>(add), ...);
        return Totals::pack(max, sum);
    };
    int64 next = 0;  // row
    const auto total_of = [&](int64 r, const State& mine) {
        const State total = exchange(mine, Totals::identity(), Totals());
        next = exchange.row_after(r);
        if (next >= job.rows) leaving = exchange.leave();
        return total;
    };
    // From what waits to what is written, of a part with that maximum.
    const auto finish = [](const auto& result, const auto& row, C max, const auto& write) {
        if constexpr (kKeep) {
            const C to_row = Totals::to_row(max, row);
            write([&](C e) { return result.normalize(e * to_row); });
        } else {
            write(result);
        }
    };

    if constexpr (kShape.parts == 0) {
        for (int64 r = place.team; r < job.rows; r = next) {
            exchange.begin_row();
            const auto slice = slice_of(r);
            // Rows that the whole of the GPU shares are asked for at a time; of clusters there are more than one.
            using Read = HeldSlice<Kept, C, RowSlice::kStep, kShape.packs, typename Rows::RowCut, kShape.cluster == 0>;
            const auto read = Read::of(slice);
            auto held = read.widened();
            const State mine = part_of(max_of(read.packs, read.edge), held.packs, held.edge);
            const State total = total_of(r, mine);
            const auto row = Rows::exponential_of(total.max);
            const auto result = Rows::finish(total.max, row, Totals::sum_of(total));
            finish(result, row, mine.max, [&](const auto& to_result) {
                held.for_present(slice.cut, [&](int64 column, auto& values) {
                    write_results(slice.writer, column, values, to_result);
                });
            });
        }
    } else {
        using Parts =
            PartedSlice<Kept, C, kShape.threads, RowSlice::kStep, kShape.packs, kShape.parts, typename Rows::RowCut>;
        const Parts waiting(memory);
        const auto bring = [&](auto constant, bool more, const auto& slice) {
            if (more) waiting.template bring<decltype(constant)::value>(slice);
            ptx::end_group();
        };
        // In float64 it would take registers that are not there.
        if constexpr (kShape.cluster == 0 && kSame<C, float>) begin_in_turn(place, job.rows);
        using Edge = HeldEdge<C, typename Rows::RowCut>;
        auto slice = slice_of(place.team);
        for_constants<kShape.parts>([&](auto part) { bring(part, true, slice); });
        // An edge is asked for before the stores of the row before, but where that takes a register that is not there.
        constexpr bool kAsksEarly = kShape.cluster > 0;
        Edge edge;
        if constexpr (kAsksEarly) edge = Edge::of(slice);
        for (int64 r = place.team; r < job.rows; r = next) {
            exchange.begin_row();
            if constexpr (!kAsksEarly) edge = Edge::of(slice);
            State parts[kShape.parts];
            for_constants<kShape.parts>([&](auto constant) {
                constexpr int part = decltype(constant)::value;
                ptx::wait_for_copies<kShape.parts - 1 - part>();
                auto packs = waiting.template load<part>(slice.cut);
                if constexpr (part == kShape.parts - 1) {
                    parts[part] = part_of(max_of(edge, packs), edge, packs);
                } else {
                    parts[part] = part_of(max_of(packs), packs);
                }
                if constexpr (kKeep) waiting.template keep<part>(packs, slice.cut);
            });
            const State total = total_of(r, Totals::of_parts(parts));
            const auto row = Rows::exponential_of(total.max);
            const auto result = Rows::finish(total.max, row, Totals::sum_of(total));
            const bool more = next < job.rows;
            const auto after = more ? slice_of(next) : slice;
            const Edge edge_after = kAsksEarly ? Edge::of(after) : edge;
            for_constants<kShape.parts>([&](auto constant) {
                constexpr int part = decltype(constant)::value;
                finish(result, row, parts[part].max, [&](const auto& to_result) {
                    const auto write = [&](int64 column, auto& values) {
                        write_results(slice.writer, column, values, to_result);
                    };
                    waiting.template for_present<part>(slice.cut, write);
                    if constexpr (part == kShape.parts - 1) edge.for_present(slice.cut, write);
                });
                bring(constant, more, after);
            });
            slice = after;
            edge = edge_after;
        }
    }
    exchange.left(leaving);
}

template <class Op, class In, class Out, Split kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    stream(const __grid_constant__ TeamJob<Job<kShape.axes, Load, Store>> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using C = typename Rows::C;
    using V = typename Rows::V;
    using Totals = MergeTotals<Op, V, Rows::kMasked>;
    using Others = TeamExchange<typename Totals::State, kShape.threads, kShape.slots, kShape.cluster, kShape.handed>;
    constexpr int T = kShape.threads;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    const auto place = TeamPlace::of<kShape.cluster>(job);
    Others exchange(job, place, job.rows, team_scratch);
    unsigned leaving = 0;

    for (int64 r = place.team, next; r < job.rows; r = next) {
        exchange.begin_row();
        const auto slice = Slice<Rows>::at(job, r, job, place.rank);
        OnlineStates<V> mine;
        push_row<Rows, Op::kElementwise>(mine, slice);
        const C max = mine.max(0);
        auto sum = mine.sum(0);
        if (max != -kInfinity<C>) sum = anchored<Op, V>(sum, max, Totals::exponential_of_part(max));
        const auto total = exchange(Totals::pack(max, sum), Totals::identity(), Totals());
        next = exchange.row_after(r);
        if (next >= job.rows) leaving = exchange.leave();
        const auto result = Rows::finish(total.max, Rows::exponential_of(total.max), Totals::sum_of(total));
        if constexpr (Op::kElementwise) {
            for_each_back<T, N>(slice, threadIdx.x, [&](int64 column, auto& values) {
                write_results(slice.writer, column, values, result);
            });
        } else {
            if (place.rank == 0 && threadIdx.x == 0) slice.writer.one(0, result);
        }
    }
    exchange.left(leaving);
}

template <class Op, class In, class Out, Split kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    split_reduce(const __grid_constant__ TeamJob<Job<kShape.axes, Load, Store>> job) {
    using Rows = Rows<Reduction, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using C = typename Rows::C;
    using State = typename Op::template State<C>;
    using Others = TeamExchange<State, kShape.threads, kShape.slots, kShape.cluster, kShape.handed>;
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    const auto place = TeamPlace::of<kShape.cluster>(job);
    Others exchange(job, place, job.rows, team_scratch);
    unsigned leaving = 0;

    for (int64 r = place.team, next; r < job.rows; r = next) {
        exchange.begin_row();
        const auto slice = Slice<Rows>::at(job, r, job, place.rank);
        auto state = Op::template identity<C>();
        for_each<kShape.threads, kShape.pack, kInFlight, kInFlight - 1>(
            slice, threadIdx.x, [&](int64, auto& values) { Op::template push<In>(state, values); });
        state = exchange(state, Op::template identity<C>(), MergeStates<State, typename Op::Combine>());
        next = exchange.row_after(r);
        if (next >= job.rows) leaving = exchange.leave();
        if (place.rank == 0 && threadIdx.x == 0) slice.writer.one(0, Op::finish(state, job.length));
    }
    exchange.left(leaving);
}

}  // namespace onepass::cuda
