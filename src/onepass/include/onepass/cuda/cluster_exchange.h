// What the blocks of a cluster that share a row tell each other: every warp stores its state into the shared memory of
// every block, and waits in its own block for those of all others. There is no level of a block between, and no barrier
// of its threads: a warp takes what it needs as soon as it is there.
//
// The bytes of a store are counted by a barrier of the block that receives them, so nothing is polled, and a block
// whose last states have come is written to no more: it may end whatever the others do.
//
// A cluster has one row, and the hardware begins the next cluster when another is over. Or it is there for many: it
// begins with the row of its number, and takes the next from a counter when it is ready for it, since clusters do not
// get memory's bandwidth in equal parts. On an H200, with as many rows each, some were done when others had a third of
// theirs before them. The number of a row travels with the states of the row before.
#pragma once

#include "exchange.h"

namespace onepass::cuda {

// As Exchange, of blocks that are a cluster of kBlocks. kHandsOut: rows; else each cluster has the one of its number.
template <class State, int kThreads, int kBlocks, bool kHandsOut>
class ClusterExchange {
   public:
    static constexpr int kStates = kThreads / kWarpLanes * kBlocks;
    static constexpr int kSlots = (kStates + kWarpLanes - 1) / kWarpLanes;  // states that a lane looks after
    static_assert(kBlocks <= kWarpLanes);

    // Two places that alternate. Whoever stores into one of them again has had all states of the exchange between, and
    // every warp had read the first place before it sent its own.
    struct Scratch {
        struct Words {
            unsigned long long at[(sizeof(State) + 7) / 8];
        };
        struct Place {
            Words states[kStates];
            unsigned long long handed;  // what the first block asked for
        };
        Place at[2];
        unsigned long long arrived[2];  // barriers
    };

    __device__ __forceinline__ ClusterExchange(const Team& team, const TeamPlace& place, int64 rows, Scratch& scratch)
        : scratch_(scratch),
          head_(static_cast<ScratchHead*>(team.scratch)),
          rank_(static_cast<int>(place.rank)),
          teams_(place.teams),
          rows_(rows) {
        if (threadIdx.x == 0) {
            for (auto& barrier : scratch_.arrived) ptx::init_barrier(&barrier, 1);
        }
        ptx::arrive_at_cluster();
    }

    // To be called when a row is begun: asks for the one after it.
    __device__ __forceinline__ void begin_row() {
        if (hands_out() && rank_ == 0 && threadIdx.x == 0) asked_ = ptx::count_up(&head_->handed, ~0u);
    }

    // As Exchange's.
    __device__ __forceinline__ int64 row_after(int64) const {
        if constexpr (!kHandsOut) return rows_;
        return hands_out() ? teams_ + static_cast<int64>(handed_) : rows_;
    }

    // As Exchange's.
    template <class Merge>
    __device__ __forceinline__ State operator()(const State& mine, const State& identity, Merge&& merge) {
        const int warp = static_cast<int>(threadIdx.x) / kWarpLanes, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
        const unsigned place = number_ % 2, phase = number_ / 2 % 2;
        auto& here = scratch_.at[place];
        auto* const arrived = &scratch_.arrived[place];
        const State of_thread[1] = {mine};
        typename Scratch::Words words{};
        *reinterpret_cast<State*>(words.at) = merge(of_thread);
        if (threadIdx.x == 0) ptx::arrive_and_expect(arrived, kHandsOut ? sizeof(here) : sizeof(here.states));
        // The barriers of all blocks are ready, now and for all time.
        if (number_ == 0) ptx::wait_for_cluster();
        // Every lane has read what it looked after in the exchange before.
        __syncwarp();
        if (lane < kBlocks) {
            auto& to = here.states[rank_ * (kThreads / kWarpLanes) + warp];
            for (int i = 0; i < static_cast<int>(sizeof(words) / 8); ++i)
                ptx::store_async(&to.at[i], words.at[i], arrived, lane);
        }
        if constexpr (kHandsOut) {
            if (rank_ == 0 && warp == 0) {
                const unsigned asked = __shfl_sync(kAllLanes, asked_, 0);
                if (lane < kBlocks) ptx::store_async(&here.handed, asked, arrived, lane);
            }
        }
        ++number_;
        ptx::wait_for_phase(arrived, phase);
        if constexpr (kHandsOut) handed_ = static_cast<unsigned>(here.handed);
        State collected[kSlots];
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
            const int i = s * kWarpLanes + lane;
            collected[s] = i < kStates ? *reinterpret_cast<const State*>(here.states[i].at) : identity;
        }
        return merge(collected);
    }

    // As Exchange's: the last cluster to leave clears the counter.
    __device__ __forceinline__ unsigned leave() const {
        return hands_out() && rank_ == 0 && threadIdx.x == 0 ? ptx::count_up(&head_->left, teams_ - 1) : 0;
    }
    __device__ __forceinline__ void left(unsigned before) const {
        if (hands_out() && rank_ == 0 && threadIdx.x == 0 && before == teams_ - 1) ptx::count_up(&head_->handed, 0);
    }

   private:
    // Not where each cluster has one row, and there is no counter.
    __device__ __forceinline__ bool hands_out() const { return kHandsOut && rows_ > teams_; }

    Scratch& scratch_;
    ScratchHead* const head_;
    const int rank_;
    const unsigned teams_;
    const int64 rows_;
    unsigned number_ = 0;
    unsigned asked_ = 0;
    unsigned handed_ = 0;
};

// Exchanges of a State among the blocks of a team: through shared memory where they are a cluster, or through scratch
// memory (kCluster = 0).
template <class State, int kThreads, int kSlots, int kCluster, bool kHandsOut>
using TeamExchange =
    choose<(kCluster > 0), ClusterExchange<State, kThreads, kCluster, kHandsOut>, Exchange<State, kThreads, kSlots>>;

}  // namespace onepass::cuda
