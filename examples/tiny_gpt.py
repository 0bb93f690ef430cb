"""A small GPT trained twice from the same start: with torch's softmax and, by onepass.installed(), with onepass's.

    python examples/tiny_gpt.py [--steps 200] [--plot losses.png]

It learns, character by character, the reference of the Python language that every Python has for `help()`. The
two models take turns of 25 steps, so that both meet the same machine, and each a heap that looks as its own steps leave
it; routes are put in place and taken away between turns. The model knows nothing of onepass: it calls torch's softmax
in its attention and cross_entropy for its loss.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import onepass

CONTEXT, BATCH, LAYERS, HEADS, WIDTH = 256, 4, 2, 8, 64
TURN = 25  # steps


class Block(nn.Module):
    """Attention, then a hidden layer, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.to_qkv, self.from_heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.hidden = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("later", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(x).unflatten(-1, (3, HEADS, -1)).movedim(-3, 0).transpose(-3, -2)
        scores = q @ k.mT * q.shape[-1] ** -0.5  # [batch, heads, context, context]
        weights = F.softmax(scores.masked_fill(self.later, -torch.inf), dim=-1)
        return self.from_heads((weights @ v).transpose(-3, -2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.hidden(self.norm2(x))


class Gpt(nn.Module):
    """Logits of the next character at each place. [batch, context] -> [batch, context, characters]"""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.logits = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters) + self.place.weight
        return self.logits(self.norm(self.blocks(x)))


class Training:
    """One model, its optimizer, and what its steps took."""

    def __init__(self, text: Tensor, characters: int) -> None:
        torch.manual_seed(0)
        self.text = text
        self.model = Gpt(characters)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = torch.Generator().manual_seed(1)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self) -> None:
        starts = torch.randint(len(self.text) - CONTEXT, (BATCH,), generator=self.batches)
        windows = torch.stack([self.text[i : i + CONTEXT + 1] for i in starts])
        begin = time.perf_counter()
        logits = self.model(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - begin)
        self.losses.append(loss.item())


def plot(path: Path, trainings: dict[str, Training]) -> None:
    """Both curves, and how far they are apart."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, sharex=True, figsize=(7, 6), height_ratios=(3, 1), layout="constrained")
    for (name, training), style in zip(trainings.items(), ("-", "--"), strict=True):
        above.plot(training.losses, style, label=name)
    above.set_ylabel("cross-entropy, nats a character")
    above.legend()
    first, second = (training.losses for training in trainings.values())
    below.plot([abs(a - b) for a, b in zip(first, second, strict=True)], color="0.3")
    below.set(xlabel="step", ylabel="difference")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Train, print the comparison; returns its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plot", type=Path, help="where to draw both loss curves (.png)")
    options = parser.parse_args(arguments)

    book = "\n".join(topics[name] for name in sorted(topics))
    characters = sorted(set(book))
    numbers = {character: i for i, character in enumerate(characters)}
    text = torch.tensor([numbers[character] for character in book])
    trainings = {name: Training(text, len(characters)) for name in ("torch", "torch with onepass installed")}
    alone, routed = trainings.values()
    served = passed = 0
    for begin in range(0, options.steps, TURN):
        turn = range(begin, min(begin + TURN, options.steps))
        for _ in turn:
            alone.step()
        with onepass.installed():
            for _ in turn:
                routed.step()
            counts = onepass.installed_stats().values()
        served += sum(count["onepass"] for count in counts)
        passed += sum(count["torch"] for count in counts)
        print(f"step {turn[-1]:4}   loss {alone.losses[-1]:.6f}   {routed.losses[-1]:.6f}")

    pairs = list(zip(alone.losses, routed.losses, strict=True))
    times = [statistics.median(training.seconds[3:]) for training in (alone, routed)]
    figures = {
        "first loss": alone.losses[0],
        "last loss": alone.losses[-1],
        "largest difference": max(abs(a - b) for a, b in pairs),
        "steps that differ": sum(a != b for a, b in pairs),
        "step time ratio": times[0] / times[1],
        "calls by onepass": served,
        "calls by torch": passed,
    }
    print(f"{len(book):,} characters, {sum(p.numel() for p in alone.model.parameters()):,} parameters")
    print(f"largest difference of losses    {figures['largest difference']:.1e}")
    print(f"a step, median                  {times[0] * 1e3:.1f} ms, then {times[1] * 1e3:.1f} ms")
    print(f"                                {figures['step time ratio']:.2f}x")
    print(f"operators served by onepass     {served}, left to torch {passed}")
    if options.plot is not None:
        plot(options.plot, trainings)
        print(f"wrote {options.plot}")
    return figures


if __name__ == "__main__":
    main()
