"""The plans for gradients: what a row of two arrays takes, where it waits, and which arrays are read by packs."""

from __future__ import annotations

from ..problem import Axis
from .kernel_plan import BLOCK_SCRATCH, ONCE, Choice, CudaPlan, build, edge_packs
from .lanes import lanes_of_row, many_short_rows, narrow_packs_pay
from .plan_gradient_claimed import gradient_claims_pay
from .plan_gradient_cluster import gradient_cluster_pays, plan_gradient_cluster
from .plan_gradient_split import block_registers, gradient_shares_pay, plan_gradient_split
from .plan_gradient_strided import plan_gradient_strided
from .plan_slabs import plan_slabs
from .plan_split import SPLIT_ALGORITHMS
from .plan_warp_smem import plan_short_rows
from .rounding import ceil_div, ceil_power
from .thresholds import (
    ACCESS_BYTES,
    FEWER_ROWS_PER_MULTIPROCESSOR,
    FORCED_WARP_REGISTERS,
    GRADIENT_SEGMENT_PACKS,
    LONE_GRADIENT_ROWS_PER_MULTIPROCESSOR,
    LONE_GRADIENT_THREADS,
    LONE_THREADS,
    LONG_GRADIENT_WARPS,
    LOOP_THREADS,
    MOST_GRADIENT_PACKS_OF_LANES,
    MOST_GRADIENT_WARPS,
    SHORT_HALVES_LENGTH,
    SHORT_HALVES_THREADS,
    WARP_REGISTERS,
    WARP_THREADS,
)

_ALGORITHMS = (
    "warp",
    "warp_smem",
    "block",
    "block_smem",
    "block_uncached",
    *SPLIT_ALGORITHMS,
    "cluster",
    "strided",
    "strided_split",
)
_BY_TILES = ("strided", "strided_split")
_WHOLE_ROW = -1  # gradient_block_smem.h's


def plan_gradient(choice: Choice) -> CudaPlan:
    problem, algorithm = choice.problem, choice.algorithm
    if algorithm is not None and algorithm not in _ALGORITHMS:
        raise choice.refuse(f"a gradient needs one sum of a row and no running maximum: {', '.join(_ALGORITHMS)}")
    together = _rows_lie_together(choice)
    slabs = None if together or problem.op == "logsumexp_backward" else plan_slabs(choice)
    if slabs is not None:
        return slabs
    if not together and algorithm not in (None, *_BY_TILES):
        raise choice.refuse("the elements of a row do not lie side by side in the result, and in what was saved")
    if not together or algorithm in _BY_TILES:
        return plan_gradient_strided(choice)
    if problem.op != "logsumexp_backward":
        return plan_short_rows(choice, _whole_pack, _alignment_of_packs) or _plan_rows(choice)
    if algorithm not in (None, "warp"):
        raise choice.refuse("no row is needed twice: `warp` or `strided`")
    return _plan_segments(choice)


def _rows_lie_together(choice: Choice) -> bool:
    """Side by side in the result and in what was saved; dy may have one value for the row."""
    reduce = choice.problem.reduce
    if len(reduce) != 1:
        return not reduce or choice.problem.length == 0
    axis = reduce[0]
    return axis.y_stride == 1 and axis.x_stride in (0, 1) and axis.z_stride in (0, 1)


# ---- which arrays are read and written by packs ----


def _strides(axis: Axis) -> tuple[int, int, int]:
    """In the saved array, in dx, in dy."""
    return axis.x_stride, axis.y_stride, axis.z_stride


def _access(choice: Choice, pack: int) -> tuple[str, bool, bool]:
    """pack.h's Alignment of dx cut into packs of that many elements; whether dy and the saved array are as far from a
    boundary everywhere."""
    along = _along(choice)
    if pack == 1:
        return "whole", along.z_stride == 1, along.x_stride == 1
    places = [
        None if past is None else past // size % pack
        for past, size in (
            (choice.x_past, choice.x_size),
            (choice.y_past, choice.y_size),
            (choice.z_past, choice.z_size),
        )
    ]
    axes = [_strides(axis) for axis in choice.problem.outer]

    def agrees(which: int) -> bool:
        return (
            _strides(along)[which] == 1
            and places[which] is not None
            and places[which] == places[1]
            and all((strides[which] - strides[1]) % pack == 0 for strides in axes)
        )

    whole = choice.problem.length % pack == 0 and places[1] == 0 and all(strides[1] % pack == 0 for strides in axes)
    return "whole" if whole else "peeled", agrees(2), agrees(0)


def _all_by_packs(choice: Choice) -> tuple[str, bool, bool]:
    """What _access says where no row has edges, and none of the arrays that are rows goes by element."""
    along = _along(choice)
    return "whole", along.z_stride == 1, along.x_stride == 1


def _whole_pack(choice: Choice) -> int:
    """The most elements per access that every row of every array is a whole number of."""
    pack = choice.tuning.pack or _widest_pack(choice)
    while _access(choice, pack) != _all_by_packs(choice):
        pack //= 2
    return pack


def _widest_pack(choice: Choice) -> int:
    """Elements of which the narrowest type of the arrays that are rows takes a full access."""
    _, dy_is_row, saved_is_row = _all_by_packs(choice)
    return ACCESS_BYTES // min(choice.y_size, *[choice.x_size] * saved_is_row, *[choice.z_size] * dy_is_row)


def _row_access(choice: Choice) -> tuple[int, str, bool, bool]:
    """Elements per access, and the access that follows."""
    problem = choice.problem
    pack = choice.tuning.pack or _widest_pack(choice)
    access = _access(choice, pack)
    if choice.tuning.pack is not None:
        return pack, *access
    if access == _all_by_packs(choice):
        choice.why.append(f"rows of {problem.length} are whole packs of {pack}: every access is full width")
        return pack, *access
    narrow = _whole_pack(choice)
    if narrow_packs_pay(choice, narrow, pack, _alignment(choice, access)):
        pack = narrow
        choice.why.append(f"short rows off the boundaries of wider packs: packs of {pack}")
        return pack, *_access(choice, pack)
    if access[0] == "peeled":
        choice.why.append(f"rows of {problem.length} start off pack boundaries: head and tail go by element")
    along = _along(choice)
    for name, stride, wide in (("dy", along.z_stride, access[1]), ("what was saved", along.x_stride, access[2])):
        if not wide and problem.op != "logsumexp_backward":
            differently = "has one value for a row" if stride == 0 else "may lie differently to pack boundaries"
            choice.why.append(f"{name} {differently}: it goes by element")
    return pack, *access


def _alignment(choice: Choice, access: tuple[str, bool, bool]) -> str:
    """Of all arrays: "apart" where one that might go by packs goes by element."""
    return access[0] if access[1:] == _all_by_packs(choice)[1:] else "apart"


def _alignment_of_packs(choice: Choice, pack: int) -> str:
    return _alignment(choice, _access(choice, pack))


# ---- softmax_backward, log_softmax_backward of rows that lie side by side ----


def _plan_rows(choice: Choice) -> CudaPlan:
    problem, tuning, device = choice.problem, choice.tuning, choice.device
    pack, alignment, wide_dy, wide_saved = _row_access(choice)
    packs = max(1, problem.length // pack)
    access: dict[str, int | str | bool] = {
        "pack": pack,
        "alignment": alignment,
        "wide_dy": wide_dy,
        "wide_saved": wide_saved,
    }
    if choice.algorithm:
        shared: str | None = choice.algorithm
    elif not _two_packs_each(choice, access, packs) and gradient_cluster_pays(choice, access, packs):
        shared = "cluster"
    elif gradient_claims_pay(choice, access):
        shared = "split"
    else:
        shared = gradient_shares_pay(choice, pack, alignment)
    if shared in SPLIT_ALGORITHMS:
        return plan_gradient_split(choice, shared, access, _along(choice), packs)
    if shared == "cluster":
        return plan_gradient_cluster(choice, access, _along(choice), packs)
    # A thread holds two values for each element.
    registers = 2 * choice.registers_per_element
    limit = FORCED_WARP_REGISTERS if choice.algorithm == "warp" else WARP_REGISTERS
    warp_packs = max(1, limit // registers // pack)
    block_packs = max(1, block_registers(choice) // registers // pack)
    most_threads = tuning.threads or 1024
    smem_bytes = _shared_bytes(choice, pack, packs, alignment)
    fits_smem = smem_bytes + BLOCK_SCRATCH <= device.shared_per_block
    several_fit = device.shared_per_multiprocessor // (smem_bytes + 2 * BLOCK_SCRATCH) >= 2
    chosen = choice.algorithm
    if chosen is None:
        if packs <= 32 * warp_packs or _long_for_lanes(choice, access, packs):
            chosen = "warp"
            choice.why.append(f"dy and y of a row of {problem.length} fit the registers of a warp")
        elif packs <= most_threads * block_packs // 2 or (packs <= most_threads * block_packs and not several_fit):
            chosen = "block"
            choice.why.append(f"dy and y of a row of {problem.length} fit the registers of a block")
        elif fits_smem:
            chosen = "block_smem"
            choice.why.append(
                f"dy and y of a row take {smem_bytes} of a block's {device.shared_per_block} bytes of shared memory"
            )
        else:
            chosen = "block_uncached"
            choice.why.append(
                f"dy and y of a row take {smem_bytes} bytes, a block has {device.shared_per_block}: the rest of a row "
                "is read twice, the second time backwards, for what L2 still has"
            )
    elif chosen == "warp" and packs > 32 * warp_packs:
        raise choice.refuse(f"the registers of a warp hold at most {32 * warp_packs * pack} elements of dy and of y")
    elif chosen == "block" and packs > most_threads * block_packs:
        raise choice.refuse(f"the registers of a block hold at most {most_threads * block_packs * pack} elements")
    elif chosen == "block_smem" and not fits_smem:
        raise choice.refuse(
            f"dy and y of a row take {smem_bytes} bytes of shared memory, a block has {device.shared_per_block}"
        )
    if chosen == "warp":
        return _plan_warp(choice, access, packs)
    if chosen == "block":
        return _plan_block(choice, access, packs)
    return _plan_loop(choice, chosen, access, smem_bytes)


def _shared_bytes(choice: Choice, pack: int, packs: int, alignment: str) -> int:
    """That packs of dy and of the saved array take, with room for the edges of each."""
    elements = (packs + edge_packs(choice, pack, alignment)) * pack
    return -(-elements * choice.z_size // ACCESS_BYTES) * ACCESS_BYTES + elements * choice.x_size


def _plan_warp(choice: Choice, access: dict[str, int | str | bool], packs: int) -> CudaPlan:
    tuning, pack = choice.tuning, int(access["pack"])
    threads = tuning.threads or WARP_THREADS
    taken = str(access["alignment"]), bool(access["wide_dy"]), bool(access["wide_saved"])
    lanes = tuning.lanes or lanes_of_row(choice, pack, _alignment(choice, taken))
    per_lane = -(-packs // lanes)
    rows = tuning.rows or 1
    exact = access["alignment"] == "whole" and per_lane * lanes * pack == choice.problem.length
    choice.why.append(f"{lanes} lanes hold them in {per_lane} packs of each: read once, and no barrier")
    return build(
        choice,
        "warp",
        "gradient_warp.h",
        "gradient_warp",
        "GradientWarp",
        {
            "axes": len(choice.kept_axes),
            "threads": threads,
            "lanes": lanes,
            "packs": per_lane,
            "rows": rows,
            **access,
            "padded": tuning.padded or not exact,
        },
        threads=threads,
        shared_bytes=0,
        units=choice.problem.rows,
        units_per_block=threads // lanes * rows,
        axes=(*choice.kept_axes, _along(choice)),
        reads=1,
        waves=ONCE,
    )


def _halves(choice: Choice, access: dict[str, int | str | bool]) -> bool:
    """Whether rows are of 16 bits that all go by packs, and computed in float32."""
    wide = bool(access["wide_dy"] and access["wide_saved"])
    return wide and choice.kept_size == 4 and choice.registers_per_element == 1


def _long_for_lanes(choice: Choice, access: dict[str, int | str | bool], packs: int) -> bool:
    """Whether lanes of a warp hold more of a row than WARP_REGISTERS, rather than a block."""
    return _halves(choice, access) and many_short_rows(choice) and packs <= MOST_GRADIENT_PACKS_OF_LANES


def _plan_block(choice: Choice, access: dict[str, int | str | bool], packs: int) -> CudaPlan:
    tuning, pack = choice.tuning, int(access["pack"])
    threads = tuning.threads or 64
    per_thread = max(1, block_registers(choice) // (2 * choice.registers_per_element) // pack)
    # Of 16 bits most threads would have one of two packs, if a row is not as many as a block of them holds. Not in
    # blocks of which a multiprocessor has but one: nothing would be loaded while that one adds up.
    filled = access["alignment"] == "whole" and ceil_power(packs) == packs
    if choice.kept_size == 4 and not filled and 2 * ceil_power(packs) <= choice.device.max_threads:
        per_thread = 1
    while tuning.threads is None and threads < 1024 and packs > threads * per_thread:
        threads *= 2
    if tuning.threads is None:
        threads = _whole_warps(choice, access, packs, threads)
    if tuning.threads is None and _few_logarithms(choice):
        threads = max(threads, min(LONE_GRADIENT_THREADS, ceil_power(packs)))
    per_thread = -(-packs // threads)
    exact = access["alignment"] == "whole" and per_thread * threads * pack == choice.problem.length
    choice.why.append(f"{threads} threads hold them in {per_thread} packs of each: read once")
    return build(
        choice,
        "block",
        "gradient_block.h",
        "gradient_block",
        "GradientBlock",
        {
            "axes": len(choice.kept_axes),
            "threads": threads,
            "packs": per_thread,
            "resident": tuning.resident or 0,
            **access,
            "padded": tuning.padded or not exact,
        },
        threads=threads,
        shared_bytes=0,
        units=choice.problem.rows,
        units_per_block=1,
        axes=(*choice.kept_axes, _along(choice)),
        reads=1,
        waves=ONCE,
    )


def _whole_warps(choice: Choice, access: dict[str, int | str | bool], packs: int, threads: int) -> int:
    """Threads of a block, or fewer, as many warps as there are packs for, no power of two."""
    if not _halves(choice, access):
        return threads
    if _two_packs_each(choice, access, packs):
        return LONG_GRADIENT_WARPS[1] // 2 * 32
    warps = ceil_div(packs, 32)
    alone = warps <= MOST_GRADIENT_WARPS or LONG_GRADIENT_WARPS[0] < warps <= LONG_GRADIENT_WARPS[1]
    return 32 * warps if alone and packs <= threads else threads


def _two_packs_each(choice: Choice, access: dict[str, int | str | bool], packs: int) -> bool:
    """Whether a block whose threads have two packs each has a row of 16 bits, rather than a larger one or a cluster."""
    several = choice.problem.rows >= FEWER_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    fits = LONG_GRADIENT_WARPS[0] * 32 < packs <= LONG_GRADIENT_WARPS[1] * 32
    fast = access["alignment"] == "whole" or choice.problem.op == "softmax_backward"
    return _halves(choice, access) and several and fits and fast


def _few_logarithms(choice: Choice) -> bool:
    """Whether rows whose exponentials are computed are so few that what a thread does in turn is what they wait for."""
    few = choice.problem.rows <= LONE_GRADIENT_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    return few and choice.problem.op == "log_softmax_backward" and choice.kept_size == 8 and choice.x_size == 4


def _plan_loop(choice: Choice, algorithm: str, access: dict[str, int | str | bool], smem_bytes: int) -> CudaPlan:
    """One block per row that walks the row twice; in shared memory waits all of it, or what fits."""
    device, pack = choice.device, int(access["pack"])
    kept = _WHOLE_ROW
    resident = choice.tuning.resident or 1
    if algorithm == "block_uncached":
        most = min(device.shared_per_block, device.shared_per_multiprocessor // resident - BLOCK_SCRATCH)
        most -= BLOCK_SCRATCH + ACCESS_BYTES
        kept = most // (pack * (choice.x_size + choice.z_size)) - edge_packs(choice, pack, str(access["alignment"]))
        kept = kept if choice.tuning.kept is None else choice.tuning.kept
        if kept >= choice.problem.length // pack:
            kept = _WHOLE_ROW
        else:
            smem_bytes = _shared_bytes(choice, pack, kept, str(access["alignment"]))
            choice.why.append(f"{kept} packs of each wait in {smem_bytes} bytes of shared memory")
    alone = device.shared_per_multiprocessor // (smem_bytes + 2 * BLOCK_SCRATCH) < 2
    # 1024 threads have 64 registers each: too few for the addresses of elements.
    by_packs = access["wide_dy"] and access["wide_saved"]
    lone = by_packs and (alone or choice.problem.rows <= device.multiprocessors)
    short_halves = choice.kept_size == 4 and choice.problem.length < SHORT_HALVES_LENGTH
    several = SHORT_HALVES_THREADS if algorithm == "block_smem" and short_halves else LOOP_THREADS
    threads = choice.tuning.threads or (LONE_THREADS if lone else several)
    return build(
        choice,
        algorithm,
        "gradient_block_smem.h",
        "gradient_block_smem",
        "GradientBlockSmem",
        {"axes": len(choice.kept_axes), "threads": threads, "resident": resident, "kept": kept, **access},
        threads=threads,
        shared_bytes=smem_bytes,
        units=choice.problem.rows,
        units_per_block=1,
        axes=(*choice.kept_axes, _along(choice)),
        reads=1 if kept == _WHOLE_ROW else 2,
    )


def _along(choice: Choice) -> Axis:
    return choice.problem.reduce[0] if choice.problem.reduce else Axis(choice.problem.length, 1, 1, 1)


# ---- logsumexp_backward of rows that lie side by side ----


def _plan_segments(choice: Choice) -> CudaPlan:
    tuning, length = choice.tuning, choice.problem.length
    pack, alignment, _, wide_saved = _row_access(choice)
    packs = max(1, length // pack)
    threads = tuning.threads or WARP_THREADS
    lanes = tuning.lanes or lanes_of_row(choice, pack, alignment if wide_saved else "apart")
    per_lane = min(-(-packs // lanes), GRADIENT_SEGMENT_PACKS)
    segments = -(-packs // (lanes * per_lane))
    choice.why.append(
        f"no sum is needed: {lanes} lanes take {per_lane} packs each, and a row is "
        f"{f'{segments} segments, each for itself' if segments > 1 else 'one segment'}"
    )
    return build(
        choice,
        "warp",
        "gradient_logsumexp.h",
        "gradient_logsumexp",
        "GradientLogSumExp",
        {
            "axes": len(choice.kept_axes),
            "threads": threads,
            "lanes": lanes,
            "segment": per_lane,
            "pack": pack,
            "alignment": alignment,
            "wide_saved": wide_saved,
        },
        threads=threads,
        shared_bytes=0,
        units=choice.problem.rows * segments,
        units_per_block=threads // lanes,
        axes=(*choice.kept_axes, _along(choice)),
        reads=1,
        waves=ONCE,
    )
