"""Products of bfloat16 matrices, whole or in pieces, added to float32."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.backbone import products
from acclimate.backbone.products import has_fast_products, multiply, put_product

SIZES = st.integers(1, 70)


@pytest.fixture(params=["mkl", "torch"])
def kind(request, monkeypatch):
    if request.param == "mkl" and not has_fast_products():
        pytest.skip("a processor without AMX, or a torch without MKL")
    if request.param == "torch":
        monkeypatch.setattr(products, "_product_of_mkl", lambda: None)
    return request.param


def matrices(*shapes):
    return [torch.randn(shape).bfloat16() for shape in shapes]


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize(("rows", "outputs", "inner"), [(40, 48, 32), (1, 1, 1), (33, 7, 130), (0, 5, 3)])
def test_a_product_is_put_or_added(kind, add, rows, outputs, inner):
    torch.manual_seed(0)
    left, right = matrices((rows, outputs), (rows, inner))
    before = torch.randn(outputs, inner) if add else torch.full((outputs, inner), torch.nan)
    total = before.clone()
    put_product(total, left, right, add)
    expected = left.double().t() @ right.double() + (before.double() if add else 0)
    torch.testing.assert_close(total.double(), expected, atol=1e-5 if kind == "mkl" else 0.2, rtol=1e-2)


def test_nothing_is_rounded_on_the_way_to_float32(kind):
    """What is added to one sixteen times is too small for the eight bits of bfloat16 beside it."""
    total, small = torch.ones(2, 2), torch.full((1, 2), 2.0**-10).bfloat16()
    for _ in range(16):
        put_product(total, torch.ones(1, 2).bfloat16(), small)
    assert torch.equal(total, torch.full((2, 2), 1 + 16 * 2.0**-10))


def test_views_are_read_as_what_they_are(kind):
    torch.manual_seed(0)
    left, right = matrices((6, 9), (9, 10))
    total = torch.zeros(6, 5)
    put_product(total, left.t(), right[:, ::2])
    torch.testing.assert_close(total, left.float() @ right[:, ::2].float(), atol=0.1, rtol=1e-2)


def test_a_total_of_its_own_order_gets_the_product_too(kind):
    total = torch.zeros(3, 2).t()
    put_product(total, torch.ones(4, 2).bfloat16(), torch.ones(4, 3).bfloat16())
    assert torch.equal(total, torch.full((2, 3), 4.0))


@pytest.mark.parametrize("wrong", ["rows", "outputs", "inner", "left", "total"])
def test_other_shapes_and_types_are_refused(kind, wrong):
    left, right = torch.ones(4, 2).bfloat16(), torch.ones(4, 3).bfloat16()
    total = torch.zeros(2, 3)
    if wrong == "total":
        total = total.double()
    elif wrong == "inner":
        total = torch.zeros(2, 4)
    else:
        left = {"rows": left[:3], "outputs": left[:, :1], "left": left.float()}[wrong]
    with pytest.raises(ValueError, match="no product of such matrices"):
        put_product(total, left, right)


def test_a_product_that_is_none_is_not_used(monkeypatch):
    """A build with longer integers, say."""
    if not has_fast_products():
        pytest.skip("a processor without AMX, or a torch without MKL")
    monkeypatch.setattr(products, "_call", lambda product, total, *_, add: total.zero_())
    products._product_of_mkl.cache_clear()
    try:
        assert not has_fast_products()
    finally:
        products._product_of_mkl.cache_clear()


@given(SIZES, SIZES, SIZES, st.integers(1, 40), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_pieces_are_the_whole(rows, inner, outputs, most, biased, turned):
    torch.manual_seed(rows)
    before, products.SHARED = products.SHARED, {torch.get_num_threads(): {outputs: (most, 65)}}
    try:
        left, bias = matrices((rows, inner), (outputs,))
        right = torch.randn(outputs, inner).bfloat16().t() if turned else torch.randn(inner, outputs).bfloat16()
        found = multiply(left, right, bias if biased else None)
    finally:
        products.SHARED = before
    expected = left.float() @ right.float() + (bias.float() if biased else 0)
    assert found.shape == (rows, outputs) and found.is_contiguous()
    torch.testing.assert_close(found.float(), expected, atol=0.15, rtol=0.02)


def test_pieces_are_cut_where_they_pay_only(monkeypatch):
    cuts = []
    monkeypatch.setattr(products, "SHARED", {torch.get_num_threads(): {8: (40, 100)}})
    real = torch.mm
    monkeypatch.setattr(torch, "mm", lambda left, right, out: cuts.append(len(left)) or real(left, right, out=out))
    for rows, outputs in ((40, 8), (100, 8), (60, 9)):
        multiply(torch.ones(rows, 4).bfloat16(), torch.ones(4, outputs).bfloat16())
    assert not cuts
    multiply(torch.ones(90, 4).bfloat16(), torch.ones(4, 8).bfloat16())
    assert cuts == [32, 32, 26]
