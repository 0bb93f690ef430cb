// A walk along the rows of a tile: the threads of a block that have the same rows share out the steps among them.
#pragma once

#include "row.h"

namespace onepass::cuda {

// Calls visit(step, values) for this thread's steps in [begin, end), kAhead of them at a time, and one at a time what
// is left: values[k] are those of step + k * Part::kSteps, one for each of the thread's rows. `read` fetches the values
// of one step; the steps of a group are asked for at a time.
template <class Value, int kAhead = kInFlight, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_group(const Part& part, int64 begin, int64 end, Read&& read, Visit&& visit) {
    if (!part.present) return;
    int64 step = begin + Part::first_step();
    for (; step + (kAhead - 1) * Part::kSteps < end; step += kAhead * Part::kSteps) {
        Value values[kAhead][Part::N];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) read(step + k * Part::kSteps, values[k]);
        visit(step, values);
    }
    for (; step < end; step += Part::kSteps) {
        Value values[1][Part::N];
        read(step, values[0]);
        visit(step, values);
    }
}

// The same where nothing else is done for a step: what is left goes by half as many, and half of those, so that it is a
// few waits and not one for each step.
template <class Value, int kAhead, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_group_in_halves(const Part& part, int64 step, int64 end, Read&& read,
                                                         Visit&& visit) {
    for (; step + (kAhead - 1) * Part::kSteps < end; step += kAhead * Part::kSteps) {
        Value values[kAhead][Part::N];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) read(step + k * Part::kSteps, values[k]);
        visit(step, values);
    }
    if constexpr (kAhead > 1) for_each_group_in_halves<Value, kAhead / 2>(part, step, end, read, visit);
}

// The same with the values of one step at a time.
template <class Value, int kAhead = kInFlight, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_step(const Part& part, int64 begin, int64 end, Read&& read, Visit&& visit) {
    for_each_group<Value, kAhead>(part, begin, end, read, [&](int64 step, auto& values) {
#pragma unroll
        for (auto& of_step : values) {
            visit(step, of_step);
            step += Part::kSteps;
        }
    });
}

}  // namespace onepass::cuda
