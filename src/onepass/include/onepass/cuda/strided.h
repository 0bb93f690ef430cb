// Rows whose elements lie anywhere: any strides, any number of reduced axes. The rows of a job are the columns of a
// tile: kAcross threads lie side by side across neighbouring rows (which are neighbours in memory when the reduced
// axis is not the last), the block's other threads share out the steps along the rows.
//
// `strided` holds a tile of whole rows in shared memory if it fits, so that x is read once; else it keeps a running
// maximum and sum and reads twice. `strided_reduce` reads once, for sum, mean, amax and amin.
#pragma once

#include "job.h"
#include "online.h"
#include "reduce.h"
#include "row_ops.h"
#include "tile_steps.h"

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
    using C = Compute<In, Out>;
    using TileJob = Job<kShape.kept_axes + kShape.reduced_axes, Load, Store>;

    const TileJob& job;
    int64 row;
    Offset start;
    bool present;  // the tile may be wider than the rows that are left

    __device__ __forceinline__ TilePart(const TileJob& job, int64 tile)
        : job(job), row(tile * kTileRows + threadIdx.x % kShape.across * N), start{0, 0}, present(row < job.rows) {
        if (present) start = job.template offset_of<0, kShape.kept_axes>(row);
    }

    static __device__ __forceinline__ int first_step() { return threadIdx.x / kShape.across; }

    __device__ __forceinline__ Offset offset_of(int64 step) const {
        const Offset along = job.template offset_of<kShape.kept_axes, kShape.reduced_axes>(step);
        return {start.x + along.x, start.y + along.y};
    }

    __device__ __forceinline__ void load(int64 step, C (&to)[N]) const {
        const auto from = load_pack<N>(static_cast<const In*>(job.x) + offset_of(step).x);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = job.load()(widen<C>(from.at[i]), row + i, step);
    }

    __device__ __forceinline__ void store(int64 step, int64 y_offset, C (&values)[N]) const {
        typename Pack<Out, N>::Elements to;
#pragma unroll
        for (int i = 0; i < N; ++i) to.at[i] = narrow<Out>(job.store()(values[i], row + i, step));
        store_pack<N>(static_cast<Out*>(job.y) + y_offset, to);
    }
};

// Running maxima and sums, and doubles, one block at least: told no number, ptxas spills them to make room for another.
template <class Op, class In, class Out, Strided kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, !kShape.staged || kSame<Compute<In, Out>, double>)
    strided(const __grid_constant__ Job<kShape.kept_axes + kShape.reduced_axes, Load, Store> job) {
    using Part = TilePart<In, Out, kShape, Load, Store>;
    using C = typename Part::C;
    using V = Precision<In, Out>;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Reduce = ColumnReduce<Sum<C>, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    constexpr bool kHasMask = kMasks<Load>;
    constexpr int kAhead = kShape.threads < 1024 ? kInFlight : 2;  // 1024 threads have 64 registers each
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Kept* const tile_memory = reinterpret_cast<Kept*>(memory) + threadIdx.x % kShape.across * N;
    Reduce reduce(scratch);

    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Part part(job, tile);
        C max[N];
        Sum<C> sum[N];
        // A thread reads back only what it has written itself: no barrier.
        const auto from_memory = [&](int64 step, C(&to)[N]) { part.load(step, to); };
        const auto from_tile = [&](int64 step, C(&to)[N]) {
            const auto kept = load_shared<N>(tile_memory + step * Part::kTileRows);
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = widen<C>(kept.at[i]);
        };

        if constexpr (kShape.staged) {
#pragma unroll
            for (C& m : max) m = -kInfinity<C>;
            for_each_step<C, kAhead>(part, 0, job.length, from_memory, [&](int64 step, C(&x)[N]) {
                typename Pack<Kept, N>::Elements kept;
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    max[i] = Max()(max[i], x[i]);
                    kept.at[i] = narrow<Kept>(x[i]);  // exact: it has been widened from there
                }
                store_shared<N>(tile_memory + step * Part::kTileRows, kept);
            });
            reduce(max, Max());
            Exponential<V> exponential[N];
#pragma unroll
            for (int i = 0; i < N; ++i) {
                exponential[i] = exponential_of<Op, V, kHasMask>(max[i]);
                sum[i] = Sum<C>::identity();
            }
            for_each_step<C, kAhead>(part, 0, job.length, from_tile, [&](int64, C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) sum[i].add(exponential[i](x[i]));
            });
            reduce(sum, Merge());
        } else {
            OnlineState<V> mine[N];
            for_each_step<C, kAhead>(part, 0, job.length, from_memory, [&](int64, C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    C one[1] = {x[i]};
                    mine[i].push(one);
                }
            });
#pragma unroll
            for (int i = 0; i < N; ++i) max[i] = mine[i].m;
            reduce(max, Max());
#pragma unroll
            for (int i = 0; i < N; ++i) sum[i] = mine[i].sum_at(max[i]);
            reduce(sum, Merge());
#pragma unroll
            for (int i = 0; i < N; ++i)
                sum[i] = anchored<Op, V>(sum[i], max[i], exponential_of<Op, V, kHasMask>(max[i]));
        }

        const auto finish = [&](int i) {
            return Op::template finish<V, kHasMask>(max[i], exponential_of<Op, V, kHasMask>(max[i]), sum[i]);
        };
        if constexpr (Op::kElementwise) {
            decltype(finish(0)) result[N];
#pragma unroll
            for (int i = 0; i < N; ++i) result[i] = finish(i);
            const auto write = [&](int64 step, C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) x[i] = result[i](x[i]);
                part.store(step, part.offset_of(step).y, x);
            };
            if constexpr (kShape.staged) {
                for_each_step<C, kAhead>(part, 0, job.length, from_tile, write);
            } else {
                for_each_step<C, kAhead>(part, 0, job.length, from_memory, write);
            }
        } else if (part.present && Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = finish(i);
            part.store(0, part.start.y, results);
        }
    }
}

template <class Op, class In, class Out, Strided kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.threads >= 512)
    strided_reduce(const __grid_constant__ Job<kShape.kept_axes + kShape.reduced_axes, Load, Store> job) {
    using Part = TilePart<In, Out, kShape, Load, Store>;
    using C = typename Part::C;
    using State = typename Op::template State<C>;
    using Reduce = ColumnReduce<State, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);

    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const Part part(job, tile);
        State state[N];
#pragma unroll
        for (State& s : state) s = Op::template identity<C>();
        for_each_step<C>(
            part, 0, job.length, [&](int64 step, C(&to)[N]) { part.load(step, to); },
            [&](int64, C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    const C one[1] = {x[i]};
                    Op::template push<In>(state[i], one);
                }
            });
        reduce(state, typename Op::Combine());
        if (part.present && Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = Op::finish(state[i], job.length);
            part.store(0, part.start.y, results);
        }
    }
}

}  // namespace onepass::cuda
