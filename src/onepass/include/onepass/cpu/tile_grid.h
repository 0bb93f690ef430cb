// How tiles are cut, for every operation whose reduced axis is not the fastest in memory (tiles.h says what tiles are).
#pragma once

#include "access.h"
#include "joined_rows.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Columns of the widest tile: MOST_TILE_VECTORS of src/onepass/cpu/thresholds.py.
template <class C>
constexpr int kWidestTile = 32 * kLanes<C>;
// Of gradients by short vectors: MOST_GRADIENT_TILE_VECTORS.
template <class C>
constexpr int kWidestGradientTile = kVectorBytes == 64 ? kWidestTile<C> : 128 * kLanes<C>;

template <class T>
class TileGrid {
   public:
    static constexpr std::int64_t kBlock = 16;  // rows summed in C before they go to float64
    // Tile rows lie a stride apart, where the processor does not look ahead by itself: what this many rows further on
    // is fetched.
    static constexpr std::int64_t kAhead = 16;
    // But of rows that lie one behind the other, so many bytes further on. Measured on a Zen 5, two threads and one,
    // times over those of kAhead rows of a KiB each, all into the second cache: softmax's gradient of 2x128256x16, dim
    // 1, 0.75 and 0.74, log_softmax's 0.82 and 0.86, softmax's of 16x64128x16 bfloat16 0.79 and 0.81, of 1000x1000x8
    // 0.85 and 0.85, softmax of 2x128256x16 0.96 and 0.95; by 4 KiB 0.79, by 8 0.76, by 12 0.81 of the first. By AVX2
    // 0.84 and 0.74, 0.92 and 0.95.
    static constexpr std::int64_t kBytesAhead = 6144;
    // Vectors of columns that are added up in registers, a quarter of them; and of wider tiles how many rows of each
    // such group before those of the next, so that memory is read along the rows.
    static constexpr int kGroup = kVectorBytes == 64 ? 8 : 4;
    static constexpr std::int64_t kFewRows = 4;
    static constexpr std::int64_t kMostOfRun = 1 << 30;   // columns side by side, so that an int counts them
    static constexpr std::int64_t kSoonBytes = 16 << 10;  // the same of short columns, which end before that

    static int padded(int width) { return (width + kLanes<Compute<T>> - 1) / kLanes<Compute<T>> * kLanes<Compute<T>>; }

   protected:
    using C = Compute<T>;
    using V = Vec<C>;
    static constexpr int W = kLanes<C>;
    static constexpr int kMostColumns = kWidestTile<C>;
    TileGrid(const Job& job, const void* y) : job_(job), packed_(job.algorithm == Algorithm::packed) {
        inner_ = job.inner.size;
        // packed: the fewest vectors that hold whole steps; several times that where the reduced axis is long enough,
        // so that the running values of one vector are not waited for (of short columns there are too few): as many as
        // exponentials are added up in registers, or, where rows are written one by one, as many as there may be
        std::int64_t vectors = 0;
        if (packed_) {
            std::int64_t common = W;
            while (inner_ % common != 0) common /= 2;
            vectors = inner_ / common;
            const int most = job.resident && !is_gradient(job.op) ? kGroup : 16;
            while (2 * vectors <= most && job.length > kBlock && 16 * vectors * W / inner_ <= job.length) vectors *= 2;
        }
        steps_ = packed_ ? vectors * W / inner_ : 1;
        width_ = packed_ ? vectors * W : job.tile;
        y_direct_ = job.out == DTypeOf<T>::value && (packed_ || job.inner.y_stride == 1);
        past_cache_ = job.nontemporal && y_direct_;
        lead_ = past_cache_ && width_ < inner_ ? lead_of(y) : 0;
        joined_ = past_cache_ && !packed_ && width_ >= inner_ && job.reduce[0].y_stride == inner_;
        tiles_ = packed_ ? 1 : (lead_ + inner_ + width_ - 1) / width_;
    }

    // Where a unit lies: which combination of the outer axes, its first column, its columns.
    struct Cut {
        std::int64_t outer;
        std::int64_t column;
        int width;
    };
    Cut cut(std::int64_t u) const {
        // Divisions take as long as a vector of exponentials.
        const std::int64_t outer = tiles_ == 1 ? u : u / tiles_, from = (u - outer * tiles_) * width_ - lead_;
        const std::int64_t end = packed_ || from + width_ < inner_ ? from + width_ : inner_;
        const std::int64_t column = from > 0 ? from : 0;
        return {outer, column, static_cast<int>(end - column)};
    }

    std::int64_t units() const { return job_.rows * tiles_; }
    std::int64_t grain() const {
        return grain_of(units(), job_.length * width_ * size_of(job_.in), kPipelinedRun, job_.threads);
    }

    // Tile rows: `steps_` steps of the reduced axis each; the last one of a packed tile may be shorter.
    std::int64_t tile_rows() const { return (job_.length + steps_ - 1) / steps_; }
    int row_width(int width, std::int64_t d) const {
        if (!packed_ || (d + 1) * steps_ <= job_.length) return width;
        return static_cast<int>((job_.length - d * steps_) * inner_);
    }
    std::int64_t chunk_rows() const { return (job_.chunk + steps_ - 1) / steps_; }
    std::int64_t chunks() const { return (tile_rows() + chunk_rows() - 1) / chunk_rows(); }
    std::int64_t chunk_end(std::int64_t c) const {
        const std::int64_t end = (c + 1) * chunk_rows();
        return end < tile_rows() ? end : tile_rows();
    }

    // Whether the rows of a tile lie one behind the other, in an input with this stride.
    bool rows_follow(std::int64_t stride) const { return steps_ * stride == width_; }
    // How many rows ahead of a pass over it is fetched.
    std::int64_t rows_ahead(std::int64_t stride) const {
        const std::int64_t bytes = width_ * static_cast<std::int64_t>(sizeof(T));
        return rows_follow(stride) ? (kBytesAhead + bytes - 1) / bytes : kAhead;
    }

    // Columns that differ; packed, the others repeat them.
    int distinct(int width) const { return packed_ ? static_cast<int>(inner_) : width; }

    // packed: calls combine(j, j + n) for every vector of columns at j that takes in those at j + n, until those of one
    // step are left: a row has a power of two of them. A vector may reach past the n columns, into what has been taken
    // in, or past all of them.
    template <int kStep, class Combine>
    ONEPASS_INLINE void fold_by_halves(Combine&& combine) const {
        if (!packed_) return;
        for (auto n = static_cast<int>(width_ / 2); n >= inner_; n /= 2) {
            for (int j = 0; j < n; j += kStep) combine(j, j + n);
        }
    }

    // packed: the sums of all steps' columns, in those of one step; of float64 with what additions have lost, these
    // ones too.
    void fold_sums(double* sums, double* lost) const {
        fold_by_halves<kLanes<double>>([&](int j, int other) ONEPASS_INLINE_BODY {
            VecD sum = load(sums + other);
            if constexpr (sizeof(C) == 8) {
                VecD more;
                two_sum(load(sums + j), sum, sum, more);
                store(lost + j, load(lost + j) + load(lost + other) + more);
            } else {
                sum = load(sums + j) + sum;
            }
            store(sums + j, sum);
        });
    }

    // packed: what the columns of one step have, those of all steps, and `more` after the last.
    template <class Value>
    void repeat(Value* values, int more = 0) const {
        if (!packed_) return;
        for (std::int64_t n = inner_; n < width_; n *= 2) __builtin_memcpy(values + n, values, n * sizeof(Value));
        __builtin_memcpy(values + width_, values, more * sizeof(Value));
    }

    // The lines that a row of results shares with what lies beside it: not written past the cache, so they must be in
    // it.
    void fetch_edges(const char* y, int width, std::int64_t d) const {
        if (!past_cache_ || joined_ || d >= tile_rows()) return;
        const T* row = reinterpret_cast<const T*>(y) + d * steps_ * job_.reduce[0].y_stride;
        __builtin_prefetch(row, 1, 3);
        __builtin_prefetch(row + width, 1, 3);
    }

    // Writes row d of the results of the tile at `y`.
    template <class Source>
    void write_row(char* y, std::int64_t d, int width, const Source& source, JoinedRows<T>* joined = nullptr) const {
        const std::int64_t offset = d * steps_ * job_.reduce[0].y_stride;
        Carry* const carry = joined ? &joined->carry : nullptr;
        if (y_direct_) return emit(reinterpret_cast<T*>(y) + offset, width, past_cache_, source, carry);
        T* buffer = scratch_of<T>(Scratch::output, kMostColumns);
        emit(buffer, width, false, source);
        scatter(y, job_.out, offset, packed_ ? 1 : job_.inner.y_stride, buffer, width);
    }

    // Writes row d of a tile's results where they lie, value(j, lanes) being the vector at column j: the lines that are
    // its own past the cache, and where rows lie one behind the other, `joined`, those that it shares with them.
    // kNormal: none of the results is subnormal. False if they have to be scattered.
    template <bool kNormal, class Value>
    ONEPASS_INLINE bool write_plain_row(char* results, int width, std::int64_t d, Value&& value,
                                        JoinedRows<T>* joined = nullptr) const {
        T* y = reinterpret_cast<T*>(results) + d * steps_ * job_.reduce[0].y_stride;
        const auto misaligned = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % kCacheLine);
        if (!y_direct_ || misaligned % sizeof(T) != 0) return false;
        if constexpr (JoinedRows<T>::kInRegisters) {
            if (joined && width >= W) {
                joined->template write<kNormal>(y, width, value);
                return true;
            }
        }
        Carry* const carry = joined ? &joined->carry : nullptr;
        int j = 0;
        T* rest = y;
        bool kept = false;
        if (past_cache_) {
            const int head = misaligned == 0 ? 0 : (kCacheLine - misaligned) / static_cast<int>(sizeof(T));
            const bool continues = carry && head > 0 && head <= width && carry->ends_at(y);
            if (carry && !continues) carry->flush();
            T* const to = continues ? static_cast<T*>(carry->line()) + kOfLine - head : y;
            for (const int end = head < width ? head : width; j < end;) {
                const int lanes = end - j < W ? end - j : W;
                store_n(to + j, value(j, lanes), lanes);
                j += lanes;
            }
            if (continues) carry->release();
            const int lines = j + static_cast<int>((width - j) / kOfLine * kOfLine);
            if constexpr (kNormal) {
                for (; j + 2 * W <= lines; j += 2 * W) stream_normal(y + j, value(j, W), value(j + W, W));
            }
            for (; j < lines; j += W) stream(y + j, value(j, W));
            kept = carry && j < width;
            rest = kept ? static_cast<T*>(carry->line()) : y + j;
        }
        if constexpr (kNormal) {
            for (; j + 2 * W <= width; j += 2 * W, rest += 2 * W) store_normal(rest, value(j, W), value(j + W, W));
        }
        for (; j + W <= width; j += W, rest += W) store(rest, value(j, W));
        if (j < width) store_n(rest, value(j, width - j), width - j);
        if (kept) carry->keep(y + width);
        return true;
    }

    // Whether rows of a tile's results at y go where they lie without a thought: in the cache, or as lines past it.
    bool results_in_place(const char* y, int width) const {
        const auto at = reinterpret_cast<std::uintptr_t>(y);
        if (packed_ || !y_direct_ || at % sizeof(T) != 0) return false;
        return !past_cache_ || (in_lines(y, width) && job_.reduce[0].y_stride % kOfLine == 0);
    }
    // Writes such a row, value(j, lanes) being the vector at column j, which is not subnormal.
    template <class Value>
    ONEPASS_INLINE static void write_row_in_place(T* y, int width, bool past_cache, Value&& value) {
        int j = 0;
        for (; j + 2 * W <= width; j += 2 * W) {
            const V a = value(j, W), b = value(j + W, W);
            past_cache ? stream_normal(y + j, a, b) : store_normal(y + j, a, b);
        }
        if (j + W <= width) {
            store(y + j, value(j, W), past_cache);
            j += W;
        }
        if (j < width) store_n(y + j, value(j, width - j), width - j);
    }

    // packed: writes rows [begin, end), which lie one behind the other: value(j, column, lanes) being the vector
    // at element j of them, where the columns are those from `column` on, and after the last one the first again.
    template <class Value>
    ONEPASS_INLINE bool write_plain_rows(char* results, std::int64_t begin, std::int64_t end, Value&& value) const {
        const std::int64_t all = job_.length * inner_, first = begin * width_;
        const std::int64_t n = (end * width_ < all ? end * width_ : all) - first;
        T* y = reinterpret_cast<T*>(results) + first;
        const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y) % kCacheLine);
        if (!y_direct_ || misaligned % static_cast<std::int64_t>(sizeof(T)) != 0) return false;
        const int width = static_cast<int>(width_);
        std::int64_t j = 0;
        int column = 0;
        const auto after = [&](int lanes) ONEPASS_INLINE_BODY {
            return column + lanes < width ? column + lanes : column + lanes - width;
        };
        const auto put = [&](std::int64_t stop, auto&& store_pair) ONEPASS_INLINE_BODY {
            for (; j + 2 * W <= stop; j += 2 * W) {
                const int second = after(W);
                const V a = value(j, column, W), b = value(j + W, second, W);
                store_pair(y + j, a, b);
                column = second;
                column = after(W);
            }
        };
        const auto put_up_to = [&](std::int64_t stop) ONEPASS_INLINE_BODY {
            put(stop, [](T* to, V a, V b) ONEPASS_INLINE_BODY { store_normal(to, a, b); });
            while (j < stop) {
                const int lanes = stop - j < W ? static_cast<int>(stop - j) : W;
                const V last = value(j, column, lanes);
                lanes == W ? store(y + j, last) : store_n(y + j, last, lanes);
                column = after(lanes);
                j += lanes;
            }
        };
        if (past_cache_) {
            const std::int64_t head = misaligned == 0 ? 0 : (kCacheLine - misaligned) / sizeof(T);
            if (head > 0) put_up_to(head < n ? head : n);
            put(j + (n - j) / kOfLine * kOfLine, [](T* to, V a, V b) ONEPASS_INLINE_BODY { stream_normal(to, a, b); });
        }
        put_up_to(n);
        return true;
    }

    // Whether the columns are short, their rows whole steps, and their results written where they lie; past the cache
    // only tiles of lines are, and all but the outermost must be.
    template <class Short>
    bool short_columns(const void* y) const {
        if (!y_direct_ || steps_ != 1 || job_.length > Short::kMostRows) return false;
        if (!past_cache_) return true;
        bool lines = width_ < inner_ ? width_ % kOfLine == 0 : in_lines(y, inner_);
        for (int i = 0; i < job_.outer.count; ++i) lines &= job_.outer[i].y_stride % kOfLine == 0;
        return lines && job_.reduce[0].y_stride % kOfLine == 0;
    }

    // Calls visit(run, soon) for the columns of units [begin, end): short columns, and plain reductions, have nothing
    // to do for a tile, so those that lie side by side are one run. `soon` is what will be read kSoonBytes later.
    template <class Visit>
    ONEPASS_INLINE void each_run(std::int64_t begin, std::int64_t end, Visit&& visit) const {
        const std::int64_t bytes = job_.length * width_ * static_cast<std::int64_t>(sizeof(T));
        std::int64_t ahead = 1 + kSoonBytes / bytes;
        if (ahead > tiles_) ahead -= ahead % tiles_;  // the same columns of a later run
        for (std::int64_t i = begin; i < end;) {
            const Cut first = cut(i);
            const std::int64_t most = i + kMostOfRun / width_, run_end = (first.outer + 1) * tiles_;
            const std::int64_t in_time = run_end < end ? run_end : end, stop = in_time < most ? in_time : most;
            const Cut last = cut(stop - 1), soon = cut(i + ahead < end ? i + ahead : i);
            visit(Cut{first.outer, first.column, static_cast<int>(last.column - first.column) + last.width}, soon);
            i = stop;
        }
    }

    // Small tiles whose results lie one behind the other: those of each are put together in the cache, and go past it
    // from there beside the next one, as lines, which the rows of a tile need not be. The planner has the same limits.
    // Measured on a Zen 5, dim 1, float32, times over those before by one thread and by two. Softmax's gradient and
    // log_softmax's: 5000x12x100 0.74 and 0.73, 0.73 and 0.73; 1500x40x100 0.66 and 0.73, 0.98 and 0.88; rows that are
    // lines, 2343x40x64 0.64 and 0.68, 0.68 and 0.73, or would be if they began with one, 2000x16x128 0.54 and 0.62,
    // 0.49 and 0.65. Of rows of less than two vectors, 15000x21x19, 0.90 and 0.90, 1.22 and 1.31; of less than 1536
    // bytes, 24489x5x49, 0.85 and 0.92, 1.26 and 1.32; of more than 20 KiB, 800x50x150, 0.96 and 1.06, 1.18 and 1.08.
    // Softmax and log_softmax: 5000x12x100 0.75 and 0.73, 0.77 and 0.70; 15306x8x49 0.98 and 1.02, 0.74 and 0.75; of
    // rows of less than three vectors, 12500x16x30, 1.81 and 1.58, 1.26 and 1.21; rows that are lines, 7812x12x64, 1.07
    // and 0.95, 0.92 and 1.01. Tiles that are joined (joined_rows.h) are better from half as many bytes of softmax's
    // gradient on. On a Zen 4 they take, of those that are put together, 17x49 1.11 and 1.06, 40x64 1.13 and 0.99,
    // 20x128 1.04 and 0.80, 30x100 0.80 and 0.78, 100x49 0.76 and 0.78; log_softmax's 75x64 1.52 and 0.99, 50x100 0.93
    // and 0.90.
    static constexpr bool kPutsTogether = kVectorBytes == 64 && sizeof(T) == 4;
    static constexpr std::int64_t kLeastTogether = 1536, kMostTogether = 20 << 10;
    bool goes_together(std::int64_t least_row_bytes, std::int64_t most = kMostTogether) const {
        const std::int64_t row_bytes = inner_ * static_cast<std::int64_t>(sizeof(T)), bytes = job_.length * row_bytes;
        return kPutsTogether && joined_ && job_.resident && row_bytes >= least_row_bytes && bytes >= kLeastTogether &&
               bytes <= most;
    }
    // Calls compute(tile, what will soon be read, also) for the tiles that unit_of(cut) returns, which are to write
    // where that says; also(n) is to be called for every n of a tile's results, wherever the time is spent.
    template <class UnitOf, class Compute>
    ONEPASS_INLINE void each_together(std::int64_t begin, std::int64_t end, UnitOf&& unit_of, Compute&& compute) const {
        const std::int64_t n = job_.length * inner_, apart = (n + kOfLine - 1) / kOfLine * kOfLine;
        T* together = scratch_of<T>(Scratch::output, apart + n);
        T* written = together + apart;
        Carry carry;
        Emitter<T, SideBySide<T>> out;  // of the tile before
        std::int64_t there = 0;         // its results: at first, none
        each_run(begin, end, [&](const auto& run, const auto& soon) {
            auto unit = unit_of(run);
            T* const y = reinterpret_cast<T*>(unit.y);
            unit.y = reinterpret_cast<char*>(together);
            std::int64_t due = 0;
            compute(unit, unit_of(soon), [&](int more) ONEPASS_INLINE_BODY {
                due += more;
                out.step_to(due < there ? due : there);
            });
            out.finish();
            out = Emitter<T, SideBySide<T>>(y, n, true, {together}, &carry);
            there = n;
            std::swap(together, written);
        });
        out.finish();
        carry.flush();
    }

    // Calls part(column, columns, past the cache) for `width` columns of short results at y: those that lie in whole
    // lines are written past the cache.
    template <class Part>
    ONEPASS_INLINE void each_part(const void* y, int width, Part&& part) const {
        const auto past = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) % kCacheLine);
        if (!past_cache_ || past % static_cast<int>(sizeof(T)) != 0) return part(0, width, false);
        const int to_line = past == 0 ? 0 : kOfLine - past / static_cast<int>(sizeof(T));
        const int head = to_line < width ? to_line : width, lines = (width - head) / kOfLine * kOfLine;
        if (head > 0) part(0, head, false);
        if (lines > 0) part(head, lines, true);
        if (head + lines < width) part(head + lines, width - head - lines, false);
    }

    static bool in_lines(const void* y, std::int64_t width) {
        return reinterpret_cast<std::uintptr_t>(y) % kCacheLine == 0 && width % kOfLine == 0;
    }

   private:
    static constexpr int kOfLine = kCacheLine / static_cast<int>(sizeof(T));

    // Elements from the beginning of a line of memory to the first of the results, if it is the same in all rows: the
    // first tile is that much narrower, so that all others begin with a line. NumPy's arrays begin 16 bytes into one:
    // results of 32 x 256 x 56 x 56, dim 1, took 22 ms instead of 8, with two parts of lines in every row of a tile.
    std::int64_t lead_of(const void* y) const {
        const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y) % kCacheLine);
        bool alike = past % static_cast<std::int64_t>(sizeof(T)) == 0 && job_.reduce[0].y_stride % kOfLine == 0;
        for (int i = 0; i < job_.outer.count; ++i) alike &= job_.outer[i].y_stride % kOfLine == 0;
        return alike && width_ >= kOfLine ? past / static_cast<std::int64_t>(sizeof(T)) : 0;
    }

   protected:
    const Job& job_;
    bool packed_;
    std::int64_t inner_;
    std::int64_t steps_;
    std::int64_t width_;
    std::int64_t lead_;
    std::int64_t tiles_;
    bool y_direct_;
    bool past_cache_;
    bool joined_;  // the rows of a tile's results lie one behind the other, and those of the next tile behind them
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
