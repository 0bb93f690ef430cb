// Rows whose neighbours in memory are others' elements in x and their own in the result, or the other way round, or
// different others' in both: a matrix that is read one way and written another, dims that are turned round. A tile is
// as in strided_split_held.h, and each thread holds squares of it: they are read by packs along one side and written by
// packs along the other. What turns them is which register a value is taken from.
#pragma once

#include "split.h"
#include "square.h"
#include "tile_totals.h"

namespace onepass::cuda {

struct Turned {
    int kept_axes;
    int reduced_axes;
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int across;    // threads side by side across rows, a power of two
    int down;      // the same across the rows of a square's second side, if those are rows of another axis; 0: steps
    int packs;     // squares that a thread holds of a tile: none but the last may be missing
    int pack;      // elements of a side of a square: on pack boundaries in both arrays
    bool along;    // neighbours in x are those of the second side, in the result of the first; else the other way round
    int cluster;   // blocks of a tile, a cluster; 1: it is alone
};

template <class Op, class In, class Out, Turned kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident) turned(
    const __grid_constant__ TileJob<kShape.cluster, Job<kShape.kept_axes + kShape.reduced_axes, Direct, Direct>> job) {
    using C = Compute<In, Out>;
    using V = Precision<In, Out>;
    constexpr int N = kShape.pack;
    using Mine = SquaresOfThread<kShape>;
    constexpr int kHeld = kShape.packs, kRows = Mine::kRows, kSteps = Mine::kSteps, kAcross = Mine::kAcross;
    using Totals = MergeTotals<Op, V, false>;
    using State = typename Totals::State;
    using Others = TileMemory<State, kAcross * kRows, kShape.cluster>;
    using InTile = TileTotals<Totals, Others, kShape.threads, kAcross, kRows>;
    // Exponentials take the place of what they are of, and huge numbers are brought near 0 there.
    constexpr bool kKeeps = Op::kKeepsExponentials && kSame<In, C>;
    ONEPASS_SHARED(typename InTile::Scratch, scratch);
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    const auto place = TeamPlace::of<kShape.cluster>(Team{});
    Others others(Team{}, place, team_scratch);
    InTile in_tile(scratch, others);

    const Mine mine(job, place);
    const Offset start = job.template offset_of<0, kShape.kept_axes>(mine.row);
    const Axis& first = job.axis[kShape.kept_axes - 1];
    const Axis& second = job.axis[Mine::kOfRows ? kShape.kept_axes - 2 : kShape.kept_axes + kShape.reduced_axes - 1];
    const auto along = [&](int64 step) { return job.template offset_of<kShape.kept_axes, kShape.reduced_axes>(step); };

    Square<In, N, kShape.along> held[kHeld];
    held[kHeld - 1].fill(kMinusInfinity<In>);  // it may be missing
    mine.for_each(job.length, [&](int k, int64 step) {
        const In* const from = static_cast<const In*>(job.x) + start.x + along(step).x;
        held[k].load(from, (kShape.along ? first : second).x_stride);
    });

    C max[kRows];  // of a warp
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        max[i] = -kInfinity<C>;
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
#pragma unroll
            for (int j = 0; j < kSteps; ++j) max[i] = Max()(max[i], held[k].template get<C>(i * kSteps + j));
        }
        max[i] = all_reduce_lanes<kWarpLanes, kAcross>(max[i], Max());
    }
    stay(held);
    State row[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const auto exponential = Totals::template exponential_of_part<kKeeps>(max[i], [&](auto change) {
#pragma unroll
            for (int k = 0; k < kHeld; ++k) {
#pragma unroll
                for (int j = 0; j < kSteps; ++j) {
                    if constexpr (kKeeps) held[k].set(i * kSteps + j, change(held[k].template get<C>(i * kSteps + j)));
                }
            }
        });
        Sum<C> sum = Sum<C>::identity();
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
            C terms[kSteps];
#pragma unroll
            for (int j = 0; j < kSteps; ++j) {
                terms[j] = exponential(held[k].template get<C>(i * kSteps + j));
                if constexpr (kKeeps) held[k].set(i * kSteps + j, terms[j]);
            }
            add_to<Op, V>(sum, sum_of(terms));
        }
        row[i] = Totals::template sum_over_lanes<kAcross>(Totals::pack(max[i], sum));
    }
    stay(held);
    in_tile(row);
    if (!mine.present) return;

    const auto finish = [&](int i) {
        return Op::template finish<V, false>(row[i].max, exponential_of<Op, V, false>(row[i].max),
                                             Totals::sum_of(row[i]));
    };
    decltype(finish(0)) result[kRows];
    C to_row[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        result[i] = finish(i);
        to_row[i] = Totals::to_row(max[i], exponential_of<Op, V, false>(row[i].max));
    }
    mine.for_each(job.length, [&](int k, int64 step) {
        Out* const to = static_cast<Out*>(job.y) + start.y + along(step).y;
        store_square<N, !kShape.along>(to, (kShape.along ? second : first).y_stride, [&](int number) {
            const C x = held[k].template get<C>(number);
            if constexpr (kKeeps) {
                return result[number / kSteps].normalize(x * to_row[number / kSteps]);
            } else {
                return result[number / kSteps](x);
            }
        });
    });
}

}  // namespace onepass::cuda
