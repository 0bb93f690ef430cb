// Elements from one layout to another, converted on the way: from where they lie to where a kernel reads them, side by
// side in a near cache, and back. One of the two is memory, and is walked along in its own order.
#pragma once

#include <utility>

#include "convert.h"
#include "transpose.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Along one axis, in elements.
struct RelayAxis {
    std::int64_t size;
    std::int64_t to;
    std::int64_t from;
};

// Axes of more than one element, the slowest first.
class Relay {
   public:
    void add(const RelayAxis& axis) {
        if (axis.size != 1) axes_[count_++] = axis;
    }

    // In the order of the array with this stride, axes that are one in both arrays joined. Along an axis without a
    // stride an element is written many times side by side, or else all are read again: slowest, when a cache has them.
    void sort(std::int64_t RelayAxis::* stride) {
        const auto distance = [&](const RelayAxis& axis) {
            const std::int64_t step = axis.*stride;
            if (step == 0) return axis.to == 1 ? std::int64_t{0} : INT64_MAX;
            return step < 0 ? -step : step;
        };
        for (int i = 1; i < count_; ++i) {
            for (int j = i; j > 0 && distance(axes_[j - 1]) < distance(axes_[j]); --j)
                std::swap(axes_[j - 1], axes_[j]);
        }
        int joined = 0;
        for (int i = 1; i < count_; ++i) {
            RelayAxis& slow = axes_[joined];
            const RelayAxis fast = axes_[i];
            if (slow.to == fast.size * fast.to && slow.from == fast.size * fast.from) {
                slow = {slow.size * fast.size, fast.to, fast.from};
            } else {
                axes_[++joined] = fast;
            }
        }
        if (count_ > 0) count_ = joined + 1;
    }

    // Where elements lie side by side along one axis in one array, along another in the other: those two the fastest,
    // for squares of them to be turned over. Else no short axis last, of whose elements there would be a loop for each,
    // if a longer one leads not far away in memory, the array with this stride.
    void pair_up(std::int64_t RelayAxis::* stride) {
        for (int i = 0; i + 1 < count_; ++i) {
            if (!turns(axes_[i], axes_[count_ - 1])) continue;
            for (; i + 2 < count_; ++i) std::swap(axes_[i], axes_[i + 1]);
            return;
        }
        constexpr std::int64_t kShort = 16, kNear = 256;
        for (int i = count_ - 2; i >= 0 && i >= count_ - 3; --i) {
            RelayAxis& last = axes_[count_ - 1];
            const std::int64_t step = axes_[i].*stride;
            if (last.to == 1 && (last.from == 1 || last.from == 0)) break;
            if (last.size < kShort && axes_[i].size > last.size && step <= kNear && step >= -kNear)
                std::swap(axes_[i], last);
        }
    }

    template <class To, class From>
    void run(To* to, const From* from) const {
        run_axes(to, from, axes_, count_);
    }

   private:
    static constexpr std::int64_t kFewest = 4;  // elements that are worth a vector

    static bool turns(const RelayAxis& a, const RelayAxis& b) {
        if (a.size < kFewest || b.size < kFewest) return false;
        return (a.to == 1 && b.from == 1) || (a.from == 1 && b.to == 1);
    }

    template <class To, class From>
    static void run_axes(To* to, const From* from, const RelayAxis* axes, int count) {
        if (count == 0) {
            *to = convert<To>(*from);
        } else if (count == 1) {
            convert_run(to, axes[0].to, from, axes[0].from, axes[0].size);
        } else if (count == 2 && turns(axes[0], axes[1])) {
            const bool by_read = axes[1].from == 1;
            turn_over(to, from, axes[by_read], axes[!by_read]);
        } else if (count == 2) {
            run_lines(to, from, axes[0], axes[1]);
        } else {
            for (std::int64_t i = 0; i < axes[0].size; ++i) {
                run_axes(to + i * axes[0].to, from + i * axes[0].from, axes + 1, count - 1);
            }
        }
    }

    template <class To, class From>
    static void run_lines(To* to, const From* from, const RelayAxis& lines, const RelayAxis& line) {
        if constexpr (__is_same(To, From)) {
            if (line.to == 1 && line.from == 1)
                return copy_runs<1>(to, lines.to, from, lines.from, lines.size, line.size);
        }
        for (std::int64_t i = 0; i < lines.size; ++i) {
            convert_run(to + i * lines.to, line.to, from + i * lines.from, line.from, line.size);
        }
    }

    // `read`: the axis along which what is read lies side by side; `written`: what is written.
    template <class To, class From>
    static void turn_over(To* to, const From* from, const RelayAxis& read, const RelayAxis& written) {
        if constexpr (__is_same(Compute<To>, Compute<From>)) {
            using C = Compute<To>;
            constexpr std::int64_t W = kLanes<C>;
            for (std::int64_t j = 0; j < written.size; j += W) {
                const int rows = static_cast<int>(written.size - j < W ? written.size - j : W);
                for (std::int64_t i = 0; i < read.size; i += W) {
                    const int columns = static_cast<int>(read.size - i < W ? read.size - i : W);
                    turn_square<C>(to + i * read.to + j, read.to, from + j * written.from + i, written.from, rows,
                                   columns);
                }
            }
        } else {
            run_lines(to, from, written, read);
        }
    }

    // Up to a vector of elements each way.
    template <class C, class To, class From>
    static void turn_square(To* to, std::int64_t to_stride, const From* from, std::int64_t from_stride, int rows,
                            int columns) {
        constexpr int W = kLanes<C>;
        Vec<C> v[W];
        if (rows == W && columns == W) {
            for (int j = 0; j < W; ++j) v[j] = load(from + j * from_stride);
            transpose(v);
            for (int i = 0; i < W; ++i) store(to + i * to_stride, v[i]);
        } else {
            for (int j = 0; j < W; ++j) v[j] = j < rows ? load_n(from + j * from_stride, columns, C{0}) : Vec<C>(C{0});
            transpose(v);
            for (int i = 0; i < columns; ++i) store_n(to + i * to_stride, v[i], rows);
        }
    }

    int count_ = 0;
    RelayAxis axes_[kMostAxes];
};

// Between arrays of any types (gathered.cpp).
void relay(const Relay& axes, void* to, DType to_type, const void* from, DType from_type);

}  // namespace ONEPASS_ISA
}  // namespace onepass
