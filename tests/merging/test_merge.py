"""Merged models equal the formulas, load everywhere, and say what was not merged."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from acclimate import merge
from acclimate.base.errors import UserError
from acclimate.merging.methods.sparse import least_kept, sparse
from acclimate.merging.weights import Checkpoint
from tests.cases import each
from tests.tiny import DECODERS, ENCODERS, add_token, decoder_tokenizer, save_tiny, tiny_model, with_old_names

FEWER_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"


@pytest.fixture(scope="module")
def llamas(tmp_path_factory) -> dict[str, Path]:
    """A base model, two adapted models and an instruction-tuned model, with random weights."""
    folder = tmp_path_factory.mktemp("llamas")
    made = {name: save_tiny("llama", folder / name, seed) for seed, name in enumerate(("base", "a", "b", "instruct"))}
    tokenizer = decoder_tokenizer("llama")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(made["instruct"])
    transformers.GenerationConfig(eos_token_id=[2, 7], temperature=0.5, do_sample=True).save_pretrained(
        made["instruct"]
    )
    return made


def state(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a folder."""
    return {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}


def exact(folder: Path) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in state(folder).items()}


def change(folder: Path, out: Path, **tensors) -> Path:
    """Copy a model, with some tensors replaced, or removed if they are None; dots in names are written ``__``."""
    shutil.copytree(folder, out)
    given = {name.replace("__", "."): value for name, value in tensors.items()}
    kept = {name: value for name, value in {**state(folder), **given}.items() if value is not None}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})
    return out


def configure(folder: Path, **entries) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **entries}))
    return folder


def same_bytes(one: Path, other: Path) -> bool:
    ours, theirs = state(one), state(other)
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype
        and torch.equal(ours[name].reshape(-1).view(torch.uint8), theirs[name].reshape(-1).view(torch.uint8))
        for name in ours
    )


def test_linear_methods_equal_their_formulas(llamas, tmp_path):
    a, b, base, instruct = (exact(llamas[name]) for name in ("a", "b", "base", "instruct"))
    parts = {"base": llamas["base"], "progress": False}
    merge(llamas["a"], {"chat-vector": {"instruct": llamas["instruct"], "weight": 0.7}}, tmp_path / "chat", **parts)
    merge(llamas["a"], {"interpolation": {"alpha": 0.3}}, tmp_path / "wise", **parts)
    merge([llamas["a"], llamas["b"]], "soup", tmp_path / "soup", progress=False)
    merge([llamas["a"], llamas["b"]], {"soup": {"weights": [3, 1]}}, tmp_path / "weighted", progress=False)
    for name in a:
        expected = {
            "chat": a[name] + 0.7 * (instruct[name] - base[name]),
            "wise": 0.7 * base[name] + 0.3 * a[name],
            "soup": (a[name] + b[name]) / 2,
            "weighted": 0.75 * a[name] + 0.25 * b[name],
        }
        for folder, value in expected.items():
            np.testing.assert_allclose(exact(tmp_path / folder)[name], value, atol=1e-6, err_msg=f"{folder}: {name}")


SCALES = {
    "bert": {r"bert\.encoder\.layer\.%d\.": 3},
    "mixtral": {r"model\.layers\.%d\.": 3},
    "bart": {r"model\.encoder\.layers\.%d\.": 3, r"model\.decoder\.layers\.%d\.": 2},
    "t5": {r"encoder\.block\.%d\.": 2, r"decoder\.block\.%d\.": 2},
}
"""Patterns of the tensors of a layer of each stack, and the number of its layers."""


def scaled_with_depth(base, models, kind, alpha, slope):
    """Compute LiNeS tensor by tensor from the numbers in the names (Wang et al., 2025, Eq. 2)."""
    found = {}
    for name, value in base.items():
        scale = alpha
        for pattern, layers in SCALES[kind].items():
            for number in range(layers):
                if re.match(pattern % number, name):
                    scale = alpha + slope * number / (layers - 1)
        found[name] = value + scale * sum(model[name] - value for model in models)
    return found


@each("kind", list(SCALES))
def test_the_change_is_scaled_with_depth(tmp_path, kind):
    layers = {"bart": {"encoder_layers": 3, "decoder_layers": 2}, "t5": {}}.get(kind, {"num_hidden_layers": 3})
    base, a, b = (save_tiny(kind, tmp_path / name, seed, **layers) for seed, name in enumerate(("base", "a", "b")))
    parts = {"base": base, "progress": False}
    merge(a, {"lines": 0.2}, tmp_path / "one", **parts)
    merge([a, b], "lines alpha=0.5 slope=-0.2", tmp_path / "two", **parts)
    for out, models, scales in (("one", [a], (0.2, 0.8)), ("two", [a, b], (0.5, -0.2))):
        found = exact(tmp_path / out)
        expected = scaled_with_depth(exact(base), [exact(model) for model in models], kind, *scales)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, atol=1e-6, err_msg=name)
    whole, given = exact(tmp_path / "one"), exact(a)
    last = [name for name in whole if any(re.match(p % (n - 1), name) for p, n in SCALES[kind].items())]
    assert last and all(np.array_equal(whole[name], given[name]) for name in last)


def test_without_a_slope_the_change_is_scaled_as_before(llamas, tmp_path):
    parts, both = {"base": llamas["base"], "progress": False}, [llamas["a"], llamas["b"]]
    merge(llamas["a"], "lines alpha=0.3 slope=0", tmp_path / "flat", **parts)
    merge(llamas["a"], "interpolation alpha=0.3", tmp_path / "half", **parts)
    merge(both, "lines alpha=0.3 slope=0", tmp_path / "both", **parts)
    merge(both, "task-arithmetic weights=0.3,0.3", tmp_path / "sum", **parts)
    assert same_bytes(tmp_path / "flat", tmp_path / "half") and same_bytes(tmp_path / "both", tmp_path / "sum")


def test_depth_needs_layers_of_their_own(tmp_path):
    albert = save_tiny("albert", tmp_path / "albert")
    with pytest.raises(UserError, match="share their weights"):
        merge(albert, "lines alpha=0.5", tmp_path / "out", base=albert, progress=False)
    one = Checkpoint(save_tiny("llama", tmp_path / "one", num_hidden_layers=1), "one").depths()
    assert set(one.values()) == {0.0}


def sparse_difference(models, base, method, density, kept=None):
    """Compute TIES and DARE element by element (Yadav et al., 2023, section 3; Yu et al., 2024, Eq. 2)."""
    deltas = [(model - base).ravel() for model in models]
    for number, delta in enumerate(deltas):
        if method == "ties":
            largest = np.argsort(-np.abs(delta), kind="stable")[: int(density * delta.size)]
            mask = np.zeros(delta.size)
            mask[largest] = 1
        else:
            mask = kept[number].ravel() / density
        deltas[number] = delta * mask
    total = np.zeros_like(deltas[0])
    for index in range(total.size):
        values = [delta[index] for delta in deltas]
        if method == "dare-linear":
            total[index] = np.mean(values)
            continue
        sign = 1 if sum(values) >= 0 else -1
        agreeing = [value for value in values if value * sign > 0]
        total[index] = np.mean(agreeing) if agreeing else 0
    return base + total.reshape(base.shape)


@each("method", ["ties", "dare-linear", "dare-ties"])
def test_sparse_methods_equal_their_definition(llamas, tmp_path, method):
    pytest.importorskip("peft")
    folders, seed = [llamas["a"], llamas["b"]], "" if method == "ties" else " seed=3"
    merge(folders, f"{method} density=0.4{seed}", tmp_path / "out", base=llamas["base"], progress=False)
    found, base, models = exact(tmp_path / "out"), exact(llamas["base"]), [exact(folder) for folder in folders]
    name = "model.layers.0.self_attn.k_proj.weight"
    kept = None
    if method != "ties":  # the masks are those of the seed and the name
        torch.manual_seed(3 + zlib.crc32(name.encode()))
        kept = [torch.bernoulli(torch.full(base[name].shape, 0.4)).numpy() for _ in models]
        assert abs(np.mean(kept) - 0.4) < 0.05
    expected = sparse_difference([model[name] for model in models], base[name], method, 0.4, kept)
    np.testing.assert_allclose(found[name], expected, atol=1e-6)
    merge(folders, f"{method} density=0.4{seed}", tmp_path / "again", base=llamas["base"], progress=False)
    assert same_bytes(tmp_path / "out", tmp_path / "again")
    merge(
        folders, f"{method} density=0.4{seed and ' seed=4'}", tmp_path / "other", base=llamas["base"], progress=False
    )
    assert same_bytes(tmp_path / "out", tmp_path / "other") == (method == "ties")


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.floats(-9, 9, width=32) | st.just(0.5), max_size=9), min_size=1, max_size=4).filter(any),
    st.floats(0.01, 1),
)
def test_the_least_magnitude_that_is_kept_equals_that_of_sorting(parts, share):
    tensors = [torch.tensor(part, dtype=torch.float32) for part in parts]
    largest = torch.cat(tensors).abs().sort(descending=True).values
    assert least_kept(lambda: tensors, share) == float(largest[max(1, int(share * len(largest))) - 1])


def test_ties_can_trim_over_the_whole_model(llamas, tmp_path):
    pytest.importorskip("peft")
    folders = [llamas["a"], llamas["b"]]
    for trim in ("model", "tensor"):
        merge(folders, {"ties": {"density": 0.3, "trim": trim}}, tmp_path / trim, base=llamas["base"], progress=False)
    merge(folders, {"ties": {"density": 0.3}}, tmp_path / "default", base=llamas["base"], progress=False)
    assert same_bytes(tmp_path / "tensor", tmp_path / "default")
    found, base, models = exact(tmp_path / "model"), exact(llamas["base"]), [exact(folder) for folder in folders]
    trimmed = []
    for model in models:
        everything = np.sort(np.concatenate([np.abs(model[name] - base[name]).ravel() for name in base]))
        limit = everything[-int(0.3 * everything.size)] - 1e-7
        deltas = {name: model[name] - base[name] for name in base}
        trimmed.append({name: base[name] + delta * (np.abs(delta) >= limit) for name, delta in deltas.items()})
    for name in ("model.layers.0.self_attn.k_proj.weight", "model.norm.weight"):
        expected = sparse_difference([model[name] for model in trimmed], base[name], "ties", 1.0)
        np.testing.assert_allclose(found[name], expected, atol=1e-6, err_msg=name)
    assert not same_bytes(tmp_path / "model", tmp_path / "tensor")
    assert "trim" in (tmp_path / "model" / "README.md").read_text()


@each("method", ["ties", "dare-linear"])
def test_a_density_that_keeps_nothing_is_refused(llamas, tmp_path, method):
    with pytest.raises(
        UserError, match="density=1e-06, no entry of a difference would be kept: the largest tensor has"
    ):
        merge([llamas["a"]], {method: {"density": 1e-06}}, tmp_path / "out", base=llamas["base"], progress=False)
    assert not (tmp_path / "out").exists()


def test_dare_keeps_the_mean_of_the_difference(llamas, tmp_path):
    pytest.importorskip("peft")
    rule = sparse("dare-linear", [1.0], 0.25, 0)
    base, model = torch.zeros(100_000), torch.ones(100_000)
    merged = rule("w", [lambda: model, lambda: base])
    assert set(merged.unique().tolist()) == {0.0, 4.0}
    assert abs(float(merged.mean()) - 1) < 0.03


def test_the_ends_are_copies(llamas, tmp_path):
    bf16 = {}
    for name in ("a", "base", "instruct"):
        lower = {key: value.bfloat16() for key, value in state(llamas[name]).items()}
        bf16[name] = change(llamas[name], tmp_path / name, **lower)
    for kind, folders in (("fp32", llamas), ("bf16", bf16)):
        for alpha, end in ((0, "base"), (1, "a")):
            out = tmp_path / f"{kind}-{alpha}"
            merge(folders["a"], {"interpolation": {"alpha": alpha}}, out, base=folders["base"], progress=False)
            assert same_bytes(out, folders[end])
        parts = {"base": folders["base"], "progress": False}
        chat = {"chat-vector": {"instruct": folders["instruct"], "weight": 0}}
        merge(folders["a"], chat, tmp_path / f"{kind}-w", **parts)
        assert same_bytes(tmp_path / f"{kind}-w", folders["a"])
    # the type is that of the adapted model
    merge(bf16["a"], {"interpolation": {"alpha": 0.5}}, tmp_path / "mixed", base=llamas["base"], progress=False)
    base = state(llamas["base"])
    expected = {name: (0.5 * value.float() + 0.5 * base[name]).bfloat16() for name, value in state(bf16["a"]).items()}
    assert all(torch.equal(value, expected[name]) for name, value in state(tmp_path / "mixed").items())


@pytest.mark.slow
@each("kind", [*DECODERS, *ENCODERS])
def test_every_architecture_computes_what_its_averaged_weights_compute(tmp_path, kind):
    a, base = (save_tiny(kind, tmp_path / f"{seed}", seed) for seed in (1, 2))
    merge(a, {"interpolation": {"alpha": 0.5}}, tmp_path / "out", base=base, progress=False)
    auto = transformers.AutoModelForCausalLM if kind in DECODERS else transformers.AutoModelForMaskedLM
    merged, info = auto.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    expected, other = tiny_model(kind, 1), tiny_model(kind, 2)
    with torch.no_grad():
        for one, two in zip(expected.parameters(), other.parameters(), strict=True):
            one.copy_((one + two) / 2)
        ids = torch.randint(5, 90, (2, 16))
        np.testing.assert_allclose(merged.eval()(ids).logits, expected(ids).logits, atol=1e-5)


def test_shards_are_read_and_written(llamas, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(llamas["a"])
    model.save_pretrained(tmp_path / "a", max_shard_size="20KB")
    decoder_tokenizer("llama").save_pretrained(tmp_path / "a")
    assert len([*(tmp_path / "a").glob("*.safetensors")]) > 2
    options = {"base": llamas["base"], "progress": False}
    merge(llamas["a"], "interpolation alpha=0.5", tmp_path / "whole", **options)
    merge(tmp_path / "a", "interpolation alpha=0.5", tmp_path / "parts", max_shard_gb=2e-5, **options)
    assert same_bytes(tmp_path / "whole", tmp_path / "parts")
    files = [*(tmp_path / "parts").glob("*.safetensors")]
    single = max(value.nbytes for value in state(llamas["a"]).values())
    assert len(files) > 2 and max(file.stat().st_size for file in files) < max(20_000, single) + 5_000
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == state(llamas["a"]).keys()
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "parts", output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(loaded.lm_head.weight, state(tmp_path / "whole")["lm_head.weight"])


def test_memory_holds_two_tensors(llamas, tmp_path, monkeypatch):
    """Of those that are read; a merge of four models keeps no more of them at a time than one of two."""
    import weakref

    alive: list[weakref.ref] = []
    most = 0
    read = Checkpoint.read

    def spy(self, name):
        nonlocal most
        value = read(self, name)
        alive.append(weakref.ref(value))
        most = max(most, sum(one() is not None for one in alive))
        return value

    monkeypatch.setattr(Checkpoint, "read", spy)
    merge([llamas[name] for name in ("a", "b", "base", "instruct")], "soup", tmp_path / "soup", progress=False)
    assert len(alive) == 4 * len(state(llamas["a"]))
    assert most == 1  # in addition to the sum of those before
    alive.clear()
    merge(
        llamas["a"], {"chat-vector": {"instruct": llamas["b"]}}, tmp_path / "chat", base=llamas["base"], progress=False
    )
    assert most == 1


def test_tied_heads(tmp_path):
    tied = {seed: save_tiny("llama", tmp_path / f"tied-{seed}", seed, tie_word_embeddings=True) for seed in (1, 2)}
    own = save_tiny("llama", tmp_path / "own", 3)
    assert "lm_head.weight" not in state(tied[1]) and "lm_head.weight" in state(own)
    merge(tied[1], {"interpolation": {"alpha": 0.5}}, tmp_path / "both", base=tied[2], progress=False)
    assert "lm_head.weight" not in state(tmp_path / "both")
    # with a head of its own, the adapted model is merged with what the other one computes with
    merge(own, {"interpolation": {"alpha": 0.25}}, tmp_path / "head", base=tied[1], progress=False)
    found, one, two = (exact(folder) for folder in (tmp_path / "head", own, tied[1]))
    expected = 0.25 * one["lm_head.weight"] + 0.75 * two["model.embed_tokens.weight"]
    np.testing.assert_allclose(found["lm_head.weight"], expected, atol=1e-6)
    with pytest.raises(UserError, match=r"shares lm_head\.weight with model\.embed_tokens\.weight"):
        merge(tied[1], {"interpolation": {"alpha": 0.5}}, tmp_path / "no", base=own, progress=False)
    # a copy of a shared tensor in the file is not a head
    copied = change(tied[2], tmp_path / "copied", lm_head__weight=state(tied[2])["model.embed_tokens.weight"].clone())
    for adapted, base in ((tied[1], copied), (copied, tied[1])):
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        merge(adapted, {"interpolation": {"alpha": 0.5}}, tmp_path / "copy", base=base, progress=False)
        assert same_bytes(tmp_path / "copy", tmp_path / "both")


def test_rows_of_new_tokens_stay_as_they_are(tmp_path):
    base = save_tiny("bert", tmp_path / "base", 1)
    grown = shutil.copytree(save_tiny("bert", tmp_path / "a", 2), tmp_path / "grown")
    add_token(grown, "espresso")
    result = merge(grown, {"interpolation": {"alpha": 0.5}}, tmp_path / "more", base=base, progress=False)
    name = "bert.embeddings.word_embeddings.weight"
    found, one, two = (exact(folder)[name] for folder in (tmp_path / "more", grown, base))
    assert len(found) == len(one) == len(two) + 1
    np.testing.assert_array_equal(found[-1], one[-1])
    np.testing.assert_allclose(found[:-1], (one[:-1] + two) / 2, atol=1e-6)
    assert any("1 more rows" in note for note in result.notes)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "more").convert_tokens_to_ids("espresso") == len(two)
    result = merge(base, {"interpolation": {"alpha": 0}}, tmp_path / "less", base=grown, progress=False)
    assert len(exact(tmp_path / "less")[name]) == len(two)
    assert any("1 fewer rows" in note for note in result.notes) and any("'espresso'" in note for note in result.notes)


def test_encoders_with_other_names_and_without_a_head(tmp_path):
    """Files of 2018, bare encoders, and parts that the output does not depend on."""
    a, base = (save_tiny("bert", tmp_path / name, seed) for seed, name in enumerate(("a", "base")))
    options, half = {"progress": False}, {"interpolation": 0.5}
    merge(a, half, tmp_path / "plain", base=base, **options)
    old = with_old_names(shutil.copytree(base, tmp_path / "old"))
    assert not merge(a, half, tmp_path / "renamed", base=old, **options).notes
    assert same_bytes(tmp_path / "plain", tmp_path / "renamed")
    bare = shutil.copytree(base, tmp_path / "bare")
    transformers.AutoModel.from_pretrained(base).save_pretrained(bare)  # with a pooler, without the prefix
    result = merge(a, half, tmp_path / "head", base=bare, **options)
    found, plain, head = (exact(folder) for folder in (tmp_path / "head", tmp_path / "plain", a))
    for name in plain:
        np.testing.assert_array_equal(found[name], (head if name.startswith("cls.") else plain)[name], err_msg=name)
    assert any("Kept as in" in note and "cls." in note for note in result.notes)
    assert any("pooler" in note and "Left out" in note for note in result.notes)
    result = merge(bare, half, tmp_path / "encoder", base=a, **options)
    assert "cls.predictions.bias" not in state(tmp_path / "encoder")
    name = "pooler.dense.weight"
    np.testing.assert_array_equal(state(tmp_path / "encoder")[name], state(bare)[name])


def test_buffers_of_other_types_are_kept(tmp_path, llamas):
    ids = torch.arange(5)[None]
    a = change(llamas["a"], tmp_path / "a", position_ids=ids)
    base = change(llamas["base"], tmp_path / "base", position_ids=ids + 1)
    result = merge(a, {"interpolation": {"alpha": 0.5}}, tmp_path / "out", base=base, progress=False)
    assert torch.equal(state(tmp_path / "out")["position_ids"], ids)
    assert any("position_ids" in note for note in result.notes)


@each(
    ("make", "message"),
    [
        (lambda base, out: save_tiny("gpt2", out), "model of the type llama"),
        (lambda base, out: save_tiny("llama", out, hidden_size=16, head_dim=8), "has the shape"),
        (lambda base, out: save_tiny("llama", out, num_hidden_layers=1), r"has the tensor model\.layers\.1"),
        (lambda base, out: save_tiny("llama", out, num_hidden_layers=3), r"has the tensor model\.layers\.2"),
        (lambda base, out: save_tiny("llama", out, **FEWER_HEADS), "num_attention_heads is 4"),
        (lambda base, out: change(base, out, model__norm__weight=None), r"has the tensor model\.norm\.weight"),
        (lambda base, out: change(base, out, model__norm__weight=torch.ones(32, dtype=torch.int8)), "quantized"),
        (lambda base, out: change(base, out, lm_head__weight=None), r"has the tensor lm_head\.weight"),
        (lambda base, out: (change(base, out) / "model.safetensors").unlink() or out, "no weights in safetensors"),
        (lambda base, out: (change(base, out) / "model.safetensors").write_text("") and out, "cannot be read"),
        (lambda base, out: out, "no model folder"),
    ],
)  # fmt: skip
def test_models_that_do_not_fit_are_refused(llamas, tmp_path, make, message):
    other = make(llamas["base"], tmp_path / "other")
    with pytest.raises(UserError, match=message):
        base = other or tmp_path / "other"
        merge(llamas["a"], {"interpolation": {"alpha": 0.5}}, tmp_path / "out", base=base, progress=False)
    assert not (tmp_path / "out").exists()


def test_merges_equal_those_of_mergekit(llamas, tmp_path):
    pytest.importorskip("mergekit")
    from mergekit.config import MergeConfiguration
    from mergekit.merge import MergeOptions, run_merge

    def theirs(method: str, weights: dict[str, float], base: str | None = None, **parameters) -> dict[str, np.ndarray]:
        config = {
            "merge_method": method,
            "models": [
                {"model": str(llamas[name]), "parameters": {"weight": weight, **parameters}}
                for name, weight in weights.items()
            ],
            "dtype": "float32",
            **({"base_model": str(llamas[base])} if base else {}),
        }
        out = tmp_path / f"theirs-{method}"
        run_merge(MergeConfiguration.model_validate(config), str(out), MergeOptions(copy_tokenizer=False))
        found = exact(out)
        shutil.rmtree(out)
        return found

    a, both = llamas["a"], [llamas["a"], llamas["b"]]
    parts = {"base": llamas["base"], "progress": False}
    merge(a, {"chat-vector": {"instruct": llamas["instruct"], "weight": 0.7}}, tmp_path / "chat", **parts)
    merge(a, {"interpolation": {"alpha": 0.3}}, tmp_path / "wise", **parts)
    merge(both, "soup", tmp_path / "soup", progress=False)
    merge(both, {"ties": {"density": 0.3}}, tmp_path / "ties", **parts)
    expected = {
        "chat": theirs("task_arithmetic", {"a": 1.0, "instruct": 0.7}, "base"),
        "wise": theirs("task_arithmetic", {"a": 0.3}, "base"),
        "soup": theirs("linear", {"a": 1.0, "b": 1.0}),
        "ties": theirs("ties", {"a": 1.0, "b": 1.0}, "base", density=0.3),
    }
    for name, tensors in expected.items():
        found = exact(tmp_path / name)
        assert found.keys() == tensors.keys()
        for key, value in tensors.items():
            np.testing.assert_allclose(found[key], value, atol=1e-6, err_msg=f"{name}: {key}")
