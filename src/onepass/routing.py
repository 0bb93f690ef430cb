"""torch's own operators, computed by onepass. What is here imports torch only when it is called."""

from __future__ import annotations

from contextlib import AbstractContextManager


def install() -> None:
    """Route torch's softmax, log_softmax, logsumexp and their gradients to onepass, in the whole process.

    >>> import torch, onepass
    >>> onepass.install()
    >>> torch.nn.functional.softmax(torch.zeros(2), 0)
    tensor([0.5000, 0.5000])
    >>> onepass.installed_stats()["aten::_softmax"]
    {'onepass': 1, 'torch': 0}
    >>> onepass.uninstall()

    On CPUs and, where torch was built for them, NVIDIA GPUs: whatever reaches `aten::_softmax`, `_log_softmax`,
    `logsumexp`, `_safe_softmax`, and the gradients of the first two; so also cross_entropy, attention that is written
    out, and libraries above them. autograd, torch.func, autocast and the rest work as before: the operators are
    torch's own. Code that torch.compile generates itself does not call them. What onepass cannot serve (dtypes,
    subclasses), and what it would not serve faster, goes to torch's own kernels: see `installed_stats`. Again is no
    error. Not while other threads run torch: its dispatcher is changed.

    Raises RuntimeError for a torch before 2.10, which has no `torch.library.get_kernel`; ImportError without torch.

    Source: torch.library, "Extending or overriding operators".
    """
    from .torch import install

    install.install()


def uninstall() -> None:
    """Undo install: torch's kernels are as they were, except inside of `with onepass.installed()`.

    >>> import onepass
    >>> onepass.uninstall()
    """
    from .torch import install

    install.uninstall()


def installed() -> AbstractContextManager[None]:
    """A block in which torch's operators are routed to onepass, for all threads; blocks may be nested.

    >>> import torch, onepass
    >>> with onepass.installed():
    ...     y = torch.log_softmax(torch.zeros(2, 2), -1)
    >>> onepass.installed_stats()["aten::_log_softmax"]
    {'onepass': 1, 'torch': 0}

    Raises what install raises.
    """
    from .torch import install

    return install.installed()


def installed_stats() -> dict[str, dict[str, int]]:
    """Calls by operator since routes were last put in place, and by who served them: "onepass" or "torch".

    >>> import onepass
    >>> with onepass.installed():
    ...     sorted(onepass.installed_stats())[:2]
    ['aten::_log_softmax', 'aten::_log_softmax.out']

    Empty before the first install.
    """
    from .torch import install

    return install.installed_stats()
