// Rows whose elements lie anywhere: any strides, any number of reduced axes. The rows of a job are the columns of a
// tile: kAcross threads lie side by side across neighbouring rows (which are neighbours in memory when the reduced
// axis is not the last), the block's other threads share out the steps along the rows.
//
// `strided` holds a tile of whole rows in shared memory if it fits, so that x is read once; else it keeps a running
// maximum and sum and reads twice. `strided_reduce` reads once, for sum, mean, amax and amin.
#pragma once

#include "column_totals.h"
#include "staged_steps.h"
#include "tile.h"

namespace onepass::cuda {

// Running maxima and sums with 64 registers, doubles and wide packs with as many as they want: told no number, ptxas
// spills them to make room for another block.
template <class Op, class In, class Out, Strided kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.staged ? kSame<Compute<In, Out>, double>
                                                  : kSame<Compute<In, Out>, double> || kShape.pack > 4
                                                      ? 1
                                                      : blocks_of_1024(kShape.threads))
    strided(const __grid_constant__ Job<kShape.kept_axes + kShape.reduced_axes, Load, Store> job) {
    using Part = TilePart<In, Out, kShape, Load, Store>;
    using C = typename Part::C;
    using V = Precision<In, Out>;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Reduce = ColumnReduce<Sum<C>, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    constexpr bool kHasMask = kMasks<Load>;
    using Staged = StagedSteps<Kept, In, Part, kSame<Load, Direct>>;
    constexpr bool kKeep = kShape.staged && Op::kKeepsExponentials && kSame<Kept, C>;
    // 1024 threads have 64 registers each; of wide packs two steps are enough to keep a thread busy.
    constexpr int kAhead = kShape.threads < 1024 && N * sizeof(C) <= 16 ? kInFlight : 2;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);

    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    if constexpr (kShape.staged) {
        if (blockIdx.x < tiles) Staged(Part(job, blockIdx.x), memory, 0).ask_for_all(job.length);
    }
    for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Part part(job, tile);
        const Staged staged(part, memory, 0);
        C max[N];
        Sum<C> sum[N];
        if constexpr (kShape.staged) {
            staged.arrive(job.length);
            staged_totals<Op, V, kHasMask, kKeep, kAhead>(part, staged, 0, job.length, reduce, max, sum);
        } else {
            online_totals<Op, V, kHasMask, kAhead>(part, 0, job.length, reduce, max, sum);
        }

        const auto finish = [&](int i) {
            return Op::template finish<V, kHasMask>(max[i], exponential_of<Op, V, kHasMask>(max[i]), sum[i]);
        };
        if constexpr (Op::kElementwise) {
            decltype(finish(0)) result[N];
#pragma unroll
            for (int i = 0; i < N; ++i) result[i] = finish(i);
            const auto change = [&](C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if constexpr (kKeep) {
                        x[i] = result[i].normalize(x[i]);
                    } else {
                        x[i] = result[i](x[i]);
                    }
                }
            };
            if constexpr (kShape.staged) {
                const bool more = tile + gridDim.x < tiles;
                const Part next(job, more ? tile + gridDim.x : tile);
                staged.template write<kAhead>(job.length, Staged(next, memory, 0), more, change);
            } else {
                const auto from_memory = [&](int64 step, C(&to)[N]) { part.load(step, to); };
                for_each_step<C, kAhead>(part, 0, job.length, from_memory, [&](int64 step, C(&x)[N]) {
                    change(x);
                    part.store(step, part.offset_of(step).y, x);
                });
            }
        } else if (part.present && Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = finish(i);
            part.store(0, part.start.y, results);
        }
    }
}

// 64 registers: told no number, ptxas waits for one load after the other to have 54.
template <class Op, class In, class Out, Strided kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, blocks_of_1024(kShape.threads))
    strided_reduce(const __grid_constant__ Job<kShape.kept_axes + kShape.reduced_axes, Load, Store> job) {
    using Part = TilePart<In, Out, kShape, Load, Store>;
    using C = typename Part::C;
    using State = typename Op::template State<C>;
    using Reduce = ColumnReduce<State, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);

    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Part part(job, tile);
        State state[N];
        push_columns<Op, In>(part, 0, job.length, state);
        reduce(state, typename Op::Combine());
        if (part.present && Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = Op::finish(state[i], job.length);
            part.store(0, part.start.y, results);
        }
    }
}

}  // namespace onepass::cuda
