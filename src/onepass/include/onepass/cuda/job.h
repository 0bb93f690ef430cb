// What a launch hands to a kernel: one problem. Plain data, a sequence of 8-byte words:
//
//     x, y, rows, length, then size, x_stride, y_stride of each axis, then the fields of Load, then those of Store
//
// Axes are the kept ones, slowest first, then (kernels for any strides) the reduced ones, slowest first. Sizes and
// strides count elements. All of it is a run-time argument: a new shape needs a new kernel only where its plan differs.
#pragma once

#include "load_store.h"
#include "types.h"

namespace onepass::cuda {

struct Axis {
    int64 size;
    int64 x_stride;
    int64 y_stride;
};

struct Offset {
    int64 x;
    int64 y;
};

// A functor without fields takes no space; even two that are the same type, which a base or a member would not allow.
template <class F, int kWhich, bool kEmpty = __is_empty(F)>
struct Field {
    F functor;
    __device__ __forceinline__ F get() const { return functor; }
};
template <class F, int kWhich>
struct Field<F, kWhich, true> {
    __device__ __forceinline__ F get() const { return {}; }
};

template <int kAxes>
struct Layout {
    const void* x;
    void* y;
    int64 rows;    // product of the kept sizes
    int64 length;  // product of the reduced sizes
    Axis axis[kAxes];
};

template <int kAxes, class Load, class Store>
struct Job : Layout<kAxes>, Field<Load, 0>, Field<Store, 1> {
    __device__ __forceinline__ Load load() const { return Field<Load, 0>::get(); }
    __device__ __forceinline__ Store store() const { return Field<Store, 1>::get(); }

    // Where element `index` of the axes [kFirst, kFirst + kCount) lies: one division per axis but the slowest.
    template <int kFirst, int kCount>
    __device__ __forceinline__ Offset offset_of(int64 index) const {
        Offset at{0, 0};
#pragma unroll
        for (int i = kFirst + kCount - 1; i >= kFirst; --i) {
            const Axis& axis = this->axis[i];
            const int64 place = i == kFirst ? index : index % axis.size;
            if (i != kFirst) index /= axis.size;
            at.x += place * axis.x_stride;
            at.y += place * axis.y_stride;
        }
        return at;
    }
};

}  // namespace onepass::cuda
