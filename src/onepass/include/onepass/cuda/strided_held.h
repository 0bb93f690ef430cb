// Rows whose elements lie anywhere, short enough to wait in registers: a tile as in strided.h, of which each thread
// holds every step that is its own. All loads of a tile are under way at a time, nothing goes through shared memory but
// what the threads of a column tell each other, and where a row has but one thread, not even that.
#pragma once

#include "column_totals.h"
#include "tile.h"

namespace onepass::cuda {

struct StridedHeld {
    int kept_axes;
    int reduced_axes;
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int across;    // threads side by side across rows, a power of two; or all
    int packs;     // that a thread holds of a tile, one for each of its steps: no step but the last may be missing
    int pack;      // rows per access: they and their results are neighbours in memory, on pack boundaries

    constexpr Strided tile() const { return {kept_axes, reduced_axes, threads, across, pack, false}; }
};

template <class Op, class In, class Out, StridedHeld kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    strided_held(const __grid_constant__ Job<kShape.kept_axes + kShape.reduced_axes, Load, Store> job) {
    using Part = TilePart<In, Out, kShape.tile(), Load, Store>;
    using C = typename Part::C;
    using V = Precision<In, Out>;
    // Additions between threads lose a bit of a quotient only: columns of logarithms send sums of two parts.
    using Reduce = ColumnReduce<choose<Op::kExact, Sum<C>, C>, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    constexpr int kHeld = kShape.packs;
    constexpr bool kHasMask = kMasks<Load>;
    constexpr int kGroup = Op::kExact ? kInFlight : kHeld;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);

    // Calls visit(k, step, offset) for this thread's steps.
    const bool last = Part::first_step() + (kHeld - 1) * Part::kSteps < job.length;
    const auto for_each_held = [&](const Part& part, auto&& visit) {
        int64 step = Part::first_step();
        Offset at = part.offset_of(step);
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
            if (k < kHeld - 1 || last) visit(k, step, at);
            part.advance(step, at);
        }
    };
    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Part part(job, tile);
        C held[kHeld][N];
#pragma unroll
        for (C& x : held[kHeld - 1]) x = -kInfinity<C>;  // the last step may be missing
        for_each_held(part, [&](int k, int64 step, const Offset& at) { part.load(step, at.x, held[k]); });

        C max[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            max[i] = held[0][i];
#pragma unroll
            for (int k = 1; k < kHeld; ++k) max[i] = Max()(max[i], held[k][i]);
        }
        reduce(max, Max());
        Exponential<V> exponential[N];
        Sum<C> sum[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            exponential[i] = exponential_of<Op, V, kHasMask>(max[i]);
            C terms[kHeld];
#pragma unroll
            for (int k = 0; k < kHeld; ++k) {
                terms[k] = exponential[i](held[k][i]);
                if constexpr (Op::kKeepsExponentials) held[k][i] = terms[k];
            }
            sum[i] = sum_in_groups<kGroup>(terms);
        }
        total_of_columns<Op>(sum, reduce);

        const auto finish = [&](int i) { return Op::template finish<V, kHasMask>(max[i], exponential[i], sum[i]); };
        if (!part.present) continue;
        if constexpr (Op::kElementwise) {
            decltype(finish(0)) result[N];
#pragma unroll
            for (int i = 0; i < N; ++i) result[i] = finish(i);
            for_each_held(part, [&](int k, int64 step, const Offset& at) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if constexpr (Op::kKeepsExponentials) {
                        held[k][i] = result[i].normalize(held[k][i]);
                    } else {
                        held[k][i] = result[i](held[k][i]);
                    }
                }
                part.store(step, at.y, held[k]);
            });
        } else if (Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = finish(i);
            part.store(0, part.start.y, results);
        }
    }
}

}  // namespace onepass::cuda
