// Reduced axes that are not the fastest in memory: a unit of work is a tile, neighbouring columns times the whole
// reduced axis, one column per vector lane, read along the columns.
//
//   strided  a tile is a run of the inner axis; the reduced axis advances by its stride
//   packed   the inner axis is shorter than a vector (2..16): whole steps of the reduced axis lie next to each other,
//            so a tile row is several steps, its columns are folded (column j belongs to inner element j % inner),
//            and vectors stay full
//
// A tile that fits the cache is read once from main memory. A longer one goes chunk by chunk, as an online row does,
// and, split, the chunks of one tile go to several threads.
#pragma once

#include "column_reductions.h"
#include "column_results.h"
#include "columns.h"
#include "logarithms.h"
#include "partial.h"
#include "reciprocals.h"
#include "short_columns.h"
#include "tile_grid.h"
#include "transposed.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class Tiles : TileGrid<T> {
    using Grid = TileGrid<T>;
    using C = Compute<T>;
    using V = Vec<C>;
    using Grid::job_, Grid::packed_, Grid::inner_, Grid::steps_, Grid::width_, Grid::past_cache_;
    using Grid::tile_rows, Grid::chunk_rows, Grid::chunks, Grid::chunk_end, Grid::padded, Grid::repeat;
    using Grid::W, Grid::kBlock, Grid::kAhead;

   public:
    Tiles(const Job& job, const void* x, void* y)
        : Grid(job, y), x_(static_cast<const char*>(x)), y_(static_cast<char*>(y)) {
        x_direct_ = job.in == DTypeOf<T>::value && (packed_ || job.inner.x_stride == 1);
    }

    Form run() {
        if (job_.split) {
            run_split(Grid::units());
            return Form::usual;
        }
        if constexpr (kFolds<T>) {
            if (packed_ && folds<T>(job_)) return run_folded<T>(job_, x_, y_);
        }
        if (packed_ && transposes<T>(job_)) return run_transposed<T>(job_, x_, y_);
        const bool in_place = is_short(), together = !in_place && goes_together();
        auto body = [&](std::int64_t begin, std::int64_t end) {
            if (together) {
                if constexpr (Grid::kPutsTogether) {
                    const auto unit_at = [&](const auto& cut) { return unit_of(cut); };
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
                for (std::int64_t u = begin; u < end; ++u) reduce_in_registers(unit(u));
            } else {
                for (std::int64_t u = begin; u < end; ++u) chunked_unit(unit(u));
            }
            if (past_cache_) stream_fence();
        };
        parallel_ranges(Grid::units(), Grid::grain(), job_.threads, body);
        return together || in_place ? Form::columns : Form::usual;
    }

   private:
    struct Unit {
        const char* x;
        char* y;
        int width;  // columns of this tile
    };

    Unit unit(std::int64_t u) const { return unit_of(Grid::cut(u)); }
    Unit unit_of(const typename Grid::Cut& cut) const {
        const Offsets at = offsets_of(job_.outer, cut.outer);
        return {x_ + (at.x + cut.column * job_.inner.x_stride) * size_of(job_.in),
                y_ + (at.y + cut.column * job_.inner.y_stride) * size_of(job_.out), cut.width};
    }

    int row_width(const Unit& u, std::int64_t d) const { return Grid::row_width(u.width, d); }
    int distinct(const Unit& u) const { return Grid::distinct(u.width); }

    const T* read(const Unit& u, std::int64_t d, int width, T* buffer) const {
        const std::int64_t offset = d * steps_ * job_.reduce[0].x_stride;
        if (x_direct_) return reinterpret_cast<const T*>(u.x) + offset;
        gather(buffer, u.x, job_.in, offset, packed_ ? 1 : job_.inner.x_stride, width);
        return buffer;
    }

    // The rows of a tile whose columns lie where they are read, one under each lane: [begin, the end of those).
    std::int64_t rows_in_place(const Unit& u, std::int64_t begin, std::int64_t end) const {
        return x_direct_ ? whole_rows(u, begin, end) : begin;
    }
    TileInPlace<T> tile(const Unit& u) const {
        return {reinterpret_cast<const T*>(u.x), steps_ * job_.reduce[0].x_stride, u.width, tile_rows()};
    }

    ONEPASS_INLINE void fetch(const Unit& u, std::int64_t d, int width) const {
        if (!x_direct_ || d >= tile_rows()) return;
        fetch_soon(row_of(u, d), width);
    }

    // Calls visit(column, Vec) for every vector of tile row d.
    template <class Visit>
    ONEPASS_INLINE void visit_row(const Unit& u, std::int64_t d, T* buffer, C fill, Visit&& visit) const {
        const int width = row_width(u, d);
        const T* x = read(u, d, width, buffer);
        fetch(u, d + kAhead, width);
        int j = 0;
        for (; j + W <= width; j += W) visit(j, load(x + j));
        if (j < width) visit(j, load_n(x + j, width - j, fill));
    }

    T* input_buffer() const { return x_direct_ ? nullptr : scratch_of<T>(Scratch::input, Columns<C>::kMost); }

    // ---- the state of rows [begin, end) of a tile, one Partial per column ----

    // What is done next to each row of a tile: of the next tile the same row is fetched, of the one before the results
    // are written. Of one type also where there is neither: what adds up exponentials is most of the code, and compiled
    // once.
    template <bool kSoftmax>
    struct Beside {
        const Tiles& tiles;
        const Unit* next = nullptr;
        const Unit* ready = nullptr;
        const Columns<C>* columns = nullptr;
        const C* kept = nullptr;
        Carry* carry = nullptr;  // where rows of results share lines only with each other
        // Where there is nothing to ask of a row, what the loop has at hand: what any_row looks up and decides of each
        // takes as long as the results of three vectors.
        bool asks = false;
        struct {
            const T* next = nullptr;  // to fetch
            T* y = nullptr;           // to write
            std::int64_t x_stride = 0, y_stride = 0;
            int next_width = 0, width = 0;
            bool past_cache = false;
        } in_place{};

        // Next to a row; where work is apart it goes by `rows` instead.
        ONEPASS_INLINE void operator()(std::int64_t d) const { row_in_place(d); }
        // Rows [begin, end), where the code of the row is not wanted once more.
        ONEPASS_APART void rows(std::int64_t begin, std::int64_t end) const {
            if (together()) {
                if (next) tiles.fetch(*next, begin, static_cast<int>((end - begin) * next->width));
                if (ready) tiles.template write_interleaved<kSoftmax>(*ready, begin, end, kept, *columns);
                return;
            }
            for (std::int64_t d = begin; d < end; ++d) asks ? any_row(d) : row_in_place(d);
        }
        // Whether several rows at a time are better: they are written as one, or asking is called for.
        bool apart() const { return asks; }

       private:
        // Whether rows lie one behind the other.
        bool together() const { return tiles.packed_ && tiles.x_direct_; }
        ONEPASS_INLINE void row_in_place(std::int64_t d) const {
            const auto& p = in_place;
            if (p.next) fetch_soon(p.next + d * p.x_stride, p.next_width);
            if (!p.y) return;
            const Columns<C>& c = *columns;
            const auto write = [&](auto&& value) ONEPASS_INLINE_BODY {
                Grid::write_row_in_place(p.y + d * p.y_stride, p.width, p.past_cache, value);
            };
            if constexpr (kSoftmax) {
                const C* const e = kept + d * padded(p.width);
                write([&](int j, int) ONEPASS_INLINE_BODY {
                    return times<T>(loaded_once(e + j), load(c.scale + j), load(c.scale_low + j));
                });
            } else {
                const T* const x = reinterpret_cast<const T*>(ready->x) + d * p.x_stride;
                write([&](int j, int lanes) ONEPASS_INLINE_BODY {
                    return log_of(c, j, lanes == W ? load(x + j) : load_n(x + j, lanes, C(0)));
                });
            }
        }
        ONEPASS_INLINE void any_row(std::int64_t d) const {
            if (next) tiles.fetch(*next, d, next->width);
            if (!ready) return;
            tiles.fetch_edges(ready->y, ready->width, d + kAhead);
            if constexpr (kSoftmax) {
                tiles.write_row_from_kept(*ready, d, kept + d * padded(ready->width), *columns, carry);
            } else {
                tiles.write_log_row(*ready, d, *columns, carry);
            }
        }
    };
    template <bool kSoftmax>
    Beside<kSoftmax> beside_of(const Unit* next, const Unit* ready, const Columns<C>& c, const C* kept,
                               Carry& carry) const {
        Beside<kSoftmax> beside{*this, next, ready, &c, kept, Grid::joined_ ? &carry : nullptr};
        const bool in_place = !ready || (Grid::results_in_place(ready->y, ready->width) && !(kSoftmax && c.any_small));
        beside.asks = packed_ || !x_direct_ || !in_place;
        const auto x_of = [](const Unit* u) { return u ? reinterpret_cast<const T*>(u->x) : nullptr; };
        beside.in_place = {x_of(next),
                           ready ? reinterpret_cast<T*>(ready->y) : nullptr,
                           job_.reduce[0].x_stride,
                           job_.reduce[0].y_stride,
                           next ? next->width : 0,
                           ready ? ready->width : 0,
                           past_cache_};
        return beside;
    }

    // Fills c.max, the anchors and c.total; `keep`, if not a null pointer, receives the exponentials of a softmax,
    // `padded` per row. kExact: relative to the maxima themselves, for logarithms; nothing is kept then.
    template <bool kExact>
    void exponentials(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c, C* keep,
                      const Beside<!kExact>& beside) const {
        if constexpr (kExact) {
            exponentials_of_any<true>(u, begin, end, c, keep, beside);
        } else if (row_width(u, begin) >= W &&
                   !may_be_usual(load(read(u, begin, row_width(u, begin), input_buffer())))) {
            beside.rows(begin, end);
            exponentials_of_any<false>(u, begin, end, c, keep, Nothing{});
        } else if (!exponentials_if_usual(u, begin, end, c, keep, beside)) {
            exponentials_of_any<false>(u, begin, end, c, keep, Nothing{});
        }
    }

    ONEPASS_ONCE bool exponentials_if_usual(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c, C* keep,
                                            const Beside<true>& beside) const {
        const auto anchor = usual_anchor<C>();
        V top = -kInfinity<C>;
        const auto exponential = [&](auto& v, int) ONEPASS_INLINE_BODY {
            for (const V& each : v) top = max(each, top);
            exp_all_of<T>(v, anchor);
        };
        add_up<false, Grid::kGroup>(u, begin, end, c, keep, exponential, beside);
        if (!are_usual(top, c.total, distinct(u))) return false;
        for (int j = 0; j < padded(u.width); j += W) {
            store(c.max + j, V(C(0)));
            store(c.shift + j, anchor.shift);
            store(c.magic + j, anchor.magic);
        }
        return true;
    }

    template <bool kExact, class Next>
    ONEPASS_ONCE void exponentials_of_any(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c, C* keep,
                                          const Next& beside) const {
        find_anchors(u, begin, end, c, kExact);
        const auto zero = anchor_at(V(C(0)), true);
        const auto exponential = [&](auto& v, int j) ONEPASS_INLINE_BODY {
            for (V& each : v) {
                each = each - load(c.shift + j);
                // Relative to the maximum itself, all that columns differ in is that.
                if constexpr (!kExact) {
                    each = exp_of<T>(each, Anchor<V, false>{V(C(0)), load(c.floor + j), load(c.magic + j)});
                }
                j += W;
            }
            if constexpr (kExact) exp_all_of<T>(v, Anchor<V, false>{zero.shift, zero.floor, zero.magic});
        };
        // Softmax comes here only with unusual numbers: in small groups.
        add_up<kExact, kExact ? Grid::kGroup / 2 : 1>(u, begin, end, c, keep, exponential, beside);
        mend_infinities(u, begin, end, c);
    }

    // The columns' maxima, c.max, and what exponentials relative to them begin with.
    ONEPASS_APART void find_anchors(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c,
                                    bool exact) const {
        T* buffer = input_buffer();
        const int width = padded(u.width);
        for (int j = 0; j < width; ++j) c.max[j] = -kInfinity<C>;
        const std::int64_t in_place = rows_in_place(u, begin, end);
        if (in_place > begin) tile(u).maxima(begin, in_place, c);
        for (std::int64_t d = in_place; d < end; ++d) {
            visit_row(u, d, buffer, -kInfinity<C>,
                      [&](int j, V v) ONEPASS_INLINE_BODY { store(c.max + j, max(v, load(c.max + j))); });
        }
        Grid::template fold_by_halves<W>(
            [&](int j, int other) ONEPASS_INLINE_BODY { store(c.max + j, max(load(c.max + other), load(c.max + j))); });
        repeat(c.max);
        for (int j = 0; j < width; j += W) {
            V m = load(c.max + j);
            const auto anchor = anchor_at(where_not_above(abs(m), V(kLargest<C>), m, V(C(0))), exact);
            store(c.shift + j, anchor.shift);
            store(c.floor + j, anchor.floor);
            store(c.magic + j, anchor.magic);
        }
    }

    // c.total: the distinct columns' sums of exponentials.
    template <bool kExact, int kGroup, class Exponential, class Next>
    ONEPASS_INLINE void add_up(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c, C* keep,
                               Exponential&& exponential, const Next& beside) const {
        // In float64 throughout, or without loss: a lane adds up a whole column, and a logarithm shows what float32
        // loses (1.3 ULP instead of 1.1, even if no more than four are added up before they go to float64).
        constexpr bool kDirect = kExact || sizeof(C) == 8;
        T* buffer = input_buffer();
        const int width = padded(u.width);
        clear_totals(c, width);
        c.least = {};
        std::int64_t rest = begin;
        if constexpr (sizeof(C) == 4) {
            rest = rows_in_place(u, begin, end);
            if (rest > begin) tile(u).template add_up<kExact, kGroup>(begin, rest, c, keep, exponential, beside);
        }
        for (std::int64_t block = rest; block < end; block += kBlock) {
            const std::int64_t stop = block + kBlock < end ? block + kBlock : end;
            for (int j = 0; j < width; ++j) c.sum[j] = 0;
            for (std::int64_t d = block; d < stop; ++d) {
                visit_row(u, d, buffer, -kInfinity<C>, [&](int j, V v) ONEPASS_INLINE_BODY {
                    V e[1] = {v};
                    exponential(e, j);
                    if (!kExact && keep) store(keep + (d - begin) * width + j, e[0]);
                    if constexpr (!kExact) c.least.add(e[0]);
                    if constexpr (kDirect) {
                        add_to_total(c, j, e[0]);
                    } else {
                        store(c.sum + j, load(c.sum + j) + e[0]);
                    }
                });
                beside.rows(d, d + 1);
            }
            if constexpr (!kDirect) {
                for (int j = 0; j < width; ++j) c.total[j] += static_cast<double>(c.sum[j]);
            }
        }
        finish_totals(c, width);
    }

    ONEPASS_INLINE static void add_to_total(Columns<C>& c, int j, V v) {
        if constexpr (sizeof(C) == 4) {
            store(c.total + j, load(c.total + j) + low_half(v));
            store(c.total + j + kLanes<double>, load(c.total + j + kLanes<double>) + high_half(v));
        } else {
            VecD sum, lost;
            two_sum(load(c.total + j), v, sum, lost);
            store(c.total + j, sum);
            store(c.lost + j, load(c.lost + j) + lost);
        }
    }

    static void clear_totals(Columns<C>& c, int width) {
        for (int j = 0; j < width; ++j) c.total[j] = c.lost[j] = 0;
    }

    // An infinite total has lost NaN.
    void finish_totals(Columns<C>& c, int width) const {
        Grid::fold_sums(c.total, c.lost);
        if constexpr (sizeof(C) == 8) {
            for (int j = 0; j < width; ++j) c.total[j] += c.lost[j] == c.lost[j] ? c.lost[j] : 0;
        }
    }

    // Columns whose maximum is infinite: their sum is 1 for +inf and 0 for -inf, NaN if there was a NaN.
    ONEPASS_APART void mend_infinities(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c) const {
        T* buffer = input_buffer();
        for (int j = 0; j < distinct(u); ++j) {
            if (!is_infinite(c.max[j])) continue;
            bool nan = c.max[j] < 0 && c.total[j] != c.total[j];
            if (c.max[j] > 0) {
                for (std::int64_t d = begin; d < end && !nan; ++d) {
                    const int width = row_width(u, d);
                    const T* x = read(u, d, width, buffer);
                    // packed: the other columns of the same inner element count too
                    for (int i = j; i < (packed_ ? width : j + 1); i += static_cast<int>(inner_)) {
                        if (i < width && has_nan(x + i, 1)) nan = true;
                    }
                }
            }
            c.total[j] = nan ? __builtin_nan("") : (c.max[j] > 0 ? 1.0 : 0.0);
        }
    }

    template <bool kExact>
    ONEPASS_APART void states(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c,
                              Partial* partial) const {
        if constexpr (kExact) {
            // With nothing beside it: the loop of log_softmax, which has, takes up to a fifth longer.
            exponentials_of_any<true>(u, begin, end, c, nullptr, Nothing{});
        } else {
            exponentials<false>(u, begin, end, c, nullptr, {*this});
        }
        for (int j = 0; j < distinct(u); ++j) {
            const bool infinite = is_infinite(c.max[j]);
            partial[j] = {infinite ? static_cast<double>(c.max[j]) : log_of_anchor<C>(c.shift[j], c.magic[j]),
                          infinite ? c.total[j] : c.total[j] * kUnbias<C>};
        }
    }

    // The end of rows [begin, end) that are whole: all, or of a packed tile all but the last.
    std::int64_t whole_rows(const Unit& u, std::int64_t begin, std::int64_t end) const {
        return end > begin && row_width(u, end - 1) < u.width ? end - 1 : end;
    }
    ColumnReduction<T> reduction(const Unit& u, std::int64_t begin, std::int64_t end) const {
        const std::int64_t stride = steps_ * job_.reduce[0].x_stride;
        return {{reinterpret_cast<const T*>(u.x) + begin * stride, stride, end - begin}, u.width};
    }
    // Calls visit(column, Vec) for the last row of a packed tile, if that is not whole, filled up with `fill`.
    template <class Visit>
    ONEPASS_INLINE void visit_rest(const Unit& u, std::int64_t whole, std::int64_t end, C fill, Visit&& visit) const {
        if (whole != end) visit_row(u, whole, nullptr, fill, visit);
    }

    // c.total: the sums of rows [begin, end), of float64 less what is in c.lost.
    void sum_rows(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c) const {
        const std::int64_t whole = whole_rows(u, begin, end);
        reduction(u, begin, whole).sums(c.total, c.lost);
        visit_rest(u, whole, end, C(0), [&](int j, V v) ONEPASS_INLINE_BODY { add_to_total(c, j, v); });
    }

    ONEPASS_APART void sums(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c,
                            Partial* partial) const {
        T* buffer = input_buffer();
        const int width = padded(u.width);
        if (x_direct_) {
            sum_rows(u, begin, end, c);
        } else {
            clear_totals(c, width);
            for (std::int64_t block = begin; block < end; block += kBlock) {
                const std::int64_t stop = block + kBlock < end ? block + kBlock : end;
                for (int j = 0; j < width; ++j) c.sum[j] = 0;
                for (std::int64_t d = block; d < stop; ++d) {
                    visit_row(u, d, buffer, C(0), [&](int j, V v) ONEPASS_INLINE_BODY {
                        if constexpr (sizeof(C) == 8) {
                            add_to_total(c, j, v);
                        } else {
                            store(c.sum + j, load(c.sum + j) + v);
                        }
                    });
                }
                if constexpr (sizeof(C) == 4) {
                    for (int j = 0; j < width; ++j) c.total[j] += static_cast<double>(c.sum[j]);
                }
            }
        }
        // What the additions have lost is handed on: rounded into the total here, it would be an error of each chunk.
        Grid::fold_sums(c.total, c.lost);
        // An infinite total has lost NaN.
        for (int j = 0; j < distinct(u); ++j) partial[j] = {c.lost[j] == c.lost[j] ? c.lost[j] : 0, c.total[j]};
    }

    // c.max: the largest of rows [begin, end). False if there is a NaN.
    template <int kSign>
    bool extremes_of_rows(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c) const {
        const std::int64_t whole = whole_rows(u, begin, end);
        alignas(kCacheLine) T best[Columns<C>::kMost];
        const bool numbers = reduction(u, begin, whole).template extremes<kSign>(best);
        for (int j = 0; j < padded(u.width); j += W) store(c.max + j, load(best + j));
        V nan = C(0);
        visit_rest(u, whole, end, -kSign * kInfinity<C>, [&](int j, V v) ONEPASS_INLINE_BODY {
            store(c.max + j, more_extreme<kSign>(v, load(c.max + j)));
            nan = nan_or(v, nan);
        });
        return numbers && reduce_sum(nan) == 0;
    }

    template <int kSign>
    ONEPASS_APART void extremes(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c,
                                Partial* partial) const {
        T* buffer = input_buffer();
        const int width = padded(u.width);
        for (int j = 0; j < width; ++j) c.sum[j] = 0;  // becomes NaN where there is one
        if (!x_direct_ || !extremes_of_rows<kSign>(u, begin, end, c)) {
            for (int j = 0; j < width; ++j) c.max[j] = -kSign * kInfinity<C>;
            for (std::int64_t d = begin; d < end; ++d) {
                visit_row(u, d, buffer, -kSign * kInfinity<C>, [&](int j, V v) ONEPASS_INLINE_BODY {
                    store(c.max + j, more_extreme<kSign>(v, load(c.max + j)));
                    store(c.sum + j, nan_or(v, load(c.sum + j)));
                });
            }
        }
        Grid::template fold_by_halves<W>([&](int j, int other) ONEPASS_INLINE_BODY {
            store(c.max + j, more_extreme<kSign>(load(c.max + other), load(c.max + j)));
            store(c.sum + j, load(c.sum + other) + load(c.sum + j));
        });
        for (int j = 0; j < distinct(u); ++j) {
            partial[j] = {static_cast<double>(c.sum[j] != c.sum[j] ? c.sum[j] : c.max[j]), 0};
        }
    }

    ONEPASS_APART void chunk_partials(const Unit& u, std::int64_t begin, std::int64_t end, Columns<C>& c,
                                      Partial* partial) const {
        switch (job_.op) {
            case Op::softmax: return states<false>(u, begin, end, c, partial);
            case Op::log_softmax:
            case Op::logsumexp: return states<true>(u, begin, end, c, partial);
            case Op::sum:
            case Op::mean: return sums(u, begin, end, c, partial);
            case Op::amax: return extremes<1>(u, begin, end, c, partial);
            case Op::amin: return extremes<-1>(u, begin, end, c, partial);
            default: return;
        }
    }

    // ---- results ----

    // The epilogue's per-column constants from the totals.
    ONEPASS_APART void prepare(const Unit& u, const Partial* total, Columns<C>& c) const {
        for (int j = 0; j < u.width; ++j) {
            const int same = j - distinct(u);
            if (same >= 0) {
                if (job_.op == Op::softmax) {
                    c.shift[j] = c.shift[same];
                    c.floor[j] = c.floor[same];
                    c.magic[j] = c.magic[same];
                }
                c.scale[j] = c.scale[same];
                c.scale_low[j] = c.scale_low[same];
            } else if (job_.op == Op::softmax) {
                const auto op = softmax_op<C>(total[j]);
                c.shift[j] = op.anchor.shift.v[0];
                c.floor[j] = op.anchor.floor.v[0];
                c.magic[j] = op.anchor.magic.v[0];
                c.scale[j] = op.scale.v[0];
                c.scale_low[j] = op.scale_low.v[0];
            } else {
                split_lse(total[j].m, total[j].d, c.scale[j], c.scale_low[j]);
            }
        }
        if (job_.op != Op::softmax) return;
        c.alike = true;
        for (int j = 0; j < distinct(u); ++j) c.alike &= c.shift[j] == 0 && c.magic[j] == c.magic[0];
        c.limit = limit_beside_all(c.scale, distinct(u));
    }

    ONEPASS_INLINE const T* row_of(const Unit& u, std::int64_t d) const {
        return reinterpret_cast<const T*>(u.x) + d * steps_ * job_.reduce[0].x_stride;
    }
    ONEPASS_INLINE static V log_of(const Columns<C>& c, int j, V x) {
        return LogSoftmaxOp<V>{load(c.scale + j), load(c.scale_low + j)}(x);
    }

    ONEPASS_INLINE void write_row_from_kept(const Unit& u, std::int64_t d, const C* kept, const Columns<C>& c,
                                            Carry* carry) const {
        const auto value = [&](int j, int) ONEPASS_INLINE_BODY {
            return times<T>(load(kept + j), load(c.scale + j), load(c.scale_low + j));
        };
        if (c.any_small || !Grid::template write_plain_row<true>(u.y, row_width(u, d), d, value, carry))
            write_any_row_from_kept(u, d, kept, c, carry);
    }
    ONEPASS_APART void write_any_row_from_kept(const Unit& u, std::int64_t d, const C* kept, const Columns<C>& c,
                                               Carry* carry = nullptr) const {
        Grid::write_row(u.y, d, row_width(u, d), KeptSource<T>{kept, c}, carry);
    }

    template <bool kSoftmax>
    void write_row_from_input(const Unit& u, std::int64_t d, const Columns<C>& c, Carry* carry = nullptr) const {
        const int width = row_width(u, d);
        const T* x = read(u, d, width, input_buffer());
        Grid::write_row(u.y, d, width, InputSource<T, kSoftmax>{x, c}, carry);
    }

    ONEPASS_INLINE void write_log_row(const Unit& u, std::int64_t d, const Columns<C>& c, Carry* carry) const {
        const T* x = row_of(u, d);
        const auto value = [&](int j, int lanes) ONEPASS_INLINE_BODY {
            return log_of(c, j, lanes == W ? load(x + j) : load_n(x + j, lanes, C(0)));
        };
        if (!x_direct_ || !Grid::template write_plain_row<true>(u.y, row_width(u, d), d, value, carry))
            write_any_log_row(u, d, c, carry);
    }
    ONEPASS_APART void write_any_log_row(const Unit& u, std::int64_t d, const Columns<C>& c,
                                         Carry* carry = nullptr) const {
        write_row_from_input<false>(u, d, c, carry);
    }

    template <bool kSoftmax>
    void write_interleaved(const Unit& u, std::int64_t begin, std::int64_t end, const C* kept,
                           const Columns<C>& c) const {
        bool written = false;
        if constexpr (kSoftmax) {
            const C* const e = kept + begin * width_;
            const auto value = [&](std::int64_t j, int column, int) ONEPASS_INLINE_BODY {
                return times<T>(load(e + j), load(c.scale + column), load(c.scale_low + column));
            };
            written = !c.any_small && Grid::write_plain_rows(u.y, begin, end, value);
        } else {
            const T* const x = reinterpret_cast<const T*>(u.x) + begin * width_;
            const auto value = [&](std::int64_t j, int column, int lanes) ONEPASS_INLINE_BODY {
                return log_of(c, column, lanes == W ? load(x + j) : load_n(x + j, lanes, C(0)));
            };
            written = Grid::write_plain_rows(u.y, begin, end, value);
        }
        if (written) return;
        for (std::int64_t d = begin; d < end; ++d) {
            if constexpr (kSoftmax) {
                write_any_row_from_kept(u, d, kept + d * width_, c);
            } else {
                write_any_log_row(u, d, c);
            }
        }
    }

    ONEPASS_APART void write_from_input(const Unit& u, std::int64_t begin, std::int64_t end,
                                        const Columns<C>& c) const {
        for (std::int64_t d = begin; d < end; ++d) {
            fetch(u, d + kAhead, u.width);
            job_.op == Op::softmax ? write_row_from_input<true>(u, d, c) : write_row_from_input<false>(u, d, c);
        }
    }

    void write_reduced(const Unit& u, const Partial* total) const {
        for (int j = 0; j < distinct(u); ++j) {
            write_scalar(u.y, job_.out, j * job_.inner.y_stride, finish(job_.op, total[j], job_.length));
        }
    }

    // The results of a tile are written while the exponentials of the next one are computed, row by row.
    template <bool kSoftmax>
    void resident_units(std::int64_t begin, std::int64_t end) const {
        Columns<C> columns[2];
        const std::int64_t size =
            tile_rows() * padded(static_cast<int>(width_)) + W;  // vectors may reach past the last
        C* keep[2] = {nullptr, nullptr};
        if constexpr (kSoftmax) {
            keep[0] = scratch_of<C>(Scratch::values, 2 * size);
            keep[1] = keep[0] + size;
        }
        const auto kept_of = [&](std::int64_t i) { return kSoftmax ? keep[i & 1] : nullptr; };
        Carry carry;
        Unit ready{}, u = unit(begin);
        for (std::int64_t i = begin; i < end; ++i) {
            Columns<C>& c = columns[i & 1];
            const Unit next = i + 1 < end ? unit(i + 1) : u;
            const auto beside = beside_of<kSoftmax>(i + 1 < end ? &next : nullptr, i == begin ? nullptr : &ready,
                                                    columns[(i + 1) & 1], kept_of(i + 1), carry);
            exponentials<!kSoftmax>(u, 0, tile_rows(), c, kept_of(i), beside);
            if constexpr (kSoftmax) {
                prepare_scales(u, c);
            } else {
                prepare_lse(u, c);
            }
            ready = u;
            u = next;
        }
        beside_of<kSoftmax>(nullptr, &ready, columns[(end - 1) & 1], kept_of(end - 1), carry).rows(0, tile_rows());
        carry.flush();
    }

    void prepare_scales(const Unit& u, Columns<C>& c) const {
        reciprocals(c.total, padded(distinct(u)), c.scale, c.scale_low);
        for (int j = 0; j < distinct(u); ++j) {
            if (is_infinite(c.max[j])) c.scale[j] = static_cast<C>(__builtin_nan(""));
        }
        repeat(c.scale, W);
        repeat(c.scale_low, W);
        c.any_small = c.least.small_beside_any(c.scale, padded(u.width));
    }

    void prepare_lse(const Unit& u, Columns<C>& c) const {
        split_all_lse<ExpTable<C>::kBias>(c.max, c.total, padded(distinct(u)), c.scale, c.scale_low);
        repeat(c.scale, W);
        repeat(c.scale_low, W);
    }

    // ---- plain reductions of tiles that are one chunk, read and written where they lie ----

    bool in_registers() const { return is_plain(job_.op) && !packed_ && x_direct_ && Grid::y_direct_ && chunks() == 1; }

    void reduce_in_registers(const Unit& u) const {
        const ColumnReduction<T> columns = reduction(u, 0, tile_rows());
        T* const y = reinterpret_cast<T*>(u.y);
        if (is_sum(job_.op)) return columns.results(job_.op == Op::mean, y);
        if (job_.op == Op::amax ? columns.template extremes<1>(y) : columns.template extremes<-1>(y)) return;
        chunked_unit(u);
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

    const char* x_;
    char* y_;
    bool x_direct_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
