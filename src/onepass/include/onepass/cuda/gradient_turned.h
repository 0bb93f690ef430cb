// The gradient of softmax or log_softmax where dy lies one way in memory and what was saved another: as in turned.h,
// with squares of both.
#pragma once

#include "gradient_job.h"
#include "gradient_ops.h"
#include "reduce.h"
#include "square.h"
#include "tile_totals.h"

namespace onepass::cuda {

struct GradientTurned {
    int kept_axes;
    int reduced_axes;
    int threads;       // of a block
    int resident;      // blocks that a multiprocessor must have room for
    int across;        // threads side by side across rows, a power of two
    int down;          // the same across the rows of a square's second side; 0: that is steps
    int packs;         // squares of each array that a thread holds of a tile: none but the last may be missing
    int pack;          // elements of a side of a square: on pack boundaries in all arrays
    bool along_saved;  // neighbours in the saved array are those of the second side; else of the first
    bool along_dx;     // and in dx
    bool along_dy;     // and in dy
    int cluster;       // blocks of a tile, a cluster; 1: it is alone
};

template <class Op, class Dy, class Saved, class Dx, GradientTurned kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident) gradient_turned(
    const __grid_constant__ TileJob<kShape.cluster, GradientJob<3, kShape.kept_axes + kShape.reduced_axes>> job) {
    using C = GradientCompute<Dy, Saved, Dx>;
    constexpr int N = kShape.pack;
    using Mine = SquaresOfThread<kShape>;
    constexpr int kHeld = kShape.packs, kRows = Mine::kRows, kSteps = Mine::kSteps, kAcross = Mine::kAcross;
    using Others = TileMemory<C, kAcross * kRows, kShape.cluster>;
    using InTile = TileTotals<PlainSums<C>, Others, kShape.threads, kAcross, kRows>;
    ONEPASS_SHARED(typename InTile::Scratch, scratch);
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    const auto place = TeamPlace::of<kShape.cluster>(Team{});
    Others others(Team{}, place, team_scratch);
    InTile in_tile(scratch, others);

    const Mine mine(job, place);
    const Offsets<3> start = job.template offset_of<0, kShape.kept_axes>(mine.row);
    const auto& first = job.axis[kShape.kept_axes - 1];
    const auto& second = job.axis[Mine::kOfRows ? kShape.kept_axes - 2 : kShape.kept_axes + kShape.reduced_axes - 1];
    const auto at = [&](int64 step) {
        Offsets<3> offsets = job.template offset_of<kShape.kept_axes, kShape.reduced_axes>(step);
#pragma unroll
        for (int a = 0; a < 3; ++a) offsets.of[a] += start.of[a];
        return offsets;
    };

    Square<Dy, N, kShape.along_dy> dy[kHeld];
    Square<Saved, N, kShape.along_saved> saved[kHeld];
    dy[kHeld - 1].fill(Dy{});  // the last may be missing: its terms are 0
    saved[kHeld - 1].fill(Saved{});
    mine.for_each(job.length, [&](int k, int64 step) {
        const Offsets<3> from = at(step);
        dy[k].load(job.template input<Dy>(kDy, from), (kShape.along_dy ? first : second).stride[kDy]);
        saved[k].load(job.template input<Saved>(kSaved, from), (kShape.along_saved ? first : second).stride[kSaved]);
    });
    C sum[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        Sum<C> total = Sum<C>::identity();
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
            C terms[kSteps];
#pragma unroll
            for (int j = 0; j < kSteps; ++j)
                terms[j] = Op::term(dy[k].template get<C>(i * kSteps + j), saved[k].template get<C>(i * kSteps + j));
            total.add(sum_of(terms));
        }
        sum[i] = all_reduce_lanes<kWarpLanes, kAcross>(total.value(), Add());
    }
    stay(dy);
    stay(saved);
    in_tile(sum);
    if (!mine.present) return;

    mine.for_each(job.length, [&](int k, int64 step) {
        Dx* const to = job.template result<Dx>(at(step));
        store_square<N, kShape.along_dx>(to, (kShape.along_dx ? first : second).stride[kDx], [&](int number) {
            return Op::template gradient<Dx>(dy[k].template get<C>(number), saved[k].template get<C>(number),
                                             sum[number / kSteps]);
        });
    });
}

}  // namespace onepass::cuda
