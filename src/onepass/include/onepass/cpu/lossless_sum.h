// Sums of exponentials, column by column.
#pragma once

#include "exp.h"

namespace onepass {
inline namespace ONEPASS_ISA {

// Exponentials relative to each column's maximum, added up in float32 without loss: what an addition rounds off is
// added up beside it. A lane adds up a whole column, and a logarithm shows what float32 loses. It begins with 2^kBias,
// the largest there is, so that what is added is never more than what is there, and the remainder exact (Dekker).
struct LosslessSum {
    static constexpr float kStart = static_cast<float>(1 / kUnbias<float>);
    VecF high = kStart;
    VecF low = 0.0f;

    ONEPASS_INLINE void add(VecF e) {
        const VecF sum = high + e;
        low = low + (e - (sum - high));
        high = sum;
    }
};

}  // namespace ONEPASS_ISA
}  // namespace onepass
