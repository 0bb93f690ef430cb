// The running values of a tile's columns, and the two passes that have most to do with them where a tile lies in memory
// as it is worked on: there a group of columns has them in registers.
#pragma once

#include "column_groups.h"
#include "lossless_sum.h"
#include "span.h"
#include "tile_grid.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Per-column running values of one chunk of a tile. A vector more than the widest has, to read on from the last.
template <class C>
struct alignas(64) Columns {
    static constexpr int kMost = kWidestTile<C> + kLanes<C>;
    C max[kMost];
    C shift[kMost];
    C floor[kMost];
    C magic[kMost];
    C sum[kMost];
    C low[kMost];  // of a lossless sum
    C scale[kMost];
    C scale_low[kMost];
    double total[kMost];
    double lost[kMost];  // by the additions to total, where C is float64
    Least<C> least;      // of the exponentials that are not 0
    bool any_small;      // of their products with scale, some may be (scaled.h)
    // Of columns that are read again: whether they have one anchor, and what a product with any of their scales is
    // small beside.
    bool alike;
    typename Vec<C>::Bits limit;
};

// The sum of a vector of columns while it waits in registers, of a block of rows: kExact as LosslessSum.
template <bool kExact>
struct GroupSum;
template <>
struct GroupSum<true> : LosslessSum {
    ONEPASS_INLINE void load_from(const Columns<float>& c, int j) {
        high = load(c.sum + j);
        low = load(c.low + j);
    }
    ONEPASS_INLINE void store_to(Columns<float>& c, int j) const {
        store(c.sum + j, high);
        store(c.low + j, low);
    }
    static void begin_block(Columns<float>& c, int width) {
        for (int j = 0; j < width; ++j) {
            c.sum[j] = kStart;
            c.low[j] = 0;
        }
    }
    static void end_block(Columns<float>& c, int width) {
        for (int j = 0; j < width; ++j) c.total[j] += static_cast<double>(c.sum[j] - kStart) + c.low[j];
    }
};
template <>
struct GroupSum<false> {
    VecF sum;
    ONEPASS_INLINE void load_from(const Columns<float>& c, int j) { sum = load(c.sum + j); }
    ONEPASS_INLINE void add(VecF v) { sum = sum + v; }
    ONEPASS_INLINE void store_to(Columns<float>& c, int j) const { store(c.sum + j, sum); }
    static void begin_block(Columns<float>& c, int width) {
        for (int j = 0; j < width; ++j) c.sum[j] = 0;
    }
    static void end_block(Columns<float>& c, int width) {
        for (int j = 0; j < width; ++j) c.total[j] += static_cast<double>(c.sum[j]);
    }
};

template <class T>
class TileInPlace {
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr int W = kLanes<C>;
    static constexpr std::int64_t kBlock = TileGrid<T>::kBlock;
    static constexpr int kGroup = TileGrid<T>::kGroup;

   public:
    TileInPlace(const T* at, std::int64_t stride, int width, std::int64_t rows, std::int64_t ahead)
        : at_(at), stride_(stride), width_(width), padded_(TileGrid<T>::padded(width)), rows_(rows), ahead_(ahead) {}

    // c.max: the columns' maxima over rows [begin, end) and what it was, NaN left out.
    void maxima(std::int64_t begin, std::int64_t end, Columns<C>& c) const {
        const std::int64_t rows = at_once(end - begin);
        for (std::int64_t first = begin; first < end; first += rows) {
            const std::int64_t stop = first + rows < end ? first + rows : end;
            each_group<C, kGroup, 2>(width_, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
                V top[kCount];
                for (int k = 0; k < kCount; ++k) top[k] = load(c.max + j + k * W);
                for (std::int64_t d = first; d < stop; ++d) {
                    if (j == 0) fetch(d + ahead_);
                    for (int k = 0; k < kCount; ++k) {
                        top[k] = max(vector_of<kCount>(at_ + d * stride_ + j, k, lanes, -kInfinity<C>), top[k]);
                    }
                }
                for (int k = 0; k < kCount; ++k) store(c.max + j + k * W, top[k]);
            });
        }
    }

    // c.total: the columns' sums of exponentials, over rows [begin, end), kMost vectors of them at once;
    // exponential(v, column) turns an array of vectors into theirs. beside(d) is work to do next to row d; of narrower
    // tiles, and if it is apart, before some of them.
    template <bool kExact, int kMost, class Exponential, class Beside>
    ONEPASS_INLINE void add_up(std::int64_t begin, std::int64_t end, Columns<C>& c, C* keep, Exponential&& exponential,
                               Beside&& beside) const {
        using Sum = GroupSum<kExact>;
        const std::int64_t rows = at_once(kBlock);
        Least<C> least;
        for (std::int64_t first = begin; first < end; first += rows) {
            const std::int64_t stop = first + rows < end ? first + rows : end;
            if ((first - begin) % kBlock == 0) Sum::begin_block(c, padded_);
            const bool by_rows = width_ < kMost * W || beside.apart();
            if (by_rows) beside.rows(first, stop);
            each_group<C, kMost, (kMost > 2 ? 2 : 1)>(width_, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
                constexpr int kFew = kCount < kTogether ? kCount : kTogether;
                Sum sum[kCount];
                unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { sum[k].load_from(c, j + k * W); });
                for (std::int64_t d = first; d < stop; ++d) {
                    if (j == 0) fetch(d + ahead_);
                    unrolled<kCount / kFew>([&](auto group) ONEPASS_INLINE_BODY {
                        constexpr int kFirst = group * kFew;
                        V e[kFew];
                        unrolled<kFew>([&](auto k) ONEPASS_INLINE_BODY {
                            e[k] = once(vector_of<kCount>(at_ + d * stride_ + j, kFirst + k, lanes, -kInfinity<C>));
                        });
                        exponential(e, j + kFirst * W);
                        unrolled<kFew>([&](auto k) ONEPASS_INLINE_BODY {
                            if constexpr (!kExact) {
                                if (keep) store(keep + (d - begin) * padded_ + j + (kFirst + k) * W, e[k]);
                                least.add(e[k]);
                            }
                            sum[kFirst + k].add(e[k]);
                        });
                    });
                    if constexpr (kCount == kMost) {
                        if (j == 0 && !by_rows) beside(d);
                    }
                }
                unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { sum[k].store_to(c, j + k * W); });
            });
            if ((stop - begin) % kBlock == 0 || stop == end) Sum::end_block(c, padded_);
        }
        c.least = least;
    }

   private:
    std::int64_t at_once(std::int64_t most) const { return width_ <= kGroup * W ? most : TileGrid<T>::kFewRows; }

    ONEPASS_INLINE void fetch(std::int64_t d) const {
        const T* const row = at_ + d * stride_;
        // Behind the last of them the next tile begins, more often than not. Measured on a Zen 5, one thread and two,
        // dim 1: logsumexp of 10666x1000x3 0.82 and 0.82, of 15000x100x8 0.79 and 0.76, softmax 0.82 and 0.88.
        if (stride_ == width_) return fetch_soon(row, width_);
        // Of rows that lie apart the first cache does not hold as many (on a Zen 5 logsumexp of 4096 x 4096, dim 0,
        // takes 1.1 by that).
        if (d < rows_) fetch_into<2>(row, width_);
    }

    const T* at_;
    std::int64_t stride_;
    int width_;
    int padded_;  // to whole vectors: how far apart rows of exponentials are kept
    std::int64_t rows_;
    std::int64_t ahead_;  // rows
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
