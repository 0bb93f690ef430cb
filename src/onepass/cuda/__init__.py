"""The GPU half. Importing it needs no GPU, no driver and no CUDA package; they are asked for when a kernel is."""

from .compile import CompileError
from .kernel_plan import Functor

__all__ = ["CompileError", "Functor"]
