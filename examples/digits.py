"""Probabilities of a fitted classifier, on real data: handwritten digits and scikit-learn's logistic regression.

The classifier's scores go through onepass.softmax, which must give what scikit-learn's own `predict_proba` gives, to
the rounding of float64; values in extended precision tell whose the rest of the difference is. Then the question one
has about probabilities: when the model says 80 %, is it right 80 % of the time?

    python examples/digits.py [--plot reliability.png]

Needs scikit-learn, and matplotlib for the plot.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import onepass
from onepass import reference


def fitted_classifier() -> tuple[LogisticRegression, np.ndarray, np.ndarray]:
    """A classifier trained on a quarter of the 1,797 images; the other images and what they show."""
    images, digits = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(images, digits, train_size=0.25, random_state=0)
    return LogisticRegression(max_iter=5000).fit(train_x, train_y), test_x, test_y


def largest_error(probabilities: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units of the last place of float64."""
    return float((np.abs(probabilities - exact) / np.spacing(exact.astype(np.float64))).max())


def reliability(probabilities: np.ndarray, truth: np.ndarray, bins: int = 10) -> list[tuple[float, float, int]]:
    """(mean stated confidence, share that was right, how many) of the predictions in each tenth of confidence."""
    confidence = onepass.amax(probabilities)
    right = probabilities.argmax(axis=1) == truth
    tenth = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        (float(confidence[tenth == i].mean()), float(right[tenth == i].mean()), int((tenth == i).sum()))
        for i in range(bins)
        if (tenth == i).any()
    ]


def plot(rows: list[tuple[float, float, int]], path: Path) -> None:
    """Stated confidence against the share that was right; the diagonal is a model that knows how sure to be."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    stated, right, count = zip(*rows, strict=True)
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(5, 6.5), height_ratios=(3, 1), sharex=True)
    top.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="stated = right")
    top.plot(stated, right, marker="o", label="logistic regression")
    top.set(ylabel="share that was right", ylim=(0, 1.03), title="Digits: can the probabilities be believed?")
    top.legend(frameon=False)
    bottom.bar(stated, count, width=0.05)
    bottom.set(xlabel="probability of the predicted digit", ylabel="images", xlim=(0, 1.03), yscale="log")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> tuple[float, float]:
    """Print the comparison; returns the largest difference from predict_proba and our largest error in ULP."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="where to write the reliability diagram (.png, .svg, .pdf)")
    options = parser.parse_args(arguments)

    classifier, images, truth = fitted_classifier()
    scores = classifier.decision_function(images)  # [images, 10]
    ours = onepass.softmax(scores)
    theirs = classifier.predict_proba(images)
    exact = reference.softmax(scores, dtype=np.longdouble)
    difference, error = float(np.abs(ours - theirs).max()), largest_error(ours, exact)

    print(f"scores             {scores.shape}, {scores.dtype}, {scores.min():.1f} to {scores.max():.1f}")
    print(f"difference         at most {difference:.1e} from predict_proba")
    print(f"largest error      onepass {error:.1f} ULP, predict_proba {largest_error(theirs, exact):.1f} ULP")
    print(f"same digit         {(ours.argmax(axis=1) == theirs.argmax(axis=1)).mean():.0%} of {len(truth)} images")
    print(f"accuracy           {(ours.argmax(axis=1) == truth).mean():.1%}")
    print(f"log loss           {-float(onepass.mean(onepass.log_softmax(scores)[np.arange(len(truth)), truth])):.4f}")
    print("stated   right    images")
    rows = reliability(ours, truth)
    for stated, right, count in rows:
        print(f"{stated:6.1%}  {right:6.1%}  {count:8}")
    if options.plot is not None:
        plot(rows, options.plot)
        print(f"wrote {options.plot}")
    return difference, error


if __name__ == "__main__":
    main()
