// What passes over rows fetch beside them: what will be read some KiB, or some rows, later. The processor itself stops
// looking ahead at the end of a page.
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
    constexpr std::int64_t kApart = 6144 / kSize;  // by 4 KiB or 8 the same, within 5%
    if (looks_far_ahead || (stride >= 0 && stride <= n + between / kSize)) return bytes / kSize;
    const std::int64_t apart = stride < 0 ? -stride : stride;
    return (kApart + apart - 1) / apart * stride;
}

// Of the rows of a job, in one of its arrays.
inline std::int64_t stride_of_rows(const Job& job, Stride stride) {
    return job.outer.empty() ? 0 : job.outer.back().*stride;
}

// How many bytes ahead of a pass is fetched. Measured on a Zen 4, rows of 1024 float32: from 2 KiB on 5.6 ns a vector,
// from 4 5.06, from 6 or 8 5.03; on pages of 4 KiB 6.5, 5.6 and 5.4. Not whole pages: in some processes, rows of whole
// pages that are written at the same place of theirs took 1.2 to 1.4 times as long by 4, 8 and 12 KiB as by 7.
inline std::int64_t span_ahead() { return looks_far_ahead ? 8192 : 7168; }

// The same in elements, of rows. What softmax reads soon is not fetched where its rows are short and follow each other.
// Measured on a Zen 4, times over those by span_ahead, by one thread and by two: of 400 float32 0.92 and 0.90, of 800
// 0.84 and 0.95, of 1000 0.86 and 0.92, of 1024 0.85 and 1.0, of 1200 1.14 and 1.03, of 1800 1.31 and 1.35; of 300
// float64 0.94, of 600 bfloat16 0.98, of 2048 0.98, of 3000 1.42.
template <class T>
inline std::int64_t elements_ahead(const Job& job) {
    constexpr std::int64_t kPage = 4096 / sizeof(T);
    const bool comes_by_itself = job.op == Op::softmax && job.length <= kPage && !looks_far_ahead;
    return ahead_of_rows<T>(stride_of_rows(job, &Axis::x_stride), job.length, comes_by_itself ? 0 : span_ahead());
}

// Whether all rows of a job are more than the MiB for each thread that a second cache may have.
template <class T>
inline bool come_from_afar(const Job& job) {
    return job.rows * job.length * static_cast<std::int64_t>(sizeof(T)) > (std::int64_t{1} << 20) * job.threads;
}

// Whether rows that are added up, or whose extremes are looked for, are fetched: those of more than a KiB, each more
// than half a KiB behind the one before, all of them more than the MiB for each thread that a second cache may have.
// Measured on two cores of a Zen 4 from memory, by one thread and by two: sums of 700 columns of 1000 float32 0.56 and
// 0.70 of the time, of 2000 of 3000 0.58 and 0.63, of float64 0.58 and 0.62, 0.65; maxima 0.59 and 0.64, 0.55 and 0.59;
// bfloat16 sums 0.62 and 0.52, 0.45 and 0.42. Not so: of 300 of 330 float32 1.14 and 0.85, its maxima 1.4; of 500 of
// 650 bfloat16 1.6 and 1.3; from L2 1.1 to 1.25; of rows that follow each other 0.83 to 1.2.
template <class T>
inline bool reductions_are_fetched(const Job& job) {
    constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t row_bytes = job.length * kSize,
                       between = stride_of_rows(job, &Axis::x_stride) * kSize - row_bytes;
    return !looks_far_ahead && between > 512 && row_bytes > 1024 && come_from_afar<T>(job);
}

// The same of rows of a few vectors that follow each other, by AVX2. Measured on a Zen 3, by two threads and by one,
// times over those without: maxima of 32768 x 128 float32, in L3, 0.87 to 0.64 and 0.57, of 500000 x 64 from memory
// 0.91 and 0.90; of 700000 x 100 bfloat16 0.77 and 0.76, its sums 0.85 and 0.77; sums of 65536 x 64 0.70 to 0.85 and
// 0.75, of 1000000 x 32 from memory 0.93 and 0.87. But sums of longer rows from memory, of 250000 x 128 float32, 1.03
// to 1.08 and 1.08 to 1.2: the processor has next to nothing else to do there, and looks ahead by itself.
template <class T>
inline bool few_are_fetched(const Job& job) {
    constexpr std::int64_t kLongSum = 256;
    const std::int64_t row_bytes = job.length * static_cast<std::int64_t>(sizeof(T));
    const bool adds = job.op == Op::sum || job.op == Op::mean;
    const bool follow = stride_of_rows(job, &Axis::x_stride) == job.length;
    return !looks_far_ahead && follow && come_from_afar<T>(job) && (!adds || job.cached || row_bytes < kLongSum);
}

// Beside a pass over a span, four vectors at a step. What a pass by fours leaves over is fetched first: after lines
// that were asked for the processor does not look for the next ones, and those few would be waited for, in every row.
// Measured on a Zen 4, by two threads: log_softmax of 12000 x 1000 float32 0.78 of the time, of 15000 x 800 0.74. Not
// measured on a Zen 5, which looks ahead all the same.
template <class T>
class FetchAhead {
    static constexpr std::int64_t kStep = 4 * kLanes<Compute<T>>;

   public:
    // `ahead` elements after the span; 0: nothing.
    FetchAhead(const T* span, std::int64_t n, std::int64_t ahead) : at_(span + ahead), fetches_(ahead != 0) {
        if (fetches_) fetch_soon(at_ + n - n % kStep, n % kStep);
    }
    ONEPASS_INLINE void operator()(std::int64_t i) const {
        if (fetches_) fetch_soon(at_ + i, kStep);
    }

   private:
    const T* at_;
    bool fetches_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
