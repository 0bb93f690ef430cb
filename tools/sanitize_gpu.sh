#!/usr/bin/env bash
# Every kernel under compute-sanitizer, on a machine with a GPU: memory, races in shared memory, what is read before it
# is written, barriers. Needs the CUDA toolkit and torch.
set -euo pipefail
cd "$(dirname "$0")/../tests"

export PYTORCH_NO_CUDA_MEMORY_CACHING=1 # an allocation for each array, so that accesses past one are seen
python gpu_tiers.py                     # compiles; what follows finds the kernels in the cache
for tool in memcheck racecheck initcheck; do
    echo "+ compute-sanitizer --tool $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 python gpu_tiers.py
done
# synccheck itself (CUDA 13.0) reads an illegal address where 40 clusters of 16 blocks, each begun as another ends, do no
# more than initialise an mbarrier; with clusters of 8 it does not.
echo "+ compute-sanitizer --tool synccheck"
compute-sanitizer --tool synccheck --error-exitcode 9 python gpu_tiers.py --clusters-once 8
