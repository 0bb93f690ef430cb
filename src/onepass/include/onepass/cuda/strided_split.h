// Rows whose elements lie anywhere, shared by several blocks: what strided.h is to one block, split.h is to rows that
// lie side by side. Each block has a slice of the steps of a tile; for long dims with little beside them.
//
// `strided_split`: the slice waits in shared memory, x is read once; or it waits nowhere and x is read twice.
// `strided_split_reduce`: sum, mean, amax and amin.
#pragma once

#include "split.h"
#include "strided.h"

namespace onepass::cuda {

struct StridedSplit {
    int kept_axes;
    int reduced_axes;
    int threads;   // of a block
    int resident;  // blocks that a multiprocessor must have room for
    int across;    // threads side by side across rows, a power of two
    int pack;      // rows per access: they and their results are neighbours in memory, on pack boundaries
    bool staged;   // the slice waits in shared memory

    constexpr Strided tile() const { return {kept_axes, reduced_axes, threads, across, pack, staged}; }
};

// A slice of a tile in shared memory. A thread reads only what it has itself put there: no barrier.
template <class Kept, class In, class Part, bool kDirect>
struct StagedSteps {
    static constexpr int N = Part::N;
    using C = typename Part::C;

    const Part& part;
    Kept* memory;  // this thread's columns of the first step
    int64 begin;

    __device__ __forceinline__ StagedSteps(const Part& part, unsigned char* memory, int64 begin)
        : part(part),
          memory(reinterpret_cast<Kept*>(memory) + static_cast<int>(threadIdx.x) % (Part::kTileRows / N) * N),
          begin(begin) {}

    __device__ __forceinline__ Kept* at(int64 step) const { return memory + (step - begin) * Part::kTileRows; }

    __device__ __forceinline__ void keep(int64 step, const C (&values)[N]) const {
        typename Pack<Kept, N>::Elements kept;
#pragma unroll
        for (int i = 0; i < N; ++i) kept.at[i] = narrow<Kept>(values[i]);  // exact: widened from there, or C
        store_shared<N>(at(step), kept);
    }

    __device__ __forceinline__ void read(int64 step, C (&to)[N]) const {
        const auto kept = load_shared<N>(at(step));
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = widen<C>(kept.at[i]);
    }

    __device__ __forceinline__ void bring(int64 end) const {
        constexpr int kBytes = N * sizeof(Kept) < kAccessBytes ? N * sizeof(Kept) : kAccessBytes;
        if constexpr (kDirect && kBytes >= 4) {
            if (!part.present) return;
#pragma unroll 4
            for (int64 step = begin + Part::first_step(); step < end; step += Part::kSteps) {
                const In* const from = static_cast<const In*>(part.job.x) + part.offset_of(step).x;
#pragma unroll
                for (int i = 0; i < N * static_cast<int>(sizeof(Kept)); i += kBytes) {
                    ptx::copy_async<kBytes>(reinterpret_cast<unsigned char*>(at(step)) + i,
                                            reinterpret_cast<const unsigned char*>(from) + i);
                }
            }
            ptx::end_group();
            ptx::wait_for_copies<0>();
        } else {
            for_each_step<C>(
                part, begin, end, [&](int64 step, C(&to)[N]) { part.load(step, to); },
                [&](int64 step, C(&x)[N]) { keep(step, x); });
        }
    }
};

template <class Op, class In, class Out, StridedSplit kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident)
    strided_split(const __grid_constant__ TeamJob<Job<kShape.kept_axes + kShape.reduced_axes, Load, Store>> job) {
    using Part = TilePart<In, Out, kShape.tile(), Load, Store>;
    using C = typename Part::C;
    using V = Precision<In, Out>;
    using Kept = choose<kSame<Load, Direct>, In, C>;
    using Totals = MergeTotals<Op, V, kMasks<Load>>;
    using State = typename Totals::State;
    using Reduce = ColumnReduce<Sum<C>, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    constexpr bool kHasMask = kMasks<Load>;
    constexpr bool kKeep = kShape.staged && Op::kKeepsExponentials && kSame<Kept, C>;
    constexpr int kAhead = N * sizeof(C) > 16 ? 2 : kInFlight;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    ONEPASS_DYNAMIC_SHARED(memory);
    Reduce reduce(scratch);
    const TeamPlace place(job);
    TeamMemory<State, Part::kTileRows> others(job, place);
    unsigned leaving = 0;

    const int64 begin = place.rank * job.slice;
    const int64 end = begin + job.slice < job.length ? begin + job.slice : job.length;
    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = place.team; tile < tiles; tile += place.teams) {
        const Part part(job, tile);
        const StagedSteps<Kept, In, Part, kSame<Load, Direct>> staged(part, memory, begin);
        const auto from_memory = [&](int64 step, C(&to)[N]) { part.load(step, to); };
        const auto from_stage = [&](int64 step, C(&to)[N]) { staged.read(step, to); };
        C max[N];
        Sum<C> sum[N];

        // The slice's maxima and sums.
        if constexpr (kShape.staged) {
            staged.bring(end);
#pragma unroll
            for (C& m : max) m = -kInfinity<C>;
            for_each_step<C, kAhead>(part, begin, end, from_stage, [&](int64, C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) max[i] = Max()(max[i], x[i]);
            });
            reduce(max, Max());
            Exponential<V> exponential[N];
#pragma unroll
            for (int i = 0; i < N; ++i) {
                exponential[i] = Totals::exponential_of_part(max[i]);
                sum[i] = Sum<C>::identity();
            }
            for_each_step<C, kAhead>(part, begin, end, from_stage, [&](int64 step, C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    x[i] = exponential[i](x[i]);
                    sum[i].add(x[i]);
                }
                if constexpr (kKeep) staged.keep(step, x);
            });
            reduce(sum, Merge());
        } else {
            OnlineState<V> mine[N];
            for_each_step<C, kAhead>(part, begin, end, from_memory, [&](int64, C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    C one[1] = {x[i]};
                    mine[i].push(one);
                }
            });
#pragma unroll
            for (int i = 0; i < N; ++i) max[i] = mine[i].m;
            reduce(max, Max());
#pragma unroll
            for (int i = 0; i < N; ++i) sum[i] = mine[i].sum_at(max[i]);
            reduce(sum, Merge());
#pragma unroll
            for (int i = 0; i < N; ++i) {
                if (max[i] != -kInfinity<C>)
                    sum[i] = anchored<Op, V>(sum[i], max[i], Totals::exponential_of_part(max[i]));
            }
        }

        // The row's: every thread takes those of some blocks, of its columns.
        others.next();
        const int column = static_cast<int>(threadIdx.x) % kShape.across * N;
        if (Part::first_step() == 0) {
#pragma unroll
            for (int i = 0; i < N; ++i) others.publish(Totals::pack(max[i], sum[i]), column + i);
        }
        C row_max[N];
        Sum<C> row_sum[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            row_max[i] = -kInfinity<C>;
            row_sum[i] = Sum<C>::identity();
        }
        const auto for_each_block = [&](auto&& visit) {
            for (int block = Part::first_step(); block < others.blocks; block += Part::kSteps) {
                State states[1][N];
                others.collect(block, 0, column, Totals::identity(), states);
                visit(states[0]);
            }
        };
        for_each_block([&](const State(&states)[N]) {
#pragma unroll
            for (int i = 0; i < N; ++i) row_max[i] = Max()(row_max[i], states[i].max);
        });
        reduce(row_max, Max());
        for_each_block([&](const State(&states)[N]) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                Sum<C> part_sum = Totals::sum_of(states[i]);
                part_sum.scale(Totals::to_row(states[i].max, exponential_of<Op, V, kHasMask>(row_max[i])));
                row_sum[i].merge(part_sum);
            }
        });
        reduce(row_sum, Merge());
        if (tile + place.teams >= tiles) leaving = others.leave();

        const auto finish = [&](int i) {
            return Op::template finish<V, kHasMask>(row_max[i], exponential_of<Op, V, kHasMask>(row_max[i]),
                                                    row_sum[i]);
        };
        if constexpr (Op::kElementwise) {
            decltype(finish(0)) result[N];
            C to_row[N];
#pragma unroll
            for (int i = 0; i < N; ++i) {
                result[i] = finish(i);
                if constexpr (kKeep) {
                    to_row[i] = Totals::to_row(max[i], exponential_of<Op, V, kHasMask>(row_max[i]));
                }
            }
            const auto write = [&](int64 step, C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if constexpr (kKeep) {
                        x[i] = result[i].normalize(x[i] * to_row[i]);
                    } else {
                        x[i] = result[i](x[i]);
                    }
                }
                part.store(step, part.offset_of(step).y, x);
            };
            if constexpr (kShape.staged) {
                for_each_step<C, kAhead>(part, begin, end, from_stage, write);
            } else {
                for_each_step<C, kAhead>(part, begin, end, from_memory, write);
            }
        } else if (part.present && place.rank == 0 && Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = finish(i);
            part.store(0, part.start.y, results);
        }
    }
    others.left(leaving, exchanges_of(tiles, place));
}

template <class Op, class In, class Out, StridedSplit kShape, class Load = Direct, class Store = Direct>
__global__ void __launch_bounds__(kShape.threads, kShape.resident) strided_split_reduce(
    const __grid_constant__ TeamJob<Job<kShape.kept_axes + kShape.reduced_axes, Load, Store>> job) {
    using Part = TilePart<In, Out, kShape.tile(), Load, Store>;
    using C = typename Part::C;
    using State = typename Op::template State<C>;
    using Reduce = ColumnReduce<State, kShape.threads, kShape.across, kShape.pack>;
    constexpr int N = kShape.pack;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);
    const TeamPlace place(job);
    TeamMemory<State, Part::kTileRows> others(job, place);
    unsigned leaving = 0;

    const int64 begin = place.rank * job.slice;
    const int64 end = begin + job.slice < job.length ? begin + job.slice : job.length;
    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = place.team; tile < tiles; tile += place.teams) {
        const Part part(job, tile);
        State state[N];
#pragma unroll
        for (State& s : state) s = Op::template identity<C>();
        for_each_step<C>(
            part, begin, end, [&](int64 step, C(&to)[N]) { part.load(step, to); },
            [&](int64, C(&x)[N]) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    const C one[1] = {x[i]};
                    Op::template push<In>(state[i], one);
                }
            });
        reduce(state, typename Op::Combine());
        others.next();
        const int column = static_cast<int>(threadIdx.x) % kShape.across * N;
        if (Part::first_step() == 0) {
#pragma unroll
            for (int i = 0; i < N; ++i) others.publish(state[i], column + i);
        }
#pragma unroll
        for (State& s : state) s = Op::template identity<C>();
        for (int block = Part::first_step(); block < others.blocks; block += Part::kSteps) {
            State states[1][N];
            others.collect(block, 0, column, Op::template identity<C>(), states);
#pragma unroll
            for (int i = 0; i < N; ++i) state[i] = typename Op::Combine()(state[i], states[0][i]);
        }
        reduce(state, typename Op::Combine());
        if (tile + place.teams >= tiles) leaving = others.leave();
        if (part.present && place.rank == 0 && Part::first_step() == 0) {
            C results[N];
#pragma unroll
            for (int i = 0; i < N; ++i) results[i] = Op::finish(state[i], job.length);
            part.store(0, part.start.y, results);
        }
    }
    others.left(leaving, exchanges_of(tiles, place));
}

}  // namespace onepass::cuda
