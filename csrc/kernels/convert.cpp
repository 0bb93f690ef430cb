// Compiled once per instruction set: ONEPASS_ISA names it.
#include "onepass/cpu/convert.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template void gather(float*, const char*, DType, std::int64_t, std::int64_t, std::int64_t);
template void gather(double*, const char*, DType, std::int64_t, std::int64_t, std::int64_t);
template void gather(half*, const char*, DType, std::int64_t, std::int64_t, std::int64_t);
template void gather(bfloat16*, const char*, DType, std::int64_t, std::int64_t, std::int64_t);
template void scatter(char*, DType, std::int64_t, std::int64_t, const float*, std::int64_t);
template void scatter(char*, DType, std::int64_t, std::int64_t, const double*, std::int64_t);
template void scatter(char*, DType, std::int64_t, std::int64_t, const half*, std::int64_t);
template void scatter(char*, DType, std::int64_t, std::int64_t, const bfloat16*, std::int64_t);

}  // namespace ONEPASS_ISA
}  // namespace onepass
