// A walk along the rows of a tile: the threads of a block that have the same rows share out the steps among them.
#pragma once

#include "row.h"

namespace onepass::cuda {

// Calls visit(step, values) for this thread's steps in [begin, end); `read` fetches the values of one, Part::N of them,
// one for each of the thread's rows. kAhead steps are asked for at a time.
template <class Value, int kAhead = kInFlight, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_step(const Part& part, int64 begin, int64 end, Read&& read, Visit&& visit) {
    if (!part.present) return;
    int64 step = begin + Part::first_step();
    for (; step + (kAhead - 1) * Part::kSteps < end; step += kAhead * Part::kSteps) {
        Value values[kAhead][Part::N];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) read(step + k * Part::kSteps, values[k]);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) visit(step + k * Part::kSteps, values[k]);
    }
    for (; step < end; step += Part::kSteps) {
        Value values[Part::N];
        read(step, values);
        visit(step, values);
    }
}

}  // namespace onepass::cuda
