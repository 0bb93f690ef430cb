// The running values of a tile's columns, and the two passes that have most to do with them where a tile lies in memory
// as it is worked on: there a group of columns has them in registers.
#pragma once

#include "column_groups.h"
#include "exp.h"
#include "span.h"
#include "tile_grid.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Per-column running values of one chunk of a tile. Widest tile: 16 vectors.
template <class C>
struct alignas(64) Columns {
    static constexpr int kMost = 16 * kLanes<C>;
    C max[kMost];
    C shift[kMost];
    C floor[kMost];
    C magic[kMost];
    C sum[kMost];
    C scale[kMost];
    C scale_low[kMost];
    double total[kMost];
    double lost[kMost];  // by the additions to total, where C is float64
    Least<C> least;      // of the exponentials that are not 0
    bool any_small;      // of their products with scale, some may be (scaled.h)
};

// The sum of a vector of columns while it waits in registers: in float64, or of a few rows in float32.
template <class C, bool kWide>
struct GroupSum;
template <>
struct GroupSum<float, true> : WideSum<float> {
    ONEPASS_INLINE void load_from(const Columns<float>& c, int j) {
        low = load(c.total + j);
        high = load(c.total + j + kLanes<double>);
    }
    ONEPASS_INLINE void store_to(Columns<float>& c, int j) const { store_lanes(c.total + j); }
};
template <>
struct GroupSum<float, false> {
    VecF sum;
    ONEPASS_INLINE void load_from(const Columns<float>& c, int j) { sum = load(c.sum + j); }
    ONEPASS_INLINE void add(VecF v) { sum = sum + v; }
    ONEPASS_INLINE void store_to(Columns<float>& c, int j) const { store(c.sum + j, sum); }
};

// Whether exponentials are kept: where to, or a null pointer.
template <class Keep>
constexpr bool kKeeps = !std::is_null_pointer_v<Keep>;

template <class T>
class TileInPlace {
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr int W = kLanes<C>;
    static constexpr std::int64_t kBlock = TileGrid<T>::kBlock;
    static constexpr std::int64_t kAhead = TileGrid<T>::kAhead;
    static constexpr int kGroup = TileGrid<T>::kGroup;

   public:
    TileInPlace(const T* at, std::int64_t stride, int width, std::int64_t rows)
        : at_(at), stride_(stride), width_(width), padded_(TileGrid<T>::padded(width)), rows_(rows) {}

    // c.max: the columns' maxima over rows [begin, end) and what it was, NaN left out.
    void maxima(std::int64_t begin, std::int64_t end, Columns<C>& c) const {
        const std::int64_t rows = at_once(end - begin);
        for (std::int64_t first = begin; first < end; first += rows) {
            const std::int64_t stop = first + rows < end ? first + rows : end;
            each_group<C, kGroup>(width_, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
                V top[kCount];
                for (int k = 0; k < kCount; ++k) top[k] = load(c.max + j + k * W);
                for (std::int64_t d = first; d < stop; ++d) {
                    if (j == 0) fetch(d + kAhead);
                    for (int k = 0; k < kCount; ++k) {
                        top[k] = max(vector_of<kCount>(at_ + d * stride_ + j, k, lanes, -kInfinity<C>), top[k]);
                    }
                }
                for (int k = 0; k < kCount; ++k) store(c.max + j + k * W, top[k]);
            });
        }
    }

    // c.total: the columns' sums of exponential(x, column), over rows [begin, end). beside(d) is work to do next to row
    // d.
    template <bool kExact, class Keep, class Exponential, class Beside>
    ONEPASS_INLINE void add_up(std::int64_t begin, std::int64_t end, Columns<C>& c, Keep keep,
                               Exponential&& exponential, Beside&& beside) const {
        const std::int64_t rows = at_once(kBlock);
        Least<C> least;
        for (std::int64_t first = begin; first < end; first += rows) {
            const std::int64_t stop = first + rows < end ? first + rows : end;
            if (!kExact && (first - begin) % kBlock == 0) {
                for (int j = 0; j < padded_; ++j) c.sum[j] = 0;
            }
            each_group<C, kExact ? kGroup / 2 : kGroup>(width_, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
                GroupSum<C, kExact> sum[kCount];
                unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { sum[k].load_from(c, j + k * W); });
                for (std::int64_t d = first; d < stop; ++d) {
                    if (j == 0) fetch(d + kAhead);
                    unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY {
                        const V v = vector_of<kCount>(at_ + d * stride_ + j, k, lanes, -kInfinity<C>);
                        const V e = exponential(v, j + k * W);
                        if constexpr (kKeeps<Keep>) store(keep + (d - begin) * padded_ + j + k * W, e);
                        if constexpr (!kExact) least.add(e);
                        sum[k].add(e);
                    });
                    if (j == 0) beside(d);
                }
                unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { sum[k].store_to(c, j + k * W); });
            });
            if (!kExact && ((stop - begin) % kBlock == 0 || stop == end)) {
                for (int j = 0; j < padded_; ++j) c.total[j] += static_cast<double>(c.sum[j]);
            }
        }
        c.least = least;
    }

   private:
    std::int64_t at_once(std::int64_t most) const { return width_ <= kGroup * W ? most : TileGrid<T>::kFewRows; }

    ONEPASS_INLINE void fetch(std::int64_t d) const {
        if (d >= rows_) return;
        const char* p = reinterpret_cast<const char*>(at_ + d * stride_);
        for (int b = 0; b < width_ * static_cast<int>(sizeof(T)); b += kCacheLine) __builtin_prefetch(p + b, 0, 3);
    }

    const T* at_;
    std::int64_t stride_;
    int width_;
    int padded_;  // to whole vectors: how far apart rows of exponentials are kept
    std::int64_t rows_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
