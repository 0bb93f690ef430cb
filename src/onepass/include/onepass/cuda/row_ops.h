// What a kernel does with a row, once it knows how the row is read: the operations of the softmax family and the plain
// reductions, each a type that kernels take as a template argument.
#pragma once

#include "exp.h"
#include "reduce.h"
#include "sum.h"

namespace onepass::cuda {

// Exponentials relative to an anchor, in the precision that the result needs.
template <class V, bool kShifted = true>
struct Exponential {
    using C = typename ExpTable<V>::Compute;
    Anchor<V, kShifted> anchor;

    __device__ __forceinline__ C operator()(C x) const { return static_cast<C>(exp_anchored(V(x), anchor)); }
};

// The sum of f of every element of a pack.
template <int N, class C, class F>
__device__ __forceinline__ C sum_of_each(C (&x)[N], const F& f) {
    C terms[N];
#pragma unroll
    for (int i = 0; i < N; ++i) terms[i] = f(x[i]);
    return sum_of(terms);
}

// Exponentials relative to the maximum itself, whose own is exactly 1, which are added up and no more.
template <class V>
struct ExponentialBelow {
    using C = typename ExpTable<V>::Compute;
    C max;

    __device__ __forceinline__ C operator()(C x) const { return static_cast<C>(exp_below(V(x - max))); }
};

// Which of them `Op` wants.
template <class Op, class V, bool kShifted = true>
using ExponentialOf = choose<Op::kElementwise, Exponential<V, kShifted || Op::kExact>, ExponentialBelow<V>>;

// One of ops.h's operations, from what is computed in to the same.
template <class V, class Op>
struct Applied {
    using C = typename ExpTable<V>::Compute;
    Op op;

    __device__ __forceinline__ C operator()(C x) const { return static_cast<C>(op(V(x))); }
    __device__ __forceinline__ C normalize(C e) const { return static_cast<C>(op.normalize(V(e))); }
};

// ---- the softmax family ----
//
// kElementwise: the result is as long as the row. kKeepsExponentials: a row that waits on the chip waits as
// exponentials. kExact: they are relative to the maximum itself. finish: from a row's maximum and its sum of
// exponentials to the function that computes a result (elementwise), or to the result. kMasked: elements were masked
// out, and a row of nothing else has no probabilities, rather than NaN.

struct Softmax {
    static constexpr bool kElementwise = true;
    static constexpr bool kKeepsExponentials = true;
    static constexpr bool kExact = false;

    template <class V, bool kMasked, bool kShifted, class C>
    static __device__ __forceinline__ auto finish(C max, const Exponential<V, kShifted>& exponential, Sum<C> sum) {
        // The reciprocal in two parts: high, and what is missing.
        C high = reciprocal(sum.high);
        C low = (fma(-high, sum.high, C(1)) - high * sum.low) * high;
        if (kMasked && max == -kInfinity<C>) high = low = C(0);
        return Applied<V, SoftmaxOp<V, kShifted>>{{exponential.anchor, V(high), V(low)}};
    }
};

// log(sum of exp(x - max)): the sum is at least 1, and what it lost counts where the rest of a row is small beside the
// maximum.
template <class V, class C>
__device__ __forceinline__ C log_of_sum(Sum<C> sum) {
    sum.scale(ExpTable<V>::kUnbias);
    return log(sum.high) + sum.low / sum.high;
}

struct LogSoftmax {
    static constexpr bool kElementwise = true;
    static constexpr bool kKeepsExponentials = false;
    static constexpr bool kExact = true;

    // (x - max) - log(sum): exact where x is near the maximum. A row with +inf, or of -inf, is NaN throughout.
    template <class V, bool kMasked, class C>
    static __device__ __forceinline__ auto finish(C max, const Exponential<V>&, Sum<C> sum) {
        C high = fabs(max) == kInfinity<C> ? kNaN<C> : max;
        C low = log_of_sum<V>(sum);
        if (kMasked && max == -kInfinity<C>) high = low = C(0);
        return Applied<V, LogSoftmaxOp<V>>{{V(high), V(low)}};
    }
};

struct LogSumExp {
    static constexpr bool kElementwise = false;
    static constexpr bool kKeepsExponentials = false;
    static constexpr bool kExact = true;

    template <class V, bool kMasked, class C>
    static __device__ __forceinline__ C finish(C max, const ExponentialBelow<V>&, Sum<C> sum) {
        return fabs(max) == kInfinity<C> ? max : max + log_of_sum<V>(sum);
    }
};

// The exponential of a row with this maximum. Of a row masked out altogether: relative to 0, whatever it is worth.
template <class Op, class V, bool kMasked, class C>
__device__ __forceinline__ ExponentialOf<Op, V> exponential_of(C max) {
    if (kMasked && max == -kInfinity<C>) max = C(0);
    if constexpr (Op::kElementwise) {
        return {anchor_at<V, Op::kExact>(max)};
    } else {
        return {max};
    }
}

// The same of a row that waits where it can be changed: what is to be subtracted from huge numbers is, once, by
// transform(f), and no exponential has to do it. Exponentials relative to the maximum itself do it each.
template <class Op, class V, bool kMasked, class C, class Transform>
__device__ __forceinline__ ExponentialOf<Op, V, false> exponential_of(C max, Transform&& transform) {
    if constexpr (Op::kExact) {
        return exponential_of<Op, V, kMasked>(max);
    } else {
        if (kMasked && max == -kInfinity<C>) max = C(0);
        const C shift = shift_of<V>(max);
        if (shift != C(0)) transform([=](C x) { return x - shift; });
        return {anchor_at<V, false, false>(max - shift)};
    }
}

// Adds to what a thread has of a row that waits on the chip. A 16-bit quotient does not show what its additions lose:
// each is of a pack, and there are a hundred of them at most. Nor does any quotient, of a few packs (kFew).
template <class Op, class V, bool kFew = false, class C>
__device__ __forceinline__ void add_to(Sum<C>& sum, C x) {
    if constexpr ((kFew || kSame<V, Coarse>) && !Op::kExact) {
        sum.high += x;
    } else {
        sum.add(x);
    }
}

// The sum over all threads; `reduce` takes a thread's value and a combination. What the additions between threads lose
// is a bit of a quotient, but may be all that a logarithm next to 1 shows.
template <class Op, class C, class Reduce>
__device__ __forceinline__ Sum<C> total_of(Sum<C> mine, Reduce&& reduce) {
    if constexpr (Op::kExact) {
        return reduce(mine, Merge());
    } else {
        return {reduce(mine.value(), Add()), C(0)};
    }
}

// ---- plain reductions ----
//
// State: what a thread accumulates; `fill` is an element that changes none. push takes a pack of elements that have
// been In, finish makes the result of a row of `length` elements.

struct RowSum {
    template <class C>
    using State = Sum<C>;
    using Combine = Merge;

    template <class C>
    static __device__ __forceinline__ Sum<C> identity() {
        return Sum<C>::identity();
    }
    template <class C>
    static __device__ __forceinline__ C fill() {
        return C(0);
    }
    // One by one: terms of both signs may cancel, and leave what adding up a pack has lost. Of 16-bit elements a pack's
    // sum loses nothing in float32 unless they are a thousand times apart.
    template <class In, int N, class C>
    static __device__ __forceinline__ void push(Sum<C>& state, const C (&x)[N]) {
        if constexpr (sizeof(In) == 2) {
            state.add(sum_of(x));
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) state.add(x[i]);
        }
    }
    template <class C>
    static __device__ __forceinline__ C finish(Sum<C> state, int64) {
        return state.value();
    }
};

struct RowMean : RowSum {
    template <class C>
    static __device__ __forceinline__ C finish(Sum<C> state, int64 length) {
        return state.value() / static_cast<C>(length);
    }
};

template <class Combination, int kSign>
struct RowExtreme {
    template <class C>
    using State = C;
    using Combine = Combination;

    template <class C>
    static __device__ __forceinline__ C identity() {
        return -kSign * kInfinity<C>;
    }
    template <class C>
    static __device__ __forceinline__ C fill() {
        return identity<C>();
    }
    template <class In, int N, class C>
    static __device__ __forceinline__ void push(C& state, const C (&x)[N]) {
#pragma unroll
        for (int i = 0; i < N; ++i) state = Combine()(state, x[i]);
    }
    template <class C>
    static __device__ __forceinline__ C finish(C state, int64) {
        return state;
    }
};

struct RowMax : RowExtreme<Max, 1> {};
struct RowMin : RowExtreme<Min, -1> {};

}  // namespace onepass::cuda
