"""Two processes that share each step compute the same as one process."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from acclimate.adaptation import method
from acclimate.adaptation.adapt import adapt
from acclimate.adaptation.inputs import report_batch
from acclimate.adaptation.method import AdaptContext
from acclimate.base.errors import UserError
from acclimate.base.files import read_json
from acclimate.data.documents import Corpus
from acclimate.data.token_dataset import TokenDataset
from acclimate.engine import batches, cutting, distributed
from acclimate.engine.batches import Collator, StepDataset
from acclimate.engine.distributed import ProcessGroup
from acclimate.models.batching import FEWEST_BATCHES, MINIMAL_PADDING, POLICIES, PaddingPolicy
from acclimate.models.kinds import MASKED
from acclimate.models.probe import attach
from acclimate.parts.masking import ExtractNGram, MaskNGram, RandomMasking, resolve
from acclimate.tasks.finetune import finetune
from tests.adaptation.helpers import rows
from tests.adaptation.together import NO_DROPOUT, launch, main, main_mixed, mixed, one_step
from tests.cases import each
from tests.kills import killed
from tests.papers.test_contract import DOCUMENTS, SHORT
from tests.tasks.test_classification import keyword_task
from tests.tiny import save_tiny, tiny_model, tiny_tokenizer

OPTIONS = {**SHORT, "steps": 4, "batch_size": 8}


@pytest.fixture(scope="module")
def together(tmp_path_factory, _own_cache):
    """The output folder of two processes that shared a run."""
    out = tmp_path_factory.mktemp("together")
    save_tiny("bert", out / "bert")
    save_tiny("bert", out / "still", **NO_DROPOUT)
    with killed(3):  # two processes will continue this run
        adapt(out / "still", Corpus.of(DOCUMENTS), "mlm", out / "more", save_every=2, **OPTIONS)
    launch(main, out)
    return out


@pytest.mark.slow
@each(("name", "graph_tokens"), [("kept", 10**6), ("twice", 0), ("mixed", 0)])
def test_loss_and_gradients_are_those_of_one_process(together, name, graph_tokens):
    """MLM, and contrastive losses with negatives of both processes; in ``mixed`` only one process keeps its graphs."""
    alone = one_step(ProcessGroup(), graph_tokens)
    for rank in range(2):
        shared = load_file(together / f"{name}-{rank}.safetensors")
        assert shared.keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(shared[key], value, rtol=1e-4, atol=1e-6, msg=f"{key} in process {rank}")


@pytest.mark.slow
def test_an_adaptation_ends_with_the_same_weights(together, tmp_path):
    options = {**SHORT, "steps": 4, "batch_size": 8}
    adapt(together / "still", Corpus.of(DOCUMENTS), "mlm", tmp_path / "alone", **options)
    alone, shared = (load_file(path / "model.safetensors") for path in (tmp_path / "alone", together / "mlm"))
    cards = [read_json(path / "acclimate.json") for path in (tmp_path / "alone", together / "mlm")]
    assert cards[0]["result"]["steps"] == cards[1]["result"]["steps"] == 4
    assert cards[0]["result"]["tokens"] == cards[1]["result"]["tokens"]
    start = load_file(together / "still" / "model.safetensors")
    moved = max((shared[name] - start[name]).abs().max() for name in shared)
    assert moved > 1e-4
    for name, value in alone.items():
        torch.testing.assert_close(shared[name], value, rtol=0, atol=0.02 * float(moved), msg=name)


@pytest.mark.slow
@each("name", ["more", "fewer"])
def test_a_run_continues_with_another_number_of_processes(together, name, caplog):
    """From one process to two, and from two to one; without dropout it ends with the same weights."""
    again = adapt(together / "still", Corpus.of(DOCUMENTS), "mlm", together / name, save_every=2, **OPTIONS)
    warned = caplog.text or (together / "0.log").read_text()
    assert f"had {1 if name == 'more' else 2} process(es)" in warned
    assert again.steps == 4
    start, whole, found = (load_file(together / folder / "model.safetensors") for folder in ("still", "mlm", name))
    moved = max((whole[key] - start[key]).abs().max() for key in whole)
    for key, value in whole.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=0.02 * float(moved), msg=key)


@pytest.mark.slow
def test_sums_of_gradients_start_during_the_backward_pass(together):
    """In the order of the buckets in both processes, although their gradients may be complete in another order."""
    for rank in range(2):
        for buckets, early in json.loads((together / f"buckets-{rank}.json").read_text()):
            assert buckets > 20 and early > buckets / 2


@pytest.mark.slow
def test_processes_round_weights_alike_and_go_on_with_their_own_random_numbers(together):
    (mine, in_step, after), (other, alike, later) = (
        json.loads((together / f"rounding-{rank}.json").read_text()) for rank in range(2)
    )
    assert in_step == alike and mine != other and after != later


@pytest.mark.slow
@pytest.mark.needs("dga")
@each(("method", "numbers", "others"), [("lm", 2, {}), ("dga", 4, {"all_gather": 1})])
def test_what_processes_exchange_in_a_step(together, method, numbers, others):
    """On an emulated accelerator, besides the sums of gradients; exchanged numbers make no process wait for it."""
    for rank in range(2):
        for step in json.loads((together / f"cost-{method}-{rank}.json").read_text()):
            assert step.pop("waits") <= 2 and step.pop("numbers") <= numbers
            assert {name: count for name, count in step.items() if count} == {"all_reduce": 1, **others}


def test_sums_take_little_extra_memory(monkeypatch):
    """Also if they end as late as possible; a large gradient is summed where it is."""
    held, most = [], []

    class Sum:
        def __init__(self, values):
            self.values = values

        def wait(self, *_):
            self.values.mul_(2)
            held.pop(0)

    def all_reduce(values, async_op):
        own = all(parameter.grad is None or values.data_ptr() != parameter.grad.data_ptr() for parameter in parameters)
        held.append(values.nbytes if own else 0)
        most.append((sum(held), len(held)))
        return Sum(values)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")
    monkeypatch.setattr(distributed, "BUCKET_BYTES", 1_000)
    sizes = [30, 20, 400, *[60] * 40, 1, 200, 3]
    parameters = [torch.nn.Parameter(torch.full((size,), 0.5)) for size in sizes]
    parameters[7] = torch.nn.Parameter(parameters[7].detach().bfloat16())
    frozen = torch.nn.Parameter(torch.ones(9), requires_grad=False)
    with ProcessGroup(0, 2).sum_gradients([frozen, *parameters]) as last_pass:
        (parameters[3].sum() * 2).backward()
        with last_pass():
            sum(parameter.float().square().sum() for parameter in parameters[1:]).backward()
        assert most, "some sums start before the end"
    assert max(size for size, _ in most) <= 1_000 * distributed.MAX_RUNNING_BUCKETS
    assert not held and frozen.grad is None
    for number, parameter in enumerate(parameters):
        expected = [0, 2, 2, 6][number] if number < 4 else 2
        assert parameter.grad.eq(expected).all() and parameter.grad.dtype == parameter.dtype


@pytest.mark.slow
def test_a_mix_has_the_same_shares_and_weights(together, tmp_path):
    launch(main_mixed, together)
    options = {**SHORT, "steps": 4, "batch_size": 8, **mixed()}
    result = adapt(together / "still", Corpus.of(DOCUMENTS), "mlm", tmp_path / "alone", **options)
    for text, one in zip(
        read_json(together / "mixed-texts" / "acclimate.json")["result"]["mix"], result.mix, strict=True
    ):
        assert text.pop("loss") == pytest.approx(one.pop("loss"), abs=1e-3)  # the losses of the last step
        assert [step for step, _ in one["weights"]] == [0, 2, 3]
        np.testing.assert_allclose(text.pop("weights"), one.pop("weights"), atol=1e-3)
        np.testing.assert_allclose(text.pop("share"), one.pop("share"), atol=1e-3)
        assert text == one
    alone, shared = (load_file(path / "model.safetensors") for path in (tmp_path / "alone", together / "mixed-texts"))
    start = load_file(together / "still" / "model.safetensors")
    moved = max((shared[name] - start[name]).abs().max() for name in shared)
    for name, value in alone.items():
        torch.testing.assert_close(shared[name], value, rtol=0, atol=0.02 * float(moved), msg=name)


@pytest.mark.slow
@pytest.mark.needs("dga")
def test_one_process_writes_and_nothing_is_left_over(together):
    for name in ("mlm", "dga", "timed"):
        assert (together / name / "model.safetensors").is_file()
        lines = (together / name / "log.jsonl").read_text().splitlines()
        steps = [json.loads(line)["step"] for line in lines]
        assert steps
        assert steps == sorted(set(steps)), "each once"
    left = {path.name for path in together.glob(".*")}
    assert left <= {".fewer.work"}, "all but that of the run that is killed, and continued by another test"
    assert read_json(together / "dga" / "acclimate.json")["result"]["losses"].keys() >= {"mlm", "contrast"}
    assert read_json(together / "timed" / "acclimate.json")["result"]["steps"] >= 1


@pytest.mark.slow
@pytest.mark.needs("dga")
def test_a_killed_run_resumes_with_the_same_result(together):
    whole, cut = (load_file(together / name / "model.safetensors") for name in ("dga", "cut"))
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert read_json(together / "cut" / "acclimate.json")["result"]["steps"] == 4


@pytest.mark.slow
def test_importance_sums_over_processes_and_stops_together(together):
    """Each group of 20 tokens is shared by both; a process that measured another group alone would wait forever."""
    summary = read_json(together / "early" / "importance.json")
    assert 4 * 20 < summary["tokens"] <= 4 * (20 + SHORT["max_length"])
    assert 0 < summary["standard_error"] < 1


@each("size", [2, 3, 5])
def test_every_text_of_a_step_is_read_once(size):
    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.3), MASKED, 10_000)
    data = rows(3)
    found = []
    for rank in range(size):
        steps = StepDataset(data, collator, batch_size=7, steps=2, seed=0, group=ProcessGroup(rank, size))
        batches = steps[0]
        assert batches, "every process has something to read"
        found += [
            tuple(batch.original[batch.text == number].tolist()) for batch in batches for number in range(batch.texts)
        ]
    wanted = [tuple(np.asarray(data[index]).tolist()) for index in steps.indices(0)]
    assert sorted(found) == sorted(wanted)


def texts_of(batches):
    """The ids, masked ids and labels of each text."""
    return sorted(
        [value[batch.text == number].tolist() for value in (batch.original, batch.masked, batch.labels)]
        for batch in batches
        for number in range(batch.texts)
    )


def random_rows(count, longest=60):
    chance = np.random.default_rng(0)
    lengths = chance.integers(3, longest, count)
    return TokenDataset(chance.integers(10, 60, lengths.sum()), lengths.cumsum(), np.arange(count), fingerprint="")


@each("layout", ["padded", "packed"])
@each("strategy", ["random", "whole-word"])
def test_masks_do_not_depend_on_the_number_of_processes(layout, strategy, monkeypatch):
    """Nor do rewritten texts; each process has about as many tokens as the others."""
    monkeypatch.setattr(cutting, "MASK_BLOCK", 16)
    data, rewritings = random_rows(300), (ExtractNGram(), MaskNGram())
    masking = resolve(strategy, 0.3)
    collator = Collator.of(tiny_tokenizer(), masking, MASKED, 10_000, layout, rewritings, capacity=120)
    found = []
    for size in (1, 2, 6, 24):
        groups = [ProcessGroup(rank, size) for rank in range(size)]
        shares = [StepDataset(data, collator, batch_size=130, steps=3, seed=0, group=group)[1] for group in groups]
        found.append([texts_of(batch for share in shares for batch in share)])
        for how in rewritings:
            inputs = [batch.rewritten[how] for share in shares for batch in share]
            found[-1].append(
                sorted(one.ids[one.text == k].tolist() for one in inputs for k in range(int(one.text.max()) + 1))
            )
        loads = [sum(batch.text.numel() for batch in share) for share in shares]
        assert max(loads) <= 1.3 * sum(loads) / size or size > 6
    assert all(one == found[0] for one in found)


def test_a_step_of_one_block_has_the_masks_of_one_generator():
    data, collator = random_rows(300), Collator.of(tiny_tokenizer(), RandomMasking(0.3), MASKED, 500)
    steps = StepDataset(data, collator, batch_size=cutting.MASK_BLOCK, steps=3, seed=5)
    texts = [np.asarray(data[index]) for index in steps.indices(2)]
    assert texts_of(steps[2]) == texts_of(collator(texts, np.random.default_rng([5, 2, 2])))


def test_a_process_collates_only_its_share(monkeypatch):
    """With 64 processes of 256 texts, each reads, masks and cuts as many texts as a single one with 256."""
    work = {"read": 0, "masked": 0, "cut": 0}

    def counting(name, function, size):
        def run(*args):
            work[name] += size(*args)
            return function(*args)

        return run

    monkeypatch.setattr(TokenDataset, "row", counting("read", TokenDataset.row, lambda *_: 1))
    monkeypatch.setattr(
        RandomMasking, "choose", counting("masked", RandomMasking.choose, lambda _, ids, *__: len(ids))
    )
    cut = counting("cut", batches.split_micro_batches, lambda lengths, *_: len(lengths))
    monkeypatch.setattr(batches, "split_micro_batches", cut)
    policy = POLICIES["cuda"]._replace(padding_cost=0.0, batch_overhead=FEWEST_BATCHES)
    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.15), MASKED, 65_536, policy=policy)
    data, seconds = random_rows(64 * 256 + 9, 120), {}
    for size in (1, 64):
        steps = StepDataset(
            data, collator, batch_size=256 * size, steps=9, seed=0, group=ProcessGroup(size // 2, size)
        )
        steps[0]
        work.update(dict.fromkeys(work, 0))
        (batch,) = steps[1]
        assert work == {"read": 256, "masked": 256, "cut": 256} and batch.texts == 256
        times = []
        for step in range(2, 6):
            start = time.process_time()
            steps[step]
            times.append(time.process_time() - start)
        seconds[size] = min(times)
    assert seconds[64] < 4 * seconds[1]


def test_each_process_reads_its_own_part_of_a_sample(monkeypatch):
    """Together they read each text once, also if the last group has fewer texts than there are processes."""
    monkeypatch.setattr(method, "SAMPLE_GROUP_TOKENS", 200)
    monkeypatch.setattr(cutting, "MASK_BLOCK", 4)
    data, read, row = random_rows(60), [], TokenDataset.row
    monkeypatch.setattr(TokenDataset, "row", lambda *args: read.append(1) or row(*args))
    model = tiny_model("bert")
    layers, texts = attach(model), []
    for rank in range(4):
        place, before = ProcessGroup(rank, 4), len(read)
        context = AdaptContext(model, layers, tiny_tokenizer(), data, RandomMasking(0.3), 5, "fp32", False, place)
        groups = list(context.sample_groups(10**6))
        assert len(groups) == 3 and sum(tokens for tokens, _ in groups) == data.tokens
        mine = texts_of(batch for _, batches in groups for batch in batches)
        assert len(mine) <= len(read) - before <= len(mine) + 8
        texts += mine
    wanted = sorted(np.asarray(data[index]).tolist() for index in range(len(data)))
    assert sorted(original for original, *_ in texts) == wanted
    lone = AdaptContext(
        model, layers, tiny_tokenizer(), data, RandomMasking(0.3), 5, "fp32", False, ProcessGroup(3, 4)
    )
    assert [batches for _, batches in lone.sample_groups(1)] == [[]], "the only text is that of another process"


@each("tokens", [150, 10_000])
@each("size", [2, 4, 8])
@each("policy", [MINIMAL_PADDING, PaddingPolicy(multiple=8, padding_cost=0.2)])
def test_processes_have_similar_loads(tokens, size, policy):
    chance = np.random.default_rng(0)
    data = TokenDataset.of([list(chance.integers(10, 60, length)) for length in chance.integers(3, 70, 64)])
    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.3), MASKED, tokens, policy=policy)
    steps = [
        StepDataset(data, collator, batch_size=64, steps=1, seed=0, group=ProcessGroup(rank, size))
        for rank in range(size)
    ]
    loads = [sum(policy.batch_cost(batch.text) for batch in each[0]) for each in steps]
    assert max(loads) <= 1.2 * sum(loads) / size


def test_fewer_texts_than_processes_is_an_error():
    collator = Collator.of(tiny_tokenizer(), RandomMasking(0.3), MASKED, 100)
    with pytest.raises(UserError, match="batch-size 2 is less than the 3 processes"):
        StepDataset(rows(), collator, batch_size=2, steps=1, seed=0, group=ProcessGroup(0, 3))


def test_the_share_of_a_process_is_said_and_a_small_one_is_a_warning(capsys, caplog):
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    report_batch(64, 74.4, ProcessGroup(0, 8), cpu, True)
    assert "64 texts per step in 8 processes; each reads 8 texts, or 595 tokens." in capsys.readouterr().err
    report_batch(64, 74.4, ProcessGroup(), cpu, True)
    report_batch(1_024, 74.4, ProcessGroup(0, 8), gpu, False)
    report_batch(64, 74.4, ProcessGroup(1, 8), gpu, False)
    assert not capsys.readouterr().err and not caplog.records
    report_batch(64, 74.4, ProcessGroup(0, 8), gpu, False)
    assert "only 595 tokens per step" in caplog.text and "--batch-size 3584" in caplog.text


def test_a_single_process_is_unchanged():
    group = ProcessGroup()
    value = torch.randn(3, 2)
    assert group.gather(value) == (value, slice(0, 3))
    assert group.add([value])[0] is value
    assert group.broadcast_value(0.3) == 0.3
    assert group.share([1, 2, 3]) == [1, 2, 3]
    before = torch.get_rng_state()
    with group.shared_random_state(), group.main_process_first():
        pass
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_fine_tuning_is_that_of_one_process(together, tmp_path):
    """Without dropout, also if a step leaves a process without rows."""
    options = {"epochs": 2, "batch_size": 7, "select": "dev", "precision": "fp32", "progress": False, "seed": 3}
    alone = finetune(
        together / "still", keyword_task(train=22, test=12), out=tmp_path / "tuned", learning_rate=1e-3, **options
    )
    shared = json.loads((together / "tuned" / "metrics.json").read_text())
    assert (shared["epoch"], shared["steps"]) == (alone.epoch, alone.steps)
    assert shared["train_loss"] == pytest.approx(alone.train_loss, rel=1e-5)
    one, two = (load_file(folder / "tuned" / "model.safetensors") for folder in (tmp_path, together))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=2e-4, rtol=1e-3)
    assert not (together / ".tuned.work").exists()
