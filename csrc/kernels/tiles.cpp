// Compiled once per instruction set: ONEPASS_ISA names it.
#include "onepass/cpu/tiles.h"

#include "dispatch.h"
#include "kernels.h"

namespace onepass {
inline namespace ONEPASS_ISA {

Form run_tiles(const Job& job, const void* x, void* y) { return run_typed<Tiles>(job, x, y); }

}  // namespace ONEPASS_ISA
}  // namespace onepass
