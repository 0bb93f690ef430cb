"""CudaPlan: the value that says which kernel serves a problem on a GPU and how it is launched. What a plan says is what
is compiled and launched, nothing else."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..problem import ELEMENTWISE, GRADIENTS, ITEMSIZE, REDUCTIONS, Axis, Problem
from .device import Device
from .rounding import ceil_div
from .thresholds import ACCESS_BYTES
from .tuning import Tuning

# Of cuda.core.ProgramOptions: what the headers are written for. No contraction: they say fma where they mean it, and
# what a functor multiplies must not be rounded one way in one pass over a row and another way in the next. Minimal:
# without the types of textures and the like, which take 50 ms. Device as default: NVRTC 13.0 takes some generic lambdas
# in kernels for functions of the host.
COMPILER_OPTIONS: Mapping[str, Any] = {
    "std": "c++20",
    "fma": False,
    "minimal": True,
    "device_as_default_execution_space": True,
}
DIRECT, SCALED = "onepass::cuda::Direct", "onepass::cuda::Scaled"
# Static shared memory of the reductions of a block: two places for 32 warps of 16 bytes.
BLOCK_SCRATCH = 1024
LINE_BYTES = 128  # of a cache line
# As many times the blocks that are resident at once, then blocks take further rows. OneFlow's number is 32; measured on
# an H100 against a block for every row of 49152, 8 waves lost 1% to 4%, 32 lost 0.5% (4096 float32) to 1.6% (8192
# bfloat16).
WAVES = 1024
# Or a block for all its rows: what it takes to step on costs a small problem 0.1 of 4 us (H200, rows of up to 8192).
ONCE = 0
MOST_BLOCKS = (1 << 31) - 1  # of a grid
TOTAL_SLOTS = 32  # of scratch memory for the total of a row: claims.h's kTotals
_OPS = {
    "softmax": "Softmax",
    "log_softmax": "LogSoftmax",
    "logsumexp": "LogSumExp",
    "sum": "RowSum",
    "mean": "RowMean",
    "amax": "RowMax",
    "amin": "RowMin",
    "softmax_backward": "SoftmaxBackward",
    "log_softmax_backward": "LogSoftmaxBackward",
}
# Fields of a gradient's kernels, and the array that each is about.
_NARROW = {"wide_dy": "dy", "wide_saved": "what was saved"}
_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "onepass::cuda::half",
    "bfloat16": "onepass::cuda::bfloat16",
}


@dataclass(frozen=True)
class Functor:
    """What every element passes on its way into a kernel or out of it: a C++ type, its fields, its text if it is yours.

    >>> Functor("onepass::cuda::Scaled", (0.5,)).words
    (4602678819172646912,)
    >>> squared = Functor("Squared", source='''
    ... struct Squared {
    ...     template <class C>
    ...     __device__ C operator()(C x, long long row, long long column) const { return x * x; }
    ... };''')

    Parameters
    ----------
    type : the C++ type: one of load_store.h's, or that of `source`. It is called with the element, in what is computed
        in, and with where the element is: the number of its row and its place in the row, both in the order of the
        dims of the array, whatever its strides (arrays and results in another order in memory are refused where that is
        not so)
    fields : the values of its fields, in order: a float is a `double`, an int a `long long`, an array on a GPU a
        pointer to its first element; the array must live as long as calls are made
    source : the type's C++ text
    """

    type: str = DIRECT
    fields: tuple[Any, ...] = ()
    source: str = ""

    @property
    def asks_where(self) -> bool:
        """Whether what comes out may depend on where an element is."""
        return self.type not in (DIRECT, SCALED)

    @property
    def words(self) -> tuple[int, ...]:
        """The fields as the kernel finds them: 8 bytes each."""
        return tuple(map(_word, self.fields))


def _word(field: Any) -> int:
    if isinstance(field, float):
        return int.from_bytes(struct.pack("<d", field), "little", signed=True)
    interface = getattr(field, "__cuda_array_interface__", None)  # of arrays, which have __index__ too
    if interface is not None:
        return int(interface["data"][0])
    if not hasattr(field, "__index__"):
        raise TypeError(
            f"Functor: a field is a {type(field).__name__}; expected float, int, or an array on a GPU that has "
            "__cuda_array_interface__"
        )
    return int(field.__index__())


@dataclass(frozen=True)
class CudaPlan:
    """How one problem is run on a GPU. Equal problems on equal devices have equal plans."""

    algorithm: str
    header: str  # to be included
    kernel: str  # name expression: the instantiation to compile
    source: str  # text of functors, to come before the header
    threads: int
    cluster: int
    shared_bytes: int  # dynamic
    units: int
    units_per_block: int
    waves: int  # the grid is no larger than this many times the blocks that are resident at once; ONCE: as units need
    arrays: int  # whose addresses come first in the Job: the input, the result, then what else is read
    words: tuple[int, ...]  # the Job after these; where blocks share a row, the last is the address of scratch memory
    shape: tuple[tuple[str, int | str], ...]  # the kernel's parameters
    reads: int
    input_bytes: int
    result_bytes: int
    team: int = 0  # blocks that share a row through memory, all teams of a launch at work at once; 0: none do
    # Of memory that such blocks share, for each; clusters have a counter of rows there, no more. Where blocks claim
    # slices, for each of unit_slots.
    scratch_bytes: int = 0
    why: tuple[str, ...] = field(default=(), compare=False)

    @property
    def shared_by(self) -> int:
        """Blocks that share a row: of a team or of a cluster; 0: none do."""
        return self.team or (self.cluster if self.cluster > 1 else 0)

    @property
    def hands_out(self) -> bool:
        """Whether clusters take rows from a counter, whose address is the last of the words."""
        return dict(self.shape).get("handed") == "true"

    @property
    def claims(self) -> bool:
        """Whether blocks claim the slices of rows one after the other."""
        return "each_reads" in dict(self.shape)

    @property
    def moved_bytes(self) -> int:
        """Bytes through main memory, if nothing is found in L2."""
        return self.input_bytes * self.reads + self.result_bytes

    def blocks(self, resident_per_multiprocessor: int, multiprocessors: int) -> int:
        """The grid, from the blocks of this kernel that one multiprocessor holds; 0 when there is nothing to do."""
        resident = max(1, resident_per_multiprocessor) * multiprocessors
        units = -(-self.units // self.units_per_block // self.cluster) * self.cluster
        if self.claims:
            return min(units * self.team, max(resident, self.team))
        if self.team:
            return min(units, max(1, resident // self.team)) * self.team
        if self.waves == ONCE:
            return units
        # Clusters: as many as fit, if no multiprocessor is left over.
        return min(units, max(1, resident // self.cluster) * self.cluster * self.waves)

    @property
    def unit_slots(self) -> int:
        """Of scratch memory for each row whose slices blocks claim: one for each slice, and those of its total."""
        if not self.claims:
            return 0
        return self.team + (0 if dict(self.shape)["each_reads"] == "true" else TOTAL_SLOTS)

    def slots(self, grid: int) -> int:
        """In scratch memory, of scratch_bytes each, of a launch of so many blocks that meet there."""
        return self.units * self.unit_slots if self.claims else grid

    def resident(self, device: Device, registers: int = 0) -> int:
        """Blocks that one multiprocessor holds: by threads, by shared memory and, if given, registers per thread."""
        if self.shared_by and not registers:
            # What the kernel is compiled for: one, where its shape does not say.
            return int(dict(self.shape).get("resident", 1))
        counts = [device.max_threads // self.threads, 32 if device.max_threads > 1536 else 24]
        counts.append(device.shared_per_multiprocessor // (self.shared_bytes + 2 * BLOCK_SCRATCH))
        if registers:
            counts.append(device.registers // (-(-registers // 8) * 8 * self.threads))
        return max(0, min(counts))

    def __str__(self) -> str:
        shape = dict(self.shape)
        access = f"packs of {shape['pack']}" if shape["pack"] != 1 else "one element"
        alignment = {
            "whole": "",
            "peeled": ", head and tail peeled",
            "apart": ", head and tail peeled, input not by packs",
        }[str(shape.get("alignment", "whole"))]
        narrow = [name for field, name in _NARROW.items() if shape.get(field) == "false"]
        alignment += f", {' and '.join(narrow)} by element" if narrow else ""
        if "most_columns" in shape:
            blocks = f"{self.team} blocks of {self.threads} for a run of memory"
            edges = "" if shape["whole"] == "true" else ", its ends by element"
            return f"{self.algorithm}: {blocks}, {access} each{edges}, {self._wait}"
        if "across" in shape:
            pack, sides = int(shape["pack"]), [n for side in ("across", "down") if (n := int(shape.get(side, 0)))]
            rows = " x ".join(str(threads * pack) for threads in sides)
            threads = " x ".join(map(str, (*sides, self.threads // math.prod(sides))))
            tile = f"tiles of {rows} rows, {threads} threads"
            blocks = f" of {self.shared_by} blocks" if self.shared_by else ""
            return f"{self.algorithm}: {tile}{blocks}, {access} each{alignment}, {self._wait}"
        if self.shared_by:
            many = f"{self.shared_by} block{'s' * (self.shared_by != 1)} of {self.threads}"
            packs = int(shape["packs"]) * max(1, int(shape.get("parts", 1))) + int(shape.get("waiting", 0))
            held = f"{packs} x {access} each" if packs else f"{access} each"
            return f"{self.algorithm}: {many} per row, {held}{alignment}, {self._wait}"
        lanes = int(shape.get("lanes", self.threads))
        of_warp = self.algorithm in ("warp", "warp_smem")
        unit = f"{lanes} lane{'s' * (lanes != 1)}" if of_warp else f"a block of {lanes}"
        held = f"{shape['packs']} x {access} each" if "packs" in shape else f"{access} each"
        rows = f", {shape['rows']} rows at a time" if shape.get("rows", 1) != 1 else ""
        part = "segment of a row" if "segment" in shape else "row"
        return f"{self.algorithm}: {unit} per {part}, {held}{alignment}{rows}, {self._wait}"

    @property
    def _wait(self) -> str:
        """Where a row waits between its passes."""
        if self.algorithm == "warp_smem":
            return f"by way of {self.shared_bytes} bytes of shared memory"
        if self.shared_bytes:
            part = "partly " if self.reads > 1 else "in registers and " if self.claims else ""
            return f"{part}in {self.shared_bytes} bytes of shared memory"
        if dict(self.shape).get("packs"):
            return "in registers"
        return "read once" if self.reads == 1 else f"kept nowhere, {self.reads} reads"


@dataclass(frozen=True)
class Team:
    """Blocks that share a row, as exchange.h's Team has it."""

    blocks: int
    slice: int  # of a row, for one block: in packs, or in steps
    scratch_bytes: int  # per block; 0: the blocks are a cluster

    @property
    def words(self) -> tuple[int, ...]:
        """Of exchange.h's Team, 8 bytes each; the last is the address of scratch memory."""
        inverse = ceil_div(1 << 32, self.blocks) if self.blocks > 1 else 0
        both = self.blocks | inverse << 32
        return both - (both >> 63 << 64), self.slice, 0


@dataclass
class Choice:
    """What the planner has been told, and the sentences it gives back."""

    problem: Problem
    device: Device
    algorithm: str | None
    x_past: int | None
    y_past: int | None
    z_past: int | None  # of a gradient's dy
    load: Functor
    store: Functor
    tuning: Tuning
    why: list[str]

    @property
    def x_size(self) -> int:
        return ITEMSIZE[self.problem.dtype]

    @property
    def y_size(self) -> int:
        return ITEMSIZE[self.problem.result_dtype]

    @property
    def z_size(self) -> int:
        assert self.problem.second_dtype is not None
        return ITEMSIZE[self.problem.second_dtype]

    @property
    def elementwise(self) -> bool:
        return self.problem.op in ELEMENTWISE

    @property
    def kind(self) -> str:
        """The operation, as thresholds tell operations apart: all that have no exponentials are alike to them."""
        return "plain" if self.problem.op in REDUCTIONS else self.problem.op

    @property
    def kept_axes(self) -> tuple[Axis, ...]:
        """At least one, so that every job has an axis of rows."""
        return self.problem.outer or (Axis(1, 0, 0),)

    @property
    def numbered(self) -> bool:
        """A functor is told the numbers of rows and columns: they have to be those of the dims."""
        return self.load.asks_where or self.store.asks_where

    @property
    def held_size(self) -> int:
        """Bytes of an element that waits in registers, beside others in a pack: 16 bits as read, if that is all that
        results show, and else as what is computed in (held_steps.h)."""
        as_read = self.x_size == self.y_size == 2 and self.load == Functor()
        return 2 if as_read else ITEMSIZE[self.problem.compute_dtype]

    @property
    def kept_size(self) -> int:
        """Bytes of an element that waits in shared memory: as read, or as a functor left it. Of a gradient, both its
        arrays' elements."""
        if self.problem.op in GRADIENTS:
            return self.x_size + self.z_size
        return self.x_size if self.load.type == DIRECT else ITEMSIZE[self.problem.compute_dtype]

    @property
    def access_pack(self) -> int:
        """Elements of which the narrowest type that goes by packs takes a full access."""
        sizes = [self.x_size]
        if self.elementwise:
            sizes.append(self.y_size)
        if self.problem.op in GRADIENTS:
            sizes.append(self.z_size)
        return ACCESS_BYTES // min(sizes)

    @property
    def kept_arrays(self) -> int:
        return 2 if self.problem.op in GRADIENTS else 1

    @property
    def registers_per_element(self) -> int:
        return ITEMSIZE[self.problem.compute_dtype] // 4

    def refuse(self, reason: str) -> ValueError:
        p, algorithm = self.problem, self.algorithm
        subject = f"algorithm {algorithm!r} cannot serve" if algorithm else "no kernel serves"
        remedy = "; leave algorithm=None to have one chosen" if algorithm else ""
        return ValueError(
            f"{p.op}: {subject} an input of shape {p.shape}, dtype {p.dtype}, dim {p.dims} on {self.device.name}: "
            f"{reason}{remedy}"
        )


def alignment_of(choice: Choice, pack: int, length: int, axes: tuple[Axis, ...]) -> str:
    """pack.h's Alignment of what lies side by side in all arrays, `length` elements at a time along these axes, cut
    into packs of that many elements."""
    if pack == 1:
        return "whole"
    places = [(choice.x_past, choice.x_size, [a.x_stride for a in axes])]
    if choice.elementwise:
        places.append((choice.y_past, choice.y_size, [a.y_stride for a in axes]))
    if choice.problem.op in GRADIENTS:
        places.append((choice.z_past, choice.z_size, [a.z_stride for a in axes]))
    begins = [None if past is None else [past // size % pack, *strides] for past, size, strides in places]
    if length % pack == 0 and all(b is not None and all(n % pack == 0 for n in b) for b in begins):
        return "whole"
    first, *others = begins
    for other in others:
        if first is None or other is None or any((m - n) % pack for m, n in zip(first, other, strict=True)):
            return "apart"
    return "peeled"


def line_packs(choice: Choice, pack: int) -> int:
    """Packs of a cache line of the array whose accesses are aligned: the result if that is a row."""
    return max(1, LINE_BYTES // (pack * (choice.y_size if choice.elementwise else choice.x_size)))


def edge_packs(choice: Choice, pack: int, alignment: str) -> int:
    """Packs' room that the edges of a row take in shared memory, at most: its head reaches to a cache line."""
    if alignment == "whole":
        return 0
    return line_packs(choice, pack) + 1


def _cpp(value: int | str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def build(
    choice: Choice,
    algorithm: str,
    header: str,
    function: str,
    shape_type: str,
    shape: dict[str, int | str | bool],
    *,
    threads: int,
    shared_bytes: int,
    units: int,
    units_per_block: int,
    axes: tuple[Axis, ...],
    reads: int,
    waves: int = WAVES,
    team: Team | None = None,
) -> CudaPlan:
    problem = choice.problem
    fields = ", ".join(
        f".{name} = onepass::cuda::Alignment::{value}" if name == "alignment" else f".{name} = {_cpp(value)}"
        for name, value in shape.items()
    )
    dtypes = [problem.dtype, problem.result_dtype]
    if problem.second_dtype is not None:
        dtypes = [problem.second_dtype, problem.dtype, *([problem.third_dtype] if problem.third_dtype else ())]
        dtypes.append(problem.result_dtype)
    arguments = [f"onepass::cuda::{_OPS[problem.op]}"] if problem.op in _OPS else []
    arguments += [*(_TYPES[dtype] for dtype in dtypes), f"onepass::cuda::{shape_type}{{{fields}}}"]
    if choice.load.type != DIRECT or choice.store.type != DIRECT:
        arguments += [choice.load.type, choice.store.type]
    arrays = len(dtypes)
    cluster = team.blocks if team and team.scratch_bytes == 0 else 1
    if waves == ONCE and -(-units // units_per_block) * cluster > MOST_BLOCKS:
        blocks = "a block" if cluster == 1 else f"{cluster} blocks"
        rows = "each of its rows" if units_per_block == 1 else f"{units_per_block} of its rows"
        raise choice.refuse(f"it takes {blocks} for {rows}, and a grid has {MOST_BLOCKS}")
    layout = [
        n
        for axis in axes
        for n in (axis.size, axis.x_stride, axis.y_stride, axis.z_stride, axis.w_stride)[: arrays + 1]
    ]
    sources = dict.fromkeys(f.source for f in (choice.load, choice.store) if f.source)
    return CudaPlan(
        algorithm=algorithm,
        header=f"onepass/cuda/{header}",
        kernel=f"onepass::cuda::{function}<{', '.join(arguments)}>",
        source="\n".join(sources),
        threads=threads,
        cluster=cluster,
        shared_bytes=shared_bytes,
        units=units * cluster if problem.length or not choice.elementwise else 0,
        units_per_block=units_per_block,
        waves=waves,
        arrays=arrays,
        words=(
            problem.rows,
            problem.length,
            *layout,
            *choice.load.words,
            *choice.store.words,
            *(team.words if team else ()),
        ),
        shape=tuple((name, _cpp(v) if isinstance(v, bool) else v) for name, v in shape.items()),
        reads=reads,
        input_bytes=problem.input_bytes,
        result_bytes=problem.result_bytes,
        team=team.blocks if team and cluster == 1 else 0,
        scratch_bytes=team.scratch_bytes if team else 0,
        why=tuple(choice.why),
    )
