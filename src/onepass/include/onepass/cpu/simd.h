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

template <class C>
struct Lanes;
template <>
struct Lanes<float> {
    typedef float Native __attribute__((vector_size(kVectorBytes)));
    typedef std::int32_t Bits __attribute__((vector_size(kVectorBytes)));
};
template <>
struct Lanes<double> {
    typedef double Native __attribute__((vector_size(kVectorBytes)));
    typedef std::int64_t Bits __attribute__((vector_size(kVectorBytes)));
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

    // The larger; b where either is NaN. So max(x, running) skips NaN, and max(floor, x) keeps it.
    friend Vec max(Vec a, Vec b) { return a.v > b.v ? a.v : b.v; }
    friend Vec min(Vec a, Vec b) { return a.v < b.v ? a.v : b.v; }
    friend Vec abs(Vec a) { return a.v < Native{} ? -a.v : a.v; }
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
inline void store(float* p, VecF v) { __builtin_memcpy(p, &v.v, sizeof v.v); }
inline void store(double* p, VecD v) { __builtin_memcpy(p, &v.v, sizeof v.v); }

#if defined(__AVX512F__)
inline VecF widen(__m256i bits, bfloat16) {
    return (VecF::Native)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline VecF widen(__m256i bits, half) { return (VecF::Native)_mm512_cvtph_ps(bits); }
inline __m256i narrow_by_integers(VecF v) {
    const __m512i u = _mm512_castps_si512((__m512)v.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v.v, (__m512)v.v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_mask_or_epi32(rounded, nan, u, _mm512_set1_epi32(0x400000)), 16));
}
inline __m256i narrow(VecF v, bfloat16) {
#if defined(__AVX512BF16__)
    // The instruction flushes subnormals to zero: those take the long way.
    if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)v.v, 0x20) == 0, 1)) {
        return (__m256i)_mm512_cvtneps_pbh((__m512)v.v);
    }
#endif
    return narrow_by_integers(v);
}
inline __m256i narrow(VecF v, half) { return _mm512_cvtps_ph((__m512)v.v, _MM_FROUND_TO_NEAREST_INT); }
template <class T>
    requires(sizeof(T) == 2)
inline VecF load(const T* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), T{});
}
template <class T>
    requires(sizeof(T) == 2)
inline void store(T* p, VecF v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v, T{}));
}

// The first n lanes, n < kLanes; the rest read as `fill`.
inline __mmask16 first16(int n) { return static_cast<__mmask16>((1u << n) - 1); }
inline __mmask8 first8(int n) { return static_cast<__mmask8>((1u << n) - 1); }
inline VecF load_n(const float* p, int n, float fill) {
    return (VecF::Native)_mm512_mask_loadu_ps(_mm512_set1_ps(fill), first16(n), p);
}
inline VecD load_n(const double* p, int n, double fill) {
    return (VecD::Native)_mm512_mask_loadu_pd(_mm512_set1_pd(fill), first8(n), p);
}
template <class T>
    requires(sizeof(T) == 2)
inline VecF load_n(const T* p, int n, float fill) {
    const VecF v = widen(_mm256_maskz_loadu_epi16(first16(n), p), T{});
    return (VecF::Native)_mm512_mask_mov_ps(_mm512_set1_ps(fill), first16(n), (__m512)v.v);
}
inline void store_n(float* p, VecF v, int n) { _mm512_mask_storeu_ps(p, first16(n), (__m512)v.v); }
inline void store_n(double* p, VecD v, int n) { _mm512_mask_storeu_pd(p, first8(n), (__m512d)v.v); }
template <class T>
    requires(sizeof(T) == 2)
inline void store_n(T* p, VecF v, int n) {
    _mm256_mask_storeu_epi16(p, first16(n), narrow(v, T{}));
}

// Stores that bypass the cache; p is aligned to the bytes stored.
inline void stream(float* p, VecF v) { _mm512_stream_ps(p, (__m512)v.v); }
inline void stream(double* p, VecD v) { _mm512_stream_pd(p, (__m512d)v.v); }
template <class T>
    requires(sizeof(T) == 2)
inline void stream(T* p, VecF v) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(v, T{}));
}

inline float reduce_max(VecF v) { return _mm512_reduce_max_ps((__m512)v.v); }
inline double reduce_max(VecD v) { return _mm512_reduce_max_pd((__m512d)v.v); }
inline VecD low_half(VecF v) { return (VecD::Native)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v.v)); }
inline VecD high_half(VecF v) { return (VecD::Native)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v.v, 1)); }

#elif defined(__AVX2__)
inline VecF widen(__m128i bits, bfloat16) {
    return (VecF::Native)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline VecF widen(__m128i bits, half) { return (VecF::Native)_mm256_cvtph_ps(bits); }
inline __m128i narrow(VecF v, half) { return _mm256_cvtps_ph((__m256)v.v, _MM_FROUND_TO_NEAREST_INT); }
inline __m128i narrow(VecF v, bfloat16) {
    const __m256i u = _mm256_castps_si256((__m256)v.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps((__m256)v.v, (__m256)v.v, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xd8);
    return _mm256_castsi256_si128(packed);
}
template <class T>
    requires(sizeof(T) == 2)
inline VecF load(const T* p) {
    return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), T{});
}
template <class T>
    requires(sizeof(T) == 2)
inline void store(T* p, VecF v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(v, T{}));
}
inline __m256i first_mask32(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256i first_mask64(int n) { return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3)); }
inline VecF load_n(const float* p, int n, float fill) {
    const __m256i mask = first_mask32(n);
    return (VecF::Native)_mm256_blendv_ps(_mm256_set1_ps(fill), _mm256_maskload_ps(p, mask), _mm256_castsi256_ps(mask));
}
inline VecD load_n(const double* p, int n, double fill) {
    const __m256i mask = first_mask64(n);
    return (VecD::Native)_mm256_blendv_pd(_mm256_set1_pd(fill), _mm256_maskload_pd(p, mask), _mm256_castsi256_pd(mask));
}
template <class T>
    requires(sizeof(T) == 2)
inline VecF load_n(const T* p, int n, float fill) {
    alignas(16) T lanes[8] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    const VecF v = load(lanes);
    return (VecF::Native)_mm256_blendv_ps(_mm256_set1_ps(fill), (__m256)v.v, _mm256_castsi256_ps(first_mask32(n)));
}
inline void store_n(float* p, VecF v, int n) { _mm256_maskstore_ps(p, first_mask32(n), (__m256)v.v); }
inline void store_n(double* p, VecD v, int n) { _mm256_maskstore_pd(p, first_mask64(n), (__m256d)v.v); }
template <class T>
    requires(sizeof(T) == 2)
inline void store_n(T* p, VecF v, int n) {
    alignas(16) T lanes[8];
    store(lanes, v);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
inline void stream(float* p, VecF v) { _mm256_stream_ps(p, (__m256)v.v); }
inline void stream(double* p, VecD v) { _mm256_stream_pd(p, (__m256d)v.v); }
template <class T>
    requires(sizeof(T) == 2)
inline void stream(T* p, VecF v) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow(v, T{}));
}
inline float reduce_max(VecF v) {
    __m128 a = _mm_max_ps(_mm256_castps256_ps128((__m256)v.v), _mm256_extractf128_ps((__m256)v.v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
inline double reduce_max(VecD v) {
    const __m128d a = _mm_max_pd(_mm256_castpd256_pd128((__m256d)v.v), _mm256_extractf128_pd((__m256d)v.v, 1));
    return _mm_cvtsd_f64(_mm_max_sd(a, _mm_unpackhi_pd(a, a)));
}
inline VecD low_half(VecF v) { return (VecD::Native)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v.v)); }
inline VecD high_half(VecF v) { return (VecD::Native)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v.v, 1)); }

#else  // 16 bytes on any processor: NEON, SSE, or whatever the compiler makes of it
inline void narrow(float f, half* p) { *p = to_half(f); }
inline void narrow(float f, bfloat16* p) { *p = to_bfloat16(f); }
template <class T>
    requires(sizeof(T) == 2)
inline VecF load(const T* p) {
    return VecF::Native{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])};
}
template <class T>
    requires(sizeof(T) == 2)
inline void store(T* p, VecF v) {
    for (int i = 0; i < 4; ++i) narrow(v.v[i], p + i);
}
inline VecF load_n(const float* p, int n, float fill) {
    VecF::Native v = VecF(fill).v;
    for (int i = 0; i < n; ++i) v[i] = p[i];
    return v;
}
inline VecD load_n(const double* p, int n, double fill) {
    VecD::Native v = VecD(fill).v;
    for (int i = 0; i < n; ++i) v[i] = p[i];
    return v;
}
template <class T>
    requires(sizeof(T) == 2)
inline VecF load_n(const T* p, int n, float fill) {
    VecF::Native v = VecF(fill).v;
    for (int i = 0; i < n; ++i) v[i] = to_float(p[i]);
    return v;
}
inline void store_n(float* p, VecF v, int n) {
    for (int i = 0; i < n; ++i) p[i] = v.v[i];
}
inline void store_n(double* p, VecD v, int n) {
    for (int i = 0; i < n; ++i) p[i] = v.v[i];
}
template <class T>
    requires(sizeof(T) == 2)
inline void store_n(T* p, VecF v, int n) {
    for (int i = 0; i < n; ++i) narrow(v.v[i], p + i);
}
#if defined(__x86_64__)
inline void stream(float* p, VecF v) { _mm_stream_ps(p, (__m128)v.v); }
inline void stream(double* p, VecD v) { _mm_stream_pd(p, (__m128d)v.v); }
#else
inline void stream(float* p, VecF v) { store(p, v); }
inline void stream(double* p, VecD v) { store(p, v); }
#endif
template <class T>
    requires(sizeof(T) == 2)
inline void stream(T* p, VecF v) {
    store(p, v);
}
inline float reduce_max(VecF v) {
    const float a = v.v[0] > v.v[1] ? v.v[0] : v.v[1], b = v.v[2] > v.v[3] ? v.v[2] : v.v[3];
    return a > b ? a : b;
}
inline double reduce_max(VecD v) { return v.v[0] > v.v[1] ? v.v[0] : v.v[1]; }
inline VecD low_half(VecF v) { return VecD::Native{v.v[0], v.v[1]}; }
inline VecD high_half(VecF v) { return VecD::Native{v.v[2], v.v[3]}; }
#endif

// Makes stores that bypassed the cache visible before the thread reports its work as done.
inline void stream_fence() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

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
    return to_half(static_cast<float>(c));
}
template <>
inline bfloat16 narrow_scalar<bfloat16, float>(float c) {
    return to_bfloat16(c);
}
template <>
inline bfloat16 narrow_scalar<bfloat16, double>(double c) {
    return to_bfloat16(static_cast<float>(c));
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
