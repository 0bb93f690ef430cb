// Squares of N rows by N steps of a tile, as many elements as cross memory in one access either way, and where those of
// a thread are.
#pragma once

#include "exchange.h"
#include "pack.h"

namespace onepass::cuda {

// As it lies in memory: N lines of N neighbours. kAlong: a line has steps of one row, else rows of one step.
template <class T, int N, bool kAlong>
class Square {
   public:
    // Pairs of 16 bits wait as they were read.
    using Line = choose<kInPairs<T, N>, Pairs<N>, typename Pack<T, N>::Elements>;

    // From N lines so far apart.
    __device__ __forceinline__ void load(const T* from, int64 apart) {
#pragma unroll
        for (int l = 0; l < N; ++l) lines_[l] = __builtin_bit_cast(Line, load_words<N>(from + l * apart));
    }

    __device__ __forceinline__ void fill(T with) {
        typename Pack<T, N>::Elements line;
#pragma unroll
        for (T& element : line.at) element = with;
#pragma unroll
        for (Line& to : lines_) to = __builtin_bit_cast(Line, line);
    }

    template <class C>
    __device__ __forceinline__ C get(int row, int step) const {
        return kAlong ? element<C>(lines_[row], step) : element<C>(lines_[step], row);
    }

    __device__ __forceinline__ void set(int row, int step, T value) {
        lines_[kAlong ? row : step].at[kAlong ? step : row] = value;
    }

    // Before it is looked at once more: what was widened of it need not wait until then.
    __device__ __forceinline__ void stay() {
#pragma unroll
        for (Line& line : lines_) {
            if constexpr (kInPairs<T, N>) {
#pragma unroll
                for (unsigned& pair : line.at) ptx::hide(pair);
            }
        }
    }

   private:
    // Half of a word of two bfloat16 is one instruction away from its float32.
    template <class C>
    static __device__ __forceinline__ C element(const Line& line, int i) {
        if constexpr (!kInPairs<T, N>) {
            return widen<C>(line.at[i]);
        } else if constexpr (kSame<T, bfloat16>) {
            return __builtin_bit_cast(float, i % 2 ? line.at[i / 2] & 0xffff0000u : line.at[i / 2] << 16);
        } else {
            return widen<C>(T{static_cast<unsigned short>(line.at[i / 2] >> (i % 2 * 16))});
        }
    }

    Line lines_[N];
};

// Of all that a thread has. By their numbers: NVRTC 13 unrolls loops over the elements of an array too late for these
// to be registers.
template <int kCount, class OneSquare>
__device__ __forceinline__ void stay(OneSquare (&squares)[kCount]) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) squares[k].stay();
}

// Writes N lines so far apart, get(row, step) in each place of a square of results.
template <int N, bool kAlong, class T, class Get>
__device__ __forceinline__ void store_square(T* to, int64 apart, Get&& get) {
#pragma unroll
    for (int l = 0; l < N; ++l) {
        decltype(get(0, 0)) line[N];
#pragma unroll
        for (int i = 0; i < N; ++i) line[i] = kAlong ? get(l, i) : get(i, l);
        store_pack(to + l * apart, line);
    }
}

// The squares of a tile that a thread has, of a shape with `across`, `threads`, `cluster`, `packs` and `pack`: N
// neighbouring rows, the steps by turns with the other threads of these rows and blocks of the tile.
template <auto kShape>
struct SquaresOfThread {
    static constexpr int N = kShape.pack;
    static constexpr int kHeld = kShape.packs;
    static constexpr int kAlong = kShape.threads / kShape.across;

    int64 row;
    bool present;  // the tile may be wider than the rows that are left; a thread beyond them sees the last
    int64 step;

    __device__ __forceinline__ SquaresOfThread(int64 rows, const TeamPlace& place)
        : row((static_cast<int64>(place.team) * kShape.across + threadIdx.x % kShape.across) * N),
          present(row < rows),
          step((place.rank * kAlong + threadIdx.x / kShape.across) * N) {
        if (!present) row = rows - N;
    }

    // Calls visit(k, step) for each: none but the last may be missing.
    template <class Visit>
    __device__ __forceinline__ void for_each(int64 length, Visit&& visit) const {
        constexpr int kApart = kShape.cluster * kAlong * N;
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
            if (k < kHeld - 1 || step + k * kApart < length) visit(k, step + k * kApart);
        }
    }
};

}  // namespace onepass::cuda
