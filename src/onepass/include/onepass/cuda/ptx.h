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

// The compiler no longer knows what the word is, and computes anew what it may have kept of it.
__device__ __forceinline__ void hide(unsigned& word) { asm("" : "+r"(word)); }

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

// 1 / x to 1 ULP, for normal numbers whose reciprocal is normal. Of 0 infinity, of infinity 0.
__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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

// Of two pairs in 32 bits: of each half the larger, or NaN.
#if __CUDA_ARCH__ >= 800
inline constexpr bool kComparesPairs = true;
__device__ __forceinline__ unsigned max_half_pair(unsigned a, unsigned b) {
    unsigned m;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
}
__device__ __forceinline__ unsigned max_bfloat16_pair(unsigned a, unsigned b) {
    unsigned m;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(m) : "r"(a), "r"(b));
    return m;
}
#else
inline constexpr bool kComparesPairs = false;
unsigned max_half_pair(unsigned, unsigned);
unsigned max_bfloat16_pair(unsigned, unsigned);
#endif

// The largest of a warp's 32, for every lane.
__device__ __forceinline__ int max_of_warp(int x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, x);
#else
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
#endif
}

// ---- stores of whole accesses ----
//
// Where they stand, and without a hint. Of those that C++ has a compiler moves many together, away from the loads that
// they should be among; with `cs`, evicted first, memory turns between reading and writing more often (H200: 0.5% to 2%
// of rows of every size), and what reads the result next finds less of it in L2.

// store_word_once: with `cs` all the same, where other blocks are about to read again what L2 still holds.

#define ONEPASS_STORES(name, hint)                                                                               \
    __device__ __forceinline__ void name(unsigned short* to, unsigned short word) {                              \
        asm volatile("st.global" hint ".u16 [%0], %1;" ::"l"(to), "h"(word) : "memory");                         \
    }                                                                                                            \
    __device__ __forceinline__ void name(unsigned* to, unsigned word) {                                          \
        asm volatile("st.global" hint ".u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");                         \
    }                                                                                                            \
    __device__ __forceinline__ void name(uint2* to, uint2 word) {                                                \
        asm volatile("st.global" hint ".v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(word.x), "r"(word.y) : "memory"); \
    }                                                                                                            \
    __device__ __forceinline__ void name(uint4* to, uint4 word) {                                                \
        asm volatile("st.global" hint ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x), "r"(word.y),     \
                     "r"(word.z), "r"(word.w)                                                                    \
                     : "memory");                                                                                \
    }
ONEPASS_STORES(store_word, "")
ONEPASS_STORES(store_word_once, ".cs")
#undef ONEPASS_STORES

// A word, if it is there, or 0: without a branch, in which what is done to it would wait for it.
__device__ __forceinline__ unsigned load_word_if(bool there, const unsigned* from) {
    unsigned word;
    asm volatile("{ .reg .pred there; setp.ne.u32 there, %2, 0; mov.u32 %0, 0; @there ld.global.ca.u32 %0, [%1]; }"
                 : "=r"(word)
                 : "l"(from), "r"(static_cast<unsigned>(there)));
    return word;
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

__device__ __forceinline__ unsigned load_shared_word(const unsigned* from) {
    unsigned word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}

__device__ __forceinline__ void store_shared_words(uint4* to, uint4 words) {
    const unsigned long long low = static_cast<unsigned long long>(words.y) << 32 | words.x;
    const unsigned long long high = static_cast<unsigned long long>(words.w) << 32 | words.z;
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(low), "l"(high) : "memory");
}

__device__ __forceinline__ void store_shared_word(unsigned* to, unsigned word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

// Makes the larger of both of it. Nobody waits.
__device__ __forceinline__ void raise(unsigned* word, unsigned to) {
    asm volatile("red.relaxed.gpu.global.max.u32 [%0], %1;" ::"l"(word), "r"(to) : "memory");
}

// Adds one, but makes 0 of `last`. Returns what was there.
__device__ __forceinline__ unsigned count_up(unsigned* counter, unsigned last) {
    unsigned before;
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(last) : "memory");
    return before;
}

// 0, but a compiler takes it for something that each thread has of its own.
__device__ __forceinline__ unsigned zero_of_thread() {
    unsigned zero;
    asm("shr.u32 %0, %1, 31;" : "=r"(zero) : "r"(threadIdx.x));
    return zero;
}

// In a loop that waits for another thread.
__device__ __forceinline__ void wait_a_little() {}

__device__ __forceinline__ void wait_for_cycles(unsigned cycles) {
    const long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

// ---- blocks of a cluster, from sm_90 on ----
//
// A barrier in shared memory (an mbarrier) has two phases that alternate: one is over once the threads that it counts
// have arrived, and as many bytes as they said to expect.

// To be called by one thread, before `arrive_at_cluster`.
__device__ __forceinline__ void init_barrier(unsigned long long* barrier, unsigned threads) {
    const auto at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(threads) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// All threads of the cluster: the first says that this one is here, the second waits for all others. What the first
// releases is the barriers of `init_barrier`, whose fence has seen to it; a release of its own would be a fence for all
// of the GPU before the first load (H200: with a division there, too, 1x32768 float32 took 5.7 us for 5.4).
__device__ __forceinline__ void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Arrives, and expects so many bytes more. Some may have come already.
__device__ __forceinline__ void arrive_and_expect(unsigned long long* barrier, unsigned bytes) {
    const auto at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

// Stores 8 bytes where `to` is in the block of that rank, and tells the barrier that is there where `barrier` is here.
// The thread goes on.
__device__ __forceinline__ void store_async(unsigned long long* to, unsigned long long word,
                                            unsigned long long* barrier, unsigned rank) {
    unsigned there, barrier_there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(barrier_there)
        : "r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier))), "r"(rank));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(there), "l"(word),
                 "r"(barrier_there)
                 : "memory");
}

// Waits until the phase of that parity is over: what it brought is there.
__device__ __forceinline__ void wait_for_phase(unsigned long long* barrier, unsigned parity) {
    const auto at = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
    unsigned over;
    do {
        asm volatile(
            "{\n"
            "    .reg .pred over;\n"
            "    mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%1], %2;\n"
            "    selp.u32 %0, 1, 0, over;\n"
            "}"
            : "=r"(over)
            : "r"(at), "r"(parity)
            : "memory");
    } while (!over);
}

}  // namespace onepass::cuda::ptx
#endif
