// A row that waits in registers: each of `threads` threads holds every threads-th pack, and some of the edges.
//
// Every loop is over a number of registers known at compile time; what the row does not fill holds -inf, which changes
// neither a maximum nor a sum of exponentials.
#pragma once

#include "pack.h"
#include "sum.h"

namespace onepass::cuda {

// kThreads threads hold a row together. kPadded: the row need not fill all their packs.
template <class C, int kThreads, int kPacks, int N, Alignment kAlignment, bool kPadded>
class Held {
   public:
    using RowCut = Cut<N, kAlignment>;

    template <class Reader>
    __device__ __forceinline__ void load(const Reader& reader, const RowCut& cut, int thread) {
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            const int pack = k * kThreads + thread;
            if (!kPadded || pack < cut.packs) {
                reader.pack(cut.pack_column(pack), packs[k]);
            } else {
#pragma unroll
                for (C& x : packs[k]) x = -kInfinity<C>;
            }
        }
#pragma unroll
        for (int k = 0; k < kEdges; ++k) {
            const int edge = k * kThreads + thread;
            edges[k] = edge < cut.edges() ? reader.one(cut.edge_column(edge)) : -kInfinity<C>;
        }
    }

    __device__ __forceinline__ void fill(C value) {
        transform([=](C) { return value; });
    }

    template <class F>
    __device__ __forceinline__ void transform(F f) {
#pragma unroll
        for (auto& pack : packs) {
#pragma unroll
            for (C& x : pack) x = f(x);
        }
#pragma unroll
        for (int k = 0; k < kEdges; ++k) edges[k] = f(edges[k]);
    }

    template <class Combine>
    __device__ __forceinline__ C reduce(Combine combine) const {
        C total = packs[0][0];
#pragma unroll
        for (const auto& pack : packs) {
#pragma unroll
            for (const C& x : pack) total = combine(total, x);
        }
#pragma unroll
        for (int k = 0; k < kEdges; ++k) total = combine(total, edges[k]);
        return total;
    }

    __device__ __forceinline__ Sum<C> sum() const {
        Sum<C> total{sum_of(packs[0]), C(0)};
#pragma unroll
        for (int k = 1; k < kPacks; ++k) total.add(sum_of(packs[k]));
#pragma unroll
        for (int k = 0; k < kEdges; ++k) total.add(edges[k]);
        return total;
    }

    // The sum of the row's exponentials; kKeep: they take the row's place.
    template <bool kKeep, class F>
    __device__ __forceinline__ Sum<C> exponentials(F exponential) {
        if constexpr (kKeep) {
            transform(exponential);
            return sum();
        } else {
            Held exponentials = *this;
            exponentials.transform(exponential);
            return exponentials.sum();
        }
    }

    // Writes the result: a row, or one value.
    template <class Op, class Result, class Writer>
    __device__ __forceinline__ void write(const Result& result, const Writer& writer, const RowCut& cut, int thread) {
        if constexpr (!Op::kElementwise) {
            if (thread == 0) writer.one(0, result);
        } else {
            if constexpr (Op::kKeepsExponentials) {
                transform([&](C e) { return result.normalize(e); });
            } else {
                transform(result);
            }
            store(writer, cut, thread);
        }
    }

   private:
    static constexpr int kEdges = (RowCut::kMostEdges + kThreads - 1) / kThreads;

    C packs[kPacks][N];
    C edges[kEdges > 0 ? kEdges : 1];

    template <class Writer>
    __device__ __forceinline__ void store(const Writer& writer, const RowCut& cut, int thread) const {
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            const int pack = k * kThreads + thread;
            if (!kPadded || pack < cut.packs) writer.pack(cut.pack_column(pack), packs[k]);
        }
#pragma unroll
        for (int k = 0; k < kEdges; ++k) {
            const int edge = k * kThreads + thread;
            if (edge < cut.edges()) writer.one(cut.edge_column(edge), edges[k]);
        }
    }
};

}  // namespace onepass::cuda
