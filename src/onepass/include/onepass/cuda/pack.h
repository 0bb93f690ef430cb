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

// ---- between words and values of what is computed in ----

// Types of 16 bits go two at a time: while two bfloat16 share 32 bits, each is one instruction away from its float32,
// and a compiler that is shown single elements gives each of them a register.
template <class T, int N>
inline constexpr bool kInPairs = sizeof(T) == 2 && N % 2 == 0;

template <int N>
struct Pairs {
    unsigned at[N / 2];
};

template <class T, int N, class C>
__device__ __forceinline__ void widen_words(const typename Pack<T, N>::Words& words, C (&to)[N]) {
    if constexpr (kInPairs<T, N> && kSame<T, bfloat16>) {
        const auto pairs = __builtin_bit_cast(Pairs<N>, words);
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            to[i] = __builtin_bit_cast(float, pairs.at[i / 2] << 16);
            to[i + 1] = __builtin_bit_cast(float, pairs.at[i / 2] & 0xffff0000u);
        }
    } else {
        const auto elements = __builtin_bit_cast(typename Pack<T, N>::Elements, words);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = widen<C>(elements.at[i]);
    }
}

// Exact for what has been widened from T.
template <class T, int N, class C>
__device__ __forceinline__ typename Pack<T, N>::Words narrow_words(const C (&values)[N]) {
    if constexpr (kInPairs<T, N>) {
        Pairs<N> pairs;
#pragma unroll
        for (int i = 0; i < N; i += 2) pairs.at[i / 2] = narrow_pair<T>(values[i], values[i + 1]);
        return __builtin_bit_cast(typename Pack<T, N>::Words, pairs);
    } else {
        typename Pack<T, N>::Elements elements;
#pragma unroll
        for (int i = 0; i < N; ++i) elements.at[i] = narrow<T>(values[i]);
        return __builtin_bit_cast(typename Pack<T, N>::Words, elements);
    }
}

// Pairs of 16 bits that are needed a second time: without this a compiler keeps what it has widened, in twice the
// registers.
template <class T, int N>
__device__ __forceinline__ void stay_narrow(typename Pack<T, N>::Words& words) {
    if constexpr (kInPairs<T, N>) {
        auto pairs = __builtin_bit_cast(Pairs<N>, words);
#pragma unroll
        for (unsigned& pair : pairs.at) ptx::hide(pair);
        words = __builtin_bit_cast(typename Pack<T, N>::Words, pairs);
    }
}

// ---- memory ----

// Loads ask for nothing special: streamed past the caches (ld.global.cs), warps that follow each other through a row
// lost 1% to 4% on an H100, and rows on their way to shared memory 16%. kOnce: they are, where all that a block has is
// asked for at a time and L2 is full of what others have left there to be written out: what has been read makes room
// for what comes, instead (H200: logsumexp of 32768x4096 bfloat16 69.8 us for 74.4, but float32 134.8 for 131.6;
// softmax of 1x4194304 float32 16.1 for 16.5).
template <int N, bool kOnce = false, class T>
__device__ __forceinline__ auto load_words(const T* from) {
    using P = Pack<T, N>;
    typename P::Words words;
    const auto* source = reinterpret_cast<const typename P::Word*>(from);
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) words.at[i] = kOnce ? __ldcs(source + i) : __ldca(source + i);
    return words;
}

// The same of pairs of 16 bits that need not begin on 32, if they are there: the words that have them, moved down by
// half a word. An element beside them is read, too. H200, November 2026, times of a copy's, softmax of bfloat16 rows
// that begin elsewhere than their results do, by element and so: 5001 columns 1.10 and 1.00, 10001 1.43 and 1.07,
// 20001 1.52 and 1.04. It is the branch that costs, not the accesses: with one for each pack, words took as long as
// elements.
template <int N, class T>
__device__ __forceinline__ auto load_words_across(const T* from, bool there = true) {
    static_assert(kInPairs<T, N>);
    const auto address = reinterpret_cast<unsigned long long>(from);
    const bool across = address & 2;
    const auto* const source = reinterpret_cast<const unsigned*>(address - (across ? 2 : 0));
    unsigned words[N / 2 + 1];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) words[i] = ptx::load_word_if(there, source + i);
    words[N / 2] = ptx::load_word_if(there && across, source + N / 2);
    Pairs<N> pairs;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
        const auto both = static_cast<unsigned long long>(words[i + 1]) << 32 | words[i];
        pairs.at[i] = static_cast<unsigned>(both >> (across ? 16 : 0));
    }
    return __builtin_bit_cast(typename Pack<T, N>::Words, pairs);
}

template <int N, bool kOnce = false, class T, class C>
__device__ __forceinline__ void load_pack(const T* from, C (&to)[N]) {
    widen_words<T>(load_words<N, kOnce>(from), to);
}

// kOnce: nobody here will read it, and it makes room in L2 for what will be.
template <int N, bool kOnce = false, class T, class C>
__device__ __forceinline__ void store_pack(T* to, const C (&values)[N]) {
    using P = Pack<T, N>;
    const auto words = narrow_words<T>(values);
    auto* target = reinterpret_cast<typename P::Word*>(to);
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) {
        if constexpr (kOnce) {
            ptx::store_word_once(target + i, words.at[i]);
        } else {
            ptx::store_word(target + i, words.at[i]);
        }
    }
}

// ---- shared memory, which has no cache hints ----

template <int N, class T>
__device__ __forceinline__ auto load_shared_words(const T* from) {
    using P = Pack<T, N>;
    typename P::Words words;
    const auto* source = reinterpret_cast<const typename P::Word*>(from);
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) words.at[i] = source[i];
    return words;
}

template <int N, class T>
__device__ __forceinline__ void store_shared_words(T* to, const typename Pack<T, N>::Words& words) {
    using P = Pack<T, N>;
    auto* target = reinterpret_cast<typename P::Word*>(to);
#pragma unroll
    for (int i = 0; i < P::kWords; ++i) target[i] = words.at[i];
}

template <int N, class T, class C>
__device__ __forceinline__ void load_shared(const T* from, C (&to)[N]) {
    widen_words<T>(load_shared_words<N>(from), to);
}

template <int N, class T, class C>
__device__ __forceinline__ void store_shared(T* to, const C (&values)[N]) {
    store_shared_words<N>(to, narrow_words<T>(values));
}

// Where the rows of an input and its result lie relative to pack boundaries. The planner knows from strides and
// addresses; a kernel for `whole` has no code for heads and tails.
enum class Alignment {
    whole,   // every row starts on a boundary and is a whole number of packs
    peeled,  // rows start anywhere, input and result equally far from a boundary: both are wide after the head
    apart,   // not equally far: the result is wide, the input is read by element, or by 32 bits
};

// Where packs of N elements of type T begin, if so many threads share a row: at multiples of so many elements, a cache
// line if the threads can take its edges, one each. A warp that stores 512 bytes from the middle of a line touches five
// of them, and a sixteenth more sectors. H200, a copy by rows of 50257 float32: 1.084 of what an unbroken copy takes
// with packs on their own boundaries, 1.052 on those of lines.
template <class T, int N>
constexpr int boundary_for(int threads, int beyond = 0) {
    constexpr int kLineBytes = 128;
    int boundary = N;
    while (2 * boundary * static_cast<int>(sizeof(T)) <= kLineBytes && 2 * boundary + N - 2 + beyond <= threads)
        boundary *= 2;
    return boundary;
}

// A row of `length` elements, cut: packs begin at a multiple of kBoundary elements, and at least kBeyond elements of
// the row lie beyond the last one. Head and tail together are the edges, numbered through.
template <int N, Alignment kAlignment, int kBoundary = N, int kBeyond = 0>
struct Cut {
    static_assert(kBeyond < N);
    static constexpr int kPack = N;
    static constexpr int kMostEdges = kAlignment == Alignment::whole ? 0 : kBoundary + N - 2 + kBeyond;

    int64 packs;
    int head;
    int tail;

    // `start`: the row in the array whose accesses must be aligned.
    template <class T>
    static __device__ __forceinline__ Cut of(const T* start, int64 length) {
        if constexpr (kMostEdges == 0) {
            return {length / N, 0, 0};
        } else {
            const int past = static_cast<int>(reinterpret_cast<unsigned long long>(start) / sizeof(T) % kBoundary);
            const int to_boundary = (kBoundary - past) % kBoundary;
            const int head = length < to_boundary ? static_cast<int>(length) : to_boundary;
            const int64 packs = (length - head - kBeyond) / N;
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
