// The gradient of softmax or log_softmax of rows whose elements lie anywhere, in registers: a tile as in
// gradient_strided.h, of which each thread holds dy and the saved result of every step that is its own, as they were
// read. All loads are under way at a time, and both arrays are read once. One block has a tile, or several share it: a
// cluster, or blocks that meet in scratch memory. Where only dy lies across rows, what was saved waits in shared memory
// instead, and dx takes its place there.
#pragma once

#include "gradient_tile.h"
#include "tile_rows.h"
#include "tile_totals.h"

namespace onepass::cuda {

struct GradientStridedHeld {
    int kept_axes;
    int reduced_axes;
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int across;    // threads side by side across rows, a power of two
    int packs;     // of each array that a thread holds, one for each of its steps: no step but the last may be missing
    int pack;      // rows per access: they are neighbours in dx, on pack boundaries
    bool wide_dy;  // and in dy
    bool wide_saved;      // and in the saved array
    int cluster;          // blocks of a tile, if they are a cluster; 0: they meet in scratch memory; 1: it is alone
    ByRows by_rows = {};  // of what was saved and of dx, which lie alike, and are of one type; then it is alone

    constexpr GradientStrided tile() const {
        return {kept_axes, reduced_axes, threads, across, pack, wide_dy, wide_saved, false};
    }
};

template <class Op, class Dy, class Saved, class Dx, GradientStridedHeld kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident) gradient_strided_held(
    const __grid_constant__ TileJob<kShape.cluster, GradientJob<3, kShape.kept_axes + kShape.reduced_axes>> job) {
    using C = GradientCompute<Dy, Saved, Dx>;
    using Part = GradientTile<3, Dx, C, kShape.tile()>;
    constexpr int N = kShape.pack;
    constexpr int kHeld = kShape.packs;
    constexpr bool kByRows = kShape.by_rows.pack > 0;
    static_assert(!kByRows || (kShape.cluster == 1 && kSame<Saved, Dx>));
    ONEPASS_DYNAMIC_SHARED(memory);

    // Of one tile, by the block of that rank among so many; total(sum) makes the sums of whole columns of its threads'.
    const auto share = [&](int64 tile, int rank, int blocks, auto&& total) {
        const Part part(job, tile);
        const int64 first = rank * Part::kSteps + Part::first_step();
        const bool last = first + static_cast<int64>(kHeld - 1) * blocks * Part::kSteps < job.length;
        // Calls visit(k, step, offsets) for this thread's steps: the blocks take them by turns.
        const auto for_each_held = [&](auto&& visit) {
            int64 step = first;
            auto at = part.offset_of(step);
#pragma unroll
            for (int k = 0; k < kHeld; ++k) {
                if (k < kHeld - 1 || last) visit(k, step, at);
                part.advance(step, at, blocks);
            }
        };
        const TileRows<Dx, kShape.across, N, kShape.by_rows> rows(memory, job.length);
        if constexpr (kByRows) {
            rows.begin(part.start.of[kDx], job.axis[kShape.kept_axes - 1].stride[kDx]);
            rows.read(static_cast<const Saved*>(job.array[kSaved]), tile, job.rows);
        }
        typename Pack<Dy, N>::Words dy[kHeld];
        typename Pack<Saved, N>::Words saved[kByRows ? 1 : kHeld];
        dy[kHeld - 1] = {};  // the last step may be missing: its terms are 0
        saved[kByRows ? 0 : kHeld - 1] = {};
        for_each_held([&](int k, int64, const auto& at) {
            dy[k] = part.template words<Dy, kShape.wide_dy>(kDy, at);
            if constexpr (!kByRows) saved[k] = part.template words<Saved, kShape.wide_saved>(kSaved, at);
        });

        C sum[N];
        if constexpr (kByRows) {
            __syncthreads();
            C terms[N][kHeld] = {};
            if (part.present) {
                for_each_held([&](int k, int64 step, const auto&) {
                    C of_dy[N], of_saved[N];
                    widen_words<Dy>(dy[k], of_dy);
                    rows.get(step, of_saved);
#pragma unroll
                    for (int i = 0; i < N; ++i) terms[i][k] = Op::term(of_dy[i], of_saved[i]);
                });
            }
#pragma unroll
            for (int i = 0; i < N; ++i) sum[i] = sum_in_groups<kInFlight>(terms[i]).value();
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                C terms[kHeld];
#pragma unroll
                for (int k = 0; k < kHeld; ++k) {
                    C of_dy[N], of_saved[N];
                    widen_words<Dy>(dy[k], of_dy);
                    widen_words<Saved>(saved[k], of_saved);
                    terms[k] = Op::term(of_dy[i], of_saved[i]);
                }
                sum[i] = sum_in_groups<kInFlight>(terms).value();
            }
        }
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
            stay_narrow<Dy, N>(dy[k]);
            if constexpr (!kByRows) stay_narrow<Saved, N>(saved[k]);
        }
        total(sum);

        if (!kByRows && !part.present) return;  // by rows all threads write what all have put
        const auto finish = [&](int k, int64 step, const auto& at) {
            C of_dy[N], of_saved[N], results[N];
            widen_words<Dy>(dy[k], of_dy);
            if constexpr (kByRows) {
                rows.get(step, of_saved);
            } else {
                widen_words<Saved>(saved[k], of_saved);
            }
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = Op::template gradient<Dx>(of_dy[i], of_saved[i], sum[i]);
            if constexpr (kByRows) {
                rows.put(step, results);
            } else {
                part.store(at, results);
            }
        };
        if (part.present) for_each_held(finish);
        if constexpr (kByRows) rows.write(static_cast<Dx*>(job.array[kDx]), tile, job.rows);
    };
    if constexpr (kShape.cluster == 1) {
        using Reduce = ColumnReduce<C, kShape.threads, kShape.across, N>;
        ONEPASS_SHARED(typename Reduce::Scratch, scratch);
        Reduce reduce(scratch);
        share(blockIdx.x, 0, 1, [&](C(&sum)[N]) { reduce(sum, Add()); });
    } else {
        using Others = TileMemory<C, Part::kTileRows, kShape.cluster>;
        using InTile = TileTotals<PlainSums<C>, Others, kShape.threads, kShape.across, N>;
        ONEPASS_SHARED(typename InTile::Scratch, scratch);
        ONEPASS_SHARED(typename Others::Scratch, team_scratch);
        const auto place = TeamPlace::of<kShape.cluster>(job);
        Others others(job, place, team_scratch);
        InTile in_tile(scratch, others);
        unsigned leaving = 0;
        const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
        const auto share_tile = [&](int64 tile) {
            others.begin_row();
            share(tile, static_cast<int>(place.rank), others.blocks, [&](C(&sum)[N]) {
#pragma unroll
                for (C& s : sum) s = all_reduce_lanes<kWarpLanes, kShape.across>(s, Add());
                in_tile(sum);
                if (tile + place.teams >= tiles) leaving = others.leave();
            });
        };
        if constexpr (kShape.cluster > 0) {
            share_tile(place.team);
        } else {
            for (int64 tile = place.team; tile < tiles; tile += place.teams) share_tile(tile);
        }
        others.left(leaving, tiles, place.teams);
    }
}

}  // namespace onepass::cuda
