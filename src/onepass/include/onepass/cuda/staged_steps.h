// Steps of a tile that wait in shared memory.
#pragma once

#include "pack.h"
#include "tile_steps.h"

namespace onepass::cuda {

// A slice of a tile in shared memory. A thread reads only what it has itself put there: no barrier.
template <class Kept, class In, class Part, bool kDirect>
struct StagedSteps {
    static constexpr int N = Part::N;
    static constexpr int kCopyBytes = N * sizeof(Kept) < kAccessBytes ? N * sizeof(Kept) : kAccessBytes;
    static constexpr bool kCopies = kDirect && kCopyBytes >= 4;
    using C = typename Part::C;

    const Part& part;
    Kept* memory;  // this thread's columns of the first step
    int64 begin;

    __device__ __forceinline__ StagedSteps(const Part& part, unsigned char* memory, int64 begin)
        : part(part),
          memory(reinterpret_cast<Kept*>(memory) + static_cast<int>(threadIdx.x) % (Part::kTileRows / N) * N),
          begin(begin) {}

    __device__ __forceinline__ Kept* at(int64 step) const { return memory + (step - begin) * Part::kTileRows; }

    __device__ __forceinline__ void keep(int64 step, const C (&values)[N]) const {
        store_shared(at(step), values);  // exact: widened from there, or C
    }

    __device__ __forceinline__ void read(int64 step, C (&to)[N]) const { load_shared(at(step), to); }

    // Asks for a step that can be copied as it is; `arrive` waits for it. What was there has to have been read.
    __device__ __forceinline__ void ask_for(int64 step) const {
        if constexpr (kCopies) {
            const In* const from = static_cast<const In*>(part.job.x) + part.offset_of(step).x;
#pragma unroll
            for (int i = 0; i < N * static_cast<int>(sizeof(Kept)); i += kCopyBytes) {
                ptx::copy_async<kCopyBytes>(reinterpret_cast<unsigned char*>(at(step)) + i,
                                            reinterpret_cast<const unsigned char*>(from) + i);
            }
        }
    }

    // Asks for this thread's steps in [begin, end).
    __device__ __forceinline__ void ask_for_all(int64 end) const {
        if (!part.present) return;
#pragma unroll 4
        for (int64 step = begin + Part::first_step(); step < end; step += Part::kSteps) ask_for(step);
    }

    // This thread's steps in [begin, end) are there: those that were asked for, or brought now.
    __device__ __forceinline__ void arrive(int64 end) const {
        if constexpr (kCopies) {
            ptx::end_group();
            ptx::wait_for_copies<0>();
        } else {
            for_each_step<C>(
                part, begin, end, [&](int64 step, C(&to)[N]) { part.load(step, to); },
                [&](int64 step, C(&x)[N]) { keep(step, x); });
        }
    }

    // Writes what `change` makes of this thread's steps in [begin, end). Each step of the `next` tile, if there are
    // `more`, comes to where one of this has been written from.
    template <int kAhead, class Change>
    __device__ __forceinline__ void write(int64 end, const StagedSteps& next, bool more, Change&& change) const {
        for_each_step<C, kAhead>(
            part, begin, end, [&](int64 step, C(&to)[N]) { read(step, to); },
            [&](int64 step, C(&x)[N]) {
                change(x);
                part.store(step, part.offset_of(step).y, x);
                if (more) next.ask_for(step);
            });
    }
};

}  // namespace onepass::cuda
