// Compiled once per instruction set: ONEPASS_ISA names it.
#include "onepass/cpu/gradient_tiles.h"

#include "gradient_dispatch.h"
#include "kernels.h"

namespace onepass {
inline namespace ONEPASS_ISA {

void run_gradient_tiles(const Job& job, const Addresses& in, void* y) {
#if defined(__AVX512BF16__)
    if (!all_are(job, DType::bf16)) return v4::run_gradient_tiles(job, in, y);
#endif
    run_gradient_typed<GradientTiles>(job, in, y);
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
