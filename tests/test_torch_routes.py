"""What a call leaves behind while onepass is installed, whoever serves it: nothing."""

import gc
import weakref

import pytest
import torch
from torch_cases import DEVICES, random_tensor

import onepass
from onepass import _engine

_GRADIENT = torch.ops.aten._softmax_backward_data

# What a native kernel hands to Python: a first call, another that is torch's by thresholds.py, one that torch refuses.
MISSED = {
    "a first call": lambda x: torch.softmax(x, 1),
    "torch's": lambda x: torch.log_softmax(x.view(100, 4, 3), 1),
    "refused": lambda x: pytest.raises(RuntimeError, torch.softmax, x.view(torch.int32), 0),
    "a subclass": lambda x: torch.softmax(torch.nn.Parameter(x), 0),
    "its gradient": lambda x: _GRADIENT(x, x, 1, x.dtype),
    "torch's gradient": lambda x: _GRADIENT(x.view(100, 4, 3), x.view(100, 4, 3), 1, x.dtype),
    "a refused gradient": lambda x: pytest.raises(RuntimeError, _GRADIENT, x, x.double(), 1, x.dtype),
}


@pytest.mark.parametrize("name", MISSED)
@pytest.mark.parametrize("times", [1, 2])
def test_nothing_is_kept_of_what_was_given(name, times):
    memory = random_tensor((30, 40), torch.float32).numpy().copy()
    alive = weakref.ref(memory)
    x = torch.from_numpy(memory)
    _engine.forget_all()
    with onepass.installed():
        for _ in range(times):
            MISSED[name](x)
        del x, memory
        gc.collect()
        assert alive() is None


@pytest.mark.parametrize("device", [d for d in DEVICES if d != "cpu"])
def test_nothing_is_kept_of_a_gpus_memory(device):
    def step(i):
        x = random_tensor((50, 3000 + i), torch.float32, device).requires_grad_()
        torch.softmax(x, 1).square().sum().backward()
        pytest.raises(RuntimeError, torch.softmax, x.detach().to(torch.int32), 0)

    with onepass.installed():
        step(0)
        before = torch.cuda.memory_allocated()
        for i in range(1, 6):
            step(i)
        assert torch.cuda.memory_allocated() - before < 50 * 3000 * 4
