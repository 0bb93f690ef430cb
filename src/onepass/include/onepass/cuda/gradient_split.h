// The gradient of softmax or log_softmax of a row that several blocks handle, all of them at work at once: few rows
// keep the whole GPU busy, and a row may be as long as all memory on the chip. The blocks tell each other one sum a
// row: through scratch memory or, if they are a cluster, through their shared memory.
//
// `gradient_split`: each block's slice of dy and of the saved result waits in its registers or in its shared memory:
// both are read once, dx is written once. While a block waits for the others' sums, other blocks of the same
// multiprocessor, which have other rows, load and store. `gradient_stream`: the slice waits nowhere; what the sum
// needed is read a second time, backwards, to write dx.
#pragma once

#include "cluster_exchange.h"
#include "gradient_kept.h"
#include "slice.h"

namespace onepass::cuda {

struct GradientSplit {
    int axes;      // kept axes of the job
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int packs;     // of each array that a thread holds of a slice in registers; 0: it waits in shared memory
    int slots;     // sums of other blocks that a thread looks after
    int cluster;   // blocks of a row, if they are a cluster; 0: they meet in scratch memory
    bool handed;   // clusters take rows as they are ready for them; else each has one
    int pack;      // elements per access
    Alignment alignment;
    bool wide_dy;  // read by packs, not by element
    bool wide_saved;
};

// The part of both arrays is a part of each: kernels ask for one without the other.
template <class C, class DySource, class SavedSource>
struct From<BothReader<C, DySource, SavedSource>> : BothReader<C, From<DySource>, From<SavedSource>> {
    __device__ __forceinline__ From(const BothReader<C, DySource, SavedSource>& whole, int64 begin)
        : BothReader<C, From<DySource>, From<SavedSource>>{{whole.dy, begin}, {whole.saved, begin}} {}
};

// Begins to bring the packs of a slice of one array to where they are to wait, or brings them. `ptx::wait_for_copies`
// says when they are there.
template <int kThreads, class T, class C, bool kWide, class RowCut>
__device__ __forceinline__ void bring(const From<Source<T, C, kWide>>& from, const KeptRow<T, C, RowCut>& to) {
    if constexpr (kWide && kCopiesPacks<T, RowCut::kPack>) {
        copy_packs<kThreads>(from.whole.x + from.begin, to);
    } else {
        for (int64 pack = threadIdx.x; pack < to.cut.packs; pack += kThreads) {
            const int64 column = to.cut.pack_column(pack);
            C values[RowCut::kPack];
            from.pack(column, values);
            to.keep(column, values);
        }
    }
}

// Memory's bandwidth is not shared out in equal parts, and neighbours in the grid are fast or slow together. Apart,
// every team has some of each. H200, us: 4096x128256 bfloat16 792 for 818, 512x524288 449 for 467. Few rows are none
// the better for it.
__device__ __forceinline__ Teams teams_for(int64 rows, const Team& team) {
    constexpr int64 kRowsOfTeam = 32;
    return rows * team.blocks >= kRowsOfTeam * gridDim.x ? Teams::apart : Teams::neighbours;
}

template <class Op, class Dy, class Saved, class Dx, GradientSplit kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    gradient_split(const __grid_constant__ TeamJob<GradientJob<3, kShape.axes + 1>> job) {
    using Rows = GradientRows<Dy, Saved, Dx, kShape.axes, kAccessOf<kShape>, kShape.threads>;
    using C = typename Rows::C;
    using Kept = KeptBoth<Dy, Saved, C, typename Rows::RowCut>;
    using Others = TeamExchange<C, kShape.threads, kShape.slots, kShape.cluster, kShape.handed>;
    constexpr int T = kShape.threads;
    constexpr int N = Rows::N;
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    // Slices that wait in registers leave none for the other order.
    constexpr bool kMayBeApart = kShape.cluster == 0 && kShape.packs == 0;
    const auto place = TeamPlace::of<kShape.cluster>(job, kMayBeApart ? teams_for(job.rows, job) : Teams::neighbours);
    Others exchange(job, place, job.rows, team_scratch);
    unsigned leaving = 0;

    const auto slice_of = [&](int64 r) { return Slice<Rows>::at(job, r, job, place.rank); };
    int64 next = 0;  // row
    const auto sum_of_row = [&](int64 r, C mine) {
        const C sum = exchange(mine, C(0), MergeStates<C, Add>());
        next = exchange.row_after(r);
        if (next >= job.rows) leaving = exchange.leave();
        return sum;
    };

    if constexpr (kShape.packs > 0) {
        for (int64 r = place.team; r < job.rows; r = next) {
            exchange.begin_row();
            const auto slice = slice_of(r);
            HeldBoth<Op, C, T, kShape.packs, typename Rows::RowCut, true> held;
            held.load(slice, threadIdx.x);
            held.write(slice, sum_of_row(r, held.sum()), threadIdx.x);
        }
    } else {
        constexpr int kAfterSum = Op::kSumsSaved ? 0 : 1;  // groups of copies: a sum of dy alone waits for dy alone
        for (int64 r = place.team; r < job.rows; r = next) {
            exchange.begin_row();
            const auto slice = slice_of(r);
            const auto kept = Kept::at(memory, job.slice, slice.cut);
            const RowPart row{kept.reader(), slice.cut};
            // Edges are asked for first and put away last: one that was waited for held up the copies after it.
            Both<C> edge[1] = {};
            for_each_edge<T>(slice, threadIdx.x, [&](int64, const auto& values) { edge[0] = values[0]; });
            bring<T>(slice.reader.dy, kept.dy);
            if constexpr (kAfterSum > 0) ptx::end_group();
            bring<T>(slice.reader.saved, kept.saved);
            ptx::end_group();
            if (static_cast<int>(threadIdx.x) < slice.cut.edges()) {
                kept.keep(slice.cut.edge_column(static_cast<int>(threadIdx.x)), edge);
            }
            auto mine = Sum<C>::identity();
            ptx::wait_for_copies<kAfterSum>();
            add_terms<Op, T, N>(row, mine);
            const C sum = sum_of_row(r, mine.value());
            if constexpr (kAfterSum > 0) ptx::wait_for_copies<0>();
            for_each<T, N, kInFlightOfBoth<C, N>>(row, threadIdx.x, [&](int64 column, auto& values) {
                write_gradients<Op>(slice.writer, column, values, sum);
            });
        }
    }
    exchange.left(leaving);
}

template <class Op, class Dy, class Saved, class Dx, GradientSplit kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    gradient_stream(const __grid_constant__ TeamJob<GradientJob<3, kShape.axes + 1>> job) {
    using Rows = GradientRows<Dy, Saved, Dx, kShape.axes, kAccessOf<kShape>, kShape.threads>;
    using C = typename Rows::C;
    static_assert(kShape.cluster == 0);
    using Others = Exchange<C, kShape.threads, kShape.slots>;
    constexpr int T = kShape.threads;
    constexpr int N = Rows::N;
    ONEPASS_SHARED(typename Others::Scratch, team_scratch);
    const auto place = TeamPlace::of<kShape.cluster>(job);
    Others exchange(job, place, job.rows, team_scratch);
    unsigned leaving = 0;

    for (int64 r = place.team; r < job.rows; r += place.teams) {
        exchange.begin_row();
        const auto slice = Slice<Rows>::at(job, r, job, place.rank);
        auto mine = Sum<C>::identity();
        add_terms<Op, T, N>(slice, mine);
        const C sum = exchange(mine.value(), C(0), MergeStates<C, Add>());
        if (r + place.teams >= job.rows) leaving = exchange.leave();
        for_each_back<T, N, kInFlightOfBoth<C, N>>(slice, threadIdx.x, [&](int64 column, auto& values) {
            write_gradients<Op>(slice.writer, column, values, sum);
        });
    }
    exchange.left(leaving);
}

}  // namespace onepass::cuda
