// A row is handled by one block and waits nowhere: it is read for its maximum, for its sum, and for its result. The
// second and third time it comes from L2 if the rows of all blocks at work fit there.
//
// With one element per access this is the textbook's safe softmax; with packs it is the uncached kernel of OneFlow and
// PyTorch, `block_uncached` in a plan. Both are here to be compared with.
#pragma once

#include "reduce.h"
#include "row.h"

namespace onepass::cuda {

struct ThreePass {
    int axes;     // kept axes of the job
    int threads;  // of a block
    int pack;     // elements per access
    Alignment alignment;
};

template <class Op, class In, class Out, ThreePass kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads)
    three_pass(const __grid_constant__ Job<kShape.axes, Load, Store> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using C = typename Rows::C;
    using Reduce = BlockReduce<kShape.threads>;
    constexpr int T = kShape.threads;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);

    for (int64 r = blockIdx.x; r < job.rows; r += gridDim.x) {
        const auto row = Rows::at(job, r);

        C max = -kInfinity<C>;
        for_each<T, N>(row, threadIdx.x, [&](int64, auto& values) {
            for (C x : values) max = Max()(max, x);
        });
        max = reduce(max, Max());

        const auto exponential = Rows::exponential_of(max);
        auto sum = Sum<C>::identity();
        for_each<T, N>(row, threadIdx.x, [&](int64, auto& values) { sum.add(sum_of_each(values, exponential)); });
        sum = total_of<Op>(sum, reduce);

        const auto result = Rows::finish(max, exponential, sum);
        if constexpr (Op::kElementwise) {
            for_each<T, N>(row, threadIdx.x,
                           [&](int64 column, auto& values) { write_results(row.writer, column, values, result); });
        } else {
            if (threadIdx.x == 0) row.writer.one(0, result);
        }
    }
}

}  // namespace onepass::cuda
