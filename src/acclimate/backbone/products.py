"""Products of bfloat16 matrices on processors with AMX, where torch's own leave a third of the time to gain.

oneDNN, which torch asks, gives all of some products to one of two threads, and writes bfloat16 only, so that the
gradient of a weight is written, read again and added. MKL, which torch's builds for x86 hold as well, multiplies
bfloat16 and adds the result to float32 as it is: faster than both steps, and nothing is rounded in between.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

from acclimate.backbone.compiled import torch_library
from acclimate.backbone.device import has_amx

SHARED = {2: {512: (320, 1_024), 768: (640, 1_536)}}
"""By threads and outputs: from how many rows on oneDNN leaves a product to one thread, and from how many on no more.

Measured 2026-11-25 on a Xeon of two cores (``benchmarks/products.py``), inner sizes of 512 to 3,072; other widths and
numbers of threads have limits of their own, which have not been measured.
"""
MULTIPLE = 16
"""Of what the pieces of a product have rows: oneDNN compiles a kernel for each shape."""
TYPES = torch.float32, torch.bfloat16, torch.bfloat16
ROW_MAJOR, AS_IS, TRANSPOSED = 101, 111, 112
"""Numbers of ``cblas.h``."""


def multiply(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return left right + bias, some rows at a time where that is faster.

    Args:
        left: (rows, inner).
        right: (inner, outputs).
        bias: (outputs,), or none.
    """
    rows, outputs = len(left), right.shape[1]
    most, end = SHARED.get(torch.get_num_threads(), {}).get(outputs, (rows, rows))
    if not most < rows < end:
        return left @ right if bias is None else torch.addmm(bias, left, right)
    out = left.new_empty(rows, outputs)
    pieces = -(-rows // most)
    height = -(-rows // (pieces * MULTIPLE)) * MULTIPLE
    for some, part in zip(left.split(height), out.split(height), strict=True):
        if bias is None:
            torch.mm(some, right, out=part)
        else:
            torch.addmm(bias, some, right, out=part)
    return out


def put_product(total: Tensor, left: Tensor, right: Tensor, add: bool = True) -> None:
    """Put left^T right into a matrix in float32, or add it to what is there.

    Args:
        total: (outputs, inner), float32.
        left: (rows, outputs), bfloat16.
        right: (rows, inner), bfloat16.
        add: Whether ``total`` has something that counts.

    Raises:
        ValueError: If shapes or types are others.
    """
    types = total.dtype, left.dtype, right.dtype
    if total.shape != (left.shape[1], right.shape[1]) or len(left) != len(right) or types != TYPES:
        shapes = [tuple(one.shape) for one in (total, left, right)]
        raise ValueError(f"no product of such matrices: {shapes}, {types}")
    product = _product_of_mkl()
    if product is None or not len(left) or not total.is_contiguous():
        part = left.t() @ right
        total.add_(part) if add else total.copy_(part)
        return
    _call(product, total, left.contiguous(), right.contiguous(), add)


def _call(product: Any, total: Tensor, left: Tensor, right: Tensor, add: bool) -> None:
    outputs, inner = total.shape
    sizes = outputs, inner, len(left)
    places = left.data_ptr(), outputs, right.data_ptr(), inner, float(add), total.data_ptr(), inner
    product(ROW_MAJOR, TRANSPOSED, AS_IS, *sizes, 1.0, *places)


def has_fast_products() -> bool:
    """Say whether these products are faster than torch's."""
    return _product_of_mkl() is not None


@cache
def _product_of_mkl() -> Any:
    """Return ``cblas_gemm_bf16bf16f32``; None without AMX, on a build without MKL, or if it does something else."""
    if not has_amx():
        return None
    try:
        product = torch_library().cblas_gemm_bf16bf16f32
    except (OSError, AttributeError):
        return None
    number, real, place = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    product.argtypes = [*[number] * 6, real, place, number, place, number, real, place, number]
    product.restype = None
    total, left, right = torch.ones(2, 3), torch.arange(8.0).view(4, 2), torch.arange(12.0).view(4, 3)
    _call(product, total, left.bfloat16(), right.bfloat16(), add=True)
    return product if torch.equal(total, 1 + left.t() @ right) else None
