// Reductions of one value per thread: over a group of lanes by shuffles, over a block in two levels, over the threads
// of a block that share a column. For any type of 4, 8 or 16 bytes and any commutative, associative combination.
//
// The order of combination is fixed: the same input gives the same bits in every run.
#pragma once

#include "../row_state.h"
#include "sum.h"
#include "types.h"

namespace onepass::cuda {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Of so many threads each, that 1024 threads are, with 64 registers each: no more than sm_75 has room for.
constexpr int blocks_of_1024(int threads) { return 1024 / threads < 16 ? 1024 / threads : 16; }

// ---- combinations ----

struct Add {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a + b;
    }
};

// NaN if either is one.
struct Max {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return max_or_nan(a, b);
    }
};

struct Min {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return min_or_nan(a, b);
    }
};

// For RowState, Sum and every other state that knows how to take in another.
struct Merge {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        a.merge(b);
        return a;
    }
};

// ---- lanes ----

// A shuffle of any trivial type, 32 bits at a time.
template <class T, class Shuffle>
__device__ __forceinline__ T shuffled(T value, Shuffle shuffle) {
    static_assert(sizeof(T) % 4 == 0);
    struct Words {
        unsigned at[sizeof(T) / 4];
    };
    auto words = __builtin_bit_cast(Words, value);
#pragma unroll
    for (unsigned& word : words.at) word = shuffle(word);
    return __builtin_bit_cast(T, words);
}

// Integers in the order of floats, with NaN the largest: the hardware finds the largest of a warp's integers in one
// step (sm_80 and later), that of its floats in five.
__device__ __forceinline__ int in_order(float x) {
    const int bits = __builtin_bit_cast(int, x);
    return x != x ? 0x7fffffff : bits ^ (bits >> 31 & 0x7fffffff);
}
__device__ __forceinline__ float from_order(int place) {
    return __builtin_bit_cast(float, place ^ (place >> 31 & 0x7fffffff));
}

// Every lane of a group of kLanes neighbours gets the total. The butterfly: each step pairs lanes whose numbers differ
// in one bit, and both compute the same, since the combination is commutative. All lanes of the warp take part. kApart:
// of every so many-th lane of a group, a power of two.
template <int kLanes, int kApart = 1, class T, class Combine>
__device__ __forceinline__ T all_reduce_lanes(T value, Combine combine) {
#pragma unroll
    for (int mask = kLanes / 2; mask >= kApart; mask /= 2) {
        value = combine(value, shuffled(value, [=](unsigned w) { return __shfl_xor_sync(kAllLanes, w, mask); }));
    }
    return value;
}

// The largest of a group's values.
template <int kLanes, class C>
__device__ __forceinline__ C all_max_lanes(C value) {
    if constexpr (kLanes == kWarpLanes && kSame<C, float>) {
        return from_order(ptx::max_of_warp(in_order(value)));
    } else {
        return all_reduce_lanes<kLanes>(value, Max());
    }
}

// The first lane of the group gets the total; what the others get is of no use.
template <int kLanes, class T, class Combine>
__device__ __forceinline__ T reduce_lanes(T value, Combine combine) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        value =
            combine(value, shuffled(value, [=](unsigned w) { return __shfl_down_sync(kAllLanes, w, offset, kLanes); }));
    }
    return value;
}

// ---- a block ----

// First level: each warp by shuffles. Second level: the warps' totals through shared memory, which every warp then
// reduces for itself, so that all threads get the total after one barrier.
//
// The totals alternate between two places. A thread that writes to one of them again has passed the barrier of the
// reduction between, and every thread had read the first place before it came to that barrier.
template <int kThreads>
class BlockReduce {
   public:
    static constexpr int kWarps = kThreads / kWarpLanes;
    static_assert(kThreads % kWarpLanes == 0 && kWarps <= kWarpLanes);

    struct alignas(16) Slot {
        unsigned words[4];
    };
    struct Scratch {
        Slot slot[2][kWarps];
    };

    __device__ __forceinline__ explicit BlockReduce(Scratch& scratch) : scratch_(scratch) {}

    template <class T, class Combine>
    __device__ __forceinline__ T operator()(T value, Combine combine) {
        if constexpr (kSame<Combine, Max> && kSame<T, float>) {
            const auto largest = [](int place) { return ptx::max_of_warp(place); };
            return from_order(
                in_two_levels(in_order(value), largest, largest, [](int a, int b) { return a > b ? a : b; }));
        } else {
            return in_two_levels(
                value, [=](T x) { return all_reduce_lanes<kWarpLanes>(x, combine); },
                [=](auto x) { return all_reduce_lanes<kWarps>(x, combine); }, combine);
        }
    }

   private:
    // over_lanes: of a warp's values; over_warps: of the warps' totals, of which lane i has that of warp i % kWarps;
    // combine: of two totals, where those have no halves.
    template <class T, class OverLanes, class OverWarps, class Combine>
    __device__ __forceinline__ T in_two_levels(T value, OverLanes over_lanes, OverWarps over_warps, Combine combine) {
        static_assert(sizeof(T) <= sizeof(Slot) && alignof(T) <= alignof(Slot));
        value = over_lanes(value);
        if constexpr (kWarps == 1) return value;
        Slot* slot = scratch_.slot[turn_];
        turn_ ^= 1;
        const int lane = threadIdx.x % kWarpLanes;
        if (lane == 0) *reinterpret_cast<T*>(slot + threadIdx.x / kWarpLanes) = value;
        __syncthreads();
        const auto total_of = [slot](int warp) { return *reinterpret_cast<const T*>(slot + warp); };
        if constexpr ((kWarps & (kWarps - 1)) == 0) {
            return over_warps(total_of(lane % kWarps));
        } else {  // no halves of them: every thread goes through all
            T total = total_of(0);
#pragma unroll
            for (int w = 1; w < kWarps; ++w) total = combine(total, total_of(w));
            return total;
        }
    }

    Scratch& scratch_;
    int turn_ = 0;
};

// ---- columns of a block ----

// kAcross threads lie side by side across the columns of a tile, N columns each; all threads with the same place
// across share those columns. Every one of them gets its columns' totals: what the lanes of a warp have by shuffles,
// what the warps have through shared memory. The lanes that share columns share out the warps, so that few additions
// follow each other.
template <class Largest, int kThreads, int kAcross, int N>
class ColumnReduce {
   public:
    static constexpr bool kAlone = kThreads == kAcross;  // each thread has its columns to itself
    static constexpr int kWarps = kAlone ? 1 : kThreads / kWarpLanes;
    static constexpr int kSharing = kAlone ? 1 : kWarpLanes / kAcross;  // lanes
    static constexpr int kReaders = kWarps < kSharing ? kWarps : kSharing;
    static_assert(kThreads % kWarpLanes == 0 && (kAlone || kAcross <= kWarpLanes) && (kAcross & (kAcross - 1)) == 0);
    static_assert((kReaders & (kReaders - 1)) == 0);

    struct Scratch {
        Largest slot[2][kWarps][kAlone ? 1 : kAcross * N];
    };

    __device__ __forceinline__ explicit ColumnReduce(Scratch& scratch)
        : scratch_(reinterpret_cast<unsigned char*>(&scratch)) {}

    template <class T, class Combine>
    __device__ __forceinline__ void operator()(T (&value)[N], Combine combine) {
        over_lanes<kSharing>(value, combine);
        if constexpr (kWarps > 1) {
            static_assert(sizeof(T) <= sizeof(Largest));
            auto* const slot =
                reinterpret_cast<T(*)[kAcross * N]>(scratch_ + turn_ * (kWarps * kAcross * N * sizeof(Largest)));
            turn_ ^= 1;
            const int lane = threadIdx.x % kWarpLanes;
            const int first = threadIdx.x % kAcross * N;
            if (lane < kAcross) {
#pragma unroll
                for (int i = 0; i < N; ++i) slot[threadIdx.x / kWarpLanes][first + i] = value[i];
            }
            __syncthreads();
            const int reader = lane / kAcross % kReaders;
#pragma unroll
            for (int i = 0; i < N; ++i) value[i] = slot[reader][first + i];
            for (int warp = reader + kReaders; warp < kWarps; warp += kReaders) {
#pragma unroll
                for (int i = 0; i < N; ++i) value[i] = combine(value[i], slot[warp][first + i]);
            }
            over_lanes<kReaders>(value, combine);
        }
    }

   private:
    // Over the first kLanes of the lanes that share columns, and likewise over every further kLanes of them.
    template <int kLanes, class T, class Combine>
    static __device__ __forceinline__ void over_lanes(T (&value)[N], Combine combine) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int mask = kAcross; mask < kAcross * kLanes; mask *= 2) {
                value[i] = combine(value[i],
                                   shuffled(value[i], [=](unsigned w) { return __shfl_xor_sync(kAllLanes, w, mask); }));
            }
        }
    }

    unsigned char* scratch_;
    int turn_ = 0;
};

}  // namespace onepass::cuda
