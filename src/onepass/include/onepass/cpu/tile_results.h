// How the results of a tile are written: from its exponentials or, again, from its input; row by row beside the next
// tile, or by themselves. What a column's results are computed with comes out of its state.
#pragma once

#include "column_results.h"
#include "logarithms.h"
#include "reciprocals.h"
#include "tile_input.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class TileResults : protected TileInput<T> {
   protected:
    using Grid = TileGrid<T>;
    using Input = TileInput<T>;
    using typename Input::Unit;
    using C = Compute<T>;
    using V = Vec<C>;
    using Grid::job_, Grid::packed_, Grid::width_, Grid::past_cache_;
    using Grid::padded, Grid::repeat;
    using Grid::W, Grid::kAhead;
    using Input::row_width, Input::distinct, Input::read, Input::fetch, Input::row_of;
    using Input::x_direct_, Input::ahead_, Input::input_buffer;

    TileResults(const Job& job, const void* x, void* y) : Input(job, x, y) {}

    // What is done next to each row of a tile: of the next tile the same row is fetched, of the one before the results
    // are written. Of one type also where there is neither: what adds up exponentials is most of the code, and compiled
    // once.
    template <bool kSoftmax>
    struct Beside {
        const TileResults& tiles;
        const Unit* next = nullptr;
        const Unit* ready = nullptr;
        const Columns<C>* columns = nullptr;
        const C* kept = nullptr;
        JoinedRows<T>* joined = nullptr;  // where rows of results share lines only with each other
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
                tiles.write_row_from_kept(*ready, d, kept + d * padded(ready->width), *columns, joined);
            } else {
                tiles.write_log_row(*ready, d, *columns, joined);
            }
        }
    };
    template <bool kSoftmax>
    Beside<kSoftmax> beside_of(const Unit* next, const Unit* ready, const Columns<C>& c, const C* kept,
                               JoinedRows<T>& joined) const {
        Beside<kSoftmax> beside{*this, next, ready, &c, kept, Grid::joined_ ? &joined : nullptr};
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

    ONEPASS_INLINE static V log_of(const Columns<C>& c, int j, V x) {
        return LogSoftmaxOp<V>{load(c.scale + j), load(c.scale_low + j)}(x);
    }

    ONEPASS_INLINE void write_row_from_kept(const Unit& u, std::int64_t d, const C* kept, const Columns<C>& c,
                                            JoinedRows<T>* joined) const {
        const auto value = [&](int j, int) ONEPASS_INLINE_BODY {
            return times<T>(load(kept + j), load(c.scale + j), load(c.scale_low + j));
        };
        if (c.any_small || !Grid::template write_plain_row<true>(u.y, row_width(u, d), d, value, joined))
            write_any_row_from_kept(u, d, kept, c, joined);
    }
    ONEPASS_APART void write_any_row_from_kept(const Unit& u, std::int64_t d, const C* kept, const Columns<C>& c,
                                               JoinedRows<T>* joined = nullptr) const {
        Grid::write_row(u.y, d, row_width(u, d), KeptSource<T>{kept, c}, joined);
    }

    template <bool kSoftmax>
    void write_row_from_input(const Unit& u, std::int64_t d, const Columns<C>& c,
                              JoinedRows<T>* joined = nullptr) const {
        const int width = row_width(u, d);
        const T* x = read(u, d, width, input_buffer());
        Grid::write_row(u.y, d, width, InputSource<T, kSoftmax>{x, c}, joined);
    }

    ONEPASS_INLINE void write_log_row(const Unit& u, std::int64_t d, const Columns<C>& c, JoinedRows<T>* joined) const {
        const T* x = row_of(u, d);
        const auto value = [&](int j, int lanes) ONEPASS_INLINE_BODY {
            return log_of(c, j, lanes == W ? load(x + j) : load_n(x + j, lanes, C(0)));
        };
        if (!x_direct_ || !Grid::template write_plain_row<true>(u.y, row_width(u, d), d, value, joined))
            write_any_log_row(u, d, c, joined);
    }
    ONEPASS_APART void write_any_log_row(const Unit& u, std::int64_t d, const Columns<C>& c,
                                         JoinedRows<T>* joined = nullptr) const {
        write_row_from_input<false>(u, d, c, joined);
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
            fetch(u, d + ahead_, u.width);
            job_.op == Op::softmax ? write_row_from_input<true>(u, d, c) : write_row_from_input<false>(u, d, c);
        }
    }

    void write_reduced(const Unit& u, const Partial* total) const {
        if (job_.op == Op::logsumexp && size_of(job_.out) <= static_cast<std::int64_t>(sizeof(C))) {
            return write_logsumexp(u, total);
        }
        for (int j = 0; j < distinct(u); ++j) {
            write_scalar(u.y, job_.out, j * job_.inner.y_stride, finish(job_.op, total[j], job_.length));
        }
    }

    // By vectors: a column's logarithm by itself takes as long as its exponentials, of thirty steps. Measured on a Zen
    // 4, one thread, dim 1, float32, ns an element: of 17 steps 1.08 and now 0.56, 21 0.85 and 0.51, 64 0.54 and 0.40;
    // bfloat16 1.14 and 0.49, 0.94 and 0.39, 0.51 and 0.31.
    ONEPASS_APART void write_logsumexp(const Unit& u, const Partial* total) const {
        alignas(kCacheLine) C top[Columns<C>::kMost], lse[Columns<C>::kMost];
        alignas(kCacheLine) double sums[Columns<C>::kMost];
        const int n = distinct(u), whole = padded(n);
        for (int j = 0; j < whole; ++j) {
            top[j] = j < n ? static_cast<C>(total[j].m) : C(0);  // a maximum, and so no more than C shows
            sums[j] = j < n ? total[j].d : 1;
        }
        if (!all_lse<0>(top, sums, whole, lse)) {
            for (int j = 0; j < n; ++j) {
                if (is_infinite(top[j])) lse[j] = static_cast<C>(finish(job_.op, total[j], job_.length));
            }
        }
        if (job_.out == DTypeOf<T>::value && job_.inner.y_stride == 1) {
            return write_results(reinterpret_cast<T*>(u.y), lse, n);
        }
        for (int j = 0; j < n; ++j) write_scalar(u.y, job_.out, j * job_.inner.y_stride, static_cast<double>(lse[j]));
    }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
