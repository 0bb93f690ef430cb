// From the dtypes of a job to the template that serves it: Rows or Tiles.
#pragma once

#include "onepass/cpu/access.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// One dtype throughout: kernels read and write it, if they are compiled for it. Two: both ends are converted in
// cache-sized pieces.
template <template <class> class Kernels>
inline Form run_typed(const Job& job, const void* x, void* y) {
    if (job.in == DType::f64 || job.out == DType::f64) return Kernels<double>(job, x, y).run();
    if constexpr (!kFewKernels) {
        if (job.in == DType::f16 && job.out == DType::f16) return Kernels<half>(job, x, y).run();
        if (job.in == DType::bf16 && job.out == DType::bf16) return Kernels<bfloat16>(job, x, y).run();
    }
    return Kernels<float>(job, x, y).run();
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
