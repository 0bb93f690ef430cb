// A thread's part of a tile of a gradient's rows: N neighbouring rows, every kSteps-th step along them.
#pragma once

#include "gradient_row.h"
#include "tile_steps.h"

namespace onepass::cuda {

struct GradientStrided {
    int kept_axes;
    int reduced_axes;
    int threads;      // of a block
    int across;       // of them side by side across rows, a power of two
    int pack;         // rows per access: they are neighbours in dx, on pack boundaries
    bool wide_dy;     // and in dy
    bool wide_saved;  // and in the saved array
    bool staged;      // the tile waits in shared memory
};

template <int kArrays, class Dx, class C, GradientStrided kShape>
struct GradientTile {
    using Element = Dx;
    static constexpr int N = kShape.pack;
    static constexpr int kSteps = kShape.threads / kShape.across;
    static constexpr int kTileRows = kShape.across * N;
    static constexpr int kStepsPerThread = 16;  // of a segment, where blocks share out the steps of a tile
    static constexpr int kAhead = kShape.threads < 1024 ? kInFlight : kInFlight / 2;  // 1024 have 64 registers each
    using TileJob = GradientJob<kArrays, kShape.kept_axes + kShape.reduced_axes>;

    const TileJob& job;
    int64 row;
    Offsets<kArrays> start{};
    bool present;  // the tile may be wider than the rows that are left; a thread beyond them sees the last

    __device__ __forceinline__ GradientTile(const TileJob& job, int64 tile)
        : job(job), row(tile * kTileRows + threadIdx.x % kShape.across * N), present(row < job.rows) {
        if (!present) row = job.rows - N;
        start = job.template offset_of<0, kShape.kept_axes>(row);
    }

    static __device__ __forceinline__ int first_step() { return threadIdx.x / kShape.across; }
    // From a step of this thread's to its next.
    static constexpr __device__ __forceinline__ int apart() { return kSteps; }

    __device__ __forceinline__ Offsets<kArrays> offset_of(int64 step) const {
        auto at = job.template offset_of<kShape.kept_axes, kShape.reduced_axes>(step);
#pragma unroll
        for (int a = 0; a < kArrays; ++a) at.of[a] += start.of[a];
        return at;
    }

    // From a step of this thread's to its next, where so many blocks share the steps: along one axis by an addition.
    __device__ __forceinline__ void advance(int64& step, Offsets<kArrays>& at, int blocks) const {
        step += blocks * kSteps;
        if constexpr (kShape.reduced_axes == 1) {
#pragma unroll
            for (int a = 0; a < kArrays; ++a) at.of[a] += blocks * kSteps * job.axis[kShape.kept_axes].stride[a];
        } else {
            at = offset_of(step);
        }
    }

    // As they are in memory. kWide: the rows of a pack are neighbours in this array, too.
    template <class In, bool kWide>
    __device__ __forceinline__ auto words(int which, const Offsets<kArrays>& offset) const {
        const In* from = job.template input<In>(which, offset);
        if constexpr (kWide) {
            return load_words<N>(from);
        } else {
            const int64 stride = job.axis[kShape.kept_axes - 1].stride[which];
            typename Pack<In, N>::Elements elements;
#pragma unroll
            for (int i = 0; i < N; ++i) elements.at[i] = from[i * stride];
            return __builtin_bit_cast(typename Pack<In, N>::Words, elements);
        }
    }

    template <class In, bool kWide>
    __device__ __forceinline__ void load(int which, const Offsets<kArrays>& offset, C (&to)[N]) const {
        widen_words<In>(words<In, kWide>(which, offset), to);
    }

    __device__ __forceinline__ void store(const Offsets<kArrays>& offset, const C (&values)[N]) const {
        store_pack(job.template result<Dx>(offset), values);
    }
};

}  // namespace onepass::cuda
