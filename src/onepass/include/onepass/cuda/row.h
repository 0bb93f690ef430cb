// The rows of a job whose elements lie side by side, in the input and in the result: where each one starts, how it is
// cut into packs, and a walk over it by the threads of a block.
#pragma once

#include "job.h"
#include "load_store.h"
#include "pack.h"
#include "row_ops.h"

namespace onepass::cuda {

// What a kernel for such rows has to know at compile time of how they are read and written. kBlockThreads: of a block
// that has a row, or a part of one, to itself; 0: fewer do.
template <class Op, class In, class Out, int kAxes, int kPack, Alignment kAlignment, class Load, class Store,
          int kBlockThreads = 0>
struct Rows {
    static constexpr int N = kPack;
    static constexpr int kThreads = kBlockThreads;
    static constexpr bool kMasked = kMasks<Load>;
    using C = Compute<In, Out>;
    using V = Precision<In, Out>;
    static constexpr bool kAcross = kAlignment == Alignment::apart && kSame<Load, Direct> && kInPairs<In, N>;
    static constexpr int kBeyond = kAcross;
    static constexpr int kBoundary = boundary_for<choose<Op::kElementwise, Out, In>, N>(kThreads, kBeyond);
    using RowCut = Cut<N, kAlignment, kBoundary, kBeyond>;
    using RowJob = Job<kAxes, Load, Store>;

    struct Row {
        Reader<In, C, Load, kAlignment != Alignment::apart, false, kAcross> reader;
        Writer<Out, C, Store> writer;
        RowCut cut;
    };
    using Waiting = WaitingPack<In, C, N, decltype(Row::reader)::kAsRead>;

    // Stores must be aligned: one that straddles a boundary costs memory traffic, a load that does costs a look-up in
    // the first cache. So rows are cut by their result if that is a row.
    static __device__ __forceinline__ Row at(const RowJob& job, int64 row) {
        const Offset offset = job.template offset_of<0, kAxes>(row);
        const In* x = static_cast<const In*>(job.x) + offset.x;
        Out* y = static_cast<Out*>(job.y) + offset.y;
        if constexpr (Op::kElementwise) {
            return {{x, row, job.load()}, {y, row, job.store()}, RowCut::of(y, job.length)};
        } else {
            return {{x, row, job.load()}, {y, row, job.store()}, RowCut::of(x, job.length)};
        }
    }

    static __device__ __forceinline__ auto exponential_of(C max) { return cuda::exponential_of<Op, V, kMasked>(max); }
    template <class Transform>
    static __device__ __forceinline__ auto exponential_of(C max, Transform&& transform) {
        return cuda::exponential_of<Op, V, kMasked>(max, transform);
    }
    template <class Exponential>
    static __device__ __forceinline__ auto finish(C max, const Exponential& exponential, Sum<C> sum) {
        return Op::template finish<V, kMasked>(max, exponential, sum);
    }
};

// Packs that a thread asks for before it waits for the first: 64 bytes per thread of 16-byte packs, 64 KiB in flight on
// a multiprocessor with 1024 threads.
inline constexpr int kInFlight = 4;

// Calls visit(column, load(column)) for every pack of a row that is this thread's, of kThreads. The order is the same
// each time. kAhead packs are asked for at a time, and kLeft of those that are left then: more than one saves waits
// where there is little else to do, and takes registers.
template <int kThreads, int kAhead, int kLeft, class RowCut, class Load, class Visit>
__device__ __forceinline__ void for_each_pack(const RowCut& cut, int thread, Load&& load, Visit&& visit) {
    int64 pack = thread;
    for (; pack + (kAhead - 1) * kThreads < cut.packs; pack += kAhead * kThreads) {
        decltype(load(pack)) loaded[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) loaded[k] = load(cut.pack_column(pack + k * kThreads));
#pragma unroll
        for (int k = 0; k < kAhead; ++k) visit(cut.pack_column(pack + k * kThreads), loaded[k]);
    }
#pragma unroll 1
    for (; pack < cut.packs; pack += kLeft * kThreads) {
        const auto there = [&](int k) { return k == 0 || pack + k * kThreads < cut.packs; };
        decltype(load(pack)) loaded[kLeft];
#pragma unroll
        for (int k = 0; k < kLeft; ++k) {
            if (there(k)) loaded[k] = load(cut.pack_column(pack + k * kThreads));
        }
#pragma unroll
        for (int k = 0; k < kLeft; ++k) {
            if (there(k)) visit(cut.pack_column(pack + k * kThreads), loaded[k]);
        }
    }
}

// Calls visit(column, values) for the edge of a row that is this thread's, if there is one: a pack of one.
template <int kThreads, class Row, class Visit>
__device__ __forceinline__ void for_each_edge(const Row& row, int thread, Visit&& visit) {
    constexpr int kMost = decltype(row.cut)::kMostEdges;
    static_assert(kMost <= kThreads);
    if constexpr (kMost > 0) {
        if (thread >= row.cut.edges()) return;
        const int64 column = row.cut.edge_column(thread);
        decltype(row.reader.one(0)) value[1] = {row.reader.one(column)};
        visit(column, value);
    }
}

// Both.
template <int kThreads, int N, int kAhead = kInFlight, int kLeft = 1, class Row, class Visit>
__device__ __forceinline__ void for_each(const Row& row, int thread, Visit&& visit) {
    struct Values {
        decltype(row.reader.one(0)) at[N];
    };
    const auto load = [&](int64 column) {
        Values values;
        row.reader.pack(column, values.at);
        return values;
    };
    for_each_pack<kThreads, kAhead, kLeft>(row.cut, thread, load,
                                           [&](int64 column, Values& values) { visit(column, values.at); });
    for_each_edge<kThreads>(row, thread, visit);
}

// Applies an elementwise result to a pack and writes it.
template <int N, class C, class Writer, class Result>
__device__ __forceinline__ void write_results(const Writer& writer, int64 column, C (&values)[N],
                                              const Result& result) {
#pragma unroll
    for (C& x : values) x = result(x);
    if constexpr (N == 1) {
        writer.one(column, values[0]);
    } else {
        writer.pack(column, values);
    }
}

}  // namespace onepass::cuda
