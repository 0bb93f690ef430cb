// The part of a row that one block of a team has: a run of its packs. It starts on a pack boundary, so it is cut into
// packs as a row is; the first slice has the row's head, the last its tail.
#pragma once

#include "block_smem.h"
#include "exchange.h"
#include "row.h"

namespace onepass::cuda {

// A row's Reader or Writer, from a column on.
template <class Whole>
struct From {
    Whole whole;
    int64 begin;

    __device__ __forceinline__ auto one(int64 column) const { return whole.one(begin + column); }
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

template <class Rows>
struct Slice {
    using RowCut = typename Rows::RowCut;

    From<decltype(Rows::Row::reader)> reader;
    From<decltype(Rows::Row::writer)> writer;
    RowCut cut;

    static __device__ __forceinline__ Slice at(const typename Rows::RowJob& job, int64 row, const Team& team,
                                               unsigned rank) {
        const auto whole = Rows::at(job, row);
        const int64 first = rank * team.slice, left = whole.cut.packs - first;
        const RowCut cut{left < 0            ? 0
                         : left < team.slice ? left
                                             : team.slice,
                         rank == 0 ? whole.cut.head : 0, rank == team.blocks - 1 ? whole.cut.tail : 0};
        const int64 begin = rank == 0 ? 0 : whole.cut.head + (left < 0 ? whole.cut.packs : first) * RowCut::kPack;
        return {{whole.reader, begin}, {whole.writer, begin}, cut};
    }
};

// A slice that waits in registers, as it was read or, where a functor changes elements, as the functor left it. What it
// does not fill holds -inf, which changes neither a maximum nor a sum of exponentials.
template <class Kept, class C, int kThreads, int kPacks, class RowCut>
class HeldSlice {
   public:
    static constexpr int N = RowCut::kPack;
    // Words, and not elements, of which a compiler may keep each of 16 bits in a register of its own.
    using Elements = typename Pack<Kept, N>::Elements;
    using Words = typename Pack<Kept, N>::Words;

    template <class Reader>
    __device__ __forceinline__ void load(const Reader& reader, const RowCut& cut, int thread) {
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            packs_[k] = nothing();
            if (k * kThreads + thread < cut.packs) {
                packs_[k] = load_kept(reader, cut.pack_column(k * kThreads + thread));
            }
        }
#pragma unroll
        for (int k = 0; k < kEdges; ++k) {
            const int edge = k * kThreads + thread;
            edges_[k] = narrow<Kept>(edge < cut.edges() ? reader.one(cut.edge_column(edge)) : -kInfinity<C>);
        }
    }

    // Calls visit(values) for every pack and every edge, an edge as a pack of one; also for those that hold nothing.
    // kKeep: what it makes of them takes their place.
    template <bool kKeep = false, class Visit>
    __device__ __forceinline__ void for_all(Visit&& visit) {
#pragma unroll
        for (Words& pack : packs_) {
            C values[N];
            widen_all(pack, values);
            visit(values);
            if constexpr (kKeep) pack = narrow_all(values);
        }
#pragma unroll
        for (int k = 0; k < kEdges; ++k) {
            C value[1] = {widen<C>(edges_[k])};
            visit(value);
            if constexpr (kKeep) edges_[k] = narrow<Kept>(value[0]);
        }
    }

    // Calls visit(column, values) for those that hold something.
    template <class Visit>
    __device__ __forceinline__ void for_present(const RowCut& cut, int thread, Visit&& visit) const {
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (k * kThreads + thread >= cut.packs) break;
            C values[N];
            widen_all(packs_[k], values);
            visit(cut.pack_column(k * kThreads + thread), values);
        }
#pragma unroll
        for (int k = 0; k < kEdges; ++k) {
            const int edge = k * kThreads + thread;
            C value[1] = {widen<C>(edges_[k])};
            if (edge < cut.edges()) visit(cut.edge_column(edge), value);
        }
    }

   private:
    static constexpr int kEdges = (RowCut::kMostEdges + kThreads - 1) / kThreads;

    static __device__ __forceinline__ Words nothing() {
        Elements pack;
#pragma unroll
        for (Kept& x : pack.at) x = kMinusInfinity<Kept>;
        return __builtin_bit_cast(Words, pack);
    }

    template <class In, class Load, bool kWide>
    static __device__ __forceinline__ Words load_kept(const From<Reader<In, C, Load, kWide>>& reader, int64 column) {
        if constexpr (kWide && kSame<Load, Direct>) {
            return load_words<N>(reader.whole.x + (reader.begin + column));
        } else {
            C values[N];
            reader.pack(column, values);
            return narrow_all(values);
        }
    }

    // Exact: they have been widened from there, or Kept is C.
    static __device__ __forceinline__ Words narrow_all(const C (&values)[N]) {
        Elements pack;
#pragma unroll
        for (int i = 0; i < N; ++i) pack.at[i] = narrow<Kept>(values[i]);
        return __builtin_bit_cast(Words, pack);
    }

    static __device__ __forceinline__ void widen_all(const Words& pack, C (&values)[N]) {
        const auto elements = __builtin_bit_cast(Elements, pack);
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] = widen<C>(elements.at[i]);
    }

    Words packs_[kPacks];
    Kept edges_[kEdges > 0 ? kEdges : 1];
};

// Whether packs may be copied to shared memory without passing through registers.
template <class Kept, int N>
inline constexpr bool kCopiesPacks = Pack<Kept, N>::kBytes >= 4;

// Begins to copy a slice that starts at x to where it is to wait.
template <int kThreads, class Kept, class C, class RowCut>
__device__ __forceinline__ void copy_slice(const Kept* x, const KeptRow<Kept, C, RowCut>& to) {
    using P = Pack<Kept, RowCut::kPack>;
#pragma unroll 4
    for (int64 pack = threadIdx.x; pack < to.cut.packs; pack += kThreads) {
        const int64 column = to.cut.pack_column(pack);
        const auto* const from = reinterpret_cast<const typename P::Word*>(x + column);
        auto* const kept = reinterpret_cast<typename P::Word*>(to.reader.pack_at(column));
#pragma unroll
        for (int i = 0; i < P::kWords; ++i) ptx::copy_async<P::kBytes>(kept + i, from + i);
    }
    for (int edge = threadIdx.x; edge < to.cut.edges(); edge += kThreads) {
        const int64 column = to.cut.edge_column(edge);
        *to.reader.edge_at(column) = x[column];
    }
}

// for_each from the end of a row to its beginning: what was read last is likeliest to be in L2 still.
template <int kThreads, int N, int kAhead = kInFlight, class Row, class Visit>
__device__ __forceinline__ void for_each_back(const Row& row, int thread, Visit&& visit) {
    using C = decltype(row.reader.one(0));
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
