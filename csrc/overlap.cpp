// Whether two arrays have memory in common.
#include "arrays.h"

namespace onepass {
namespace {

// The bytes [low, high) that a view spans.
void span_of(const ArrayView& v, const char*& low, const char*& high) {
    std::int64_t below = 0, above = 0;
    for (int i = 0; i < v.ndim; ++i) {
        if (v.shape[i] == 0) {
            low = high = v.data;
            return;
        }
        const std::int64_t reach = (v.shape[i] - 1) * v.strides[i];
        (reach < 0 ? below : above) += reach;
    }
    low = v.data + below * size_of(v.dtype);
    high = v.data + (above + 1) * size_of(v.dtype);
}

}  // namespace

Overlap overlap_of(const ArrayView& a, const ArrayView& b) {
    const char *a_low, *a_high, *b_low, *b_high;
    span_of(a, a_low, a_high);
    span_of(b, b_low, b_high);
    if (a_high <= b_low || b_high <= a_low) return Overlap::none;
    if (a.data != b.data || a.dtype != b.dtype || a.ndim != b.ndim) return Overlap::some;
    for (int i = 0; i < a.ndim; ++i) {
        if (a.shape[i] != b.shape[i]) return Overlap::some;
        if (a.strides[i] != b.strides[i] && a.shape[i] > 1) return Overlap::some;
    }
    return Overlap::same;
}

}  // namespace onepass
