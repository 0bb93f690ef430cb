// 16 bytes on any processor: NEON, SSE, or whatever the compiler makes of it. Included by simd.h.
#pragma once

namespace onepass {
inline namespace ONEPASS_ISA {

// The larger, the smaller; b where either is NaN. So max(x, running) skips NaN, and max(floor, x) keeps it.
template <class C>
inline Vec<C> max(Vec<C> a, Vec<C> b) {
    return a.v > b.v ? a.v : b.v;
}
template <class C>
inline Vec<C> min(Vec<C> a, Vec<C> b) {
    return a.v < b.v ? a.v : b.v;
}

constexpr int kLookupLanes = 1;  // none

// Whether a lane is below its limit.
inline bool any_below(VecF::Bits a, VecF::Bits limit) {
    bool any = false;
    for (int i = 0; i < 4; ++i) any |= a[i] < limit[i];
    return any;
}

// Whether a lane is above its limit. NaN is not.
template <class V>
inline bool any_above(V v, V limit) {
    bool any = false;
    for (unsigned i = 0; i < sizeof(v.v) / sizeof(v.v[0]); ++i) any |= v.v[i] > limit.v[i];
    return any;
}
template <class V>
inline bool any_nan(V v) {
    bool any = false;
    for (unsigned i = 0; i < sizeof(v.v) / sizeof(v.v[0]); ++i) any |= v.v[i] != v.v[i];
    return any;
}

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
#if defined(__SSE2__)  // which GCC does not see: it converts lane by lane
inline VecD low_half(VecF v) { return (VecD::Native)_mm_cvtps_pd((__m128)v.v); }
inline VecD high_half(VecF v) { return (VecD::Native)_mm_cvtps_pd(_mm_movehl_ps((__m128)v.v, (__m128)v.v)); }
inline VecF rounded(VecD low, VecD high) {
    return (VecF::Native)_mm_movelh_ps(_mm_cvtpd_ps((__m128d)low.v), _mm_cvtpd_ps((__m128d)high.v));
}
#else
inline VecD low_half(VecF v) { return VecD::Native{v.v[0], v.v[1]}; }
inline VecD high_half(VecF v) { return VecD::Native{v.v[2], v.v[3]}; }
inline VecF rounded(VecD low, VecD high) {
    return VecF::Native{static_cast<float>(low.v[0]), static_cast<float>(low.v[1]), static_cast<float>(high.v[0]),
                        static_cast<float>(high.v[1])};
}
#endif

}  // namespace ONEPASS_ISA
}  // namespace onepass
