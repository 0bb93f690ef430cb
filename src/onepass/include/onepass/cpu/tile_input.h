// How the input of a tile is read: which columns it has, where its rows lie, what is fetched ahead. A tile of which the
// columns do not lie side by side as what is computed with is gathered row by row.
#pragma once

#include "column_reductions.h"
#include "columns.h"
#include "partial.h"
#include "tile_grid.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
class TileInput : protected TileGrid<T> {
   protected:
    using Grid = TileGrid<T>;
    using C = Compute<T>;
    using Grid::job_, Grid::packed_, Grid::steps_;
    using Grid::tile_rows;
    using Grid::W;

    TileInput(const Job& job, const void* x, void* y)
        : Grid(job, y), x_(static_cast<const char*>(x)), y_(static_cast<char*>(y)) {
        x_direct_ = job.in == DTypeOf<T>::value && (packed_ || job.inner.x_stride == 1);
        ahead_ = Grid::rows_ahead(job.reduce[0].x_stride);
    }

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
        return {reinterpret_cast<const T*>(u.x), steps_ * job_.reduce[0].x_stride, u.width, tile_rows(), ahead_};
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
        fetch(u, d + ahead_, width);
        int j = 0;
        for (; j + W <= width; j += W) visit(j, load(x + j));
        if (j < width) visit(j, load_n(x + j, width - j, fill));
    }

    T* input_buffer() const { return x_direct_ ? nullptr : scratch_of<T>(Scratch::input, Columns<C>::kMost); }

    ONEPASS_INLINE const T* row_of(const Unit& u, std::int64_t d) const {
        return reinterpret_cast<const T*>(u.x) + d * steps_ * job_.reduce[0].x_stride;
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

    const char* x_;
    char* y_;
    bool x_direct_;
    std::int64_t ahead_;  // rows that a pass fetches before it reads them
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
