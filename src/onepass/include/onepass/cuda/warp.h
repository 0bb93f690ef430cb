// A row is handled by a group of 1..32 lanes of a warp and waits in their registers: x is read once, y written once,
// and there is no barrier. A group may take several rows at a time, so that their loads and shuffles overlap.
//
// Lane groups, packs, rows per access and padding are the ideas of OneFlow's WarpSoftmax.
#pragma once

#include "held.h"
#include "reduce.h"
#include "row.h"

namespace onepass::cuda {

struct Warp {
    int axes;     // kept axes of the job
    int threads;  // of a block
    int lanes;    // of a group
    int packs;    // that a lane holds of a row
    int rows;     // that a group handles at a time
    int pack;     // elements per access
    Alignment alignment;
    bool padded;  // a row need not fill the packs of its group
};

// Of doubles one block at least, as warp_smem.h has it.
template <class Op, class In, class Out, Warp kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kSame<Compute<In, Out>, double>)
    warp(const __grid_constant__ Job<kShape.axes, Load, Store> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store>;
    using C = typename Rows::C;
    constexpr int R = kShape.rows;
    constexpr int kGroups = kShape.threads / kShape.lanes;
    const auto reduce = [](auto value, auto combine) { return all_reduce_lanes<kShape.lanes>(value, combine); };
    const int lane = threadIdx.x % kShape.lanes;
    const int group = threadIdx.x / kShape.lanes;

    // Every group has its rows once. One whose rows lie past the end still takes part in the shuffles of a warp that it
    // is not all of.
    const int64 first = (static_cast<int64>(blockIdx.x) * kGroups + group) * R;
    if (kShape.lanes == kWarpLanes && first >= job.rows) return;
    typename Rows::Row row[R];
    Held<C, kShape.lanes, kShape.packs, typename Rows::RowCut, kShape.padded> held[R];
    C max[R];
    ExponentialOf<Op, typename Rows::V, false> exponential[R];
    Sum<C> sum[R];

#pragma unroll
    for (int r = 0; r < R; ++r) {
        held[r].fill(-kInfinity<C>);
        row[r] = Rows::at(job, first + r);
        if (first + r < job.rows) held[r].load(row[r].reader, row[r].cut, lane);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) max[r] = all_max_lanes<kShape.lanes>(held[r].reduce(Max()));
#pragma unroll
    for (int r = 0; r < R; ++r) {
        exponential[r] = Rows::exponential_of(max[r], [&](auto transform) { held[r].transform(transform); });
        sum[r] = total_of<Op>(held[r].template exponentials<Op::kKeepsExponentials>(exponential[r]), reduce);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
        if (first + r >= job.rows) continue;
        const auto result = Rows::finish(max[r], exponential[r], sum[r]);
        held[r].template write<Op>(result, row[r].writer, row[r].cut, lane);
    }
}

}  // namespace onepass::cuda
