// A row is handled by one block and waits in its shared memory: x is read once, y written once, for rows of up to
// 227 KB. The row waits as it was read, or, where a functor changes elements on their way in, as the functor left it.
//
// A thread reads back only what it has written itself, so the row needs no barrier of its own: a place in shared memory
// belongs to the same thread for every row, however the row is cut.
#pragma once

#include "reduce.h"
#include "row.h"

namespace onepass::cuda {

struct BlockSmem {
    int axes;     // kept axes of the job
    int threads;  // of a block
    int pack;     // elements per access
    Alignment alignment;
};

// A row in shared memory, as for_each wants it: room for the edges, then the packs.
template <class Kept, class C, class RowCut>
struct KeptRow {
    static constexpr int kEdgeRoom = RowCut::kMostEdges == 0 ? 0 : 2 * RowCut::kPack;

    struct Reader {
        Kept* kept;
        RowCut cut;

        __device__ __forceinline__ Kept* pack_at(int64 column) const { return kept + kEdgeRoom + (column - cut.head); }
        __device__ __forceinline__ Kept* edge_at(int64 column) const { return kept + cut.edge_of(column); }
        __device__ __forceinline__ C one(int64 column) const { return widen<C>(*edge_at(column)); }

        template <int N>
        __device__ __forceinline__ void pack(int64 column, C (&to)[N]) const {
            const auto from = load_shared<N>(pack_at(column));
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = widen<C>(from.at[i]);
        }
    };

    Reader reader;
    RowCut cut;

    // The values have been widened from Kept: narrowing them is exact.
    template <int N>
    __device__ __forceinline__ void keep(int64 column, const C (&values)[N]) const {
        if constexpr (N == RowCut::kPack) {
            typename Pack<Kept, N>::Elements elements;
#pragma unroll
            for (int i = 0; i < N; ++i) elements.at[i] = narrow<Kept>(values[i]);
            store_shared<N>(reader.pack_at(column), elements);
        } else {
            *reader.edge_at(column) = narrow<Kept>(values[0]);
        }
    }
};

template <class Op, class In, class Out, BlockSmem kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads)
    block_smem(const __grid_constant__ Job<kShape.axes, Load, Store> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store>;
    using C = typename Rows::C;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Reduce = BlockReduce<kShape.threads>;
    constexpr int T = kShape.threads;
    constexpr int N = kShape.pack;
    constexpr int kAhead = 2;  // shared memory is near, and 1024 threads have 64 registers each
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);

    for (int64 r = blockIdx.x; r < job.rows; r += gridDim.x) {
        const auto row = Rows::at(job, r);
        const KeptRow<Kept, C, typename Rows::RowCut> kept{{reinterpret_cast<Kept*>(memory), row.cut}, row.cut};

        C max = -kInfinity<C>;
        for_each<T, N>(row, threadIdx.x, [&](int64 column, auto& values) {
            kept.keep(column, values);
            for (C x : values) max = Max()(max, x);
        });
        max = reduce(max, Max());

        const auto exponential = Rows::exponential_of(max);
        auto sum = Sum<C>::identity();
        for_each<T, N, kAhead>(kept, threadIdx.x,
                               [&](int64, auto& values) { sum.add(sum_of_each(values, exponential)); });
        sum = total_of<Op>(sum, reduce);

        const auto result = Rows::finish(max, exponential, sum);
        if constexpr (Op::kElementwise) {
            for_each<T, N, kAhead>(kept, threadIdx.x, [&](int64 column, auto& values) {
                write_results(row.writer, column, values, result);
            });
        } else {
            if (threadIdx.x == 0) row.writer.one(0, result);
        }
    }
}

}  // namespace onepass::cuda
