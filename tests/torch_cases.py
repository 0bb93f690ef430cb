"""What the tests of the PyTorch layer share: devices, and tensors compared with what torch makes of the same."""

import pytest
import torch

# `pytest -m gpu tests/test_torch_*.py` runs the tests with CUDA tensors.
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
FAMILY = ("softmax", "log_softmax", "logsumexp")
# Two good implementations differ by a few units in the last place of the largest number involved.
EPSILONS = 32


def assert_like(actual, expected, scale=None, epsilons=EPSILONS):
    """Equal trees of tensors, up to epsilons of their dtype times the largest number (or `scale`); NaN with NaN."""
    actual, expected = torch.utils._pytree.tree_leaves(actual), torch.utils._pytree.tree_leaves(expected)
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        if want is None:
            assert got is None
            continue
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert got.device == want.device
        if want.numel() == 0:
            continue
        got, want = got.detach().double(), want.detach().double()
        assert torch.equal(got.isnan(), want.isnan())
        infinite = want.isinf()
        assert torch.equal(got[infinite], want[infinite])
        finite = want.isfinite()
        largest = want[finite].abs().max().item() if finite.any() else 0.0
        bound = max(largest, scale or 0.0, 1e-30) * torch.finfo(expected[0].dtype).eps * epsilons
        assert ((got - want)[finite].abs() <= bound).all(), (got - want)[finite].abs().max().item() / bound * epsilons


def random_tensor(shape, dtype=torch.float64, device="cpu", seed=0, sigma=1.0):
    """Normally distributed, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * sigma).to(dtype=dtype, device=device)
