// A row of dy and of the saved array in shared memory, one after the other, each as it was read.
#pragma once

#include "block_smem.h"
#include "gradient_row.h"

namespace onepass::cuda {

template <class Dy, class Saved, class C, class RowCut>
struct KeptBoth {
    using KeptDy = KeptRow<Dy, C, RowCut>;
    using KeptSaved = KeptRow<Saved, C, RowCut>;

    KeptDy dy;
    KeptSaved saved;

    // With room for so many packs of each, and for edges.
    static __device__ __forceinline__ KeptBoth at(unsigned char* memory, int64 room, const RowCut& cut) {
        return {{{reinterpret_cast<Dy*>(memory), cut}, cut},
                {{reinterpret_cast<Saved*>(memory + bytes_of<Dy>(room)), cut}, cut}};
    }
    static __device__ __forceinline__ int64 bytes(int64 room) { return bytes_of<Dy>(room) + bytes_of<Saved>(room); }

    template <int N>
    __device__ __forceinline__ void keep(int64 column, const Both<C> (&values)[N]) const {
        C dy_values[N], saved_values[N];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            dy_values[i] = values[i].dy;
            saved_values[i] = values[i].saved;
        }
        dy.keep(column, dy_values);
        saved.keep(column, saved_values);
    }

    __device__ __forceinline__ auto reader() const {
        return BothReader<C, typename KeptDy::Reader, typename KeptSaved::Reader>{dy.reader, saved.reader};
    }

   private:
    // Whole accesses, so that what follows starts on a boundary.
    template <class T>
    static __device__ __forceinline__ int64 bytes_of(int64 room) {
        const int64 bytes = (room * RowCut::kPack + KeptDy::kEdgeRoom) * static_cast<int64>(sizeof(T));
        return (bytes + kAccessBytes - 1) / kAccessBytes * kAccessBytes;
    }
};

}  // namespace onepass::cuda
