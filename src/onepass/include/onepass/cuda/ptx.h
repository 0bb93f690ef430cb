// Everything the kernels need of a GPU that CUDA C++ has no word for, one function per instruction.
//
// Under ONEPASS_CUSIM the same functions come from the simulator of tests/cusim: this is the only place where the two
// differ.
#pragma once

#ifdef ONEPASS_CUSIM
#include "cusim_ptx.h"
#else

// A variable in shared memory. Under the simulator it is found through its block.
#define ONEPASS_SHARED(type, name) __shared__ type name
#define ONEPASS_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

namespace onepass::cuda::ptx {

__device__ __forceinline__ float from_half(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

__device__ __forceinline__ unsigned short to_half(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ unsigned short to_bfloat16(float x) {
#if __CUDA_ARCH__ >= 800
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#else
    const unsigned bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

// The first in the low half.
__device__ __forceinline__ unsigned to_half_pair(float first, float second) {
#if __CUDA_ARCH__ >= 800
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
#else
    return to_half(first) | static_cast<unsigned>(to_half(second)) << 16;
#endif
}

__device__ __forceinline__ unsigned to_bfloat16_pair(float first, float second) {
#if __CUDA_ARCH__ >= 800
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
#else
    return to_bfloat16(first) | static_cast<unsigned>(to_bfloat16(second)) << 16;
#endif
}

// Towards zero, and odd unless exact: rounding this to fewer bits is rounding x to them.
__device__ __forceinline__ float to_float_odd(double x) {
    const float toward_zero = __double2float_rz(x);
    if (static_cast<double>(toward_zero) == x || x != x) return toward_zero;
    return __uint_as_float(__float_as_uint(toward_zero) | 1);
}

// 2^x to 2 ULP; subnormal results are zeros.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float max_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
#else
    return a > b || a != a ? a : b;
#endif
}

__device__ __forceinline__ float min_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
    float m;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
#else
    return a < b || a != a ? a : b;
#endif
}

// ---- copies into shared memory that go on while the thread does ----

// 4, 8 or 16 bytes, aligned to that.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to_shared, const void* from) {
#if __CUDA_ARCH__ >= 800
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(to_shared));
    if constexpr (kBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
    }
#else
    struct alignas(kBytes) Bytes {
        unsigned at[kBytes / 4];
    };
    *static_cast<Bytes*>(to_shared) = *static_cast<const Bytes*>(from);
#endif
}

// Ends a group of copies.
__device__ __forceinline__ void end_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for this thread's copies, but not for those of the last kGroups groups.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// ---- memory that blocks of one launch share ----
//
// Relaxed: each access is whole and reaches all of the GPU, and orders nothing else.

// Two words of 8 bytes, each of them whole.
__device__ __forceinline__ uint4 load_shared_words(const uint4* from) {
    unsigned long long low, high;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(from) : "memory");
    return {static_cast<unsigned>(low), static_cast<unsigned>(low >> 32), static_cast<unsigned>(high),
            static_cast<unsigned>(high >> 32)};
}

__device__ __forceinline__ void store_shared_words(uint4* to, uint4 words) {
    const unsigned long long low = static_cast<unsigned long long>(words.y) << 32 | words.x;
    const unsigned long long high = static_cast<unsigned long long>(words.w) << 32 | words.z;
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high) : "memory");
}

// Adds one, but makes 0 of `last`. Returns what was there.
__device__ __forceinline__ unsigned count_up(unsigned* counter, unsigned last) {
    unsigned before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

// In a loop that waits for another thread.
__device__ __forceinline__ void wait_a_little() {}

}  // namespace onepass::cuda::ptx
#endif
