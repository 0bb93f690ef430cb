// Rows of a gradient whose elements lie side by side in dx: how dy and the saved array are read beside it, a walk over
// parts of a row, and a row that waits in registers.
#pragma once

#include "gradient_job.h"
#include "gradient_ops.h"
#include "load_store.h"
#include "pack.h"
#include "row.h"

namespace onepass::cuda {

// An element of dy and the one of the saved array that belongs to it.
template <class C>
struct Both {
    C dy;
    C saved;
};

// One row of an input. kWide: its packs lie on pack boundaries where those of dx do; else it is read by element, with
// any stride (0: one element for the whole row).
template <class In, class C, bool kWide>
struct Source {
    static constexpr bool kAsRead = kWide;  // packs are what lies in memory

    const In* x;
    int64 stride;

    __device__ __forceinline__ C one(int64 column) const { return widen<C>(x[kWide ? column : column * stride]); }

    // As a Reader's.
    template <int N>
        requires(kWide && sizeof(In) < sizeof(C))
    static __device__ WaitingPack<In, C, N, true> waiting() {
        return {};
    }
    template <bool kOnce, int N>
    __device__ __forceinline__ void ask(int64 column, WaitingPack<In, C, N, true>& to) const {
        to.of = load_words<N, kOnce>(x + column);
    }

    template <int N>
    __device__ __forceinline__ void pack(int64 column, C (&to)[N]) const {
        if constexpr (kWide) {
            load_pack(x + column, to);
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) to[i] = one(column + i);
        }
    }
};

// A pack of each, that is looked at later.
template <class C, int N, class WaitingDy, class WaitingSaved>
struct WaitingBoth {
    WaitingDy dy;
    WaitingSaved saved;

    __device__ __forceinline__ void get(Both<C> (&to)[N]) const {
        C dy_values[N], saved_values[N];
        dy.get(dy_values);
        saved.get(saved_values);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = {dy_values[i], saved_values[i]};
    }
};

template <class C, class DySource, class SavedSource>
struct BothReader {
    DySource dy;
    SavedSource saved;

    __device__ __forceinline__ Both<C> one(int64 column) const { return {dy.one(column), saved.one(column)}; }

    template <int N>
        requires requires {
            DySource::template waiting<N>();
            SavedSource::template waiting<N>();
        }
    static __device__ auto waiting() {
        return WaitingBoth<C, N, decltype(DySource::template waiting<N>()),
                           decltype(SavedSource::template waiting<N>())>();
    }
    template <bool kOnce, class Waiting>
    __device__ __forceinline__ void ask(int64 column, Waiting& to) const {
        dy.template ask<kOnce>(column, to.dy);
        saved.template ask<kOnce>(column, to.saved);
    }

    template <int N>
    __device__ __forceinline__ void pack(int64 column, Both<C> (&to)[N]) const {
        C dy_values[N], saved_values[N];
        dy.pack(column, dy_values);
        saved.pack(column, saved_values);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = {dy_values[i], saved_values[i]};
    }
};

// How a row is read and written: the cut is that of dx.
struct GradientAccess {
    int pack;  // elements per access
    Alignment alignment;
    bool wide_dy;
    bool wide_saved;
};
template <auto kShape>
inline constexpr GradientAccess kAccessOf{kShape.pack, kShape.alignment, kShape.wide_dy, kShape.wide_saved};

// kAxes kept axes, and the reduced one after them. kThreads: as of Rows.
template <class Dy, class Saved, class Dx, int kAxes, GradientAccess kAccess, int kThreads = 0>
struct GradientRows {
    static constexpr int N = kAccess.pack;
    using C = GradientCompute<Dy, Saved, Dx>;
    // Of 16 bits a line's edges are 70 elements of each of three arrays, one by one: 4096x50257 bfloat16 319 us on an
    // H200 for 309.
    using RowCut = Cut<N, kAccess.alignment, boundary_for<Dx, N>(sizeof(Dx) == 2 ? 0 : kThreads)>;
    using RowJob = GradientJob<3, kAxes + 1>;

    struct Row {
        BothReader<C, Source<Dy, C, kAccess.wide_dy>, Source<Saved, C, kAccess.wide_saved>> reader;
        Writer<Dx, C, Direct> writer;
        RowCut cut;
    };

    static __device__ __forceinline__ Row at(const RowJob& job, int64 row) {
        const auto offset = job.template offset_of<0, kAxes>(row);
        Dx* dx = job.template result<Dx>(offset);
        const auto& along = job.axis[kAxes];
        return {{{job.template input<Dy>(kDy, offset), along.stride[kDy]},
                 {job.template input<Saved>(kSaved, offset), along.stride[kSaved]}},
                {dx, row, {}},
                RowCut::of(dx, job.length)};
    }
};

// ---- sums and results of a pack ----

template <class Op, int N, class C>
__device__ __forceinline__ C sum_of_terms(const Both<C> (&values)[N]) {
    C terms[N];
#pragma unroll
    for (int i = 0; i < N; ++i) terms[i] = Op::term(values[i].dy, values[i].saved);
    return sum_of(terms);
}

// Packs of two arrays that a thread asks for before it waits for the first: of 8 doubles it has no registers for more.
template <class C, int N>
inline constexpr int kInFlightOfBoth = N * sizeof(C) > 32 ? 1 : kInFlight / 2;

// A part of a row, of both arrays or of one, for for_each.
template <class Reader, class PartCut>
struct RowPart {
    Reader reader;
    PartCut cut;
};
template <class Reader, class PartCut>
RowPart(Reader, PartCut) -> RowPart<Reader, PartCut>;

// Adds the terms of a thread's share of a row. Where they are dy alone, the saved array is not looked at.
template <class Op, int kThreads, int N, class Row, class C>
__device__ __forceinline__ void add_terms(const Row& row, Sum<C>& sum) {
    if constexpr (Op::kSumsSaved) {
        for_each<kThreads, N, kInFlightOfBoth<C, N>>(row, threadIdx.x,
                                                     [&](int64, auto& values) { sum.add(sum_of_terms<Op>(values)); });
    } else {
        for_each<kThreads, N, 2 * kInFlightOfBoth<C, N>>(RowPart{row.reader.dy, row.cut}, threadIdx.x,
                                                         [&](int64, auto& values) { sum.add(sum_of(values)); });
    }
}

template <class Op, int N, class C, class Writer>
__device__ __forceinline__ void write_gradients(const Writer& writer, int64 column, const Both<C> (&values)[N], C sum) {
    using Dx = decltype(element_of(writer));
    C results[N];
#pragma unroll
    for (int i = 0; i < N; ++i) results[i] = Op::template gradient<Dx>(values[i].dy, values[i].saved, sum);
    if constexpr (N == 1) {
        writer.one(column, results[0]);
    } else {
        writer.pack(column, results);
    }
}

// ---- a row that waits in registers ----

// kThreads threads hold dy and the saved array together, each every kThreads-th pack and some of the edges. What the
// row does not fill holds zeros, whose terms change no sum.
template <class Op, class C, int kThreads, int kPacks, class RowCut, bool kPadded>
class HeldBoth {
   public:
    static constexpr int N = RowCut::kPack;

    template <class Row>
    __device__ __forceinline__ void load(const Row& row, int thread) {
        if constexpr (kPadded) clear_packs();
        load_packs(
            row.reader, [&](int k) { return !kPadded || k * kThreads + thread < row.cut.packs; },
            [&](int k) { return row.cut.pack_column(k * kThreads + thread); }, packs_);
#pragma unroll
        for (int k = 0; k < kEdges; ++k) {
            const int edge = k * kThreads + thread;
            edges_[k] = edge < row.cut.edges() ? row.reader.one(row.cut.edge_column(edge)) : Both<C>{C(0), C(0)};
        }
    }

    // Of a row past the end.
    __device__ __forceinline__ void clear() {
        clear_packs();
#pragma unroll
        for (int k = 0; k < kEdges; ++k) edges_[k] = {C(0), C(0)};
    }

    __device__ __forceinline__ C sum() const {
        Sum<C> total{sum_of_terms<Op>(packs_[0]), C(0)};
#pragma unroll
        for (int k = 1; k < kPacks; ++k) total.add(sum_of_terms<Op>(packs_[k]));
#pragma unroll
        for (int k = 0; k < kEdges; ++k) total.add(Op::term(edges_[k].dy, edges_[k].saved));
        return total.value();
    }

    template <class Row>
    __device__ __forceinline__ void write(const Row& row, C sum, int thread) const {
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            const int pack = k * kThreads + thread;
            if (!kPadded || pack < row.cut.packs)
                write_gradients<Op>(row.writer, row.cut.pack_column(pack), packs_[k], sum);
        }
#pragma unroll
        for (int k = 0; k < kEdges; ++k) {
            const int edge = k * kThreads + thread;
            const Both<C> one[1] = {edges_[k]};
            if (edge < row.cut.edges()) write_gradients<Op>(row.writer, row.cut.edge_column(edge), one, sum);
        }
    }

   private:
    static constexpr int kEdges = (RowCut::kMostEdges + kThreads - 1) / kThreads;

    Both<C> packs_[kPacks][N];
    Both<C> edges_[kEdges > 0 ? kEdges : 1];

    __device__ __forceinline__ void clear_packs() {
#pragma unroll
        for (auto& pack : packs_) {
#pragma unroll
            for (auto& both : pack) both = {C(0), C(0)};
        }
    }
};

}  // namespace onepass::cuda
