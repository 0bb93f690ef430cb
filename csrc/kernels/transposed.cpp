// Compiled once per instruction set: ONEPASS_ISA names it.
#include "onepass/cpu/folded_rows.h"
#include "onepass/cpu/rows_across.h"
#include "onepass/cpu/transposed_rows.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template Form run_transposed<float>(const Job&, const void*, void*);
template Form run_transposed<double>(const Job&, const void*, void*);
template Form run_transposed_gradient<float>(const Job&, const Addresses&, void*);
#if defined(__AVX2__)  // kFolds
template Form run_folded<float>(const Job&, const void*, void*);
template Form run_folded<half>(const Job&, const void*, void*);
template Form run_folded<bfloat16>(const Job&, const void*, void*);
template Form run_across<float>(const Job&, const void*, void*);
template Form run_across<half>(const Job&, const void*, void*);
template Form run_across<bfloat16>(const Job&, const void*, void*);
#endif
#if !defined(__x86_64__) || defined(__AVX2__)  // kFewKernels
template Form run_transposed<half>(const Job&, const void*, void*);
template Form run_transposed_gradient<half>(const Job&, const Addresses&, void*);
template Form run_transposed<bfloat16>(const Job&, const void*, void*);
template Form run_transposed_gradient<bfloat16>(const Job&, const Addresses&, void*);
#endif

}  // namespace ONEPASS_ISA
}  // namespace onepass
