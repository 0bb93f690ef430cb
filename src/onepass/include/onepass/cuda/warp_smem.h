// Short rows that start anywhere: a row is handled by a group of 1..32 lanes of a warp and waits in their registers, as
// in warp.h, but comes and goes by way of shared memory, with the rows beside it (chunk.h). So memory sees whole
// accesses of rows whose width no access divides, and few lanes share a row, or none: 262144 rows of 33 float32 cost a
// lane 33 elements, where 32 lanes of a warp, an element each, spend more on telling each other. The same of a few rows
// whose elements take turns, a slab, wherever it begins; a block brings what is too large for a warp.
//
// x is read once, y written once; there is no barrier but the team's own.
#pragma once

#include "chunk.h"
#include "held.h"
#include "reduce.h"
#include "row.h"

namespace onepass::cuda {

// Of doubles one block at least: told no number, ptxas spills some to make room for another.
template <class Op, class In, class Out, WarpSmem kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kSame<Compute<In, Out>, double>)
    warp_smem(const __grid_constant__ Job<1, Load, Store> job) {
    using Rows = Rows<Op, In, Out, 1, kShape.pack, Alignment::whole, Load, Store>;
    using C = typename Rows::C;
    using Wider = choose<(sizeof(In) > sizeof(Out)) || !Op::kElementwise, In, Out>;
    using Slabs = TeamSlabs<kShape>;
    constexpr int R = kShape.rows;
    ONEPASS_DYNAMIC_SHARED(memory);
    const auto reduce = [](auto value, auto combine) { return all_reduce_lanes<kShape.lanes>(value, combine); };
    const int lane = Slabs::lane();

    const auto slabs = Slabs::of(job.rows, job.length);
    if (slabs.count <= 0) return;
    unsigned char* const room = memory + threadIdx.x / kShape.team * slabs.template bytes<Wider>();
    const In* const x = static_cast<const In*>(job.x) + slabs.first_element();
    const Chunk<In, Slabs> in(room, x, slabs);
    in.bring(x);
    Slabs::wait();

    const typename Rows::RowCut cut{slabs.length / kShape.pack, 0, 0};
    Held<C, kShape.lanes, kShape.packs, typename Rows::RowCut, kShape.padded> held[R];
    C max[R];
    ExponentialOf<Op, typename Rows::V, false> exponential[R];
    Sum<C> sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        held[r].fill(-kInfinity<C>);
        const int row = Slabs::row(r);
        const ChunkReader<In, C, Load, kShape.columns> reader{in.row(row), slabs.first_row() + row, job.load()};
        if (slabs.has(row)) held[r].load(reader, cut, lane);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) max[r] = all_max_lanes<kShape.lanes>(held[r].reduce(Max()));
#pragma unroll
    for (int r = 0; r < R; ++r) {
        exponential[r] = Rows::exponential_of(max[r], [&](auto transform) { held[r].transform(transform); });
        sum[r] = total_of<Op>(held[r].template exponentials<Op::kKeepsExponentials>(exponential[r]), reduce);
    }

    if constexpr (Op::kElementwise) {
        Out* const y = static_cast<Out*>(job.y) + slabs.first_element();
        const Chunk<Out, Slabs> out(room, y, slabs);
        Slabs::meet();  // all have read what results take the place of
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int row = Slabs::row(r);
            if (!slabs.has(row)) continue;
            const ChunkWriter<Out, C, Store, kShape.columns> writer{out.row(row), slabs.first_row() + row, job.store()};
            held[r].template write<Op>(Rows::finish(max[r], exponential[r], sum[r]), writer, cut, lane);
        }
        Slabs::meet();
        out.take(y);
    } else {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int row = Slabs::row(r);
            if (!slabs.has(row) || lane != 0) continue;
            Rows::at(job, slabs.first_row() + row).writer.one(0, Rows::finish(max[r], exponential[r], sum[r]));
        }
    }
}

// sum, mean, amax and amin.
template <class Op, class In, class Out, WarpSmemReduce kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads) warp_smem_reduce(const __grid_constant__ Job<1, Load, Store> job) {
    using C = Compute<In, Out>;
    using Slabs = TeamSlabs<kShape>;
    struct Row {
        ChunkReader<In, C, Load, kShape.columns> reader;
        Cut<kShape.pack, Alignment::whole> cut;
    };
    ONEPASS_DYNAMIC_SHARED(memory);
    const int lane = Slabs::lane();

    const auto slabs = Slabs::of(job.rows, job.length);
    if (slabs.count <= 0) return;
    unsigned char* const room = memory + threadIdx.x / kShape.team * slabs.template bytes<In>();
    const In* const x = static_cast<const In*>(job.x) + slabs.first_element();
    const Chunk<In, Slabs> in(room, x, slabs);
    in.bring(x);
    Slabs::wait();

#pragma unroll
    for (int r = 0; r < kShape.rows; ++r) {
        const int i = Slabs::row(r);
        const int64 row = slabs.first_row() + i;
        const Row part{{in.row(i), row, job.load()}, {slabs.length / kShape.pack, 0, 0}};
        auto state = Op::template identity<C>();
        if (slabs.has(i)) {
            for_each<kShape.lanes, kShape.pack, kInFlight, kInFlight - 1>(
                part, lane, [&](int64, auto& values) { Op::template push<In>(state, values); });
        }
        state = reduce_lanes<kShape.lanes>(state, typename Op::Combine());
        if (!slabs.has(i) || lane != 0) continue;
        Out* const y = static_cast<Out*>(job.y) + row * job.axis[0].y_stride;
        Writer<Out, C, Store>{y, row, job.store()}.one(0, Op::finish(state, job.length));
    }
}

}  // namespace onepass::cuda
