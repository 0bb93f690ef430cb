// From every element type to every other, run by run. Compiled by itself: what gathers and scatters only calls it.
#pragma once

#include "access.h"
#include "across.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class To, class From>
inline To convert(From from) {
    if constexpr (__is_same(To, From)) {
        return from;
    } else {
        return narrow_scalar<To>(scalar<Compute<From>>(from));
    }
}

// Runs of n elements, as they are: of few, a loop for each would take longer than they do. Two copies that overlap have
// all of a run of kHalf elements or more, and no more than twice as many.
template <int kHalf, class T>
inline void copy_runs(T* to, std::int64_t to_stride, const T* from, std::int64_t from_stride, std::int64_t runs,
                      std::int64_t n) {
    constexpr bool kLargest = kHalf * static_cast<int>(sizeof(T)) >= kVectorBytes;
    if constexpr (kLargest) {
        for (std::int64_t r = 0; r < runs; ++r, to += to_stride, from += from_stride) {
            for (std::int64_t i = 0; i + kHalf <= n; i += kHalf) __builtin_memcpy(to + i, from + i, kHalf * sizeof(T));
            __builtin_memcpy(to + n - kHalf, from + n - kHalf, kHalf * sizeof(T));
        }
    } else if (n >= 2 * kHalf) {
        copy_runs<2 * kHalf>(to, to_stride, from, from_stride, runs, n);
    } else {
        for (std::int64_t r = 0; r < runs; ++r, to += to_stride, from += from_stride) {
            __builtin_memcpy(to, from, kHalf * sizeof(T));
            __builtin_memcpy(to + n - kHalf, from + n - kHalf, kHalf * sizeof(T));
        }
    }
}

// Of every kStep-th element, as many as fill vectors; returns how many. What would follow the last one is never read:
// it may not be there. Measured on a Zen 4, two threads, times over those by element: every second, 4096 x 2048
// bfloat16, its last dim, sum 0.39, softmax 0.76; 64 x 1000 x 200, dim 1, float32 sum 0.66, softmax 0.85, its gradient
// 0.82; every third of 2000 x 100 float32 0.51 and 0.65, bfloat16 0.42 and 0.58, every fourth 0.58 and 0.70, 0.46 and
// 0.63. What memory brings: bfloat16 0.44 to 0.84, float32 1.0.
template <int kStep, class To, class From>
inline std::int64_t convert_every(To* to, const From* from, std::int64_t n) {
    std::int64_t i = 0;
    if constexpr (__is_same(Compute<To>, Compute<From>)) {
        using C = Compute<To>;
        constexpr int W = kLanes<C>;
        for (; i + W < n; i += W) {
            Vec<C> v[kStep];
            for (int k = 0; k < kStep; ++k) v[k] = load(from + kStep * i + k * W);
            store(to + i, every<kStep>(v[0], v, std::make_integer_sequence<int, W>()));
        }
    }
    return i;
}

// Pairs, and pixels of three and four channels.
template <class To, class From>
inline std::int64_t convert_few_apart(To* to, const From* from, std::int64_t step, std::int64_t n) {
    switch (step) {
        case 2: return convert_every<2>(to, from, n);
        case 3: return convert_every<3>(to, from, n);
        case 4: return convert_every<4>(to, from, n);
        default: return 0;
    }
}

template <class To, class From>
inline void convert_run(To* to, std::int64_t to_stride, const From* from, std::int64_t from_stride, std::int64_t n) {
    if (to_stride == 1 && from_stride == 1) {
        if constexpr (__is_same(To, From)) {
            if (n > 0) copy_runs<1>(to, 0, from, 0, 1, n);
            return;
        }
        std::int64_t i = 0;
        if constexpr (!__is_same(To, From) && __is_same(Compute<To>, float) && __is_same(Compute<From>, float)) {
            for (; i + kLanes<float> <= n; i += kLanes<float>) store(to + i, load(from + i));
        }
        for (; i < n; ++i) to[i] = convert<To>(from[i]);
    } else if (to_stride == 1 && from_stride == 0) {
        const To same = convert<To>(*from);
        for (std::int64_t i = 0; i < n; ++i) to[i] = same;
    } else {
        std::int64_t i = to_stride == 1 ? convert_few_apart(to, from, from_stride, n) : 0;
        for (; i < n; ++i) to[i * to_stride] = convert<To>(from[i * from_stride]);
    }
}

template <class T>
void gather(T* to, const char* x, DType type, std::int64_t offset, std::int64_t stride, std::int64_t n) {
    with_type(type, [&](auto* null) {
        using From = std::remove_pointer_t<decltype(null)>;
        convert_run(to, 1, reinterpret_cast<const From*>(x) + offset, stride, n);
    });
}

template <class T>
void scatter(char* y, DType type, std::int64_t offset, std::int64_t stride, const T* from, std::int64_t n) {
    with_type(type, [&](auto* null) {
        using To = std::remove_pointer_t<decltype(null)>;
        convert_run(reinterpret_cast<To*>(y) + offset, stride, from, 1, n);
    });
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
