// Compiled once per instruction set: ONEPASS_ISA names it.
#include "onepass/cpu/tiles.h"

#include "kernels.h"

namespace onepass {
inline namespace ONEPASS_ISA {

void run_tiles(const Job& job, const void* x, void* y) {
    if (job.in == job.out) {
        with_type(job.in, [&](auto* null) { Tiles<std::remove_pointer_t<decltype(null)>>(job, x, y).run(); });
    } else if (job.in == DType::f64 || job.out == DType::f64) {
        Tiles<double>(job, x, y).run();
    } else {
        Tiles<float>(job, x, y).run();
    }
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
