// Memory through which the blocks of a cooperative launch talk to each other (cuda/exchange.h).
//
// It is zero when it is new and left as the next launch wants it, so launches that come one after the other share it:
// there is one piece for each stream, and one for each stream of each graph capture, which belongs to the graph.
#pragma once

#include <cstddef>

#include "cuda_driver.h"

namespace onepass::cuda {

// Whether the driver has what scratch memory and cooperative launches take.
bool has_scratch() noexcept;

// The memory for a launch on `stream`, in `context`, which is current. Any thread, with or without the GIL.
Status find_scratch(Context context, Stream stream, std::size_t bytes, Address* address) noexcept;

}  // namespace onepass::cuda
