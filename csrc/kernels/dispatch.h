// From the dtypes of a job to the template that serves it: Rows or Tiles.
#pragma once

#include "onepass/cpu/access.h"

namespace onepass {
#if defined(__AVX512BF16__)
namespace v4 {
void run_rows(const Job& job, const void* x, void* y);
void run_tiles(const Job& job, const void* x, void* y);
}  // namespace v4
#endif

inline namespace ONEPASS_ISA {

// Only kernels that write bfloat16 themselves are compiled for the instruction that rounds to it; all others would be
// the same as v4's, and are v4's.
inline bool is_bfloat16(const Job& job) { return job.in == DType::bf16 && job.out == DType::bf16; }

// One dtype throughout: kernels read and write it, if they are compiled for it. Two: both ends are converted in
// cache-sized pieces.
template <template <class> class Kernels>
inline void run_typed(const Job& job, const void* x, void* y) {
#if defined(__AVX512BF16__)
    Kernels<bfloat16>(job, x, y).run();
#else
    if (job.in == DType::f64 || job.out == DType::f64) return Kernels<double>(job, x, y).run();
    if constexpr (!kFewKernels) {
        if (job.in == DType::f16 && job.out == DType::f16) return Kernels<half>(job, x, y).run();
        if (is_bfloat16(job)) return Kernels<bfloat16>(job, x, y).run();
    }
    Kernels<float>(job, x, y).run();
#endif
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
