// AVX-512: 64 bytes. Included by simd.h.
//
// What softmax waits for are the units that multiply. A Zen 4 multiplies one vector a cycle, and compares into masks
// there, too; maxima, additions and shifts have units of their own, and integers go to any (docs/performance-notes.md).
#pragma once

namespace onepass {
inline namespace ONEPASS_ISA {

// The larger, the smaller; b where either is NaN. So max(x, running) skips NaN, and max(floor, x) keeps it.
inline VecF max(VecF a, VecF b) { return (VecF::Native)_mm512_max_ps((__m512)a.v, (__m512)b.v); }
inline VecD max(VecD a, VecD b) { return (VecD::Native)_mm512_max_pd((__m512d)a.v, (__m512d)b.v); }
inline VecF min(VecF a, VecF b) { return (VecF::Native)_mm512_min_ps((__m512)a.v, (__m512)b.v); }
inline VecD min(VecD a, VecD b) { return (VecD::Native)_mm512_min_pd((__m512d)a.v, (__m512d)b.v); }

// Lanes of one vector by the low bits of another.
constexpr int kLookupLanes = 16;
inline VecF::Bits lookup(const std::int32_t (&table)[16], VecF::Bits index) {
    return (VecF::Bits)_mm512_permutexvar_epi32((__m512i)index, _mm512_load_si512(table));
}
inline VecF lookup(VecF table, VecF::Bits index) {
    return (VecF::Native)_mm512_permutexvar_ps((__m512i)index, (__m512)table.v);
}
inline VecF lookup(const float (&table)[16], VecF::Bits index) {
    return lookup(VecF((VecF::Native)_mm512_load_ps(table)), index);
}

// Lanes of which something holds.
using Which = __mmask16;
inline Which differs(VecF a, VecF b) { return _mm512_cmp_ps_mask((__m512)a.v, (__m512)b.v, _CMP_NEQ_UQ); }
inline VecF or_zero(Which which, VecF v) { return (VecF::Native)_mm512_maskz_mov_ps(which, (__m512)v.v); }
inline void count(Which which, VecF::Bits& n) {
    n = (VecF::Bits)_mm512_mask_add_epi32((__m512i)n, which, (__m512i)n, _mm512_set1_epi32(1));
}

// Whether a lane is below its limit.
inline bool any_below(VecF::Bits a, VecF::Bits limit) {
    return _mm512_cmplt_epu32_mask((__m512i)a, (__m512i)limit) != 0;
}

// Whether a lane is above its limit. NaN is not.
inline bool any_above(VecF v, VecF limit) { return _mm512_cmp_ps_mask((__m512)v.v, (__m512)limit.v, _CMP_GT_OQ) != 0; }
inline bool any_above(VecD v, VecD limit) {
    return _mm512_cmp_pd_mask((__m512d)v.v, (__m512d)limit.v, _CMP_GT_OQ) != 0;
}
inline bool any_nan(VecF v) { return _mm512_cmp_ps_mask((__m512)v.v, (__m512)v.v, _CMP_UNORD_Q) != 0; }
inline bool any_nan(VecD v) { return _mm512_cmp_pd_mask((__m512d)v.v, (__m512d)v.v, _CMP_UNORD_Q) != 0; }

// Each value to the upper half of a lane: one permutation, no shift.
inline VecF widen(__m256i bits, bfloat16) {
    const __m512i upper = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 0,
                                           3, 0, 2, 0, 1, 0, 0, 0);
    return (VecF::Native)_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, upper, _mm512_castsi256_si512(bits));
}
inline VecF widen(__m256i bits, half) { return (VecF::Native)_mm512_cvtph_ps(bits); }
// Rounds to the upper half of each lane; shifts, which the multiplying units would do, are left out.
inline __m256i narrow_by_integers(VecF v) {
    const __m512i u = _mm512_castps_si512((__m512)v.v);
    const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)v.v, (__m512)v.v, _CMP_UNORD_Q);
    const __m512i half = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    const __m512i even = _mm512_mask_add_epi32(half, odd, u, _mm512_set1_epi32(0x8000));
    const __m512i rounded = _mm512_mask_or_epi32(even, nan, u, _mm512_set1_epi32(0x400000));
    const __m512i upper = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 31, 29, 27, 25,
                                           23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, rounded));
}
// All ones where the processor has no instructions for that, 0 where it has (isa.cpp): one number more in a branch that
// there is anyway. Kernels of their own for those that have were a seventh of all that there is to compile.
extern std::uint32_t lacks_bfloat16;
// As those instructions, which flush subnormals to zero; by name, as the compiler is told of AVX-512's first part only.
inline __m256i narrow_by_instruction(VecF v) {
    __m256i bits;
    asm("vcvtneps2bf16 %1, %0" : "=v"(bits) : "v"(v.v));
    return bits;
}
inline __m512i narrow_by_instruction(VecF a, VecF b) {
    __m512i bits;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(bits) : "v"(a.v), "v"(b.v));
    return bits;
}
inline __m256i narrow(VecF v, bfloat16) {
    const std::uint32_t subnormal = _mm512_fpclass_ps_mask((__m512)v.v, 0x20);
    if (__builtin_expect((subnormal | lacks_bfloat16) != 0, 0)) return narrow_by_integers(v);
    return narrow_by_instruction(v);
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

// Two vectors of which nothing is subnormal: one instruction rounds both.
inline void store_normal(bfloat16* p, VecF a, VecF b) {
    if (lacks_bfloat16 == 0) return _mm512_storeu_si512(p, narrow_by_instruction(a, b));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_by_integers(a));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + 1, narrow_by_integers(b));
}
inline void stream_normal(bfloat16* p, VecF a, VecF b) {
    if (lacks_bfloat16 == 0) return _mm512_stream_si512(reinterpret_cast<__m512i*>(p), narrow_by_instruction(a, b));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_by_integers(a));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p) + 1, narrow_by_integers(b));
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
// Narrowed once for both.
template <class T>
    requires(sizeof(T) == 2)
inline void store(T* p, VecF v, bool past_cache) {
    const __m256i bits = narrow(v, T{});
    const auto to = reinterpret_cast<__m256i*>(p);
    past_cache ? _mm256_stream_si256(to, bits) : _mm256_storeu_si256(to, bits);
}

inline float reduce_max(VecF v) { return _mm512_reduce_max_ps((__m512)v.v); }
inline double reduce_max(VecD v) { return _mm512_reduce_max_pd((__m512d)v.v); }
inline VecD low_half(VecF v) { return (VecD::Native)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v.v)); }
inline VecD high_half(VecF v) { return (VecD::Native)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v.v, 1)); }
// Both halves, rounded.
inline VecF rounded(VecD low, VecD high) {
    const __m512 lower = _mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)low.v));
    return (VecF::Native)_mm512_insertf32x8(lower, _mm512_cvtpd_ps((__m512d)high.v), 1);
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
