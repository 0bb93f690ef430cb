// From every element type to every other, run by run. Compiled by itself: what gathers and scatters only calls it.
#pragma once

#include "access.h"

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

// A few elements as they are: a call of memcpy takes longer.
template <class T>
inline void copy_run(T* to, const T* from, std::int64_t n) {
    const auto copy = [&]<int kElements>(std::integral_constant<int, kElements>) {
        if (n < kElements) return false;
        std::int64_t i = 0;
        for (; i + kElements <= n; i += kElements) __builtin_memcpy(to + i, from + i, kElements * sizeof(T));
        // The last ones overlap those before.
        if (i < n) __builtin_memcpy(to + n - kElements, from + n - kElements, kElements * sizeof(T));
        return true;
    };
    constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(T));
    if (copy(std::integral_constant<int, kVector>{}) || copy(std::integral_constant<int, 4>{})) return;
    for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}

template <class To, class From>
inline void convert_run(To* to, std::int64_t to_stride, const From* from, std::int64_t from_stride, std::int64_t n) {
    if (to_stride == 1 && from_stride == 1) {
        if constexpr (__is_same(To, From)) return copy_run(to, from, n);
        std::int64_t i = 0;
        if constexpr (!__is_same(To, From) && __is_same(Compute<To>, float) && __is_same(Compute<From>, float)) {
            for (; i + kLanes<float> <= n; i += kLanes<float>) store(to + i, load(from + i));
        }
        for (; i < n; ++i) to[i] = convert<To>(from[i]);
    } else {
        for (std::int64_t i = 0; i < n; ++i) to[i * to_stride] = convert<To>(from[i * from_stride]);
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
