// The gradient of softmax or log_softmax, a row handled by one block whose shared memory holds of it what fits, of dy
// and of the saved result: a row that fits is read once. Of a longer one the rest is read again, backwards: what was
// read last is what L2 still has. Without shared memory this is the kernel that reads everything twice.
//
// A thread reads back only what it has written itself, so what waits in shared memory needs no barrier.
#pragma once

#include "block_smem.h"
#include "gradient_row.h"
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

// Some of a row's packs, in either order, for for_each: with the row's edges or without.
template <class Reader, class RowCut>
struct Section {
    struct SectionCut {
        const RowCut& row;
        int64 packs;
        int64 first;
        int64 step;
        int edge_count;

        __device__ __forceinline__ int edges() const { return edge_count; }
        __device__ __forceinline__ int64 pack_column(int64 pack) const { return row.pack_column(first + step * pack); }
        __device__ __forceinline__ int64 edge_column(int edge) const { return row.edge_column(edge); }
    };

    const Reader& reader;
    SectionCut cut;
};

template <class Op, class Dy, class Saved, class Dx, GradientBlockSmem kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    gradient_block_smem(const __grid_constant__ GradientJob<3, kShape.axes + 1> job) {
    using Rows = GradientRows<Dy, Saved, Dx, kShape.axes, kAccessOf<kShape>>;
    using C = typename Rows::C;
    using RowCut = typename Rows::RowCut;
    using KeptDy = KeptRow<Dy, C, RowCut>;
    using KeptSaved = KeptRow<Saved, C, RowCut>;
    using KeptReader = BothReader<C, typename KeptDy::Reader, typename KeptSaved::Reader>;
    using Reduce = BlockReduce<kShape.threads>;
    constexpr int T = kShape.threads;
    constexpr int N = Rows::N;
    constexpr int kAhead = kInFlight / 2;  // of two arrays
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);

    const int64 row_packs = kShape.kept == kWholeRow ? job.length / N : kShape.kept;
    const int64 dy_elements = row_packs * N + KeptDy::kEdgeRoom;
    // dy takes whole accesses, so that what follows it starts on a boundary.
    const int64 dy_bytes =
        (dy_elements * static_cast<int64>(sizeof(Dy)) + kAccessBytes - 1) / kAccessBytes * kAccessBytes;
    for (int64 r = blockIdx.x; r < job.rows; r += gridDim.x) {
        const auto row = Rows::at(job, r);
        using Reader = decltype(row.reader);
        const RowCut& cut = row.cut;
        const KeptDy kept_dy{{reinterpret_cast<Dy*>(memory), cut}, cut};
        const KeptSaved kept_saved{{reinterpret_cast<Saved*>(memory + dy_bytes), cut}, cut};
        const int64 kept = cut.packs < row_packs ? cut.packs : row_packs;
        const int64 rest = cut.packs - kept;

        auto mine = Sum<C>::identity();
        for_each<T, N, kAhead>(Section<Reader, RowCut>{row.reader, {cut, kept, 0, 1, cut.edges()}}, threadIdx.x,
                               [&](int64 column, auto& values) {
                                   constexpr int kCount = sizeof(values) / sizeof(values[0]);
                                   C dy[kCount], saved[kCount];
#pragma unroll
                                   for (int i = 0; i < kCount; ++i) {
                                       dy[i] = values[i].dy;
                                       saved[i] = values[i].saved;
                                   }
                                   kept_dy.keep(column, dy);
                                   kept_saved.keep(column, saved);
                                   mine.add(sum_of_terms<Op>(values));
                               });
        if constexpr (kShape.kept != kWholeRow && Op::kSumsSaved) {
            for_each<T, N, kAhead>(Section<Reader, RowCut>{row.reader, {cut, rest, kept, 1, 0}}, threadIdx.x,
                                   [&](int64, auto& values) { mine.add(sum_of_terms<Op>(values)); });
        } else if constexpr (kShape.kept != kWholeRow) {
            using DyReader = decltype(row.reader.dy);
            for_each<T, N>(Section<DyReader, RowCut>{row.reader.dy, {cut, rest, kept, 1, 0}}, threadIdx.x,
                           [&](int64, auto& values) { mine.add(sum_of(values)); });
        }
        const C sum = reduce(mine.value(), Add());

        const auto write = [&](int64 column, auto& values) { write_gradients<Op>(row.writer, column, values, sum); };
        if constexpr (kShape.kept != kWholeRow) {
            for_each<T, N, kAhead>(Section<Reader, RowCut>{row.reader, {cut, rest, cut.packs - 1, -1, 0}}, threadIdx.x,
                                   write);
        }
        const KeptReader kept_reader{kept_dy.reader, kept_saved.reader};
        for_each<T, N, kAhead>(Section<KeptReader, RowCut>{kept_reader, {cut, kept, 0, 1, cut.edges()}}, threadIdx.x,
                               write);
    }
}

}  // namespace onepass::cuda
