"""The GPU half. Importing it needs no GPU, no driver and no CUDA package; they are asked for when a kernel is."""

from .._engine import CudaError
from .compile import CompileError
from .kernel_plan import Functor
from .launch import precompile
from .prepared import Prepared, prepare
from .tuning import Tuning

__all__ = ["CompileError", "CudaError", "Functor", "Prepared", "Tuning", "precompile", "prepare"]
