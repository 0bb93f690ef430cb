// sum, mean, amax and amin of rows that lie side by side: a row is handled by a group of lanes (warp_reduce) or by one
// block (block_reduce), a pack or, plain, an element at a time. x is read once, one value per row is written.
#pragma once

#include "reduce.h"
#include "row.h"

namespace onepass::cuda {

struct RowReduce {
    int axes;     // kept axes of the job
    int threads;  // of a block
    int lanes;    // that share a row: 1..32, or all threads of the block
    int pack;     // elements per access
    Alignment alignment;
};

// A result is no row: Rows cuts by the input.
struct Reduction {
    static constexpr bool kElementwise = false;
};

// Of 16 bits 64 registers: told no number, ptxas spills to have 48 on sm_120.
template <class Op, class In, class Out, RowReduce kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, sizeof(In) == 2 ? 1024 / kShape.threads : 0)
    warp_reduce(const __grid_constant__ Job<kShape.axes, Load, Store> job) {
    using Rows = Rows<Reduction, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.lanes>;
    constexpr int kGroups = kShape.threads / kShape.lanes;
    const int lane = threadIdx.x % kShape.lanes;
    const int group = threadIdx.x / kShape.lanes;

    // Every group has one row. One that lies past the end still takes part in its warp's shuffles.
    const int64 r = static_cast<int64>(blockIdx.x) * kGroups + group;
    const auto row = Rows::at(job, r);
    auto state = Op::template identity<typename Rows::C>();
    if (r < job.rows) {
        for_each<kShape.lanes, kShape.pack, kInFlight, kInFlight - 1>(
            row, lane, [&](int64, auto& values) { Op::template push<In>(state, values); });
    }
    state = reduce_lanes<kShape.lanes>(state, typename Op::Combine());
    if (r < job.rows && lane == 0) row.writer.one(0, Op::finish(state, job.length));
}

template <class Op, class In, class Out, RowReduce kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads)
    block_reduce(const __grid_constant__ Job<kShape.axes, Load, Store> job) {
    using Rows = Rows<Reduction, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using Reduce = BlockReduce<kShape.threads>;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);

    const auto row = Rows::at(job, blockIdx.x);  // every block has one row
    auto state = Op::template identity<typename Rows::C>();
    for_each<kShape.threads, kShape.pack>(row, threadIdx.x,
                                          [&](int64, auto& values) { Op::template push<In>(state, values); });
    state = reduce(state, typename Op::Combine());
    if (threadIdx.x == 0) row.writer.one(0, Op::finish(state, job.length));
}

}  // namespace onepass::cuda
