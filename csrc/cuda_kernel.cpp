#include "cuda_kernel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "cuda_scratch.h"

namespace onepass::cuda {
namespace {

constexpr int kMultiprocessorCount = 16;     // of CUdevice_attribute
constexpr int kPortableCluster = 8;          // blocks; more has to be allowed first
constexpr unsigned kFreeShared = 48u << 10;  // static and dynamic together: what every kernel may have unasked
constexpr std::int64_t kScratchHead = 128;   // of bytes, before what each block has of its own
constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;

void check_scope(const Scope& scope) { check(scope.code(), "make the GPU current"); }

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Kernel::Kernel(int ordinal, const std::string& cubin, const std::string& symbol) : ordinal_(ordinal) {
    const Driver& d = driver();
    context_ = primary_context(ordinal);
    const Scope scope(context_);
    check_scope(scope);
    const OutsideCapture outside(d);
    // The driver may wait for kernels that run, and they for callbacks that need the GIL.
    PyThreadState* released = PyEval_SaveThread();
    const Status loaded = d.load_module(&module_, cubin.data());
    PyEval_RestoreThread(released);
    check(loaded, "load a kernel onto the GPU");
    check(d.get_function(&function_, module_, symbol.c_str()), "find a kernel in its module");
    const auto fixed = static_cast<unsigned>(attribute(FunctionAttribute::static_shared_bytes));
    allowed_shared_ = fixed < kFreeShared ? kFreeShared - fixed : 0;
    std::size_t offset = 0;
    if (d.parameter_info)
        check(d.parameter_info(function_, 0, &offset, &parameter_bytes_), "ask for a kernel's argument");
}

int Kernel::attribute(FunctionAttribute which) const {
    int value = 0;
    check(driver().function_attribute(&value, which, function_), "ask for a kernel's attributes");
    return value;
}

void Kernel::allow_shared(unsigned bytes) {
    if (bytes <= allowed_shared_) return;
    const Status code = driver().set_function_attribute(function_, FunctionAttribute::max_dynamic_shared_bytes,
                                                        static_cast<int>(bytes));
    if (code != kSuccess) throw Failure(code, "give a block " + std::to_string(bytes) + " bytes of shared memory");
    allowed_shared_ = bytes;
}

Launch::Launch(Kernel& kernel, const Geometry& g, int arrays, const std::vector<std::int64_t>& words)
    : context_(kernel.context()),
      function_(kernel.function()),
      arrays_(arrays),
      threads_(static_cast<unsigned>(g.threads)),
      cluster_(static_cast<unsigned>(g.cluster)),
      shared_bytes_(g.shared_bytes),
      cooperative_(g.cooperative),
      words_(words.size() + kMostArrays) {
    if (arrays < 2 || arrays > kMostArrays) throw std::invalid_argument("launch: two, three or four arrays");
    words_.resize(words.size() + static_cast<std::size_t>(arrays));
    if (g.threads < 1 || g.cluster < 1 || g.units < 0 || g.units_per_block < 1 || g.waves < 0 || g.team < 0 ||
        g.scratch_bytes < 0)
        throw std::invalid_argument("launch: threads, cluster and units_per_block must be positive");
    if (g.team > 0 && (!cooperative_ || cluster_ > 1 || words.empty()))
        throw std::invalid_argument("launch: blocks that share a row are launched cooperatively, without clusters");
    if (g.unit_slots < 0 || (g.unit_slots > 0 && g.team == 0))
        throw std::invalid_argument("launch: only a team's blocks claim their shares");
    if (g.hands_out && (cluster_ == 1 || words.empty()))
        throw std::invalid_argument("launch: clusters take units from a counter, whose address is the last word");
    if (words_.size() > kMostWords) throw std::invalid_argument("launch: more than 4096 bytes of arguments");
    if (kernel.parameter_bytes() != 0 && kernel.parameter_bytes() != words_.size() * sizeof(std::int64_t)) {
        throw std::invalid_argument("launch: the kernel takes " + std::to_string(kernel.parameter_bytes()) +
                                    " bytes, the plan has " + std::to_string(words_.size() * sizeof(std::int64_t)));
    }
    std::copy(words.begin(), words.end(), words_.begin() + arrays);

    const Driver& d = driver();
    if ((cluster_ > 1 || cooperative_) && (!d.launch_ex || !d.clusters || !has_scratch()))
        throw Failure(36, "launch clusters of blocks");  // CALL_REQUIRES_NEWER_DRIVER
    const Scope scope(context_);
    check_scope(scope);
    const OutsideCapture outside(d);
    kernel.allow_shared(shared_bytes_);
    if (g.cluster > kPortableCluster) {
        check(d.set_function_attribute(function_, FunctionAttribute::non_portable_cluster_allowed, 1),
              "allow clusters of more than 8 blocks");
    }
    check(d.occupancy(&resident_blocks_, function_, g.threads, shared_bytes_), "ask for a kernel's occupancy");
    if (resident_blocks_ < 1) throw Failure(701, "fit a block of this kernel on a multiprocessor");

    std::int64_t grid = ceil_div(g.units, g.units_per_block);
    const auto multiprocessors = [&] {
        int count = 0;
        check(d.device_attribute(&count, kMultiprocessorCount, device(kernel.ordinal())),
              "ask for the number of multiprocessors");
        return std::int64_t{count};
    };
    if (g.team > 0) {
        const std::int64_t resident = std::int64_t{resident_blocks_} * multiprocessors();
        if (resident < g.team) throw Failure(720, "fit " + std::to_string(g.team) + " blocks on the GPU at once");
        const std::int64_t units = grid;
        const bool claimed = g.unit_slots > 0;
        grid = claimed ? std::min(units * g.team, resident) : std::min(units, resident / g.team) * g.team;
        const std::int64_t slots = claimed ? units * g.unit_slots : grid;
        scratch_bytes_ = static_cast<std::size_t>(kScratchHead + slots * g.scratch_bytes);
    } else if (g.waves > 0) {
        std::int64_t resident;
        if (cluster_ > 1) {
            LaunchAttribute attributes[2];
            const LaunchConfig shape = config(attributes, nullptr);
            int clusters = 0;
            check(d.clusters(&clusters, function_, &shape), "ask how many clusters of blocks fit the GPU");
            if (clusters < 1)
                throw Failure(912, "fit a cluster of " + std::to_string(g.cluster) + " blocks on the GPU");
            resident = std::int64_t{clusters} * g.cluster;
        } else {
            resident = std::int64_t{resident_blocks_} * multiprocessors();
        }
        grid = std::min(grid, resident * g.waves);
    }
    // Where each cluster has one unit there is nothing to hand out. Without waves, units are not all that there is.
    if (g.hands_out && (g.waves == 0 || grid < ceil_div(g.units, g.units_per_block))) scratch_bytes_ = kScratchHead;
    grid = ceil_div(grid, g.cluster) * g.cluster;
    if (grid > kMostBlocks) throw std::invalid_argument("launch: more than 2^31 - 1 blocks; the plan needs waves");
    grid_ = static_cast<unsigned>(grid);
}

LaunchConfig Launch::config(LaunchAttribute* attributes, Stream stream) const noexcept {
    unsigned count = 0;
    if (cluster_ > 1) {
        LaunchAttribute& a = attributes[count++] = {};
        a.id = LaunchAttribute::cluster;
        a.cluster_shape[0] = cluster_;
        a.cluster_shape[1] = a.cluster_shape[2] = 1;
    }
    if (cooperative_) {
        LaunchAttribute& a = attributes[count++] = {};
        a.id = LaunchAttribute::cooperative;
        a.is_cooperative = 1;
    }
    return {{std::max(grid_, cluster_), 1, 1}, {threads_, 1, 1}, shared_bytes_, stream, attributes, count};
}

Status Launch::operator()(const Addresses& addresses, Stream stream) const noexcept {
    if (grid_ == 0) return kSuccess;
    // The driver copies the arguments during the call, so each call has its own.
    std::array<std::int64_t, kMostWords> words;
    std::memcpy(words.data(), words_.data(), words_.size() * sizeof(std::int64_t));
    for (std::size_t i = 0; i < static_cast<std::size_t>(arrays_); ++i)
        words[i] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(addresses[i]));
    void* parameters[] = {words.data()};
    const Scope scope(context_);
    if (scope.code() != kSuccess) return scope.code();
    const Driver& d = ready_driver();
    if (scratch_bytes_ > 0) {
        Address scratch = 0;
        const Status code = find_scratch(context_, stream, scratch_bytes_, &scratch);
        if (code != kSuccess) return code;
        words[words_.size() - 1] = static_cast<std::int64_t>(scratch);
    }
    if (cluster_ == 1 && !cooperative_) {
        return d.launch(function_, grid_, 1, 1, threads_, 1, 1, shared_bytes_, stream, parameters, nullptr);
    }
    LaunchAttribute attributes[2];
    const LaunchConfig shape = config(attributes, stream);
    return d.launch_ex(&shape, function_, parameters, nullptr);
}

}  // namespace onepass::cuda
