// Gradients of rows whose reduced axis is walked directly: the algorithms of rows.h, with a second input.
//
//   registers  short rows (gradient_short_rows.h; tiny ones: transposed.h)
//   row     y and dy wait in cache between the sum and the results, which are written beside the next row's sum, or
//           before it, of a row that waits in the first cache (on a Zen 5 in any)
//   online  a row longer than the cache: one pass for its sum, one to write
//   split   as online, the chunks of one row shared by all threads
//
// logsumexp_backward sums nothing: one pass, whatever the algorithm.
#pragma once

#include "access.h"
#include "fetch_ahead.h"
#include "gradient_short_rows.h"
#include "partial.h"
#include "transposed.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class GradientRows {
    using C = Compute<T>;
    // Both inputs of a row that is summed and written before the next is looked at, half of the first cache, where
    // little is computed: log_softmax's exponentials and conversions of 16 bits want loads beside them. Measured on a
    // Zen 4, times of two rows at a time over times of these: rows of 1024 float32 from L3 1.25, from memory 1.05 (with
    // AVX2 1.3), of 1000 from memory 1.3 (1.5), of 2000 1.5 and 1.1.
    static constexpr std::int64_t kShortBytes = 16 << 10;
    // On a Zen 5, which looks ahead by itself, all rows in the cache, but for exponentials of float64 and 16 bits.
    // Times of these over those of two rows at a time, two threads: softmax's of 60x5000 float32 0.8, bfloat16 0.96, of
    // 16x30000 0.9 and 0.82, log_softmax's 0.8, 1.06, 0.86, 1.04, float64 1.1. And none past it: from memory softmax's
    // of 8192x1024 take 1.27 times by these, of 16777x1000 1.2.
    template <class RowOp>
    static constexpr bool kOneByOne = kVectorBytes == 64 && (RowOp::kOfProducts || sizeof(T) == 4);

   public:
    GradientRows(const Job& job, const Addresses& in, void* y)
        : job_(job),
          x_(static_cast<const char*>(in.x)),
          second_(static_cast<const char*>(in.second)),
          third_(static_cast<const char*>(in.third)),
          y_(static_cast<char*>(y)),
          x_input_(job),
          second_input_(job, job.second, &Axis::z_stride),
          output_(job) {}

    Form run() {
        switch (job_.op) {
            case Op::softmax_backward: return run_op<SoftmaxGradient<C>>();
            case Op::log_softmax_backward: return run_op<LogSoftmaxGradient<C>>();
            default: return run_op<LogsumexpGradient<C>>();
        }
    }

   private:
    using Row = GradientRow;

    // Apart, or its strides take registers from the loops over rows.
    ONEPASS_APART Row row(std::int64_t r) const {
        const auto at = [&](Stride stride) {
            return job_.outer.count == 1 ? r * job_.outer[0].*stride : offset_of(job_.outer, r, stride);
        };
        return {x_ + at(&Axis::x_stride) * size_of(job_.in), second_ + at(&Axis::z_stride) * size_of(job_.second),
                third_ ? third_ + at(&Axis::w_stride) * size_of(job_.third) : nullptr,
                y_ + at(&Axis::y_stride) * size_of(job_.out)};
    }
    bool direct() const { return x_input_.direct() && second_input_.direct() && output_.direct(); }
    std::int64_t chunks() const { return (job_.length + job_.chunk - 1) / job_.chunk; }
    // Elements of the i-th piece, where a row is cut into pieces of so many.
    std::int64_t size_of_piece(std::int64_t i, std::int64_t most) const {
        const std::int64_t left = job_.length - i * most;
        return left < most ? left : most;
    }
    std::int64_t chunk_size(std::int64_t c) const { return size_of_piece(c, job_.chunk); }
    std::int64_t grain() const {
        const std::int64_t row_bytes = job_.length * (size_of(job_.in) + size_of(job_.second));
        return grain_of(job_.rows, row_bytes, kPipelinedRun, job_.threads);
    }

    template <class RowOp>
    Form run_op() {
        if (job_.split) {
            run_split<RowOp>();
            return Form::usual;
        }
        if constexpr (RowOp::kSums && sizeof(C) == 4) {
            if (job_.algorithm == Algorithm::registers && transposes<T>(job_)) {
                return run_transposed_gradient<T>(job_, {x_, second_}, y_);
            }
        }
        auto body = [this](std::int64_t begin, std::int64_t end) {
            run_range<RowOp>(begin, end);
            if (job_.nontemporal) stream_fence();
        };
        parallel_ranges(job_.rows, grain(), job_.threads, body);
        return Form::usual;
    }

    template <class RowOp>
    void run_range(std::int64_t begin, std::int64_t end) const {
        if (job_.algorithm == Algorithm::registers && (!kFewKernels || direct())) {
            return GradientShortRows<T, RowOp>(job_).run(begin, end, [this](std::int64_t r) { return row(r); });
        }
        if constexpr (RowOp::kSums) {
            if (job_.resident && direct()) return resident_rows<RowOp>(begin, end);
            if (job_.resident) {
                for (std::int64_t r = begin; r < end; ++r) staged_row<RowOp>(row(r));
                return;
            }
        }
        for (std::int64_t r = begin; r < end; ++r) chunked_row<RowOp>(row(r));
    }

    template <class RowOp>
    static RowOp op_of(double sum) {
        C k[RowOp::kConstants];
        RowOp::set(k, 1, sum);
        return all_lanes<RowOp>(k);
    }
    template <class RowOp>
    RowOp op_of_row(const Row& r) const {
        C k[RowOp::kConstants];
        RowOp::set(k, 1, read_scalar(r.second, job_.second), read_scalar(r.third, job_.third));
        return all_lanes<RowOp>(k);
    }

    // ---- row ----

    template <class RowOp>
    void resident_rows(std::int64_t begin, std::int64_t end) const {
        is_one_by_one<RowOp>() ? one_by_one<RowOp>(begin, end) : pairs_of_rows<RowOp>(begin, end);
    }

    template <class RowOp>
    bool is_one_by_one() const {
        if (looks_far_ahead && job_.nontemporal) return false;
        const bool is_short = 2 * job_.length * size_of(job_.in) <= kShortBytes;
        return (RowOp::kOfProducts && sizeof(T) == 4 && is_short) || (looks_far_ahead && kOneByOne<RowOp>);
    }

    // Two rows at a time: while one is summed, the results of the one before are written.
    template <class RowOp>
    void pairs_of_rows(std::int64_t begin, std::int64_t end) const {
        Carry carry;
        Ready ready;  // the row before: at first, none
        for (std::int64_t i = begin; i < end; ++i) {
            const Row r = row(i);
            const T* y = reinterpret_cast<const T*>(r.x);
            const T* dy = reinterpret_cast<const T*>(r.second);
            const double sum = pipelined<RowOp>(y, dy, ready, carry);
            ready = {y, dy, reinterpret_cast<T*>(r.y), job_.length, sum};
        }
        write_alone<RowOp>(ready, job_.nontemporal, carry);
    }

    // A row whose results can be written.
    struct Ready {
        const T* y = nullptr;
        const T* dy = nullptr;
        T* dx = nullptr;
        std::int64_t n = 0;
        double sum = 0;
    };
    template <class RowOp>
    ONEPASS_INLINE auto write_ready(const Ready& ready, bool past_cache, Carry& carry) const {
        using Source = GradientOf<T, RowOp>;
        return Emitter<T, Source>(ready.dx, ready.n, past_cache, {ready.y, ready.dy, op_of<RowOp>(ready.sum)}, &carry);
    }

    template <class RowOp>
    ONEPASS_APART void write_alone(const Ready& ready, bool past_cache, Carry& carry) const {
        write_ready<RowOp>(ready, past_cache, carry).finish();
        carry.flush();
    }

    // How many bytes ahead of a sum its inputs are fetched, where rows follow each other; 0: not at all. Measured on a
    // Zen 5, times by 4 KiB over those by 6, by one thread and by two: log_softmax's of 16384 x 1024 float32 0.88 and
    // 1.0, softmax's of it 0.98 and 0.99, of 2048 x 8192 0.95 and 1.01, of 32768 x 1024 bfloat16 1.03 and 0.98; 2 KiB
    // are too few (of that and of 4096 x 1024 1.3, by one thread). On a Zen 4, where these lines come into the second
    // cache: softmax's of float32 up to 2048, which are summed before any of it is written, by 1.5 KiB over those by 2
    // 0.86 to 1.04, over 4 0.63 to 0.8. log_softmax's of 538 to 1800 float32 from memory by 4 KiB over none 0.72 to
    // 0.93, by 6 over 4 0.85 to 1.12; in a cache by none over 4 0.93. Of bfloat16, log_softmax's up to 12000, and
    // softmax's up to 1500, by none over 4 KiB 0.86 to 1.01.
    template <class RowOp>
    std::int64_t bytes_ahead() const {
        constexpr std::int64_t kFar = 4096, kNear = 1536;
        if (looks_far_ahead || sizeof(T) == 8) return kFar;
        const std::int64_t row_bytes = job_.length * static_cast<std::int64_t>(sizeof(T));
        if (sizeof(T) == 2) return row_bytes <= (RowOp::kOfProducts ? 3000 : 24000) ? 0 : kFar;
        if (RowOp::kOfProducts && row_bytes <= 8192) return kNear;
        return row_bytes < 4096 && !job_.nontemporal ? 0 : 6144;
    }

    // The same in elements, of one of the inputs. Where little is fetched ahead of rows, or nothing, that goes for
    // those that lie almost after each other, too: softmax's of 600 columns of 700 float32 take 1.4 times as long by
    // whole rows, of 600 of 800 0.9 (Zen 4).
    template <class RowOp>
    std::int64_t ahead_of_input(const RowInput<T>& input, Stride stride) const {
        if (!input.direct()) return 0;  // it was gathered just now
        const std::int64_t bytes = bytes_ahead<RowOp>();
        return ahead_of_rows<T>(stride_of_rows(job_, stride), job_.length, bytes, bytes < 4096 ? 512 : 0);
    }

    // The sum of a row, taking along the results of the one before. What is under way is made in here (rows.h).
    template <class RowOp>
    ONEPASS_APART double pipelined(const T* y, const T* dy, const Ready& ready, Carry& carry) const {
        auto writer = write_ready<RowOp>(ready, job_.nontemporal, carry);
        auto write = writer.steps();
        const FetchAhead<T> ahead_of_y(y, job_.length, ahead_of_input<RowOp>(x_input_, &Axis::x_stride));
        const FetchAhead<T> ahead_of_dy(dy, job_.length, ahead_of_input<RowOp>(second_input_, &Axis::z_stride));
        const auto beside = [&](std::int64_t i) ONEPASS_INLINE_BODY {
            ahead_of_y(i);
            ahead_of_dy(i);
            write();
        };
        const double sum = gradient_sum<RowOp::kOfProducts>(y, dy, job_.length, beside);
        writer.resume(write);
        writer.finish();
        return sum;
    }

    // One row after the other.
    template <class RowOp>
    void one_by_one(std::int64_t begin, std::int64_t end) const {
        Carry carry;
        for (std::int64_t i = begin; i < end; ++i) {
            job_.nontemporal ? row_past_cache<RowOp>(row(i), carry) : row_in_cache<RowOp>(row(i));
        }
        carry.flush();
    }
    template <class RowOp>
    ONEPASS_APART void row_in_cache(const Row& r) const {
        const std::int64_t n = job_.length;
        const T* y = reinterpret_cast<const T*>(r.x);
        const T* dy = reinterpret_cast<const T*>(r.second);
        const GradientOf<T, RowOp> value{y, dy, op_of<RowOp>(gradient_sum<RowOp::kOfProducts>(y, dy, n, Nothing{}))};
        write_in_cache(reinterpret_cast<T*>(r.y), n, value);
    }
    template <class RowOp>
    ONEPASS_APART void row_past_cache(const Row& r, Carry& carry) const {
        const T* y = reinterpret_cast<const T*>(r.x);
        const T* dy = reinterpret_cast<const T*>(r.second);
        const double sum = pipelined<RowOp>(y, dy, {}, carry);
        write_ready<RowOp>({y, dy, reinterpret_cast<T*>(r.y), job_.length, sum}, true, carry).finish();
    }

    // A row that is gathered, converted or scattered on the way: by the same code, with nothing beside it.
    template <class RowOp>
    void staged_row(const Row& r) const {
        const std::int64_t n = job_.length;
        const T* y = read_x(r, 0, n);
        const T* dy = read_second(r, 0, n);
        T* dx = output_.target(r.y, 0, output_.direct() ? nullptr : scratch_of<T>(Scratch::output, n));
        Carry carry;
        const double sum = pipelined<RowOp>(y, dy, {}, carry);
        write_alone<RowOp>({y, dy, dx, n, sum}, job_.nontemporal && output_.direct(), carry);
        output_.write_back(r.y, 0, n, dx);
    }

    const T* read_x(const Row& r, std::int64_t begin, std::int64_t n) const {
        return x_input_.read(r.x, begin, n, x_input_.direct() ? nullptr : scratch_of<T>(Scratch::input, n));
    }
    const T* read_second(const Row& r, std::int64_t begin, std::int64_t n) const {
        return second_input_.read(r.second, begin, n,
                                  second_input_.direct() ? nullptr : scratch_of<T>(Scratch::values, n));
    }

    template <class Source>
    void write(const Row& r, std::int64_t begin, std::int64_t n, const Source& source) const {
        T* y = output_.target(r.y, begin, output_.direct() ? nullptr : scratch_of<T>(Scratch::output, n));
        emit(y, n, job_.nontemporal && output_.direct(), source);
        output_.write_back(r.y, begin, n, y);
    }

    // ---- online and split ----

    template <class RowOp>
    ONEPASS_APART Partial chunk_partial(const Row& r, std::int64_t begin, std::int64_t n) const {
        const T* y = RowOp::kOfProducts ? read_x(r, begin, n) : nullptr;
        return {0, gradient_sum<RowOp::kOfProducts>(y, read_second(r, begin, n), n, Nothing{})};
    }

    template <class RowOp>
    ONEPASS_APART void write_chunk(const Row& r, std::int64_t begin, std::int64_t n, const RowOp& op) const {
        const T* x = read_x(r, begin, n);
        const T* second = RowOp::kSums ? read_second(r, begin, n) : nullptr;
        write(r, begin, n, GradientOf<T, RowOp>{x, second, op});
    }

    // The second pass runs backwards: what the first one read last is still in the cache.
    template <class RowOp>
    void chunked_row(const Row& r) const {
        if constexpr (RowOp::kSums) {
            Partial total = empty_partial(Op::sum);
            for (std::int64_t c = 0; c < chunks(); ++c) {
                merge(Op::sum, total, chunk_partial<RowOp>(r, c * job_.chunk, chunk_size(c)));
            }
            write_backwards(r, op_of<RowOp>(finish(Op::sum, total, job_.length)));
        } else {
            write_backwards(r, op_of_row<RowOp>(r));
        }
    }
    template <class RowOp>
    void write_backwards(const Row& r, const RowOp& op) const {
        for (std::int64_t i = spans(); i-- > 0;) write_span(r, i, op);
    }

    // What is written at once: past the cache several chunks, since at the beginning of each the processor does not
    // look ahead yet. Measured on a Zen 5, times by one chunk over those by eight, of one thread and of two:
    // log_softmax's gradient of 8 x 2097152 1.5 and 1.2, of 128 x 262144 1.4 and 1.2, of 128 x 128256 bfloat16 1.7
    // and 1.4, softmax's 1.0 to 1.1. Of what is shared out there are some for each thread.
    static constexpr std::int64_t kSpanChunks = 8, kSpansOfThread = 4;
    std::int64_t span() const {
        const std::int64_t several = kSpanChunks * job_.chunk;
        const bool enough = !job_.split || job_.length >= several * kSpansOfThread * job_.threads;
        return job_.nontemporal && direct() && enough ? several : job_.chunk;
    }
    std::int64_t spans() const { return (job_.length + span() - 1) / span(); }
    template <class RowOp>
    void write_span(const Row& r, std::int64_t i, const RowOp& op) const {
        write_chunk(r, i * span(), size_of_piece(i, span()), op);
    }

    template <class RowOp>
    void run_split() {
        for (std::int64_t i = 0; i < job_.rows; ++i) {
            const Row r = row(i);
            if constexpr (RowOp::kSums) {
                write_split(r, op_of<RowOp>(split_sum<RowOp>(r)));
            } else {
                write_split(r, op_of_row<RowOp>(r));
            }
        }
    }
    std::int64_t split_grain(std::int64_t pieces, std::int64_t elements) const {
        return grain_of(pieces, elements * (size_of(job_.in) + size_of(job_.second)), kPlainRun, job_.threads);
    }
    template <class RowOp>
    double split_sum(const Row& r) const {
        Partial* partials = scratch_of<Partial>(Scratch::states, chunks());
        auto read = [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t c = begin; c < end; ++c) {
                partials[c] = chunk_partial<RowOp>(r, c * job_.chunk, chunk_size(c));
            }
        };
        parallel_ranges(chunks(), split_grain(chunks(), job_.chunk), job_.threads, read);
        Partial total = empty_partial(Op::sum);
        for (std::int64_t c = 0; c < chunks(); ++c) merge(Op::sum, total, partials[c]);
        return finish(Op::sum, total, job_.length);
    }
    template <class RowOp>
    void write_split(const Row& r, const RowOp& op) const {
        auto write = [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) write_span(r, spans() - 1 - i, op);
            if (job_.nontemporal) stream_fence();
        };
        parallel_ranges(spans(), split_grain(spans(), span()), job_.threads, write);
    }

    const Job& job_;
    const char* x_;
    const char* second_;
    const char* third_;
    char* y_;
    RowInput<T> x_input_;
    RowInput<T> second_input_;
    RowOutput<T> output_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
