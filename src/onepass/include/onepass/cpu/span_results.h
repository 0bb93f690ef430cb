// The results of a contiguous span of one row: what a row's state makes of its elements, and how they are written.
#pragma once

#include "span.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// What the sum of a row's state is relative to.
template <class C>
inline Anchor<Vec<C>, true> anchor_of(double m) {
    double octave;
    const auto max = static_cast<C>(m);
    return anchor_above<C>(Vec<C>(max), Vec<C>(is_octave(m, octave) ? C(0) : max));
}

// The epilogue of a whole row from its state. A row with +inf, or of nothing but -inf, is NaN throughout, as in torch.
template <class C>
inline SoftmaxOp<Vec<C>, true> softmax_op(Partial total) {
    const bool defined = !is_infinite(total.m);
    const auto anchor = anchor_of<C>(defined ? total.m : 0);
    // NaN with the sign that the exponentials of such a row have where it waits: as many threads as one.
    const double scale = defined ? kUnbias<C> / total.d : total.m - total.m;
    const C high = static_cast<C>(scale);
    const C low = sizeof(C) == 4 ? static_cast<C>(scale - high)
                                 : static_cast<C>(::fma(-scale, total.d / kUnbias<C>, 1.0) * scale);
    return {anchor, Vec<C>(high), Vec<C>(low)};
}

// m + log(d / 2^kBias), lane by lane, in two parts. NaN in the second of an infinite m, as log_softmax wants it.
template <int kBias>
ONEPASS_INLINE void lse_of(VecF m, const VecD (&d)[2], VecF& high, VecF& low) {
    VecD of_m[2], log[2], sum[2], lacking[2];
    widen(m, of_m);
    for (int k = 0; k < 2; ++k) {
        log[k] = LogOfSum<float, kBias>(d[k]).value();
        sum[k] = of_m[k] + log[k];
    }
    high = rounded(sum);
    VecD of_high[2];
    widen(high, of_high);
    // Between two float32 so near each other, or the smaller of which does not count, nothing is lost in float64.
    for (int k = 0; k < 2; ++k) lacking[k] = (of_m[k] - of_high[k]) + log[k];
    low = rounded(lacking);
}
template <int kBias>
ONEPASS_INLINE void lse_of(VecD m, const VecD (&d)[1], VecD& high, VecD& low) {
    VecD log, log_low;  // a float64 result shows the rounding of a float64 logarithm
    LogOfSum<double, kBias>(d[0]).split(log, log_low);
    two_sum(m, log, high, low);
    low = low + log_low;
}

template <class C>
inline void split_lse(double m, double d, C& high, C& low) {
    VecD sums[kHalves<C>];
    for (VecD& each : sums) each = d;
    Vec<C> of_high, of_low;
    lse_of<0>(Vec<C>(static_cast<C>(m)), sums, of_high, of_low);
    high = of_high.v[0];
    low = of_low.v[0];
}

template <class C>
inline LogSoftmaxOp<Vec<C>> log_softmax_op(Partial total) {
    C high, low;
    split_lse(total.m, total.d, high, low);
    return {Vec<C>(high), Vec<C>(low)};
}

// The reciprocal of a sum over exponentials, in two parts. A row of -inf, or with +inf, has made it NaN.
template <class T>
struct Scale {
    using C = Compute<T>;
    using P = Precision<T>;
    Vec<C> high;
    Vec<C> low;
    typename Vec<C>::Bits limit;  // beside high
    Scale() = default;
    explicit Scale(double sum) {
        const double scale = 1.0 / sum;
        high = Vec<C>(static_cast<C>(scale));
        low = Vec<C>(sizeof(C) == 4 ? static_cast<C>(scale - static_cast<C>(scale))
                                    : static_cast<C>(::fma(-scale, sum, 1.0) * scale));
        limit = limit_beside(high);
    }
    ONEPASS_INLINE Vec<C> operator()(Vec<C> e) const { return scaled(P(e), P(high), P(low)); }
};

// e * (high + low), as precise as T shows, where the product is known not to be small.
template <class T, class C>
ONEPASS_INLINE Vec<C> times(Vec<C> e, Vec<C> high, Vec<C> low) {
    return kCoarse<T> ? e * high : times_parts(e, high, low);
}

// The same of several vectors, if none of the products is small; false if one may be.
template <class T, int kCount, class C>
ONEPASS_INLINE bool times_all(Vec<C> (&e)[kCount], Vec<C> high, Vec<C> low, typename Vec<C>::Bits limit) {
    if (!none_small(e, limit)) return false;
    for (Vec<C>& v : e) v = times<T>(v, high, low);
    return true;
}

// Where the values of a result come from: an operation on the input, or exponentials kept from the pass before.
// vectors(i, results) gives several at once; false: they have to be looked at one by one. kNormal: of several at once
// none is subnormal.
template <class T, class RowOp>
struct Applied {
    const T* x = nullptr;
    RowOp op;
    const T* next = nullptr;               // what will be read after this: fetched meanwhile
    static constexpr bool kNormal = true;  // x - logsumexp is 0 or at least 2^-53: a logarithm of 1 + 2^-52
    ONEPASS_INLINE auto operator()(std::int64_t i) const {
        if (next) fetch_soon(next + i, 1);
        return op(load(x + i));
    }
    auto operator()(std::int64_t i, int n) const { return op(load_n(x + i, n, Compute<T>(0))); }
    template <int kCount, class C>
    ONEPASS_INLINE bool vectors(std::int64_t i, Vec<C> (&results)[kCount]) const {
        if (next) fetch_soon(next + i, kCount * kLanes<C>);
        for (int k = 0; k < kCount; ++k) results[k] = load(x + i + k * kLanes<C>);
        if constexpr (requires { op.scale; }) {
            exp_all_of<T>(results, op.anchor);
            const Vec<C> high = op.scale;
            return times_all<T>(results, high, Vec<C>(op.scale_low), limit_beside(high));
        } else {
            for (Vec<C>& v : results) v = op(v);
            return true;
        }
    }
};

template <class T>
struct Normalized {
    using C = Compute<T>;
    const C* e;
    Scale<T> scale;
    static constexpr bool kNormal = true;
    ONEPASS_INLINE auto operator()(std::int64_t i) const { return scale(load(e + i)); }
    auto operator()(std::int64_t i, int n) const { return scale(load_n(e + i, n, C(0))); }
    template <int kCount>
    ONEPASS_INLINE bool vectors(std::int64_t i, Vec<C> (&results)[kCount]) const {
        for (int k = 0; k < kCount; ++k) results[k] = loaded_once(e + i + k * kLanes<C>);
        return times_all<T>(results, scale.high, scale.low, scale.limit);
    }
};

// Results of rows that lie next to each other, but are no whole cache lines by themselves: put side by side first, and
// written past the cache from there, as lines.
template <class T>
struct SideBySide {
    const Compute<T>* all;
    ONEPASS_INLINE Vec<Compute<T>> operator()(std::int64_t i) const { return load(all + i); }
    Vec<Compute<T>> operator()(std::int64_t i, int n) const { return load_n(all + i, n, Compute<T>(0)); }
};

// The line of results that a row shares with the next one. Half a line stored past the cache costs as much as several
// whole ones, so it is kept until the next row fills it up.
class Carry {
   public:
    // A copy of the line, and where in memory what is in it so far ends.
    void* line() { return line_; }
    void keep(void* end) { end_ = static_cast<char*>(end); }
    bool ends_at(const void* p) const { return end_ == p; }

    // Writes the line, now filled up.
    void release() {
        float* to = reinterpret_cast<float*>(end_ - reinterpret_cast<std::uintptr_t>(end_) % kCacheLine);
        const float* from = reinterpret_cast<const float*>(line_);
        for (int i = 0; i < kCacheLine / 4; i += kLanes<float>) stream(to + i, load(from + i));
        end_ = nullptr;
    }
    // Writes what is there.
    void flush() {
        const auto filled = reinterpret_cast<std::uintptr_t>(end_) % kCacheLine;
        if (end_) __builtin_memcpy(end_ - filled, line_, filled);
        end_ = nullptr;
    }

   private:
    alignas(kCacheLine) unsigned char line_[kCacheLine];
    char* end_ = nullptr;  // of what it holds; null: nothing
};

// Writes n results. Stores past the cache must be aligned, and others are faster if they are: the head up to a cache
// line and the tail go apart. steps() writes four vectors at a time, so that another pass can take the writing along.
template <class T, class Source>
class Emitter {
    static constexpr int W = kLanes<Compute<T>>;
    static constexpr std::int64_t kLine = kCacheLine / static_cast<std::int64_t>(sizeof(T));
    // Only then does what Steps leave begin with a line. Where it does not, nothing is stored past the cache anyway.
    static constexpr bool kStepsAreLines = 4 * W % kLine == 0;

   public:
    Emitter() = default;  // of nothing
    Emitter(T* y, std::int64_t n, bool past_cache, const Source& value, Carry* carry = nullptr)
        : y_(y), n_(n), value_(value) {
        const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y) % kCacheLine);
        const bool aligned = misaligned % static_cast<std::int64_t>(sizeof(T)) == 0;
        if (kStepsAreLines && past_cache && n >= 2 * kLine && aligned) carry_ = carry;
        const bool continues = carry_ && misaligned != 0 && carry_->ends_at(y);
        if (carry_ && !continues) carry_->flush();
        if (misaligned != 0 && n >= 2 * kLine) {
            const std::int64_t head = (kCacheLine - misaligned) / static_cast<std::int64_t>(sizeof(T));
            write(continues ? static_cast<T*>(carry_->line()) + kLine - head : y, head);
            if (continues) carry_->release();
        }
        past_cache_ = past_cache && reinterpret_cast<std::uintptr_t>(y + i_) % kCacheLine == 0;
    }

    // What a loop has of it, four vectors at a time. By value, so that it is in registers: an Emitter is in memory for
    // those of its functions that are called, where any store of a result might change it.
    class Steps {
       public:
        explicit Steps(const Emitter& all)
            : y_(all.y_), n_(all.n_), value_(all.value_), past_cache_(all.past_cache_), i_(all.i_) {}

        std::int64_t done() const { return i_; }
        ONEPASS_INLINE void operator()() {
            if (i_ + 4 * W > n_) return;
            Vec<Compute<T>> results[4];
            bool usual = true;
            if constexpr (requires { value_.vectors(i_, results); }) {
                usual = value_.vectors(i_, results);
            } else {
                for (int k = 0; k < 4; ++k) results[k] = value_(i_ + k * W);
            }
            if (__builtin_expect(!usual, 0)) {
                put_any(y_, i_, past_cache_, value_);
            } else if constexpr (requires { Source::kNormal; }) {
                for (int k = 0; k < 4; k += 2) {
                    T* const y = y_ + i_ + k * W;
                    past_cache_ ? stream_normal(y, results[k], results[k + 1])
                                : store_normal(y, results[k], results[k + 1]);
                }
            } else {
                for (int k = 0; k < 4; k += 2) store_two(y_ + i_ + k * W, results[k], results[k + 1], past_cache_);
            }
            i_ += 4 * W;
        }

       private:
        T* const y_;
        const std::int64_t n_;
        const Source value_;
        const bool past_cache_;
        std::int64_t i_;
    };
    Steps steps() const { return Steps(*this); }
    void resume(const Steps& steps) { i_ = steps.done(); }

    // Writes what comes before `end`, but for less than four vectors.
    ONEPASS_INLINE void step_to(std::int64_t end) {
        Steps write = steps();
        while (write.done() + 4 * W <= end) write();
        resume(write);
    }

    void finish() {
        step_to(n_);
        if (past_cache_) {
            const std::int64_t lines = i_ + (n_ - i_) / kLine * kLine;
            for (; i_ < lines; i_ += W) stream(y_ + i_, value_(i_));
        }
        if (i_ == n_) return;
        if (past_cache_ && carry_) {
            write(static_cast<T*>(carry_->line()), n_ - i_);
            carry_->keep(y_ + n_);
        } else {
            write(y_ + i_, n_ - i_);
        }
    }

   private:
    // Four vectors that have to be looked at one by one. Not a member: for the sake of a call with `this` all of it
    // would be in memory.
    ONEPASS_APART static void put_any(T* y, std::int64_t i, bool past_cache, Source value) {
#pragma GCC unroll 1
        for (int k = 0; k < 4; ++k) store(y + i + k * W, value(i + k * W), past_cache);
    }
    // The next `count` results: a head or a tail.
    ONEPASS_APART void write(T* to, std::int64_t count) {
        const std::int64_t end = i_ + count;
        for (; i_ + W <= end; i_ += W, to += W) store(to, value_(i_));
        const int rest = static_cast<int>(end - i_);
        if (rest > 0) store_n(to, value_(i_, rest), rest);
        i_ = end;
    }

    T* y_ = nullptr;
    std::int64_t n_ = 0;
    Source value_{};
    std::int64_t i_ = 0;
    bool past_cache_ = false;
    Carry* carry_ = nullptr;
};

template <class T, class Source>
inline void emit(T* y, std::int64_t n, bool past_cache, const Source& value, Carry* carry = nullptr) {
    Emitter<T, Source>(y, n, past_cache, value, carry).finish();
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
