// Compiled kernels on a GPU, and how they are launched.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cuda_driver.h"

namespace onepass::cuda {

// A kernel on one GPU. Never unloaded: a CUDA graph that captured it may be replayed as long as the process lives.
class Kernel {
   public:
    // Throws Failure. `cubin` is read during the call only.
    Kernel(int ordinal, const std::string& cubin, const std::string& symbol);

    int ordinal() const { return ordinal_; }
    Context context() const { return context_; }
    Function function() const { return function_; }
    int attribute(FunctionAttribute) const;
    // Bytes of the one argument; 0 from drivers that do not tell.
    std::size_t parameter_bytes() const { return parameter_bytes_; }
    // Lets blocks have that many bytes of dynamic shared memory. Only ever raised: launches with less stay valid.
    void allow_shared(unsigned bytes);

   private:
    int ordinal_;
    Context context_;
    Module module_;
    Function function_;
    std::size_t parameter_bytes_ = 0;
    unsigned allowed_shared_;  // dynamic
};

// The shape of a launch, as a plan has it.
struct Geometry {
    int threads;
    int cluster = 1;  // blocks that share their shared memory
    bool cooperative = false;
    unsigned shared_bytes = 0;         // dynamic
    std::int64_t units = 0;            // of work
    std::int64_t units_per_block = 1;  // that a block takes at a time
    int waves = 0;  // 0: a block for each of its units; else at most as many blocks as are resident at once, so often
    int team = 0;   // blocks that share a unit and wait for each other: as many teams as are resident at once
    std::int64_t scratch_bytes = 0;  // of memory that such blocks share, for each; its address is the last word
    bool hands_out = false;  // clusters take units from a counter, in scratch memory, as they are ready for them
    int unit_slots = 0;      // where blocks take their shares of units from it: as many blocks as are resident at
                             // once, and so many parts of scratch memory for each unit; 0: they do not
};

// A kernel bound to one problem: all of a launch but its arrays' addresses and the stream.
class Launch {
   public:
    static constexpr int kMostArrays = 4;
    using Addresses = std::array<const void*, kMostArrays>;

    // Throws Failure, std::invalid_argument. `words` are those of the kernel's Job that follow the addresses of as many
    // arrays.
    Launch(Kernel& kernel, const Geometry& geometry, int arrays, const std::vector<std::int64_t>& words);

    int arrays() const { return arrays_; }
    unsigned grid() const { return grid_; }
    int resident_blocks() const { return resident_blocks_; }  // on one multiprocessor
    // One driver call, and another to see that the GPU is current; where blocks share rows, two more to find their
    // scratch memory, and once for each stream an allocation. Any thread, with or without the GIL.
    // The input, the result, then what else is read.
    Status operator()(const Addresses& addresses, Stream stream) const noexcept;

   private:
    static constexpr std::size_t kMostWords = 4096 / sizeof(std::int64_t);  // of arguments, on every GPU

    LaunchConfig config(LaunchAttribute* attributes, Stream stream) const noexcept;

    Context context_;
    Function function_;
    int arrays_;
    unsigned grid_ = 1;
    unsigned threads_, cluster_, shared_bytes_;
    bool cooperative_;
    int resident_blocks_ = 0;
    std::size_t scratch_bytes_ = 0;
    std::vector<std::int64_t> words_;
};

}  // namespace onepass::cuda
