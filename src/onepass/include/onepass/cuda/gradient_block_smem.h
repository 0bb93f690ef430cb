// The gradient of softmax or log_softmax, a row handled by one block whose shared memory holds of it what fits, of dy
// and of the saved result: a row that fits is read once. Of a longer one the rest is read again, backwards: what was
// read last is what L2 still has. Without shared memory this is the kernel that reads everything twice.
//
// A thread reads back only what it has written itself, so what waits in shared memory needs no barrier.
#pragma once

#include "gradient_kept.h"
#include "reduce.h"

namespace onepass::cuda {

struct GradientBlockSmem {
    int axes;      // kept axes of the job
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have registers for
    int kept;      // packs of a row that wait in shared memory, besides its edges; kWholeRow: all
    int pack;      // elements per access
    Alignment alignment;
    bool wide_dy;  // read by packs, not by element
    bool wide_saved;
};

inline constexpr int kWholeRow = -1;

// Some of a row's packs, in either order, with the row's edges or without.
template <class RowCut, bool kWithEdges>
struct Section {
    static constexpr int kMostEdges = kWithEdges ? RowCut::kMostEdges : 0;
    const RowCut& row;
    int64 packs;
    int64 first;
    int64 step;

    __device__ __forceinline__ int edges() const { return kWithEdges ? row.edges() : 0; }
    __device__ __forceinline__ int64 pack_column(int64 pack) const { return row.pack_column(first + step * pack); }
    __device__ __forceinline__ int64 edge_column(int edge) const { return row.edge_column(edge); }
};

template <class Op, class Dy, class Saved, class Dx, GradientBlockSmem kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    gradient_block_smem(const __grid_constant__ GradientJob<3, kShape.axes + 1> job) {
    using Rows = GradientRows<Dy, Saved, Dx, kShape.axes, kAccessOf<kShape>, kShape.threads>;
    using C = typename Rows::C;
    using RowCut = typename Rows::RowCut;
    using Kept = KeptBoth<Dy, Saved, C, RowCut>;
    using Reduce = BlockReduce<kShape.threads>;
    constexpr int T = kShape.threads;
    constexpr int N = Rows::N;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);

    const int64 row_packs = kShape.kept == kWholeRow ? job.length / N : kShape.kept;
    for (int64 r = blockIdx.x; r < job.rows; r += gridDim.x) {
        const auto row = Rows::at(job, r);
        const RowCut& cut = row.cut;
        const auto waiting = Kept::at(memory, row_packs, cut);
        const int64 kept = cut.packs < row_packs ? cut.packs : row_packs;
        const int64 rest = cut.packs - kept;
        const Section<RowCut, true> kept_section{cut, kept, 0, 1};
        using Rest = Section<RowCut, false>;

        auto mine = Sum<C>::identity();
        for_each<T, N, kInFlightOfBoth<C, N>>(RowPart{row.reader, kept_section}, threadIdx.x,
                                              [&](int64 column, auto& values) {
                                                  waiting.keep(column, values);
                                                  mine.add(sum_of_terms<Op>(values));
                                              });
        if constexpr (kShape.kept != kWholeRow) {
            add_terms<Op, T, N>(RowPart{row.reader, Rest{cut, rest, kept, 1}}, mine);
        }
        const C sum = reduce(mine.value(), Add());

        const auto write = [&](int64 column, auto& values) { write_gradients<Op>(row.writer, column, values, sum); };
        if constexpr (kShape.kept != kWholeRow) {
            for_each<T, N, kInFlightOfBoth<C, N>>(RowPart{row.reader, Rest{cut, rest, cut.packs - 1, -1}}, threadIdx.x,
                                                  write);
        }
        for_each<T, N, kInFlightOfBoth<C, N>>(RowPart{waiting.reader(), kept_section}, threadIdx.x, write);
    }
}

}  // namespace onepass::cuda
