"""What a call on a tiny tensor costs the host, without a gradient, where one is recorded, and with its backward pass:
torch's operators, the same while onepass.install routes them, and onepass.

    python benchmarks/host_calls.py [--device cuda] [--json F]

Needs torch. 8 x 8 float32; windows of 10 ms in a new random order each round, medians of 41.
"""

import argparse
import json
import platform
import timeit
from collections.abc import Callable
from pathlib import Path

import torch

import onepass
from onepass.bench import timing

_EFFORT = timing.Effort(rounds=41, most_rounds=41, window_seconds=0.01)


class InstalledTimer(timeit.Timer):
    """Of calls while torch's operators are routed; putting routes in place is not timed."""

    def timeit(self, number: int = 1) -> float:
        with onepass.installed():
            return super().timeit(number)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, metavar="F")
    options = parser.parse_args()
    timers: dict[str, timeit.Timer] = {}
    for name, call in calls(options.device).items():
        timers[name] = timeit.Timer(call)
        timers[f"{name}, installed"] = InstalledTimer(call)
    for timer in timers.values():
        timer.timeit(3)  # plans, imports, compiles
    timings = timing.interleave(timers, _EFFORT)
    found = {
        "torch": torch.__version__,
        "onepass": onepass.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu",
        "microseconds": {name: round(timings[name].median * 1e6, 2) for name in sorted(timings)},
    }
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
