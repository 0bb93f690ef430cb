// The gradient of softmax or log_softmax of a row whose slices blocks claim as they are ready for them (claims.h), as
// split_claimed.h does it for softmax. Of both arrays the first packs of every thread wait in its registers, the others
// in shared memory: both are read once, dx is written once.
#pragma once

#include "claims.h"
#include "gradient_split.h"
#include "parts.h"

namespace onepass::cuda {

struct GradientClaimed {
    int axes;         // kept axes of the job
    int threads;      // of a block
    int resident;     // blocks that a multiprocessor must have room for
    int packs;        // of each array that a thread holds of a slice in registers
    int waiting;      // and has in shared memory
    int spread;       // slices that take turns at their packs: Slice's
    int slots;        // sums of other slices that a thread of a row's last one looks after
    bool each_reads;  // the sums of all slices of its row
    int pack;         // elements per access
    Alignment alignment;
    bool wide_dy;  // read by packs, not by element
    bool wide_saved;
};

template <class Op, class Dy, class Saved, class Dx, GradientClaimed kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    gradient_claimed(const __grid_constant__ TeamJob<GradientJob<3, kShape.axes + 1>> job) {
    using Rows = GradientRows<Dy, Saved, Dx, kShape.axes, kAccessOf<kShape>, kShape.threads>;
    using C = typename Rows::C;
    using RowCut = typename Rows::RowCut;
    using Others = ClaimExchange<C, kShape.threads, kShape.slots, kShape.each_reads>;
    using RowSlice = Slice<Rows, kShape.threads, kShape.spread>;
    using Held = HeldBoth<Op, C, RowSlice::kStep, kShape.packs, RowCut, true>;
    using DyPlaces = Places<Dy, kShape.threads, RowSlice::kStep, kShape.packs, RowCut>;
    using SavedPlaces = Places<Saved, kShape.threads, RowSlice::kStep, kShape.packs, RowCut>;
    constexpr int T = kShape.threads;
    constexpr int N = Rows::N;
    constexpr int kAfterSum = Op::kSumsSaved ? 0 : 1;  // groups of copies: a sum of dy alone waits for dy alone
    ONEPASS_SHARED(typename Others::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Others exchange(job, job.rows, scratch);
    const DyPlaces dy_places(memory);
    const SavedPlaces saved_places(memory + kShape.waiting * T * N * sizeof(Dy));
    const auto blocks = static_cast<unsigned>(job.blocks);
    unsigned leaving = 0;

    const auto slice_of = [&](unsigned r, unsigned number) { return RowSlice::at(job, r, job, number - r * blocks); };
    // Calls visit(k) for the packs that wait in shared memory.
    const auto for_waiting = [](const auto& mine, const auto& visit) {
#pragma unroll
        for (int k = 0; k < kShape.waiting; ++k) {
            if (mine.has(k)) visit(k);
        }
    };

    unsigned claimed = blockIdx.x;
    for (; claimed < exchange.slices(); claimed = exchange.claim()) {
        const unsigned r = job.row_of(claimed);
        const auto slice = slice_of(r, claimed);
        const typename DyPlaces::Mine mine(slice.cut);
        Held held;
        held.load(slice, threadIdx.x);
        for_waiting(mine, [&](int k) { dy_places.template bring<C>(slice.reader.dy, mine.column(k), k); });
        if constexpr (kAfterSum > 0) ptx::end_group();
        for_waiting(mine, [&](int k) { saved_places.template bring<C>(slice.reader.saved, mine.column(k), k); });
        ptx::end_group();
        exchange.begin_slice();

        // Both branches keep ptxas from waiting for one part of a slice before it has asked for the other.
        auto sum = Sum<C>::identity();
        if (static_cast<int>(threadIdx.x) < slice.cut.packs || static_cast<int>(threadIdx.x) < slice.cut.edges()) {
            sum.add(held.sum());
        }
        if (mine.has(0)) {
            ptx::wait_for_copies<kAfterSum>();
            for_waiting(mine, [&](int k) {
                C dy[N];
                load_shared(dy_places.at(k), dy);
                if constexpr (Op::kSumsSaved) {
                    C saved[N];
                    load_shared(saved_places.at(k), saved);
#pragma unroll
                    for (int i = 0; i < N; ++i) dy[i] = Op::term(dy[i], saved[i]);
                }
                sum.add(sum_of(dy));
            });
        }
        const int rank = static_cast<int>(claimed - r * blocks);
        const C total = exchange(r, rank, sum.value(), C(0), MergeStates<C, Add>());
        leaving = exchange.leave();

        // Once more: it has waited in no register, of which there is none to spare.
        const auto same = slice_of(r, claimed + ptx::zero_of_thread());
        const typename DyPlaces::Mine again(same.cut);
        held.write(same, total, threadIdx.x);
        if constexpr (kAfterSum > 0) ptx::wait_for_copies<0>();
        for_waiting(again, [&](int k) {
            C dy[N], saved[N];
            Both<C> values[N];
            load_shared(dy_places.at(k), dy);
            load_shared(saved_places.at(k), saved);
#pragma unroll
            for (int i = 0; i < N; ++i) values[i] = {dy[i], saved[i]};
            write_gradients<Op>(same.writer, again.column(k), values, total);
        });
    }
    exchange.left(leaving, claimed);
}

}  // namespace onepass::cuda
