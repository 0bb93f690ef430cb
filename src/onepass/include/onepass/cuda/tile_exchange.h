// What blocks that share a tile tell each other of its columns.
#pragma once

#include "exchange.h"

namespace onepass::cuda {

// Every thread brings the states of its N columns, and gets what `combine` makes of those of all steps, in all blocks.
// Threads of the same columns share out the other blocks.
template <class Part, class State, int N, class Combine, class Reduce>
__device__ __forceinline__ void reduce_team(State (&state)[N], const State& identity, Combine&& combine, Reduce& reduce,
                                            TeamMemory<State, Part::kTileRows>& others) {
    reduce(state, combine);
    others.next();
    const int column = static_cast<int>(threadIdx.x) % (Part::kTileRows / N) * N;
    if (Part::first_step() == 0) {
#pragma unroll
        for (int i = 0; i < N; ++i) others.publish(state[i], column + i);
    }
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
