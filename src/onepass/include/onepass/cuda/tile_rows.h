// A tile in shared memory whose rows lie along memory in an array, where threads have its columns: results are put
// there as threads have them, and from there are written along the rows; what is read so comes the other way. From
// registers each thread would write, or read, a few bytes of other rows at a time, sectors in parts.
#pragma once

#include "pack.h"

namespace onepass::cuda {

struct ByRows {
    int pack = 0;         // elements that cross memory at a time; 0: threads read and write where they lie
    bool joined = false;  // rows follow each other in memory as they do in the job; else each is whole packs
};

// Elements of type T. kAcross threads side by side have kEach rows each.
template <class T, int kAcross, int kEach, ByRows kHow>
class TileRows {
    static constexpr int N = kHow.pack;
    static constexpr int kRows = kAcross * kEach;

   public:
    // `memory` has room for where kRows rows begin, unless they are joined, and as many lines of pitch() elements
    // (plan_by_rows.py).
    __device__ __forceinline__ TileRows(unsigned char* memory, int64 length)
        : starts_(reinterpret_cast<int64*>(memory)),
          lines_(reinterpret_cast<T*>(memory + (kHow.joined ? 0 : kRows * sizeof(int64)))),
          length_(static_cast<int>(length)) {}

    // Where this thread's first row begins in memory, and how far apart its rows are.
    __device__ __forceinline__ void begin(int64 start, int64 apart) const {
        if (kHow.joined || threadIdx.x >= kAcross) return;
#pragma unroll
        for (int i = 0; i < kEach; ++i) starts_[first() + i] = start + i * apart;
    }

    template <class C>
    __device__ __forceinline__ void get(int64 step, C (&to)[kEach]) const {
#pragma unroll
        for (int i = 0; i < kEach; ++i) to[i] = widen<C>(lines_[(first() + i) * pitch() + static_cast<int>(step)]);
    }

    template <class C>
    __device__ __forceinline__ void put(int64 step, const C (&values)[kEach]) const {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            lines_[(first() + i) * pitch() + static_cast<int>(step)] = narrow<T>(values[i]);
        }
    }

    // Reads the tile's rows, when all threads have said where they begin. They are there when the block has met.
    __device__ __forceinline__ void read(const T* from, int64 tile, int64 all_rows) const {
        if (!kHow.joined) __syncthreads();
        for_each_piece(tile, all_rows, [&]<int kCount>(int64 at, int i) {
            store_shared_words<kCount>(lines_ + i, load_words<kCount>(from + at));
        });
    }

    // Writes them, when all threads have put their parts; they may put the next ones afterwards.
    __device__ __forceinline__ void write(T* to, int64 tile, int64 all_rows) const {
        __syncthreads();
        for_each_piece(tile, all_rows, [&]<int kCount>(int64 at, int i) {
            using Word = typename Pack<T, kCount>::Word;
            ptx::store_word(reinterpret_cast<Word*>(to + at), load_shared_words<kCount>(lines_ + i).at[0]);
        });
        __syncthreads();
    }

   private:
    // Lines of threads side by side lie in other banks, as far as packs on their boundaries let them.
    __device__ __forceinline__ int pitch() const { return kHow.joined ? length_ : (length_ / N | 1) * N; }
    static __device__ __forceinline__ int first() { return threadIdx.x % kAcross * kEach; }

    // Calls visit<elements>(where they lie in memory, where in lines_) for this thread's part of those rows of the tile
    // that there are; of a tile beyond the last none.
    template <class Visit>
    __device__ __forceinline__ void for_each_piece(int64 tile, int64 all_rows, Visit&& visit) const {
        const int64 left = all_rows - tile * kRows;
        const int rows = static_cast<int>(left < 0 ? 0 : left < kRows ? left : kRows);
        if constexpr (kHow.joined) {
            const int n = rows * length_, packs = n / N, rest = packs * N + threadIdx.x;
            const int64 start = tile * kRows * length_;
            for (int i = threadIdx.x; i < packs; i += blockDim.x) visit.template operator()<N>(start + i * N, i * N);
            if (rest < n) visit.template operator()<1>(start + rest, rest);
        } else {
            const int packs = length_ / N;
            int row = threadIdx.x / packs, i = threadIdx.x - row * packs;
            const int rows_on = blockDim.x / packs, packs_on = blockDim.x - rows_on * packs;
            while (row < rows) {
                visit.template operator()<N>(starts_[row] + i * N, row * pitch() + i * N);
                row += rows_on;
                i += packs_on;
                if (i >= packs) {
                    i -= packs;
                    ++row;
                }
            }
        }
    }

    int64* starts_;
    T* lines_;
    int length_;
};

}  // namespace onepass::cuda
