// Rows whose reduced axis is walked directly: one row is one unit of work, or, split, one chunk of a row.
//
//   registers  the row waits in vector registers: read once, written once
//   row        the row waits in the first- or second-level cache
//   online     the row is longer than the cache: one pass for its state, one to write (two reads of main memory)
//   split      as online, the chunks of one row shared by all threads
//
// online and split cut a row into the same chunks and merge them in the same order: the same bits on any number of threads.
#pragma once

#include "access.h"
#include "span.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class Rows {
    using C = Compute<T>;
    static constexpr int W = kLanes<C>;

   public:
    Rows(const Job& job, const void* x, void* y)
        : job_(job), x_(static_cast<const char*>(x)), y_(static_cast<char*>(y)), input_(job), output_(job) {}

    void run() {
        if (job_.split) return run_split();
        auto body = [this](std::int64_t begin, std::int64_t end) { run_range(begin, end); };
        parallel_ranges(job_.rows, grain(job_.length), job_.threads, body);
    }

    static constexpr int kMostRegisters = 8;

   private:
    // Enough rows per hand-out that handing out does not show, few enough that threads finish together.
    std::int64_t grain(std::int64_t elements) const {
        const std::int64_t bytes = elements * size_of(job_.in);
        const std::int64_t by_size = (std::int64_t{64} << 10) / (bytes > 0 ? bytes : 1) + 1;
        const std::int64_t by_share = job_.rows / (job_.threads * 4) + 1;
        return by_size < by_share ? by_size : by_share;
    }

    const char* x_row(Offsets at) const { return x_ + at.x * size_of(job_.in); }
    char* y_row(Offsets at) const { return y_ + at.y * size_of(job_.out); }
    Offsets row(std::int64_t r) const { return offsets_of(job_.outer, r); }
    std::int64_t chunks() const { return (job_.length + job_.chunk - 1) / job_.chunk; }

    void run_range(std::int64_t begin, std::int64_t end) {
        switch (job_.op) {
            case Op::softmax: elementwise<true>(begin, end); break;
            case Op::log_softmax: elementwise<false>(begin, end); break;
            default:
                for (std::int64_t r = begin; r < end; ++r) reduce_row(r);
        }
        if (job_.nontemporal) stream_fence();
    }

    template <bool kSoftmax>
    void elementwise(std::int64_t begin, std::int64_t end) {
        if (job_.algorithm == Algorithm::registers) return in_registers<kSoftmax>(begin, end);
        for (std::int64_t r = begin; r < end; ++r) {
            if (job_.resident) {
                resident_row<kSoftmax>(r, r + 1 < end);
            } else {
                online_row<kSoftmax>(r);
            }
        }
    }

    // ---- registers ----

    template <bool kSoftmax>
    void in_registers(std::int64_t begin, std::int64_t end) {
        switch ((job_.length + W - 1) / W) {
            case 1: return in_registers<kSoftmax, 1>(begin, end);
            case 2: return in_registers<kSoftmax, 2>(begin, end);
            case 3: return in_registers<kSoftmax, 3>(begin, end);
            case 4: return in_registers<kSoftmax, 4>(begin, end);
            case 5: return in_registers<kSoftmax, 5>(begin, end);
            case 6: return in_registers<kSoftmax, 6>(begin, end);
            case 7: return in_registers<kSoftmax, 7>(begin, end);
            case 8: return in_registers<kSoftmax, 8>(begin, end);
        }
    }

    template <bool kSoftmax, int kVectors>
    void in_registers(std::int64_t begin, std::int64_t end) {
        const int last = static_cast<int>(job_.length - (kVectors - 1) * W);
        const bool stream_all = job_.nontemporal && last == W;
        for (std::int64_t r = begin; r < end; ++r) {
            const Offsets at = row(r);
            const T* x = reinterpret_cast<const T*>(x_row(at));
            T* y = reinterpret_cast<T*>(y_row(at));
            Vec<C> v[kVectors];
            for (int i = 0; i + 1 < kVectors; ++i) v[i] = load(x + i * W);
            v[kVectors - 1] = last == W ? load(x + (kVectors - 1) * W) : load_n(x + (kVectors - 1) * W, last, -kInfinity<C>);
            Vec<C> m = v[0];
            for (int i = 1; i < kVectors; ++i) m = max(v[i], m);
            const C top = reduce_max(m);
            if constexpr (kSoftmax) {
                const auto anchor = anchor_at(Vec<C>(top), false);
                Vec<C> sum = C(0);
                for (int i = 0; i < kVectors; ++i) {
                    v[i] = exp_anchored(v[i], anchor);
                    sum = sum + v[i];
                }
                const auto op = normalizer(anchor, reduce_sum(sum));
                for (int i = 0; i < kVectors; ++i) v[i] = op.normalize(v[i]);
            } else {
                const auto anchor = anchor_at(Vec<C>(top), true);
                VecD low(0.0), high(0.0);
                for (int i = 0; i < kVectors; ++i) add_to(low, high, exp_anchored(v[i], anchor));
                const auto op = log_softmax_op<C>({static_cast<double>(top), reduce_sum(low + high) * kUnbias<C>});
                for (int i = 0; i < kVectors; ++i) v[i] = op(v[i]);
            }
            if (stream_all && reinterpret_cast<std::uintptr_t>(y) % kCacheLine == 0) {
                for (int i = 0; i < kVectors; ++i) stream(y + i * W, v[i]);
                continue;
            }
            for (int i = 0; i + 1 < kVectors; ++i) store(y + i * W, v[i]);
            if (last == W) {
                store(y + (kVectors - 1) * W, v[kVectors - 1]);
            } else {
                store_n(y + (kVectors - 1) * W, v[kVectors - 1], last);
            }
        }
    }

    // From a sum over exponentials of this very anchor. A row of -inf, or with +inf, has made it NaN.
    static SoftmaxOp<Vec<C>> normalizer(const Anchor<Vec<C>>& anchor, double sum) {
        const double scale = 1.0 / sum;
        const C high = static_cast<C>(scale);
        const C low = sizeof(C) == 4 ? static_cast<C>(scale - high) : static_cast<C>(::fma(-scale, sum, 1.0) * scale);
        return {anchor, Vec<C>(high), Vec<C>(low)};
    }

    // ---- row ----

    template <bool kSoftmax>
    void resident_row(std::int64_t r, bool more) {
        const std::int64_t n = job_.length;
        const Offsets at = row(r);
        T* staged = input_.direct() ? nullptr : scratch_of<T>(Scratch::input, n);
        const T* x = input_.read(x_row(at), 0, n, staged);
        T* y = output_.target(y_row(at), 0, output_.direct() ? nullptr : scratch_of<T>(Scratch::output, n));
        const T* next = more && job_.prefetch ? reinterpret_cast<const T*>(x_row(row(r + 1))) : nullptr;
        const C top = max_of(x, n);
        const auto anchor = anchor_at(Vec<C>(top), !kSoftmax);
        if constexpr (kSoftmax) {
            // The exponentials wait in the result itself where it has their type and stays in the cache.
            C* keep;
            if constexpr (__is_same(T, C)) {
                keep = job_.nontemporal && output_.direct() ? scratch_of<C>(Scratch::values, n) : y;
            } else {
                keep = scratch_of<C>(Scratch::values, n);
            }
            const double sum = sum_exp<false, true>(x, n, anchor, keep, next);
            emit(y, n, job_.nontemporal && output_.direct(), Normalized<C>{keep, normalizer(anchor, sum)});
        } else {
            const double sum = sum_exp<true, false>(x, n, anchor, static_cast<C*>(nullptr), next);
            const auto op = log_softmax_op<C>({static_cast<double>(top), sum * kUnbias<C>});
            emit(y, n, job_.nontemporal && output_.direct(), Applied<T, LogSoftmaxOp<Vec<C>>>{x, op});
        }
        output_.write_back(y_row(at), 0, n, y);
    }

    // ---- online and split ----

    Partial chunk_partial(const char* x_row, std::int64_t begin, std::int64_t n) const {
        T* staged = input_.direct() ? nullptr : scratch_of<T>(Scratch::input, n);
        const T* x = input_.read(x_row, begin, n, staged);
        switch (job_.op) {
            case Op::softmax: return state_of<false>(x, n);
            case Op::log_softmax:
            case Op::logsumexp: return state_of<true>(x, n);
            case Op::sum:
            case Op::mean: return {0, sum_of(x, n)};
            case Op::amax: return {extreme_of<1>(x, n), 0};
            case Op::amin: return {extreme_of<-1>(x, n), 0};
        }
        return {};
    }

    template <class RowOp>
    void write_chunk(Offsets at, std::int64_t begin, std::int64_t n, const RowOp& op) const {
        T* staged = input_.direct() ? nullptr : scratch_of<T>(Scratch::input, n);
        const T* x = input_.read(x_row(at), begin, n, staged);
        T* y = output_.target(y_row(at), begin, output_.direct() ? nullptr : scratch_of<T>(Scratch::output, n));
        emit(y, n, job_.nontemporal && output_.direct(), Applied<T, RowOp>{x, op});
        output_.write_back(y_row(at), begin, n, y);
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
        Partial total = empty_partial(job_.op);
        for (std::int64_t c = 0; c < chunks(); ++c) {
            merge(job_.op, total, chunk_partial(x_row(at), c * job_.chunk, chunk_size(c)));
        }
        const auto op = op_of<kSoftmax>(total);
        for (std::int64_t c = chunks(); c-- > 0;) write_chunk(at, c * job_.chunk, chunk_size(c), op);
    }

    void reduce_row(std::int64_t r) const {
        const Offsets at = row(r);
        Partial total = empty_partial(job_.op);
        for (std::int64_t c = 0; c < chunks(); ++c) {
            merge(job_.op, total, chunk_partial(x_row(at), c * job_.chunk, chunk_size(c)));
        }
        write_scalar(y_, job_.out, at.y, finish(job_.op, total, job_.length));
    }

    void run_split() {
        Partial* partials = scratch_of<Partial>(Scratch::states, chunks());
        const std::int64_t grain = (std::int64_t{256} << 10) / (job_.chunk * size_of(job_.in)) + 1;
        for (std::int64_t r = 0; r < job_.rows; ++r) {
            const Offsets at = row(r);
            auto read = [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t c = begin; c < end; ++c) {
                    partials[c] = chunk_partial(x_row(at), c * job_.chunk, chunk_size(c));
                }
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
    RowInput<T> input_;
    RowOutput<T> output_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
