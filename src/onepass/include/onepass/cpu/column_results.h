// The values of a row of a tile's results, by vectors of columns: from exponentials that were kept, or from the input
// again.
#pragma once

#include "columns.h"

namespace onepass {
inline namespace ONEPASS_ISA {

template <class T>
struct KeptSource {
    using C = Compute<T>;
    using V = Vec<C>;
    using P = Precision<T>;
    const C* e;
    const Columns<C>& c;

    ONEPASS_INLINE V operator()(std::int64_t j) const { return value(j, load(e + j)); }
    V operator()(std::int64_t j, int) const { return value(j, load(e + j)); }
    ONEPASS_INLINE V value(std::int64_t j, V v) const {
        return scaled(P(v), P(load(c.scale + j)), P(load(c.scale_low + j)));
    }
};

template <class T, bool kSoftmax>
struct InputSource {
    using C = Compute<T>;
    using V = Vec<C>;
    using P = Precision<T>;
    static constexpr int W = kLanes<C>;
    static constexpr bool kNormal = true;  // as Applied (span_results.h)
    const T* x;
    const Columns<C>& c;

    ONEPASS_INLINE V operator()(std::int64_t j) const { return value(j, load(x + j)); }
    V operator()(std::int64_t j, int n) const { return value(j, load_n(x + j, n, C(0))); }
    ONEPASS_INLINE V value(std::int64_t j, V v) const {
        if constexpr (kSoftmax) {
            const Anchor<P, true> anchor{load(c.shift + j), load(c.floor + j), load(c.magic + j)};
            return SoftmaxOp<P, true>{anchor, load(c.scale + j), load(c.scale_low + j)}(P(v));
        } else {
            return LogSoftmaxOp<V>{load(c.scale + j), load(c.scale_low + j)}(v);
        }
    }
    // Several at once, which is quicker; false where columns differ in more than their sums, or a product may be small.
    template <int kCount>
    ONEPASS_INLINE bool vectors(std::int64_t j, V (&results)[kCount]) const
        requires kSoftmax
    {
        if (!c.alike) return false;
        for (int k = 0; k < kCount; ++k) results[k] = load(x + j + k * W);
        exp_all_of<T>(results, Anchor<V, false>{V(C(0)), load(c.floor), load(c.magic)});
        if (!none_small(results, c.limit)) return false;
        for (int k = 0; k < kCount; ++k) {
            results[k] = times<T>(results[k], load(c.scale + j + k * W), load(c.scale_low + j + k * W));
        }
        return true;
    }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
