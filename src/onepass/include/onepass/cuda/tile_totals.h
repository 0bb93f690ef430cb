// What threads of a tile that waits in registers make of what they have of its columns: the total of all of them, in
// all the blocks that share the tile.
#pragma once

#include "tile_exchange.h"

namespace onepass::cuda {

// Totals of the columns of a tile, kAcross threads with N columns each: of the warps of a block, of the blocks of a
// tile. `Totals` is MergeTotals, or has what is used of it here. Each time the states of all columns are shared out
// among all threads, and lanes that are neighbours merge those of one column: a walk along them by fewer threads, or by
// every warp for itself, took as long as the loads (H200).
template <class Totals, class Others, int kThreads, int kAcross, int N>
class TileTotals {
   public:
    using State = typename Totals::State;
    static constexpr int kColumns = kAcross * N;
    static constexpr int kWarps = kThreads / kWarpLanes;
    static constexpr int kSharers = kThreads / kColumns;                          // of a column, where blocks are many
    static constexpr int kApart = kColumns < kWarpLanes ? kWarpLanes : kColumns;  // threads with parts of one column
    static_assert(kAcross <= kWarpLanes && kColumns <= kThreads);

    struct Scratch {
        State of_warps[kColumns][kWarps + 1];  // one more, so that writes meet fewer banks twice
        State of_others[kColumns][Others::kAllAtHand ? 1 : kThreads / kApart + 1];
        State of_tile[kColumns];
    };

    __device__ __forceinline__ TileTotals(Scratch& scratch, Others& others) : scratch_(scratch), others_(others) {}

    // Every thread brings the states that its warp has of its columns, and gets the tile's.
    __device__ __forceinline__ void operator()(State (&state)[N]) {
        const int first = static_cast<int>(threadIdx.x) % kAcross * N;
        if (threadIdx.x % kWarpLanes < kAcross) {
#pragma unroll
            for (int i = 0; i < N; ++i) scratch_.of_warps[first + i][threadIdx.x / kWarpLanes] = state[i];
        }
        __syncthreads();
        const auto of_warp = [&](int column, int warp) { return scratch_.of_warps[column][warp]; };
        const auto keep = [&](int column, int sharer, int, const State& of_tile) {
            if (sharer == 0) scratch_.of_tile[column] = of_tile;
        };
        if constexpr (kSame<Others, NoOthers>) {
            merge<kWarps>(of_warp, keep);
        } else {
            others_.next();  // bytes that are announced before the barrier are a race to racecheck
            merge<kWarps>(of_warp, [&](int column, int sharer, int sharers, const State& of_block) {
                others_.publish(sharer, sharers, of_block, column);
            });
            if constexpr (Others::kAllAtHand) {
                others_.wait();
                merge<Others::blocks>([&](int column, int block) { return others_.state_of(block, column); }, keep);
            } else {
                collect(keep);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N; ++i) state[i] = scratch_.of_tile[first + i];
    }

   private:
    // Of kCount states of every column, read(column, k): visit(column, sharer, sharers, total), by all lanes that share
    // a column.
    template <int kCount, class Read, class Visit>
    static __device__ __forceinline__ void merge(Read&& read, Visit&& visit) {
        constexpr int kSharers = power_from(kCount);
        const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
        for (int round = 0; round < kColumns * kSharers; round += kThreads) {
            const int of_warp = round + static_cast<int>(threadIdx.x) - lane;
            if (of_warp >= kColumns * kSharers) break;
            const int column = (of_warp + lane) / kSharers, sharer = (of_warp + lane) % kSharers;
            const bool there = column < kColumns && sharer < kCount;
            const State total = Totals::template of_lanes<kSharers>(there ? read(column, sharer) : Totals::identity());
            if (column < kColumns) visit(column, sharer, kSharers, total);
        }
    }

    // The same of states that other blocks may still have to publish. Lanes read what lies side by side: of many
    // blocks' states every 32 bytes of their own took 5 us.
    template <class Visit>
    __device__ __forceinline__ void collect(Visit&& visit) const {
        constexpr int kAtOnce = 2;
        const int column = static_cast<int>(threadIdx.x) % kColumns, sharer = static_cast<int>(threadIdx.x) / kColumns;
        State total = Totals::identity();
        for (int block = sharer; block < others_.blocks; block += kAtOnce * kSharers) {
            State states[kAtOnce][1];
            others_.collect(block, kSharers, column, Totals::identity(), states);
            const State all[kAtOnce + 1] = {total, states[0][0], states[1][0]};
            total = Totals::of_parts(all);
        }
        if constexpr (kColumns < kWarpLanes) total = Totals::template of_lanes<kWarpLanes, kColumns>(total);
        if (kColumns >= kWarpLanes || threadIdx.x % kWarpLanes < kColumns)
            scratch_.of_others[column][threadIdx.x / kApart] = total;
        __syncthreads();
        merge<kThreads / kApart>([&](int of, int k) { return scratch_.of_others[of][k]; }, visit);
    }

    static constexpr int power_from(int n) {
        int power = 1;
        while (power < n) power *= 2;
        return power;
    }

    Scratch& scratch_;
    Others& others_;
};

// What it needs to know of sums that are added plainly: between threads that loses a bit of the total only.
template <class C>
struct PlainSums {
    using State = C;

    static __device__ __forceinline__ C identity() { return C(0); }

    template <int kParts>
    static __device__ __forceinline__ C of_parts(const C (&parts)[kParts]) {
        return sum_of(parts);
    }
    template <int kLanes, int kApart = 1>
    static __device__ __forceinline__ C of_lanes(C mine) {
        return all_reduce_lanes<kLanes, kApart>(mine, Add());
    }
};

}  // namespace onepass::cuda
