// A run of memory in which the elements of several columns take turns: step after step of a few neighbouring rows.
// It is cut into packs wherever it begins, and threads walk along it so far apart that each meets the same columns all
// the time. Such columns are counted from where the packs begin, as *places*.
#pragma once

#include "exchange.h"
#include "tile_steps.h"

namespace onepass::cuda {

struct Interleaved {
    int kept_axes;
    int threads;       // of a block
    int resident;      // blocks that a multiprocessor must have room for
    int most_columns;  // of a run
    int pack;          // elements per access
    bool whole;        // every run is a whole number of packs, on their boundaries, in all arrays
};

// Packs of N values that a thread asks for at a time, of two arrays, or to write as many: two, but four where that was
// measured, on sm_90, and spills in no kernel of tools/nvrtc_matrix.py (kRoomy).
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
inline constexpr bool kMayBeRoomy = true;
#else
inline constexpr bool kMayBeRoomy = false;
#endif
template <class C, int N, bool kRoomy>
inline constexpr int kToWrite = N * sizeof(C) > 16      ? 1
                                : kRoomy && kMayBeRoomy ? kInFlight
                                                        : kInFlight / 2;

// A run of `length` elements whose first one lies `past` elements past a boundary of packs, in all arrays. Its first
// pack and its last may be there in part only. kWhole: they are not.
template <int N, bool kWhole>
struct RunCut {
    int64 length;
    int past;

    template <class T>
    static __device__ __forceinline__ RunCut of(const T* start, int64 length) {
        return {length, kWhole ? 0 : static_cast<int>(reinterpret_cast<unsigned long long>(start) / sizeof(T) % N)};
    }

    __device__ __forceinline__ int64 packs() const { return (past + length + N - 1) / N; }
    __device__ __forceinline__ int64 first_of(int64 pack) const { return pack * N - past; }
    __device__ __forceinline__ bool is_there(int64 element) const { return element >= 0 && element < length; }

    // Of a pack that is there in part; the rest is `fill`.
    template <class T, class C>
    __device__ __forceinline__ void load_part(const T* start, int64 pack, C fill, C (&to)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int64 element = first_of(pack) + i;
            to[i] = is_there(element) ? widen<C>(start[element]) : fill;
        }
    }
    template <class T, class C>
    __device__ __forceinline__ void store_part(T* start, int64 pack, const C (&values)[N]) const {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int64 element = first_of(pack) + i;
            if (is_there(element)) start[element] = narrow<T>(values[i]);
        }
    }
};

// The places of a run, and which of them are a thread's: the same in every pack that it meets.
template <int kThreads, int N>
struct RunPlaces {
    int count;
    int walkers;  // threads that walk: so many packs are a whole number of steps

    explicit __device__ __forceinline__ RunPlaces(int columns) : count(columns) {
        const int power = count & -count;  // the largest that divides it
        const int packs = count / (power < N ? power : N);
        walkers = kThreads / packs * packs;
    }

    __device__ __forceinline__ bool walks() const { return static_cast<int>(threadIdx.x) < walkers; }

    // Calls visit(i, place) for the elements of a pack.
    template <class Visit>
    __device__ __forceinline__ void for_each(Visit&& visit) const {
        int place = static_cast<int>(threadIdx.x) * N % count;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            visit(i, place);
            if (++place == count) place = 0;
        }
    }

    // The same for the threads that have every place once.
    template <class Visit>
    __device__ __forceinline__ void for_each_once(Visit&& visit) const {
        for_each([&](int i, int place) {
            if (static_cast<int>(threadIdx.x) * N + i < count) visit(i, place);
        });
    }

    __device__ __forceinline__ int column_of(int place, int past) const {
        const int column = (place - past) % count;
        return column < 0 ? column + count : column;
    }
};

// What a thread has of a run, the steps of which are packs: blocks and their threads take turns at them, so that blocks
// at work at the same time read and write in the order of memory. for_each_step and the like walk along the packs that
// are there whole.
template <int kThreads, int kPack, bool kWhole>
struct RunSteps {
    static constexpr int N = kPack;
    using Places = RunPlaces<kThreads, N>;

    RunCut<N, kWhole> cut;
    int64 whole;  // packs, and the first if that is there in part
    int first;
    int from_one_to_next;
    bool present;

    __device__ __forceinline__ RunSteps(const RunCut<N, kWhole>& cut, const Team& team, unsigned rank,
                                        const Places& places)
        : cut(cut),
          whole((cut.past + cut.length) / N),
          first(static_cast<int>(rank) * places.walkers + static_cast<int>(threadIdx.x)),
          from_one_to_next(team.blocks * places.walkers),
          present(places.walks()) {}

    __device__ __forceinline__ int first_step() const {
        return !kWhole && first == 0 && cut.past > 0 ? from_one_to_next : first;
    }
    __device__ __forceinline__ int apart() const { return from_one_to_next; }

    // Calls visit(pack) for this thread's packs that are there in part.
    template <class Visit>
    __device__ __forceinline__ void for_each_part(Visit&& visit) const {
        if constexpr (kWhole) return;
        const int64 last = cut.packs() - 1;
        const bool first_in_part = cut.past > 0, last_in_part = last >= whole;
#pragma unroll 1
        for (int which = 0; which < 2; ++which) {
            const int64 pack = which == 0 ? 0 : last;
            const bool in_part = which == 0 ? first_in_part : last_in_part && !(last == 0 && first_in_part);
            if (in_part && present && static_cast<int>(pack) % from_one_to_next == first) visit(pack);
        }
    }
};

// Totals of what the threads of a block have of each place, in shared memory; of types no larger than Largest.
template <class Largest, int kBlockThreads, int N>
class RunReduce {
   public:
    static constexpr int kThreads = kBlockThreads;
    using Places = RunPlaces<kThreads, N>;
    struct alignas(16) Scratch {
        Largest at[kThreads * N];
    };

    __device__ __forceinline__ RunReduce(Scratch& scratch, const Places& places) : scratch_(scratch), places_(places) {}

    // Every thread that walks brings the values of its places; all get the totals. Eight at a time: two rounds or
    // three, where pairs take nine.
    template <class T, class Combine>
    __device__ __forceinline__ void operator()(T (&value)[N], const Combine& combine) const {
        T* const at = room<T>();
        if (places_.walks()) {
#pragma unroll
            for (int i = 0; i < N; ++i) at[static_cast<int>(threadIdx.x) * N + i] = value[i];
        }
        __syncthreads();
        for (int left = places_.walkers * N / places_.count; left > 1;) {
            const int all = left * places_.count;
            left = (left + kFold - 1) / kFold;
            const int some = left * places_.count;
            for (int i = static_cast<int>(threadIdx.x); i < some; i += kThreads) {
                T total = at[i];
#pragma unroll
                for (int k = 1; k < kFold; ++k) {
                    if (i + k * some < all) total = combine(total, at[i + k * some]);
                }
                at[i] = total;
            }
            __syncthreads();
        }
        take(value);
    }

    // Shared memory for a T of each place, once everything there has been read.
    template <class T>
    __device__ __forceinline__ T* room() const {
        static_assert(sizeof(T) <= sizeof(Largest));
        __syncthreads();
        return reinterpret_cast<T*>(scratch_.at);
    }

    // What is there, of a thread's own places.
    template <class T>
    __device__ __forceinline__ void take(T (&value)[N]) const {
        places_.for_each([&](int i, int place) { value[i] = reinterpret_cast<const T*>(scratch_.at)[place]; });
    }

   private:
    static constexpr int kFold = 8;

    Scratch& scratch_;
    const Places& places_;
};

// What `merge` makes of the states that the blocks of a team have of each place, in two exchanges: each block merges
// those of some places, a warp for each, and tells the others. Were all merged by every block, each of its threads
// would wait for memory ten times. merge(states) is an Exchange's.
template <class State, int N, class Merge, class Reduce, class Others>
__device__ __forceinline__ void merge_blocks(State (&state)[N], const State& identity, const Merge& merge,
                                             const Reduce& reduce, const typename Reduce::Places& places,
                                             Others& others) {
    constexpr int kAtOnce = 2, kWarps = Reduce::kThreads / kWarpLanes;
    if (others.blocks == 1) return;
    State* const at = reduce.template room<State>();
    others.next();
    places.for_each_once([&](int i, int place) { others.publish(state[i], place); });
    const int warp = static_cast<int>(threadIdx.x) / kWarpLanes, lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const int first = others.rank + warp * others.blocks;
    for (int place = first; place < places.count; place += kWarps * others.blocks) {
        State total = identity;
#pragma unroll 1
        for (int begin = 0; begin < others.blocks; begin += kAtOnce * kWarpLanes) {
            State states[kAtOnce][1];
            others.collect(begin + lane, kWarpLanes, place, identity, states);
            State all[kAtOnce + 1];
            all[kAtOnce] = lane == 0 ? total : identity;
#pragma unroll
            for (int k = 0; k < kAtOnce; ++k) all[k] = states[k][0];
            total = merge(all);
        }
        if (lane == 0) at[place] = total;
    }
    others.next();
    if (lane == 0) {
        for (int place = first; place < places.count; place += kWarps * others.blocks) others.publish(at[place], place);
    }
    for (int place = static_cast<int>(threadIdx.x); place < places.count; place += Reduce::kThreads) {
        const int block = place % others.blocks;
        if (block == others.rank) continue;
        State of_all[1][1];
        others.collect(block, 1, place, identity, of_all);
        at[place] = of_all[0][0];
    }
    __syncthreads();
    reduce.take(state);
}
inline constexpr unsigned kExchangesOfRun = 2;

// reduce_team for the places of a run.
template <class State, int N, class Combine, class Reduce, class Others>
__device__ __forceinline__ void reduce_run(State (&state)[N], const State& identity, const Combine& combine,
                                           const Reduce& reduce, const typename Reduce::Places& places,
                                           Others& others) {
    reduce(state, combine);
    merge_blocks(state, identity, MergeStates<State, Combine>(), reduce, places, others);
}

}  // namespace onepass::cuda
