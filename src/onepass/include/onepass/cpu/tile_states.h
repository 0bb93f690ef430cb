// The state of rows [begin, end) of a tile, one Partial per column: sums of exponentials relative to an anchor of each
// column, sums, extremes.
#pragma once

#include "tile_results.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class TileStates : protected TileResults<T> {
   protected:
    using Grid = TileGrid<T>;
    using Input = TileInput<T>;
    using Results = TileResults<T>;
    using typename Input::Unit;
    template <bool kSoftmax>
    using Beside = typename Results::template Beside<kSoftmax>;
    using C = Compute<T>;
    using V = Vec<C>;
    using Grid::job_, Grid::packed_, Grid::inner_;
    using Grid::padded, Grid::repeat;
    using Grid::W, Grid::kBlock;
    using Input::row_width, Input::distinct, Input::read, Input::visit_row, Input::visit_rest;
    using Input::rows_in_place, Input::whole_rows, Input::tile, Input::reduction;
    using Input::x_direct_, Input::input_buffer;

    TileStates(const Job& job, const void* x, void* y) : Results(job, x, y) {}

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
        // The last row, if it is not whole, is a block of its own, as where the others are read in place: the same
        // bits.
        const std::int64_t whole = whole_rows(u, begin, end);
        for (std::int64_t block = rest, stop; block < end; block = stop) {
            const std::int64_t most = block < whole ? whole : end;
            stop = block + kBlock < most ? block + kBlock : most;
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
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
