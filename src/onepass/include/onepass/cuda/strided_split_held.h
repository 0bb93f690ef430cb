// Rows whose elements lie anywhere, too long for the registers of one block: several blocks share a tile, and each
// thread holds every step that is its own, as in strided_held.h.
//
// A warp's exponentials are relative to the maxima of what it holds itself. So no warp waits for another until its sums
// are complete, and the warps of a block, then the blocks of a tile merge maxima and sums in one go.
#pragma once

#include "held_steps.h"
#include "split.h"
#include "tile.h"
#include "tile_totals.h"

namespace onepass::cuda {

struct StridedSplitHeld {
    int kept_axes;
    int reduced_axes;
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int across;    // threads side by side across rows, a power of two
    int packs;     // that a thread holds of a tile, one for each of its steps: no step but the last may be missing
    int pack;      // rows per access: they and their results are neighbours in memory, on pack boundaries
    int cluster;   // blocks of a tile, if they are a cluster; 0: they meet in scratch memory

    constexpr Strided tile() const { return {kept_axes, reduced_axes, threads, across, pack, false}; }
};

template <class Op, class In, class Out, StridedSplitHeld kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    strided_split_held(const __grid_constant__ TeamJob<Job<kShape.kept_axes + kShape.reduced_axes, Load, Store>> job) {
    using Part = TilePart<In, Out, kShape.tile(), Load, Store>;
    using C = typename Part::C;
    using V = Precision<In, Out>;
    using Totals = MergeTotals<Op, V, kMasks<Load>>;
    using State = typename Totals::State;
    using Others = TileMemory<State, Part::kTileRows, kShape.cluster>;
    using InTile = TileTotals<Totals, Others, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    constexpr int kHeld = kShape.packs;
    constexpr bool kHasMask = kMasks<Load>;
    using Steps = HeldSteps<Op, V, In, kHeld, N, kSame<Load, Direct>>;
    // Huge numbers are brought near 0 in place, where that leaves a register for it.
    constexpr bool kTransforms = Steps::kKeeps && kShape.cluster > 0;
    ONEPASS_SHARED(typename InTile::Scratch, scratch);
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    const auto place = TeamPlace::of<kShape.cluster>(job);
    Others others(job, place, team_scratch);
    InTile in_tile(scratch, others);
    unsigned leaving = 0;

    // Calls visit(k, step, offset) for this thread's steps: the blocks take them by turns.
    const int blocks = others.blocks;
    const int64 first = static_cast<int>(place.rank) * Part::kSteps + Part::first_step();
    const bool last = first + static_cast<int64>(kHeld - 1) * blocks * Part::kSteps < job.length;
    const auto for_each_held = [&](const Part& part, auto&& visit) {
        int64 step = first;
        Offset at = part.offset_of(step);
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
            if (k < kHeld - 1 || last) visit(k, step, at);
            part.advance(step, at, blocks);
        }
    };
    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    const auto share = [&](int64 tile) {
        others.begin_row();
        const Part part(job, tile);
        Steps held;
        held.clear_last();
        for_each_held(part, [&](int k, int64 step, const Offset& at) { held.load(part, k, step, at); });

        C max[N];  // of a warp
        held.maxima(max);
#pragma unroll
        for (C& m : max) m = all_reduce_lanes<kWarpLanes, kShape.across>(m, Max());
        const auto exponential_of_mine = [&](int i) {
            return Totals::template exponential_of_part<kTransforms>(max[i], [&](auto f) { held.transform(i, f); });
        };
        decltype(exponential_of_mine(0)) of_mine[N];
#pragma unroll
        for (int i = 0; i < N; ++i) of_mine[i] = exponential_of_mine(i);
        Sum<C> sum[N];
        held.add_up(of_mine, sum);
        State row[N];
#pragma unroll
        for (int i = 0; i < N; ++i) row[i] = Totals::pack(max[i], sum[i]);
#pragma unroll
        for (State& state : row) state = Totals::template sum_over_lanes<kShape.across>(state);
        in_tile(row);
        if (tile + place.teams >= tiles) leaving = others.leave();

        if (!part.present) return;
        const auto exponential = [&](int i) { return exponential_of<Op, V, kHasMask>(row[i].max); };
        const auto finish = [&](int i) {
            return Op::template finish<V, kHasMask>(row[i].max, exponential(i), Totals::sum_of(row[i]));
        };
        if constexpr (Op::kElementwise) {
            decltype(finish(0)) result[N];
            C to_row[N];
#pragma unroll
            for (int i = 0; i < N; ++i) {
                result[i] = finish(i);
                to_row[i] = Totals::to_row(max[i], exponential(i));
            }
            for_each_held(part, [&](int k, int64 step, const Offset& at) {
                C x[N];
                held.get(k, x);
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if constexpr (Steps::kKeeps) {
                        x[i] = result[i].normalize(x[i] * to_row[i]);
                    } else {
                        x[i] = result[i](x[i]);
                    }
                }
                part.store(step, at.y, x);
            });
        } else if (place.rank == 0 && Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = finish(i);
            part.store(0, part.start.y, results);
        }
    };
    if constexpr (kShape.cluster > 0) {
        share(place.team);
    } else {
        for (int64 tile = place.team; tile < tiles; tile += place.teams) share(tile);
    }
    others.left(leaving, tiles, place.teams);
}

}  // namespace onepass::cuda
