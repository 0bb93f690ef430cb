// Gradients whose reduced axis is not the fastest in memory: the tiles of tiles.h, with a second input. Every column
// has a sum and constants of its own.
#pragma once

#include "gradient_ops.h"
#include "partial.h"
#include "short_columns.h"
#include "tile_grid.h"
#include "transposed.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// The running sums of the columns of one tile.
template <class C>
struct alignas(64) GradientSums {
    static constexpr int kMost = kWidestTile<C>;
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
class GradientTiles : TileGrid<T> {
    using Grid = TileGrid<T>;
    using C = Compute<T>;
    using V = Vec<C>;
    using Grid::job_, Grid::packed_, Grid::inner_, Grid::steps_, Grid::width_, Grid::past_cache_;
    using Grid::tile_rows, Grid::row_width, Grid::chunk_rows, Grid::chunks, Grid::chunk_end, Grid::padded,
        Grid::distinct;
    using Grid::W, Grid::kBlock, Grid::kAhead, Grid::kMostColumns, Grid::kGroup, Grid::kFewRows;

   public:
    GradientTiles(const Job& job, const Addresses& in, void* y)
        : Grid(job, y),
          x_(static_cast<const char*>(in.x)),
          second_(static_cast<const char*>(in.second)),
          third_(static_cast<const char*>(in.third)),
          y_(static_cast<char*>(y)) {
        x_direct_ = job.in == DTypeOf<T>::value && (packed_ || job.inner.x_stride == 1);
        second_direct_ = job.second == DTypeOf<T>::value && (packed_ || job.inner.z_stride == 1);
    }

    Form run() {
        switch (job_.op) {
            case Op::softmax_backward: return run_op<SoftmaxGradient<C>>();
            case Op::log_softmax_backward: return run_op<LogSoftmaxGradient<C>>();
            default: return run_op<LogsumexpGradient<C>>();
        }
    }

   private:
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
        if (d >= tile_rows()) return;
        // Not into the first cache, on any processor: a tile of two inputs is longer (on a Zen 5, softmax's of
        // 32 x 256 x 3136 bfloat16, dim 1, takes 1.13 times by that).
        fetch_into<2>(reinterpret_cast<const T*>(tile) + d * steps_ * job_.reduce[0].*stride, width);
    }
    template <class RowOp>
    ONEPASS_INLINE void fetch_row(const Unit& u, std::int64_t d, int width) const {
        if (x_direct_) fetch(u.x, &Axis::x_stride, d, width);
        if (RowOp::kSums && second_direct_) fetch(u.second, &Axis::z_stride, d, width);
    }

    // What is done next to each row of a tile, if there is one before: its results are written, and of the next tile,
    // if there is one, the same row is fetched. Of one type also where there is neither (tiles.h).
    template <class RowOp>
    struct Beside {
        const GradientTiles& tiles;
        const Unit* next = nullptr;
        const Unit* ready = nullptr;
        const GradientColumns<RowOp, C>* columns = nullptr;
        Carry* carry = nullptr;  // where rows of results share lines only with each other

        ONEPASS_INLINE void operator()(std::int64_t d) const {
            if (!ready) return;
            if (next) tiles.template fetch_row<RowOp>(*next, d, next->width);
            tiles.fetch_edges(ready->y, ready->width, d + kAhead);
            tiles.write_row(*ready, d, *columns, carry);
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
                    if (j == 0) fetch_row<RowOp>(u, d + kAhead, u.width);
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
                fetch_row<RowOp>(u, d + kAhead, u.width);
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
                                  Carry* carry = nullptr) const {
        if (x_direct_ && (!RowOp::kSums || second_direct_)) {
            const std::int64_t x_at = d * steps_ * job_.reduce[0].x_stride,
                               second_at = d * steps_ * job_.reduce[0].z_stride;
            const Source<RowOp> source{reinterpret_cast<const T*>(u.x) + x_at,
                                       reinterpret_cast<const T*>(u.second) + second_at, columns};
            const auto value = [&](int j, int lanes)
                                   ONEPASS_INLINE_BODY { return lanes == W ? source(j) : source(j, lanes); };
            if (Grid::template write_plain_row<false>(u.y, row_width(u.width, d), d, value, carry)) return;
        }
        write_any_row(u, d, columns, carry);
    }
    template <class RowOp>
    ONEPASS_APART void write_any_row(const Unit& u, std::int64_t d, const GradientColumns<RowOp, C>& columns,
                                     Carry* carry) const {
        const int width = row_width(u.width, d);
        const T* x = read_x(u, d, width);
        const T* second = RowOp::kSums ? read_second(u, d, width) : nullptr;
        Grid::write_row(u.y, d, width, Source<RowOp>{x, second, columns}, carry);
    }

    // The second pass of a chunk. Chunks come backwards, as what the first one read last is still in the cache, but
    // rows do not: backwards the processor does not look ahead.
    template <class RowOp>
    ONEPASS_APART void write_back(const Unit& u, std::int64_t begin, std::int64_t end,
                                  const GradientColumns<RowOp, C>& columns) const {
        for (std::int64_t d = begin; d < end; ++d) {
            fetch_row<RowOp>(u, d + kAhead, u.width);
            write_row(u, d, columns);
        }
    }

    // ---- units ----

    template <class RowOp>
    Form run_op() {
        if (job_.split) {
            run_split<RowOp>();
            return Form::usual;
        }
        if constexpr (RowOp::kSums && sizeof(C) == 4) {
            if (packed_ && transposes<T>(job_)) return run_transposed_gradient<T>(job_, {x_, second_}, y_);
        }
        const bool together = goes_together<RowOp>();
        const bool at_once = together || columns_at_once<RowOp>();
        auto body = [&](std::int64_t begin, std::int64_t end) {
            if (together) {
                if constexpr (kPutsTogether<RowOp>) {
                    const auto unit_at = [&](const auto& cut) { return unit_of(cut); };
                    Grid::each_together(begin, end, unit_at, [&](const Unit& u, const Unit& soon, auto&& also) {
                        run_columns<RowOp>(u, soon, 0, u.width, false, also);
                    });
                }
            } else if (at_once) {
                if constexpr (RowOp::kSums && sizeof(C) == 4) {
                    Grid::each_run(begin, end, [&](const auto& run, const auto& soon) {
                        run_at_once<RowOp>(unit_of(run), unit_of(soon));
                    });
                }
            } else if constexpr (!RowOp::kSums) {
                for (std::int64_t i = begin; i < end; ++i) one_pass<RowOp>(unit(i), 0, tile_rows());
            } else if (job_.resident) {
                resident_units<RowOp>(begin, end);
            } else {
                for (std::int64_t i = begin; i < end; ++i) chunked_unit<RowOp>(unit(i));
            }
            if (past_cache_) stream_fence();
        };
        parallel_ranges(Grid::units(), Grid::grain(), job_.threads, body);
        return at_once ? Form::columns : Form::usual;
    }

    // Whether a few vectors of columns at a time go down all rows and once more: short ones, and longer ones where all
    // arrays stay in a cache, or both inputs of one step of the outer axes in a near one. Measured with two threads,
    // dim 1, float32, times over those of tiles. On a Zen 3 (L2 512 KiB, L3 32 MiB), softmax's: 4x20x2000 0.65,
    // 20x34x310 0.6, 10x100x49 0.7, 4x70x2000 (6.4 MiB) 0.65, 2x300x2000 (13.7) 0.82, 46x30x980 (15.5) 0.9;
    // log_softmax's 0.95, 0.85, 0.7, 0.82, 1.0, and from memory up to 2. With vectors of 64 bytes, on a Zen 5 (L2 1
    // MiB): 0.72, 0.62, 0.82, 0.93, 0.79, 0.78; log_softmax's 0.82, 0.75, 0.65, 0.83, 0.75, 0.83; of more bytes
    // 500x200x81 (127 KiB a step) 0.91 and 0.78, 1000x30x60 (14) 0.71 and 0.67, 64x500x250 (1000) 1.03 and 0.93,
    // 30x100x2001 (1600) 0.91 and 1.15; of bfloat16 64x500x250 (500) 1.13 and 1.09.
    static constexpr std::int64_t kCachedBytes = 16 << 20, kNearBytes = kVectorBytes == 64 ? 256 << 10 : 0;
    template <class RowOp>
    static constexpr bool kLongAtOnce = RowOp::kSums && (RowOp::kOfProducts || kVectorBytes == 64);
    template <class RowOp>
    bool columns_at_once() const {
        if (!RowOp::kSums || sizeof(C) != 4 || !x_direct_ || !second_direct_) return false;
        if (Grid::template short_columns<ShortColumns<T>>(y_)) return true;
        // Of tiles that wait, which nothing is shared out of: others are added up in chunks, and have other bits.
        if (!kLongAtOnce<RowOp> || !job_.resident || !Grid::y_direct_ || packed_ || past_cache_) return false;
        const std::int64_t bytes = job_.length * inner_ * static_cast<std::int64_t>(sizeof(T));
        return 3 * job_.rows * bytes <= kCachedBytes || 2 * bytes <= kNearBytes;
    }
    template <class RowOp>
    static constexpr bool kPutsTogether = kLongAtOnce<RowOp> && Grid::kPutsTogether;
    template <class RowOp>
    bool goes_together() const {
        // Tiles write rows that are lines as fast if they are groups of vectors: log_softmax's of 1302x36x128 1.3
        // and 1.2 times, 20x128 0.9 and 1.0, where 36x96 takes 0.72 and 0.84.
        const bool tiles_do = Grid::in_lines(y_, inner_) && inner_ % (Grid::kGroup * W) == 0;
        return kPutsTogether<RowOp> && !tiles_do && x_direct_ && second_direct_ &&
               Grid::goes_together(2 * kVectorBytes);
    }

    template <class RowOp>
    void run_at_once(const Unit& u, const Unit& soon) const {
        Grid::each_part(u.y, u.width, [&](int column, int width, bool past_cache) {
            run_columns<RowOp>(u, soon, column, width, past_cache, Nothing{});
        });
    }
    template <class RowOp, class Also>
    void run_columns(const Unit& u, const Unit& soon, int column, int width, bool past_cache, Also&& also) const {
        const auto& along = job_.reduce[0];
        const ShortRowsOf<const T> saved{reinterpret_cast<const T*>(u.x), along.x_stride,
                                         reinterpret_cast<const T*>(soon.x)};
        const ShortRowsOf<const T> dy{reinterpret_cast<const T*>(u.second), along.z_stride,
                                      reinterpret_cast<const T*>(soon.second)};
        const ShortRowsOf<T> dx{reinterpret_cast<T*>(u.y), along.y_stride};
        const ShortColumns<T> columns{job_.length, width, dx.from(column), past_cache};
        if constexpr (kLongAtOnce<RowOp>) {
            if (job_.length > ShortColumns<T>::kMostRows) {
                return columns.template gradient_by_blocks<RowOp>(saved.from(column), dy.from(column), also);
            }
        }
        columns.template gradient<RowOp>(saved.from(column), dy.from(column), also);
    }

    // Where nothing is summed.
    template <class RowOp>
    ONEPASS_APART void one_pass(const Unit& u, std::int64_t begin, std::int64_t end) const {
        GradientColumns<RowOp, C> columns;
        read_columns(u, columns);
        for (std::int64_t d = begin; d < end; ++d) {
            fetch_row<RowOp>(u, d + kAhead, u.width);
            write_row(u, d, columns);
        }
    }

    // The results of a tile are written while the next one is summed, and the one after fetched, row by row; of a tile
    // with more in its inputs than this, fetching drives out of L2 what the other two wait for. Measured on a Zen 5 (L2
    // 1 MiB), times with over times without, by two threads and by one, float32, dim 1: softmax's of 8x21x512x512 0.90
    // and 0.87, log_softmax's 0.63 to 0.81 and 0.60, bfloat16 0.48 and 0.42; 1500x64x128 (64 KiB) 0.92 and 0.73, 0.93
    // and 0.82; 800x150x128 (150 KiB) 0.97 and 0.77, 0.97 and 1.0; 700x200x128 (200) 0.99 and 0.85, 1.0 and 1.06;
    // 400x300x130 (305) 1.0 and 1.16, 1.09 and 1.08; 40x300x1000 (600) 1.04, 1.1 and 1.02. By AVX2, two threads, 0.88
    // and 0.76, 0.91 and 0.95 (64x128x3136), but 1.08 of 400x250x100 and 1.16 of 4000x30x20: not of such narrow ones.
    static constexpr std::int64_t kMostFetched = 256 << 10;
    bool fetches_next() const {
        const std::int64_t bytes = 2 * tile_rows() * width_ * static_cast<std::int64_t>(sizeof(T));
        return bytes <= kMostFetched && (kVectorBytes == 64 || width_ >= 128);
    }
    template <class RowOp>
    void resident_units(std::int64_t begin, std::int64_t end) const {
        GradientColumns<RowOp, C> columns;
        GradientSums<C> sums;
        Unit ready{};
        Carry carry;
        Carry* const joined = Grid::joined_ ? &carry : nullptr;
        const bool fetches = fetches_next();
        Unit u = unit(begin);
        for (std::int64_t i = begin; i < end; ++i) {
            const Unit next = i + 1 < end ? unit(i + 1) : u;
            add_up<RowOp>(
                u, 0, tile_rows(), sums,
                {*this, fetches && i + 1 < end ? &next : nullptr, i == begin ? nullptr : &ready, &columns, joined});
            finish_totals(u, sums);
            set_columns(u, sums.total, columns);
            ready = u;
            u = next;
        }
        Beside<RowOp>{*this, nullptr, &ready, &columns, joined}.rows(0, tile_rows());
        carry.flush();
    }

    template <class RowOp>
    void chunked_unit(const Unit& u) const {
        GradientColumns<RowOp, C> columns;
        GradientSums<C> sums;
        Partial* total = scratch_of<Partial>(Scratch::states, 2 * kMostColumns);
        Partial* part = total + kMostColumns;
        const int count = distinct(u.width);
        for (int j = 0; j < count; ++j) total[j] = empty_partial(Op::sum);
        for (std::int64_t k = 0; k < chunks(); ++k) {
            add_up<RowOp>(u, k * chunk_rows(), chunk_end(k), sums, {*this});
            partial_sums(u, sums, part);
            for (int j = 0; j < count; ++j) merge(Op::sum, total[j], part[j]);
        }
        for (int j = 0; j < u.width; ++j) sums.total[j] = finish(Op::sum, total[j % count], job_.length);
        set_columns(u, sums.total, columns);
        for (std::int64_t k = chunks(); k-- > 0;) write_back(u, k * chunk_rows(), chunk_end(k), columns);
    }

    template <class RowOp>
    void run_split() const {
        const std::int64_t units = Grid::units();
        double* total = nullptr;
        if constexpr (RowOp::kSums) total = split_totals<RowOp>(units);
        auto write = [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t back = units * chunks() - 1 - i;
                const std::int64_t k = back % chunks();
                const Unit u = unit(back / chunks());
                if constexpr (RowOp::kSums) {
                    GradientColumns<RowOp, C> columns;
                    set_columns(u, total + back / chunks() * kMostColumns, columns);
                    write_back(u, k * chunk_rows(), chunk_end(k), columns);
                } else {
                    one_pass<RowOp>(u, k * chunk_rows(), chunk_end(k));
                }
            }
            if (past_cache_) stream_fence();
        };
        parallel_ranges(units * chunks(), 1, job_.threads, write);
    }

    // The sums of the columns of every unit, in scratch memory.
    template <class RowOp>
    double* split_totals(std::int64_t units) const {
        Partial* part = scratch_of<Partial>(Scratch::states, (units * chunks() + units) * kMostColumns);
        double* total = reinterpret_cast<double*>(part + units * chunks() * kMostColumns);
        auto read = [&](std::int64_t begin, std::int64_t end) {
            GradientSums<C> sums;
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t k = i % chunks();
                const Unit u = unit(i / chunks());
                add_up<RowOp>(u, k * chunk_rows(), chunk_end(k), sums, {*this});
                partial_sums(u, sums, part + i * kMostColumns);
            }
        };
        parallel_ranges(units * chunks(), 1, job_.threads, read);
        for (std::int64_t i = 0; i < units; ++i) {
            const int width = Grid::cut(i).width;
            double* mine = total + i * kMostColumns;
            for (int j = 0; j < distinct(width); ++j) {
                Partial all = empty_partial(Op::sum);
                for (std::int64_t k = 0; k < chunks(); ++k) {
                    merge(Op::sum, all, part[(i * chunks() + k) * kMostColumns + j]);
                }
                mine[j] = finish(Op::sum, all, job_.length);
            }
            for (int j = distinct(width); j < width; ++j) mine[j] = mine[j - distinct(width)];
        }
        return total;
    }

    const char* x_;
    const char* second_;
    const char* third_;
    char* y_;
    bool x_direct_;
    bool second_direct_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
