// What a launch hands to the kernel of a gradient: one problem. Plain data, a sequence of 8-byte words:
//
//     the arrays' addresses, rows, length, then of each axis its size and its stride in each array
//
// The arrays are what the operation saved (its result y; of logsumexp its input x), dx, dy, and of logsumexp its
// result. Axes are the kept ones, slowest first, then the reduced ones, slowest first. Sizes and strides count
// elements; an array that is expanded along an axis has the stride 0 there.
#pragma once

#include "types.h"

namespace onepass::cuda {

enum GradientArray { kSaved, kDx, kDy, kLse };

template <int kArrays>
struct Offsets {
    int64 of[kArrays];
};

template <int kArrays>
struct GradientAxis {
    int64 size;
    int64 stride[kArrays];
};

template <int kArrays, int kAxes>
struct GradientJob {
    void* array[kArrays];
    int64 rows;    // product of the kept sizes
    int64 length;  // product of the reduced sizes
    GradientAxis<kArrays> axis[kAxes];

    template <class T>
    __device__ __forceinline__ const T* input(int which, const Offsets<kArrays>& offset) const {
        return static_cast<const T*>(array[which]) + offset.of[which];
    }
    template <class T>
    __device__ __forceinline__ T* result(const Offsets<kArrays>& offset) const {
        return static_cast<T*>(array[kDx]) + offset.of[kDx];
    }

    // Where element `index` of the axes [kFirst, kFirst + kCount) lies: one division per axis but the slowest.
    template <int kFirst, int kCount>
    __device__ __forceinline__ Offsets<kArrays> offset_of(int64 index) const {
        Offsets<kArrays> at{};
#pragma unroll
        for (int i = kFirst + kCount - 1; i >= kFirst; --i) {
            const int64 place = i == kFirst ? index : index % axis[i].size;
            if (i != kFirst) index /= axis[i].size;
#pragma unroll
            for (int a = 0; a < kArrays; ++a) at.of[a] += place * axis[i].stride[a];
        }
        return at;
    }
};

}  // namespace onepass::cuda
