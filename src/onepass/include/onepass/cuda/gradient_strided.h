// The gradient of softmax or log_softmax of rows whose elements lie anywhere: the rows of a job are the columns of a
// tile, as in strided.h. A tile of whole rows of dy and of the saved result waits in shared memory if it fits, so that
// both are read once; else they are read twice.
#pragma once

#include "gradient_tile.h"
#include "reduce.h"

namespace onepass::cuda {

template <class Op, class Dy, class Saved, class Dx, GradientStrided kShape>
__global__ void __launch_bounds__(kShape.threads, 1)
    gradient_strided(const __grid_constant__ GradientJob<3, kShape.kept_axes + kShape.reduced_axes> job) {
    using C = GradientCompute<Dy, Saved, Dx>;
    using Part = GradientTile<3, Dx, C, kShape>;
    using Reduce = ColumnReduce<Sum<C>, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);
    const int64 dy_bytes = (job.length * Part::kTileRows * static_cast<int64>(sizeof(Dy)) + kAccessBytes - 1) /
                           kAccessBytes * kAccessBytes;
    Dy* const dy_tile = reinterpret_cast<Dy*>(memory) + threadIdx.x % kShape.across * N;
    Saved* const saved_tile = reinterpret_cast<Saved*>(memory + dy_bytes) + threadIdx.x % kShape.across * N;

    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Part part(job, tile);
        const auto from_memory = [&](int64 step, Both<C>(&to)[N]) {
            C dy[N], saved[N];
            const auto offset = part.offset_of(step);
            part.template load<Dy, kShape.wide_dy>(kDy, offset, dy);
            part.template load<Saved, kShape.wide_saved>(kSaved, offset, saved);
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = {dy[i], saved[i]};
        };
        [[maybe_unused]] const auto dy_from_memory = [&](int64 step, C(&to)[N]) {
            part.template load<Dy, kShape.wide_dy>(kDy, part.offset_of(step), to);
        };
        // A thread reads back only what it has written itself: no barrier.
        [[maybe_unused]] const auto from_tile = [&](int64 step, Both<C>(&to)[N]) {
            const auto dy = load_shared<N>(dy_tile + step * Part::kTileRows);
            const auto saved = load_shared<N>(saved_tile + step * Part::kTileRows);
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = {widen<C>(dy.at[i]), widen<C>(saved.at[i])};
        };

        Sum<C> sum[N];
#pragma unroll
        for (auto& s : sum) s = Sum<C>::identity();
        if constexpr (kShape.staged || Op::kSumsSaved) {
            for_each_step<Both<C>, Part::kAhead>(
                part, 0, job.length, from_memory, [&](int64 step, Both<C>(&values)[N]) {
                    if constexpr (kShape.staged) {
                        typename Pack<Dy, N>::Elements dy;
                        typename Pack<Saved, N>::Elements saved;
#pragma unroll
                        for (int i = 0; i < N; ++i) {  // exact: they have been widened from there
                            dy.at[i] = narrow<Dy>(values[i].dy);
                            saved.at[i] = narrow<Saved>(values[i].saved);
                        }
                        store_shared<N>(dy_tile + step * Part::kTileRows, dy);
                        store_shared<N>(saved_tile + step * Part::kTileRows, saved);
                    }
#pragma unroll
                    for (int i = 0; i < N; ++i) sum[i].add(Op::term(values[i].dy, values[i].saved));
                });
        } else {
            for_each_step<C, Part::kAhead>(part, 0, job.length, dy_from_memory, [&](int64, C(&dy)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) sum[i].add(dy[i]);
            });
        }
        reduce(sum, Merge());

        C total[N];
#pragma unroll
        for (int i = 0; i < N; ++i) total[i] = sum[i].value();
        const auto write = [&](int64 step, Both<C>(&values)[N]) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = Op::gradient(values[i].dy, values[i].saved, total[i]);
            part.store(step, results);
        };
        if constexpr (kShape.staged) {
            for_each_step<Both<C>, Part::kAhead>(part, 0, job.length, from_tile, write);
        } else {
            for_each_step<Both<C>, Part::kAhead>(part, 0, job.length, from_memory, write);
        }
    }
}

}  // namespace onepass::cuda
