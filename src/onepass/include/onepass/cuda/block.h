// A row is handled by one block and waits in its registers: x is read once, y written once. Two barriers a row, one for
// the maximum and one for the sum.
#pragma once

#include "held.h"
#include "reduce.h"
#include "row.h"

namespace onepass::cuda {

struct Block {
    int axes;     // kept axes of the job
    int threads;  // of a block
    int packs;    // that a thread holds of a row
    int pack;     // elements per access
    Alignment alignment;
    bool padded;  // a row need not fill the packs of the block
};

template <class Op, class In, class Out, Block kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads) block(const __grid_constant__ Job<kShape.axes, Load, Store> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using C = typename Rows::C;
    using Reduce = BlockReduce<kShape.threads>;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);

    const auto row = Rows::at(job, blockIdx.x);  // every block has one row
    Held<C, kShape.threads, kShape.packs, typename Rows::RowCut, kShape.padded> held;
    held.fill(-kInfinity<C>);
    held.template load<!Op::kElementwise && sizeof(In) == 2>(row.reader, row.cut, threadIdx.x);
    const C max = reduce(held.reduce(Max()), Max());
    const auto exponential = Rows::exponential_of(max, [&](auto transform) { held.transform(transform); });
    const Sum<C> sum = total_of<Op>(held.template exponentials<Op::kKeepsExponentials>(exponential), reduce);
    held.template write<Op>(Rows::finish(max, exponential, sum), row.writer, row.cut, threadIdx.x);
}

}  // namespace onepass::cuda
