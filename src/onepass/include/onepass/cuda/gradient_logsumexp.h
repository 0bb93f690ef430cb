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

    const int64 unit = static_cast<int64>(blockIdx.x) * kGroups + group;  // every group has one
    if (unit >= job.rows * segments) return;
    const int64 r = segments == 1 ? unit : unit / segments;
    const int64 first = (unit - r * segments) * kSegment;  // pack
    const auto offset = job.template offset_of<0, kShape.axes>(r);
    Dx* const dx = job.template result<Dx>(offset);
    const Source<X, C, kShape.wide_saved> x{job.template input<X>(kSaved, offset),
                                            job.axis[kShape.axes].stride[kSaved]};
    const Writer<Dx, C, Direct> writer{dx, r, {}};
    const auto cut = Cut<N, kShape.alignment>::of(dx, job.length);
    const int64 column = cut.pack_column(first + lane);
    const int64 left = cut.packs - first;

    // All loads before the first result: asked one by one whether they are there, packs would wait for each other.
    const auto walk = [&](auto present) {
        C values[kShape.segment][N];
#pragma unroll
        for (int k = 0; k < kShape.segment; ++k) {
#pragma unroll
            for (C& value : values[k]) value = 0;
            if (present(k)) x.pack(column + k * kShape.lanes * N, values[k]);
        }
        const LogSumExpRow<Dx, C> row(widen<C>(*job.template input<Dy>(kDy, offset)),
                                      widen<C>(*job.template input<Lse>(kLse, offset)));
#pragma unroll
        for (int k = 0; k < kShape.segment; ++k) {
#pragma unroll
            for (C& value : values[k]) value = row.gradient(value);
            if (present(k)) writer.pack(column + k * kShape.lanes * N, values[k]);
        }
        if (first == 0) {
            for (int edge = lane; edge < cut.edges(); edge += kShape.lanes) {
                const int64 at = cut.edge_column(edge);
                writer.one(at, row.gradient(x.one(at)));
            }
        }
    };
    if (left >= kSegment) {
        walk([](int) { return true; });
    } else {
        walk([&](int k) { return lane + k * kShape.lanes < left; });
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
        const auto gradient = [&](int i, C x) { return LogSumExpRow<Dx, C>(dy[i], lse[i]).gradient(x); };
        for_each_step<C, Part::kAhead>(
            part, begin, end,
            [&](int64 step, C(&to)[N]) { part.template load<X, kShape.wide_saved>(kSaved, part.offset_of(step), to); },
            [&](int64 step, C(&values)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) values[i] = gradient(i, values[i]);
                part.store(part.offset_of(step), values);
            });
    }
}

}  // namespace onepass::cuda
