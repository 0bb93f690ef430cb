// A thread's part of a tile: rows whose elements lie anywhere are its columns.
#pragma once

#include "job.h"
#include "pack.h"
#include "types.h"

namespace onepass::cuda {

struct Strided {
    int kept_axes;
    int reduced_axes;
    int threads;  // of a block
    int across;   // of them side by side across rows, a power of two
    int pack;     // rows per access: they and their results are neighbours in memory, on pack boundaries
    bool staged;  // the tile waits in shared memory
};

// This thread's part of a tile: N neighbouring rows, every kSteps-th step along them.
template <class In, class Out, Strided kShape, class Load, class Store>
struct TilePart {
    static constexpr int N = kShape.pack;
    static constexpr int kSteps = kShape.threads / kShape.across;
    static constexpr int kTileRows = kShape.across * N;
    static constexpr int kElementBytes = sizeof(In);
    using C = Compute<In, Out>;
    using TileJob = Job<kShape.kept_axes + kShape.reduced_axes, Load, Store>;

    const TileJob& job;
    int64 row;
    Offset start;
    bool present;  // the tile may be wider than the rows that are left; a thread beyond them sees the last

    __device__ __forceinline__ TilePart(const TileJob& job, int64 tile)
        : job(job), row(tile * kTileRows + threadIdx.x % kShape.across * N), present(row < job.rows) {
        if (!present) row = job.rows - N;
        start = job.template offset_of<0, kShape.kept_axes>(row);
    }

    static __device__ __forceinline__ int first_step() { return threadIdx.x / kShape.across; }
    // From a step of this thread's to its next.
    static constexpr __device__ __forceinline__ int apart() { return kSteps; }

    __device__ __forceinline__ Offset offset_of(int64 step) const {
        const Offset along = job.template offset_of<kShape.kept_axes, kShape.reduced_axes>(step);
        return {start.x + along.x, start.y + along.y};
    }

    // From a step of this thread's to its next, where so many blocks share the steps: along one axis by an addition.
    __device__ __forceinline__ void advance(int64& step, Offset& at, int blocks = 1) const {
        step += blocks * kSteps;
        if constexpr (kShape.reduced_axes == 1) {
            at.x += blocks * kSteps * job.axis[kShape.kept_axes].x_stride;
            at.y += blocks * kSteps * job.axis[kShape.kept_axes].y_stride;
        } else {
            at = offset_of(step);
        }
    }

    __device__ __forceinline__ void load(int64 step, C (&to)[N]) const { load(step, offset_of(step).x, to); }

    __device__ __forceinline__ void load(int64 step, int64 x_offset, C (&to)[N]) const {
        load_pack(static_cast<const In*>(job.x) + x_offset, to);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = job.load()(to[i], row + i, step);
    }

    __device__ __forceinline__ void store(int64 step, int64 y_offset, C (&values)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] = job.store()(values[i], row + i, step);
        store_pack(static_cast<Out*>(job.y) + y_offset, values);
    }
};

}  // namespace onepass::cuda
