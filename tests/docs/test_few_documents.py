"""The table of what recipes cost: calls, and how much a model reads."""

from __future__ import annotations

import gzip
import json
import re

import pytest

from acclimate.data.operations import TRANSFORMS, Context
from acclimate.data.pool import Documents
from tests.docs.blocks import DOCS, ROOT

ABSTRACTS = ROOT.parent / "shared" / "data" / "corpora" / "biomed" / "heldout.jsonl.gz"
OPTIONS = {"annotate-labels": {"labels": "a,b,c"}, "annotate-entities": {"labels": "drug,disease"}}


def test_recipes_cost_what_the_page_says():
    """Words stand for tokens, whose number per word is nearly the same in prompts and documents."""
    if not ABSTRACTS.is_file():
        pytest.skip("needs the corpus of the studies")
    with gzip.open(ABSTRACTS, "rt", encoding="utf-8") as file:
        documents = [json.loads(next(file))["text"] for _ in range(20)]
    prompts = []

    def answer(prompt):
        prompts.append(prompt)
        if "List the entities" in prompt:
            return json.dumps([f"entity {number}" for number in range(20)])
        if "different strategies" in prompt:
            return "\n".join(f"{number}. strategy number {number} is this" for number in range(1, 11))
        return f"text {len(prompts)} of many."

    page = (DOCS / "guides" / "few-documents.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:\[?`[\w-]+`[^|]*)+) \| [^|]+ \| (\d+) \| ([\d., ]+) \|$", page, flags=re.M)
    assert len(rows) == 6
    for names, calls, reads in rows:
        for name, read in zip(re.findall(r"`([\w-]+)`", names), reads.split(", "), strict=True):
            prompts.clear()
            recipe = TRANSFORMS.lookup(name)(by=answer, key=name, **OPTIONS.get(name, {}))
            list(recipe.apply(Documents.of(((text, 0) for text in documents), ("x",)), Context()))
            ratio = sum(len(prompt.split()) for prompt in prompts) / sum(len(text.split()) for text in documents)
            assert len(prompts) == int(calls) * len(documents), name
            assert ratio == pytest.approx(float(read), rel=0.2), name
