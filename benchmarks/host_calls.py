"""What a call on a tiny tensor costs the host, without a gradient, where one is recorded, and with its backward pass:
torch's operators, the same while onepass.install routes them, and onepass, with and without what `onepass
build-torch-extension` builds.

    python benchmarks/host_calls.py [--device cuda] [--json F]

Needs torch and a C++ compiler. 8 x 8 float32; windows of 10 ms in a new random order each round, medians of 41;
`of_torch` are medians of ratios within a round.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch

import onepass
from onepass.bench import timing
from onepass.torch import extension, tensors

_EFFORT = timing.Effort(rounds=41, most_rounds=41, window_seconds=0.01)


class InstalledTimer(timeit.Timer):
    """Of calls while torch's operators are routed; putting routes in place is not timed."""

    def timeit(self, number: int = 1) -> float:
        with onepass.installed():
            return super().timeit(number)


class ExtensionTimer(timeit.Timer):
    """Of calls with the extension."""

    def __init__(self, call: Callable[[], torch.Tensor], built: ModuleType) -> None:
        super().__init__(call)
        self._built = built

    def timeit(self, number: int = 1) -> float:
        tensors.use_extension(self._built)
        try:
            return super().timeit(number)
        finally:
            tensors.use_extension(None)


def build() -> ModuleType:
    """The extension, built for this run alone."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, ONEPASS_CACHE_DIR=folder):
        extension.build()
        built = extension.load()
    assert built is not None
    return built


def calls(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    """By what is called, and what for."""
    x = torch.randn(8, 8, device=device)
    leaf = x.clone().requires_grad_()
    dy = torch.ones_like(x)
    found: dict[str, Callable[[], torch.Tensor]] = {}
    for name, module in (("torch", torch), ("onepass", onepass)):
        for op in ("softmax", "log_softmax", "logsumexp"):
            function = getattr(module, op)
            found[f"{op}: {name}"] = lambda function=function: function(x, 1)
            found[f"{op}, recorded: {name}"] = lambda function=function: function(leaf, 1)
        function = module.softmax
        found[f"softmax and backward: {name}"] = lambda function=function: torch.autograd.grad(
            function(leaf, 1), leaf, dy
        )
    return found


def of_torch(name: str, timings: dict[str, timing.Timing]) -> float:
    """A call's time over that of torch's operator, which is not routed, in the same round: a processor's clock changes
    from one to the next."""
    torchs = timings[f"{name.partition(':')[0]}: torch"]
    return statistics.median(a.seconds / b.seconds for a, b in zip(timings[name].windows, torchs.windows, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="F")
    options = parser.parse_args()
    onepass.softmax(torch.zeros(1))  # from here on onepass knows torch
    os.environ["ONEPASS_BUILD_EXTENSION"] = "0"  # beside what is timed
    built = build()
    tensors.use_extension(None)
    timers: dict[str, timeit.Timer] = {}
    for name, call in calls(options.device).items():
        timers[name] = timeit.Timer(call)
        timers[f"{name}, installed"] = InstalledTimer(call)
        if "onepass" in name:
            timers[f"{name}, extension"] = ExtensionTimer(call, built)
    for timer in timers.values():
        timer.timeit(3)  # plans, imports, compiles
    timings = timing.interleave(timers, _EFFORT, seed=0)
    found = {
        "torch": torch.__version__,
        "onepass": onepass.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu",
        "microseconds": {name: round(timings[name].median * 1e6, 2) for name in sorted(timings)},
        "of_torch": {name: round(of_torch(name, timings), 3) for name in sorted(timings) if ": onepass" in name},
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
