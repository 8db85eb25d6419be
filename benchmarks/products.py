"""Measure products of bfloat16 matrices: where oneDNN leaves some to one thread, and what MKL makes of gradients.

python benchmarks/products.py                # widths of 384, 512, 768 and 1,024: a minute on two cores
python benchmarks/products.py --widths 768

GFLOP/s, the median of five turns on operands that change from call to call. Forward: states times a weight, by torch
as it is. Gradient: its own product, by torch with the sum in float32 and by MKL straight into it. The limits of
``acclimate.backbone.products.SHARED`` are where the first falls to the rate of one thread, and where it rises again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from acclimate.backbone.lowered import _add
from acclimate.backbone.products import has_fast_products, put_product

ROWS = (128, 256, 320, 384, 448, 512, 640, 704, 768, 896, 960, 1024, 1280, 1408, 1536, 2048)
TURNS, CALLS, OPERANDS = 5, 6, 8


def rate(product: Callable[[], object], operations: float) -> float:
    """Return the GFLOP/s of a product."""
    seconds = []
    product()
    for _ in range(TURNS):
        start = time.perf_counter()
        for _ in range(CALLS):
            product()
        seconds.append((time.perf_counter() - start) / CALLS)
    return operations / statistics.median(seconds) / 1e9


def measure(inputs: int, outputs: int) -> None:
    """Print the rates of a layer, a line for each number of rows."""
    weights = cycle(torch.randn(OPERANDS, outputs, inputs).bfloat16())
    totals = cycle(torch.zeros(OPERANDS, outputs, inputs))
    print(f"\n{inputs} inputs, {outputs} outputs\n{'rows':>6} {'forward':>9} {'sum, torch':>11} {'sum, MKL':>9}")
    for rows in ROWS:
        states = torch.randn(OPERANDS, rows, inputs).bfloat16()
        slopes = torch.randn(OPERANDS, rows, outputs).bfloat16()
        pairs = cycle(list(zip(slopes, states, strict=True)))
        found = [rate(product, 2 * rows * inputs * outputs) for product in products(pairs, weights, totals)]
        print(f"{rows:>6} {found[0]:>9,.0f} {found[1]:>11,.0f} {found[2]:>9,.0f}", flush=True)


def products(
    pairs: Iterator[tuple[Tensor, Tensor]], weights: Iterator[Tensor], totals: Iterator[Tensor]
) -> tuple[Callable[[], object], ...]:
    """Return the three products that are compared, each of slopes and states that come in turn."""

    def forward() -> Tensor:
        return next(pairs)[1] @ next(weights).t()

    def sum_of_torch() -> None:
        slopes, states = next(pairs)
        _add(next(totals), slopes.t() @ states)

    def sum_of_mkl() -> None:
        put_product(next(totals), *next(pairs))

    return forward, sum_of_torch, sum_of_mkl


def main() -> None:
    """Print a table for each layer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[384, 512, 768, 1024])
    widths = parser.parse_args().widths
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, products of MKL: {has_fast_products()}")
    for width in widths:
        for inputs, outputs in ((width, width), (width, 4 * width), (4 * width, width)):
            measure(inputs, outputs)


if __name__ == "__main__":
    main()
