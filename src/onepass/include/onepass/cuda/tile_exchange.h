// What blocks that share a tile tell each other of its columns.
#pragma once

#include "exchange.h"

namespace onepass::cuda {

// As TeamMemory, of blocks that are a cluster of kBlocks and have one tile: every block gets all states into its shared
// memory. The bytes of a store are counted by a barrier of the block that receives them.
template <class State, int kStates, int kBlocks>
class ClusterMemory {
   public:
    struct Scratch {
        struct Words {
            unsigned long long at[(sizeof(State) + 7) / 8];
        };
        Words states[kBlocks][kStates];
        unsigned long long arrived;  // a barrier
    };
    static constexpr int blocks = kBlocks;
    static constexpr bool kAllAtHand = true;  // any thread may read any block's state, once `wait` is over

    __device__ __forceinline__ ClusterMemory(const Team&, const TeamPlace& place, Scratch& scratch)
        : scratch_(scratch), rank_(place.rank) {
        if (threadIdx.x == 0) ptx::init_barrier(&scratch_.arrived, 1);
        ptx::arrive_at_cluster();
    }

    // As TeamMemory's.
    __device__ __forceinline__ void begin_row() const {}

    // To be called by all threads, before the exchange.
    __device__ __forceinline__ void next() const {
        if (threadIdx.x == 0) ptx::arrive_and_expect(&scratch_.arrived, sizeof(scratch_.states));
        ptx::wait_for_cluster();  // the barriers of all blocks are ready
    }

    // Of a column: the senders, which all have its state, share out the blocks.
    __device__ __forceinline__ void publish(int sender, int senders, const State& mine, int which) const {
        typename Scratch::Words words{};
        *reinterpret_cast<State*>(words.at) = mine;
        auto& to = scratch_.states[rank_][which];
        for (int block = sender; block < kBlocks; block += senders) {
            for (int w = 0; w < static_cast<int>(sizeof(words) / 8); ++w)
                ptx::store_async(&to.at[w], words.at[w], &scratch_.arrived, block);
        }
    }

    // Until the states of all blocks are there.
    __device__ __forceinline__ void wait() const { ptx::wait_for_phase(&scratch_.arrived, 0); }
    __device__ __forceinline__ State state_of(int block, int which) const {
        return *reinterpret_cast<const State*>(scratch_.states[block][which].at);
    }

    // A block whose states have come is written to no more.
    __device__ __forceinline__ unsigned leave() const { return 0; }
    __device__ __forceinline__ void left(unsigned, int64, unsigned) const {}

   private:
    Scratch& scratch_;
    const unsigned rank_;
};

// Of a block that has a tile to itself.
struct NoOthers {
    struct Scratch {};
    static constexpr bool kAllAtHand = true;

    __device__ __forceinline__ NoOthers(const Team&, const TeamPlace&, Scratch&) {}
};

// What blocks that share a tile tell each other: as a cluster of kCluster, or through scratch memory (0); nothing (1).
template <class State, int kStates, int kCluster>
using TileMemory = choose<kCluster == 1, NoOthers,
                          choose<(kCluster > 0), ClusterMemory<State, kStates, kCluster>, TeamMemory<State, kStates>>>;

// What a kernel for tiles is launched with, of which kCluster blocks share one, likewise.
template <int kCluster, class RowJob>
using TileJob = choose<kCluster == 1, RowJob, TeamJob<RowJob>>;

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
