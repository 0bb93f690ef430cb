// Rows that lie one after the other in memory, or whose elements take turns there, by way of shared memory: a warp, or
// a block, brings several of them in whole accesses, whatever their width, and takes their results away the same way.
// Between, lanes read and write elements.
#pragma once

#include "load_store.h"
#include "reduce.h"

namespace onepass::cuda {

struct WarpSmem {
    int threads;  // of a block
    int lanes;    // of a group
    int packs;    // that a lane holds of a row
    int rows;     // that a group handles at a time
    int pack;     // elements per access to shared memory; of a slab one
    bool padded;  // a row need not fill the packs of its group
    // A slab is so many rows, whose elements take turns (x of (N, length, columns), along dim 1); or one row.
    int columns = 1;
    int team = kWarpLanes;  // threads that bring slabs together: a warp, or the block
    bool apart = false;     // slabs are an access further apart in shared memory: else lanes would meet at its banks
};

struct WarpSmemReduce {
    int threads;
    int lanes;
    int rows;
    int pack;
    int columns = 1;
    int team = kWarpLanes;
    bool apart = false;
};

// What a team has of the slabs of a launch: as many whole ones as there are rows for, or what is left.
template <auto kShape>
struct TeamSlabs {
    static constexpr int kLanes = kShape.lanes, kTeam = kShape.team, kColumns = kShape.columns;
    static constexpr int kGroups = kTeam / kLanes;
    static constexpr int kMost = kGroups * kShape.rows / kColumns;
    static_assert(kMost > 0 && kTeam % kLanes == 0 && (kColumns == 1 || kShape.pack == 1));
    static_assert(kTeam == kWarpLanes || kTeam == kShape.threads);  // all of a block come to its barriers, or none

    int64 first;       // slab
    int count;         // none: less than one
    int length;        // of a row
    unsigned inverse;  // ceil(2^32 / size())

    static __device__ __forceinline__ TeamSlabs of(int64 rows, int64 length) {
        const int64 team = static_cast<int64>(blockIdx.x) * (kShape.threads / kTeam) + threadIdx.x / kTeam;
        const int64 left = rows / kColumns - team * kMost;
        const int steps = static_cast<int>(length);
        const unsigned inverse = kShape.apart ? 0xffffffffu / static_cast<unsigned>(steps * kColumns) + 1 : 0;
        return {team * kMost, static_cast<int>(left < kMost ? left : kMost), steps, inverse};
    }

    static __device__ __forceinline__ int thread() { return threadIdx.x % kTeam; }
    static __device__ __forceinline__ int lane() { return threadIdx.x % kLanes; }
    // Of a group's rows, in the team.
    static __device__ __forceinline__ int row(int r) { return r * kGroups + thread() / kLanes; }

    __device__ __forceinline__ int size() const { return length * kColumns; }  // elements of a slab
    __device__ __forceinline__ int elements() const { return count * size(); }
    __device__ __forceinline__ int64 first_element() const { return first * size(); }
    __device__ __forceinline__ int64 first_row() const { return first * kColumns; }
    __device__ __forceinline__ bool has(int row) const { return row < count * kColumns; }

    // Where a row's first element is in shared memory, and element `i` of all that follow each other in memory.
    template <class T>
    __device__ __forceinline__ int place_of_row(int row) const {
        const int from_slab_to_slab = size() + kApart<T>;
        return row / kColumns * from_slab_to_slab + row % kColumns;
    }
    template <class T>
    __device__ __forceinline__ int place_of(int i) const {
        if constexpr (!kShape.apart) return i;
        // i / size(), exactly: the plan sees to it.
        const unsigned slab = __umulhi(static_cast<unsigned>(i), inverse);
        return i + static_cast<int>(slab) * kApart<T>;
    }
    // Of the room for a team's slabs.
    template <class T>
    __device__ __forceinline__ int bytes() const {
        const int elements = kMost * (size() + kApart<T>);
        return (elements * static_cast<int>(sizeof(T)) + 2 * kAccessBytes - 1) / kAccessBytes * kAccessBytes;
    }

    // All threads of the team are here, and see what the others have written.
    static __device__ __forceinline__ void meet() {
        if constexpr (kTeam == kWarpLanes) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    }
    // They have what all of them have asked for.
    static __device__ __forceinline__ void wait() {
        ptx::end_group();
        ptx::wait_for_copies<0>();
        meet();
    }

   private:
    template <class T>
    static constexpr int kApart = kShape.apart ? kAccessBytes / static_cast<int>(sizeof(T)) : 0;
};

// The elements of a team's slabs in memory, and their place in shared memory: as far past a boundary of accesses as
// there.
template <class T, class Slabs>
class Chunk {
   public:
    // memory: of the first slab.
    __device__ __forceinline__ Chunk(unsigned char* room, const T* memory, const Slabs& slabs)
        : place_(reinterpret_cast<T*>(room + reinterpret_cast<unsigned long long>(memory) % kAccessBytes)),
          cut_(ChunkCut::of(memory, slabs.elements())),
          slabs_(slabs) {}

    __device__ __forceinline__ T* row(int row) const { return place_ + slabs_.template place_of_row<T>(row); }

    // Asked for by all threads of the team, there when they have waited.
    __device__ __forceinline__ void bring(const T* memory) const {
        for_each([&](int i, T* place) { ptx::copy_async<kAccessBytes>(place, memory + i); },
                 [&](int i, T* place) { *place = memory[i]; });
    }
    __device__ __forceinline__ void take(T* memory) const {
        for_each(
            [&](int i, const T* place) {
                ptx::store_word(reinterpret_cast<uint4*>(memory + i), *reinterpret_cast<const uint4*>(place));
            },
            [&](int i, const T* place) { memory[i] = *place; });
    }

   private:
    using ChunkCut = Cut<kAccessBytes / sizeof(T), Alignment::peeled>;
    static_assert(ChunkCut::kMostEdges <= kWarpLanes);

    T* place_;
    ChunkCut cut_;
    const Slabs& slabs_;

    template <class Access, class Edge>
    __device__ __forceinline__ void for_each(Access&& access, Edge&& edge) const {
        const int thread = Slabs::thread();
        const auto visit = [&](int64 i, auto& what) {
            const int element = static_cast<int>(i);
            what(element, place_ + slabs_.template place_of<T>(element));
        };
        for (int64 pack = thread; pack < cut_.packs; pack += Slabs::kTeam) visit(cut_.pack_column(pack), access);
        if (thread < cut_.edges()) visit(cut_.edge_column(thread), edge);
    }
};

// A row of a chunk, read and written as one in memory is; of a slab, `kColumns` elements a step.
template <class In, class C, class Load, int kColumns = 1>
struct ChunkReader {
    const In* x;
    int64 row;
    Load load;

    __device__ __forceinline__ C one(int64 column) const { return load(widen<C>(x[column * kColumns]), row, column); }
    template <bool kOnce = false, int N>
    __device__ __forceinline__ void pack(int64 column, C (&to)[N]) const {
        if constexpr (kColumns == 1) {
            Reader<In, C, Load, true, true>{x, row, load}.pack(column, to);
        } else {
            static_assert(N == 1);
            to[0] = one(column);
        }
    }
};

template <class Out, class C, class Store, int kColumns = 1>
struct ChunkWriter {
    Out* y;
    int64 row;
    Store store;

    __device__ __forceinline__ void one(int64 column, C value) const {
        y[column * kColumns] = narrow<Out>(store(value, row, column));
    }
    template <int N>
    __device__ __forceinline__ void pack(int64 column, const C (&values)[N]) const {
        if constexpr (kColumns == 1) {
            Writer<Out, C, Store, true>{y, row, store}.pack(column, values);
        } else {
            static_assert(N == 1);
            one(column, values[0]);
        }
    }
};

template <class Out, class C, class Store, int kColumns>
Out element_of(const ChunkWriter<Out, C, Store, kColumns>&);

}  // namespace onepass::cuda
