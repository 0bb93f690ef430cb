// The gradient of softmax or log_softmax, short rows that start anywhere: dy and the saved result come by way of shared
// memory, with the rows beside them (chunk.h), wait in the registers of 1..32 lanes, and dx goes the way that dy came.
// So do those of slabs.
#pragma once

#include "chunk.h"
#include "gradient_row.h"
#include "reduce.h"

namespace onepass::cuda {

// Of doubles one block at least, as warp_smem.h has it.
template <class Op, class Dy, class Saved, class Dx, WarpSmem kShape>
__global__ void __launch_bounds__(kShape.threads, kSame<GradientCompute<Dy, Saved, Dx>, double>)
    gradient_warp_smem(const __grid_constant__ GradientJob<3, 2> job) {
    using C = GradientCompute<Dy, Saved, Dx>;
    using RowCut = Cut<kShape.pack, Alignment::whole>;
    using Wider = choose<(sizeof(Dy) > sizeof(Dx)), Dy, Dx>;
    using Slabs = TeamSlabs<kShape>;
    constexpr int R = kShape.rows, kColumns = kShape.columns;
    struct Row {
        BothReader<C, ChunkReader<Dy, C, Direct, kColumns>, ChunkReader<Saved, C, Direct, kColumns>> reader;
        ChunkWriter<Dx, C, Direct, kColumns> writer;
        RowCut cut;
    };
    ONEPASS_DYNAMIC_SHARED(memory);
    const int lane = Slabs::lane();

    const auto slabs = Slabs::of(job.rows, job.length);
    if (slabs.count <= 0) return;
    const int64 first = slabs.first_element();
    const int wider_bytes = slabs.template bytes<Wider>();
    unsigned char* const room = memory + threadIdx.x / kShape.team * (wider_bytes + slabs.template bytes<Saved>());
    const Dy* const dy = static_cast<const Dy*>(job.array[kDy]) + first;
    const Saved* const saved = static_cast<const Saved*>(job.array[kSaved]) + first;
    Dx* const dx = static_cast<Dx*>(job.array[kDx]) + first;
    const Chunk<Dy, Slabs> dy_chunk(room, dy, slabs);
    const Chunk<Saved, Slabs> saved_chunk(room + wider_bytes, saved, slabs);
    const Chunk<Dx, Slabs> dx_chunk(room, dx, slabs);
    dy_chunk.bring(dy);
    saved_chunk.bring(saved);
    Slabs::wait();

    const auto row_of = [&](int r) {
        const int i = Slabs::row(r);
        return Row{{{dy_chunk.row(i), i, {}}, {saved_chunk.row(i), i, {}}},
                   {dx_chunk.row(i), i, {}},
                   {slabs.length / kShape.pack, 0, 0}};
    };
    HeldBoth<Op, C, kShape.lanes, kShape.packs, RowCut, kShape.padded> held[R];
    C sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        if (slabs.has(Slabs::row(r))) {
            held[r].load(row_of(r), lane);
        } else {
            held[r].clear();
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) sum[r] = all_reduce_lanes<kShape.lanes>(held[r].sum(), Add());
    Slabs::meet();  // all have read what results take the place of
#pragma unroll
    for (int r = 0; r < R; ++r) {
        if (slabs.has(Slabs::row(r))) held[r].write(row_of(r), sum[r], lane);
    }
    Slabs::meet();
    dx_chunk.take(dx);
}

}  // namespace onepass::cuda
