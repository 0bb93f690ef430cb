// The two passes of a gradient over a tile: its columns' sums, and its results, which are written beside the sums of
// the next one.
#pragma once

#include "column_groups.h"
#include "gradient_ops.h"
#include "partial.h"
#include "tile_grid.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// The running sums of the columns of one tile.
template <class C>
struct alignas(64) GradientSums {
    static constexpr int kMost = kWidestGradientTile<C>;
    C sum[kMost];
    double total[kMost];
    double lost[kMost];  // by the additions to total, where C is float64
};

// The constants of the columns: those of column j are lane j of each.
template <class RowOp, class C>
struct alignas(64) GradientColumns {
    C k[RowOp::kConstants][GradientSums<C>::kMost];
    C beyond[kLanes<C>];  // a vector that begins at the last column ends here

    ONEPASS_INLINE RowOp at(std::int64_t j) const {
        RowOp op;
        for (int i = 0; i < RowOp::kConstants; ++i) op.k[i] = load(k[i] + j);
        return op;
    }
};

template <class T>
class GradientTilePasses : protected TileGrid<T> {
   protected:
    using Grid = TileGrid<T>;
    using C = Compute<T>;
    using V = Vec<C>;
    using Grid::job_, Grid::packed_, Grid::inner_, Grid::steps_, Grid::width_;
    using Grid::tile_rows, Grid::row_width, Grid::padded, Grid::distinct;
    using Grid::W, Grid::kBlock, Grid::kAhead, Grid::kGroup, Grid::kFewRows;
    static constexpr int kMostColumns = GradientSums<C>::kMost;

    GradientTilePasses(const Job& job, const Addresses& in, void* y)
        : Grid(job, y),
          x_(static_cast<const char*>(in.x)),
          second_(static_cast<const char*>(in.second)),
          third_(static_cast<const char*>(in.third)),
          y_(static_cast<char*>(y)) {
        x_direct_ = job.in == DTypeOf<T>::value && (packed_ || job.inner.x_stride == 1);
        second_direct_ = job.second == DTypeOf<T>::value && (packed_ || job.inner.z_stride == 1);
        ahead_ = Grid::rows_ahead(job.reduce[0].x_stride);
        second_ahead_ = Grid::rows_ahead(job.reduce[0].z_stride);
    }

    struct Unit {
        const char* x;
        const char* second;
        const char* third;
        char* y;
        int width;  // columns of this tile
    };

    Unit unit(std::int64_t u) const { return unit_of(Grid::cut(u)); }
    Unit unit_of(const typename Grid::Cut& cut) const {
        const auto at = [&](Stride stride) {
            return offset_of(job_.outer, cut.outer, stride) + cut.column * job_.inner.*stride;
        };
        return {x_ + at(&Axis::x_stride) * size_of(job_.in), second_ + at(&Axis::z_stride) * size_of(job_.second),
                third_ ? third_ + at(&Axis::w_stride) * size_of(job_.third) : nullptr,
                y_ + at(&Axis::y_stride) * size_of(job_.out), cut.width};
    }

    // Tile row d of an input of this type and these strides.
    const T* read(const char* tile, DType type, Stride stride, bool direct, std::int64_t d, int width,
                  Scratch slot) const {
        const std::int64_t offset = d * steps_ * job_.reduce[0].*stride;
        if (direct) return reinterpret_cast<const T*>(tile) + offset;
        T* buffer = scratch_of<T>(slot, kMostColumns);
        gather(buffer, tile, type, offset, packed_ ? 1 : job_.inner.*stride, width);
        return buffer;
    }
    const T* read_x(const Unit& u, std::int64_t d, int width) const {
        return read(u.x, job_.in, &Axis::x_stride, x_direct_, d, width, Scratch::input);
    }
    const T* read_second(const Unit& u, std::int64_t d, int width) const {
        return read(u.second, job_.second, &Axis::z_stride, second_direct_, d, width, Scratch::values);
    }

    ONEPASS_INLINE void fetch(const char* tile, Stride stride, std::int64_t d, int width) const {
        const T* const row = reinterpret_cast<const T*>(tile) + d * steps_ * job_.reduce[0].*stride;
        // Behind the last of these the next tile begins, more often than not (columns.h).
        if (Grid::rows_follow(job_.reduce[0].*stride)) return fetch_soon(row, width);
        // Of rows that lie apart not into the first cache, on any processor: a tile of two inputs is longer (on a Zen
        // 5, softmax's of 32 x 256 x 3136 bfloat16, dim 1, takes 1.13 times by that).
        if (d < tile_rows()) fetch_into<2>(row, width);
    }
    template <class RowOp>
    ONEPASS_INLINE void fetch_row(const Unit& u, std::int64_t d, int width) const {
        if (x_direct_) fetch(u.x, &Axis::x_stride, d, width);
        if (RowOp::kSums && second_direct_) fetch(u.second, &Axis::z_stride, d, width);
    }
    // What a pass that is at row d fetches.
    template <class RowOp>
    ONEPASS_INLINE void fetch_ahead(const Unit& u, std::int64_t d) const {
        if (x_direct_) fetch(u.x, &Axis::x_stride, d + ahead_, u.width);
        if (RowOp::kSums && second_direct_) fetch(u.second, &Axis::z_stride, d + second_ahead_, u.width);
    }

    // What is done next to each row of a tile, if there is one before: its results are written, and of the next tile,
    // if there is one, the same row is fetched. Of one type also where there is neither (tile_results.h).
    template <class RowOp>
    struct Beside {
        const GradientTilePasses& tiles;
        const Unit* next = nullptr;
        const Unit* ready = nullptr;
        const GradientColumns<RowOp, C>* columns = nullptr;
        JoinedRows<T>* joined = nullptr;  // where rows of results share lines only with each other

        ONEPASS_INLINE void operator()(std::int64_t d) const {
            if (!ready) return;
            if (next) tiles.template fetch_row<RowOp>(*next, d, next->width);
            tiles.fetch_edges(ready->y, ready->width, d + kAhead);
            tiles.write_row(*ready, d, *columns, joined);
        }
        // Rows [begin, end), where the code of the row is not wanted once more.
        ONEPASS_APART void rows(std::int64_t begin, std::int64_t end) const {
            for (std::int64_t d = begin; d < end; ++d) (*this)(d);
        }
    };

    // ---- sums ----

    ONEPASS_INLINE static void add_to_total(GradientSums<C>& s, int j, V v, V lost) {
        VecD sum, more;
        two_sum(load(s.total + j), v, sum, more);
        store(s.total + j, sum);
        store(s.lost + j, load(s.lost + j) + (more + lost));
    }

    template <class RowOp>
    ONEPASS_INLINE void add_row(const Unit& u, std::int64_t d, GradientSums<C>& s) const {
        const int width = row_width(u.width, d);
        const T* y = RowOp::kOfProducts ? read_x(u, d, width) : nullptr;
        const T* dy = read_second(u, d, width);
        const auto add = [&](int j, V v, V factor) ONEPASS_INLINE_BODY {
            if constexpr (sizeof(C) == 4) {
                const V sum = load(s.sum + j);
                store(s.sum + j, RowOp::kOfProducts ? fma(v, factor, sum) : sum + v);
            } else if constexpr (RowOp::kOfProducts) {
                const V product = v * factor;
                add_to_total(s, j, product, fma(v, factor, V(C(0)) - product));
            } else {
                add_to_total(s, j, v, C(0));
            }
        };
        int j = 0;
        for (; j + W <= width; j += W) add(j, load(dy + j), RowOp::kOfProducts ? load(y + j) : V(C(0)));
        if (j == width) return;
        add(j, load_n(dy + j, width - j, C(0)), RowOp::kOfProducts ? load_n(y + j, width - j, C(0)) : V(C(0)));
    }

    // Adds up tile rows that lie in memory as they are read, a group of columns and a few rows at a time, with the sums
    // in registers. Returns which row is the first that does not.
    template <class RowOp>
    ONEPASS_INLINE std::int64_t add_rows_in_place(const Unit& u, std::int64_t begin, std::int64_t end,
                                                  GradientSums<C>& s, const Beside<RowOp>& beside) const {
        if (!second_direct_ || (RowOp::kOfProducts && !x_direct_)) return begin;
        const std::int64_t whole = row_width(u.width, end - 1) == u.width ? end : end - 1;  // packed, the last is not
        const std::int64_t rows = u.width <= kGroup * W ? kBlock : kFewRows;
        const std::int64_t y_stride = steps_ * job_.reduce[0].x_stride, dy_stride = steps_ * job_.reduce[0].z_stride;
        const T* const y = reinterpret_cast<const T*>(u.x);
        const T* const dy = reinterpret_cast<const T*>(u.second);
        for (std::int64_t first = begin; first < whole; first += rows) {
            const std::int64_t stop = first + rows < whole ? first + rows : whole;
            if (u.width < kGroup * W) beside.rows(first, stop);
            each_group<C, kGroup, 2>(u.width, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
                V sum[kCount];
                unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { sum[k] = load(s.sum + j + k * W); });
                for (std::int64_t d = first; d < stop; ++d) {
                    if (j == 0) fetch_ahead<RowOp>(u, d);
                    unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY {
                        const V v = vector_of<kCount>(dy + d * dy_stride + j, k, lanes, C(0));
                        if constexpr (RowOp::kOfProducts) {
                            sum[k] = fma(v, vector_of<kCount>(y + d * y_stride + j, k, lanes, C(0)), sum[k]);
                        } else {
                            sum[k] = sum[k] + v;
                        }
                    });
                    if constexpr (kCount == Grid::kGroup) {
                        if (j == 0) beside(d);
                    }
                }
                unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY { store(s.sum + j + k * W, sum[k]); });
            });
        }
        return whole;
    }

    // s.total: the sums of tile rows [begin, end), one per column. beside(d) is work to do next to row d, of narrow
    // tiles before some of them.
    template <class RowOp>
    ONEPASS_APART void add_up(const Unit& u, std::int64_t begin, std::int64_t end, GradientSums<C>& s,
                              const Beside<RowOp>& beside) const {
        const int width = padded(u.width);
        for (int j = 0; j < width; ++j) s.total[j] = s.lost[j] = 0;
        for (std::int64_t block = begin; block < end; block += kBlock) {
            const std::int64_t stop = block + kBlock < end ? block + kBlock : end;
            for (int j = 0; j < width; ++j) s.sum[j] = 0;
            std::int64_t first = block;
            if constexpr (sizeof(C) == 4) first = add_rows_in_place<RowOp>(u, block, stop, s, beside);
            for (std::int64_t d = first; d < stop; ++d) {
                fetch_ahead<RowOp>(u, d);
                add_row<RowOp>(u, d, s);
                beside.rows(d, d + 1);
            }
            if constexpr (sizeof(C) == 4) {
                for (int j = 0; j < width; ++j) s.total[j] += static_cast<double>(s.sum[j]);
            }
        }
    }

    // An infinite total has lost NaN.
    static double lost(const GradientSums<C>& s, std::int64_t j) { return s.lost[j] == s.lost[j] ? s.lost[j] : 0; }

    // After all of a tile: each column's sum in s.total.
    ONEPASS_APART void finish_totals(const Unit& u, GradientSums<C>& s) const {
        Grid::fold_sums(s.total, s.lost);
        for (int j = 0; j < padded(distinct(u.width)); ++j) s.total[j] += lost(s, j);
        Grid::repeat(s.total);
    }

    // After a chunk of it: the sums with what they have lost, which rounded in here would be an error of each chunk.
    ONEPASS_APART void partial_sums(const Unit& u, const GradientSums<C>& s, Partial* partial) const {
        for (int j = 0; j < distinct(u.width); ++j) {
            partial[j] = empty_partial(Op::sum);
            for (std::int64_t i = j; i < (packed_ ? width_ : j + 1); i += inner_) {
                merge(Op::sum, partial[j], {lost(s, i), s.total[i]});
            }
        }
    }

    // ---- results ----

    template <class RowOp>
    ONEPASS_APART void set_columns(const Unit& u, const double* total, GradientColumns<RowOp, C>& columns) const {
        for (int j = 0; j < u.width; ++j) RowOp::set(columns.k[0] + j, kMostColumns, total[j]);
        // What a row's last vector has beyond it must not look as if it had to be computed with care, which takes
        // several times as long.
        const int end = u.width + W < kMostColumns ? u.width + W : kMostColumns;
        for (auto& k : columns.k) {
            for (int j = u.width; j < end; ++j) k[j] = k[u.width - 1];
        }
    }
    // Of values that are read once for each column.
    template <class RowOp>
    ONEPASS_APART void read_columns(const Unit& u, GradientColumns<RowOp, C>& columns) const {
        const int count = distinct(u.width);
        for (int j = 0; j < count; ++j) {
            RowOp::set(columns.k[0] + j, kMostColumns,
                       read_scalar(u.second + j * job_.inner.z_stride * size_of(job_.second), job_.second),
                       read_scalar(u.third + j * job_.inner.w_stride * size_of(job_.third), job_.third));
        }
        for (auto& k : columns.k) {
            for (int j = count; j < u.width; ++j) k[j] = k[j - count];
        }
    }

    template <class RowOp>
    struct Source {
        const T* x;
        const T* second;
        const GradientColumns<RowOp, C>& columns;
        ONEPASS_INLINE V operator()(std::int64_t j) const {
            const RowOp op = columns.at(j);
            if constexpr (RowOp::kSums) {
                return op(load(x + j), load(second + j));
            } else {
                return op(load(x + j));
            }
        }
        V operator()(std::int64_t j, int n) const {
            const RowOp op = columns.at(j);
            if constexpr (RowOp::kSums) {
                return op(load_n(x + j, n, C(0)), load_n(second + j, n, C(0)));
            } else {
                return op(load_n(x + j, n, C(0)));
            }
        }
    };

    template <class RowOp>
    ONEPASS_INLINE void write_row(const Unit& u, std::int64_t d, const GradientColumns<RowOp, C>& columns,
                                  JoinedRows<T>* joined = nullptr) const {
        if (x_direct_ && (!RowOp::kSums || second_direct_)) {
            const std::int64_t x_at = d * steps_ * job_.reduce[0].x_stride,
                               second_at = d * steps_ * job_.reduce[0].z_stride;
            const Source<RowOp> source{reinterpret_cast<const T*>(u.x) + x_at,
                                       reinterpret_cast<const T*>(u.second) + second_at, columns};
            const auto value = [&](int j, int lanes)
                                   ONEPASS_INLINE_BODY { return lanes == W ? source(j) : source(j, lanes); };
            if (Grid::template write_plain_row<false>(u.y, row_width(u.width, d), d, value, joined)) return;
        }
        write_any_row(u, d, columns, joined);
    }
    template <class RowOp>
    ONEPASS_APART void write_any_row(const Unit& u, std::int64_t d, const GradientColumns<RowOp, C>& columns,
                                     JoinedRows<T>* joined) const {
        const int width = row_width(u.width, d);
        const T* x = read_x(u, d, width);
        const T* second = RowOp::kSums ? read_second(u, d, width) : nullptr;
        Grid::write_row(u.y, d, width, Source<RowOp>{x, second, columns}, joined);
    }

    // The second pass of a chunk. Chunks come backwards, as what the first one read last is still in the cache, but
    // rows do not: backwards the processor does not look ahead.
    template <class RowOp>
    ONEPASS_APART void write_back(const Unit& u, std::int64_t begin, std::int64_t end,
                                  const GradientColumns<RowOp, C>& columns) const {
        for (std::int64_t d = begin; d < end; ++d) {
            fetch_ahead<RowOp>(u, d);
            write_row(u, d, columns);
        }
    }

    const char* x_;
    const char* second_;
    const char* third_;
    char* y_;
    bool x_direct_;
    bool second_direct_;
    std::int64_t ahead_;  // rows that a pass fetches before it reads them
    std::int64_t second_ahead_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
