// The gradient of logsumexp: dy and the result of a row, and x read once, dx written once. No sum is needed, so a long
// row is shared out among groups of threads that know nothing of each other.
#pragma once

#include "gradient_tile.h"

namespace onepass::cuda {

struct GradientLogSumExp {
    int axes;     // kept axes of the job
    int threads;  // of a block
    int lanes;    // that share a segment of a row
    int segment;  // packs of it that each of them takes
    int pack;     // elements per access
    Alignment alignment;
    bool wide_saved;
};

template <class Dy, class X, class Lse, class Dx>
using LogSumExpCompute = GradientCompute<Dy, X, choose<kSame<Lse, double>, double, Dx>>;

// Doubles, one block at least: told no number, ptxas spills them to make room for another.
template <class Dy, class X, class Lse, class Dx, GradientLogSumExp kShape>
__global__ void __launch_bounds__(kShape.threads, kSame<LogSumExpCompute<Dy, X, Lse, Dx>, double>)
    gradient_logsumexp(const __grid_constant__ GradientJob<4, kShape.axes + 1> job) {
    using C = LogSumExpCompute<Dy, X, Lse, Dx>;
    constexpr int N = kShape.pack;
    constexpr int kGroups = kShape.threads / kShape.lanes;
    constexpr int kSegment = kShape.lanes * kShape.segment;  // packs
    const int lane = threadIdx.x % kShape.lanes;
    const int group = threadIdx.x / kShape.lanes;
    // A row that is cut in two places has no more packs than one that is whole; at least one segment, for its edges.
    const int64 packs = job.length / N;
    const int64 segments = packs <= kSegment ? 1 : (packs + kSegment - 1) / kSegment;

    for (int64 unit = static_cast<int64>(blockIdx.x) * kGroups + group; unit < job.rows * segments;
         unit += static_cast<int64>(gridDim.x) * kGroups) {
        const int64 r = segments == 1 ? unit : unit / segments;
        const int64 segment = segments == 1 ? 0 : unit % segments;
        const auto offset = job.template offset_of<0, kShape.axes>(r);
        const C dy = widen<C>(*job.template input<Dy>(kDy, offset));
        const C lse = widen<C>(*job.template input<Lse>(kLse, offset));
        Dx* const dx = job.template result<Dx>(offset);
        const Source<X, C, kShape.wide_saved> x{job.template input<X>(kSaved, offset),
                                                job.axis[kShape.axes].stride[kSaved]};
        const Writer<Dx, C, Direct> writer{dx, r, {}};
        const auto cut = Cut<N, kShape.alignment>::of(dx, job.length);
        const int64 first = segment * kSegment + lane;

        C values[kShape.segment][N];
#pragma unroll
        for (int k = 0; k < kShape.segment; ++k) {
            const int64 pack = first + k * kShape.lanes;
            if (pack < cut.packs) x.pack(cut.pack_column(pack), values[k]);
        }
#pragma unroll
        for (int k = 0; k < kShape.segment; ++k) {
            const int64 pack = first + k * kShape.lanes;
            if (pack >= cut.packs) continue;
#pragma unroll
            for (C& value : values[k]) value = logsumexp_gradient<Dx>(dy, value, lse);
            if constexpr (N == 1) {
                writer.one(cut.pack_column(pack), values[k][0]);
            } else {
                writer.pack(cut.pack_column(pack), values[k]);
            }
        }
        if (segment == 0) {
            for (int edge = lane; edge < cut.edges(); edge += kShape.lanes) {
                const int64 column = cut.edge_column(edge);
                writer.one(column, logsumexp_gradient<Dx>(dy, x.one(column), lse));
            }
        }
    }
}

// The same for rows whose elements lie anywhere: blocks take kStepsPerThread steps of each thread of a tile.
template <class Dy, class X, class Lse, class Dx, GradientStrided kShape>
__global__ void __launch_bounds__(kShape.threads, kSame<LogSumExpCompute<Dy, X, Lse, Dx>, double>)
    gradient_logsumexp_strided(const __grid_constant__ GradientJob<4, kShape.kept_axes + kShape.reduced_axes> job) {
    using C = LogSumExpCompute<Dy, X, Lse, Dx>;
    using Part = GradientTile<4, Dx, C, kShape>;
    constexpr int N = kShape.pack;
    constexpr int kSegment = Part::kSteps * Part::kStepsPerThread;

    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    const int64 segments = (job.length + kSegment - 1) / kSegment;
    for (int64 unit = blockIdx.x; unit < tiles * segments; unit += gridDim.x) {
        const Part part(job, segments == 1 ? unit : unit / segments);
        if (!part.present) continue;
        const int64 begin = segments == 1 ? 0 : unit % segments * kSegment;
        const int64 end = begin + kSegment < job.length ? begin + kSegment : job.length;
        C dy[N], lse[N];
        part.template load<Dy, false>(kDy, part.start, dy);
        part.template load<Lse, false>(kLse, part.start, lse);
        for_each_step<C, Part::kAhead>(
            part, begin, end,
            [&](int64 step, C(&to)[N]) { part.template load<X, kShape.wide_saved>(kSaved, part.offset_of(step), to); },
            [&](int64 step, C(&values)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) values[i] = logsumexp_gradient<Dx>(dy[i], values[i], lse[i]);
                part.store(step, values);
            });
    }
}

}  // namespace onepass::cuda
