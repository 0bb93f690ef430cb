// registers: gradients of short rows, as many rows at once as a vector has lanes (short_rows.h).
#pragma once

#include "access.h"
#include "gradient_ops.h"
#include "row_batches.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Of one row: its first element in every array.
struct GradientRow {
    const char* x;
    const char* second;
    const char* third;
    char* y;
};

template <class T, class RowOp>
class GradientShortRows : RowBatches<T> {
    using Batches = RowBatches<T>;
    using C = Compute<T>;
    using V = Vec<C>;
    using Batches::n_, Batches::last_, Batches::nontemporal_;
    static constexpr int W = kLanes<C>;

   public:
    explicit GradientShortRows(const Job& job) : Batches(job, job.length), job_(job) {
        even_ = job.outer.count == 1;
        if (!even_) return;
        x_step_ = job.outer[0].x_stride * size_of(job.in);
        second_step_ = job.outer[0].z_stride * size_of(job.second);
        third_step_ = job.outer[0].w_stride * size_of(job.third);
        y_step_ = job.outer[0].y_stride * size_of(job.out);
    }

    // row_at(r) is where row r lies.
    template <class RowAt>
    void run(std::int64_t begin, std::int64_t end, RowAt&& row_at) const {
        if constexpr (kHeld && !kRoundsOnce) {
            return any_walked_rows(begin, end, row_at);
        } else if constexpr (kHeld) {
            if (kSumsAhead && n_ >= kLeastWalked && !nontemporal_) return walked_rows<false>(begin, end, row_at);
            if (last_ == 0) {
                if (n_ == W) return held_rows<1, false>(begin, end, row_at);
                if (n_ == 2 * W) return held_rows<2, false>(begin, end, row_at);
                // Under a mask, a whole last vector would be the only load of its lines, and the processor does not
                // look ahead behind those: from memory rows of 48 float32 took 1.9 to 2.2 times as long by one thread.
                if (n_ == 3 * W) return held_rows<3, false>(begin, end, row_at);
                if (n_ == 4 * W) return held_rows<4, false>(begin, end, row_at);
                if (n_ == 8 * W && kVectorBytes == 64) return held_rows<8, false>(begin, end, row_at);
            }
            return any_held_rows<1>(begin, end, row_at);
        }
        batches(begin, end, row_at);
    }

   private:
    static constexpr bool kHeld = RowOp::kSums && sizeof(C) == 4;
    // Whether a row is summed before the one before is written, so that the chain from its lanes to its constants is
    // not waited for. Measured on a Zen 3 (AVX2), by one thread and by two, times over those of one row after the
    // other: softmax's of 48 bfloat16 0.71 and 0.79, of 64 0.86 and 0.86, of 256 0.95, float16 0.80 and 0.83;
    // log_softmax's of 48 float32 0.96 and 0.86, of 64 0.80 and 0.81, of 256 0.93. But softmax's of 64 to 256 float32,
    // which has little to do but to read, 1.0 to 1.24, and log_softmax's of bfloat16 1.0 to 1.04.
    // By AVX-512 (Zen 4): softmax's of 144 to 512 bfloat16 0.80 to 0.90 and 0.87 to 1.09, float16 0.77 to 1.06;
    // log_softmax's of float32 0.95 to 1.07, and past the cache up to 1.5.
    static constexpr bool kSumsAhead =
        RowOp::kOfProducts ? kVectorBytes >= 32 && sizeof(T) == 2 : kVectorBytes == 32 && sizeof(T) == 4;
    // Rows that stay in the cache and are as long are summed ahead, and not held, if they are at all. On a Zen 3, by
    // one thread and by two, softmax's of 32 bfloat16 take 0.76 and 0.96 of the time so, but past the cache 0.93 and
    // 1.1, and of 24 there 1.3, of 32 float16 1.3. On a Zen 4, by one thread, of 64 bfloat16 0.89, of 72 to 128 0.90 to
    // 0.72, float16 1.0 to 0.82, but past the cache 1.1 to 1.9; of 33 and 40, of three vectors, 0.97 and 1.01.
    static constexpr int kLeastWalked = 4 * W + (std::is_same_v<T, bfloat16> ? 0 : 1);
    // Where rows that are no cache lines are put side by side on their way past the cache, and where longer ones go
    // there. log_softmax's gradients, which compute more, are not always faster for it. Measured on a Zen 5 from
    // memory, times of these over those of stores in the cache, by one thread and by two. AVX-512: rows of 33 to 120
    // float32 0.76 to 0.97 and 0.66 to 0.85, of 17 1.16 and 0.91; of 144 to 512 float32 0.76 to 0.93 and 0.81 to 0.97;
    // bfloat16 side by side 1.0, longer ones 1.06 to 1.27, but by two threads 0.79 to 0.89. AVX2: side by side 0.94 to
    // 1.6 and 0.74 to 1.3; of 144 to 512 float32 0.8 to 1.17 and 0.76 to 1.02, bfloat16 1.0.
    static constexpr bool kJoins = RowOp::kOfProducts || (sizeof(T) == 4 && kVectorBytes == 64);
    static constexpr bool kWalksPastCache = RowOp::kOfProducts || sizeof(T) == 4;

    // A row of kVectors vectors, both arrays in half of the registers: read once, written at once, put(i, results) or
    // put(i, results, those of the next) being called for what is at element i. On a Zen 4 softmax's take half of the
    // time of batches where they come from a cache, three quarters from memory. kMasked: the last vector need not be
    // full.
    template <int kVectors, bool kMasked, class Put>
    ONEPASS_INLINE void held_row(const GradientRow& row, int last, Put&& put) const {
        constexpr int kSums = kSumsAhead && kVectors >= 4 ? 2 : 1;  // as sum_of_row, where that may be it
        V x[kVectors], d[kVectors], sum[2] = {C(0), C(0)};
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) {
            x[i] = kMasked && i == kVectors - 1 ? load_n(elements(row.x) + i * W, last, C(0))
                                                : load(elements(row.x) + i * W);
            d[i] = kMasked && i == kVectors - 1 ? load_n(elements(row.second) + i * W, last, C(0))
                                                : load(elements(row.second) + i * W);
            V& part = sum[i % kSums];
            part = RowOp::kOfProducts ? fma(d[i], x[i], part) : part + d[i];
        }
        C k[RowOp::kConstants];
        RowOp::set(k, 1, reduce_sum(kSums == 1 ? sum[0] : sum[0] + sum[1]));
        const auto op = all_lanes<RowOp>(k);
        constexpr int kFull = kVectors - kMasked, kPairs = kFull - kFull % 2;
#pragma GCC unroll 4
        for (int i = 0; i < kPairs; i += 2) put(i * W, op(x[i], d[i]), op(x[i + 1], d[i + 1]));
#pragma GCC unroll 2
        for (int i = kPairs; i < kVectors; ++i) put(i * W, op(x[i], d[i]));
    }

    template <int kVectors, bool kMasked, class RowAt>
    ONEPASS_APART void held_rows(std::int64_t begin, std::int64_t end, RowAt&& row_at) const {
        GradientRow row = row_at(begin);
        const bool past_cache = Batches::lines_at(row.y);
        const int last = last_ == 0 ? W : last_;
        for (std::int64_t r = begin; r < end; ++r) {
            T* y = reinterpret_cast<T*>(row.y);
            held_row<kVectors, kMasked>(row, last, [&](int i, V dx, auto... next) ONEPASS_INLINE_BODY {
                if constexpr (sizeof...(next) > 0) {
                    store_two(y + i, dx, next..., past_cache);
                } else if (kMasked && i == (kVectors - 1) * W && !past_cache) {
                    store_n(y + i, dx, last);
                } else {
                    store(y + i, dx, past_cache);
                }
            });
            if (r + 1 < end) row = after(row, r, row_at);
        }
    }

    // Rows that are no cache lines, past the cache: put side by side first, as in batches.
    template <int kVectors, class RowAt>
    ONEPASS_APART void joined_rows(std::int64_t begin, std::int64_t end, RowAt&& row_at) const {
        // Of 16 bits, which are converted on the way, when a batch is complete: 0.9 of the time (Zen 5, rows of 33).
        constexpr bool kBeside = kVectorBytes == 64 && sizeof(T) == 4;
        alignas(kCacheLine) C all[(W * kVectors + 1) * W];
        const int last = last_ == 0 ? W : last_;
        Carry carry;
        GradientRow row = row_at(begin);
        for (std::int64_t first = begin; first < end; first += W) {
            const int count = static_cast<int>(end - first < W ? end - first : W);
            SideBySideWriter<T, kBeside> writer(reinterpret_cast<T*>(row.y), all, count, n_, carry);
            for (int r = 0; r < count; ++r) {
                C* const to = all + r * n_;
                held_row<kVectors, true>(
                    row, last, [&](int i, auto... dx) ONEPASS_INLINE_BODY { ((store(to + i, dx), i += W), ...); });
                writer.done(r);
                if (first + r + 1 < end) row = after(row, first + r, row_at);
            }
            writer.finish();
        }
        carry.flush();
    }

    // The row after row r. Where all are as far apart it need not be asked for, which takes as long as a vector.
    template <class RowAt>
    ONEPASS_INLINE GradientRow after(const GradientRow& row, std::int64_t r, RowAt&& row_at) const {
        if (!even_) return row_at(r + 1);
        return {row.x + x_step_, row.second + second_step_, row.third ? row.third + third_step_ : nullptr,
                row.y + y_step_};
    }

    // Rows of so many vectors or more, held if that leaves registers for what is computed.
    template <int kVectors, class RowAt>
    void any_held_rows(std::int64_t begin, std::int64_t end, RowAt&& row_at) const {
        if (n_ <= kVectors * W) {
            if constexpr (kJoins) {
                const bool joined = nontemporal_ && Batches::adjacent_ && last_ > 0;
                if (joined) return joined_rows<kVectors>(begin, end, row_at);
            }
            return held_rows<kVectors, true>(begin, end, row_at);
        }
        if constexpr (kVectors < (kVectorBytes == 64 ? 8 : 4)) {
            any_held_rows<kVectors + 1>(begin, end, row_at);
        } else {
            any_walked_rows(begin, end, row_at);
        }
    }

    // Longer ones: summed, then read again while they are in the first cache.
    template <class RowAt>
    void any_walked_rows(std::int64_t begin, std::int64_t end, RowAt&& row_at) const {
        const bool past_cache = kWalksPastCache || (kVectorBytes == 64 && job_.threads > 1);
        if (nontemporal_ && past_cache) return walked_rows<true>(begin, end, row_at);
        walked_rows<false>(begin, end, row_at);
    }
    template <bool kPastCache, class RowAt>
    ONEPASS_APART void walked_rows(std::int64_t begin, std::int64_t end, RowAt&& row_at) const {
        using Results = std::conditional_t<kPastCache && kFetchesLate, Fetching, GradientOf<T, RowOp>>;
        const auto sum_of = [this](const GradientRow& row) ONEPASS_INLINE_BODY {
            return kRoundsOnce ? sum_of_row<kPastCache>(row) : wide_sum_of_row<kPastCache>(row);
        };
        GradientRow row = row_at(begin);
        double sum = sum_of(row);
        Carry carry;
        for (std::int64_t r = begin; r < end; ++r) {
            C k[RowOp::kConstants];
            RowOp::set(k, 1, sum);
            const Results value{elements(row.x), elements(row.second), all_lanes<RowOp>(k)};
            T* y = reinterpret_cast<T*>(row.y);
            const auto go_on = [&] {
                if (r + 1 == end) return;
                row = after(row, r, row_at);
                sum = sum_of(row);
            };
            if (kSumsAhead) go_on();
            if constexpr (kPastCache) {
                emit(y, n_, true, value, &carry);
            } else {
                write_in_cache(y, n_, value);
            }
            if (!kSumsAhead) go_on();
        }
        carry.flush();
    }

    // What vectors of both inputs that come from memory will be followed by is fetched beside the sum, unless results
    // take longer than that: asked for in one burst, lines wait for each other, and then memory has nothing to do
    // beside the exponentials. Measured on a Zen 4, log_softmax's gradient of 20 million float32, times over those of
    // fetching beside the sum, by one thread and by two: rows of 321 0.72 and 1.0, of 400 0.66 and 0.82, of 512 0.76
    // and 0.73, of bfloat16 1.0 to 1.03. Each input beside its own pass, or 4 KiB ahead: worse than both, 2 KiB ahead.
    static constexpr bool kFetchesLate = !RowOp::kOfProducts && kRoundsOnce && sizeof(T) == 4;
    ONEPASS_INLINE static void ahead(const T* x, const T* second) {
        constexpr std::int64_t kAhead = 2048;
        fetch_ahead<kAhead>(x, W);
        fetch_ahead<kAhead>(second, W);
    }

    // Results, and beside them what follows.
    struct Fetching : GradientOf<T, RowOp> {
        using Results = GradientOf<T, RowOp>;
        ONEPASS_INLINE auto operator()(std::int64_t i) const {
            ahead(this->y + i, this->dy + i);
            return Results::operator()(i);
        }
        auto operator()(std::int64_t i, int n) const { return Results::operator()(i, n); }
        template <int kCount>
        ONEPASS_INLINE bool vectors(std::int64_t i, Vec<C> (&results)[kCount]) const
            requires requires { this->op.is_usual(results[0]); }
        {
            for (int k = 0; k < kCount; ++k) ahead(this->y + i + k * W, this->dy + i + k * W);
            return Results::vectors(i, results);
        }
    };

    // In the order of held_row: which of both took a row is not to be seen.
    template <bool kFromMemory>
    ONEPASS_INLINE double sum_of_row(const GradientRow& row) const {
        V sum[2] = {C(0), C(0)};
        const auto add = [&](int k, int i, int lanes) ONEPASS_INLINE_BODY {
            if constexpr (kFromMemory && !kFetchesLate) ahead(elements(row.x) + i, elements(row.second) + i);
            const V d = vector(row.second, i, lanes);
            sum[k] = RowOp::kOfProducts ? fma(d, vector(row.x, i, lanes), sum[k]) : sum[k] + d;
        };
        int i = 0;
        for (; i + 2 * W <= n_; i += 2 * W) {
            add(0, i, W);
            add(1, i + W, W);
        }
        const int left = n_ - i;
        if (left > 0) add(0, i, left < W ? left : W);
        if (left > W) add(1, i + W, left - W);
        return reduce_sum(sum[0] + sum[1]);
    }
    // Where a lane adds up a quarter of a row and products are rounded, too.
    template <bool kFromMemory>
    ONEPASS_INLINE double wide_sum_of_row(const GradientRow& row) const {
        WideSum<C> sum;
        for (int i = 0; i < n_; i += W) {
            if constexpr (kFromMemory) ahead(elements(row.x) + i, elements(row.second) + i);
            const int lanes = n_ - i < W ? n_ - i : W;
            const V d = vector(row.second, i, lanes);
            RowOp::kOfProducts ? sum.add_product(d, vector(row.x, i, lanes)) : sum.add(d);
        }
        return sum.value();
    }

    // The rows of a batch are written while those of the next are summed, one by one: loads and stores side by side,
    // and no batch is read in a burst.
    template <class RowAt>
    ONEPASS_APART void batches(std::int64_t begin, std::int64_t end, RowAt&& row_at) const {
        Batch two[2];
        Carry carry;
        alignas(kCacheLine) C k[RowOp::kConstants][W];
        take(two[0], begin, end, row_at);
        for (int r = 0; r < two[0].count; ++r) look(two[0], r);
        for (std::int64_t first = begin, i = 0; first < end; first += W, ++i) {
            Batch& now = two[i & 1];
            Batch& next = two[(i + 1) & 1];
            take(next, first + W, end, row_at);
            set_constants(now, k);
            char* to[W];
            for (int r = 0; r < now.count; ++r) to[r] = now.rows[r].y;
            const auto value = [&](int r, int i, int lanes) ONEPASS_INLINE_BODY {
                const auto op = all_lanes<RowOp>(k[0] + r, W);
                const V x = vector(now.rows[r].x, i, lanes);
                if constexpr (RowOp::kSums) {
                    return op(x, vector(now.rows[r].second, i, lanes));
                } else {
                    return op(x);
                }
            };
            Batches::template store_rows<false>(to, now.count, carry, value, [&](int r) ONEPASS_INLINE_BODY {
                if (r < next.count) look(next, r);
            });
        }
        carry.flush();
    }

    struct Batch {
        int count;
        GradientRow rows[W];
        V part[W];      // of each row: its sum, lane by lane,
        double sum[W];  // or, of float64, altogether
    };

    template <class RowAt>
    void take(Batch& batch, std::int64_t first, std::int64_t end, RowAt&& row_at) const {
        const std::int64_t left = end - first;
        batch.count = static_cast<int>(left <= 0 ? 0 : left < W ? left : W);
        if (batch.count > 0) batch.rows[0] = row_at(first);
        for (int r = 1; r < batch.count; ++r) batch.rows[r] = after(batch.rows[r - 1], first + r - 1, row_at);
    }

    ONEPASS_INLINE static const T* elements(const char* p) { return reinterpret_cast<const T*>(p); }

    // Vector i of the row a batch later: the processor sees rows this short begin and end too often to look far ahead
    // itself. Into L2: with what is at work on now it is more than L1.
    ONEPASS_INLINE void fetch(const char* p, int i) const {
        __builtin_prefetch(p + i * static_cast<int>(sizeof(T)), 0, 2);
    }

    ONEPASS_INLINE static V vector(const char* row, int i, int lanes) {
        return lanes == W ? load(elements(row) + i) : load_n(elements(row) + i, lanes, C(0));
    }

    // Row r for the first time: its sum.
    ONEPASS_INLINE void look(Batch& batch, int r) const {
        const GradientRow& row = batch.rows[r];
        if constexpr (!RowOp::kSums) {
            for (int i = 0; i < n_; i += W) fetch(row.x, i);
        } else if constexpr (sizeof(C) == 8) {
            batch.sum[r] = gradient_sum<RowOp::kOfProducts>(elements(row.x), elements(row.second), n_, Nothing{});
        } else {
            V all = C(0);
            const auto add = [&](int i, int lanes) ONEPASS_INLINE_BODY {
                fetch(row.x + W * x_step_, i);
                fetch(row.second + W * second_step_, i);
                const V d = vector(row.second, i, lanes);
                all = RowOp::kOfProducts ? fma(d, vector(row.x, i, lanes), all) : all + d;
            };
            int i = 0;
            for (; i + W <= n_; i += W) add(i, W);
            if (last_ > 0) add(i, last_);
            batch.part[r] = all;
        }
    }

    ONEPASS_INLINE void set_constants(Batch& batch, C (&k)[RowOp::kConstants][W]) const {
        if constexpr (RowOp::kSums) {
            if constexpr (sizeof(C) == 4) {
                for (int r = batch.count; r < W; ++r) batch.part[r] = batch.part[0];
                Batches::wide_sums(batch.part, batch.sum);
            } else {
                for (int r = batch.count; r < W; ++r) batch.sum[r] = batch.sum[0];
            }
            for (int r = 0; r < W; ++r) RowOp::set(k[0] + r, W, batch.sum[r]);
        } else {
            for (int r = 0; r < batch.count; ++r) {
                RowOp::set(k[0] + r, W, read_scalar(batch.rows[r].second, job_.second),
                           read_scalar(batch.rows[r].third, job_.third));
            }
        }
    }

    const Job& job_;
    bool even_;  // rows are as far apart, by so many bytes
    std::int64_t x_step_ = 0;
    std::int64_t second_step_ = 0;
    std::int64_t third_step_ = 0;
    std::int64_t y_step_ = 0;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
