"""The GPU half. Importing it needs no GPU, no driver and no CUDA package; they are asked for when a kernel is."""

from .._engine import CudaError
from .compile import CompileError
from .kernel_plan import Functor, Tuning
from .launch import precompile
from .prepared import Prepared, prepare

__all__ = ["CompileError", "CudaError", "Functor", "Prepared", "Tuning", "precompile", "prepare"]
