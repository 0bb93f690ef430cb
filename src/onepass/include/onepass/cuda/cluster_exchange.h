// What the blocks of a cluster that share a row tell each other: every warp stores its state into the shared memory of
// every block, and waits in its own block for those of all others. There is no level of a block between, and no barrier
// of its threads: a warp takes what it needs as soon as it is there.
//
// The bytes of a store are counted by a barrier of the block that receives them, so nothing is polled, and a block
// whose last states have come is written to no more: it may end whatever the others do.
#pragma once

#include "exchange.h"

namespace onepass::cuda {

// As Exchange, of blocks that are a cluster of kBlocks.
template <class State, int kThreads, int kBlocks>
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
        Words states[2][kStates];
        unsigned long long arrived[2];  // barriers
    };

    __device__ __forceinline__ ClusterExchange(const Team&, const TeamPlace& place, Scratch& scratch)
        : scratch_(scratch), rank_(static_cast<int>(place.rank)) {
        if (threadIdx.x == 0) {
            for (auto& barrier : scratch_.arrived) ptx::init_barrier(&barrier, 1);
        }
        ptx::arrive_at_cluster();
    }

    // As Exchange's.
    template <class Merge>
    __device__ __forceinline__ State operator()(const State& mine, const State& identity, Merge&& merge) {
        const int warp = static_cast<int>(threadIdx.x) / kWarpLanes, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
        const unsigned place = number_ % 2, phase = number_ / 2 % 2;
        auto& states = scratch_.states[place];
        auto* const arrived = &scratch_.arrived[place];
        const State of_thread[1] = {mine};
        typename Scratch::Words words{};
        *reinterpret_cast<State*>(words.at) = merge(of_thread);
        if (threadIdx.x == 0) ptx::arrive_and_expect(arrived, sizeof(states));
        // The barriers of all blocks are ready, now and for all time.
        if (number_ == 0) ptx::wait_for_cluster();
        // Every lane has read what it looked after in the exchange before.
        __syncwarp();
        if (lane < kBlocks) {
            auto& to = states[rank_ * (kThreads / kWarpLanes) + warp];
            for (int i = 0; i < static_cast<int>(sizeof(words) / 8); ++i)
                ptx::store_async(&to.at[i], words.at[i], arrived, lane);
        }
        ++number_;
        ptx::wait_for_phase(arrived, phase);
        State collected[kSlots];
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
            const int i = s * kWarpLanes + lane;
            collected[s] = i < kStates ? *reinterpret_cast<const State*>(states[i].at) : identity;
        }
        return merge(collected);
    }

    // As Exchange's: there is nothing to do.
    __device__ __forceinline__ unsigned leave() const { return 0; }
    __device__ __forceinline__ void left(unsigned, unsigned) const {}

   private:
    Scratch& scratch_;
    const int rank_;
    unsigned number_ = 0;
};

// Exchanges of a State among the blocks of a team: through shared memory where they are a cluster, or through scratch
// memory (kCluster = 0).
template <class State, int kThreads, int kSlots, int kCluster>
using TeamExchange =
    choose<(kCluster > 0), ClusterExchange<State, kThreads, kCluster>, Exchange<State, kThreads, kSlots>>;

}  // namespace onepass::cuda
