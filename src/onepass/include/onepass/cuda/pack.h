// Packs: neighbouring elements that cross memory in one access, and the cut of a row into packs.
//
// A GPU moves 16 bytes per thread and instruction at most (sm_100: 32). A row seldom starts on a multiple of that: row
// r of a matrix with 50257 columns of bfloat16 starts 2 * 50257 * r bytes into it. So a row is cut where memory wants
// it cut: a head of fewer elements than a pack, packs on pack boundaries, a tail. Only head and tail go element by
// element.
#pragma once

#include "types.h"

namespace onepass::cuda {

template <int kBytes>
struct WordOf;
template <>
struct WordOf<2> {
    using type = unsigned short;
};
template <>
struct WordOf<4> {
    using type = unsigned;
};
template <>
struct WordOf<8> {
    using type = uint2;
};
template <>
struct WordOf<16> {
    using type = uint4;
};

inline constexpr int kAccessBytes = 16;

// N elements as whole accesses: a pack of more than 16 bytes, of a type that is converted to or from a narrower one,
// takes several.
template <class T, int N>
struct Pack {
    static constexpr int kBytes = N * sizeof(T) < kAccessBytes ? N * sizeof(T) : kAccessBytes;
    static constexpr int kWords = N * sizeof(T) / kBytes;
    using Word = typename WordOf<kBytes>::type;
    struct Elements {
        T at[N];
    };
    struct Words {
        Word at[kWords];
    };
};

// Loads ask for nothing special: streamed past the caches (ld.global.cs), warps that follow each other through a row
// lost 1% to 4% on an H100, and rows on their way to shared memory 16%.
template <int N, class T>
__device__ __forceinline__ auto load_words(const T* from) {
    using P = Pack<T, N>;
    typename P::Words words;
    const auto* source = reinterpret_cast<const typename P::Word*>(from);
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) words.at[i] = __ldca(source + i);
    return words;
}

template <int N, class T>
__device__ __forceinline__ auto load_pack(const T* from) {
    return __builtin_bit_cast(typename Pack<T, N>::Elements, load_words<N>(from));
}

template <int N, class T>
__device__ __forceinline__ void store_pack(T* to, const typename Pack<T, N>::Elements& elements) {
    using P = Pack<T, N>;
    const auto words = __builtin_bit_cast(typename P::Words, elements);
    auto* target = reinterpret_cast<typename P::Word*>(to);
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) __stcs(target + i, words.at[i]);
}

// The same for shared memory, which has no cache hints.
template <int N, class T>
__device__ __forceinline__ auto load_shared(const T* from) {
    using P = Pack<T, N>;
    typename P::Words words;
    const auto* source = reinterpret_cast<const typename P::Word*>(from);
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) words.at[i] = source[i];
    return __builtin_bit_cast(typename P::Elements, words);
}

template <int N, class T>
__device__ __forceinline__ void store_shared(T* to, const typename Pack<T, N>::Elements& elements) {
    using P = Pack<T, N>;
    const auto words = __builtin_bit_cast(typename P::Words, elements);
    auto* target = reinterpret_cast<typename P::Word*>(to);
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) target[i] = words.at[i];
}

// Where the rows of an input and its result lie relative to pack boundaries. The planner knows from strides and
// addresses; a kernel for `whole` has no code for heads and tails.
enum class Alignment {
    whole,   // every row starts on a boundary and is a whole number of packs
    peeled,  // rows start anywhere, input and result equally far from a boundary: both are wide after the head
    apart,   // not equally far: the result is wide, the input is read by element (the first cache joins the reads)
};

// A row of `length` elements, cut. Head and tail together are the edges: fewer than 2 N elements, numbered through.
template <int N, Alignment kAlignment>
struct Cut {
    static constexpr int kPack = N;
    static constexpr int kMostEdges = kAlignment == Alignment::whole ? 0 : 2 * (N - 1);

    int64 packs;
    int head;
    int tail;

    // `start`: the row in the array whose accesses must be aligned.
    template <class T>
    static __device__ __forceinline__ Cut of(const T* start, int64 length) {
        if constexpr (kMostEdges == 0) {
            return {length / N, 0, 0};
        } else {
            const int past = static_cast<int>(reinterpret_cast<unsigned long long>(start) / sizeof(T) % N);
            const int to_boundary = (N - past) % N;
            const int head = length < to_boundary ? static_cast<int>(length) : to_boundary;
            const int64 packs = (length - head) / N;
            return {packs, head, static_cast<int>(length - head - packs * N)};
        }
    }

    __device__ __forceinline__ int edges() const { return head + tail; }
    __device__ __forceinline__ int64 pack_column(int64 pack) const { return head + pack * N; }
    __device__ __forceinline__ int64 edge_column(int edge) const { return edge < head ? edge : packs * N + edge; }
    __device__ __forceinline__ int edge_of(int64 column) const {
        return static_cast<int>(column < head ? column : column - packs * N);
    }
};

}  // namespace onepass::cuda
