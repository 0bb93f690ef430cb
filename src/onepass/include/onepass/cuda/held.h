// A row that waits in registers: each of `threads` threads holds every threads-th pack, and some of the edges.
//
// Every loop is over a number of registers known at compile time; what the row does not fill holds -inf, which changes
// neither a maximum nor a sum of exponentials.
#pragma once

#include "load_store.h"
#include "pack.h"
#include "reduce.h"
#include "sum.h"

namespace onepass::cuda {

// kThreads threads hold a row together. kPadded: the row need not fill all their packs.
template <class C, int kThreads, int kPacks, class RowCut, bool kPadded>
class Held {
   public:
    static constexpr int N = RowCut::kPack;

    // What the row does not fill keeps what it holds. kOnce: as load_words'.
    template <bool kOnce = false, class Reader>
    __device__ __forceinline__ void load(const Reader& reader, const RowCut& cut, int thread) {
        const int64 first = cut.pack_column(thread);
        const int whole = static_cast<int>(cut.packs);
        load_packs<kOnce>(
            reader, [=](int k) { return !kPadded || k * kThreads + thread < whole; },
            [=](int k) { return first + k * (kThreads * N); }, packs);
#pragma unroll
        for (int k = 0; k < kEdges; ++k) {
            const int edge = k * kThreads + thread;
            if (edge < cut.edges()) edges[k] = reader.one(cut.edge_column(edge));
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
        C totals[kPacks];
#pragma unroll
        for (int k = 0; k < kPacks; ++k) totals[k] = in_pairs(packs[k], combine);
        C total = in_pairs(totals, combine);
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

    // The sum of the row's exponentials; kKeep: they take the row's place, and are added up plainly, as those of
    // different threads are.
    template <bool kKeep, class F>
    __device__ __forceinline__ Sum<C> exponentials(F exponential) {
        if constexpr (kKeep) {
            transform(exponential);
            return {reduce(Add()), C(0)};
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
        const int64 first = cut.pack_column(thread);
        const int whole = static_cast<int>(cut.packs);
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (!kPadded || k * kThreads + thread < whole) writer.pack(first + k * (kThreads * N), packs[k]);
        }
#pragma unroll
        for (int k = 0; k < kEdges; ++k) {
            const int edge = k * kThreads + thread;
            if (edge < cut.edges()) writer.one(cut.edge_column(edge), edges[k]);
        }
    }
};

}  // namespace onepass::cuda
