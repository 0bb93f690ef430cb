// A walk along the rows of a tile: the threads of a block that have the same rows share out the steps among them.
#pragma once

#include "row.h"

namespace onepass::cuda {

// Calls visit(step, values, count) for this thread's steps in [begin, end), kAhead of them at a time: values[k] are
// those of step + k * Part::kSteps, for each of the thread's rows one, if k < count. `read` fetches the values of one
// step. All steps of a group are asked for before the first is waited for, of the last, incomplete group too.
template <class Value, int kAhead = kInFlight, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_group(const Part& part, int64 begin, int64 end, Read&& read, Visit&& visit) {
    if (!part.present) return;
    int64 step = begin + Part::first_step();
    Value values[kAhead][Part::N];
    for (; step + (kAhead - 1) * Part::kSteps < end; step += kAhead * Part::kSteps) {
#pragma unroll
        for (int k = 0; k < kAhead; ++k) read(step + k * Part::kSteps, values[k]);
        visit(step, values, kAhead);
    }
    if (step >= end) return;
    const int count = static_cast<int>((end - step + Part::kSteps - 1) / Part::kSteps);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
        if (k < count) read(step + k * Part::kSteps, values[k]);
    }
    visit(step, values, count);
}

// The same with visit(step, values) for each step.
template <class Value, int kAhead = kInFlight, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_step(const Part& part, int64 begin, int64 end, Read&& read, Visit&& visit) {
    for_each_group<Value, kAhead>(part, begin, end, read, [&](int64 step, Value(&values)[kAhead][Part::N], int count) {
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
            if (k < count) visit(step + k * Part::kSteps, values[k]);
        }
    });
}

}  // namespace onepass::cuda
