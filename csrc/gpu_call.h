// A call on a GPU whose plan is bound: the result is made, the kernel launched, nothing else.
#pragma once

#include <memory>
#include <vector>

#include "arrays.h"
#include "cuda_kernel.h"

namespace onepass {

// The arrays that a call reads: x, and what a gradient reads beside it; null where there is none.
struct Sources {
    const ArrayView* x;
    const ArrayView* second = nullptr;
    const ArrayView* third = nullptr;
};

// The array that a call returns.
struct Result {
    DType dtype;
    int ndim;
    std::int64_t shape[kMostAxes];
};

// How an array library makes a result: make(x, *positional, **keywords), of which all but x is the same in every call.
// Libraries make their own arrays so that these are like all others of theirs: a torch tensor that came out of DLPack
// would ignore record_stream, and its memory might be reused too early.
class Maker {
   public:
    // Null for `make`: by the exchange API.
    Maker(PyObject* make, PyObject* positional, PyObject* keyword_names, PyObject* keyword_values, PyObject* finish);
    ~Maker();
    Maker(Maker&&) noexcept;
    Maker(const Maker&) = delete;
    Maker& operator=(Maker&&) = delete;

    // A new reference to the result and its address; null with a Python exception set.
    PyObject* operator()(const ArrayView& x, const Result& result, void** data) const;
    // Whether what is returned is more than what was made.
    bool finishes() const { return finish_ != nullptr; }
    // What is returned to the caller in place of `made`, whose reference it takes.
    PyObject* finish(PyObject* made, const Sources& in) const;

   private:
    PyObject* make_;
    PyObject* finish_;
    PyObject* keyword_names_;
    std::vector<PyObject*> args_;  // the first is x's place
};

struct GpuCall {
    cuda::Launch launch;
    Maker maker;
    const char* algorithm;
};

// Runs `call`. `out` null: a new array. Returns a new reference, or null with an exception set.
PyObject* run_gpu(const GpuCall& call, const Result& result, const Sources& in, PyObject* out,
                  const ArrayView* out_view);
// Launches `call` into y, which x's library made for it, without the GIL. False if it failed, or y is not enough.
bool launch_gpu(const GpuCall& call, const Sources& in, void* y);

}  // namespace onepass
