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
// Each slice of the launch has a slot of its own, and each row some for its total: a block may come as late as it
// wants.
#pragma once

#include "exchange.h"

namespace onepass::cuda {

// As Exchange, of slices. kEachReads: the states; else one block of each row does. kSlots: of them for each thread.
template <class State, int kThreads, int kSlots, bool kEachReads>
class ClaimExchange {
   public:
    static constexpr int kWarps = kThreads / kWarpLanes;

    struct Scratch {
        State of_warp[kWarps];  // what the warps' own threads have brought
        State of_row[kWarps];   // what the warps have made of the slices that they look after
        unsigned claimed;
        unsigned number;  // of the launch's exchanges: no slot is used twice in it
    };

    __device__ __forceinline__ ClaimExchange(const Team& team, int64 rows, Scratch& scratch)
        : head_(static_cast<ScratchHead*>(team.scratch)),
          slices_(static_cast<unsigned>(rows * team.blocks)),
          rows_(static_cast<unsigned>(rows)),
          of_a_row_(team.blocks),
          scratch_(scratch) {
        if (blockIdx.x == 0 && threadIdx.x == 0) use_slots(head_, used());
    }

    // To be called when a slice has been asked for: finds the number, for which threads have no register to spare, and
    // which would be waited for there before the first slice.
    __device__ __forceinline__ void begin_slice() const {
        if (threadIdx.x == 0) scratch_.number = last_sequence(head_) + 1;
    }

    // To be called by all threads, when they need nothing more of the slice before.
    __device__ __forceinline__ unsigned claim() {
        if (!claims()) return slices_;
        if (threadIdx.x == 0) scratch_.claimed = gridDim.x + ptx::count_up(&head_->handed, ~0u);
        __syncthreads();
        return scratch_.claimed;
    }

    // As Exchange's, of slice number `rank` of a row.
    template <class Merge>
    __device__ __forceinline__ State operator()(unsigned row, int rank, const State& mine, const State& identity,
                                                Merge&& merge) const {
        const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarpLanes, lane = thread % kWarpLanes;
        uint4* const states = slots_of(head_) + row * static_cast<int64>(of_a_row_ + kTotals) * kPairs;
        uint4* const totals = states + of_a_row_ * kPairs;
        const State of_thread[1] = {mine};
        const State of_warp = merge(of_thread);
        if (lane == 0) scratch_.of_warp[warp] = of_warp;
        __syncthreads();
        const bool reads = kEachReads || rank == of_a_row_ - 1;
        const int all_warps = reads ? (of_a_row_ + kWarpLanes - 1) / kWarpLanes : 1;
        const int warps = all_warps < kWarps ? all_warps : kWarps;
        if (warp == 0) {
            const State of_warps[1] = {lane < kWarps ? scratch_.of_warp[lane] : identity};
            const State of_slice = merge(of_warps);
            if (lane == 0) Numbered<State>::put(states + rank * kPairs, of_slice, scratch_.number);
        }
        if (warp < warps) {
            if (reads) {
                State others[kSlots];
#pragma unroll
                for (int s = 0; s < kSlots; ++s) {
                    const int other = s * kThreads + thread;
                    others[s] = identity;
                    if (other < of_a_row_) wait_for(states + other * kPairs, others[s]);
                }
                const State of_row = merge(others);
                if (lane == 0) scratch_.of_row[warp] = of_row;
                if (warps == 1) tell(totals, of_row);
            } else if (lane == 0) {
                wait_for(totals + rank % kCopies * kApart, scratch_.of_row[0]);
            }
        }
        __syncthreads();
        if (kWarps == 1 || warps == 1) return scratch_.of_row[0];
        const State of_warps[1] = {lane < warps ? scratch_.of_row[lane] : identity};
        const State total = merge(of_warps);
        if (warp == 0) tell(totals, total);
        return total;
    }

    // After an exchange, and at the very end, with what the last claim has brought: as Exchange's. Where blocks claim,
    // the one with the last claim of all is the last to leave.
    __device__ __forceinline__ unsigned leave() const {
        return claims() || threadIdx.x != 0 ? 0 : ptx::count_up(&head_->left, gridDim.x - 1);
    }
    __device__ __forceinline__ void left(unsigned before, unsigned claimed) const {
        const bool last = claims() ? claimed == slices_ + gridDim.x - 1 : before == gridDim.x - 1;
        if (threadIdx.x == 0 && last) put_forward(head_, scratch_.number, used());
    }

    __device__ __forceinline__ unsigned slices() const { return slices_; }

   private:
    // Not where each block has the slice of its number and there is no other: an answer takes a microsecond.
    __device__ __forceinline__ bool claims() const { return slices_ > gridDim.x; }

    // Of 16 bytes.
    __device__ __forceinline__ unsigned used() const { return (slices_ + rows_ * kTotals) * kPairs; }

    // By a whole warp.
    __device__ __forceinline__ void tell(uint4* totals, const State& total) const {
        const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
        if (!kEachReads && lane < kCopies) Numbered<State>::put(totals + lane * kApart, total, scratch_.number);
    }

    __device__ __forceinline__ void wait_for(const uint4* slot, State& state) const {
        while (!Numbered<State>::take(slot, scratch_.number, state)) ptx::wait_a_little();
    }

    static constexpr int kPairs = Numbered<State>::kPairs;
    // Several of a row's total, each in a cache line of its own: a hundred blocks that ask for one line wait for each
    // other. H200, us: 128x2097152 float32 582 for 590, 512x524288 543 for 551; with 16 of them as with 4.
    static constexpr int kCopies = 4;
    static constexpr int kApart = 8 * kPairs;
    static constexpr int kTotals = kEachReads ? 0 : 8 * kCopies;  // slots; kernel_plan.TOTAL_SLOTS

    ScratchHead* const head_;
    const unsigned slices_;
    const unsigned rows_;
    const int of_a_row_;  // slices
    Scratch& scratch_;
};

}  // namespace onepass::cuda
