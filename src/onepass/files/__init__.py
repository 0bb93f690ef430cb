"""Arrays in files: .npy, .npz and .safetensors, read, computed and written in bounded memory."""

from .jobs import OPS, Op, Request
from .run import Summary, run_file
from .tensor import FLOATS, FileError, UsageError

__all__ = ["FLOATS", "OPS", "FileError", "Op", "Request", "Summary", "UsageError", "run_file"]
