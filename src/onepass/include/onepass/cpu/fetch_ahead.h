// What passes over rows fetch beside them: what will be read some KiB later. The processor itself stops looking ahead
// at the end of a page.
#pragma once

#include "access.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// How far ahead of rows of `n` elements is fetched that begin `stride` elements after each other, in elements. Rows
// that follow each other, or that less than `between` bytes lie between, are one stretch of memory: so many bytes. Of
// others it is whole rows, or what lies between them would be fetched. Measured on a Zen 4, times over those by 8 KiB
// whatever the rows, by one thread and by two: softmax of 1024 columns of 1500 float32 0.61 and 0.56, of 700 of 1000
// 0.73 and 0.68, of 2000 of 4096 0.47 and 0.59, log_softmax 0.80 and 0.76, 0.74 and 0.78, 0.54 and 0.54. A Zen 5 was
// not asked: there it is so many bytes, as before.
template <class T>
inline std::int64_t ahead_of_rows(std::int64_t stride, std::int64_t n, std::int64_t bytes, std::int64_t between = 0) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    constexpr std::int64_t kApart = 6144 / kSize;
    if (looks_far_ahead || (stride >= 0 && stride <= n + between / kSize)) return bytes / kSize;
    const std::int64_t apart = stride < 0 ? -stride : stride;
    return (kApart + apart - 1) / apart * stride;
}

// Of the rows of a job, in one of its arrays.
inline std::int64_t stride_of_rows(const Job& job, Stride stride) {
    return job.outer.empty() ? 0 : job.outer.back().*stride;
}

// Beside a pass over a span, four vectors at a step. What a pass by fours leaves over is fetched first: after lines
// that were asked for the processor does not look for the next ones, and those few would be waited for, in every row.
// Measured on a Zen 4, by two threads: log_softmax of 12000 x 1000 float32 0.78 of the time, of 15000 x 800 0.74.
template <class T>
class FetchAhead {
    static constexpr std::int64_t kStep = 4 * kLanes<Compute<T>>;

   public:
    // `ahead` elements after the span; 0: nothing.
    FetchAhead(const T* span, std::int64_t n, std::int64_t ahead) : at_(span + ahead), fetches_(ahead != 0) {
        if (fetches_) fetch_soon(at_ + n - n % kStep, n % kStep);
    }
    ONEPASS_INLINE void step(std::int64_t i) const {
        if (fetches_) fetch_soon(at_ + i, kStep);
    }

   private:
    const T* at_;
    bool fetches_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
