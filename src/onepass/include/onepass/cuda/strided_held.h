// Rows whose elements lie anywhere, short enough to wait in registers: a tile as in strided.h, of which each thread
// holds every step that is its own. All loads of a tile are under way at a time, nothing goes through shared memory but
// what the threads of a column tell each other, and where a row has but one thread, not even that. Such a thread has
// rows of several tiles: of a few steps of one, too little would be under way.
//
// `strided_held` is for the softmax family, `strided_held_reduce` for sum, mean, amax and amin of rows of a few steps.
#pragma once

#include "column_totals.h"
#include "held_steps.h"
#include "tile.h"
#include "tile_rows.h"

namespace onepass::cuda {

struct StridedHeld {
    int kept_axes;
    int reduced_axes;
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int across;    // threads side by side across rows, a power of two; or all
    int packs;     // that a thread holds of a tile, one for each of its steps: no step but the last may be missing
    int pack;      // rows per access: they are neighbours in memory, on pack boundaries; without by_rows, results, too
    int tiles;     // of a block, all at a time: 1 where threads share rows
    ByRows by_rows = {};

    constexpr Strided tile() const { return {kept_axes, reduced_axes, threads, across, pack, false}; }
};

template <class Op, class In, class Out, StridedHeld kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    strided_held(const __grid_constant__ Job<kShape.kept_axes + kShape.reduced_axes, Load, Store> job) {
    using Part = TilePart<In, Out, kShape.tile(), Load, Store>;
    using C = typename Part::C;
    using V = Precision<In, Out>;
    // Additions between threads lose a bit of a quotient only: columns of logarithms send sums of two parts.
    using Reduce = ColumnReduce<choose<Op::kExact, Sum<C>, C>, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    constexpr int kHeld = kShape.packs;
    constexpr int kTiles = kShape.tiles;
    constexpr bool kHasMask = kMasks<Load>;
    constexpr bool kByRows = kShape.by_rows.pack > 0;
    using Steps = HeldSteps<Op, V, In, kHeld, N, kSame<Load, Direct>>;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);

    // Calls visit(k, step, offset) for this thread's steps.
    const bool last = Part::first_step() + (kHeld - 1) * Part::kSteps < job.length;
    const auto for_each_held = [&](const Part& part, auto&& visit) {
        int64 step = Part::first_step();
        Offset at = part.offset_of(step);
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
            if (k < kHeld - 1 || last) visit(k, step, at);
            part.advance(step, at);
        }
    };
    const auto finish_tile = [&](int64 tile, const Part& part, Steps& held) {
        C max[N];
        held.maxima(max);
        reduce(max, Max());
        ExponentialOf<Op, V> exponential[N];
        Sum<C> sum[N];
#pragma unroll
        for (int i = 0; i < N; ++i) exponential[i] = exponential_of<Op, V, kHasMask>(max[i]);
        held.add_up(exponential, sum);
        total_of_columns<Op>(sum, reduce);

        const auto finish = [&](int i) { return Op::template finish<V, kHasMask>(max[i], exponential[i], sum[i]); };
        // By rows all threads write what all have put. Asked later than here, it costs registers.
        if (!kByRows && !part.present) return;
        if constexpr (Op::kElementwise) {
            const TileRows<Out, kShape.across, N, kShape.by_rows> rows(memory, job.length);
            if constexpr (kByRows) rows.begin(part.start.y, job.axis[kShape.kept_axes - 1].y_stride);
            decltype(finish(0)) result[N];
#pragma unroll
            for (int i = 0; i < N; ++i) result[i] = finish(i);
            const auto write = [&](int k, int64 step, const Offset& at) {
                C x[N];
                held.get(k, x);
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if constexpr (Steps::kKeeps) {
                        x[i] = result[i].normalize(x[i]);
                    } else {
                        x[i] = result[i](x[i]);
                    }
                }
                if constexpr (kByRows) {
#pragma unroll
                    for (int i = 0; i < N; ++i) x[i] = job.store()(x[i], part.row + i, step);
                    rows.put(step, x);
                } else {
                    part.store(step, at.y, x);
                }
            };
            if (part.present) for_each_held(part, write);
            if constexpr (kByRows) rows.write(static_cast<Out*>(job.y), tile, job.rows);
        } else if (Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = finish(i);
            part.store(0, part.start.y, results);
        }
    };
    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = static_cast<int64>(blockIdx.x) * kTiles; tile < tiles;
         tile += static_cast<int64>(gridDim.x) * kTiles) {
        Steps held[kTiles];
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            const Part part(job, tile + t);
            held[t].clear_last();
            for_each_held(part, [&](int k, int64 step, const Offset& at) { held[t].load(part, k, step, at); });
        }
#pragma unroll
        for (int t = 0; t < kTiles; ++t) finish_tile(tile + t, Part(job, tile + t), held[t]);
    }
}

template <class Op, class In, class Out, StridedHeld kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    strided_held_reduce(const __grid_constant__ Job<kShape.kept_axes + kShape.reduced_axes, Load, Store> job) {
    static_assert(kShape.threads == kShape.across, "a thread has its rows to itself");
    using Part = TilePart<In, Out, kShape.tile(), Load, Store>;
    using C = typename Part::C;
    constexpr int N = kShape.pack;
    constexpr int kHeld = kShape.packs;
    constexpr int kTiles = kShape.tiles;

    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = static_cast<int64>(blockIdx.x) * kTiles; tile < tiles;
         tile += static_cast<int64>(gridDim.x) * kTiles) {
        C held[kTiles][kHeld][N];
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            const Part part(job, tile + t);
            int64 step = 0;
            Offset at = part.offset_of(step);
#pragma unroll
            for (int k = 0; k < kHeld; ++k) {
                part.load(step, at.x, held[t][k]);
                part.advance(step, at);
            }
        }
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            const Part part(job, tile + t);
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) {
                C of_row[kHeld];
#pragma unroll
                for (int k = 0; k < kHeld; ++k) of_row[k] = held[t][k][i];
                auto state = Op::template identity<C>();
                Op::template push<In>(state, of_row);
                results[i] = Op::finish(state, job.length);
            }
            if (part.present) part.store(0, part.start.y, results);
        }
    }
}

}  // namespace onepass::cuda
