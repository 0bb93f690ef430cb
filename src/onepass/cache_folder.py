"""Where what was compiled on this machine is kept: kernels (cuda/cache.py), the C++ of the PyTorch layer
(torch/extension.py)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

TEMPORARY = "writing-"  # how the name of a file begins until it is whole


def default_folder() -> Path | None:
    """ONEPASS_CACHE_DIR, else onepass in XDG_CACHE_HOME, else in ~/.cache; None for a user without a home."""
    if named := os.environ.get("ONEPASS_CACHE_DIR"):
        return Path(named).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the specification ignores relative ones
        return Path(base) / "onepass"
    try:
        return Path.home() / ".cache" / "onepass"
    except RuntimeError:
        return None


def only_mine(path: Path) -> bool:
    """Whether nobody but this user may write to a folder or file. Raises OSError where there is none."""
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
