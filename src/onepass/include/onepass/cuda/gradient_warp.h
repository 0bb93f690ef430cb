// The gradient of softmax or log_softmax, a row handled by a group of 1..32 lanes: dy and the saved result wait in
// their registers, are read once, dx is written once, and there is no barrier.
#pragma once

#include "gradient_row.h"
#include "reduce.h"

namespace onepass::cuda {

struct GradientWarp {
    int axes;     // kept axes of the job
    int threads;  // of a block
    int lanes;    // of a group
    int packs;    // that a lane holds of a row
    int rows;     // that a group handles at a time
    int pack;     // elements per access
    Alignment alignment;
    bool wide_dy;  // read by packs, not by element
    bool wide_saved;
    bool padded;  // a row need not fill the packs of its group
};

// More than two edges of a row for each lane.
template <GradientWarp kShape>
constexpr bool kManyEdges = kShape.alignment != Alignment::whole && kShape.pack - 1 > kShape.lanes;

// Of doubles and many edges one block at least, as warp_smem.h has it of doubles.
template <class Op, class Dy, class Saved, class Dx, GradientWarp kShape>
__global__ void __launch_bounds__(kShape.threads, kSame<GradientCompute<Dy, Saved, Dx>, double> || kManyEdges<kShape>)
    gradient_warp(const __grid_constant__ GradientJob<3, kShape.axes + 1> job) {
    using Rows = GradientRows<Dy, Saved, Dx, kShape.axes, kAccessOf<kShape>>;
    using C = typename Rows::C;
    using Held = HeldBoth<Op, C, kShape.lanes, kShape.packs, typename Rows::RowCut, kShape.padded>;
    constexpr int R = kShape.rows;
    constexpr int kGroups = kShape.threads / kShape.lanes;
    const int lane = threadIdx.x % kShape.lanes;
    const int group = threadIdx.x / kShape.lanes;

    // Every group has its rows once. One whose rows lie past the end still takes part in its warp's shuffles.
    const int64 first = (static_cast<int64>(blockIdx.x) * kGroups + group) * R;
    typename Rows::Row row[R];
    Held held[R];
    C sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        row[r] = Rows::at(job, first + r);
        if (first + r < job.rows) {
            held[r].load(row[r], lane);
        } else {
            held[r].clear();
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) sum[r] = all_reduce_lanes<kShape.lanes>(held[r].sum(), Add());
#pragma unroll
    for (int r = 0; r < R; ++r) {
        if (first + r < job.rows) held[r].write(row[r], sum[r], lane);
    }
}

}  // namespace onepass::cuda
