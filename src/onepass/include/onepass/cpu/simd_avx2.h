// AVX2 with FMA and F16C: 32 bytes. Included by simd.h.
#pragma once

namespace onepass {
inline namespace ONEPASS_ISA {

// The larger, the smaller; b where either is NaN. So max(x, running) skips NaN, and max(floor, x) keeps it.
inline VecF max(VecF a, VecF b) { return (VecF::Native)_mm256_max_ps((__m256)a.v, (__m256)b.v); }
inline VecD max(VecD a, VecD b) { return (VecD::Native)_mm256_max_pd((__m256d)a.v, (__m256d)b.v); }
inline VecF min(VecF a, VecF b) { return (VecF::Native)_mm256_min_ps((__m256)a.v, (__m256)b.v); }
inline VecD min(VecD a, VecD b) { return (VecD::Native)_mm256_min_pd((__m256d)a.v, (__m256d)b.v); }

// Lanes of one vector by the low bits of another.
constexpr int kLookupLanes = 8;
inline VecF::Bits lookup(const std::int32_t (&table)[8], VecF::Bits index) {
    const __m256i values = _mm256_load_si256(reinterpret_cast<const __m256i*>(table));
    return (VecF::Bits)_mm256_permutevar8x32_epi32(values, (__m256i)index);
}
inline VecF lookup(VecF table, VecF::Bits index) {
    return (VecF::Native)_mm256_permutevar8x32_ps((__m256)table.v, (__m256i)index);
}
inline VecF lookup(const float (&table)[8], VecF::Bits index) {
    return lookup(VecF((VecF::Native)_mm256_load_ps(table)), index);
}

// Whether a lane is below its limit.
inline bool any_below(VecF::Bits a, VecF::Bits limit) {
    const __m256i larger = _mm256_max_epu32((__m256i)a, (__m256i)limit);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi32(larger, (__m256i)a)) != -1;
}

// Whether a lane is above its limit. NaN is not.
inline bool any_above(VecF v, VecF limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v.v, (__m256)limit.v, _CMP_GT_OQ)) != 0;
}
inline bool any_above(VecD v, VecD limit) {
    return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)v.v, (__m256d)limit.v, _CMP_GT_OQ)) != 0;
}
inline bool any_nan(VecF v) { return _mm256_movemask_ps(_mm256_cmp_ps((__m256)v.v, (__m256)v.v, _CMP_UNORD_Q)) != 0; }
inline bool any_nan(VecD v) { return _mm256_movemask_pd(_mm256_cmp_pd((__m256d)v.v, (__m256d)v.v, _CMP_UNORD_Q)) != 0; }

inline VecF widen(__m128i bits, bfloat16) {
    return (VecF::Native)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline VecF widen(__m128i bits, half) { return (VecF::Native)_mm256_cvtph_ps(bits); }
inline __m128i narrow(VecF v, half) { return _mm256_cvtps_ph((__m256)v.v, _MM_FROUND_TO_NEAREST_INT); }
// A bfloat16 in the lower half of each lane.
inline __m256i rounded_to_bfloat16(VecF v) {
    const __m256i u = _mm256_castps_si256((__m256)v.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps((__m256)v.v, (__m256)v.v, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
// Both side by side.
inline __m256i narrow(VecF a, VecF b, bfloat16) {
    const __m256i packed = _mm256_packus_epi32(rounded_to_bfloat16(a), rounded_to_bfloat16(b));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}
inline __m128i narrow(VecF v, bfloat16) {
    const __m256i high = rounded_to_bfloat16(v);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xd8));
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
    std::uint64_t low = 0, high = 0;
    const auto bits = [p](int first, auto to) {
        __builtin_memcpy(&to, p + first, sizeof to);
        return to;
    };
    // Two accesses that overlap. From memory, where elements were put one by one, a vector would have to wait for them.
    if (n > 4) {
        low = bits(0, std::uint64_t{});
        high = bits(n - 4, std::uint64_t{}) >> 16 * (8 - n);
    } else if (n > 1) {
        low = bits(0, std::uint32_t{}) | std::uint64_t{bits(n - 2, std::uint32_t{})} << 16 * (n - 2);
    } else if (n == 1) {
        low = bits(0, std::uint16_t{});
    }
    const VecF v = widen(_mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low)), T{});
    return (VecF::Native)_mm256_blendv_ps(_mm256_set1_ps(fill), (__m256)v.v, _mm256_castsi256_ps(first_mask32(n)));
}
// In halves: a masked store takes an AMD processor 40 operations, and the length of a row is the same for many.
inline void store_n(float* p, VecF v, int n) {
    if (n == 8) return store(p, v);
    __m128 part = _mm256_castps256_ps128((__m256)v.v);
    if (n & 4) {
        _mm_storeu_ps(p, part);
        part = _mm256_extractf128_ps((__m256)v.v, 1);
        p += 4;
    }
    if (n & 2) {
        _mm_storel_pi(reinterpret_cast<__m64*>(p), part);
        part = _mm_movehl_ps(part, part);
        p += 2;
    }
    if (n & 1) _mm_store_ss(p, part);
}
inline void store_n(double* p, VecD v, int n) {
    if (n == 4) return store(p, v);
    __m128d part = _mm256_castpd256_pd128((__m256d)v.v);
    if (n & 2) {
        _mm_storeu_pd(p, part);
        part = _mm256_extractf128_pd((__m256d)v.v, 1);
        p += 2;
    }
    if (n & 1) _mm_store_sd(p, part);
}
template <class T>
    requires(sizeof(T) == 2)
inline void store_n(T* p, VecF v, int n) {
    if (n == 8) return store(p, v);
    __m128i part = narrow(v, T{});
    if (n & 4) {
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), part);
        part = _mm_unpackhi_epi64(part, part);
        p += 4;
    }
    if (n & 2) {
        _mm_storeu_si32(p, part);
        part = _mm_srli_epi64(part, 32);
        p += 2;
    }
    if (n & 1) _mm_storeu_si16(p, part);
}
inline void stream(float* p, VecF v) { _mm256_stream_ps(p, (__m256)v.v); }
inline void stream(double* p, VecD v) { _mm256_stream_pd(p, (__m256d)v.v); }
template <class T>
    requires(sizeof(T) == 2)
inline void stream(T* p, VecF v) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow(v, T{}));
}
inline void store_two(bfloat16* p, VecF a, VecF b) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(a, b, bfloat16{}));
}
inline void stream_two(bfloat16* p, VecF a, VecF b) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(a, b, bfloat16{}));
}
// Narrowed once for both ways.
inline void store_two(bfloat16* p, VecF a, VecF b, bool past_cache) {
    const __m256i bits = narrow(a, b, bfloat16{});
    const auto to = reinterpret_cast<__m256i*>(p);
    past_cache ? _mm256_stream_si256(to, bits) : _mm256_storeu_si256(to, bits);
}
template <class T>
    requires(sizeof(T) == 2)
inline void store(T* p, VecF v, bool past_cache) {
    const __m128i bits = narrow(v, T{});
    const auto to = reinterpret_cast<__m128i*>(p);
    past_cache ? _mm_stream_si128(to, bits) : _mm_storeu_si128(to, bits);
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
inline VecF rounded(VecD low, VecD high) {
    return (VecF::Native)_mm256_set_m128(_mm256_cvtpd_ps((__m256d)high.v), _mm256_cvtpd_ps((__m256d)low.v));
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
