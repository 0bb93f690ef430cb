// How elements come into a kernel and leave it: the wide access, the conversion, and a functor that sees each element
// on its way. A functor fuses what would be an operation of its own before or after: scaling, masking, yours.
//
// A functor is a struct of 8-byte fields (they follow the Job's own words, job.h) with
//     template <class C> __device__ C operator()(C x, long long row, long long column) const;
// C is float or double, row counts the kept elements, column the reduced ones. A load functor that can turn elements
// into -inf to leave them out says `static constexpr bool kMasks = true;`.
#pragma once

#include "pack.h"
#include "types.h"

namespace onepass::cuda {

// ---- functors ----

struct Direct {
    template <class C>
    __device__ __forceinline__ C operator()(C x, int64, int64) const {
        return x;
    }
};

struct Scaled {
    double factor;

    template <class C>
    __device__ __forceinline__ C operator()(C x, int64, int64) const {
        return x * static_cast<C>(factor);
    }
};

// Keeps the elements whose byte is not 0.
struct Masked {
    static constexpr bool kMasks = true;

    const unsigned char* keep;
    int64 row_stride;
    int64 column_stride;

    template <class C>
    __device__ __forceinline__ C operator()(C x, int64 row, int64 column) const {
        return keep[row * row_stride + column * column_stride] ? x : -kInfinity<C>;
    }
};

template <class Load>
inline constexpr bool kMasks = requires { requires Load::kMasks; };

// ---- one row in memory ----

// A pack that waits to be looked at: as it was read, if that is what it is. Widened, 16 bits take twice the registers.
template <class In, class C, int N, bool kAsRead>
struct WaitingPack {
    choose<kAsRead, typename Pack<In, N>::Words, typename Pack<C, N>::Elements> of;

    __device__ __forceinline__ void get(C (&to)[N]) const {
        if constexpr (kAsRead) {
            widen_words<In>(of, to);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = of.at[i];
        }
    }
};

// The row's elements as values of type C. kWide: its packs lie on pack boundaries. kShared: it lies in shared memory.
// kAcross: its packs are read by 32 bits, and an element lies beyond the last one.
template <class In, class C, class Load, bool kWide, bool kShared = false, bool kAcross = false>
struct Reader {
    static constexpr bool kAsRead = kWide && kSame<Load, Direct>;  // packs are what lies in memory
    static constexpr bool kReadsAcross = kAcross;

    const In* x;
    int64 row;
    Load load;

    __device__ __forceinline__ C one(int64 column) const { return load(widen<C>(x[column]), row, column); }
    static In element();  // for its type

    // What a pack of memory that is looked at later waits in, as decltype(reader.waiting<N>()): less than its values.
    template <int N>
        requires(kAsRead && !kShared && sizeof(In) < sizeof(C))
    static __device__ WaitingPack<In, C, N, kAsRead> waiting() {
        return {};
    }

    // kOnce: as load_words'.
    template <bool kOnce = false, int N>
    __device__ __forceinline__ void ask(int64 column, WaitingPack<In, C, N, kAsRead>& to) const {
        if constexpr (kAsRead) {
            to.of = load_words<N, kOnce>(x + column);
        } else {
            pack<kOnce>(column, to.of.at);
        }
    }

    // A pack across boundaries as it was read, if it is there.
    template <int N>
        requires kAcross
    __device__ __forceinline__ auto words(int64 column, bool there) const {
        return load_words_across<N>(x + column, there);
    }

    // kOnce: as load_words'.
    template <bool kOnce = false, int N>
    __device__ __forceinline__ void pack(int64 column, C (&to)[N]) const {
        if constexpr (kWide) {
            if constexpr (kShared) {
                load_shared(x + column, to);
            } else {
                load_pack<N, kOnce>(x + column, to);
            }
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = load(to[i], row, column + i);
        } else if constexpr (kAcross) {
            widen_words<In>(load_words_across<N>(x + column), to);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = one(column + i);
        }
    }
};

// Reads those packs of a row that are there. What is widened is all asked for before: of a load and what is done to it
// a compiler may make a branch, and wait in it. H200: 40000 rows of 360 bfloat16, their gradient 30.1 us to 26.8,
// logsumexp of float16 18.6 to 14.1; but packs of float32, or a single one, lost by it up to 1.11 of the time.
template <bool kOnce = false, class Reader, class There, class Column, class V, int kPacks, int N>
__device__ __forceinline__ void load_packs(const Reader& reader, There there, Column column, V (&packs)[kPacks][N]) {
    if constexpr (requires { requires Reader::kReadsAcross; }) {
        decltype(reader.template words<N>(0, true)) asked[kPacks];
#pragma unroll
        for (int k = 0; k < kPacks; ++k) asked[k] = reader.template words<N>(column(k), there(k));
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (there(k)) widen_words<decltype(reader.element())>(asked[k], packs[k]);
        }
    } else if constexpr (kPacks > 1 && requires { reader.template waiting<N>(); }) {
        decltype(reader.template waiting<N>()) asked[kPacks];
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (there(k)) reader.template ask<kOnce>(column(k), asked[k]);
        }
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (there(k)) asked[k].get(packs[k]);
        }
    } else {
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (!there(k)) continue;
            if constexpr (kOnce) {
                reader.template pack<kOnce>(column(k), packs[k]);
            } else {
                reader.pack(column(k), packs[k]);
            }
        }
    }
}

template <class Out, class C, class Store, bool kShared = false>
struct Writer {
    Out* y;
    int64 row;
    Store store;

    __device__ __forceinline__ void one(int64 column, C value) const {
        y[column] = narrow<Out>(store(value, row, column));
    }

    template <int N>
    __device__ __forceinline__ void pack(int64 column, const C (&values)[N]) const {
        C to[N];
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = store(values[i], row, column + i);
        if constexpr (kShared) {
            store_shared(y + column, to);
        } else {
            store_pack(y + column, to);
        }
    }
};

// What a writer writes, as decltype(element_of(writer)).
template <class Out, class C, class Store, bool kShared>
Out element_of(const Writer<Out, C, Store, kShared>&);

}  // namespace onepass::cuda
