// Columns of no more than sixteen elements (any number, of a gradient in or near the cache, or transposed), side by
// side: up to eight vectors of them at a time, from the first row to the last and once more, so that between its two
// passes a column is in the first cache, and a running value in its register. Tiles (tiles.h, gradient_tiles.h) have
// arrays of these, and more to do for a tile than such columns have elements. A line of columns at a time takes twice
// as long from memory: rows are then not read side by side.
#pragma once

#include "column_groups.h"
#include "gradient_ops.h"
#include "logarithms.h"
#include "lossless_sum.h"
#include "reciprocals.h"
#include "tile_grid.h"
#include "usual.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Rows of columns that lie side by side, and where those begin that are soon to be read: rows this short end too often
// for the processor to look ahead by itself. They are fetched beside the pass with the exponentials; of softmax's
// gradient, which has none, one array beside each. Beside the pass that loads they were asked for in a burst, which its
// loads had to wait for, and nothing beside the longer one. Measured on a Zen 5, times over those of that, by one
// thread and by two: logsumexp of 6x16x70000, dim 1, 0.51 and 0.59, log_softmax 0.52 and 0.71, of 5109x8x320 0.91 and
// 0.89, its gradient 0.52 and 0.77, of 4096x8x128 0.45 and 0.64.
template <class T, class Soon = T>
struct ShortRowsOf {
    T* at;
    std::int64_t stride;
    Soon* soon = nullptr;

    T* row(std::int64_t d) const { return at + d * stride; }
    ShortRowsOf from(int column) const { return {at + column, stride, soon ? soon + column : nullptr}; }
    ONEPASS_INLINE void fetch(std::int64_t d, int j, int n) const {
        if (soon) fetch_soon(soon + d * stride + j, n);
    }
};

// The sum of a vector of columns, as precise as a column of tile_states.h: float32 adds up, float64 keeps what that
// loses. (Of transposed 16-bit elements up to 200 are added up so: a hundredth of what their results are rounded by.)
template <class C>
struct ColumnSum : WideSum<double> {};
template <>
struct ColumnSum<float> {
    VecF sum = 0.0f;

    ONEPASS_INLINE void add(VecF v) { sum = sum + v; }
    ONEPASS_INLINE void add_product(VecF a, VecF b) { sum = fma(a, b, sum); }
    VecF rounded() const { return sum; }
    void store_lanes(double* lanes) const {
        store(lanes, low_half(sum));
        store(lanes + kLanes<double>, high_half(sum));
    }
};

// The same without what additions in float32 lose: a logarithm shows it.
template <class C>
struct LosslessColumnSum : WideSum<double> {};
template <>
struct LosslessColumnSum<float> : LosslessSum {
    void store_lanes(double* lanes) const {
        const VecF above = high - VecF(kStart);
        store(lanes, low_half(above) + low_half(low));
        store(lanes + kLanes<double>, high_half(above) + high_half(low));
    }
};

// kWide: sums of float32 in float64, as precise as those of rows. kInPlace: results hold the exponentials first, of any
// number of rows. Soon: what elements are where they are soon to be read.
template <class T, bool kWide = false, bool kInPlace = false, class Soon = T>
class ShortColumns {
    using Rows = ShortRowsOf<const T, const Soon>;
    using C = Compute<T>;
    using V = Vec<C>;
    using P = Precision<T>;
    using Sum = std::conditional_t<kWide, WideSum<C>, ColumnSum<C>>;
    static constexpr int W = kLanes<C>;

   public:
    static constexpr std::int64_t kMostRows = TileGrid<T>::kBlock;
    static constexpr int kQuarter = kVectorBytes == 64 ? 8 : 4;           // of the registers
    static constexpr int kMostVectors = kWide ? kQuarter / 2 : kQuarter;  // a wide sum takes two (1.13 by eight)
    static constexpr int kMostSums = kWide ? kQuarter : 8;                // of gradients, which hold nothing else
    // softmax's gradient computes so little that fetching shows. Measured on a Zen 3 (AVX2), one thread, when both were
    // fetched beside the sums, times without over times with: 64x12x100, dim 1, 0.77, 2048x12x100 0.81, 4096x8x128
    // 0.80, 256x3x1000 0.74. Nor do softmax and log_softmax gain where theirs is left out (6x16x70000 1.8 and 1.2).
    // Wider vectors fetch, as they were measured, and so does log_softmax's: by AVX2 on a Zen 5, times with over times
    // without, by one thread and by two, 5109x8x320 0.30 and 0.50, 2048x12x100 0.74 and 0.80, 64x12x1000, in the
    // cache, 1.01 and 1.03. But long rows of float32 that come from memory are: on a Zen 3, two threads, times with
    // over times without, 40x4x65536 0.87, 32x6x65536 0.78, 12x16x65536 0.70, 400x12x2048 0.84, where bfloat16 takes
    // 1.26, 1.23, 0.97.
    template <class RowOp>
    static constexpr bool kGradientFetches = kVectorBytes == 64 || !RowOp::kOfProducts;
    static constexpr int kLongRow = 2048;

    std::int64_t rows;
    int width;
    ShortRowsOf<T> y;
    bool past_cache;

    // beside(n): work to do beside every n elements.
    template <class Beside = Nothing>
    void softmax(Rows x, Beside&& beside = {}) const {
        each_group<C, kMostVectors>(width, [&]<int kCount>(int j, int lanes)
                                               ONEPASS_INLINE_BODY { this->softmax_of<kCount>(x, j, lanes, beside); });
    }

    template <class Beside = Nothing>
    void log_softmax(Rows x, Beside&& beside = {}) const {
        by_blocks(x, beside, [&](int begin, int n, const C* top, const double* sums) ONEPASS_INLINE_BODY {
            alignas(kCacheLine) C lse[kBlockColumns], lse_low[kBlockColumns];
            split_all_lse<ExpTable<C>::kBias>(top, sums, whole_vectors(n), lse, lse_low);
            each_group<C, kMostVectors>(n, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
                this->template write<kCount>(begin + j, lanes, [&](std::int64_t d, int k) ONEPASS_INLINE_BODY {
                    const LogSoftmaxOp<V> op{load(lse + j + k * W), load(lse_low + j + k * W)};
                    return op(vector_of<kCount, T>(x.row(d) + begin + j, k, lanes, C(0)));
                });
            });
        });
    }

    // One row of results.
    void logsumexp(Rows x) const {
        by_blocks(x, Nothing{}, [&](int begin, int n, const C* top, const double* sums) ONEPASS_INLINE_BODY {
            alignas(kCacheLine) C lse[kBlockColumns];
            const bool finite = all_lse<ExpTable<C>::kBias>(top, sums, whole_vectors(n), lse);
            if (!finite) this->logsumexp_of_infinite(x, begin, n, top, lse);
            each_group<C, 1>(n, [&]<int>(int j, int lanes) ONEPASS_INLINE_BODY {
                lanes == W ? store(y.at + begin + j, load(lse + j)) : store_n(y.at + begin + j, load(lse + j), lanes);
            });
        });
    }

    // Columns of one element, whose exponential relative to itself is 1, and is all of its sum; of what has no
    // difference from itself all is NaN. Measured on a Zen 3, one thread, times over those of other columns, 32000
    // float32: 0.13 to 0.16.
    template <class Beside = Nothing>
    void single(Op op, Rows x, Beside&& beside = {}) const {
        const auto each = [&](auto&& result) ONEPASS_INLINE_BODY {
            each_group<C, kQuarter>(width, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
                x.fetch(0, j, kCount * W);
                this->template write<kCount>(j, lanes, [&](std::int64_t, int k) ONEPASS_INLINE_BODY {
                    return result(vector_of<kCount, T>(x.at + j, k, lanes, C(0)));
                });
                beside(kCount * W);
            });
        };
        switch (op) {
            case Op::softmax: return each([](V v) ONEPASS_INLINE_BODY { return v - v + V(C(1)); });
            case Op::log_softmax: return each([](V v) ONEPASS_INLINE_BODY { return v - v; });
            default: return each([](V v) ONEPASS_INLINE_BODY { return v; });
        }
    }

    // Gradients that sum, of dy and of what was saved; of float32.
    template <class RowOp, bool kFetches = kGradientFetches<RowOp>, class Beside = Nothing>
    void gradient(Rows saved, Rows dy, Beside&& beside = {}) const {
        each_group<C, kMostSums>(width, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
            Sum sum[kCount];
            this->add_up<RowOp, kFetches>(saved, dy, j, lanes, 0, rows, sum, beside);
            RowOp op[kCount];
            for (int k = 0; k < kCount; ++k) op[k] = RowOp::of(sum[k].rounded());
            this->template write_gradient<true, kFetches>(saved, dy, j, lanes, op);
        });
    }

    // The same of longer columns, within the cache: as many rows are added up in float32 as a short one has, and those
    // sums in float64, as tiles do.
    template <class RowOp, class Beside>
    void gradient_by_blocks(Rows saved, Rows dy, Beside&& beside) const {
        each_group<C, kMostSums>(width, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
            WideSum<C> total[kCount];
            for (std::int64_t begin = 0; begin < rows; begin += kMostRows) {
                Sum sum[kCount];
                const std::int64_t end = begin + kMostRows < rows ? begin + kMostRows : rows;
                this->add_up<RowOp, kGradientFetches<RowOp>>(saved, dy, j, lanes, begin, end, sum, beside);
                for (int k = 0; k < kCount; ++k) total[k].add(sum[k].rounded());
            }
            RowOp op[kCount];
            for (int k = 0; k < kCount; ++k) op[k] = RowOp::of(total[k]);
            this->template write_gradient<false, kGradientFetches<RowOp>>(saved, dy, j, lanes, op);
        });
    }

   private:
    static constexpr int kMostLogarithms = kQuarter / 2;  // of which a column takes three registers
    static constexpr int kBlockColumns = 16 * W;

    static constexpr int whole_vectors(int n) { return (n + W - 1) / W * W; }

    // Calls value(row, vector) for all of a group's results, and writes them; kMayPass: perhaps past the cache.
    template <int kCount, bool kMayPass = true, class Value>
    ONEPASS_INLINE void write(int j, int lanes, Value&& value) const {
        constexpr int kFew = kCount < 4 ? kCount : 4;  // at once: they need registers beside what they come from
        const auto write_by = [&](auto&& put) ONEPASS_INLINE_BODY {
            T* to = y.at + j;
            for (std::int64_t d = 0; d < rows; ++d, to += y.stride) {
                unrolled<kCount / kFew>([&](auto group) ONEPASS_INLINE_BODY {
                    constexpr int kFirst = group * kFew;
                    V results[kFew];
                    unrolled<kFew>([&](auto k) ONEPASS_INLINE_BODY { results[k] = value(d, kFirst + k); });
                    unrolled<kFew>([&](auto k)
                                       ONEPASS_INLINE_BODY { put(to + (kFirst + k) * W, kFirst + k, results[k]); });
                });
            }
        };
        if (kMayPass && past_cache) {
            write_by([](T* to, int, V v) ONEPASS_INLINE_BODY { stream(to, v); });
        } else if (lanes == W || (!kGroupsEndAnywhere && kCount > 1)) {
            write_by([](T* to, int, V v) ONEPASS_INLINE_BODY { store(to, v); });
        } else {
            write_by([lanes](T* to, int k, V v)
                         ONEPASS_INLINE_BODY { k < kCount - 1 ? store(to, v) : store_n(to, v, lanes); });
        }
    }

    // ---- softmax ----

    // Where the exponentials of a group of columns wait, row by row.
    struct Kept {
        C* at;
        std::int64_t stride;
        ONEPASS_INLINE C* vector(std::int64_t d, int k) const { return at + d * stride + k * W; }
    };

    template <int kCount, class Beside>
    void softmax_of(Rows x, int j, int lanes, Beside&& beside) const {
        if constexpr (kInPlace) {
            softmax_by<kCount>(x, j, lanes, Kept{y.at + j, y.stride}, beside);
        } else {
            alignas(kCacheLine) C e[kMostRows * kCount * W];
            softmax_by<kCount>(x, j, lanes, Kept{e, kCount * W}, beside);
        }
    }
    template <int kCount, class Beside>
    ONEPASS_INLINE void softmax_by(Rows x, int j, int lanes, Kept e, Beside&& beside) const {
        alignas(kCacheLine) double sum[kCount * W];
        const bool usual = softmax_if_usual<kCount>(x, j, lanes, e, sum, beside);
        alignas(kCacheLine) C scale[kCount * W], scale_low[kCount * W];
        if (!usual) softmax_of_any(x, j, kCount, lanes, e, sum);
        reciprocals(sum, kCount * W, scale, scale_low);
        write<kCount>(j, lanes, [&](std::int64_t d, int k) ONEPASS_INLINE_BODY {
            return scaled(P(load(e.vector(d, k))), P(load(scale + k * W)), P(load(scale_low + k * W)));
        });
    }

    // Every column's exponentials, and their sums.
    template <int kCount, class Beside>
    ONEPASS_INLINE bool softmax_if_usual(Rows x, int j, int lanes, Kept e, double* sums, Beside&& beside) const {
        constexpr int kFew = kCount < kTogether ? kCount : kTogether;
        const auto anchor = usual_anchor<C>();
        V top = -kInfinity<C>;
        Sum sum[kCount];
        for (std::int64_t d = 0; d < rows; ++d) {
            x.fetch(d, j, kCount * W);
            unrolled<kCount / kFew>([&](auto group) ONEPASS_INLINE_BODY {
                constexpr int kFirst = group * kFew;
                V v[kFew];
                unrolled<kFew>([&](auto k) ONEPASS_INLINE_BODY {
                    v[k] = vector_of<kCount, T>(x.row(d) + j, kFirst + k, lanes, C(0));
                    top = max(v[k], top);
                });
                exp_all_of<T>(v, anchor);
                unrolled<kFew>([&](auto k) ONEPASS_INLINE_BODY {
                    store(e.vector(d, kFirst + k), v[k]);
                    sum[kFirst + k].add(v[k]);
                });
            });
            beside(kCount * W);
        }
        for (int k = 0; k < kCount; ++k) sum[k].store_lanes(sums + k * W);
        return are_usual(top, sums, kCount * W);
    }

    // The same relative to each column's maximum. Of an infinite maximum all is NaN.
    ONEPASS_APART void softmax_of_any(Rows x, int j, int count, int lanes, Kept e, double* sums) const {
        for (int k = 0; k < count; ++k) {
            const int columns = k < count - 1 ? W : lanes;
            V max_of = -kInfinity<C>;
            for (std::int64_t d = 0; d < rows; ++d) {
                max_of = max(vector_of<1, T>(x.row(d) + j + k * W, 0, columns, -kInfinity<C>), max_of);
            }
            const V finite = where_not_above(abs(max_of), V(kLargest<C>), max_of, V(C(0)));
            const auto anchor = anchor_at(finite, false);
            Sum sum;
            for (std::int64_t d = 0; d < rows; ++d) {
                const V v = exp_of<T>(vector_of<1, T>(x.row(d) + j + k * W, 0, columns, -kInfinity<C>), anchor);
                store(e.vector(d, k), v);
                sum.add(v);
            }
            sum.store_lanes(sums + k * W);
            for (int i = 0; i < W; ++i) {
                if (is_infinite(max_of.v[i])) sums[k * W + i] = __builtin_nan("");
            }
        }
    }

    // ---- log_softmax and logsumexp ----

    // Every column's maximum, and the sum of its exponentials relative to that.
    template <int kCount, class Beside>
    ONEPASS_INLINE void exponentials_below(Rows x, int j, int lanes, C* top, double* sums, Beside&& beside) const {
        constexpr int kFew = kCount < kTogether ? kCount : kTogether;
        V shift[kCount];
        for (V& m : shift) m = -kInfinity<C>;
        for (std::int64_t d = 0; d < rows; ++d) {
            unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY {
                shift[k] = max(vector_of<kCount, T>(x.row(d) + j, k, lanes, -kInfinity<C>), shift[k]);
            });
        }
        for (int k = 0; k < kCount; ++k) {
            store(top + k * W, shift[k]);
            shift[k] = where_not_above(abs(shift[k]), V(kLargest<C>), shift[k], V(C(0)));
        }
        const auto zero = anchor_at(V(C(0)), true);
        LosslessColumnSum<C> sum[kCount];
        for (std::int64_t d = 0; d < rows; ++d) {
            x.fetch(d, j, kCount * W);
            unrolled<kCount / kFew>([&](auto group) ONEPASS_INLINE_BODY {
                constexpr int kFirst = group * kFew;
                V v[kFew];
                unrolled<kFew>([&](auto k) ONEPASS_INLINE_BODY {
                    v[k] = vector_of<kCount, T>(x.row(d) + j, kFirst + k, lanes, -kInfinity<C>) - shift[kFirst + k];
                });
                exp_all_of<T>(v, Anchor<V, false>{zero.shift, zero.floor, zero.magic});
                unrolled<kFew>([&](auto k) ONEPASS_INLINE_BODY { sum[kFirst + k].add(v[k]); });
            });
            beside(kCount * W);
        }
        for (int k = 0; k < kCount; ++k) sum[k].store_lanes(sums + k * W);
    }

    // Calls finish(first column, their number, maxima, sums of exponentials) for blocks of columns. Logarithms are
    // taken of a block together: of two vectors, a processor waits for every step of them.
    template <class Beside, class Finish>
    ONEPASS_INLINE void by_blocks(Rows x, Beside&& beside, Finish&& finish) const {
        alignas(kCacheLine) C top[kBlockColumns];
        alignas(kCacheLine) double sums[kBlockColumns];
        for (int begin = 0; begin < width; begin += kBlockColumns) {
            const int n = width - begin < kBlockColumns ? width - begin : kBlockColumns;
            each_group<C, kMostLogarithms>(n, [&]<int kCount>(int j, int lanes) ONEPASS_INLINE_BODY {
                this->exponentials_below<kCount>(x, begin + j, lanes, top + j, sums + j, beside);
            });
            for (int j = n; j < whole_vectors(n); ++j) top[j] = C(0);  // no column: an infinite maximum is looked into
            finish(begin, n, top, sums);
        }
    }

    // Columns with an infinite maximum: that, or NaN if there is one.
    ONEPASS_APART void logsumexp_of_infinite(Rows x, int j, int n, const C* top, C* lse) const {
        for (int i = 0; i < n; ++i) {
            if (!is_infinite(top[i])) continue;
            lse[i] = top[i];
            for (std::int64_t d = 0; d < rows; ++d) {
                if (has_nan(x.row(d) + j + i, 1)) lse[i] = static_cast<C>(__builtin_nan(""));
            }
        }
    }

    // ---- gradients ----

    // Adds up rows [begin, end) of a group.
    template <class RowOp, bool kFetches, int kCount, class Beside>
    ONEPASS_INLINE void add_up(const Rows& saved, const Rows& dy, int j, int lanes, std::int64_t begin,
                               std::int64_t end, Sum (&sum)[kCount], Beside&& beside) const {
        for (std::int64_t d = begin; d < end; ++d) {
            if constexpr (kFetches && RowOp::kOfProducts) dy.fetch(d, j, kCount * W);
            unrolled<kCount>([&](auto k) ONEPASS_INLINE_BODY {
                const V v = vector_of<kCount, T>(dy.row(d) + j, k, lanes, C(0));
                if constexpr (RowOp::kOfProducts) {
                    sum[k].add_product(v, vector_of<kCount, T>(saved.row(d) + j, k, lanes, C(0)));
                } else {
                    sum[k].add(v);
                }
            });
            beside(kCount * W);
        }
    }

    template <bool kMayPass, bool kFetches, class RowOp, int kCount>
    ONEPASS_INLINE void write_gradient(const Rows& saved, const Rows& dy, int j, int lanes,
                                       const RowOp (&op)[kCount]) const {
        write<kCount, kMayPass>(j, lanes, [&](std::int64_t d, int k) ONEPASS_INLINE_BODY {
            if constexpr (kFetches) {
                saved.fetch(d, j + k * W, W);
                if constexpr (!RowOp::kOfProducts) dy.fetch(d, j + k * W, W);
            }
            return op[k](vector_of<kCount, T>(saved.row(d) + j, k, lanes, C(0)),
                         vector_of<kCount, T>(dy.row(d) + j, k, lanes, C(0)));
        });
    }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
