// torch's softmax, log_softmax and their gradients, served below its dispatcher without a line of Python: what
// onepass.install puts in place of torch's kernels, for calls whose like has been planned. All others go to Python.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "torch_shim.h"

namespace onepass {

// Whether this torch has what it takes. With the GIL, as all that follows.
bool can_route();

// The operators and dispatch keys that can be routed so; their places here are the numbers of their kernels.
constexpr int kRoutes = 8;
using RouteName = std::pair<std::string, std::string>;
std::vector<RouteName> native_routes();

// Kernels that are in place until it is closed.
class RoutedLibrary {
   public:
    // On one dispatch key, for torch.Tensor, whose type it is given.
    RoutedLibrary(const std::string& key, PyObject* tensor_type);
    ~RoutedLibrary();
    RoutedLibrary(const RoutedLibrary&) = delete;
    RoutedLibrary& operator=(const RoutedLibrary&) = delete;

    // `missed(tensors, dim, other)` gets what is not served: capsules of handles that it owns, and the arguments that
    // are no tensors, as integers. It returns such a capsule, or raises what torch's caller is to see.
    void route(int number, PyObject* missed);
    void close();

   private:
    torch_shim::LibraryHandle library_ = nullptr;
};

// How many calls a route has served since it was put in place.
std::int64_t natively_served(int number);

}  // namespace onepass
