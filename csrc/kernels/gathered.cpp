// Compiled once per instruction set: ONEPASS_ISA names it.
#include "onepass/cpu/gathered.h"

#include "gradient_dispatch.h"
#include "kernels.h"

namespace onepass {
inline namespace ONEPASS_ISA {

Form run_gathered(const Job& job, const Addresses& in, void* y) { return run_gradient_typed<Gathered>(job, in, y); }

void relay(const Relay& axes, void* to, DType to_type, const void* from, DType from_type) {
    with_type(to_type, [&](auto* to_null) {
        with_type(from_type, [&](auto* from_null) {
            using To = std::remove_pointer_t<decltype(to_null)>;
            using From = std::remove_pointer_t<decltype(from_null)>;
            axes.run(static_cast<To*>(to), static_cast<const From*>(from));
        });
    });
}

}  // namespace ONEPASS_ISA
}  // namespace onepass
