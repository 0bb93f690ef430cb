// Short rows that start anywhere: a row is handled by a group of 1..32 lanes of a warp and waits in their registers, as
// in warp.h, but comes and goes by way of shared memory, with the rows beside it (chunk.h). So memory sees whole
// accesses of rows whose width no access divides, and few lanes share a row, or none: 262144 rows of 33 float32 cost a
// lane 33 elements, where 32 lanes of a warp, an element each, spend more on telling each other.
//
// x is read once, y written once; there is no barrier but a warp's own.
#pragma once

#include "chunk.h"
#include "held.h"
#include "reduce.h"
#include "row.h"

namespace onepass::cuda {

template <class Op, class In, class Out, WarpSmem kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads) warp_smem(const __grid_constant__ Job<1, Load, Store> job) {
    using Rows = Rows<Op, In, Out, 1, kShape.pack, Alignment::whole, Load, Store>;
    using C = typename Rows::C;
    using Wider = choose<(sizeof(In) > sizeof(Out)) || !Op::kElementwise, In, Out>;
    constexpr int R = kShape.rows;
    constexpr int kGroups = kWarpLanes / kShape.lanes;
    ONEPASS_DYNAMIC_SHARED(memory);
    const auto reduce = [](auto value, auto combine) { return all_reduce_lanes<kShape.lanes>(value, combine); };
    const int lane = threadIdx.x % kShape.lanes;
    const int group = threadIdx.x % kWarpLanes / kShape.lanes;
    const int warp_lane = threadIdx.x % kWarpLanes;

    const auto rows = WarpRows<kShape.threads, kGroups * R>::of(job.rows);
    if (rows.count <= 0) return;
    const int length = static_cast<int>(job.length);
    unsigned char* const room = memory + threadIdx.x / kWarpLanes * Chunk<Wider>::bytes(kGroups * R * length);
    const In* const x = static_cast<const In*>(job.x) + rows.first * length;
    const Chunk<In> in(room, x, rows.count * length);
    in.bring(x, warp_lane);
    wait_for_chunks();

    const auto cut = Rows::RowCut::of(x, length);
    const auto row = [&](int r) { return r * kGroups + group; };
    Held<C, kShape.lanes, kShape.packs, typename Rows::RowCut, kShape.padded> held[R];
    C max[R];
    Exponential<typename Rows::V, Op::kExact> exponential[R];
    Sum<C> sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        held[r].fill(-kInfinity<C>);
        const ChunkReader<In, C, Load> reader{in.at(row(r) * length), rows.first + row(r), job.load()};
        if (row(r) < rows.count) held[r].load(reader, cut, lane);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) max[r] = all_max_lanes<kShape.lanes>(held[r].reduce(Max()));
#pragma unroll
    for (int r = 0; r < R; ++r) {
        exponential[r] = Rows::exponential_of(max[r], [&](auto transform) { held[r].transform(transform); });
        sum[r] = total_of<Op>(held[r].template exponentials<Op::kKeepsExponentials>(exponential[r]), reduce);
    }

    if constexpr (Op::kElementwise) {
        Out* const y = static_cast<Out*>(job.y) + rows.first * length;
        const Chunk<Out> out(room, y, rows.count * length);
        __syncwarp();  // all lanes have read what results take the place of
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (row(r) >= rows.count) continue;
            const ChunkWriter<Out, C, Store> writer{out.at(row(r) * length), rows.first + row(r), job.store()};
            held[r].template write<Op>(Rows::finish(max[r], exponential[r], sum[r]), writer, cut, lane);
        }
        __syncwarp();
        out.take(y, warp_lane);
    } else {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (row(r) >= rows.count || lane != 0) continue;
            Rows::at(job, rows.first + row(r)).writer.one(0, Rows::finish(max[r], exponential[r], sum[r]));
        }
    }
}

struct WarpSmemReduce {
    int threads;
    int lanes;
    int rows;
    int pack;
};

// sum, mean, amax and amin.
template <class Op, class In, class Out, WarpSmemReduce kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads) warp_smem_reduce(const __grid_constant__ Job<1, Load, Store> job) {
    using C = Compute<In, Out>;
    using RowCut = Cut<kShape.pack, Alignment::whole>;
    struct Row {
        ChunkReader<In, C, Load> reader;
        RowCut cut;
    };
    constexpr int R = kShape.rows;
    constexpr int kGroups = kWarpLanes / kShape.lanes;
    ONEPASS_DYNAMIC_SHARED(memory);
    const int lane = threadIdx.x % kShape.lanes;
    const int group = threadIdx.x % kWarpLanes / kShape.lanes;

    const auto rows = WarpRows<kShape.threads, kGroups * R>::of(job.rows);
    if (rows.count <= 0) return;
    const int length = static_cast<int>(job.length);
    unsigned char* const room = memory + threadIdx.x / kWarpLanes * Chunk<In>::bytes(kGroups * R * length);
    const In* const x = static_cast<const In*>(job.x) + rows.first * length;
    const Chunk<In> in(room, x, rows.count * length);
    in.bring(x, threadIdx.x % kWarpLanes);
    wait_for_chunks();

#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int i = r * kGroups + group;
        const Row row{{in.at(i * length), rows.first + i, job.load()}, RowCut::of(x, length)};
        auto state = Op::template identity<C>();
        if (i < rows.count) {
            for_each<kShape.lanes, kShape.pack, kInFlight, kInFlight - 1>(
                row, lane, [&](int64, auto& values) { Op::template push<In>(state, values); });
        }
        state = reduce_lanes<kShape.lanes>(state, typename Op::Combine());
        if (i >= rows.count || lane != 0) continue;
        Out* const y = static_cast<Out*>(job.y) + (rows.first + i) * job.axis[0].y_stride;
        Writer<Out, C, Store>{y, rows.first + i, job.store()}.one(0, Op::finish(state, job.length));
    }
}

}  // namespace onepass::cuda
