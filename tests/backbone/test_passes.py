"""The compiled passes beside the operations of torch that they stand for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.backbone import compiled
from acclimate.backbone.dropout import STEPS, drop_mask, keep
from acclimate.backbone.passes import FEW, passes_for

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="no compiler here")
TYPES = [torch.float32, torch.bfloat16]
CUTS = [0, 1, 3_277, STEPS - 1, STEPS]
NAN, INFINITE = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def passes(dtype):
    found = passes_for(torch.empty(0, dtype=dtype))
    assert found is not None
    return found


def some(*shape, dtype=torch.float32, seed=0):
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def thinned(values, cut, key):
    return keep(values, drop_mask(values.shape, cut, key)) if cut else values


@pytest.mark.parametrize("values", [torch.empty(3, dtype=torch.float64), torch.empty(3, dtype=torch.int64)])
def test_other_types_have_none(values):
    assert passes_for(values) is None


def test_other_kinds_of_tensors_have_none():
    class Shard(torch.Tensor):
        pass

    assert passes_for(torch.ones(3).as_subclass(Shard)) is None
    assert passes_for(torch.nn.Parameter(torch.ones(3))) is not None


def test_another_device_has_none():
    assert passes_for(torch.empty(3, device="meta")) is None


@settings(deadline=None, max_examples=80)
@given(
    count=st.one_of(st.integers(0, 5_000), st.integers(FEW, FEW + 3_000)),
    dtype=st.sampled_from(TYPES),
    cut=st.sampled_from(CUTS[1:]),
    key=st.integers(-(2**63), 2**63 - 1),
)
def test_dropout_keeps_what_the_mask_keeps(count, dtype, cut, key):
    values = some(count, dtype=dtype)
    expected = thinned(values, cut, key).mul_(1.25)
    assert torch.equal(passes(dtype).drop(values, key, cut, 1.25), expected)


@settings(deadline=None, max_examples=120)
@given(
    sizes=st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 40), st.integers(1, 300)),
    bias=st.sampled_from([None, "rows", "heads", "tokens", "one row", "one token", "turned", "float64"]),
    dtype=st.sampled_from(TYPES),
    cut=st.sampled_from(CUTS),
    key=st.integers(-(2**63), 2**63 - 1),
)
def test_attention_is_softmax_and_dropout_and_so_is_its_way_back(sizes, bias, dtype, cut, key):
    rows, heads, tokens, keys = sizes
    shape = {
        None: None,
        "rows": (rows, 1, tokens, keys),
        "heads": (rows, heads, tokens, keys),
        "tokens": (1, 1, tokens, 1),
        "one row": (1, 1, tokens, keys),
        "one token": (rows, 1, 1, keys),
        "turned": (rows, heads, keys, tokens),
        "float64": (rows, 1, tokens, keys),
    }[bias]
    added = None if shape is None else some(*shape, dtype=dtype, seed=1)
    added = added.transpose(2, 3) if bias == "turned" else added.double() if bias == "float64" else added
    scores, slopes = some(*sizes, dtype=dtype, seed=2), some(*sizes, dtype=dtype, seed=3)
    exact = scores.float() if added is None else scores.float() + added.float()
    expected = torch.softmax(exact, dim=-1).to(dtype)

    weights = scores.clone()
    kept = passes(dtype).weigh_(weights, added, key, cut)
    close = {"rtol": 0.01, "atol": 1e-5} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(weights, expected, **close)
    assert torch.equal(kept, thinned(weights, cut, key))

    found = slopes.clone()
    again = passes(dtype).weigh_back_(weights, found, key, cut)
    assert torch.equal(again, kept)
    exact = thinned(slopes, cut, key).float()
    exact = weights.float() * (exact - (exact * weights.float()).sum(-1, keepdim=True))
    torch.testing.assert_close(found, exact.to(dtype), rtol=close["rtol"], atol=1e-4)


@pytest.mark.parametrize("dtype", TYPES)
def test_far_below_the_largest_is_nothing_and_no_number_stays_none(dtype):
    floor = torch.finfo(dtype).min
    scores = torch.tensor([[1.0, floor, -90.0, 1.0], [floor] * 4, [NAN, 1.0, 2.0, 3.0], [1.0, -INFINITE, 1.0, 1.0]])
    found = scores.to(dtype)[None, None].contiguous()
    passes(dtype).weigh_(found, None, 0, 0)
    assert found[0, 0, 0].tolist() == [0.5, 0.0, 0.0, 0.5]
    assert found[0, 0, 1].tolist() == [0.25] * 4
    assert found[0, 0, 2].isnan().all()
    assert found[0, 0, 3, 1] == 0 and found[0, 0, 3].sum().item() == pytest.approx(1, abs=0.01)


def test_softmax_has_the_digits_of_float32():
    scores = 30 * torch.rand(1, 1, 400, 129, generator=torch.Generator().manual_seed(0))
    expected = torch.softmax(scores.double(), dim=-1)
    passes(torch.float32).weigh_(scores, None, 0, 0)
    assert ((scores.double() - expected).abs() / expected).max() < 2e-6


@settings(deadline=None, max_examples=120)
@given(
    rows=st.one_of(st.integers(0, 40), st.integers(FEW // 16, FEW // 8)),
    width=st.integers(1, 300),
    dtype=st.sampled_from(TYPES),
    cut=st.sampled_from(CUTS),
    key=st.integers(-(2**63), 2**63 - 1),
)
def test_the_end_of_a_layer_is_dropout_sum_and_normalisation_and_so_is_its_way_back(rows, width, dtype, cut, key):
    factor, epsilon = 1.25 if cut else 1.0, 0.1  # without which rows of hardly any spread would have few digits
    update, residual, slopes = (some(rows, width, dtype=dtype, seed=seed) for seed in (1, 2, 3))
    weight, bias = (some(width, dtype=dtype, seed=seed) for seed in (4, 5))
    out, sums, stats = passes(dtype).add_and_norm(update, residual, weight, bias, epsilon, key, cut, factor)
    kept = thinned(update, cut, key).float() * factor
    close = {"rtol": 0.01, "atol": 0.01} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(sums, (residual.float() + kept).to(dtype), **close)

    exact = [part.double().requires_grad_() for part in (sums, weight, bias)]
    expected = torch.nn.functional.layer_norm(exact[0], (width,), exact[1], exact[2], epsilon)
    torch.testing.assert_close(out.double(), expected.detach(), rtol=close["rtol"], atol=max(3e-5, close["atol"]))
    gradients = torch.autograd.grad(expected, exact, slopes.double()) if rows else [torch.zeros_like(e) for e in exact]
    found = passes(dtype).add_and_norm_back(slopes, sums, stats, weight, key, cut, factor)
    scale = stats[1].max() if rows else 1  # gradients of a row that hardly varies are as large as that
    for_update = thinned(found[1], cut, key).float() * factor
    torch.testing.assert_close(found[0], for_update.to(dtype), rtol=close["rtol"], atol=1e-5)
    torch.testing.assert_close(
        found[1].double(), gradients[0], rtol=0.02, atol=float(1e-2 * close["rtol"] ** 0.5 * scale)
    )
    for mine, right in zip(found[2:], gradients[1:], strict=True):
        atol = float(right.abs().max()) * (0.01 if dtype == torch.bfloat16 else 1e-4) + 1e-4
        torch.testing.assert_close(mine.double(), right, rtol=0.01, atol=atol)


@settings(deadline=None, max_examples=60)
@given(
    items=st.integers(0, 12),
    classes=st.integers(1, 5_000),
    dtype=st.sampled_from(TYPES),
    scale=st.sampled_from([0.01, 1.0, 80.0]),
)
def test_cross_entropy_is_that_of_torch(items, classes, dtype, scale):
    logits = (scale * some(items, classes)).to(dtype)
    labels = torch.randint(0, classes, (items,), generator=torch.Generator().manual_seed(items))
    exact = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(exact, labels, reduction="none")
    losses, stats = passes(dtype).cross_entropy(logits, labels)
    torch.testing.assert_close(losses.double(), expected.detach(), rtol=1e-6, atol=2e-6)
    (gradient,) = torch.autograd.grad(0.7 * expected.sum(), exact)
    slopes = passes(dtype).cross_entropy_back(logits, labels, stats, 0.7)
    torch.testing.assert_close(slopes.double(), gradient, rtol=5e-3 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("label", [-100, -1, 9])
def test_a_label_that_is_no_class_is_an_error(label):
    with pytest.raises(IndexError, match="none of 9 classes"):
        passes(torch.float32).cross_entropy(some(3, 9), torch.tensor([0, label, 8]))


@pytest.mark.parametrize("labels", [torch.tensor([1, 2, 3, 4]), torch.tensor([[1, 2, 3]]), torch.tensor(1)])
def test_more_labels_than_rows_or_none_for_each_are_an_error(labels):
    with pytest.raises(ValueError, match="3 rows of logits have labels of shape"):
        passes(torch.float32).cross_entropy(some(3, 9), labels)


def test_labels_of_another_type_are_an_error():
    with pytest.raises(ValueError, match="labels are int64"):
        passes(torch.float32).cross_entropy(some(3, 9), torch.tensor([0, 8, 3], dtype=torch.int16))


def test_rows_without_a_label_count_for_nothing():
    logits, labels = some(5, 9), torch.tensor([1, 2, 3])
    losses, stats = passes(torch.float32).cross_entropy(logits, labels)
    logits[3:] = NAN
    slopes = passes(torch.float32).cross_entropy_back(logits, labels, stats, 1.0)
    assert len(losses) == 3 and not slopes.isnan().any()
    assert (slopes[3:] == 0).all() and (slopes[:3] != 0).all()


def test_logits_without_a_number_have_no_loss():
    logits = some(2, 9)
    logits[1, 4] = NAN
    losses, _ = passes(torch.float32).cross_entropy(logits, torch.tensor([0, 1]))
    assert losses.isnan().tolist() == [False, True]


@pytest.mark.parametrize("count", [0, 1, 1_000, FEW + 5])
def test_gradients_add_up_in_float32(count):
    total, part = some(count), some(count, dtype=torch.bfloat16, seed=1)
    expected = total + part.float()
    passes(torch.bfloat16).add_(total, part)
    assert torch.equal(total, expected)


def test_rounding_is_to_the_nearest_and_ties_go_to_even():
    words = torch.arange(2**16, dtype=torch.int32)
    ends = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    values = ((words[:, None] << 16) | ends).flatten().view(torch.float32)
    values = values[values.isfinite() & (values.abs() < 3e38)]
    dropped = passes(torch.float32).drop(values, 0, 0, 1.0)  # a cut of 0 drops nothing
    assert torch.equal(dropped, values)
    like = values.bfloat16()
    assert torch.equal(passes(torch.bfloat16).drop(like, 0, 0, 1.1), (like.float() * 1.1).bfloat16())


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_nothing(threads):
    torch.set_num_threads(threads)
    scores = some(4, 3, 70, 70)
    kept = passes(torch.float32).weigh_(scores, None, 8, 3_277)
    torch.set_num_threads(3 - threads)
    again = some(4, 3, 70, 70)
    assert torch.equal(passes(torch.float32).weigh_(again, None, 8, 3_277), kept)
    assert torch.equal(again, scores)
