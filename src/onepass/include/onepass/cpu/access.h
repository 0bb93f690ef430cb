// Rows that do not lie ready: any strides, any dtype. They are gathered, converted and scattered in pieces that fit the
// first-level cache, so the kernels only ever see contiguous spans of one type, and main memory sees each element once.
#pragma once

#include "job.h"
#include "simd.h"
#include "threads.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
    static constexpr DType value = DType::f32;
};
template <>
struct DTypeOf<double> {
    static constexpr DType value = DType::f64;
};
template <>
struct DTypeOf<half> {
    static constexpr DType value = DType::f16;
};
template <>
struct DTypeOf<bfloat16> {
    static constexpr DType value = DType::bf16;
};

// Calls f with a null pointer of the element type.
template <class F>
inline void with_type(DType t, F&& f) {
    switch (t) {
        case DType::f32: return f(static_cast<float*>(nullptr));
        case DType::f64: return f(static_cast<double*>(nullptr));
        case DType::f16: return f(static_cast<half*>(nullptr));
        case DType::bf16: return f(static_cast<bfloat16*>(nullptr));
    }
}

// n elements of any type, from `offset` elements behind x on, as T (convert.h).
template <class T>
void gather(T* to, const char* x, DType type, std::int64_t offset, std::int64_t stride, std::int64_t n);
// And back.
template <class T>
void scatter(char* y, DType type, std::int64_t offset, std::int64_t stride, const T* from, std::int64_t n);

// Offsets, in elements, of the position with this flat index.
struct Offsets {
    std::int64_t x = 0, y = 0;
};
inline Offsets offsets_of(const Axes& axes, std::int64_t index) {
    Offsets at;
    for (int a = axes.count; a-- > 0;) {
        const std::int64_t next = a == 0 ? 0 : index / axes[a].size;
        const std::int64_t here = index - next * axes[a].size;
        at.x += here * axes[a].x_stride;
        at.y += here * axes[a].y_stride;
        index = next;
    }
    return at;
}

// The same for one array, by the strides it has.
using Stride = std::int64_t Axis::*;
inline std::int64_t offset_of(const Axes& axes, std::int64_t index, Stride stride) {
    std::int64_t at = 0;
    for (int a = axes.count; a-- > 0;) {
        const std::int64_t next = a == 0 ? 0 : index / axes[a].size;
        at += (index - next * axes[a].size) * axes[a].*stride;
        index = next;
    }
    return at;
}

// Elements [begin, begin + n) of a row, as runs along its innermost axis: f(offset, position in the span, run length).
template <class F>
inline void for_runs(const Axes& axes, Stride stride, std::int64_t begin, std::int64_t n, F&& f) {
    if (axes.empty()) return f(std::int64_t{0}, std::int64_t{0}, n);
    const std::int64_t inner = axes.back().size;
    for (std::int64_t done = 0; done < n;) {
        const std::int64_t left = inner - (begin + done) % inner;
        const std::int64_t run = left < n - done ? left : n - done;
        f(offset_of(axes, begin + done, stride), done, run);
        done += run;
    }
}

// A row's elements as T, wherever and whatever they are. `row` points at the row's first element.
template <class T>
class RowInput {
   public:
    explicit RowInput(const Job& job) : RowInput(job, job.in, &Axis::x_stride) {}
    // An input of this type and these strides.
    RowInput(const Job& job, DType type, Stride stride)
        : axes_(&job.reduce),
          type_(type),
          stride_(stride),
          direct_(type == DTypeOf<T>::value &&
                  (job.length == 1 || (job.reduce.count == 1 && job.reduce[0].*stride == 1))) {}

    bool direct() const { return direct_; }

    // Elements [begin, begin + n); the pointer is into the row itself or into `buffer` of n elements.
    const T* read(const char* row, std::int64_t begin, std::int64_t n, T* buffer) const {
        if (direct_) return reinterpret_cast<const T*>(row) + begin;
        const std::int64_t stride = axes_->empty() ? 1 : axes_->back().*stride_;
        for_runs(*axes_, stride_, begin, n, [&](std::int64_t at, std::int64_t i, std::int64_t run) {
            gather(buffer + i, row, type_, at, stride, run);
        });
        return buffer;
    }

   private:
    const Axes* axes_;
    DType type_;
    Stride stride_;
    bool direct_;
};

template <class T>
class RowOutput {
   public:
    explicit RowOutput(const Job& job)
        : axes_(&job.reduce),
          type_(job.out),
          direct_(job.out == DTypeOf<T>::value &&
                  (job.length == 1 || (job.reduce.count == 1 && job.reduce[0].y_stride == 1))) {}

    bool direct() const { return direct_; }

    // Where to write elements [begin, ...): the row itself, or `buffer`, which write_back then copies there.
    T* target(char* row, std::int64_t begin, T* buffer) const {
        return direct_ ? reinterpret_cast<T*>(row) + begin : buffer;
    }
    void write_back(char* row, std::int64_t begin, std::int64_t n, const T* buffer) const {
        if (direct_) return;
        const std::int64_t stride = axes_->empty() ? 1 : axes_->back().y_stride;
        for_runs(*axes_, &Axis::y_stride, begin, n, [&](std::int64_t at, std::int64_t i, std::int64_t run) {
            scatter(row, type_, at, stride, buffer + i, run);
        });
    }

   private:
    const Axes* axes_;
    DType type_;
    bool direct_;
};

inline double read_scalar(const char* x, DType type) {
    double value = 0;
    with_type(type, [&](auto* null) {
        using From = std::remove_pointer_t<decltype(null)>;
        value = static_cast<double>(scalar<Compute<From>>(*reinterpret_cast<const From*>(x)));
    });
    return value;
}

inline void write_scalar(char* y, DType type, std::int64_t offset, double value) {
    with_type(type, [&](auto* null) {
        using To = std::remove_pointer_t<decltype(null)>;
        reinterpret_cast<To*>(y)[offset] = narrow_scalar<To>(value);
    });
}

// n results, float32 or float64, that lie side by side. Rounding them to 16 bits one by one takes longer than adding up
// a short row.
template <class T, class C>
inline void write_results(T* y, const C* results, int n) {
    int i = 0;
    if constexpr (sizeof(T) == 2) {
        constexpr int W = kLanes<float>;
        for (; i + W <= n; i += W) {
            if constexpr (sizeof(C) == 8) {
                alignas(kCacheLine) float odd[W];
                for (int k = 0; k < W; ++k) odd[k] = to_float_odd(results[i + k]);
                store(y + i, load(odd));
            } else {
                store(y + i, load(results + i));
            }
        }
    }
    for (; i < n; ++i) y[i] = narrow_scalar<T>(results[i]);
}

template <class T>
inline T* scratch_of(Scratch slot, std::int64_t n) {
    return static_cast<T*>(scratch(slot, static_cast<std::size_t>(n) * sizeof(T)));
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
