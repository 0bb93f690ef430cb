// Long columns with few neighbours, of which a tile would be a few bytes of every step: the run of memory that all of
// them are together is read as a row is, by packs, wherever it begins (run.h). Several blocks share a run. x is read a
// second time to write the result, backwards: what was read last is likeliest to be in L2.
//
// `interleaved`: the softmax family. `interleaved_reduce`: sum, mean, amax and amin.
#pragma once

#include "column_totals.h"
#include "run.h"
#include "split.h"

namespace onepass::cuda {

// A thread's part of a run of x, and of y if that is as long.
template <class In, class Out, Interleaved kShape>
struct RunPart : RunSteps<kShape.threads, kShape.pack, kShape.whole> {
    using Steps = RunSteps<kShape.threads, kShape.pack, kShape.whole>;
    using C = Compute<In, Out>;
    using RunJob = TeamJob<Job<kShape.kept_axes, Direct, Direct>>;
    static constexpr int N = kShape.pack;

    const RunJob& job;
    const In* x;
    Out* y;

    __device__ __forceinline__ RunPart(const RunJob& job, int64 run, unsigned rank,
                                       const typename Steps::Places& places)
        : RunPart(job, job.template offset_of<0, kShape.kept_axes>(run * places.count), rank, places) {}

    // kOnce: as load_words'.
    template <bool kOnce = false>
    __device__ __forceinline__ void load(int64 pack, C (&to)[N]) const {
        load_pack<N, kOnce>(x + this->cut.first_of(pack), to);
    }
    __device__ __forceinline__ void store(int64 pack, const C (&values)[N]) const {
        store_pack<N, true>(y + this->cut.first_of(pack), values);
    }

    // Calls visit(values) for packs that are there in part, a step each; the other elements are `fill`.
    template <class Visit>
    __device__ __forceinline__ void for_each_edge(C fill, Visit&& visit) const {
        this->for_each_part([&](int64 pack) {
            C values[1][N];
            this->cut.load_part(x, pack, fill, values[0]);
            visit(values);
        });
    }

    // Writes change(values) of all packs, from the last to the first.
    template <int kAhead, class Change>
    __device__ __forceinline__ void write_back(Change&& change) const {
        this->for_each_part([&](int64 pack) {
            C values[N];
            this->cut.load_part(x, pack, C(0), values);
            change(values);
            this->cut.store_part(y, pack, values);
        });
        const auto from_memory = [&](int64 pack, C(&to)[N]) { load<true>(pack, to); };
        for_each_step_back<C, kAhead>(*this, 0, this->whole, from_memory, [&](int64 pack, C(&values)[N]) {
            change(values);
            store(pack, values);
        });
    }

    // Writes result(i) for each column of the run, where that is all there is.
    template <class Result>
    __device__ __forceinline__ void write_columns(int64 run, const typename Steps::Places& places,
                                                  Result&& result) const {
        places.for_each_once([&](int i, int place) {
            const int64 column = run * places.count + places.column_of(place, this->cut.past);
            static_cast<Out*>(job.y)[job.template offset_of<0, kShape.kept_axes>(column).y] = narrow<Out>(result(i));
        });
    }

   private:
    __device__ __forceinline__ RunPart(const RunJob& job, const Offset& offset, unsigned rank,
                                       const typename Steps::Places& places)
        : Steps(decltype(Steps::cut)::of(static_cast<const In*>(job.x) + offset.x, job.length * places.count), job,
                rank, places),
          job(job),
          x(static_cast<const In*>(job.x) + offset.x),
          y(static_cast<Out*>(job.y) + offset.y) {}
};

template <class Op, class In, class Out, Interleaved kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    interleaved(const __grid_constant__ TeamJob<Job<kShape.kept_axes, Direct, Direct>> job) {
    using Part = RunPart<In, Out, kShape>;
    using C = typename Part::C;
    using V = Precision<In, Out>;
    using Totals = MergeTotals<Op, V, false>;
    using State = typename Totals::State;
    using Reduce = RunReduce<State, kShape.threads, kShape.pack>;
    constexpr int N = kShape.pack;
    constexpr bool kRoomy = kShape.whole || !Op::kExact;
    // Of wide packs two are enough to keep a thread busy; without room, four spill on sm_86.
    constexpr int kUsual = kRoomy || kMayBeRoomy ? kInFlight : kInFlight - 1;
    constexpr int kAhead = N * sizeof(C) <= 16 ? kUsual : kInFlight / 2;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    const auto place = TeamPlace::of<0>(job);
    TeamMemory<State, kShape.most_columns> others(job, place);
    unsigned leaving = 0;

    const typename Part::Places places(static_cast<int>(job.axis[kShape.kept_axes - 1].size));
    const Reduce reduce(scratch, places);
    const int64 runs = job.rows / places.count;
    for (int64 run = place.team; run < runs; run += place.teams) {
        others.begin_row();
        const Part part(job, run, place.rank, places);
        OnlineStates<V, N> mine;
        part.for_each_edge(-kInfinity<C>, [&](const auto& values) { mine.push(values); });
        push_steps<kAhead>(mine, part, 0, part.whole);
        C max[N];
        Sum<C> sum[N];
        totals_of<Op, V, true>(mine, reduce, max, sum);

        State total[N];
#pragma unroll
        for (int i = 0; i < N; ++i) total[i] = Totals::pack(max[i], sum[i]);
        merge_blocks(total, Totals::identity(), Totals(), reduce, places, others);
        if (run + place.teams >= runs) leaving = others.leave();

        const auto finish = [&](int i) {
            const C row_max = total[i].max;
            return Op::template finish<V, false>(row_max, exponential_of<Op, V, false>(row_max),
                                                 Totals::sum_of(total[i]));
        };
        if constexpr (Op::kElementwise) {
            decltype(finish(0)) result[N];
#pragma unroll
            for (int i = 0; i < N; ++i) result[i] = finish(i);
            part.template write_back<kToWrite<C, N, kRoomy>>([&](C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) x[i] = result[i](x[i]);
            });
        } else if (place.rank == 0) {
            part.write_columns(run, places, finish);
        }
    }
    others.left(leaving, runs, place.teams, kExchangesOfRun);
}

template <class Op, class In, class Out, Interleaved kShape>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    interleaved_reduce(const __grid_constant__ TeamJob<Job<kShape.kept_axes, Direct, Direct>> job) {
    using Part = RunPart<In, Out, kShape>;
    using C = typename Part::C;
    using State = typename Op::template State<C>;
    using Reduce = RunReduce<State, kShape.threads, kShape.pack>;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    const auto place = TeamPlace::of<0>(job);
    TeamMemory<State, kShape.most_columns> others(job, place);
    unsigned leaving = 0;

    const typename Part::Places places(static_cast<int>(job.axis[kShape.kept_axes - 1].size));
    const Reduce reduce(scratch, places);
    const int64 runs = job.rows / places.count;
    for (int64 run = place.team; run < runs; run += place.teams) {
        others.begin_row();
        const Part part(job, run, place.rank, places);
        State state[N];
        push_columns<Op, In, kInFlight - 1>(part, 0, part.whole, state);  // of four, extremes spill on sm_100
        part.for_each_edge(Op::template fill<C>(), [&](const auto& values) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const C value[1] = {values[0][i]};
                Op::template push<In>(state[i], value);
            }
        });
        reduce_run(state, Op::template identity<C>(), typename Op::Combine(), reduce, places, others);
        if (run + place.teams >= runs) leaving = others.leave();
        if (place.rank == 0) part.write_columns(run, places, [&](int i) { return Op::finish(state[i], job.length); });
    }
    others.left(leaving, runs, place.teams, kExchangesOfRun);
}

}  // namespace onepass::cuda
