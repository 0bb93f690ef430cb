// A walk along the rows of a tile: the threads of a block that have the same rows share out the steps among them.
#pragma once

#include "row.h"

namespace onepass::cuda {

// Calls visit(step, values) for this thread's steps in [begin, end), kAhead of them at a time, and one at a time what
// is left: values[k] are those of step + k * part.apart(), one for each of the thread's rows. `read` fetches the values
// of one step; the steps of a group are asked for at a time.
template <class Value, int kAhead = kInFlight, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_group(const Part& part, int64 begin, int64 end, Read&& read, Visit&& visit) {
    if (!part.present) return;
    int64 step = begin + part.first_step();
    for (; step + (kAhead - 1) * part.apart() < end; step += kAhead * part.apart()) {
        Value values[kAhead][Part::N];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) read(step + k * part.apart(), values[k]);
        visit(step, values);
    }
    for (; step < end; step += part.apart()) {
        Value values[1][Part::N];
        read(step, values[0]);
        visit(step, values);
    }
}

// What is left of this thread's steps from `step` on, fewer than kAhead: all of it at a time, beside what counts
// nothing.
template <int kAhead, class Part, class Value, class Read, class Visit>
__device__ __forceinline__ void visit_rest(const Part& part, int64 step, int left, Value fill, Read&& read,
                                           Visit&& visit) {
    if constexpr (kAhead > 4) {
        if (left <= kAhead / 2) return visit_rest<kAhead / 2>(part, step, left, fill, read, visit);
    }
    Value values[kAhead][Part::N];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
        if (k < left) {
            read(step + k * part.apart(), values[k]);
        } else {
#pragma unroll
            for (Value& value : values[k]) value = fill;
        }
    }
    visit(values);
}

// The same for totals: visit(values). What is left after whole groups is asked for at once, too; `fill` stands for the
// steps that a group lacks. By half a group, a quarter and so on, columns of 15 steps were four waits.
template <class Value, int kAhead, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_filled_group(const Part& part, int64 begin, int64 end, Value fill, Read&& read,
                                                      Visit&& visit) {
    if (!part.present) return;
    int64 step = begin + part.first_step();
    for (; step + (kAhead - 1) * part.apart() < end; step += kAhead * part.apart()) {
        Value values[kAhead][Part::N];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) read(step + k * part.apart(), values[k]);
        visit(values);
    }
    if (step >= end) return;
    const int left = (static_cast<int>(end - step) + part.apart() - 1) / part.apart();
    visit_rest<kAhead>(part, step, left, fill, read, visit);
}

// The same with the values of one step at a time.
template <class Value, int kAhead = kInFlight, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_step(const Part& part, int64 begin, int64 end, Read&& read, Visit&& visit) {
    for_each_group<Value, kAhead>(part, begin, end, read, [&](int64 step, auto& values) {
#pragma unroll
        for (auto& of_step : values) {
            visit(step, of_step);
            step += part.apart();
        }
    });
}

// The same from the last step to the first: what was read last is likeliest to be in L2 still.
template <class Value, int kAhead = kInFlight, class Part, class Read, class Visit>
__device__ __forceinline__ void for_each_step_back(const Part& part, int64 begin, int64 end, Read&& read,
                                                   Visit&& visit) {
    if (!part.present) return;
    const int64 first = begin + part.first_step();
    int left = first < end ? (static_cast<int>(end - first) + part.apart() - 1) / part.apart() : 0;
    const auto some = [&]<int kCount>(Value(&values)[kCount][Part::N]) {
        left -= kCount;
        const int64 lowest = first + static_cast<int64>(left) * part.apart();
#pragma unroll
        for (int k = kCount - 1; k >= 0; --k) read(lowest + k * part.apart(), values[k]);
#pragma unroll
        for (int k = kCount - 1; k >= 0; --k) visit(lowest + k * part.apart(), values[k]);
    };
    while (left >= kAhead) {
        Value values[kAhead][Part::N];
        some(values);
    }
    while (left > 0) {
        Value values[1][Part::N];
        some(values);
    }
}

}  // namespace onepass::cuda
