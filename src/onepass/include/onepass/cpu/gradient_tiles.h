// Gradients whose reduced axis is not the fastest in memory: the tiles of tiles.h, with a second input. Every column
// has a sum and constants of its own.
#pragma once

#include "gradient_tile_passes.h"
#include "short_columns.h"
#include "transposed.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class GradientTiles : GradientTilePasses<T> {
    using Grid = TileGrid<T>;
    using Passes = GradientTilePasses<T>;
    using typename Passes::Unit;
    using C = Compute<T>;
    using Grid::job_, Grid::packed_, Grid::inner_, Grid::width_, Grid::past_cache_;
    using Grid::tile_rows, Grid::chunk_rows, Grid::chunks, Grid::chunk_end, Grid::distinct;
    using Grid::W;
    using Passes::kMostColumns, Passes::x_, Passes::second_, Passes::y_, Passes::x_direct_, Passes::second_direct_;
    using Passes::read_columns, Passes::write_row, Passes::write_back;
    using Passes::unit, Passes::unit_of, Passes::finish_totals, Passes::partial_sums, Passes::set_columns;

   public:
    GradientTiles(const Job& job, const Addresses& in, void* y) : Passes(job, in, y) {}

    Form run() {
        switch (job_.op) {
            case Op::softmax_backward: return run_op<SoftmaxGradient<C>>();
            case Op::log_softmax_backward: return run_op<LogSoftmaxGradient<C>>();
            default: return run_op<LogsumexpGradient<C>>();
        }
    }

   private:
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
                    const auto unit_at = [&](const typename Grid::Cut& cut) { return unit_of(cut); };
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
        if (width_ > kWidestTile<C>) return false;  // the planner has tiles of long rows for columns that short, too
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
        const bool joins = RowOp::kOfProducts && job_.length > ShortColumns<T>::kMostRows;
        const bool tiles_do = Grid::in_lines(y_, inner_) && inner_ % (Grid::kGroup * W) == 0;
        return kPutsTogether<RowOp> && !tiles_do && x_direct_ && second_direct_ &&
               Grid::goes_together(2 * kVectorBytes, Grid::kMostTogether / (joins ? 2 : 1));
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
        if constexpr (sizeof(T) == 4 && !ShortColumns<T>::template kGradientFetches<RowOp>) {
            if (past_cache && width >= ShortColumns<T>::kLongRow) {
                return columns.template gradient<RowOp, true>(saved.from(column), dy.from(column), also);
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
            Passes::template fetch_ahead<RowOp>(u, d);
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
        JoinedRows<T> rows;
        JoinedRows<T>* const joined = Grid::joined_ ? &rows : nullptr;
        const bool fetches = fetches_next();
        Unit u = unit(begin);
        for (std::int64_t i = begin; i < end; ++i) {
            const Unit next = i + 1 < end ? unit(i + 1) : u;
            Passes::template add_up<RowOp>(
                u, 0, tile_rows(), sums,
                {*this, fetches && i + 1 < end ? &next : nullptr, i == begin ? nullptr : &ready, &columns, joined});
            finish_totals(u, sums);
            set_columns(u, sums.total, columns);
            ready = u;
            u = next;
        }
        typename Passes::template Beside<RowOp>{*this, nullptr, &ready, &columns, joined}.rows(0, tile_rows());
        rows.flush();
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
            Passes::template add_up<RowOp>(u, k * chunk_rows(), chunk_end(k), sums, {*this});
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
                Passes::template add_up<RowOp>(u, k * chunk_rows(), chunk_end(k), sums, {*this});
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
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
