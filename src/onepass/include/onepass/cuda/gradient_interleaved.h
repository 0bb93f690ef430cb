// The gradients of softmax and log_softmax of long columns with few neighbours: runs of memory, as in interleaved.h.
// They wait nowhere: what is read again, backwards, is in L2 as far as that holds it.
#pragma once

#include "gradient_row.h"
#include "run.h"

namespace onepass::cuda {

// A thread's part of a run of dy, the saved array and dx, which lie at the same places.
template <class Dy, class Saved, class Dx, Interleaved kShape>
struct GradientRunPart : RunSteps<kShape.threads, kShape.pack, kShape.whole> {
    using Steps = RunSteps<kShape.threads, kShape.pack, kShape.whole>;
    using C = GradientCompute<Dy, Saved, Dx>;
    using RunJob = TeamJob<GradientJob<3, kShape.kept_axes>>;
    static constexpr int N = kShape.pack;

    const Dy* dy;
    const Saved* saved;
    Dx* dx;

    __device__ __forceinline__ GradientRunPart(const RunJob& job, int64 run, unsigned rank,
                                               const typename Steps::Places& places)
        : GradientRunPart(job, job.template offset_of<0, kShape.kept_axes>(run * places.count), rank, places) {}

    // kOnce: as load_words'.
    template <bool kOnce = false>
    __device__ __forceinline__ void load_dy(int64 pack, C (&to)[N]) const {
        load_pack<N, kOnce>(dy + this->cut.first_of(pack), to);
    }
    template <bool kOnce = false>
    __device__ __forceinline__ void load(int64 pack, Both<C> (&to)[N]) const {
        C of_dy[N], of_saved[N];
        load_dy<kOnce>(pack, of_dy);
        load_pack<N, kOnce>(saved + this->cut.first_of(pack), of_saved);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = {of_dy[i], of_saved[i]};
    }
    __device__ __forceinline__ void store(int64 pack, const C (&values)[N]) const {
        store_pack<N, true>(dx + this->cut.first_of(pack), values);
    }

    // Of a pack that is there in part; the others are 0, whose terms change no sum.
    __device__ __forceinline__ void load_part(int64 pack, Both<C> (&to)[N]) const {
        C of_saved[N], of_dy[N];
        this->cut.load_part(dy, pack, C(0), of_dy);
        this->cut.load_part(saved, pack, C(0), of_saved);
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = {of_dy[i], of_saved[i]};
    }

   private:
    __device__ __forceinline__ GradientRunPart(const RunJob& job, const Offsets<3>& offset, unsigned rank,
                                               const typename Steps::Places& places)
        : Steps(decltype(Steps::cut)::of(job.template result<Dx>(offset), job.length * places.count), job, rank,
                places),
          dy(job.template input<Dy>(kDy, offset)),
          saved(job.template input<Saved>(kSaved, offset)),
          dx(job.template result<Dx>(offset)) {}
};

template <class Op, class Dy, class Saved, class Dx, Interleaved kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    gradient_interleaved(const __grid_constant__ TeamJob<GradientJob<3, kShape.kept_axes>> job) {
    using Part = GradientRunPart<Dy, Saved, Dx, kShape>;
    using C = typename Part::C;
    using Total = Sum<C>;
    using Reduce = RunReduce<Total, kShape.threads, kShape.pack>;
    constexpr int N = kShape.pack;
    constexpr int kAhead = kToWrite<C, N, kShape.whole>;
    constexpr int kAlone = N * sizeof(C) <= 16 ? kInFlight : kInFlight / 2;  // of dy
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    const auto place = TeamPlace::of<0>(job);
    TeamMemory<Total, kShape.most_columns> others(job, place);
    unsigned leaving = 0;

    const typename Part::Places places(static_cast<int>(job.axis[kShape.kept_axes - 1].size));
    const Reduce reduce(scratch, places);
    const int64 runs = job.rows / places.count;
    for (int64 run = place.team; run < runs; run += place.teams) {
        others.begin_row();
        const Part part(job, run, place.rank, places);
        Total sum[N];
#pragma unroll
        for (Total& s : sum) s = Total::identity();
        const auto add = [&](Both<C>(&values)[N]) {
#pragma unroll
            for (int i = 0; i < N; ++i) sum[i].add(Op::term(values[i].dy, values[i].saved));
        };
        const auto both = [&](int64 pack, Both<C>(&to)[N]) { part.load(pack, to); };
        if constexpr (Op::kSumsSaved) {
            for_each_step<Both<C>, kAhead>(part, 0, part.whole, both, [&](int64, Both<C>(&values)[N]) { add(values); });
        } else {
            const auto dy_alone = [&](int64 pack, C(&to)[N]) { part.load_dy(pack, to); };
            for_each_step<C, kAlone>(part, 0, part.whole, dy_alone, [&](int64, C(&dy)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) sum[i].add(dy[i]);
            });
        }
        part.for_each_part([&](int64 pack) {
            Both<C> values[N];
            part.load_part(pack, values);
            add(values);
        });
        reduce_run(sum, Total::identity(), Merge(), reduce, places, others);
        if (run + place.teams >= runs) leaving = others.leave();

        C total[N];
#pragma unroll
        for (int i = 0; i < N; ++i) total[i] = sum[i].value();
        const auto gradients = [&](const Both<C>(&values)[N], C(&results)[N]) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                results[i] = Op::template gradient<Dx>(values[i].dy, values[i].saved, total[i]);
            }
        };
        const auto both_once = [&](int64 pack, Both<C>(&to)[N]) { part.template load<true>(pack, to); };
        for_each_step_back<Both<C>, kAhead>(part, 0, part.whole, both_once, [&](int64 pack, const Both<C>(&values)[N]) {
            C results[N];
            gradients(values, results);
            part.store(pack, results);
        });
        part.for_each_part([&](int64 pack) {
            Both<C> values[N];
            part.load_part(pack, values);
            C results[N];
            gradients(values, results);
            part.cut.store_part(part.dx, pack, results);
        });
    }
    others.left(leaving, runs, place.teams, kExchangesOfRun);
}

}  // namespace onepass::cuda
