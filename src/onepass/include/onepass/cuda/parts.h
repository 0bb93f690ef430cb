// A slice that waits in shared memory, part by part: each is looked at when it has come, while those after it are on
// their way, and as soon as one has been written out the same part of the next slice is asked for in its place.
//
// A thread reads only what it has itself asked for, so there is no barrier: every place belongs to one thread, for
// every row, however the row is cut.
#pragma once

#include "slice.h"

namespace onepass::cuda {

template <int kValue>
struct Constant {
    static constexpr int value = kValue;
};

// Calls f(Constant<0>()), f(Constant<1>()), ...: for what has to be known at compile time.
template <int kCount, int kFirst = 0, class F>
__device__ __forceinline__ void for_constants(F&& f) {
    if constexpr (kFirst < kCount) {
        f(Constant<kFirst>());
        for_constants<kCount, kFirst + 1>(f);
    }
}

// The places in shared memory of the packs that the threads of a block have of a slice, kBefore of each thread's packs
// left out: those wait elsewhere. The packs of a thread are numbered from the first that has a place. kStep: as
// Slice's.
template <class Kept, int kThreads, int kStep, int kBefore, class RowCut>
class Places {
   public:
    static constexpr int N = RowCut::kPack;

    __device__ __forceinline__ explicit Places(unsigned char* memory)
        : kept_(reinterpret_cast<Kept*>(memory) + static_cast<int>(threadIdx.x) * N) {}

    // Of one slice. What depends on the thread is computed once: the rest of an address is a constant of the
    // instruction.
    struct Mine {
        int64 first;  // column
        int left;     // packs of the slice from the first on

        __device__ __forceinline__ explicit Mine(const RowCut& cut)
            : first(cut.pack_column(threadIdx.x)), left(static_cast<int>(cut.packs) - static_cast<int>(threadIdx.x)) {}

        __device__ __forceinline__ bool has(int number) const { return (kBefore + number) * kStep < left; }
        __device__ __forceinline__ int64 column(int number) const { return first + (kBefore + number) * (kStep * N); }
    };

    __device__ __forceinline__ Kept* at(int number) const { return kept_ + number * (kThreads * N); }

    // Begins to bring a pack to its place, or brings it, where a functor or a conversion by element is in the way.
    // `ptx::wait_for_copies` says when it is there.
    template <class C, class Reader>
    __device__ __forceinline__ void bring(const From<Reader>& reader, int64 column, int number) const {
        Kept* const to = at(number);
        if constexpr (Reader::kAsRead && kBytes >= 4) {
            const auto* const from = reinterpret_cast<const unsigned char*>(reader.whole.x + (reader.begin + column));
#pragma unroll
            for (int i = 0; i < N * static_cast<int>(sizeof(Kept)); i += kBytes) {
                ptx::copy_async<kBytes>(reinterpret_cast<unsigned char*>(to) + i, from + i);
            }
        } else if constexpr (requires { requires decltype(reader.whole)::kReadsAcross; }) {
            // One pack at a time nothing is gained by words, and on sm_100 they spill.
            C values[N];
#pragma unroll
            for (int i = 0; i < N; ++i) values[i] = reader.one(column + i);
            store_shared(to, values);
        } else {
            C values[N];
            reader.pack(column, values);
            store_shared(to, values);  // exact: widened from there, or Kept is C
        }
    }

   private:
    static constexpr int kBytes = N * sizeof(Kept) < kAccessBytes ? N * sizeof(Kept) : kAccessBytes;

    Kept* const kept_;
};

// A part is kPacks packs of each of kThreads threads.
template <class Kept, class C, int kThreads, int kStep, int kPacks, int kParts, class RowCut>
class PartedSlice {
   public:
    static constexpr int N = RowCut::kPack;
    using Packs = HeldPacks<Kept, C, kPacks, N>;

    __device__ __forceinline__ explicit PartedSlice(unsigned char* memory) : places_(memory) {}

    // Begins to bring a part: as Places::bring.
    template <int kPart, class Slice>
    __device__ __forceinline__ void bring(const Slice& slice) const {
        const Mine mine(slice.cut);
        if constexpr (kParts == 1 && decltype(slice.reader.whole)::kReadsAcross) {
            Packs asked;  // all of them, before any is waited for; beside other parts they would spill
#pragma unroll
            for (int k = 0; k < kPacks; ++k) {
                const int number = kPart * kPacks + k;
                asked.at[k] = slice.reader.template words<N>(mine.column(number), mine.has(number));
            }
            keep<kPart>(asked, slice.cut);
        } else {
#pragma unroll
            for (int k = 0; k < kPacks; ++k) {
                const int number = kPart * kPacks + k;
                if (mine.has(number)) places_.template bring<C>(slice.reader, mine.column(number), number);
            }
        }
    }

    template <int kPart>
    __device__ __forceinline__ Packs load(const RowCut& cut) const {
        const Mine mine(cut);
        Packs packs;
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            packs.at[k] = packs.nothing();
            if (mine.has(kPart * kPacks + k)) packs.at[k] = load_shared_words<N>(places_.at(kPart * kPacks + k));
        }
        return packs;
    }

    // There is room for the packs that a slice has, not for whole parts.
    template <int kPart>
    __device__ __forceinline__ void keep(const Packs& packs, const RowCut& cut) const {
        const Mine mine(cut);
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (mine.has(kPart * kPacks + k)) store_shared_words<N>(places_.at(kPart * kPacks + k), packs.at[k]);
        }
    }

    // Calls visit(column, values) for the packs that are there.
    template <int kPart, class Visit>
    __device__ __forceinline__ void for_present(const RowCut& cut, Visit&& visit) const {
        const Mine mine(cut);
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (mine.has(kPart * kPacks + k)) {
                C values[N];
                load_shared(places_.at(kPart * kPacks + k), values);
                visit(mine.column(kPart * kPacks + k), values);
            }
        }
    }

   private:
    using AllPlaces = Places<Kept, kThreads, kStep, 0, RowCut>;
    using Mine = typename AllPlaces::Mine;

    const AllPlaces places_;
};

}  // namespace onepass::cuda
