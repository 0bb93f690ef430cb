// Squares of a tile, as many elements as cross memory in one access either way, and where those of a thread are: N rows
// by N steps of each, or N rows by N others, one step of each.
#pragma once

#include "exchange.h"
#include "pack.h"

namespace onepass::cuda {

// As it lies in memory: N lines of N neighbours. Its elements are numbered along its second side, the steps or the
// others. kAlong: a line lies along that, else along the first.
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
    __device__ __forceinline__ C get(int number) const {
        return element<C>(lines_[kAlong ? number / N : number % N], kAlong ? number % N : number / N);
    }

    __device__ __forceinline__ void set(int number, T value) {
        lines_[kAlong ? number / N : number % N].at[kAlong ? number % N : number / N] = value;
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

// Writes N lines so far apart: get(number) is an element of a square of results.
template <int N, bool kAlong, class T, class Get>
__device__ __forceinline__ void store_square(T* to, int64 apart, Get&& get) {
#pragma unroll
    for (int l = 0; l < N; ++l) {
        decltype(get(0)) line[N];
#pragma unroll
        for (int i = 0; i < N; ++i) line[i] = get(kAlong ? l * N + i : i * N + l);
        store_pack(to + l * apart, line);
    }
}

// The squares of a tile that a thread has, of a shape with `across`, `down`, `threads`, `cluster`, `packs` and `pack`.
// Their steps are taken by turns with the other threads of these rows and blocks of the tile.
template <auto kShape>
struct SquaresOfThread {
    static constexpr int N = kShape.pack;
    static constexpr int kHeld = kShape.packs;
    static constexpr bool kOfRows = kShape.down > 0;                                       // on both sides
    static constexpr int kAcross = kOfRows ? kShape.across * kShape.down : kShape.across;  // threads of different rows
    static constexpr int kAlong = kShape.threads / kAcross;                                // of the same
    static constexpr int kRows = kOfRows ? N * N : N;
    static constexpr int kSteps = N * N / kRows;  // of each row, in elements that follow each other

    int64 row;     // the first, as kept axes number them; of the first side's N rows the others follow it
    bool present;  // a tile may be wider than the rows that are left; a thread beyond them sees the last
    int64 step;

    template <class Job>
    __device__ __forceinline__ SquaresOfThread(const Job& job, const TeamPlace& place)
        : step((place.rank * kAlong + threadIdx.x / kAcross) * kSteps) {
        const unsigned thread = threadIdx.x % kAcross;
        if constexpr (kOfRows) {
            // Tiles are numbered along the second side first.
            const int64 size = job.axis[kShape.kept_axes - 1].size, others = job.axis[kShape.kept_axes - 2].size;
            const unsigned down = tiles_of(others, kShape.down), tile = place.team / down,
                           across = tiles_of(size, kShape.across);
            const int64 first = first_of(tile % across, kShape.across, thread % kShape.across);
            const int64 second = first_of(place.team % down, kShape.down, thread / kShape.across);
            present = first < size && second < others;
            row = (tile / across * others + (present ? second : others - N)) * size + (present ? first : size - N);
        } else {
            row = first_of(place.team, kShape.across, thread);
            present = row < job.rows;
            if (!present) row = job.rows - N;
        }
    }

    // Calls visit(k, step) for each: none but the last may be missing.
    template <class Visit>
    __device__ __forceinline__ void for_each(int64 length, Visit&& visit) const {
        constexpr int kApart = kShape.cluster * kAlong * kSteps;
#pragma unroll
        for (int k = 0; k < kHeld; ++k) {
            if (k < kHeld - 1 || step + k * kApart < length) visit(k, step + k * kApart);
        }
    }

   private:
    static __device__ __forceinline__ unsigned tiles_of(int64 rows, int threads) {
        return static_cast<unsigned>((rows + threads * N - 1) / (threads * N));
    }
    static __device__ __forceinline__ int64 first_of(unsigned tile, int threads, unsigned thread) {
        return (static_cast<int64>(tile) * threads + thread) * N;
    }
};

}  // namespace onepass::cuda
