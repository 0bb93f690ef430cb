// The extension module onepass._engine: what Python may ask of the engine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "calls.h"
#include "cuda_module.h"
#include "functions.h"
#include "isa.h"
#include "memory.h"
#include "producers.h"
#include "recorder.h"
#include "threads.h"
#include "torch_routes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onepass {
namespace {

// Size and strides, in the order of Axis.
using AxisNumbers = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

Axis axis_from(const AxisNumbers& numbers) {
    return std::apply([](auto... n) { return Axis{n...}; }, numbers);
}

Axes axes_from(const std::vector<AxisNumbers>& all) {
    if (all.size() > kMostAxes) throw nb::value_error("more than 64 axes");
    Axes axes;
    for (const AxisNumbers& numbers : all) axes.axis[axes.count++] = axis_from(numbers);
    return axes;
}

template <class E>
E checked(int value, int count, const char* what) {
    if (value < 0 || value >= count) throw nb::value_error(what);
    return static_cast<E>(value);
}

// Sets the array that a call returns; the number of its elements.
std::int64_t set_result(Result& result, DType dtype, const std::vector<std::int64_t>& shape) {
    if (shape.size() > kMostAxes) throw nb::value_error("more than 64 dimensions");
    result.dtype = dtype;
    result.ndim = static_cast<int>(shape.size());
    std::int64_t size = 1;
    for (std::size_t i = 0; i < shape.size(); ++i) size *= result.shape[i] = shape[i];
    return size;
}

// What Python holds of a bound plan. The plan itself belongs to C++: it outlives the interpreter's objects.
struct BoundHandle {
    std::shared_ptr<const Bound> bound;
};

BoundHandle bind(int op, int algorithm, int in, int second, int third, int out, const std::vector<AxisNumbers>& outer,
                 const std::vector<AxisNumbers>& reduce, const AxisNumbers& inner,
                 const std::vector<std::int64_t>& blocks, std::int64_t rows, std::int64_t length, std::int64_t chunk,
                 std::int64_t tile, bool resident, bool split, bool nontemporal, bool cached, int threads,
                 const std::vector<std::int64_t>& shape) {
    auto bound = std::make_shared<Bound>();
    const auto algo = checked<Algorithm>(algorithm, 6, "unknown algorithm");
    const auto result = checked<DType>(out, 4, "unknown result dtype");
    const bool tiles = algo == Algorithm::strided || algo == Algorithm::packed;
    const std::int64_t inner_size = tiles ? std::get<0>(inner) : 1;
    const std::int64_t results = set_result(bound->result, result, shape);
    bound->how = CpuCall{.job = {.op = checked<Op>(op, 10, "unknown operation"),
                                 .algorithm = algo,
                                 .in = checked<DType>(in, 4, "unknown input dtype"),
                                 .second = checked<DType>(second, 4, "unknown input dtype"),
                                 .third = checked<DType>(third, 4, "unknown input dtype"),
                                 .out = result,
                                 .outer = axes_from(outer),
                                 .reduce = axes_from(reduce),
                                 .inner = axis_from(inner),
                                 .rows = rows,
                                 .length = length,
                                 .chunk = chunk,
                                 .tile = tile,
                                 .resident = resident,
                                 .split = split,
                                 .nontemporal = nontemporal,
                                 .cached = cached,
                                 .threads = threads},
                         .tiles = tiles,
                         .bytes = rows * inner_size * length *
                                      (size_of(static_cast<DType>(in)) +
                                       (is_gradient(static_cast<Op>(op)) ? size_of(static_cast<DType>(second)) : 0)) +
                                  results * size_of(result)};
    if (!blocks.empty() && blocks.size() != outer.size()) throw nb::value_error("one block size for each outer axis");
    std::copy(blocks.begin(), blocks.end(), std::get<CpuCall>(bound->how).job.blocks);
    return {bound};
}

BoundHandle bind_gpu(cuda::Kernel& kernel, const std::string& algorithm, int threads, int cluster, bool cooperative,
                     unsigned shared_bytes, std::int64_t units, std::int64_t units_per_block, int waves, int team,
                     std::int64_t scratch_bytes, bool hands_out, int unit_slots, int arrays,
                     const std::vector<std::int64_t>& words, int out, const std::vector<std::int64_t>& shape,
                     nb::object make, nb::tuple positional, nb::object keyword_names, nb::tuple keyword_values,
                     nb::object finish) {
    const cuda::Geometry geometry{threads, cluster, cooperative,   shared_bytes, units,     units_per_block,
                                  waves,   team,    scratch_bytes, hands_out,    unit_slots};
    Result result;
    set_result(result, checked<DType>(out, 4, "unknown result dtype"), shape);
    return {std::make_shared<Bound>(
        Bound{result, GpuCall{{kernel, geometry, arrays, words},
                              {make.ptr(), positional.ptr(), keyword_names.ptr(), keyword_values.ptr(), finish.ptr()},
                              algorithm_name(algorithm)}})};
}

// (blocks of a launch, blocks that are resident on one multiprocessor) of a plan bound for a GPU.
std::pair<unsigned, int> gpu_grid(const BoundHandle& handle) {
    const auto* gpu = std::get_if<GpuCall>(&handle.bound->how);
    if (!gpu) throw nb::type_error("gpu_grid: the plan is bound for a CPU");
    return {gpu->launch.grid(), gpu->launch.resident_blocks()};
}

// Launches a bound plan so many times in a row: what the driver's launch costs alone, for the benchmark.
void relaunch(const BoundHandle& handle, nb::handle x, nb::handle out, int times) {
    const auto* gpu = std::get_if<GpuCall>(&handle.bound->how);
    ArrayView view, out_view;
    cuda::Stream stream;
    if (!gpu || gpu->launch.arrays() != 2 || !view_array(x.ptr(), view) || !view_array(out.ptr(), out_view))
        throw nb::type_error("relaunch: a plan bound for a GPU with one input, and arrays there");
    if (!current_stream(view, stream)) throw nb::python_error();
    for (int i = 0; i < times; ++i) cuda::check(gpu->launch({view.data, out_view.data}, stream), "launch a kernel");
}

// (dtype, shape, strides in elements, address, writable, is a tensor, ordinal of its GPU or None), or None for an array
// the kernels cannot read.
nb::object describe(nb::handle x) {
    ArrayView v;
    if (!view_array(x.ptr(), v)) return nb::none();
    nb::list shape, strides;
    for (int i = 0; i < v.ndim; ++i) {
        shape.append(v.shape[i]);
        strides.append(v.strides[i]);
    }
    return nb::make_tuple(static_cast<int>(v.dtype), nb::tuple(shape), nb::tuple(strides),
                          reinterpret_cast<std::uintptr_t>(v.data), v.writable, v.api != nullptr,
                          v.device == kCpu ? nb::none() : nb::cast(v.device));
}

std::string overlap(nb::handle a, nb::handle b) {
    ArrayView va, vb;
    if (!view_array(a.ptr(), va) || !view_array(b.ptr(), vb))
        throw nb::type_error("overlap: not arrays the kernels read");
    switch (overlap_of(va, vb)) {
        case Overlap::none: return "none";
        case Overlap::same: return "same";
        default: return "some";
    }
}

void remember_call(nb::handle op, nb::handle x, nb::handle dim, nb::handle keepdim, nb::handle dtype, nb::handle out,
                   nb::handle algorithm, const BoundHandle& handle) {
    PyObject* args[] = {op.ptr(), x.ptr(), dim.ptr(), keepdim.ptr(), dtype.ptr(), out.ptr(), algorithm.ptr()};
    remember(args, handle.bound);
}

void remember_gradient_call(nb::handle op, nb::handle x, nb::handle second, nb::handle third, nb::handle dim,
                            nb::handle keepdim, nb::handle dtype, nb::handle out, nb::handle algorithm,
                            const BoundHandle& handle) {
    PyObject* args[] = {op.ptr(),      x.ptr(),     second.ptr(), third.ptr(),    dim.ptr(),
                        keepdim.ptr(), dtype.ptr(), out.ptr(),    algorithm.ptr()};
    remember_gradient(args, handle.bound);
}

nb::dict stats() {
    const MemoryStats s = memory_stats();
    nb::dict d;
    d["bound_bytes"] = s.bound_bytes;
    d["cached_bytes"] = s.cached_bytes;
    d["cached_blocks"] = s.cached_blocks;
    d["live_bytes"] = s.live_bytes;
    d["live_blocks"] = s.live_blocks;
    d["hits"] = s.hits;
    d["misses"] = s.misses;
    return d;
}

void copy(std::uintptr_t to, std::uintptr_t from, std::int64_t bytes, bool nontemporal) {
    if (bytes < 0 || bytes % 4 != 0) throw nb::value_error("copy: bytes must be a multiple of 4, not negative");
    nb::gil_scoped_release release;
    kernels().copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes, nontemporal,
                   get_num_threads());
}

// A plain function, as `call` is: where the interpreter ends while the GIL is released, CPython unwinds the thread, and
// nanobind's catch-all would stop it.
PyObject* run(PyObject*, PyObject* const* args, Py_ssize_t count) {
    BoundHandle* handle = nullptr;
    ArrayView view, out_view, beside[2];
    bool readable = count >= 3 && count <= 5 && nb::try_cast(nb::handle(args[0]), handle) &&
                    view_array(args[1], view) && (args[2] == Py_None || view_array(args[2], out_view));
    for (Py_ssize_t i = 3; readable && i < count; ++i) readable = view_array(args[i], beside[i - 3]);
    if (!readable) {
        PyErr_SetString(PyExc_TypeError,
                        "run(bound, x, out, ...): arrays that the kernels read and write, or out=None");
        return nullptr;
    }
    const std::shared_ptr<const Bound> bound = handle->bound;
    const Sources in{&view, count > 3 ? &beside[0] : nullptr, count > 4 ? &beside[1] : nullptr};
    return run_bound(*bound, in, args[2] == Py_None ? nullptr : args[2], &out_view);
}

PyMethodDef hot_methods[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&run)), METH_FASTCALL,
     "run(bound, x, out, ...) -> result; out may be None, further arrays are those that a gradient reads beside x"},
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)), METH_FASTCALL,
     "call(op, x, dim, keepdim, dtype, out, algorithm) -> result, or None if this call has to be planned first"},
    {"call_gradient", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_gradient)), METH_FASTCALL,
     "call_gradient(op, x, second, third, dim, keepdim, dtype, out, algorithm) -> as call"},
    {"call_memory", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_memory)), METH_FASTCALL,
     "call, with tensors read as memory alone, also those that require grad"},
    {"call_gradient_memory", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_gradient_memory)),
     METH_FASTCALL, "call_gradient, with tensors read as memory alone"},
    {"call_data", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_data)), METH_FASTCALL,
     "call_data(function, *args): function(*args), in which tensors are memory alone, also those that require grad"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

NB_MODULE(_engine, m) {
    m.doc() = "The compiled half of onepass: CPU kernels, array exchange, threads, the memory of results.";
    if (!import_numpy()) throw nb::python_error();
    prepare_threads();
    // A daemon thread inside a call when the interpreter ends keeps its plan: nothing to warn a user of.
    nb::set_leak_warnings(false);
    choose_isa("");
    define_cuda(m);
    nb::class_<BoundHandle>(m, "Bound");
    m.def("bind", &bind, nb::kw_only(), "op"_a, "algorithm"_a, "dtype"_a, "second_dtype"_a, "third_dtype"_a,
          "result_dtype"_a, "outer"_a, "reduce"_a, "inner"_a, "blocks"_a, "rows"_a, "length"_a, "chunk"_a, "tile"_a,
          "resident"_a, "split"_a, "nontemporal"_a, "cached"_a, "threads"_a, "shape"_a);
    m.def("bind_gpu", &bind_gpu, nb::kw_only(), "kernel"_a, "algorithm"_a, "threads"_a, "cluster"_a, "cooperative"_a,
          "shared_bytes"_a, "units"_a, "units_per_block"_a, "waves"_a, "team"_a = 0, "scratch_bytes"_a = 0,
          "hands_out"_a = false, "unit_slots"_a = 0, "arrays"_a, "words"_a, "result_dtype"_a, "shape"_a,
          "make"_a.none(), "positional"_a, "keyword_names"_a.none(), "keyword_values"_a, "finish"_a.none());
    m.def("gpu_grid", &gpu_grid, "bound"_a);
    m.def("relaunch", &relaunch, "bound"_a, "x"_a, "out"_a, "times"_a);
    m.def("describe", &describe, "x"_a.none());
    m.def("overlap", &overlap, "a"_a, "b"_a);
    m.def("remember", &remember_call, "op"_a, "x"_a, "dim"_a.none(), "keepdim"_a, "dtype"_a.none(), "out"_a.none(),
          "algorithm"_a.none(), "bound"_a);
    m.def("remember_gradient", &remember_gradient_call, "op"_a, "x"_a, "second"_a, "third"_a.none(), "dim"_a.none(),
          "keepdim"_a, "dtype"_a.none(), "out"_a.none(), "algorithm"_a.none(), "bound"_a);
    m.def("forget_all", &forget_all);
    m.def(
        "try_first",
        [](nb::callable function, int op, nb::tuple names, nb::object unset, nb::callable otherwise) {
            try_first(function.ptr(), checked<int>(op, kFunctions, "try_first: no function of one array"), names.ptr(),
                      unset.ptr(), otherwise.ptr());
        },
        "function"_a, "op"_a, "names"_a, "unset"_a, "otherwise"_a);
    m.def("last_algorithm", &last_algorithm);
    m.def("last_form", &last_form);
    m.def("assume_looking_far_ahead", [](bool so) { return std::exchange(looks_far_ahead, so); });
    m.def(
        "make_tensors_by",
        [](nb::handle tensor_type, nb::object capsule) {
            TensorKind kind;
            if (!tensor_kind(tensor_type.ptr(), kind)) return false;
            void* make = capsule.is_none() ? nullptr : PyCapsule_GetPointer(capsule.ptr(), "onepass.make_tensor");
            if (!capsule.is_none() && !make) throw nb::python_error();
            make_tensors_by(kind.number, reinterpret_cast<MakeTensor>(make));
            return true;
        },
        "tensor_type"_a, "capsule"_a.none());
    m.def("borrow_threads", [](nb::handle tensor_type) {
        TensorKind kind;
        if (!torch_shim::find() || !tensor_kind(tensor_type.ptr(), kind)) return false;
        borrow_threads(kind.number, torch_shim::lend_threads);
        return true;
    });
    m.def("tell_of_writes", [](nb::handle tensor_type, nb::callable notice) {
        TensorKind kind;
        if (tensor_kind(tensor_type.ptr(), kind)) tell_of_writes(kind.number, notice.ptr());
    });
    m.def(
        "set_recorder",
        [](nb::callable is_grad_enabled, nb::callable is_inference, nb::callable is_transforming, nb::callable kept_dim,
           nb::tuple functions, nb::callable unrecorded, nb::object attach) {
            set_recorder(is_grad_enabled.ptr(), is_inference.ptr(), is_transforming.ptr(), kept_dim.ptr(),
                         functions.ptr(), unrecorded.ptr(), attach.ptr());
        },
        "is_grad_enabled"_a, "is_inference"_a, "is_transforming"_a, "kept_dim"_a, "functions"_a, "unrecorded"_a,
        "attach"_a.none());
    m.def(
        "set_recording_operators", [](nb::object functions) { set_recording_operators(functions.ptr()); },
        "functions"_a.none());
    m.def("register_exchange_type", [](nb::handle type) { return register_exchange_type(type.ptr()); });
    m.def(
        "register_producer", [](nb::handle type, nb::handle stream) { register_producer(type.ptr(), stream.ptr()); },
        "type"_a, "stream"_a.none());
    m.def("watch_forward_ad", [](nb::dict module_dict) { watch_forward_ad(module_dict.ptr()); });
    m.def("is_plain", [](nb::handle x) {
        ArrayView view;
        return view_array(x.ptr(), view) && !is_watched(view);
    });
    m.def("only_requires_grad", [](nb::handle x) { return only_requires_grad(x.ptr()); });
    m.def("watch", [](nb::handle function, bool half_only) { watch(function.ptr(), half_only); });
    m.def("watch_tracing", &watch_tracing, "library"_a);
    m.def("watch_modes", &watch_modes, "library"_a, "pre_dispatch_key"_a);
    m.def("register_memory_map",
          [](nb::handle type) { register_memory_map(reinterpret_cast<PyTypeObject*>(type.ptr())); });
    m.def("register_bfloat16", [](nb::handle dtype) { register_bfloat16(dtype.ptr()); });
    m.def("register_dtype",
          [](nb::handle object, int dtype) { register_dtype(object.ptr(), checked<DType>(dtype, 4, "dtype")); });
    m.def("can_route", &can_route);
    m.def("native_routes", &native_routes);
    m.def("natively_served",
          [](int number) { return natively_served(checked<int>(number, kRoutes, "no such route")); });
    nb::class_<RoutedLibrary>(m, "RoutedLibrary")
        .def("__init__", [](RoutedLibrary* self, const std::string& key,
                            nb::handle tensor_type) { new (self) RoutedLibrary(key, tensor_type.ptr()); })
        .def("route",
             [](RoutedLibrary& self, int number, nb::handle missed) {
                 self.route(checked<int>(number, kRoutes, "no such route"), missed.ptr());
             })
        .def("close", &RoutedLibrary::close);
    m.def("isa", [] { return std::string(kernels().isa); });
    m.def("choose_isa", &choose_isa);
    m.def("isas", &usable_isas);
    m.def("vector_bytes", &vector_bytes);
    m.def("set_num_threads", &set_num_threads);
    m.def("get_num_threads", &get_num_threads);
    m.def("empty_cache", &empty_cache);
    m.def("set_cache_bound", &set_cache_bound);
    m.def("memory_stats", &stats);
    m.def("copy", &copy, "to"_a, "from_"_a, "bytes"_a, "nontemporal"_a);
    if (PyModule_AddFunctions(m.ptr(), hot_methods) < 0) throw nb::python_error();
}

}  // namespace onepass
