// The gradient of softmax or log_softmax, a row handled by one block: dy and the saved result wait in its registers,
// are read once, and dx is written once. One barrier a row.
#pragma once

#include "gradient_row.h"
#include "reduce.h"

namespace onepass::cuda {

struct GradientBlock {
    int axes;      // kept axes of the job
    int threads;   // of a block
    int packs;     // that a thread holds of a row
    int resident;  // blocks that a multiprocessor must have registers for; 0: not told
    int pack;      // elements per access
    Alignment alignment;
    bool wide_dy;  // read by packs, not by element
    bool wide_saved;
    bool padded;  // a row need not fill the packs of the block
};

template <class Op, class Dy, class Saved, class Dx, GradientBlock kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    gradient_block(const __grid_constant__ GradientJob<3, kShape.axes + 1> job) {
    using Rows = GradientRows<Dy, Saved, Dx, kShape.axes, kAccessOf<kShape>, kShape.threads>;
    using C = typename Rows::C;
    using Reduce = BlockReduce<kShape.threads>;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);

    const auto row = Rows::at(job, blockIdx.x);  // every block has one row
    HeldBoth<Op, C, kShape.threads, kShape.packs, typename Rows::RowCut, kShape.padded> held;
    held.load(row, threadIdx.x);
    held.write(row, reduce(held.sum(), Add()), threadIdx.x);
}

}  // namespace onepass::cuda
