// Compiled once per instruction set: ONEPASS_ISA names it.
#include "onepass/cpu/gradient_rows.h"

#include "gradient_dispatch.h"
#include "kernels.h"

namespace onepass {
inline namespace ONEPASS_ISA {

Form run_gradient_rows(const Job& job, const Addresses& in, void* y) {
    return run_gradient_typed<GradientRows>(job, in, y);
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
