// Reduced axes that are not the fastest in memory: a unit of work is a tile, neighbouring columns times the whole
// reduced axis, one column per vector lane, read along the columns.
//
//   strided  a tile is a run of the inner axis; the reduced axis advances by its stride
//   packed   the inner axis leaves lanes of its vectors empty: whole steps of the reduced axis lie next to each other,
//            so a tile row is several steps, its columns are folded (column j belongs to inner element j % inner),
//            and vectors stay full
//
// A tile that fits the cache is read once from main memory. A longer one goes chunk by chunk, as an online row does,
// and, split, the chunks of one tile go to several threads.
#pragma once

#include <new>

#include "short_columns.h"
#include "tile_states.h"
#include "transposed.h"
#include "wide_reductions.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class Tiles : TileStates<T> {
    using Grid = TileGrid<T>;
    using Input = TileInput<T>;
    using Results = TileResults<T>;
    using States = TileStates<T>;
    using typename Input::Unit;
    using C = Compute<T>;
    using Grid::job_, Grid::packed_, Grid::width_, Grid::past_cache_;
    using Grid::tile_rows, Grid::chunk_rows, Grid::chunks, Grid::chunk_end, Grid::padded;
    using Grid::W;
    using Input::x_, Input::y_, Input::x_direct_, Input::unit, Input::unit_of, Input::distinct, Input::reduction;
    using Results::prepare, Results::prepare_scales, Results::prepare_lse, Results::write_from_input;
    using Results::write_reduced;
    using States::chunk_partials;

   public:
    Tiles(const Job& job, const void* x, void* y) : States(job, x, y) {}

    Form run() {
        if (job_.split) {
            run_split(Grid::units());
            return Form::usual;
        }
        if constexpr (kFolds<T>) {
            if (packed_ && folds<T>(job_)) return run_folded<T>(job_, x_, y_);
        }
        if (packed_ && transposes<T>(job_)) return run_transposed<T>(job_, x_, y_);
        if (const std::int64_t parts = wide_parts(); parts > 0) {
            run_wide(parts);
            return Form::wide;
        }
        const bool in_place = is_short(), together = !in_place && goes_together();
        auto body = [&](std::int64_t begin, std::int64_t end) {
            if (together) {
                if constexpr (Grid::kPutsTogether) {
                    const auto unit_at = [&](const typename Grid::Cut& cut) { return unit_of(cut); };
                    Grid::each_together(begin, end, unit_at, [&](const Unit& u, const Unit& soon, auto&& also) {
                        run_columns(u, soon, 0, u.width, false, also);
                    });
                }
            } else if (in_place) {
                Grid::each_run(begin, end,
                               [&](const auto& run, const auto& soon) { short_run(unit_of(run), unit_of(soon)); });
            } else if (job_.resident && job_.op == Op::softmax) {
                resident_units<true>(begin, end);
            } else if (job_.resident && job_.op == Op::log_softmax) {
                resident_units<false>(begin, end);
            } else if (in_registers()) {
                Grid::each_run(begin, end, [&](const auto& run, const auto&) { reduce_in_registers(unit_of(run)); });
            } else {
                for (std::int64_t u = begin; u < end; ++u) chunked_unit(unit(u));
            }
            if (past_cache_) stream_fence();
        };
        parallel_ranges(Grid::units(), Grid::grain(), job_.threads, body);
        return together || in_place ? Form::columns : Form::usual;
    }

   private:
    // The results of a tile are written while the exponentials of the next one are computed, row by row.
    template <bool kSoftmax>
    void resident_units(std::int64_t begin, std::int64_t end) const {
        // 50 KiB at most by AVX-512: too much for the stacks of some threads.
        Columns<C>* const columns = new (scratch_of<Columns<C>>(Scratch::states, 2)) Columns<C>[2];
        const std::int64_t size =
            tile_rows() * padded(static_cast<int>(width_)) + W;  // vectors may reach past the last
        C* keep[2] = {nullptr, nullptr};
        if constexpr (kSoftmax) {
            keep[0] = scratch_of<C>(Scratch::values, 2 * size);
            keep[1] = keep[0] + size;
        }
        const auto kept_of = [&](std::int64_t i) { return kSoftmax ? keep[i & 1] : nullptr; };
        JoinedRows<T> joined;
        Unit ready{}, u = unit(begin);
        for (std::int64_t i = begin; i < end; ++i) {
            Columns<C>& c = columns[i & 1];
            const Unit next = i + 1 < end ? unit(i + 1) : u;
            const auto beside =
                Results::template beside_of<kSoftmax>(i + 1 < end ? &next : nullptr, i == begin ? nullptr : &ready,
                                                      columns[(i + 1) & 1], kept_of(i + 1), joined);
            States::template exponentials<!kSoftmax>(u, 0, tile_rows(), c, kept_of(i), beside);
            if constexpr (kSoftmax) {
                prepare_scales(u, c);
            } else {
                prepare_lse(u, c);
            }
            ready = u;
            u = next;
        }
        Results::template beside_of<kSoftmax>(nullptr, &ready, columns[(end - 1) & 1], kept_of(end - 1), joined)
            .rows(0, tile_rows());
        joined.flush();
    }

    // ---- plain reductions of tiles that are one chunk, read and written where they lie ----

    bool in_registers() const { return is_plain(job_.op) && !packed_ && x_direct_ && Grid::y_direct_ && chunks() == 1; }

    // Of a tile, or of several side by side.
    void reduce_in_registers(const Unit& u) const {
        const ColumnReduction<T> columns = reduction(u, 0, tile_rows());
        T* const y = reinterpret_cast<T*>(u.y);
        if (is_sum(job_.op)) return columns.results(job_.op == Op::mean, y);
        if (job_.op == Op::amax ? columns.template extremes<1>(y) : columns.template extremes<-1>(y)) return;
        reduce_again(u, 0, u.width);
    }
    // Some columns of u, among which there is a NaN.
    void reduce_again(const Unit& u, int from, int width) const {
        for (int j = from; j < from + width; j += static_cast<int>(width_)) {
            const std::int64_t left = from + width - j, bytes = j * static_cast<std::int64_t>(sizeof(T));
            chunked_unit({u.x + bytes, u.y + bytes, static_cast<int>(left < width_ ? left : width_)});
        }
    }

    // How many parts all columns of an outer index are cut into, for WideReduction; 0: it is not for this job, or
    // threads would have nothing to do for more than a tenth of their time, which is what the narrowest gain.
    std::int64_t wide_parts() const {
        const std::int64_t whole = Grid::inner_, threads = job_.threads;
        if (job_.cached || !in_registers() || whole > Grid::kMostOfRun) return 0;
        if (!wide(Unit{x_, y_, static_cast<int>(whole)}).is_faster()) return 0;
        const std::int64_t most = Grid::tiles_ / ((WideReduction<T>::kLeastApart + width_ - 1) / width_);
        const std::int64_t wanted = threads == 1 ? 1 : (4 * threads + job_.rows - 1) / job_.rows;
        const auto are_busy = [&](std::int64_t parts) {
            const std::int64_t runs = parts * job_.rows, rounds = (runs + threads - 1) / threads;
            return 10 * runs >= 9 * rounds * threads;
        };
        for (std::int64_t parts = most < 1 ? 1 : wanted < most ? wanted : most; parts > 0; --parts) {
            if (are_busy(parts)) return parts;
        }
        return threads <= most ? threads : 0;
    }
    void run_wide(std::int64_t parts) const {
        const std::int64_t runs = parts * job_.rows, tiles = Grid::tiles_;
        auto body = [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t outer = i / parts, part = i - outer * parts;
                const auto first = Grid::cut(outer * tiles + tiles * part / parts);
                const auto last = Grid::cut(outer * tiles + tiles * (part + 1) / parts - 1);
                const std::int64_t width = last.column + last.width - first.column;
                reduce_wide(unit_of({first.outer, first.column, static_cast<int>(width)}));
            }
        };
        const std::int64_t run_bytes = job_.length * Grid::inner_ / parts * size_of(job_.in);
        parallel_ranges(runs, grain_of(runs, run_bytes, kPipelinedRun, job_.threads), job_.threads, body);
    }
    WideReduction<T> wide(const Unit& u) const {
        return {{reinterpret_cast<const T*>(u.x), job_.reduce[0].x_stride, tile_rows()}, u.width};
    }
    void reduce_wide(const Unit& u) const {
        const auto again = [&](int from, int width) { reduce_again(u, from, width); };
        T* const y = reinterpret_cast<T*>(u.y);
        if (is_sum(job_.op)) return wide(u).sums(job_.op == Op::mean, y);
        job_.op == Op::amax ? wide(u).template extremes<1>(y, again) : wide(u).template extremes<-1>(y, again);
    }

    // ---- the softmax family of short columns ----

    bool is_short() const {
        const bool family = job_.op == Op::softmax || job_.op == Op::log_softmax || job_.op == Op::logsumexp;
        const bool side_by_side = is_elementwise(job_.op) || job_.inner.y_stride == 1;
        return family && x_direct_ && side_by_side && Grid::template short_columns<ShortColumns<T>>(y_);
    }

    bool goes_together() const {
        return is_elementwise(job_.op) && x_direct_ && job_.length <= ShortColumns<T>::kMostRows &&
               Grid::goes_together(3 * kVectorBytes);
    }

    void short_run(const Unit& u, const Unit& soon) const {
        Grid::each_part(u.y, u.width, [&](int column, int width, bool past_cache) {
            run_columns(u, soon, column, width, past_cache, Nothing{});
        });
    }
    template <class Also>
    void run_columns(const Unit& u, const Unit& soon, int column, int width, bool past_cache, Also&& also) const {
        const ShortRowsOf<const T> x{reinterpret_cast<const T*>(u.x), job_.reduce[0].x_stride,
                                     reinterpret_cast<const T*>(soon.x)};
        const ShortRowsOf<T> y{reinterpret_cast<T*>(u.y), job_.reduce[0].y_stride};
        const ShortColumns<T> columns{job_.length, width, y.from(column), past_cache};
        if (job_.length == 1) return columns.single(job_.op, x.from(column), also);
        if (job_.op == Op::softmax) return columns.softmax(x.from(column), also);
        if (job_.op == Op::log_softmax) return columns.log_softmax(x.from(column), also);
        columns.logsumexp(x.from(column));
    }

    void chunked_unit(const Unit& u) const {
        Columns<C> c;
        Partial* total = scratch_of<Partial>(Scratch::states, 2 * Columns<C>::kMost);
        Partial* part = total + Columns<C>::kMost;
        chunk_partials(u, 0, chunk_end(0), c, total);
        for (std::int64_t k = 1; k < chunks(); ++k) {
            chunk_partials(u, k * chunk_rows(), chunk_end(k), c, part);
            for (int j = 0; j < distinct(u); ++j) merge(job_.op, total[j], part[j]);
        }
        if (!is_elementwise(job_.op)) return write_reduced(u, total);
        prepare(u, total, c);
        for (std::int64_t k = chunks(); k-- > 0;) write_from_input(u, k * chunk_rows(), chunk_end(k), c);
    }

    void run_split(std::int64_t units) const {
        constexpr std::int64_t kMost = Columns<C>::kMost;
        Partial* part = scratch_of<Partial>(Scratch::states, (units * chunks() + units) * kMost);
        Partial* total = part + units * chunks() * kMost;
        auto read = [&](std::int64_t begin, std::int64_t end) {
            Columns<C> c;
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t k = i % chunks();
                chunk_partials(unit(i / chunks()), k * chunk_rows(), chunk_end(k), c, part + i * kMost);
            }
        };
        parallel_ranges(units * chunks(), 1, job_.threads, read);
        for (std::int64_t i = 0; i < units; ++i) {
            const Unit u = unit(i);
            for (int j = 0; j < distinct(u); ++j) {
                Partial all = empty_partial(job_.op);
                for (std::int64_t k = 0; k < chunks(); ++k) merge(job_.op, all, part[(i * chunks() + k) * kMost + j]);
                total[i * kMost + j] = all;
            }
            if (!is_elementwise(job_.op)) write_reduced(u, total + i * kMost);
        }
        if (!is_elementwise(job_.op)) return;
        auto write = [&](std::int64_t begin, std::int64_t end) {
            Columns<C> c;
            for (std::int64_t i = begin; i < end; ++i) {
                const std::int64_t back = units * chunks() - 1 - i;
                const std::int64_t k = back % chunks();
                const Unit u = unit(back / chunks());
                prepare(u, total + back / chunks() * kMost, c);
                write_from_input(u, k * chunk_rows(), chunk_end(k), c);
            }
            if (past_cache_) stream_fence();
        };
        parallel_ranges(units * chunks(), 1, job_.threads, write);
    }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
