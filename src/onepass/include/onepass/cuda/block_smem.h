// A row is handled by one block and waits in its shared memory: x is read once, y written once, for rows of up to
// 227 KB. The row waits as it was read, or, where a functor changes elements on their way in, as the functor left it.
//
// A thread reads back only what it has written itself, so the row needs no barrier of its own: a place in shared memory
// belongs to the same thread for every row, however the row is cut.
#pragma once

#include "pack_max.h"
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
    static constexpr int kEdgeRoom = (RowCut::kMostEdges + RowCut::kPack - 1) / RowCut::kPack * RowCut::kPack;

    struct Reader {
        Kept* kept;
        RowCut cut;

        __device__ __forceinline__ Kept* pack_at(int64 column) const { return kept + kEdgeRoom + (column - cut.head); }
        __device__ __forceinline__ Kept* edge_at(int64 column) const { return kept + cut.edge_of(column); }
        __device__ __forceinline__ C one(int64 column) const { return widen<C>(*edge_at(column)); }

        template <int N>
        __device__ __forceinline__ void pack(int64 column, C (&to)[N]) const {
            load_shared(pack_at(column), to);
        }
    };

    Reader reader;
    RowCut cut;

    // The values have been widened from Kept, or are exponentials, which only a C keeps: narrowing them is exact.
    template <int N>
    __device__ __forceinline__ void keep(int64 column, const C (&values)[N]) const {
        if constexpr (N == RowCut::kPack) {
            store_shared(reader.pack_at(column), values);
        } else {
            *reader.edge_at(column) = narrow<Kept>(values[0]);
        }
    }
};

// Brings a row into its place, by kThreads threads, and returns the largest of this thread's elements.
template <int kThreads, class Row, class Kept, class C, class RowCut>
__device__ __forceinline__ C keep_row(const Row& row, const KeptRow<Kept, C, RowCut>& kept) {
    constexpr int N = RowCut::kPack;
    PackMax<Kept, C> max;
    const auto keep = [&](int64 column, auto& values) {
        kept.keep(column, values);
        max.push(values);
    };
    if constexpr (decltype(row.reader)::kAsRead) {
        const auto load = [&](int64 column) { return load_words<N>(row.reader.x + column); };
        for_each_pack<kThreads, kInFlight, 1>(row.cut, threadIdx.x, load, [&](int64 column, auto& words) {
            store_shared_words<N>(kept.reader.pack_at(column), words);
            max.template push<N>(words);
        });
        for_each_edge<kThreads>(row, threadIdx.x, keep);
    } else {
        for_each<kThreads, N>(row, threadIdx.x, keep);
    }
    return max.value();
}

template <class Op, class In, class Out, BlockSmem kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads)
    block_smem(const __grid_constant__ Job<kShape.axes, Load, Store> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using C = typename Rows::C;
    using V = typename Rows::V;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Reduce = BlockReduce<kShape.threads>;
    constexpr bool kKeep = Op::kKeepsExponentials && kSame<Kept, C>;  // the exponentials take the row's place
    constexpr int T = kShape.threads;
    constexpr int N = kShape.pack;
    constexpr int kAhead = 2;  // shared memory is near, and 1024 threads have 64 registers each
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);

    for (int64 r = blockIdx.x; r < job.rows; r += gridDim.x) {
        const auto row = Rows::at(job, r);
        const KeptRow<Kept, C, typename Rows::RowCut> kept{{reinterpret_cast<Kept*>(memory), row.cut}, row.cut};

        const C max = reduce(keep_row<T>(row, kept), Max());
        const auto exponential = Rows::exponential_of(max, [&](auto transform) {
            for_each<T, N, 1>(kept, threadIdx.x, [&](int64 column, auto& values) {
                for (C& x : values) x = transform(x);
                kept.keep(column, values);
            });
        });
        auto sum = Sum<C>::identity();
        for_each<T, N, kAhead>(kept, threadIdx.x, [&](int64 column, auto& values) {
#pragma unroll
            for (C& x : values) x = exponential(x);
            if constexpr (kKeep) kept.keep(column, values);
            add_to<Op, V>(sum, sum_of(values));
        });
        sum = total_of<Op>(sum, reduce);

        const auto result = Rows::finish(max, exponential, sum);
        if constexpr (Op::kElementwise) {
            for_each<T, N, kAhead>(kept, threadIdx.x, [&](int64 column, auto& values) {
                if constexpr (kKeep) {
                    write_results(row.writer, column, values, [&](C e) { return result.normalize(e); });
                } else {
                    write_results(row.writer, column, values, result);
                }
            });
        } else {
            if (threadIdx.x == 0) row.writer.one(0, result);
        }
    }
}

}  // namespace onepass::cuda
