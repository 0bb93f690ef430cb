// The functions of onepass/cuda/ptx.h on a CPU.
#pragma once

#include "cusim.h"

#define ONEPASS_SHARED(type, name)  \
    static const char name##_key{}; \
    type& name = *static_cast<std::add_pointer_t<type>>(::cusim::variable(&name##_key, sizeof(type)))
#define ONEPASS_DYNAMIC_SHARED(name) unsigned char* const name = static_cast<unsigned char*>(::cusim::dynamic_memory())

namespace onepass::cuda::ptx {

inline void hide(unsigned&) {}

inline unsigned bits_of(float x) { return __builtin_bit_cast(unsigned, x); }

inline float from_half(unsigned short bits) {
    const unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 31) return __builtin_bit_cast(float, sign | 0x7f800000u | mantissa << 13);
    const float magnitude = exponent == 0 ? ldexpf(static_cast<float>(mantissa), -24)
                                          : __builtin_bit_cast(float, (exponent + 112) << 23 | mantissa << 13);
    return __builtin_bit_cast(float, sign | bits_of(magnitude));
}

inline unsigned short to_half(float x) {
    const unsigned sign = bits_of(x) >> 16 & 0x8000, magnitude = bits_of(x) & 0x7fffffff;
    const float size = __builtin_bit_cast(float, magnitude);
    if (x != x) return 0x7fff;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 0x1p-14f) return sign | static_cast<unsigned>(rintf(size * 0x1p24f));
    return sign | (((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10));
}

inline unsigned short to_bfloat16(float x) {
    if (x != x) return 0x7fff;
    return (bits_of(x) + 0x7fff + (bits_of(x) >> 16 & 1)) >> 16;
}

inline unsigned to_half_pair(float first, float second) {
    return to_half(first) | static_cast<unsigned>(to_half(second)) << 16;
}

inline unsigned to_bfloat16_pair(float first, float second) {
    return to_bfloat16(first) | static_cast<unsigned>(to_bfloat16(second)) << 16;
}

inline float to_float_odd(double x) {
    float toward_zero = static_cast<float>(x);
    if (fabs(static_cast<double>(toward_zero)) > fabs(x)) toward_zero = nextafterf(toward_zero, 0);
    if (static_cast<double>(toward_zero) == x || x != x) return toward_zero;
    return __builtin_bit_cast(float, bits_of(toward_zero) | 1);
}

// As wrong as the hardware may be: 2^-22 of the result, either way.
inline float exp2_approx(float x) {
    const float error = bits_of(x) % 7 < 3 ? -0x1p-22f : 0x1p-22f;
    const float y = exp2f(x) * (1 + error);
    return y < 0x1p-126f ? 0 : y;
}

// As wrong as the hardware may be: by 1 ULP, either way.
inline float reciprocal_approx(float x) {
    const float y = 1 / x;
    return y == 0 || y - y != 0 ? y : nextafterf(y, bits_of(x) % 5 < 2 ? 0 : 2 * y);
}

inline float max_nan(float a, float b) { return a > b || a != a ? a : b; }
inline float min_nan(float a, float b) { return a < b || a != a ? a : b; }

inline constexpr bool kComparesPairs = true;
inline unsigned max_half_pair(unsigned a, unsigned b) {
    const auto of = [](unsigned short x, unsigned short y) { return to_half(max_nan(from_half(x), from_half(y))); };
    return of(a, b) | static_cast<unsigned>(of(a >> 16, b >> 16)) << 16;
}
inline unsigned max_bfloat16_pair(unsigned a, unsigned b) {
    const auto of = [](unsigned x, unsigned y) {
        return to_bfloat16(max_nan(__builtin_bit_cast(float, x << 16), __builtin_bit_cast(float, y << 16)));
    };
    return of(a, b) | static_cast<unsigned>(of(a >> 16, b >> 16)) << 16;
}

inline int max_of_warp(int x) {
    for (int mask = 16; mask > 0; mask /= 2) {
        const int other = static_cast<int>(__shfl_xor_sync(0xffffffffu, static_cast<unsigned>(x), mask));
        x = x > other ? x : other;
    }
    return x;
}

// A copy is done when it is waited for, no sooner: until then there is NaN.
template <int kBytes>
void copy_async(void* to_shared, const void* from) {
    struct alignas(kBytes) Bytes {
        unsigned char at[kBytes];
    };
    memset(cusim::aligned(static_cast<Bytes*>(to_shared), cusim::here())->at, 0xff, kBytes);
    cusim::copies().push_back({to_shared, cusim::aligned(static_cast<const Bytes*>(from), cusim::here()), kBytes});
}

template <class Word>
void store_word(Word* to, Word word) {
    *to = word;
}
template <class Word>
void store_word_once(Word* to, Word word) {
    *to = word;
}

inline unsigned load_word_if(bool there, const unsigned* from) { return there ? *from : 0; }

inline void end_group() { cusim::copies().push_back({}); }

template <int kGroups>
void wait_for_copies() {
    auto& copies = cusim::copies();
    std::size_t ends = 0, done = copies.size();
    while (done > 0 && (ends < kGroups || copies[done - 1].to)) {
        --done;
        ends += !copies[done].to;
    }
    for (std::size_t i = 0; i < done; ++i) {
        if (copies[i].to) memcpy(copies[i].to, copies[i].from, copies[i].bytes);
    }
    copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(done));
}

// Two accesses, with other threads between them: no more is promised.
inline uint4 load_shared_words(const uint4* from) {
    const auto* words = reinterpret_cast<const unsigned long long*>(cusim::aligned(from, cusim::here()));
    const auto low = __atomic_load_n(words, __ATOMIC_RELAXED), high = __atomic_load_n(words + 1, __ATOMIC_RELAXED);
    return {static_cast<unsigned>(low), static_cast<unsigned>(low >> 32), static_cast<unsigned>(high),
            static_cast<unsigned>(high >> 32)};
}

inline unsigned load_shared_word(const unsigned* from) { return __atomic_load_n(from, __ATOMIC_RELAXED); }
inline unsigned zero_of_thread() { return 0; }

// Either half first.
inline void store_shared_words(uint4* to, uint4 words) {
    auto* target = reinterpret_cast<unsigned long long*>(cusim::aligned(to, cusim::here()));
    const unsigned long long halves[] = {static_cast<unsigned long long>(words.y) << 32 | words.x,
                                         static_cast<unsigned long long>(words.w) << 32 | words.z};
    const unsigned first = cusim::view().block.x % 2;
    __atomic_store_n(target + first, halves[first], __ATOMIC_RELAXED);
    cusim::yield(cusim::here());
    __atomic_store_n(target + 1 - first, halves[1 - first], __ATOMIC_RELAXED);
}

inline void store_shared_word(unsigned* to, unsigned word) { __atomic_store_n(to, word, __ATOMIC_RELAXED); }
inline void raise(unsigned* word, unsigned to) {
    if (__atomic_load_n(word, __ATOMIC_RELAXED) < to) __atomic_store_n(word, to, __ATOMIC_RELAXED);
}

inline unsigned count_up(unsigned* counter, unsigned last) {
    unsigned before = __atomic_load_n(counter, __ATOMIC_RELAXED);
    __atomic_store_n(counter, before >= last ? 0 : before + 1, __ATOMIC_RELAXED);  // fibers share one thread
    return before;
}

inline void wait_a_little() { cusim::spin(cusim::here()); }
inline void wait_for_cycles(unsigned) { cusim::yield(cusim::here()); }  // time is what a schedule makes of it

inline void init_barrier(unsigned long long* barrier, unsigned threads) { cusim::init_phases(barrier, threads); }
inline void arrive_at_cluster() { cusim::cluster_arrive(); }
inline void wait_for_cluster() { cusim::cluster_wait(cusim::here()); }

inline void arrive_and_expect(unsigned long long* barrier, unsigned bytes) {
    cusim::expect(barrier, bytes, cusim::here());
}

// Until it is received there is NaN.
inline void store_async(unsigned long long* to, unsigned long long word, unsigned long long* barrier, unsigned rank) {
    unsigned long long* const there = cusim::elsewhere(cusim::aligned(to, cusim::here()), rank, cusim::here());
    *there = ~0ull;
    cusim::send({there, word}, barrier, rank, cusim::here());
}

inline void wait_for_phase(unsigned long long* barrier, unsigned parity) {
    while (!cusim::over(barrier, parity, cusim::here())) {
        cusim::Store store;
        if (!cusim::receive(barrier, store)) {
            cusim::spin(cusim::here());
            continue;
        }
        *store.to = store.word;
        cusim::count(barrier, sizeof store.word);
        cusim::yield(cusim::here());
    }
}

}  // namespace onepass::cuda::ptx
