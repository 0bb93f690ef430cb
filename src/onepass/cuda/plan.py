"""The GPU half of the planner: a Problem and a Device in, a CudaPlan out. Pure Python; no device is needed."""

from __future__ import annotations

import math

from ..problem import ITEMSIZE, Axis, Problem
from .device import Device
from .kernel_plan import BLOCK_SCRATCH, Choice, CudaPlan, Functor, Tuning, build

__all__ = ["ADDRESS_MODULUS", "ALGORITHMS", "CudaPlan", "Functor", "Tuning", "make_cuda_plan"]

ALGORITHMS = ("warp", "block", "block_smem", "online", "block_uncached", "three_pass", "strided")
_REDUCTIONS = ("sum", "mean", "amax", "amin")

# Every threshold of the planner, with what it rests on. "modelled": from registers, occupancy and Little's law, to be
# measured where a GPU is.
#
# Bytes of one access. 256-bit accesses of sm_100 are not used yet.
_ACCESS_BYTES = 16
# Elements that a thread may hold of a row, in registers of 32 bits: a lane of a group ... (modelled: 32 values and what
# exponentials need leave 48 warps on a multiprocessor)
_WARP_REGISTERS = 32
# ... or a thread of a block; the larger number where 1024 threads are not enough otherwise, and where nothing is
# written: logsumexp of 32768x4096 bfloat16 measured 1.09x on an H100.
_BLOCK_REGISTERS = 16
_MOST_BLOCK_REGISTERS = 32
# What `algorithm=` and tuning may ask for.
_FORCED_WARP_REGISTERS = 64
# Rows up to this many elements that do not start on pack boundaries are read with narrower packs that they do start on:
# a head and a tail would be most of the row (modelled).
_NARROW_LENGTH = 128
# Rows longer than this are reduced by a block, shorter ones by a group of lanes: a warp then reads 8 packs a lane.
_WARP_REDUCE_PACKS = 32 * 8
_WARP_THREADS = 128  # 64 and 256 measured within 1% on an H100
_LOOP_THREADS = 512
# A multiprocessor that has one block to run wants it large. Measured on an H100: online of 128 rows of 65536 to 1048576
# float32, 1.06x to 1.15x over 512 threads; block_smem of 16384 rows of 32768 float32, of which one fits at a time,
# 1.18x, but 0.72x to 0.74x where several fit; strided tiles, 2x128256x16 float32, 2.3x over 256.
_LONE_THREADS = 1024
_SEED_THREADS = 256  # the textbook kernel's
# Bytes across a tile of a strided problem, widest first; 32 is what memory fetches at least.
_TILE_BYTES = (128, 64, 32)
# A thread of a tile has at least this many steps, where rows are long enough: their loads are in flight together.
_STEPS_PER_THREAD = 4
# Tiles take threads until a multiprocessor has this many: measured on an H100 against 128 or 256 for all, 1.1x
# (8x21x512x512, 64x1000x196 float32) to 1.55x (16x150x128x128 bfloat16), 1.2x for the sum of 32x256x56x56; none lost
# more than 1%.
_TILE_THREADS_PER_MULTIPROCESSOR = 1024
_FEWEST_TILE_THREADS = 64
# Addresses are known modulo this many bytes.
ADDRESS_MODULUS = 128


def make_cuda_plan(
    problem: Problem,
    device: Device,
    algorithm: str | None = None,
    *,
    addresses: tuple[int, int] | None = None,
    load: Functor | None = None,
    store: Functor | None = None,
    tuning: Tuning | None = None,
) -> CudaPlan:
    """The plan for a problem; `algorithm` forces one, or is refused with the reason it cannot serve.

    addresses: those of input and result, modulo 128 or in full: a plan holds for all that are equal modulo 128. Without
    them the plan serves any address that is a multiple of the element's size, and gives up wide accesses for it.
    """
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise ValueError(f"{problem.op}: unknown algorithm {algorithm!r}; choose from {', '.join(ALGORITHMS)}")
    x_past, y_past = (None, None) if addresses is None else (a % ADDRESS_MODULUS for a in addresses)
    choice = Choice(
        problem, device, algorithm, x_past, y_past, load or Functor(), store or Functor(), tuning or Tuning(), []
    )
    if not _rows_lie_together(choice):
        if algorithm not in (None, "strided"):
            raise choice.refuse("the elements of a row do not lie side by side in input and result")
        return _plan_strided(choice)
    if algorithm == "strided":
        return _plan_strided(choice)
    return _plan_reduction(choice) if problem.op in _REDUCTIONS else _plan_rows(choice)


def _rows_lie_together(choice: Choice) -> bool:
    problem = choice.problem
    if len(problem.reduce) > 1 or (problem.reduce and problem.reduce[0].x_stride != 1):
        return problem.length == 0
    return not choice.elementwise or not problem.reduce or problem.reduce[0].y_stride == 1


def _alignment(choice: Choice, pack: int) -> str:
    """pack.h's Alignment of rows cut into packs of that many elements."""
    problem, axes = choice.problem, choice.problem.outer
    if pack == 1:
        return "whole"
    x, y = choice.x_past, choice.y_past
    x_place = None if x is None else x // choice.x_size % pack
    whole = problem.length % pack == 0 and x_place == 0 and all(a.x_stride % pack == 0 for a in axes)
    if not choice.elementwise:
        return "whole" if whole else "peeled"
    y_place = None if y is None else y // choice.y_size % pack
    if whole and y_place == 0 and all(a.y_stride % pack == 0 for a in axes):
        return "whole"
    together = x_place is not None and x_place == y_place
    return "peeled" if together and all((a.x_stride - a.y_stride) % pack == 0 for a in axes) else "apart"


def _widest_pack(choice: Choice) -> int:
    """Elements of which the narrower type takes a full access."""
    return _ACCESS_BYTES // (min(choice.x_size, choice.y_size) if choice.elementwise else choice.x_size)


def _row_pack(choice: Choice) -> tuple[int, str]:
    """Elements per access and the alignment that follows."""
    if choice.tuning.pack is not None:
        return choice.tuning.pack, _alignment(choice, choice.tuning.pack)
    pack = _widest_pack(choice)
    alignment = _alignment(choice, pack)
    if alignment == "whole":
        choice.why.append(f"rows of {choice.problem.length} are whole packs of {pack}: every access is full width")
    elif choice.problem.length <= _NARROW_LENGTH:
        while _alignment(choice, pack) != "whole":
            pack //= 2
        alignment = "whole"
        choice.why.append(f"short rows off the boundaries of wider packs: packs of {pack}")
    elif alignment == "peeled":
        choice.why.append(f"rows of {choice.problem.length} start off pack boundaries: head and tail go by element")
    else:
        choice.why.append("input and result may lie differently to pack boundaries: only the result goes by packs")
    return pack, alignment


def _ceil_power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


# ---- softmax, log_softmax, logsumexp of rows that lie side by side ----


def _plan_rows(choice: Choice) -> CudaPlan:
    problem, tuning = choice.problem, choice.tuning
    pack, alignment = _row_pack(choice)
    packs = max(1, problem.length // pack)  # a peeled row has no more whole packs than that
    limit = _FORCED_WARP_REGISTERS if choice.algorithm == "warp" else _WARP_REGISTERS
    # Held per thread: whole packs, and the edges of a peeled row.
    warp_packs = limit // choice.registers_per_element // pack
    most_threads = tuning.threads or 1024
    block_packs = max(1, _MOST_BLOCK_REGISTERS // choice.registers_per_element // pack)
    smem_bytes = (packs + 2 * (alignment != "whole")) * pack * choice.kept_size  # two packs' room for the edges
    fits_smem = smem_bytes + BLOCK_SCRATCH <= choice.device.shared_per_block
    # Of blocks that hold a row in 32 registers a thread, one is resident, with nothing to do while it waits: of
    # block_smem several may be. Measured on an H100, 16384 rows of 32768 bfloat16: 1.06x.
    several_fit = problem.op != "logsumexp" and _rows_in_shared_memory(choice, smem_bytes) >= 2
    chosen = choice.algorithm
    if chosen is None:
        if packs <= 32 * warp_packs:
            chosen = "warp"
            choice.why.append(f"a row of {problem.length} fits the registers of a warp: {limit} per lane")
        elif packs <= most_threads * block_packs // 2 or (packs <= most_threads * block_packs and not several_fit):
            chosen = "block"
            choice.why.append(f"a row of {problem.length} fits the registers of a block")
        elif problem.op == "logsumexp":
            chosen = "online"
            choice.why.append("a running maximum and sum need the row once, wherever it waits")
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


def _rows_in_shared_memory(choice: Choice, smem_bytes: int) -> int:
    return choice.device.shared_per_multiprocessor // (smem_bytes + 2 * BLOCK_SCRATCH)


def _plan_warp(choice: Choice, pack: int, alignment: str, packs: int) -> CudaPlan:
    tuning = choice.tuning
    threads = tuning.threads or _WARP_THREADS
    lanes = tuning.lanes or min(32, _ceil_power(packs))
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
    )


def _plan_block(choice: Choice, pack: int, alignment: str, packs: int) -> CudaPlan:
    tuning = choice.tuning
    threads = tuning.threads or 64
    held = _BLOCK_REGISTERS if choice.elementwise else _MOST_BLOCK_REGISTERS
    per_thread = max(1, held // choice.registers_per_element // pack)
    while tuning.threads is None and threads < 1024 and packs > threads * per_thread:
        threads *= 2
    per_thread = -(-packs // threads)
    exact = alignment == "whole" and per_thread * threads * pack == choice.problem.length
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
    )


def _plan_loop(choice: Choice, algorithm: str, pack: int, alignment: str, smem_bytes: int) -> CudaPlan:
    """One block per row that walks the row, two or three times."""
    lone = choice.problem.rows <= choice.device.multiprocessors
    lone_in_smem = lone or _rows_in_shared_memory(choice, smem_bytes) < 2
    header, shape_type, threads, reads = {
        "block_smem": ("block_smem", "BlockSmem", _LONE_THREADS if lone_in_smem else _LOOP_THREADS, 1),
        "online": ("online", "Online", _LONE_THREADS if lone else _LOOP_THREADS, 2),
        "block_uncached": ("three_pass", "ThreePass", _LOOP_THREADS, 3),
        "three_pass": ("three_pass", "ThreePass", _SEED_THREADS, 3),
    }[algorithm]
    if algorithm == "three_pass" and choice.tuning.pack is None:
        pack, alignment = 1, "whole"
        choice.why[:] = ["the textbook's kernel, to compare with: element by element, three reads"]
    if choice.problem.op == "logsumexp" and algorithm != "block_smem":
        reads -= 1
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


# ---- sum, mean, amax, amin of rows that lie side by side ----


def _plan_reduction(choice: Choice) -> CudaPlan:
    problem, tuning = choice.problem, choice.tuning
    if choice.algorithm not in (None, "warp", "block"):
        raise choice.refuse("a plain reduction reads once: `warp`, `block` or `strided`")
    pack, alignment = _row_pack(choice)
    packs = max(1, problem.length // pack)
    chosen = choice.algorithm or ("warp" if packs <= _WARP_REDUCE_PACKS else "block")
    if chosen == "warp":
        threads = tuning.threads or _WARP_THREADS
        lanes = tuning.lanes or min(32, _ceil_power(packs))
        choice.why.append(f"{packs} packs are few enough for {lanes} lanes of a warp")
    else:
        threads = tuning.threads or (256 if packs <= 256 * 8 else _LOOP_THREADS)
        lanes = threads
        choice.why.append(f"{packs} packs are shared out among {threads} threads")
    shape: dict[str, int | str | bool] = {
        "axes": len(choice.kept_axes),
        "threads": threads,
        "lanes": lanes,
        "pack": pack,
        "alignment": alignment,
    }
    return build(
        choice,
        chosen,
        "row_reduce.h",
        f"{chosen}_reduce",
        "RowReduce",
        shape,
        threads=threads,
        shared_bytes=0,
        units=problem.rows,
        units_per_block=threads // lanes,
        axes=choice.kept_axes,
        reads=1,
    )


# ---- any strides ----


def _plan_strided(choice: Choice) -> CudaPlan:
    problem, tuning = choice.problem, choice.tuning
    plain = problem.op in _REDUCTIONS
    kept = _inner_last(choice.kept_axes)
    pack = tuning.pack or _strided_pack(choice, kept)
    # A tile is worth its shared memory where the row is needed again.
    may_stage = choice.elementwise and tuning.staged is not False
    across, threads, staged = _tile(choice, pack, may_stage)
    threads = tuning.threads or threads
    tile_bytes = problem.length * across * pack * choice.kept_size
    reduced = problem.reduce or (Axis(problem.length, 1, 1),)
    shape: dict[str, int | str | bool] = {
        "kept_axes": len(kept),
        "reduced_axes": len(reduced),
        "threads": threads,
        "across": across,
        "pack": pack,
        "staged": staged,
    }
    choice.why.append(f"{across} threads lie across rows that are {kept[-1].x_stride} apart in memory, {pack} each")
    if staged:
        choice.why.append(f"a tile of {problem.length} steps takes {tile_bytes} bytes of shared memory: read once")
    elif choice.elementwise:
        choice.why.append(f"a tile of {problem.length} steps does not wait in shared memory: read twice")
    else:
        choice.why.append("a reduction needs every element once")
    return build(
        choice,
        "strided",
        "strided.h",
        "strided_reduce" if plain else "strided",
        "Strided",
        shape,
        threads=threads,
        shared_bytes=tile_bytes if staged else 0,
        units=problem.rows,
        units_per_block=across * pack,
        axes=(*kept, *reduced),
        reads=2 if choice.elementwise and not staged else 1,
    )


def _inner_last(kept: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axis that is fastest in the input goes last: threads lie side by side along it."""
    moving = [a for a in kept if a.x_stride]
    if not moving:
        return kept
    inner = min(moving, key=lambda a: abs(a.x_stride))
    rest = list(kept)
    rest.remove(inner)
    return (*rest, inner)


def _strided_pack(choice: Choice, kept: tuple[Axis, ...]) -> int:
    """The widest pack along the inner axis that starts on its boundary everywhere, in input and result."""
    inner = kept[-1]
    if inner.x_stride != 1 or inner.y_stride != 1 or choice.x_past is None or choice.y_past is None:
        return 1
    numbers = [inner.size, choice.x_past // choice.x_size, choice.y_past // choice.y_size]
    numbers += [n for a in (*kept[:-1], *choice.problem.reduce) for n in (a.x_stride, a.y_stride)]
    return math.gcd(_ACCESS_BYTES // min(choice.x_size, choice.y_size), *numbers)


def _tile(choice: Choice, pack: int, may_stage: bool) -> tuple[int, int, bool]:
    """Threads across a tile, threads of its block, and whether it waits in shared memory: the widest that does."""
    length, size, device = choice.problem.length, choice.kept_size, choice.device
    most_across = min(32, _ceil_power(-(-choice.problem.rows // pack)))
    most_steps = 1 << max(1, length // _STEPS_PER_THREAD).bit_length() - 1

    def cut(width: int, wanted: int) -> tuple[int, int, int]:
        """(across, threads, bytes of shared memory) of a tile of that many bytes across."""
        across = min(most_across, max(1, width // (size * pack)))
        steps = min(most_steps, max(1, wanted // across))
        if across * steps < wanted:  # short rows: a wider tile instead of idle threads
            across = min(most_across, max(across, _FEWEST_TILE_THREADS // steps))
        threads = max(32, across * steps)
        scratch = 2 * (threads // 32) * across * pack * 2 * ITEMSIZE[choice.problem.compute_dtype]
        return across, threads, length * across * pack * size + scratch

    if may_stage:
        for width in _TILE_BYTES:
            resident = device.shared_per_multiprocessor // (length * width + 2 * BLOCK_SCRATCH)
            wanted = _ceil_power(_TILE_THREADS_PER_MULTIPROCESSOR // max(1, resident))
            across, threads, needed = cut(width, min(_LOOP_THREADS, max(_FEWEST_TILE_THREADS, wanted)))
            if needed <= device.shared_per_multiprocessor // 2 - BLOCK_SCRATCH:  # two blocks on a multiprocessor
                return across, threads, True
        across, threads, needed = cut(_TILE_BYTES[-1], _LOOP_THREADS)
        if needed <= device.shared_per_block:
            return across, threads, True
    across, _, _ = cut(_TILE_BYTES[0], _WARP_THREADS)
    tiles = -(-choice.problem.rows // (across * pack))
    wanted = _ceil_power(_TILE_THREADS_PER_MULTIPROCESSOR * device.multiprocessors // max(1, tiles))
    # 1024 threads have 64 registers each: too few for wide tiles of running maxima and sums.
    most = _LONE_THREADS if choice.registers_per_element == 1 and pack <= 4 else _LOOP_THREADS
    across, threads, _ = cut(_TILE_BYTES[0], min(most, max(_WARP_THREADS, wanted)))
    return across, threads, False
