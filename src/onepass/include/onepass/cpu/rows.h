// Rows whose reduced axis is walked directly: one row is one unit of work, or, split, one chunk of a row.
//
//   registers  short rows, a batch at a time (short_rows.h; tiny ones: transposed.h, folded_rows.h)
//   row        the row waits in the first- or second-level cache, of softmax its exponentials also in the third
//   online     the row is longer than the cache: one pass for its state, one to write (two reads of main memory)
//   split      as online, the chunks of one row shared by all threads
//
// online and split cut a row into the same chunks and merge them in the same order: the same bits on any number of
// threads.
#pragma once

#include "access.h"
#include "row_reductions.h"
#include "short_rows.h"
#include "span_results.h"
#include "transposed.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class Rows {
    using C = Compute<T>;
    static constexpr int W = kLanes<C>;
    // Bytes of a row of log_softmax's, at most (resident_log_softmax).
    static constexpr std::int64_t kWrittenLate = 8192;

   public:
    Rows(const Job& job, const void* x, void* y)
        : job_(job),
          x_(static_cast<const char*>(x)),
          y_(static_cast<char*>(y)),
          ahead_(elements_ahead<T>(job)),
          input_(job),
          output_(job) {}

    Form run() {
        if (job_.split) {
            run_split();
            return Form::usual;
        }
        if (job_.algorithm == Algorithm::registers) {
            if constexpr (kFolds<T>) {
                if (goes_across<T>(job_)) return run_across<T>(job_, x_, y_);
                if (folds<T>(job_)) return run_folded<T>(job_, x_, y_);
            }
            if (transposes<T>(job_)) return run_transposed<T>(job_, x_, y_);
        }
        auto body = [this](std::int64_t begin, std::int64_t end) { run_range(begin, end); };
        parallel_ranges(job_.rows, grain(), job_.threads, body);
        return Form::usual;
    }

   private:
    std::int64_t grain() const {
        return grain_of(job_.rows, job_.length * size_of(job_.in), kPipelinedRun, job_.threads);
    }

    const char* x_row(Offsets at) const { return x_ + at.x * size_of(job_.in); }
    char* y_row(Offsets at) const { return y_ + at.y * size_of(job_.out); }
    Offsets row(std::int64_t r) const {
        if (job_.outer.count == 1) return {r * job_.outer[0].x_stride, r * job_.outer[0].y_stride};
        return offsets_of(job_.outer, r);
    }
    std::int64_t chunks() const { return (job_.length + job_.chunk - 1) / job_.chunk; }

    void run_range(std::int64_t begin, std::int64_t end) {
        if (job_.algorithm == Algorithm::registers && (!kFewKernels || (input_.direct() && output_.direct()))) {
            ShortRows<T>(job_, x_, y_).run(begin, end);
        } else if (job_.op == Op::softmax) {
            elementwise<true>(begin, end);
        } else if (job_.op == Op::log_softmax) {
            elementwise<false>(begin, end);
        } else {
            reduce_rows(begin, end);
        }
        if (job_.nontemporal) stream_fence();
    }

    template <bool kSoftmax>
    void elementwise(std::int64_t begin, std::int64_t end) {
        if (job_.resident && input_.direct() && output_.direct()) {
            return kSoftmax ? resident_softmax(begin, end) : resident_log_softmax(begin, end);
        }
        for (std::int64_t r = begin; r < end; ++r) job_.resident ? staged_row<kSoftmax>(r) : online_row<kSoftmax>(r);
    }

    // ---- row ----

    // A row whose results can be written.
    struct Ready {
        const T* x = nullptr;
        T* y = nullptr;
        const C* e = nullptr;
        std::int64_t n = 0;
        C top = 0;
        double sum = 1;
    };
    template <bool kSoftmax>
    ONEPASS_INLINE auto write_ready(const Ready& ready, Carry& carry) const {
        if constexpr (kSoftmax) {
            using Source = Normalized<T>;
            return Emitter<T, Source>(ready.y, ready.n, job_.nontemporal, {ready.e, Scale<T>(ready.sum)}, &carry);
        } else {
            using Source = Applied<T, LogSoftmaxOp<Vec<C>>>;
            const auto op = log_softmax_op<C>({static_cast<double>(ready.top), ready.sum * kUnbias<C>});
            return Emitter<T, Source>(ready.y, ready.n, job_.nontemporal, {ready.x, op}, &carry);
        }
    }

    // Two rows at a time: while the exponentials of one are computed, the results of the one before are written.
    // Reading, arithmetic and writing go on side by side instead of taking turns. Nobody looks for a maximum before: a
    // row is taken to be like others (usual.h). Measured on a Zen 5, one thread, over finding the maximum of the next
    // row meanwhile: 1024 float32 in L2 0.89 of the time, 32768 from L3 0.77, 4096 bfloat16 0.88, 1000 float64 0.83.
    void resident_softmax(std::int64_t begin, std::int64_t end) {
        const std::int64_t n = job_.length;
        // Half a page apart: a load whose address differs from that of a store under way by whole pages waits for it.
        constexpr std::int64_t kPage = 4096 / sizeof(C);
        const std::int64_t stride = (n + W - 1) / W * W;
        const std::int64_t apart = (stride + kPage / 2 - 1) / kPage * kPage + kPage / 2;
        C* const keep = scratch_of<C>(Scratch::values, apart + stride);
        Expected<C> expected;
        bool trusted = true;
        Carry carry;
        Ready before;
        Offsets at = row(begin);
        for (std::int64_t r = begin; r < end; ++r) {
            const T* x = reinterpret_cast<const T*>(x_row(at));
            T* y = reinterpret_cast<T*>(y_row(at));
            C* const e = keep + (r & 1) * apart;
            if (r + 1 < end) at = row(r + 1);
            const T* next = reinterpret_cast<const T*>(x_row(at));
            double sum;
            if (!trusted || !pipelined_softmax(x, next, expected, e, sum, before, carry)) {
                if (trusted) before = {};  // is written
                // Until what is expected would have served, maxima come first, and rows are not computed twice. Those
                // of 1000 float32 that lie now here, now there take 1.3 times what others do, otherwise 1.9 (Zen 5).
                const C top = max_of(x, n);
                trusted = expected.serves(top);
                const bool has_exponent = expect(top, expected);
                if (!has_exponent) write_ready<true>(before, carry).finish();
                if (!has_exponent || !pipelined_softmax(x, next, expected, e, sum, before, carry))
                    sum = exponentials_at(x, top, e);
            }
            before = {x, y, e, n, 0, sum};
        }
        write_ready<true>(before, carry).finish();
        carry.flush();
    }

    // The exponentials of a row and their sum, taking along the results of the one before. False: the row is not what
    // was expected. What is under way is made in here, not handed over: a struct that was just written, field by field,
    // and is copied as a whole has to be waited for.
    //
    // Where rows lie apart, the processor begins anew at each to look ahead: the next one is touched meanwhile.
    // Measured on a Zen 5, one thread, from memory, 700 columns of 1000 4.2 ms for 6.6; of rows that do not lie
    // apart 1.1 times.
    ONEPASS_APART bool pipelined_softmax(const T* x, const T* next, const Expected<C>& expected, C* keep, double& sum,
                                         const Ready& ready, Carry& carry) const {
        const bool apart = next != x + job_.length;
        const FetchAhead<T> fetched(apart ? next : x, job_.length, ahead_);
        auto writer = write_ready<true>(ready, carry);
        auto write = writer.steps();
        const auto anchor = expected.anchor;
        Vec<C> top = -kInfinity<C>;
        sum = by_chunks([&](std::int64_t first, std::int64_t size) ONEPASS_INLINE_BODY {
            return keep_exponentials(x + first, size, anchor, keep + first, top,
                                     [&](std::int64_t i) ONEPASS_INLINE_BODY {
                                         fetched(first + i);
                                         if (apart) touch(next + first + i, 4 * W);
                                         write();
                                     });
        });
        writer.resume(write);
        writer.finish();
        return expected.served(top, sum);
    }

    // The same of any row, whose maximum is known, and nothing beside. Chunks of a row far from 0 may each have a
    // maximum of their own to subtract: it is added up by their states, as online and split do.
    ONEPASS_APART double exponentials_at(const T* x, C top, C* keep) const {
        const bool by_states = chunks() > 1 && !is_infinite(top);
        Partial total = empty_partial(Op::softmax);
        for (std::int64_t c = 0; by_states && c < chunks(); ++c)
            merge(Op::softmax, total, state_of<T>(x + c * job_.chunk, chunk_size(c), nullptr));
        const auto at = by_states ? anchor_of<C>(total.m) : anchor_at(Vec<C>(top), false);
        const double sum = with_anchor(at, [&](const auto& anchor) {
            Vec<C> ignored = -kInfinity<C>;
            return by_chunks([&](std::int64_t first, std::int64_t size) {
                return keep_exponentials(x + first, size, anchor, keep + first, ignored, Nothing{});
            });
        });
        return by_states ? total.d / kUnbias<C> : sum;
    }

    // The sum of what chunks of a row add up to, as online and split add it up: the same bits, whichever serves a row,
    // if all chunks are relative to powers of two.
    template <class SumOf>
    ONEPASS_INLINE double by_chunks(SumOf&& sum_of) const {
        double sum = 0;
        for (std::int64_t c = 0; c < chunks(); ++c) sum += sum_of(c * job_.chunk, chunk_size(c));
        return sum;
    }

    // Three rows at a time: while the exponentials of one are added up, the results of one before are written and the
    // maximum of the next is found.
    //
    // The results are of the row before that, if rows are short. The logarithm needs the sum, and one after the other
    // they take longer than a processor looks ahead; so one row's sum and the logarithm of another are computed side by
    // side. Measured on a Zen 5, one thread, in L2: 512 float32 0.85 of the time, 1024 0.9, 4096 0.98; by two threads
    // ten rows of 32768 1.13, since the last two are written with nothing beside.
    void resident_log_softmax(std::int64_t begin, std::int64_t end) {
        const std::int64_t n = job_.length;
        const int behind = n * static_cast<std::int64_t>(sizeof(T)) > kWrittenLate ? 1 : 2;
        Carry carry;
        Ready ready[2];  // rows before: at first, none
        Offsets at = row(begin);
        C top = max_of(reinterpret_cast<const T*>(x_row(at)), n);
        for (std::int64_t r = begin; r < end; ++r) {
            const T* x = reinterpret_cast<const T*>(x_row(at));
            T* y = reinterpret_cast<T*>(y_row(at));
            if (r + 1 < end) at = row(r + 1);
            C next_top;
            Ready& before = ready[(r - begin) & (behind - 1)];
            const double sum =
                pipelined_log_softmax(x, top, reinterpret_cast<const T*>(x_row(at)), next_top, before, carry);
            before = {x, y, nullptr, n, top, sum};
            top = next_top;
        }
        for (std::int64_t r = end; r < end + behind; ++r) {
            write_ready<false>(ready[(r - begin) & (behind - 1)], carry).finish();
        }
        carry.flush();
    }

    // The sum of a row's exponentials, taking along the maximum of the next row and the results of one before.
    ONEPASS_APART double pipelined_log_softmax(const T* x, C top, const T* next_x, C& next_top, const Ready& ready,
                                               Carry& carry) const {
        const std::int64_t n = job_.length;
        MaxAhead<T> next_max(next_x, n, ahead_);
        auto writer = write_ready<false>(ready, carry);
        auto write = writer.steps();
        const double sum = sum_exp_below(x, n, anchor_at(Vec<C>(top), true), [&](std::int64_t i) ONEPASS_INLINE_BODY {
            next_max.step(i);
            write();
        });
        next_top = next_max.value();
        writer.resume(write);
        writer.finish();
        return sum;
    }

    // A row that is gathered, converted or scattered on the way.
    template <bool kSoftmax>
    ONEPASS_APART void staged_row(std::int64_t r) {
        const std::int64_t n = job_.length;
        const Offsets at = row(r);
        T* staged = input_.direct() ? nullptr : scratch_of<T>(Scratch::input, n);
        const T* x = input_.read(x_row(at), 0, n, staged);
        T* y = output_.target(y_row(at), 0, output_.direct() ? nullptr : scratch_of<T>(Scratch::output, n));
        const C top = max_of(x, n);
        const bool past_cache = job_.nontemporal && output_.direct();
        if constexpr (kSoftmax) {
            C* const keep = scratch_of<C>(Scratch::values, n);
            const double sum = exponentials_at(x, top, keep);
            emit(y, n, past_cache, Normalized<T>{keep, Scale<T>(sum)});
        } else {
            const double sum = sum_exp_below(x, n, anchor_at(Vec<C>(top), true), Nothing{});
            const auto op = log_softmax_op<C>({static_cast<double>(top), sum * kUnbias<C>});
            emit(y, n, past_cache, Applied<T, LogSoftmaxOp<Vec<C>>>{x, op});
        }
        output_.write_back(y_row(at), 0, n, y);
    }

    // ---- online and split ----

    ONEPASS_APART Partial chunk_partial(const char* x_row, std::int64_t begin, std::int64_t n) const {
        T* staged = input_.direct() ? nullptr : scratch_of<T>(Scratch::input, n);
        const T* x = input_.read(x_row, begin, n, staged);
        const T* next = input_.direct() && begin + 2 * n <= job_.length ? x + n : nullptr;
        switch (job_.op) {
            case Op::softmax: return state_of(x, n, next);
            case Op::log_softmax:
            case Op::logsumexp: {
                C top = max_of(x, n);
                return state_beside_max(x, n, top, x, 0, 0);
            }
            case Op::sum:
            case Op::mean: return {0, sum_of(x, n, job_.cached)};
            case Op::amax: return {extreme_of<1>(x, n), 0};
            case Op::amin: return {extreme_of<-1>(x, n), 0};
            default: return {};
        }
    }

    // Calls take(c, its state) for some chunks of a row, in order.
    template <class Take>
    void chunk_partials(Offsets at, std::int64_t begin, std::int64_t end, Take&& take) const {
        if (!input_.direct() || (job_.op != Op::log_softmax && job_.op != Op::logsumexp)) {
            for (std::int64_t c = begin; c < end; ++c) {
                take(c, chunk_partial(x_row(at), c * job_.chunk, chunk_size(c)));
            }
            return;
        }
        const auto chunk_at = [&](std::int64_t c) { return reinterpret_cast<const T*>(x_row(at)) + c * job_.chunk; };
        C top = max_of(chunk_at(begin), chunk_size(begin));
        const std::int64_t ahead = span_ahead() / static_cast<std::int64_t>(sizeof(T));
        for (std::int64_t c = begin; c < end; ++c) {
            const std::int64_t next_n = c + 1 < end ? chunk_size(c + 1) : 0;
            take(c, state_beside_max(chunk_at(c), chunk_size(c), top, chunk_at(c + 1), next_n, ahead));
        }
    }
    Partial row_partial(Offsets at) const {
        Partial total = empty_partial(job_.op);
        chunk_partials(at, 0, chunks(), [&](std::int64_t, Partial each) { merge(job_.op, total, each); });
        return total;
    }

    template <class RowOp>
    ONEPASS_APART void write_chunk(Offsets at, std::int64_t begin, std::int64_t n, const RowOp& op) const {
        T* staged = input_.direct() ? nullptr : scratch_of<T>(Scratch::input, n);
        const T* x = input_.read(x_row(at), begin, n, staged);
        T* y = output_.target(y_row(at), begin, output_.direct() ? nullptr : scratch_of<T>(Scratch::output, n));
        const T* next = input_.direct() && begin >= job_.chunk ? x - job_.chunk : nullptr;  // chunks come backwards
        if constexpr (__is_same(RowOp, SoftmaxOp<Vec<C>, true>)) {
            with_anchor(op.anchor, [&](const auto& anchor) {
                const auto lean = softmax_with(anchor, op);
                emit(y, n, job_.nontemporal && output_.direct(), Applied<T, decltype(lean)>{x, lean, next});
            });
        } else {
            emit(y, n, job_.nontemporal && output_.direct(), Applied<T, RowOp>{x, op, next});
        }
        output_.write_back(y_row(at), begin, n, y);
    }

    template <bool kShifted, class P = Precision<T>>
    static SoftmaxOp<P, kShifted> softmax_with(const Anchor<Vec<C>, kShifted>& anchor,
                                               const SoftmaxOp<Vec<C>, true>& op) {
        return {{anchor.shift, anchor.floor, anchor.magic}, op.scale, op.scale_low};
    }

    template <bool kSoftmax>
    static auto op_of(Partial total) {
        if constexpr (kSoftmax) {
            return softmax_op<C>(total);
        } else {
            return log_softmax_op<C>(total);
        }
    }

    std::int64_t chunk_size(std::int64_t c) const {
        const std::int64_t left = job_.length - c * job_.chunk;
        return left < job_.chunk ? left : job_.chunk;
    }

    // The second pass runs backwards: what the first one read last is still in the cache.
    template <bool kSoftmax>
    void online_row(std::int64_t r) const {
        const Offsets at = row(r);
        const auto op = op_of<kSoftmax>(row_partial(at));
        for (std::int64_t c = chunks(); c-- > 0;) write_chunk(at, c * job_.chunk, chunk_size(c), op);
    }

    void reduce_rows(std::int64_t begin, std::int64_t end) const {
        if (!input_.direct() || job_.length > job_.chunk) {
            for (std::int64_t r = begin; r < end; ++r) reduce_row(r);
            return;
        }
        const std::int64_t n = job_.length;
        switch (job_.op) {
            case Op::sum: return with_sum<T>(job_, ahead_, [&](auto sum) { reduce_short(begin, end, sum); });
            case Op::mean:
                return with_sum<T>(job_, ahead_, [&](auto sum) {
                    reduce_short(begin, end,
                                 [=](const T* x) ONEPASS_INLINE_BODY { return sum(x) / static_cast<double>(n); });
                });
            case Op::amax:
                return with_extreme<1, T>(job_, ahead_, [&](auto extreme) { reduce_short(begin, end, extreme); });
            case Op::amin:
                return with_extreme<-1, T>(job_, ahead_, [&](auto extreme) { reduce_short(begin, end, extreme); });
            default: break;
        }
        C top = max_of(reinterpret_cast<const T*>(x_row(row(begin))), n);
        std::int64_t r = begin;
        reduce_short(begin, end, [&](const T* x) {
            const T* next = ++r < end ? reinterpret_cast<const T*>(x_row(row(r))) : x;
            return state_beside_max(x, n, top, next, r < end ? n : 0, ahead_).lse();
        });
    }

    // Rows of one chunk, in place: nothing is decided per row. What type the results have is decided per batch.
    template <class Reduce>
    void reduce_short(std::int64_t begin, std::int64_t end, Reduce&& reduce) const {
        constexpr int kMost = 64;
        double results[kMost];
        std::int64_t places[kMost];
        for (std::int64_t first = begin; first < end; first += kMost) {
            const int count = static_cast<int>(end - first < kMost ? end - first : kMost);
            if (job_.outer.count == 1) {
                const Offsets at = row(first), step = row(1);
                const T* x = reinterpret_cast<const T*>(x_row(at));
                for (int i = 0; i < count; ++i) {
                    places[i] = at.y + i * step.y;
                    results[i] = reduce(x + i * step.x);
                }
            } else {
                for (int i = 0; i < count; ++i) {
                    const Offsets at = row(first + i);
                    places[i] = at.y;
                    results[i] = reduce(reinterpret_cast<const T*>(x_row(at)));
                }
            }
            put_results(count, places, results);
        }
    }
    ONEPASS_APART void put_results(int count, const std::int64_t* places, const double* results) const {
        with_type(job_.out, [&](auto* null) {
            using To = std::remove_pointer_t<decltype(null)>;
            To* const y = reinterpret_cast<To*>(y_);
            if (job_.outer.count == 1 && job_.outer[0].y_stride == 1)
                return write_results(y + places[0], results, count);
            for (int i = 0; i < count; ++i) y[places[i]] = narrow_scalar<To>(results[i]);
        });
    }

    void reduce_row(std::int64_t r) const {
        const Offsets at = row(r);
        write_scalar(y_, job_.out, at.y, finish(job_.op, row_partial(at), job_.length));
    }

    void run_split() {
        Partial* partials = scratch_of<Partial>(Scratch::states, chunks());
        const std::int64_t grain = kPlainRun / (job_.chunk * size_of(job_.in)) + 1;
        for (std::int64_t r = 0; r < job_.rows; ++r) {
            const Offsets at = row(r);
            auto read = [&](std::int64_t begin, std::int64_t end) {
                chunk_partials(at, begin, end, [&](std::int64_t c, Partial each) { partials[c] = each; });
            };
            parallel_ranges(chunks(), grain, job_.threads, read);
            Partial total = empty_partial(job_.op);
            for (std::int64_t c = 0; c < chunks(); ++c) merge(job_.op, total, partials[c]);
            if (job_.op == Op::softmax) {
                write_split(at, grain, softmax_op<C>(total));
            } else if (job_.op == Op::log_softmax) {
                write_split(at, grain, log_softmax_op<C>(total));
            } else {
                write_scalar(y_, job_.out, at.y, finish(job_.op, total, job_.length));
            }
        }
    }

    template <class RowOp>
    void write_split(Offsets at, std::int64_t grain, const RowOp& op) const {
        auto write = [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t c = chunks() - 1 - i;
                write_chunk(at, c * job_.chunk, chunk_size(c), op);
            }
            if (job_.nontemporal) stream_fence();
        };
        parallel_ranges(chunks(), grain, job_.threads, write);
    }

    const Job& job_;
    const char* x_;
    char* y_;
    std::int64_t ahead_;  // elements: how far ahead of a row is fetched
    RowInput<T> input_;
    RowOutput<T> output_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
