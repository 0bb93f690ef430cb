// What blocks that share a tile tell each other of its columns.
#pragma once

#include "exchange.h"

namespace onepass::cuda {

// As TeamMemory, of blocks that are a cluster of kBlocks: every block gets all states into its shared memory. The bytes
// of a store are counted by a barrier of the block that receives them.
template <class State, int kStates, int kBlocks>
class ClusterMemory {
   public:
    // Two places that alternate, as TeamMemory's.
    struct Scratch {
        struct Words {
            unsigned long long at[(sizeof(State) + 7) / 8];
        };
        struct Place {
            Words states[kBlocks][kStates];
        };
        Place at[2];
        unsigned long long arrived[2];  // barriers
    };
    static constexpr int blocks = kBlocks;

    __device__ __forceinline__ ClusterMemory(const Team&, const TeamPlace& place, Scratch& scratch)
        : scratch_(scratch), rank_(place.rank) {
        if (threadIdx.x == 0) {
            for (auto& barrier : scratch_.arrived) ptx::init_barrier(&barrier, 1);
        }
        ptx::arrive_at_cluster();
    }

    // To be called by all threads.
    __device__ __forceinline__ void next() {
        ++number_;
        if (threadIdx.x == 0) ptx::arrive_and_expect(&scratch_.arrived[place()], sizeof(typename Scratch::Place));
        // The barriers of all blocks are ready, now and for all time.
        if (number_ == 1) ptx::wait_for_cluster();
    }

    // The senders share out the blocks.
    template <int N>
    __device__ __forceinline__ void publish(int sender, int senders, const State (&mine)[N], int which) const {
        for (int block = sender; block < kBlocks; block += senders) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                typename Scratch::Words words{};
                *reinterpret_cast<State*>(words.at) = mine[i];
                auto& to = scratch_.at[place()].states[rank_][which + i];
                for (int w = 0; w < static_cast<int>(sizeof(words) / 8); ++w)
                    ptx::store_async(&to.at[w], words.at[w], &scratch_.arrived[place()], block);
            }
        }
    }

    template <int kBlocksOfThread, int kCount>
    __device__ __forceinline__ void collect(int first, int step, int which, const State& identity,
                                            State (&states)[kBlocksOfThread][kCount]) const {
        ptx::wait_for_phase(&scratch_.arrived[place()], (number_ - 1) / 2 % 2);
#pragma unroll
        for (int b = 0; b < kBlocksOfThread; ++b) {
            const int block = first + b * step;
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                const auto& words = scratch_.at[place()].states[block < kBlocks ? block : 0][which + i];
                states[b][i] = block < kBlocks ? *reinterpret_cast<const State*>(words.at) : identity;
            }
        }
    }

    // A block whose last states have come is written to no more.
    __device__ __forceinline__ unsigned leave() const { return 0; }
    __device__ __forceinline__ void left(unsigned, unsigned) const {}

   private:
    __device__ __forceinline__ unsigned place() const { return number_ % 2; }

    Scratch& scratch_;
    const unsigned rank_;
    unsigned number_ = 0;  // of the exchange, from 1
};

// What blocks that share a tile tell each other: as a cluster of kCluster, or through scratch memory (0).
template <class State, int kStates, int kCluster>
using TileMemory = choose<(kCluster > 0), ClusterMemory<State, kStates, kCluster>, TeamMemory<State, kStates>>;

// Every thread brings the states of its N columns, and gets what `combine` makes of those of all steps, in all blocks.
// Threads of the same columns share out the other blocks.
template <class Part, class State, int N, class Combine, class Reduce>
__device__ __forceinline__ void reduce_team(State (&state)[N], const State& identity, Combine&& combine, Reduce& reduce,
                                            TeamMemory<State, Part::kTileRows>& others) {
    reduce(state, combine);
    others.next();
    const int column = static_cast<int>(threadIdx.x) % (Part::kTileRows / N) * N;
    others.publish(Part::first_step(), Part::kSteps, state, column);
#pragma unroll
    for (State& s : state) s = identity;
    for (int block = Part::first_step(); block < others.blocks; block += Part::kSteps) {
        State states[1][N];
        others.collect(block, 0, column, identity, states);
#pragma unroll
        for (int i = 0; i < N; ++i) state[i] = combine(state[i], states[0][i]);
    }
    reduce(state, combine);
}

}  // namespace onepass::cuda
