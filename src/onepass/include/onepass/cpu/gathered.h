// Rows that no kernel reads where they lie: transposed, with a step, a few side by side and the next ones far away.
// Blocks of them, which a near cache holds, are gathered, computed as rows or columns that lie side by side, and
// written back. Main memory sees each element once, and in the order in which it lies there: a block has as many rows,
// along each axis, as share cache lines (plan_gathered.py).
#pragma once

#include "relay.h"

namespace onepass {
inline namespace ONEPASS_ISA {

Form run_rows(const Job& job, const void* x, void* y);
Form run_tiles(const Job& job, const void* x, void* y);
Form run_gradient_rows(const Job& job, const Addresses& in, void* y);
Form run_gradient_tiles(const Job& job, const Addresses& in, void* y);

// T: what blocks are computed from and to.
template <class T>
class Gathered {
   public:
    Gathered(const Job& job, const Addresses& in, void* y)
        : job_(job),
          columns_(job.algorithm == Algorithm::strided),
          x_{const_cast<void*>(in.x), job.in, &Axis::x_stride, true, Scratch::gathered},
          second_{const_cast<void*>(in.second), job.second, &Axis::z_stride, job.op != Op::logsumexp_backward,
                  Scratch::gathered_second},
          third_{const_cast<void*>(in.third), job.third, &Axis::w_stride, false, Scratch::gathered_third},
          y_{y, job.out, &Axis::y_stride, is_elementwise(job.op), Scratch::gathered_results} {}

    Form run() {
        std::int64_t blocks = 1, rows = 1;
        for (int a = 0; a < job_.outer.count; ++a) {
            blocks *= blocks_along(a);
            rows *= job_.blocks[a];
        }
        auto body = [this](std::int64_t begin, std::int64_t end) {
            Job dense = dense_job();
            for (std::int64_t b = begin; b < end; ++b) run_block(b, dense);
            if (job_.nontemporal) stream_fence();
        };
        const std::int64_t block_bytes = rows * job_.length * size_of(job_.in);
        parallel_ranges(blocks, grain_of(blocks, block_bytes, kPlainRun, job_.threads), job_.threads, body);
        return Form::gathered;
    }

   private:
    static constexpr std::int64_t kLongApart = 32;  // rows of so many elements are read where they lie (thresholds.py)

    // One of the arrays of a call.
    struct Array {
        void* at;
        DType type;
        Stride stride;
        bool whole;  // with a value for every element, not one for a row
        Scratch slot;
    };
    // What a kernel sees of it.
    struct Seen {
        void* at;
        std::int64_t row;  // from one row to the next, in elements
        std::int64_t step;
        bool in_place;
    };
    struct Block {
        std::int64_t first[kMostAxes];
        std::int64_t size[kMostAxes];
        std::int64_t rows = 1;
    };

    std::int64_t blocks_along(int a) const { return (job_.outer[a].size + job_.blocks[a] - 1) / job_.blocks[a]; }

    Block block(std::int64_t b) const {
        Block block;
        for (int a = job_.outer.count; a-- > 0;) {
            const std::int64_t along = blocks_along(a), before = b / along;
            block.first[a] = (b - before * along) * job_.blocks[a];
            const std::int64_t left = job_.outer[a].size - block.first[a];
            block.size[a] = left < job_.blocks[a] ? left : job_.blocks[a];
            block.rows *= block.size[a];
            b = before;
        }
        return block;
    }

    // What kernels of rows or columns are to do with a block, but for the number of its rows.
    Job dense_job() const {
        Job dense = job_;
        dense.blocks[0] = 0;
        dense.threads = 1;
        if (is_elementwise(job_.op)) dense.out = DTypeOf<T>::value;
        dense.in = DTypeOf<T>::value;
        if (second_.whole) dense.second = DTypeOf<T>::value;
        dense.outer.count = 0;
        dense.reduce.count = 1;
        return dense;
    }

    void run_block(std::int64_t b, Job& dense) const {
        const Block at = block(b);
        const Seen x = read(x_, at), y = place(y_, at, dense.out);
        const Seen second = second_.at ? read(second_, at) : Seen{}, third = third_.at ? read(third_, at) : Seen{};
        const Axis rows{at.rows, x.row, y.row, second.row, third.row};
        dense.reduce.axis[0] = {job_.length, x.step, y.step, second.step, third.step};
        dense.nontemporal = job_.nontemporal && y.in_place;
        if (columns_) {
            dense.inner = rows;
            dense.rows = 1;
            dense.tile = job_.tile < at.rows ? job_.tile : at.rows;
        } else {
            dense.outer.count = 1;
            dense.outer.axis[0] = rows;
            dense.rows = at.rows;
        }
        if (is_gradient(job_.op)) {
            (columns_ ? run_gradient_tiles : run_gradient_rows)(dense, {x.at, second.at, third.at}, y.at);
        } else {
            (columns_ ? run_tiles : run_rows)(dense, x.at, y.at);
        }
        if (!y.in_place) {
            Relay back = relay_of(y_, y, at, &RelayAxis::to);
            relay(back, start(y_, at), y_.type, y.at, dense.out);
        }
    }

    // A block of it, where a kernel can read it.
    Seen read(const Array& array, const Block& at) const {
        const DType type = array.whole ? DTypeOf<T>::value : array.type;
        const Seen seen = place(array, at, type);
        if (!seen.in_place) {
            Relay there = relay_of(array, seen, at, &RelayAxis::from);
            relay(there, seen.at, type, start(array, at), array.type);
        }
        return seen;
    }

    // Where a kernel has a block of it, as elements of that type: where it lies, if it can, or in scratch memory.
    Seen place(const Array& array, const Block& at, DType type) const {
        const std::int64_t row = columns_ || !array.whole ? 1 : job_.length;
        Seen ready{start(array, at), row, 0, true};
        if (type == array.type && lies_ready(array, at, ready)) return ready;
        const std::int64_t bytes = at.rows * (array.whole ? job_.length : 1) * size_of(type);
        const std::int64_t step = !array.whole ? 0 : columns_ ? at.rows : 1;
        return {scratch(array.slot, static_cast<std::size_t>(bytes)), row, step, false};
    }

    // Whether the rows of a block follow each other at one distance, which is then seen, as is that of steps, and what
    // has to lies side by side.
    bool lies_ready(const Array& array, const Block& at, Seen& seen) const {
        std::int64_t size = 0;  // of the axes so far
        for (int a = job_.outer.count; a-- > 0;) {
            if (at.size[a] == 1) continue;
            const std::int64_t stride = job_.outer[a].*array.stride;
            if (size == 0) {
                seen.row = stride;
                size = at.size[a];
            } else if (stride == size * seen.row) {
                size *= at.size[a];
            } else {
                return false;
            }
        }
        // The algorithm was chosen for rows that follow each other, and plain reductions of short ones have to.
        if (!array.whole) return seen.row == 1;
        if (job_.reduce.count > 1) return false;
        seen.step = job_.reduce.empty() ? 1 : job_.reduce[0].*array.stride;
        if (columns_) return seen.row == 1;
        // Others are quick if they do (transposed.h).
        const bool may_lie_apart = job_.length >= kLongApart && !is_plain(job_.op);
        return seen.step == 1 && (seen.row == job_.length || may_lie_apart);
    }

    void* start(const Array& array, const Block& at) const {
        std::int64_t offset = 0;
        for (int a = 0; a < job_.outer.count; ++a) offset += at.first[a] * job_.outer[a].*array.stride;
        return static_cast<char*>(array.at) + offset * size_of(array.type);
    }

    // The way between memory, which has that end of it, and scratch memory.
    Relay relay_of(const Array& array, const Seen& seen, const Block& at, std::int64_t RelayAxis::* memory) const {
        Relay relay;
        const auto add = [&](std::int64_t size, std::int64_t in_memory, std::int64_t in_scratch) {
            const bool reads = memory == &RelayAxis::from;
            relay.add({size, reads ? in_scratch : in_memory, reads ? in_memory : in_scratch});
        };
        std::int64_t row = seen.row, step = seen.step;
        for (int a = job_.outer.count; a-- > 0;) {
            add(at.size[a], job_.outer[a].*array.stride, row);
            row *= at.size[a];
        }
        for (int a = job_.reduce.count; array.whole && a-- > 0;) {
            add(job_.reduce[a].size, job_.reduce[a].*array.stride, step);
            step *= job_.reduce[a].size;
        }
        relay.sort(memory);
        relay.pair_up(memory);
        return relay;
    }

    const Job& job_;
    bool columns_;  // blocks are columns side by side, not rows one behind the other
    Array x_;
    Array second_;
    Array third_;
    Array y_;
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
