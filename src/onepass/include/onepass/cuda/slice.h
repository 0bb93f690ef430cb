// The part of a row that one block of a team has: a run of its packs. It starts on a pack boundary, so it is cut into
// packs as a row is; the first slice has the row's head, the last its tail.
#pragma once

#include "block_smem.h"
#include "exchange.h"
#include "pack_max.h"
#include "row.h"

namespace onepass::cuda {

// A row's Reader or Writer, from a column on.
template <class Whole>
struct From {
    Whole whole;
    int64 begin;

    template <int N>
        requires requires { Whole::template waiting<N>(); }
    static __device__ auto waiting() {
        return Whole::template waiting<N>();
    }
    __device__ __forceinline__ auto one(int64 column) const { return whole.one(begin + column); }
    template <int N>
    __device__ __forceinline__ auto words(int64 column, bool there) const {
        return whole.template words<N>(begin + column, there);
    }
    template <bool kOnce = false, class Waiting>
    __device__ __forceinline__ void ask(int64 column, Waiting& to) const {
        whole.template ask<kOnce>(begin + column, to);
    }
    template <class C>
    __device__ __forceinline__ void one(int64 column, C value) const {
        whole.one(begin + column, value);
    }
    template <int N, class C>
    __device__ __forceinline__ void pack(int64 column, C (&to)[N]) const {
        whole.pack(begin + column, to);
    }
    template <int N, class C>
    __device__ __forceinline__ void pack(int64 column, const C (&values)[N]) const {
        whole.pack(begin + column, values);
    }
};
template <class Whole>
auto element_of(const From<Whole>& from) -> decltype(element_of(from.whole));

// kSpread neighbours take turns at the packs that they share, kThreads at a time, so that blocks which are at work at
// the same time read and write in the order of memory; 1: a slice is a run. H200: a copy by runs of 80 KB takes 1.09x
// the time of an unbroken one, by 4 or more in turn 1.05x.
template <class Rows, int kThreads = 1, int kSpread = 1>
struct Slice {
    using RowCut = typename Rows::RowCut;
    // From one pack of a thread to its next.
    static constexpr int kStep = kThreads * kSpread;

    From<decltype(Rows::Row::reader)> reader;
    From<decltype(Rows::Row::writer)> writer;
    RowCut cut;

    static __device__ __forceinline__ Slice at(const typename Rows::RowJob& job, int64 row, const Team& team,
                                               unsigned rank) {
        const auto whole = Rows::at(job, row);
        const int64 run = team.slice * kSpread, begin_of_run = rank / kSpread * run,
                    skipped = rank % kSpread * kThreads;
        const int64 first = begin_of_run + skipped, left_of_run = whole.cut.packs - begin_of_run;
        const int64 left = (left_of_run < run ? left_of_run : run) - skipped;
        const RowCut cut{left < 0 ? 0 : left, rank == 0 ? whole.cut.head : 0,
                         static_cast<int>(rank) == team.blocks - 1 ? whole.cut.tail : 0};
        const int64 begin = rank == 0 ? 0 : whole.cut.head + (left < 0 ? whole.cut.packs : first) * RowCut::kPack;
        return {{whole.reader, begin}, {whole.writer, begin}, cut};
    }
};

// Packs that wait in registers, as they were read or, where a functor changes elements, as the functor left them. Those
// that are not there hold -inf, which changes neither a maximum nor a sum of exponentials.
template <class Kept, class C, int kPacks, int N>
struct HeldPacks {
    // Words, and not elements, of which a compiler may keep each of 16 bits in a register of its own.
    using Words = typename Pack<Kept, N>::Words;
    Words at[kPacks];

    static __device__ __forceinline__ Words nothing() {
        typename Pack<Kept, N>::Elements pack;
#pragma unroll
        for (Kept& x : pack.at) x = kMinusInfinity<Kept>;
        return __builtin_bit_cast(Words, pack);
    }

    __device__ __forceinline__ void push_to(PackMax<Kept, C>& max) const {
#pragma unroll
        for (const Words& pack : at) max.template push<N>(pack);
    }

    __device__ __forceinline__ auto widened() const {
        HeldPacks<C, C, kPacks, N> wide;
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            C values[N];
            widen_words<Kept>(at[k], values);
            wide.at[k] = narrow_words<C>(values);
        }
        return wide;
    }

    // Between passes: pairs of 16 bits are not kept widened.
    __device__ __forceinline__ void stay_narrow() {
#pragma unroll
        for (Words& pack : at) cuda::stay_narrow<Kept, N>(pack);
    }

    // Calls visit(values) for every pack, also for those that hold nothing. kKeep: what it makes of them takes their
    // place.
    template <bool kKeep, class Visit>
    __device__ __forceinline__ void for_all(Visit&& visit) {
#pragma unroll
        for (Words& pack : at) {
            C values[N];
            widen_words<Kept>(pack, values);
            visit(values);
            if constexpr (kKeep) pack = narrow_words<Kept>(values);
        }
    }
};

// The edge of a slice that is this thread's, if there is one, in a register.
template <class C, class RowCut>
struct HeldEdge {
    static constexpr bool kMayBe = RowCut::kMostEdges > 0;
    C at[1];

    template <class Slice>
    static __device__ __forceinline__ HeldEdge of(const Slice& slice) {
        HeldEdge edge{{-kInfinity<C>}};
        for_each_edge<RowCut::kMostEdges>(slice, threadIdx.x, [&](int64, auto& value) { edge.at[0] = value[0]; });
        return edge;
    }

    template <class Max>
    __device__ __forceinline__ void push_to(Max& max) const {
        if constexpr (kMayBe) max.push(at);
    }

    // As those of HeldPacks.
    template <bool kKeep, class Visit>
    __device__ __forceinline__ void for_all(Visit&& visit) {
        if constexpr (kMayBe) {
            C value[1] = {at[0]};
            visit(value);
            if constexpr (kKeep) at[0] = value[0];
        }
    }
    template <class Visit>
    __device__ __forceinline__ void for_present(const RowCut& cut, Visit&& visit) const {
        if constexpr (kMayBe) {
            const int edge = static_cast<int>(threadIdx.x);
            C value[1] = {at[0]};
            if (edge < cut.edges()) visit(cut.edge_column(edge), value);
        }
    }
};

// A slice that waits in registers. kStep: as Slice's; kOnce: as load_words'.
template <class Kept, class C, int kStep, int kPacks, class RowCut, bool kOnce = false>
struct HeldSlice {
    static constexpr int N = RowCut::kPack;
    HeldPacks<Kept, C, kPacks, N> packs;
    HeldEdge<C, RowCut> edge;

    template <class Slice>
    static __device__ __forceinline__ HeldSlice of(const Slice& slice) {
        HeldSlice held;
        const int whole = static_cast<int>(slice.cut.packs);
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            const int pack = k * kStep + static_cast<int>(threadIdx.x);
            if constexpr (decltype(slice.reader.whole)::kReadsAcross) {
                const auto words = slice.reader.template words<N>(slice.cut.pack_column(pack), pack < whole);
                held.packs.at[k] = pack < whole ? words : held.packs.nothing();
            } else {
                held.packs.at[k] = held.packs.nothing();
                if (pack < whole) held.packs.at[k] = load_kept(slice.reader, slice.cut.pack_column(pack));
            }
        }
        held.edge = held.edge.of(slice);
        return held;
    }

    // Whether this thread has something of the slice.
    static __device__ __forceinline__ bool any(const RowCut& cut) {
        return threadIdx.x < cut.packs || static_cast<int>(threadIdx.x) < cut.edges();
    }

    // As it is computed with. Of 16-bit elements that are needed twice a compiler would keep both forms.
    __device__ __forceinline__ HeldSlice<C, C, kStep, kPacks, RowCut> widened() const {
        return {packs.widened(), {edge.at[0]}};
    }

    // Calls visit(column, values) for the packs that are there and the edge.
    template <class Visit>
    __device__ __forceinline__ void for_present(const RowCut& cut, Visit&& visit) const {
        const int whole = static_cast<int>(cut.packs);
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            const int pack = k * kStep + static_cast<int>(threadIdx.x);
            if (pack >= whole) break;
            C values[N];
            widen_words<Kept>(packs.at[k], values);
            visit(cut.pack_column(pack), values);
        }
        edge.for_present(cut, visit);
    }

   private:
    template <class Reader>
    static __device__ __forceinline__ auto load_kept(const From<Reader>& reader, int64 column) {
        if constexpr (Reader::kAsRead) {
            return load_words<N, kOnce>(reader.whole.x + (reader.begin + column));
        } else {
            C values[N];
            reader.pack(column, values);
            return narrow_words<Kept>(values);  // exact: widened from there, or Kept is C
        }
    }
};

// Whether packs may be copied to shared memory without passing through registers.
template <class Kept, int N>
inline constexpr bool kCopiesPacks = Pack<Kept, N>::kBytes >= 4;

// Begins to copy the packs of a slice that starts at x to where they are to wait.
template <int kThreads, class Kept, class C, class RowCut>
__device__ __forceinline__ void copy_packs(const Kept* x, const KeptRow<Kept, C, RowCut>& to) {
    using P = Pack<Kept, RowCut::kPack>;
#pragma unroll 4
    for (int64 pack = threadIdx.x; pack < to.cut.packs; pack += kThreads) {
        const int64 column = to.cut.pack_column(pack);
        const auto* const from = reinterpret_cast<const typename P::Word*>(x + column);
        auto* const kept = reinterpret_cast<typename P::Word*>(to.reader.pack_at(column));
#pragma unroll
        for (int i = 0; i < P::kWords; ++i) ptx::copy_async<P::kBytes>(kept + i, from + i);
    }
}

// for_each from the end of a row to its beginning: what was read last is likeliest to be in L2 still.
template <int kThreads, int N, int kAhead = kInFlight, class Row, class Visit>
__device__ __forceinline__ void for_each_back(const Row& row, int thread, Visit&& visit) {
    using C = decltype(row.reader.one(0));
    // A loop, though of one step at most: as an `if` it costs `stream` registers that it has not.
    for (int edge = thread; edge < row.cut.edges(); edge += kThreads) {
        C value[1] = {row.reader.one(row.cut.edge_column(edge))};
        visit(row.cut.edge_column(edge), value);
    }
    int64 left = (row.cut.packs - thread + kThreads - 1) / kThreads;  // packs of this thread
    const auto column = [&](int64 pack) { return row.cut.pack_column(pack * kThreads + thread); };
    for (; left >= kAhead; left -= kAhead) {
        C values[kAhead][N];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) row.reader.pack(column(left - 1 - k), values[k]);
#pragma unroll
        for (int k = 0; k < kAhead; ++k) visit(column(left - 1 - k), values[k]);
    }
    for (; left > 0; --left) {
        C values[N];
        row.reader.pack(column(left - 1), values);
        visit(column(left - 1), values);
    }
}

}  // namespace onepass::cuda
