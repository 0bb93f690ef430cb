// What Python may ask of GPUs, besides the calls themselves.
#pragma once

#include <nanobind/nanobind.h>

namespace onepass {

void define_cuda(nanobind::module_& m);

}  // namespace onepass
