// From the dtypes of a gradient to the template that serves it: GradientRows or GradientTiles.
#pragma once

#include "onepass/cpu/access.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Of the arrays that have a value for every element: what a row has one of is converted whatever it is.
inline bool any_is(const Job& job, DType type) {
    const DType second = job.op == Op::logsumexp_backward ? job.in : job.second;
    return job.in == type || second == type || job.out == type;
}
inline bool all_are(const Job& job, DType type) {
    return job.in == type && job.out == type && (job.op == Op::logsumexp_backward || job.second == type);
}

// One dtype throughout: kernels read and write it, if they are compiled for it. Several: all are converted in
// cache-sized pieces.
template <template <class> class Kernels>
inline Form run_gradient_typed(const Job& job, const Addresses& in, void* y) {
    if (any_is(job, DType::f64)) return Kernels<double>(job, in, y).run();
    if constexpr (!kFewKernels) {
        if (all_are(job, DType::f16)) return Kernels<half>(job, in, y).run();
        if (all_are(job, DType::bf16)) return Kernels<bfloat16>(job, in, y).run();
    }
    return Kernels<float>(job, in, y).run();
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
