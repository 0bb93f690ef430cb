// What blocks that claim the slices of rows one after the other tell each other.
//
// The slices of a launch are numbered row by row. A block begins with the one of its number, and when it has written it
// it takes the next from a counter: a multiprocessor that memory serves better takes more of them. Whoever has the last
// slice of a row, which was claimed last and is likely to be looked at last, reads the states of all others, and tells
// them the total: hundreds of blocks that all read hundreds of states would wait for the same few lines of L2. Of few
// slices each block reads the states itself, and saves a trip.
//
// Blocks wait for slices that are claimed after theirs, but never for one that waits behind another slice: a block
// claims when it has nothing else left to do. So it is enough that as many blocks as a row has slices are at work at
// once, and a cooperative launch sees to that.
//
// Each slice of the launch has a slot of its own, and each row one for its total: a block may come as late as it wants.
#pragma once

#include "exchange.h"

namespace onepass::cuda {

// As Exchange, of slices. kEachReads: the states; else one block of each row does.
template <class State, int kThreads, bool kEachReads>
class ClaimExchange {
   public:
    static constexpr int kWarps = kThreads / kWarpLanes;

    struct Scratch {
        State of_warp[kWarps];  // what the warps' own threads have brought
        State of_row[kWarps];   // what the warps have made of the slices that they look after
        unsigned claimed;
    };

    __device__ __forceinline__ ClaimExchange(const Team& team, int64 rows, Scratch& scratch)
        : head_(static_cast<ScratchHead*>(team.scratch)),
          slices_(static_cast<unsigned>(rows * team.blocks)),
          rows_(static_cast<unsigned>(rows)),
          of_a_row_(team.blocks),
          number_(ptx::load_shared_word(&head_->sequence) + 1),
          scratch_(scratch) {
        if (blockIdx.x == 0 && threadIdx.x == 0) use_slots(head_, used());
    }

    // To be called by all threads, when they need nothing more of the slice before.
    __device__ __forceinline__ unsigned claim() {
        if (!claims()) return slices_;
        if (threadIdx.x == 0) scratch_.claimed = gridDim.x + ptx::count_up(&head_->handed, ~0u);
        __syncthreads();
        return scratch_.claimed;
    }

    // As Exchange's, of slice number `slice`, which is number `rank` of its row.
    template <class Merge>
    __device__ __forceinline__ State operator()(unsigned slice, unsigned row, int rank, const State& mine,
                                                const State& identity, Merge&& merge) {
        const int warp = static_cast<int>(threadIdx.x) / kWarpLanes, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
        const State of_thread[1] = {mine};
        const State of_warp = merge(of_thread);
        if (lane == 0) scratch_.of_warp[warp] = of_warp;
        __syncthreads();
        const bool reads = kEachReads || rank == of_a_row_ - 1;
        const int warps = reads ? (of_a_row_ + kWarpLanes - 1) / kWarpLanes : 1;
        if (warp == 0) {
            const State of_warps[1] = {lane < kWarps ? scratch_.of_warp[lane] : identity};
            const State of_slice = merge(of_warps);
            if (lane == 0) Numbered<State>::put(slot(slice), of_slice, number_);
        }
        if (warp < warps) {
            if (reads) {
                const int other = static_cast<int>(threadIdx.x);
                State states[1] = {identity};
                if (other < of_a_row_) wait_for(slot(slice - rank + other), states[0]);
                const State of_row = merge(states);
                if (lane == 0) scratch_.of_row[warp] = of_row;
                if (!kEachReads && warps == 1 && lane == 0) tell(row, of_row);
            } else if (lane == 0) {
                wait_for(slot(slices_ + row), scratch_.of_row[0]);
            }
        }
        __syncthreads();
        if (kWarps == 1 || warps == 1) return scratch_.of_row[0];
        const State of_warps[1] = {lane < warps ? scratch_.of_row[lane] : identity};
        const State total = merge(of_warps);
        if (!kEachReads && threadIdx.x == 0) tell(row, total);
        return total;
    }

    // After an exchange, and at the very end, with what the last claim has brought: as Exchange's. Where blocks claim,
    // the one with the last claim of all is the last to leave.
    __device__ __forceinline__ unsigned leave() const {
        return claims() || threadIdx.x != 0 ? 0 : ptx::count_up(&head_->left, gridDim.x - 1);
    }
    __device__ __forceinline__ void left(unsigned before, unsigned claimed) const {
        const bool last = claims() ? claimed == slices_ + gridDim.x - 1 : before == gridDim.x - 1;
        if (threadIdx.x == 0 && last) put_forward(head_, number_, used());
    }

    __device__ __forceinline__ unsigned slices() const { return slices_; }

   private:
    // Not where each block has the slice of its number and there is no other: an answer takes a microsecond.
    __device__ __forceinline__ bool claims() const { return slices_ > gridDim.x; }

    // Slots of 16 bytes.
    __device__ __forceinline__ unsigned used() const { return (slices_ + rows_) * Numbered<State>::kPairs; }

    __device__ __forceinline__ uint4* slot(unsigned slice) const {
        return slots_of(head_) + static_cast<int64>(slice) * Numbered<State>::kPairs;
    }

    __device__ __forceinline__ void tell(unsigned row, const State& total) const {
        Numbered<State>::put(slot(slices_ + row), total, number_);
    }

    __device__ __forceinline__ void wait_for(const uint4* from, State& state) const {
        while (!Numbered<State>::take(from, number_, state)) ptx::wait_a_little();
    }

    ScratchHead* const head_;
    const unsigned slices_;
    const unsigned rows_;
    const int of_a_row_;  // slices
    // Of all exchanges of the launch: no slot is used twice. It is waited for before the first slice, once, and costs
    // no register of each thread's (last_sequence).
    const unsigned number_;
    Scratch& scratch_;
};

}  // namespace onepass::cuda
