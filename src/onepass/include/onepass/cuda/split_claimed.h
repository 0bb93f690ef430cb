// A row is handled by several blocks that claim its slices as they are ready for them (claims.h). A slice waits in both
// kinds of memory that a multiprocessor has: the first packs of every thread in its registers, the others in shared
// memory. So half as much again of the input is on the chip as either could hold, and that is what rows of megabytes
// wait for: a slice has to wait for the slowest of its row, and for its total, while memory brings others.
//
// x is read once, y written once. All loads of a slice are under way at a time; the next slice is asked for when this
// one has been written.
#pragma once

#include "claims.h"
#include "split.h"

namespace onepass::cuda {

struct SplitClaimed {
    int axes;         // kept axes of the job
    int threads;      // of a block
    int resident;     // blocks that a multiprocessor must have room for
    int packs;        // of a slice that a thread holds in registers
    int waiting;      // and has in shared memory
    int spread;       // slices that take turns at their packs: Slice's
    int slots;        // states of other slices that a thread of a row's last one looks after
    bool each_reads;  // the states of all slices of its row
    int pack;         // elements per access
    Alignment alignment;
};

// The packs of a slice that wait in shared memory: kPacks of each thread, after kHeld that wait in its registers.
template <class Kept, class C, int kThreads, int kStep, int kHeld, int kPacks, class RowCut>
class WaitingPacks {
   public:
    static constexpr int N = RowCut::kPack;

    __device__ __forceinline__ explicit WaitingPacks(unsigned char* memory) : places_(memory) {}

    // Begins to bring them: as Places::bring.
    template <class Slice>
    __device__ __forceinline__ void bring(const Slice& slice) const {
        const Mine mine(slice.cut);
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (mine.has(k)) places_.template bring<C>(slice.reader, mine.column(k), k);
        }
        ptx::end_group();
    }

    // Waits for them, and finds their maximum. Who has none does not wait: without that branch, which is never taken
    // but in the last slice of a row, ptxas moves the loads of what waits in registers behind the wait, and half of a
    // slice comes when the other half is there.
    __device__ __forceinline__ void arrive(PackMax<Kept, C>& max, const RowCut& cut) const {
        const Mine mine(cut);
        if (kPacks == 0 || !mine.has(0)) return;
        ptx::wait_for_copies<0>();
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (mine.has(k)) max.template push<N>(load_shared_words<N>(places_.at(k)));
        }
    }

    // Calls visit(column, values) for each that is there; kKeep: what it makes of them takes their place.
    template <bool kKeep, class Visit>
    __device__ __forceinline__ void for_present(const RowCut& cut, Visit&& visit) const {
        const Mine mine(cut);
#pragma unroll
        for (int k = 0; k < kPacks; ++k) {
            if (!mine.has(k)) break;
            C values[N];
            load_shared(places_.at(k), values);
            visit(mine.column(k), values);
            if constexpr (kKeep) store_shared(places_.at(k), values);
        }
    }

   private:
    using AllPlaces = Places<Kept, kThreads, kStep, kHeld, RowCut>;
    using Mine = typename AllPlaces::Mine;

    const AllPlaces places_;
};

template <class Op, class In, class Out, SplitClaimed kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    split_claimed(const __grid_constant__ TeamJob<Job<kShape.axes, Load, Store>> job) {
    using Rows = Rows<Op, In, Out, kShape.axes, kShape.pack, kShape.alignment, Load, Store, kShape.threads>;
    using C = typename Rows::C;
    using V = typename Rows::V;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Totals = MergeTotals<Op, V, Rows::kMasked>;
    using Others = ClaimExchange<typename Totals::State, kShape.threads, kShape.slots, kShape.each_reads>;
    using RowSlice = Slice<Rows, kShape.threads, kShape.spread>;
    using Held = HeldSlice<Kept, C, RowSlice::kStep, kShape.packs, typename Rows::RowCut>;
    using Waiting =
        WaitingPacks<Kept, C, kShape.threads, RowSlice::kStep, kShape.packs, kShape.waiting, typename Rows::RowCut>;
    // The exponentials wait in the slice's place, each thread's relative to the maximum of its own elements.
    constexpr bool kKeep = Op::kKeepsExponentials && kSame<Kept, C>;
    ONEPASS_SHARED(typename Others::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Others exchange(job, job.rows, scratch);
    const Waiting waiting(memory);
    const auto blocks = static_cast<unsigned>(job.blocks);
    unsigned leaving = 0;

    const auto slice_of = [&](unsigned r, unsigned number) { return RowSlice::at(job, r, job, number - r * blocks); };
    // Of packs with that maximum. for_all(Constant<0 or 1>(), visit) calls visit(values) for each; 1: what it makes of
    // them takes their place.
    const auto part_of = [](C max, const auto& for_all) {
        const auto own = Totals::template exponential_of_part<kKeep>(max, [&](auto f) {
            for_all(Constant<1>(), [&](auto& values) {
#pragma unroll
                for (C& x : values) x = f(x);
            });
        });
        auto sum = Sum<C>::identity();
        for_all(Constant<kKeep ? 1 : 0>(), [&](auto& values) {
#pragma unroll
            for (C& x : values) x = own(x);
            add_to<Op, V>(sum, sum_of(values));
        });
        return Totals::pack(max, sum);
    };

    unsigned claimed = blockIdx.x;
    for (; claimed < exchange.slices(); claimed = exchange.claim()) {
        const unsigned r = job.row_of(claimed);
        const auto slice = slice_of(r, claimed);
        auto held = Held::of(slice);
        waiting.bring(slice);
        exchange.begin_slice();

        // Each part relative to its own maximum: what registers hold is looked at while the other is on its way. The
        // branch keeps ptxas from waiting for the first before it has asked for the second.
        PackMax<Kept, C> of_held, of_waiting;
        typename Totals::State parts[2] = {Totals::identity(), Totals::identity()};
        if (Held::any(slice.cut)) {
            held.packs.push_to(of_held);
            held.edge.push_to(of_held);
            parts[0] = part_of(of_held.value(), [&]<int kKeeps>(Constant<kKeeps>, const auto& visit) {
                held.packs.stay_narrow();
                held.packs.template for_all<(kKeeps > 0)>(visit);
                held.edge.template for_all<(kKeeps > 0)>(visit);
            });
        }
        waiting.arrive(of_waiting, slice.cut);
        parts[1] = part_of(of_waiting.value(), [&]<int kKeeps>(Constant<kKeeps>, const auto& visit) {
            waiting.template for_present<(kKeeps > 0)>(slice.cut, [&](int64, auto& values) { visit(values); });
        });
        const int rank = static_cast<int>(claimed - r * blocks);
        const auto total = exchange(r, rank, Totals::of_parts(parts), Totals::identity(), Totals());
        leaving = exchange.leave();

        // Once more: it has waited in no register, of which there is none to spare.
        const auto same = slice_of(r, claimed + ptx::zero_of_thread());
        const auto row = Rows::exponential_of(total.max);
        const auto result = Rows::finish(total.max, row, Totals::sum_of(total));
        const auto write_by = [&](const auto& part, const auto& for_present) {
            const auto write = [&](const auto& to_result) {
                for_present([&](int64 column, auto& values) { write_results(same.writer, column, values, to_result); });
            };
            if constexpr (kKeep) {
                const C to_row = Totals::to_row(part.max, row);
                write([&](C e) { return result.normalize(e * to_row); });
            } else {
                write(result);
            }
        };
        write_by(parts[0], [&](const auto& visit) {
            held.packs.stay_narrow();
            held.for_present(same.cut, visit);
        });
        write_by(parts[1], [&](const auto& visit) { waiting.template for_present<false>(same.cut, visit); });
    }
    exchange.left(leaving, claimed);
}

}  // namespace onepass::cuda
