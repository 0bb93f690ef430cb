// Element types, what is computed in, and conversions that round once.
//
// No include from a toolkit: half and bfloat16 are 16 bits with a name, converted by one PTX instruction each (ptx.h).
#pragma once

#include "ptx.h"

namespace onepass::cuda {

using int64 = long long;

struct half {
    unsigned short bits;
};

struct bfloat16 {
    unsigned short bits;
};

template <class A, class B>
inline constexpr bool kSame = false;
template <class A>
inline constexpr bool kSame<A, A> = true;

template <bool kFirst, class A, class B>
struct Choose {
    using type = A;
};
template <class A, class B>
struct Choose<false, A, B> {
    using type = B;
};
template <bool kFirst, class A, class B>
using choose = typename Choose<kFirst, A, B>::type;

// float64 where input or result is, else float32.
template <class In, class Out>
using Compute = choose<kSame<In, double> || kSame<Out, double>, double, float>;

template <class C>
inline constexpr C kInfinity = static_cast<C>(__builtin_bit_cast(double, 0x7ff0000000000000ull));

// The lowest number.
template <class C>
inline constexpr C kLowest = static_cast<C>(-0x1.fffffffffffffp1023);
template <>
inline constexpr float kLowest<float> = -0x1.fffffep127f;

// -inf as it is in memory.
template <class T>
inline constexpr T kMinusInfinity = -kInfinity<T>;
template <>
inline constexpr half kMinusInfinity<half> = {0xfc00};
template <>
inline constexpr bfloat16 kMinusInfinity<bfloat16> = {0xff80};

template <class C>
inline constexpr C kNaN = static_cast<C>(__builtin_bit_cast(double, 0x7ff8000000000000ull));

// ---- from memory to what is computed in: always exact ----

template <class C, class In>
__device__ __forceinline__ C widen(In x) {
    if constexpr (kSame<In, half>) {
        return ptx::from_half(x.bits);
    } else if constexpr (kSame<In, bfloat16>) {
        return __builtin_bit_cast(float, static_cast<unsigned>(x.bits) << 16);
    } else {
        return x;
    }
}

// ---- and back: to nearest, ties to even, overflow to infinity ----

template <class Out>
__device__ __forceinline__ Out narrow(float x) {
    if constexpr (kSame<Out, half>) {
        return {ptx::to_half(x)};
    } else if constexpr (kSame<Out, bfloat16>) {
        return {ptx::to_bfloat16(x)};
    } else {
        return x;
    }
}

// Through float32 rounded to odd, so that the second rounding sees on which side of a tie the float64 lies.
template <class Out>
__device__ __forceinline__ Out narrow(double x) {
    if constexpr (sizeof(Out) == 2) {
        return narrow<Out>(ptx::to_float_odd(x));
    } else {
        return static_cast<Out>(x);
    }
}

// Two results side by side in 32 bits, the first in the low half: one instruction for the pair where there is one.
template <class Out>
__device__ __forceinline__ unsigned narrow_pair(float first, float second) {
    return kSame<Out, half> ? ptx::to_half_pair(first, second) : ptx::to_bfloat16_pair(first, second);
}

template <class Out>
__device__ __forceinline__ unsigned narrow_pair(double first, double second) {
    return narrow_pair<Out>(ptx::to_float_odd(first), ptx::to_float_odd(second));
}

// Of float32 to 1 ULP, of numbers far from the ends of its range.
__device__ __forceinline__ float reciprocal(float x) { return ptx::reciprocal_approx(x); }
__device__ __forceinline__ double reciprocal(double x) { return 1 / x; }

// NaN if either is one.
__device__ __forceinline__ float max_or_nan(float a, float b) { return ptx::max_nan(a, b); }
__device__ __forceinline__ double max_or_nan(double a, double b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float min_or_nan(float a, float b) { return ptx::min_nan(a, b); }
__device__ __forceinline__ double min_or_nan(double a, double b) { return a < b || a != a ? a : b; }

}  // namespace onepass::cuda
