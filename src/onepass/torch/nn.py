"""Drop-ins for torch.nn.Softmax and torch.nn.LogSoftmax."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..softmax import log_softmax as _log_softmax
from ..softmax import softmax as _softmax
from . import operators  # noqa: F401  what TorchScript calls

__all__ = ["LogSoftmax", "Softmax"]


class Softmax(nn.Softmax):
    """torch.nn.Softmax, computed by onepass.

    >>> import torch, onepass
    >>> onepass.nn.Softmax(dim=1)(torch.zeros(1, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])

    Parameters
    ----------
    dim : int, as in torch.nn.Softmax; None chooses as torch does, with its warning

    A subclass of torch's module without state of its own: state dicts and pickles of models that have one fit. It can
    be compiled, exported and scripted. Takes and returns what onepass.softmax does.

    Source: onepass.softmax.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The softmax of input along dim."""
        dim = self.dim
        if dim is None:
            dim = nn.functional._get_softmax_dim("softmax", input.dim(), 5)
        if torch.jit.is_scripting():
            return torch.ops.onepass.softmax(input, [dim])
        return _softmax(input, dim)


class LogSoftmax(nn.LogSoftmax):
    """torch.nn.LogSoftmax, computed by onepass.

    >>> import torch, onepass
    >>> onepass.nn.LogSoftmax(dim=1)(torch.zeros(1, 1))
    tensor([[0.]])

    Parameters
    ----------
    dim : int, as in torch.nn.LogSoftmax; None chooses as torch does, with its warning

    As onepass.nn.Softmax.

    Source: onepass.log_softmax.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The log_softmax of input along dim."""
        dim = self.dim
        if dim is None:
            dim = nn.functional._get_softmax_dim("log_softmax", input.dim(), 5)
        if torch.jit.is_scripting():
            return torch.ops.onepass.log_softmax(input, [dim])
        return _log_softmax(input, dim)
