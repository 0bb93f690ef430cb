// The gradient of softmax or log_softmax of rows whose elements lie anywhere: the rows of a job are the columns of a
// tile, as in strided.h. A tile of whole rows of dy and of the saved result waits in shared memory if it fits, so that
// both are read once; else they are read twice.
#pragma once

#include "gradient_tile.h"
#include "reduce.h"

namespace onepass::cuda {

// The steps [begin, end) of a tile of both arrays.
template <class Op, class Dy, class Saved, class Dx, GradientStrided kShape>
struct GradientSteps {
    using C = GradientCompute<Dy, Saved, Dx>;
    using Part = GradientTile<3, Dx, C, kShape>;
    static constexpr int N = kShape.pack;

    const Part& part;
    int64 begin;
    int64 end;
    Dy* dy_kept;  // this thread's columns of the first step, if the slice waits in shared memory
    Saved* saved_kept;

    __device__ __forceinline__ GradientSteps(const Part& part, int64 begin, int64 end, unsigned char* memory = nullptr)
        : part(part), begin(begin), end(end) {
        const int column = static_cast<int>(threadIdx.x) % kShape.across * N;
        const int64 dy_bytes = ((end - begin) * Part::kTileRows * static_cast<int64>(sizeof(Dy)) + kAccessBytes - 1) /
                               kAccessBytes * kAccessBytes;
        dy_kept = reinterpret_cast<Dy*>(memory) + column;
        saved_kept = reinterpret_cast<Saved*>(memory + dy_bytes) + column;
    }

    // What this thread's steps add to its columns' sums; kShape.staged: the values wait from here on.
    __device__ __forceinline__ void add_to(Sum<C> (&sum)[N]) const {
        if constexpr (kShape.staged || Op::kSumsSaved) {
            const auto from_memory = [&](int64 step, Both<C>(&to)[N]) { load(step, to); };
            for_each_step<Both<C>, Part::kAhead>(part, begin, end, from_memory, [&](int64 step, Both<C>(&values)[N]) {
                if constexpr (kShape.staged) keep(step, values);
#pragma unroll
                for (int i = 0; i < N; ++i) sum[i].add(Op::term(values[i].dy, values[i].saved));
            });
        } else {
            const auto dy_from_memory = [&](int64 step, C(&to)[N]) {
                part.template load<Dy, kShape.wide_dy>(kDy, part.offset_of(step), to);
            };
            for_each_step<C, Part::kAhead>(part, begin, end, dy_from_memory, [&](int64, C(&dy)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) sum[i].add(dy[i]);
            });
        }
    }

    // dx of this thread's steps, from the sums of whole rows.
    __device__ __forceinline__ void write(const Sum<C> (&sum)[N]) const {
        C total[N];
#pragma unroll
        for (int i = 0; i < N; ++i) total[i] = sum[i].value();
        const auto read = [&](int64 step, Both<C>(&to)[N]) {
            if constexpr (kShape.staged) {
                read_kept(step, to);
            } else {
                load(step, to);
            }
        };
        for_each_step<Both<C>, Part::kAhead>(part, begin, end, read, [&](int64 step, Both<C>(&values)[N]) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) {
                results[i] = Op::template gradient<typename Part::Element>(values[i].dy, values[i].saved, total[i]);
            }
            part.store(part.offset_of(step), results);
        });
    }

   private:
    __device__ __forceinline__ void load(int64 step, Both<C> (&to)[N]) const {
        C dy[N], saved[N];
        const auto offset = part.offset_of(step);
        part.template load<Dy, kShape.wide_dy>(kDy, offset, dy);
        part.template load<Saved, kShape.wide_saved>(kSaved, offset, saved);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = {dy[i], saved[i]};
    }

    // A thread reads back only what it has kept itself: no barrier.
    __device__ __forceinline__ void keep(int64 step, const Both<C> (&values)[N]) const {
        C dy[N], saved[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            dy[i] = values[i].dy;
            saved[i] = values[i].saved;
        }
        store_shared(dy_kept + (step - begin) * Part::kTileRows, dy);
        store_shared(saved_kept + (step - begin) * Part::kTileRows, saved);
    }

    __device__ __forceinline__ void read_kept(int64 step, Both<C> (&to)[N]) const {
        C dy[N], saved[N];
        load_shared(dy_kept + (step - begin) * Part::kTileRows, dy);
        load_shared(saved_kept + (step - begin) * Part::kTileRows, saved);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = {dy[i], saved[i]};
    }
};

template <class Op, class Dy, class Saved, class Dx, GradientStrided kShape>
__global__ void __launch_bounds__(kShape.threads, 1)
    gradient_strided(const __grid_constant__ GradientJob<3, kShape.kept_axes + kShape.reduced_axes> job) {
    using Steps = GradientSteps<Op, Dy, Saved, Dx, kShape>;
    using Part = typename Steps::Part;
    using Total = Sum<typename Steps::C>;
    using Reduce = ColumnReduce<Total, kShape.threads, kShape.across, kShape.pack>;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);

    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Part part(job, tile);
        const Steps steps(part, 0, job.length, memory);
        Total sum[kShape.pack];
#pragma unroll
        for (Total& s : sum) s = Total::identity();
        steps.add_to(sum);
        reduce(sum, Merge());
        steps.write(sum);
    }
}

}  // namespace onepass::cuda
