// What the planner hands to the CPU kernels: one problem, cut up. Plain data; strides are in elements.
#pragma once

#include <cstdint>

// Always inlined: a function that one instruction set's object file emits must not be linked into another's.
#define ONEPASS_INLINE __attribute__((always_inline)) inline

// On a lambda that is the body of an inner loop: left to itself the compiler may call it, with its sums in memory.
#define ONEPASS_INLINE_BODY __attribute__((always_inline))

// What is away from the hot loop, and would otherwise be compiled again wherever it is called.
#define ONEPASS_APART __attribute__((noinline))

// What is mostly a hot loop, and would otherwise be compiled again for arguments that are constant in a call.
#if defined(__clang__)
#define ONEPASS_ONCE __attribute__((noinline))
#else
#define ONEPASS_ONCE __attribute__((noinline, noclone))
#endif

namespace onepass {

enum class DType : std::uint8_t { f32, f64, f16, bf16 };
enum class Op : std::uint8_t {
    softmax,
    log_softmax,
    logsumexp,
    sum,
    mean,
    amax,
    amin,
    softmax_backward,
    log_softmax_backward,
    logsumexp_backward
};
enum class Algorithm : std::uint8_t { registers, row, online, split, strided, packed };

ONEPASS_INLINE std::int64_t size_of(DType t) { return t == DType::f32 ? 4 : t == DType::f64 ? 8 : 2; }
ONEPASS_INLINE bool is_gradient(Op op) { return op >= Op::softmax_backward; }
ONEPASS_INLINE bool is_sum(Op op) { return op == Op::sum || op == Op::mean; }
// A reduction without exponentials.
ONEPASS_INLINE bool is_plain(Op op) { return is_sum(op) || op == Op::amax || op == Op::amin; }
ONEPASS_INLINE bool is_elementwise(Op op) { return op == Op::softmax || op == Op::log_softmax || is_gradient(op); }

struct Axis {
    std::int64_t size;
    std::int64_t x_stride;
    std::int64_t y_stride;
    std::int64_t z_stride = 0;  // of the second input, which gradients have, and of the third
    std::int64_t w_stride = 0;
};

// NumPy's own limit on dimensions; collapsing leaves one to three of them.
constexpr int kMostAxes = 64;

struct Axes {
    int count = 0;
    Axis axis[kMostAxes];

    ONEPASS_INLINE bool empty() const { return count == 0; }
    ONEPASS_INLINE const Axis& operator[](int i) const { return axis[i]; }
    ONEPASS_INLINE const Axis& back() const { return axis[count - 1]; }
};

struct Job {
    Op op;
    Algorithm algorithm;
    DType in;
    DType second;  // of the other inputs of a gradient
    DType third;
    DType out;
    Axes outer;           // kept axes except `inner`, slowest first
    Axes reduce;          // reduced axes, slowest first
    Axis inner;           // the kept axis that tiles run along (strided, packed); size 1 for rows
    std::int64_t rows;    // product of the outer sizes
    std::int64_t length;  // product of the reduced sizes
    std::int64_t chunk;   // elements (rows) or steps of the reduced axis (tiles) handled at once
    std::int64_t tile;    // inner elements per tile
    bool resident;        // a unit stays in cache between its passes: one read of main memory
    bool split;           // chunks of one unit go to several threads
    bool nontemporal;     // results bypass the cache
    bool cached;          // columns, or rows that are short or added up, may all be in L3
    int threads;          // at most this many
    // Rows, along each axis of `outer`, of blocks that are gathered (gathered.h); the first 0: rows are read where they
    // lie, or one by one.
    std::int64_t blocks[kMostAxes] = {};

    ONEPASS_INLINE bool is_gathered() const { return blocks[0] != 0; }
};

// Where the inputs of a call lie. Of softmax_backward and log_softmax_backward: y and dy; of logsumexp_backward: x, and
// with one value for each row dy and lse.
struct Addresses {
    const void* x;
    const void* second = nullptr;
    const void* third = nullptr;
};

// How an algorithm went about it. The kernels decide, by their vectors and by addresses: a plan does not tell.
enum class Form : std::uint8_t {
    usual,
    transposed,  // transposed.h
    folded,      // folded_rows.h
    across,      // rows_across.h
    columns,     // some vectors of columns at a time down all rows: short_columns.h
    wide,        // a few rows at a time along all columns: wide_reductions.h
    gathered,    // blocks of rows, computed side by side in a near cache: gathered.h
};

// Stores past the cache fill whole lines.
constexpr std::int64_t kCacheLine = 64;

// Whether the processor looks so far ahead in memory by itself that streams need no hints, and rows in the cache
// nothing beside them (isa.cpp; gradient_rows.h). On a Zen 5, two threads, pages of 4 KiB, times of sums without hints
// over those with: 60 x 22693 in L3 0.83, 8 x 2097152 from memory 0.89; of maxima 0.8 and 0.82; of ten such shapes 0.92
// in geometric mean.
extern bool looks_far_ahead;

// `n` elements, into this level of cache.
template <int kLevel, class T>
ONEPASS_INLINE void fetch_into(const T* p, std::int64_t n) {
    const char* bytes = reinterpret_cast<const char*>(p);
    for (std::int64_t i = 0; i < n * static_cast<std::int64_t>(sizeof(T)); i += kCacheLine) {
        __builtin_prefetch(bytes + i, 0, 4 - kLevel);
    }
}

// The same by reading a byte of each line.
template <class T>
ONEPASS_INLINE void touch(const T* p, std::int64_t n) {
    const auto* bytes = reinterpret_cast<const volatile char*>(p);
    for (std::int64_t i = 0; i < n * static_cast<std::int64_t>(sizeof(T)); i += kCacheLine) (void)bytes[i];
}

// Elements that will soon be read, into the second level. Not the first: so few lines may be on their way into that one
// that what is far apart comes at half of memory's speed. Measured on a Zen 4, 16 x 256 x 3136, dim 1, one thread:
// softmax 7.4 ns a vector to the first and 6.4 to the second, log_softmax 10.1 and 7.5, its gradient 15.8 and 8.5. A
// Zen 5 has more lines under way, and waits less for the first: times to the first over those to the second, one thread
// and two, log_softmax of 262144 x 128 0.69 and 0.90, softmax of it 0.90 and 0.94, of 4096 x 8192 0.86 and 0.98, its
// gradient of 4096 x 1024 0.79 and 0.96, amax of 32 x 256 x 1568, dim 1, 0.84 and 0.90.
template <class T>
ONEPASS_INLINE void fetch_soon(const T* p, std::int64_t n) {
    looks_far_ahead ? fetch_into<1>(p, n) : fetch_into<2>(p, n);
}

}  // namespace onepass
