// Rows that lie one after the other in memory, by way of shared memory: a warp brings several of them in whole
// accesses, whatever their width, and takes their results away the same way. Between, lanes read and write elements.
#pragma once

#include "load_store.h"
#include "reduce.h"

namespace onepass::cuda {

struct WarpSmem {
    int threads;  // of a block
    int lanes;    // of a group
    int packs;    // that a lane holds of a row
    int rows;     // that a group handles at a time
    int pack;     // elements per access to shared memory
    bool padded;  // a row need not fill the packs of its group
};

// Elements side by side in memory, and their place in shared memory: as far past a boundary of accesses as there.
template <class T>
class Chunk {
   public:
    // Of the room for one of so many elements.
    static __device__ __forceinline__ int bytes(int elements) {
        return (elements * static_cast<int>(sizeof(T)) + 2 * kAccessBytes - 1) / kAccessBytes * kAccessBytes;
    }

    __device__ __forceinline__ Chunk(unsigned char* room, const T* memory, int elements)
        : place_(reinterpret_cast<T*>(room + reinterpret_cast<unsigned long long>(memory) % kAccessBytes)),
          cut_(ChunkCut::of(memory, elements)) {}

    __device__ __forceinline__ T* at(int element) const { return place_ + element; }

    // Asked for by all lanes of a warp, there when all have waited.
    __device__ __forceinline__ void bring(const T* memory, int lane) const {
        for_each(
            lane, [&](int64 i) { ptx::copy_async<kAccessBytes>(place_ + i, memory + i); },
            [&](int64 i) { place_[i] = memory[i]; });
    }
    __device__ __forceinline__ void take(T* memory, int lane) const {
        for_each(
            lane,
            [&](int64 i) {
                ptx::store_word(reinterpret_cast<uint4*>(memory + i), *reinterpret_cast<const uint4*>(place_ + i));
            },
            [&](int64 i) { memory[i] = place_[i]; });
    }

   private:
    using ChunkCut = Cut<kAccessBytes / sizeof(T), Alignment::peeled>;
    static_assert(ChunkCut::kMostEdges <= kWarpLanes);

    T* place_;
    ChunkCut cut_;

    template <class Access, class Edge>
    __device__ __forceinline__ void for_each(int lane, Access&& access, Edge&& edge) const {
        for (int64 pack = lane; pack < cut_.packs; pack += kWarpLanes) access(cut_.pack_column(pack));
        if (lane < cut_.edges()) edge(cut_.edge_column(lane));
    }
};

// What a warp has of the rows of a launch: kRows of them, or what is left.
template <int kThreads, int kRows>
struct WarpRows {
    int64 first;
    int count;  // none: less than one

    static __device__ __forceinline__ WarpRows of(int64 rows) {
        const int64 warp = static_cast<int64>(blockIdx.x) * (kThreads / kWarpLanes) + threadIdx.x / kWarpLanes;
        const int64 left = rows - warp * kRows;
        return {warp * kRows, static_cast<int>(left < kRows ? left : kRows)};
    }
};

// All lanes of a warp have what all of them have asked for.
__device__ __forceinline__ void wait_for_chunks() {
    ptx::end_group();
    ptx::wait_for_copies<0>();
    __syncwarp();
}

// A row of a chunk, read and written as one in memory is.
template <class In, class C, class Load>
using ChunkReader = Reader<In, C, Load, true, true>;
template <class Out, class C, class Store>
using ChunkWriter = Writer<Out, C, Store, true>;

}  // namespace onepass::cuda
