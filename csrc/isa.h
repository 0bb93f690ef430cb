// Which instruction sets this build carries and this processor has.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace onepass {

std::vector<std::string> usable_isas();  // best first
const Kernels& kernels();                // the chosen ones
bool choose_isa(const std::string& name);
int vector_bytes();

}  // namespace onepass
