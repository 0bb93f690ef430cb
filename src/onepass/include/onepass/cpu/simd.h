// Vectors of one width, the width of the instruction set this file is compiled for.
//
// Arithmetic, selection and bit tricks are compiler vector extensions, the same on every processor. What they cannot
// say (fused multiply-add, masked tails, 16-bit conversions, stores past the cache) is a few lines per instruction set.
#pragma once

#include <cstdint>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "job.h"

#ifndef ONEPASS_ISA
#define ONEPASS_ISA generic
#endif

namespace onepass {

// 16-bit floats as they lie in memory.
struct half {
    std::uint16_t bits;
};
struct bfloat16 {
    std::uint16_t bits;
};

inline namespace ONEPASS_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// An instruction set that is there for the engine to run at all: 16-bit types have no kernels of their own there, their
// elements are converted on the way, as where input and result are of two types. Half of the time to compile it.
#if defined(__x86_64__) && !defined(__AVX2__)
constexpr bool kFewKernels = true;
#else
constexpr bool kFewKernels = false;
#endif

// Bits are unsigned: those of a power of two that is thrown away afterwards may overflow.
template <class C>
struct Lanes;
template <>
struct Lanes<float> {
    typedef float Native __attribute__((vector_size(kVectorBytes)));
    typedef std::uint32_t Bits __attribute__((vector_size(kVectorBytes)));
};
template <>
struct Lanes<double> {
    typedef double Native __attribute__((vector_size(kVectorBytes)));
    typedef std::uint64_t Bits __attribute__((vector_size(kVectorBytes)));
};

template <class C>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(C));

// The type that elements of type T are computed in.
template <class T>
struct ComputeOf {
    using type = float;
};
template <>
struct ComputeOf<double> {
    using type = double;
};
template <class T>
using Compute = typename ComputeOf<T>::type;

template <class C>
struct Vec {
    using Native = typename Lanes<C>::Native;
    using Bits = typename Lanes<C>::Bits;
    Native v;

    Vec() = default;
    Vec(Native n) : v(n) {}
    Vec(C c) : v(c - Native{}) {}

    friend Vec operator+(Vec a, Vec b) { return a.v + b.v; }
    friend Vec operator-(Vec a, Vec b) { return a.v - b.v; }
    friend Vec operator*(Vec a, Vec b) { return a.v * b.v; }
    friend Vec operator/(Vec a, Vec b) { return a.v / b.v; }

    friend Vec abs(Vec a) { return (Native)((Bits)a.v & (~Bits{} >> 1)); }
    // x where x is NaN, else otherwise
    friend Vec nan_or(Vec x, Vec otherwise) { return x.v == x.v ? otherwise.v : x.v; }
    friend Vec where_not_above(Vec a, Vec limit, Vec yes, Vec no) { return a.v <= limit.v ? yes.v : no.v; }
};

using VecF = Vec<float>;
using VecD = Vec<double>;

template <class To, class From>
inline To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// a * b + c, rounded once where the processor can.
#if defined(__FMA__) || (defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA))
constexpr bool kRoundsOnce = true;
#else
constexpr bool kRoundsOnce = false;
#endif
inline VecF fma(VecF a, VecF b, VecF c) {
#if defined(__AVX512F__)
    return (VecF::Native)_mm512_fmadd_ps((__m512)a.v, (__m512)b.v, (__m512)c.v);
#elif defined(__FMA__)
    return (VecF::Native)_mm256_fmadd_ps((__m256)a.v, (__m256)b.v, (__m256)c.v);
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
    return (VecF::Native)vfmaq_f32((float32x4_t)c.v, (float32x4_t)a.v, (float32x4_t)b.v);
#else
    return a.v * b.v + c.v;
#endif
}
inline VecD fma(VecD a, VecD b, VecD c) {
#if defined(__AVX512F__)
    return (VecD::Native)_mm512_fmadd_pd((__m512d)a.v, (__m512d)b.v, (__m512d)c.v);
#elif defined(__FMA__)
    return (VecD::Native)_mm256_fmadd_pd((__m256d)a.v, (__m256d)b.v, (__m256d)c.v);
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA) && defined(__aarch64__)
    return (VecD::Native)vfmaq_f64((float64x2_t)c.v, (float64x2_t)a.v, (float64x2_t)b.v);
#else
    return a.v * b.v + c.v;
#endif
}

// ---- one 16-bit value ----
inline float to_float(bfloat16 h) { return bit_cast<float>(static_cast<std::uint32_t>(h.bits) << 16); }
inline float to_float(half h) {
#if defined(__F16C__)
    return _cvtsh_ss(h.bits);
#else
    // Shift the exponent into place and let a multiplication normalize what was subnormal.
    const std::uint32_t magnitude = (h.bits & 0x7fffu) << 13;
    const std::uint32_t sign = (h.bits & 0x8000u) << 16;
    const float scaled = bit_cast<float>(magnitude) * 0x1p112f;
    const std::uint32_t infinite = magnitude >= 0x0f800000u ? 0x7f800000u | magnitude : bit_cast<std::uint32_t>(scaled);
    return bit_cast<float>(infinite | sign);
#endif
}
inline bfloat16 to_bfloat16(float f) {
    const std::uint32_t u = bit_cast<std::uint32_t>(f);
    if (f != f) return {static_cast<std::uint16_t>((u >> 16) | 0x40)};
    return {static_cast<std::uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
inline half to_half(float f) {
#if defined(__F16C__)
    return {static_cast<std::uint16_t>(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT))};
#else
    const std::uint32_t u = bit_cast<std::uint32_t>(f);
    const std::uint16_t sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
    const float magnitude = bit_cast<float>(u & 0x7fffffffu);
    if (f != f) return {static_cast<std::uint16_t>(sign | 0x7e00u)};
    if (magnitude >= 65520.0f) return {static_cast<std::uint16_t>(sign | 0x7c00u)};
    if (magnitude < 0x1p-14f) {  // adding 0.5 rounds to a multiple of the smallest subnormal, 2^-24
        const float rounded = magnitude + 0.5f;
        return {static_cast<std::uint16_t>(sign | (bit_cast<std::uint32_t>(rounded) - 0x3f000000u))};
    }
    const std::uint32_t m = u & 0x7fffffffu;
    return {static_cast<std::uint16_t>(sign | ((m - 0x38000000u + 0xfffu + ((m >> 13) & 1)) >> 13))};
#endif
}

// ---- whole vectors ----
inline VecF load(const float* p) {
    VecF::Native v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
inline VecD load(const double* p) {
    VecD::Native v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

// A vector that is loaded once, whatever it is used for: the compiler would rather read it again with every instruction
// that can, and two loads of 64 bytes are all that a Zen 5 has in a cycle. Measured there, one thread, in L2, softmax
// of 256 x 256, dim 0, 0.94 of the time; of rows of 1024 0.99.
template <class V>
ONEPASS_INLINE V once(V v) {
#if defined(__x86_64__)
    asm("" : "+v"(v.v));
#endif
    return v;
}
template <class T>
ONEPASS_INLINE auto loaded_once(const T* p) {
    return once(load(p));
}
inline void store(float* p, VecF v) { __builtin_memcpy(p, &v.v, sizeof v.v); }
inline void store(double* p, VecD v) { __builtin_memcpy(p, &v.v, sizeof v.v); }

}  // namespace ONEPASS_ISA
}  // namespace onepass

// What differs from one instruction set to the next: each section defines the same functions.
#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__)
#include "simd_avx2.h"
#else
#include "simd_base.h"
#endif

namespace onepass {
inline namespace ONEPASS_ISA {

// Makes stores that bypassed the cache visible before the thread reports its work as done.
inline void stream_fence() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

#if !defined(__AVX512F__)
// Lanes of which something holds: all of their bits.
using Which = VecF::Bits;
inline Which differs(VecF a, VecF b) { return (Which)(a.v != b.v); }
inline VecF or_zero(Which which, VecF v) { return (VecF::Native)((VecF::Bits)v.v & which); }
inline void count(Which which, VecF::Bits& n) { n = n - which; }
#endif

// Past the cache or not, unless an instruction set has its own.
template <class T, class C>
ONEPASS_INLINE void store(T* p, Vec<C> v, bool past_cache) {
    past_cache ? stream(p, v) : store(p, v);
}

// Two vectors, unless an instruction set has its own. Past the cache p is a multiple of the bytes of both.
template <class T, class C>
ONEPASS_INLINE void store_two(T* p, Vec<C> a, Vec<C> b) {
    store(p, a);
    store(p + kLanes<C>, b);
}
template <class T, class C>
ONEPASS_INLINE void stream_two(T* p, Vec<C> a, Vec<C> b) {
    stream(p, a);
    stream(p + kLanes<C>, b);
}
template <class T, class C>
ONEPASS_INLINE void store_two(T* p, Vec<C> a, Vec<C> b, bool past_cache) {
    store(p, a, past_cache);
    store(p + kLanes<C>, b, past_cache);
}
// Two of which nothing is subnormal.
template <class T, class C>
ONEPASS_INLINE void store_normal(T* p, Vec<C> a, Vec<C> b) {
    store_two(p, a, b);
}
template <class T, class C>
ONEPASS_INLINE void stream_normal(T* p, Vec<C> a, Vec<C> b) {
    stream_two(p, a, b);
}

// A vector of C in float64: one of those, or two halves.
template <class C>
constexpr int kHalves = static_cast<int>(sizeof(double) / sizeof(C));
inline void widen(VecD v, VecD (&to)[1]) { to[0] = v; }
inline void widen(VecF v, VecD (&to)[2]) {
    to[0] = low_half(v);
    to[1] = high_half(v);
}
inline VecD rounded(const VecD (&v)[1]) { return v[0]; }
inline VecF rounded(const VecD (&v)[2]) { return rounded(v[0], v[1]); }

// The sum of the lanes in float64, as a tree: always in the same order.
inline double reduce_sum(VecD v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_pd((__m512d)v.v);
#elif defined(__AVX2__)
    const __m128d a = _mm_add_pd(_mm256_castpd256_pd128((__m256d)v.v), _mm256_extractf128_pd((__m256d)v.v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(a, _mm_unpackhi_pd(a, a)));
#else
    return v.v[0] + v.v[1];
#endif
}
inline double reduce_sum(VecF v) { return reduce_sum(low_half(v) + high_half(v)); }

inline float to_float(float f) { return f; }
template <class C, class T>
inline C scalar(T t) {
    if constexpr (sizeof(T) == 2) {
        return static_cast<C>(to_float(t));
    } else {
        return static_cast<C>(t);
    }
}
// Cut to 13 significant bits, the last of them set where that lost anything: what rounds to 16 bits as d does. By
// integers alone, so that loops of it are vectors; of comparisons of float64 g++ 12 makes wrong ones.
inline float to_float_odd(double d) {
    constexpr std::uint64_t kCut = (std::uint64_t{1} << 40) - 1;
    const std::uint64_t bits = bit_cast<std::uint64_t>(d);
    return static_cast<float>(bit_cast<double>((bits | ((bits & kCut) + kCut)) & ~kCut));
}
template <class T, class C>
inline T narrow_scalar(C c);
template <>
inline float narrow_scalar<float, float>(float c) {
    return c;
}
template <>
inline double narrow_scalar<double, double>(double c) {
    return c;
}
template <>
inline float narrow_scalar<float, double>(double c) {
    return static_cast<float>(c);
}
template <>
inline double narrow_scalar<double, float>(float c) {
    return c;
}
template <>
inline half narrow_scalar<half, float>(float c) {
    return to_half(c);
}
template <>
inline half narrow_scalar<half, double>(double c) {
    return to_half(to_float_odd(c));
}
template <>
inline bfloat16 narrow_scalar<bfloat16, float>(float c) {
    return to_bfloat16(c);
}
template <>
inline bfloat16 narrow_scalar<bfloat16, double>(double c) {
    return to_bfloat16(to_float_odd(c));
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
