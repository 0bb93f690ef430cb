// The gradient of softmax or log_softmax, short rows that start anywhere: dy and the saved result come by way of shared
// memory, with the rows beside them (chunk.h), wait in the registers of 1..32 lanes, and dx goes the way that dy came.
#pragma once

#include "chunk.h"
#include "gradient_row.h"
#include "reduce.h"

namespace onepass::cuda {

template <class Op, class Dy, class Saved, class Dx, WarpSmem kShape>
__global__ void __launch_bounds__(kShape.threads) gradient_warp_smem(const __grid_constant__ GradientJob<3, 2> job) {
    using C = GradientCompute<Dy, Saved, Dx>;
    using RowCut = Cut<kShape.pack, Alignment::whole>;
    using Wider = choose<(sizeof(Dy) > sizeof(Dx)), Dy, Dx>;
    struct Row {
        BothReader<C, ChunkReader<Dy, C, Direct>, ChunkReader<Saved, C, Direct>> reader;
        ChunkWriter<Dx, C, Direct> writer;
        RowCut cut;
    };
    constexpr int R = kShape.rows;
    constexpr int kGroups = kWarpLanes / kShape.lanes;
    ONEPASS_DYNAMIC_SHARED(memory);
    const int lane = threadIdx.x % kShape.lanes;
    const int group = threadIdx.x % kWarpLanes / kShape.lanes;
    const int warp_lane = threadIdx.x % kWarpLanes;

    const auto rows = WarpRows<kShape.threads, kGroups * R>::of(job.rows);
    if (rows.count <= 0) return;
    const int length = static_cast<int>(job.length);
    const int64 first = rows.first * length;
    const int most = kGroups * R * length;
    unsigned char* const room =
        memory + threadIdx.x / kWarpLanes * (Chunk<Wider>::bytes(most) + Chunk<Saved>::bytes(most));
    const Dy* const dy = static_cast<const Dy*>(job.array[kDy]) + first;
    const Saved* const saved = static_cast<const Saved*>(job.array[kSaved]) + first;
    Dx* const dx = static_cast<Dx*>(job.array[kDx]) + first;
    const Chunk<Dy> dy_chunk(room, dy, rows.count * length);
    const Chunk<Saved> saved_chunk(room + Chunk<Wider>::bytes(most), saved, rows.count * length);
    const Chunk<Dx> dx_chunk(room, dx, rows.count * length);
    dy_chunk.bring(dy, warp_lane);
    saved_chunk.bring(saved, warp_lane);
    wait_for_chunks();

    const auto row_of = [&](int r) {
        const int i = r * kGroups + group, at = i * length;
        return Row{{{dy_chunk.at(at), i, {}}, {saved_chunk.at(at), i, {}}},
                   {dx_chunk.at(at), i, {}},
                   {length / kShape.pack, 0, 0}};
    };
    HeldBoth<Op, C, kShape.lanes, kShape.packs, RowCut, kShape.padded> held[R];
    C sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        if (r * kGroups + group < rows.count) {
            held[r].load(row_of(r), lane);
        } else {
            held[r].clear();
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) sum[r] = all_reduce_lanes<kShape.lanes>(held[r].sum(), Add());
    __syncwarp();  // all lanes have read what results take the place of
#pragma unroll
    for (int r = 0; r < R; ++r) {
        if (r * kGroups + group < rows.count) held[r].write(row_of(r), sum[r], lane);
    }
    __syncwarp();
    dx_chunk.take(dx, warp_lane);
}

}  // namespace onepass::cuda
