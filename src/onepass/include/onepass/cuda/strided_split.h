// Rows whose elements lie anywhere, shared by several blocks: what strided.h is to one block, split.h is to rows that
// lie side by side. Each block has a slice of the steps of a tile; for long dims with little beside them.
//
// `strided_split`: the slice waits in shared memory, x is read once; or it waits nowhere and x is read twice.
// `strided_split_reduce`: sum, mean, amax and amin.
#pragma once

#include "split.h"
#include "strided.h"
#include "tile_exchange.h"

namespace onepass::cuda {

struct StridedSplit {
    int kept_axes;
    int reduced_axes;
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int across;    // threads side by side across rows, a power of two
    int pack;      // rows per access: they and their results are neighbours in memory, on pack boundaries
    bool staged;   // the slice waits in shared memory

    constexpr Strided tile() const { return {kept_axes, reduced_axes, threads, across, pack, staged}; }
};

template <class Op, class In, class Out, StridedSplit kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    strided_split(const __grid_constant__ TeamJob<Job<kShape.kept_axes + kShape.reduced_axes, Load, Store>> job) {
    using Part = TilePart<In, Out, kShape.tile(), Load, Store>;
    using C = typename Part::C;
    using V = Precision<In, Out>;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Totals = MergeTotals<Op, V, kMasks<Load>>;
    using State = typename Totals::State;
    using Reduce = ColumnReduce<Sum<C>, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    constexpr bool kHasMask = kMasks<Load>;
    using Staged = StagedSteps<Kept, In, Part, kSame<Load, Direct>>;
    constexpr bool kKeep = kShape.staged && Op::kKeepsExponentials && kSame<Kept, C>;
    // 1024 threads have 64 registers each; of wide packs two steps are enough to keep a thread busy.
    constexpr int kAhead = kShape.threads * kShape.resident < 1024 && N * sizeof(C) <= 16 ? kInFlight : 2;
    constexpr bool kKeepFirst = N * sizeof(State) <= 32;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);
    const auto place = TeamPlace::of<0>(job);
    TeamMemory<State, Part::kTileRows> others(job, place);
    unsigned leaving = 0;

    const int64 begin = place.rank * job.slice;
    const int64 end = begin + job.slice < job.length ? begin + job.slice : job.length;
    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    if constexpr (kShape.staged) {
        if (place.team < tiles) Staged(Part(job, place.team), memory, begin).ask_for_all(end);
    }
    for (int64 tile = place.team; tile < tiles; tile += place.teams) {
        others.begin_row();
        const Part part(job, tile);
        const Staged staged(part, memory, begin);
        C max[N];
        Sum<C> sum[N];

        // The slice's maxima and sums; of one without a number in it relative to 0: they will not count.
        if constexpr (kShape.staged) {
            staged.arrive(end);
            staged_totals<Op, V, true, kKeep, kAhead>(part, staged, begin, end, reduce, max, sum);
        } else {
            online_totals<Op, V, true, kAhead>(part, begin, end, reduce, max, sum);
        }

        // The row's: every thread takes those of some blocks, of its columns. There is seldom more than one block for a
        // thread, whose states it keeps if they are few: no second round trip.
        others.next();
        const int column = static_cast<int>(threadIdx.x) % kShape.across * N;
        State mine[N];
#pragma unroll
        for (int i = 0; i < N; ++i) mine[i] = Totals::pack(max[i], sum[i]);
        others.publish(Part::first_step(), Part::kSteps, mine, column);
        C row_max[N];
        Sum<C> row_sum[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            row_max[i] = -kInfinity<C>;
            row_sum[i] = Sum<C>::identity();
        }
        State first[1][N];
        if constexpr (kKeepFirst) others.collect(Part::first_step(), 0, column, Totals::identity(), first);
        const auto for_each_block = [&](auto&& visit) {
            int block = Part::first_step();
            if constexpr (kKeepFirst) {
                if (block < others.blocks) visit(first[0]);
                block += Part::kSteps;
            }
            for (; block < others.blocks; block += Part::kSteps) {
                State states[1][N];
                others.collect(block, 0, column, Totals::identity(), states);
                visit(states[0]);
            }
        };
        for_each_block([&](const State(&states)[N]) {
#pragma unroll
            for (int i = 0; i < N; ++i) row_max[i] = Max()(row_max[i], states[i].max);
        });
        reduce(row_max, Max());
        for_each_block([&](const State(&states)[N]) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                Sum<C> part_sum = Totals::sum_of(states[i]);
                part_sum.scale(Totals::to_row(states[i].max, exponential_of<Op, V, kHasMask>(row_max[i])));
                row_sum[i].merge(part_sum);
            }
        });
        total_of_columns<Op>(row_sum, reduce);
        if (tile + place.teams >= tiles) leaving = others.leave();

        const auto finish = [&](int i) {
            return Op::template finish<V, kHasMask>(row_max[i], exponential_of<Op, V, kHasMask>(row_max[i]),
                                                    row_sum[i]);
        };
        if constexpr (Op::kElementwise) {
            decltype(finish(0)) result[N];
            C to_row[N];
#pragma unroll
            for (int i = 0; i < N; ++i) {
                result[i] = finish(i);
                if constexpr (kKeep) {
                    to_row[i] = Totals::to_row(max[i], exponential_of<Op, V, kHasMask>(row_max[i]));
                }
            }
            const auto change = [&](C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if constexpr (kKeep) {
                        x[i] = result[i].normalize(x[i] * to_row[i]);
                    } else {
                        x[i] = result[i](x[i]);
                    }
                }
            };
            if constexpr (kShape.staged) {
                const bool more = tile + place.teams < tiles;
                const Part next(job, more ? tile + place.teams : tile);
                staged.template write<kAhead>(end, Staged(next, memory, begin), more, change);
            } else {
                const auto from_memory = [&](int64 step, C(&to)[N]) { part.load(step, to); };
                for_each_step<C, kAhead>(part, begin, end, from_memory, [&](int64 step, C(&x)[N]) {
                    change(x);
                    part.store(step, part.offset_of(step).y, x);
                });
            }
        } else if (part.present && place.rank == 0 && Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = finish(i);
            part.store(0, part.start.y, results);
        }
    }
    others.left(leaving, tiles, place.teams);
}

template <class Op, class In, class Out, StridedSplit kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident) strided_split_reduce(
    const __grid_constant__ TeamJob<Job<kShape.kept_axes + kShape.reduced_axes, Load, Store>> job) {
    using Part = TilePart<In, Out, kShape.tile(), Load, Store>;
    using C = typename Part::C;
    using State = typename Op::template State<C>;
    using Reduce = ColumnReduce<State, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);
    const auto place = TeamPlace::of<0>(job);
    TeamMemory<State, Part::kTileRows> others(job, place);
    unsigned leaving = 0;

    const int64 begin = place.rank * job.slice;
    const int64 end = begin + job.slice < job.length ? begin + job.slice : job.length;
    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = place.team; tile < tiles; tile += place.teams) {
        others.begin_row();
        const Part part(job, tile);
        State state[N];
        push_columns<Op, In>(part, begin, end, state);
        reduce_team<Part>(state, Op::template identity<C>(), typename Op::Combine(), reduce, others);
        if (tile + place.teams >= tiles) leaving = others.leave();
        if (part.present && place.rank == 0 && Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = Op::finish(state[i], job.length);
            part.store(0, part.start.y, results);
        }
    }
    others.left(leaving, tiles, place.teams);
}

}  // namespace onepass::cuda
