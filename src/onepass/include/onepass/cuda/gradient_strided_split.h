// Tiles of gradient_strided.h that several blocks share: each has a slice of the steps, and they tell each other the
// sums of their columns. For long dims with little beside them. A slice waits nowhere: what is read again is in L2.
#pragma once

#include "gradient_strided.h"
#include "tile_exchange.h"

namespace onepass::cuda {

template <class Op, class Dy, class Saved, class Dx, GradientStrided kShape>
__global__ void __launch_bounds__(kShape.threads, 1) gradient_strided_split(
    const __grid_constant__ TeamJob<GradientJob<3, kShape.kept_axes + kShape.reduced_axes>> job) {
    using Steps = GradientSteps<Op, Dy, Saved, Dx, kShape>;
    using Part = typename Steps::Part;
    using Total = Sum<typename Steps::C>;
    using Reduce = ColumnReduce<Total, kShape.threads, kShape.across, kShape.pack>;
    ONEPASS_SHARED(typename Reduce::Scratch, scratch);
    Reduce reduce(scratch);
    const auto place = TeamPlace::of<0>(job);
    TeamMemory<Total, Part::kTileRows> others(job, place);
    unsigned leaving = 0;

    const int64 begin = place.rank * job.slice;
    const int64 end = begin + job.slice < job.length ? begin + job.slice : job.length;
    const int64 tiles = (job.rows + Part::kTileRows - 1) / Part::kTileRows;
    for (int64 tile = place.team; tile < tiles; tile += place.teams) {
        others.begin_row();
        const Part part(job, tile);
        const Steps steps(part, begin, end);
        Total sum[kShape.pack];
#pragma unroll
        for (Total& s : sum) s = Total::identity();
        steps.add_to(sum);
        reduce_team<Part>(sum, Total::identity(), Merge(), reduce, others);
        if (tile + place.teams >= tiles) leaving = others.leave();
        steps.write(sum);
    }
    others.left(leaving, tiles, place.teams);
}

}  // namespace onepass::cuda
