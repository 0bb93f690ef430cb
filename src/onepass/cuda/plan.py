"""The GPU half of the planner: a Problem and a Device in, a CudaPlan out. Pure Python; no device is needed."""

from __future__ import annotations

from ..problem import GRADIENTS, REDUCTIONS, Problem
from .device import Device
from .kernel_plan import BLOCK_SCRATCH, ONCE, Choice, CudaPlan, Functor, alignment_of, build, edge_packs
from .lanes import lanes_of_row, many_short_rows, narrow_packs_pay
from .plan_cluster import cluster_pays, plan_cluster
from .plan_gradient import plan_gradient
from .plan_reduction import plan_reduction
from .plan_slabs import plan_slabs
from .plan_split import SPLIT_ALGORITHMS, plan_split, sharing_algorithm
from .plan_strided import plan_strided
from .plan_warp_smem import plan_short_rows
from .rounding import ceil_div, ceil_power, floor_power
from .thresholds import (
    BLOCK_REGISTERS,
    FEW_ROWS_PER_MULTIPROCESSOR,
    FEWER_ROWS_PER_MULTIPROCESSOR,
    FEWEST_HELD_HALVES,
    FORCED_WARP_REGISTERS,
    HELD_BY_HALF,
    HELD_BY_HALF_OF,
    HELD_LOGSUMEXP_BYTES_PER_MULTIPROCESSOR,
    LONE_ROW_PACKS,
    LONE_ROW_THREADS,
    LONE_THREADS,
    LONG_LANE_PACKS,
    LOOP_THREADS,
    MOST_BLOCK_REGISTERS,
    MOST_HELD_HALVES,
    MOST_HELD_LOGSUMEXP,
    MOST_HELD_LOGSUMEXP_OF_FEW,
    MOST_ONLINE_AT_ONCE,
    ONLINE_PACKS,
    ONLINE_THREADS,
    ONLINE_THREADS_PER_MULTIPROCESSOR,
    SEED_THREADS,
    WARP_REGISTERS,
    WARP_THREADS,
    WIDE_WARP_REGISTERS,
)
from .tuning import Tuning

__all__ = ["ADDRESS_MODULUS", "ALGORITHMS", "CudaPlan", "Functor", "Tuning", "make_cuda_plan"]

ALGORITHMS = (
    "warp",
    "warp_smem",
    "block",
    "block_smem",
    "online",
    "block_uncached",
    "three_pass",
    "strided",
    "strided_split",
    *SPLIT_ALGORITHMS,
    "cluster",
)

# Addresses are known modulo this many bytes.
ADDRESS_MODULUS = 128


def make_cuda_plan(
    problem: Problem,
    device: Device,
    algorithm: str | None = None,
    *,
    addresses: tuple[int, ...] | None = None,
    load: Functor | None = None,
    store: Functor | None = None,
    tuning: Tuning | None = None,
) -> CudaPlan:
    """The plan for a problem; `algorithm` forces one, or is refused with the reason it cannot serve.

    addresses: those of input and result, then of what else is read, modulo 128 or in full: a plan holds for all that
    are equal modulo 128. Without them the plan serves any address that is a multiple of the element's size, and gives
    up wide accesses for it.
    """
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f"{problem.op}: unknown algorithm {algorithm!r}; choose from {', '.join(ALGORITHMS)}")
    pasts = [None] * 3 if addresses is None else [a % ADDRESS_MODULUS for a in addresses]
    x_past, y_past, z_past = (*pasts, None)[:3]
    choice = Choice(
        problem,
        device,
        algorithm,
        x_past,
        y_past,
        z_past,
        load or Functor(),
        store or Functor(),
        tuning or Tuning(),
        [],
    )
    if problem.op in GRADIENTS:
        return plan_gradient(choice)
    if choice.numbered and not problem.in_order:
        raise choice.refuse(
            "a functor is told rows and columns in the order of the dims, and the array or out has them in another in "
            "memory; make it contiguous"
        )
    if not _rows_lie_together(choice):
        slabs = plan_slabs(choice)
        if slabs is not None:
            return slabs
        if algorithm not in (None, "strided", "strided_split"):
            raise choice.refuse("the elements of a row do not lie side by side in input and result")
        return plan_strided(choice)
    if algorithm in ("strided", "strided_split"):
        return plan_strided(choice)
    short = plan_short_rows(choice, _whole_pack, _alignment)
    if short is not None:
        return short
    pack, alignment = _row_pack(choice)
    shared = algorithm
    if algorithm is None:
        shared = "cluster" if cluster_pays(choice, pack, alignment) else sharing_algorithm(choice, pack, alignment)
    if shared in SPLIT_ALGORITHMS:
        return plan_split(choice, shared, pack, alignment)
    if shared == "cluster":
        return plan_cluster(choice, pack, alignment)
    plan_rows = plan_reduction if problem.op in REDUCTIONS else _plan_rows
    return plan_rows(choice, pack, alignment)


def _rows_lie_together(choice: Choice) -> bool:
    problem = choice.problem
    if len(problem.reduce) > 1 or (problem.reduce and problem.reduce[0].x_stride != 1):
        return problem.length == 0
    return not choice.elementwise or not problem.reduce or problem.reduce[0].y_stride == 1


def _alignment(choice: Choice, pack: int) -> str:
    return alignment_of(choice, pack, choice.problem.length, choice.problem.outer)


def _whole_pack(choice: Choice) -> int:
    """The most elements per access that every row is a whole number of."""
    pack = choice.tuning.pack or choice.access_pack
    while _alignment(choice, pack) != "whole":
        pack //= 2
    return pack


def _row_pack(choice: Choice) -> tuple[int, str]:
    """Elements per access and the alignment that follows."""
    if choice.tuning.pack is not None:
        return choice.tuning.pack, _alignment(choice, choice.tuning.pack)
    pack = choice.access_pack
    alignment = _alignment(choice, pack)
    if alignment == "whole":
        choice.why.append(f"rows of {choice.problem.length} are whole packs of {pack}: every access is full width")
    elif narrow_packs_pay(choice, narrow := _whole_pack(choice), pack, alignment):
        pack, alignment = narrow, "whole"
        choice.why.append(f"short rows off the boundaries of wider packs: packs of {pack}")
    elif alignment == "peeled":
        choice.why.append(f"rows of {choice.problem.length} start off pack boundaries: head and tail go by element")
    else:
        choice.why.append("input and result may lie differently to pack boundaries: only the result goes by packs")
    return pack, alignment


# ---- softmax, log_softmax, logsumexp of rows that lie side by side ----


def _plan_rows(choice: Choice, pack: int, alignment: str) -> CudaPlan:
    problem, tuning = choice.problem, choice.tuning
    packs = max(1, problem.length // pack)  # a peeled row has no more whole packs than that
    limit = FORCED_WARP_REGISTERS if choice.algorithm == "warp" else _lane_registers(choice)
    # Held per thread: whole packs, and the edges of a peeled row.
    warp_packs = limit // choice.registers_per_element // pack
    most_threads = tuning.threads or 1024
    block_packs = max(1, MOST_BLOCK_REGISTERS // choice.registers_per_element // pack)
    smem_bytes = (packs + edge_packs(choice, pack, alignment)) * pack * choice.kept_size
    fits_smem = smem_bytes + BLOCK_SCRATCH <= choice.device.shared_per_block
    # Of blocks that hold a row in 32 registers a thread, one is resident, with nothing to do while it waits: of
    # block_smem several may be. Measured on an H100, 16384 rows of 32768 bfloat16: 1.06x. Of 16-bit elements also where
    # 16 registers do: on an H200, 49152 rows of 16384 float16, 1.10x.
    several_fit = _rows_in_shared_memory(choice, smem_bytes) >= 2
    short = choice.x_size == 2 and choice.registers_per_element == 1
    chosen = choice.algorithm
    if chosen is None:
        if problem.op == "logsumexp" and packs * pack * choice.x_size > MOST_HELD_LOGSUMEXP[choice.x_size]:
            held = packs * pack
            fits = packs <= most_threads * block_packs
            if fits and (_comes_at_once(choice, held) or _short_halves(choice, held)):
                chosen = "block"
                choice.why.append(f"a block holds a row of {problem.length} in its registers, and waits for it once")
            else:
                chosen = "online"
                choice.why.append("a running maximum and sum need the row once, wherever it waits")
        elif _few_long_lanes(choice, packs, pack):
            chosen = "block"
            choice.why.append(
                f"{problem.rows} rows would leave most of the GPU idle, a warp for each: a block for each"
            )
        elif packs <= 32 * warp_packs:
            chosen = "warp"
            choice.why.append(f"a row of {problem.length} fits the registers of a warp: {limit} per lane")
        elif packs <= most_threads * block_packs // (4 if short else 2) or (
            packs <= most_threads * block_packs and not several_fit
        ):
            chosen = "block"
            choice.why.append(f"a row of {problem.length} fits the registers of a block")
        elif fits_smem:
            chosen = "block_smem"
            choice.why.append(
                f"a row takes {smem_bytes} of the {choice.device.shared_per_block} bytes of shared memory of a block"
            )
        else:
            chosen = "online"
            choice.why.append(
                f"a row takes {smem_bytes} bytes, a block has {choice.device.shared_per_block}: it is read twice"
            )
    elif chosen == "warp" and packs > 32 * warp_packs:
        raise choice.refuse(f"the registers of a warp hold at most {32 * warp_packs * pack} elements of a row")
    elif chosen == "block" and packs > most_threads * block_packs:
        raise choice.refuse(f"the registers of a block hold at most {most_threads * block_packs * pack} elements")
    elif chosen == "block_smem" and not fits_smem:
        raise choice.refuse(
            f"a row takes {smem_bytes} bytes of shared memory, a block has {choice.device.shared_per_block}"
        )
    if chosen == "warp":
        return _plan_warp(choice, pack, alignment, packs)
    if chosen == "block":
        return _plan_block(choice, pack, alignment, packs)
    return _plan_loop(choice, chosen, pack, alignment, smem_bytes)


def _lane_registers(choice: Choice) -> int:
    wide = many_short_rows(choice) and choice.registers_per_element == 1
    return WIDE_WARP_REGISTERS.get((choice.problem.op, choice.x_size), WARP_REGISTERS) if wide else WARP_REGISTERS


def _few_long_lanes(choice: Choice, packs: int, pack: int) -> bool:
    """Whether rows fit the registers of a warp, but are few and would keep each of its lanes busy for long."""
    few = choice.problem.rows <= FEW_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors
    return few and 32 * (LONG_LANE_PACKS - 1) < packs <= 32 * (WARP_REGISTERS // choice.registers_per_element // pack)


def _rows_in_shared_memory(choice: Choice, smem_bytes: int) -> int:
    return choice.device.shared_per_multiprocessor // (smem_bytes + 2 * BLOCK_SCRATCH)


def _plan_warp(choice: Choice, pack: int, alignment: str, packs: int) -> CudaPlan:
    tuning = choice.tuning
    threads = tuning.threads or WARP_THREADS
    lanes = tuning.lanes or lanes_of_row(choice, pack, alignment)
    per_lane = -(-packs // lanes)
    rows = tuning.rows or 1
    exact = alignment == "whole" and per_lane * lanes * pack == choice.problem.length
    shape: dict[str, int | str | bool] = {
        "axes": len(choice.kept_axes),
        "threads": threads,
        "lanes": lanes,
        "packs": per_lane,
        "rows": rows,
        "pack": pack,
        "alignment": alignment,
        "padded": tuning.padded or not exact,
    }
    choice.why.append(f"{lanes} lanes hold it in {per_lane} packs each: read once, and no barrier")
    return build(
        choice,
        "warp",
        "warp.h",
        "warp",
        "Warp",
        shape,
        threads=threads,
        shared_bytes=0,
        units=choice.problem.rows,
        units_per_block=threads // lanes * rows,
        axes=choice.kept_axes,
        reads=1,
        waves=ONCE,
    )


def _plan_block(choice: Choice, pack: int, alignment: str, packs: int) -> CudaPlan:
    problem, tuning = choice.problem, choice.tuning
    threads = tuning.threads or 64
    # log_softmax of 32768x4096 bfloat16 measured 1.05x on an H200.
    roomy = not choice.elementwise or (problem.op == "log_softmax" and choice.x_size == 2)
    held = MOST_BLOCK_REGISTERS if roomy else BLOCK_REGISTERS
    per_thread = max(1, held // choice.registers_per_element // pack)
    if _few_long_lanes(choice, packs, pack):
        fewer = problem.rows <= FEWER_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors
        per_thread = min(per_thread, 1 if fewer else 2)
    while tuning.threads is None and threads < 1024 and packs > threads * per_thread:
        threads *= 2
    if tuning.threads is None and _half_as_many_do(choice, packs, pack, threads):
        threads //= 2
    if tuning.threads is None and roomy and choice.x_size == 2 and choice.registers_per_element == 1:
        threads = _whole_warps(choice, packs, per_thread, threads)
    if tuning.threads is None:
        threads = max(threads, _fewest_threads(choice, packs))
    per_thread = -(-packs // threads)
    exact = alignment == "whole" and per_thread * threads * pack == problem.length
    shape: dict[str, int | str | bool] = {
        "axes": len(choice.kept_axes),
        "threads": threads,
        "packs": per_thread,
        "pack": pack,
        "alignment": alignment,
        "padded": tuning.padded or not exact,
    }
    choice.why.append(f"{threads} threads hold it in {per_thread} packs each: read once")
    return build(
        choice,
        "block",
        "block.h",
        "block",
        "Block",
        shape,
        threads=threads,
        shared_bytes=0,
        units=choice.problem.rows,
        units_per_block=1,
        axes=choice.kept_axes,
        reads=1,
        waves=ONCE,
    )


def _half_as_many_do(choice: Choice, packs: int, pack: int, threads: int) -> bool:
    """Whether half of the threads are faster: of all of them most would have a pack less than others, or too little."""
    problem = choice.problem
    most, few = HELD_BY_HALF.get((problem.op, choice.x_size), (0, 0))
    most = HELD_BY_HALF_OF.get((problem.op, choice.x_size, threads), most)
    fits = choice.registers_per_element == 1 and ceil_div(packs, threads // 2) * pack <= most
    return fits and threads > WARP_THREADS and problem.rows > few * choice.device.multiprocessors


def _whole_warps(choice: Choice, packs: int, per_thread: int, threads: int) -> int:
    """Threads of a block, or fewer, as many warps as there is something to hold for, no power of two."""
    if choice.problem.rows <= FEW_ROWS_PER_MULTIPROCESSOR * choice.device.multiprocessors:
        return threads
    fewer = max(64, 32 * ceil_div(packs, 32 * per_thread))
    return fewer if fewer * ceil_div(packs, fewer) < threads * ceil_div(packs, threads) else threads


def _fewest_threads(choice: Choice, packs: int) -> int:
    """Of a block: what a row that has a multiprocessor to itself is worth."""
    if choice.x_size != 4 or choice.problem.rows > choice.device.multiprocessors:
        return 1
    return min(LONE_ROW_THREADS, ceil_power(ceil_div(packs, LONE_ROW_PACKS)))


def _plan_loop(choice: Choice, algorithm: str, pack: int, alignment: str, smem_bytes: int) -> CudaPlan:
    """One block per row that walks the row, two or three times."""
    lone = choice.problem.rows <= choice.device.multiprocessors
    lone_in_smem = lone or _rows_in_shared_memory(choice, smem_bytes) < 2
    header, shape_type, threads, reads = {
        "block_smem": ("block_smem", "BlockSmem", LONE_THREADS if lone_in_smem else LOOP_THREADS, 1),
        "online": ("online", "Online", LONE_THREADS if lone else LOOP_THREADS, 2),
        "block_uncached": ("three_pass", "ThreePass", LOOP_THREADS, 3),
        "three_pass": ("three_pass", "ThreePass", SEED_THREADS, 3),
    }[algorithm]
    if algorithm == "three_pass" and choice.tuning.pack is None:
        pack, alignment = 1, "whole"
        choice.why[:] = ["the textbook's kernel, to compare with: element by element, three reads"]
    if choice.problem.op == "logsumexp" and algorithm != "block_smem":
        reads -= 1
    if choice.problem.op == "logsumexp" and algorithm == "online":
        threads = _online_threads(choice, choice.problem.length // pack)
    threads = choice.tuning.threads or threads
    shape: dict[str, int | str | bool] = {
        "axes": len(choice.kept_axes),
        "threads": threads,
        "pack": pack,
        "alignment": alignment,
    }
    return build(
        choice,
        algorithm,
        f"{header}.h",
        header,
        shape_type,
        shape,
        threads=threads,
        shared_bytes=smem_bytes if algorithm == "block_smem" else 0,
        units=choice.problem.rows,
        units_per_block=1,
        axes=choice.kept_axes,
        reads=reads,
    )


def _comes_at_once(choice: Choice, held: int) -> bool:
    """Whether logarithms of sums of rows, of which so many elements are held, wait for memory no more than once."""
    problem, size = choice.problem, choice.x_size
    most = HELD_LOGSUMEXP_BYTES_PER_MULTIPROCESSOR * choice.device.multiprocessors
    few = problem.rows * problem.length * size <= most
    return few and choice.registers_per_element == 1 and held * size <= MOST_HELD_LOGSUMEXP_OF_FEW


def _short_halves(choice: Choice, held: int) -> bool:
    """Whether rows of 16-bit elements, so many of which are held, are better held than walked along."""
    rows = choice.problem.rows / choice.device.multiprocessors
    least = next((least for most, least in FEWEST_HELD_HALVES if rows <= most), held + 1)
    short = choice.x_size == 2 and choice.registers_per_element == 1
    return short and least <= held <= MOST_HELD_HALVES


def _online_threads(choice: Choice, packs: int) -> int:
    """Threads for a row that is read once."""
    rows = ceil_div(max(1, choice.problem.rows), choice.device.multiprocessors)
    wanted, least = ONLINE_THREADS, ONLINE_PACKS
    if rows <= MOST_ONLINE_AT_ONCE:  # no block waits for its turn
        wanted, least = floor_power(ONLINE_THREADS_PER_MULTIPROCESSOR // rows), ONLINE_PACKS // 2
    return max(32, min(wanted, floor_power(packs // least)))
