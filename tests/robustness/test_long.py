"""A corpus that is much larger than the memory used to read it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MEGABYTES = int(os.environ.get("ACCLIMATE_LONG_TEXT_MB", "3000"))
"""Size of the large corpus in MB; 3,000 take about half an hour on one core."""

PROGRAM = """
import sys, threading, time
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from acclimate.models.kinds import MASKED
from acclimate.data.documents import Corpus
from acclimate.data.tokenizing import tokenize
from acclimate.parts.masking import RandomMasking
from acclimate.engine.batches import Collator, StepDataset

path, words, cache = sys.argv[1:]
peak = 0

def watch():
    # What is mapped from disk is given back when memory is short; what counts is what the process holds itself.
    global peak
    while True:
        with open("/proc/self/status") as file:
            held = next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
        peak = max(peak, held)
        time.sleep(0.02)

special = ["[PAD]", "[UNK]", "[MASK]"]
vocabulary = {word: i for i, word in enumerate([*special, *open(words).read().split()])}
backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]"
)
threading.Thread(target=watch, daemon=True).start()
rows = tokenize(Corpus(path), tokenizer, 128, cache=cache, progress=False)
data = StepDataset(rows, Collator.of(tokenizer, RandomMasking(0.15), MASKED, 4096), batch_size=32, steps=100, seed=0)
for step in range(100):
    data[step]
time.sleep(0.1)
print(peak // 1024, rows.tokens)
"""


def write(path: Path, megabytes: int, words: list[str]) -> None:
    """Documents of about 4 kB, no two the same."""
    chance = random.Random(0)
    paragraphs = [" ".join(chance.choices(words, k=26)) for _ in range(2000)]
    written = number = 0
    with path.open("w") as file:
        while written < megabytes << 20:
            written += file.write(f"{number} {' '.join(chance.choices(paragraphs, k=3))}\n")
            number += 1


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path):
    if shutil.disk_usage(tmp_path).free < 2 * MEGABYTES << 20:
        pytest.skip("not enough room on the disk")
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnop", k=50)) for _ in range(300)]
    (tmp_path / "words").write_text("\n".join(words))
    peaks, tokens = [], []
    for name, size in (("small", 20), ("large", MEGABYTES)):
        write(tmp_path / f"{name}.txt", size, words)
        command = [sys.executable, "-c", PROGRAM, tmp_path / f"{name}.txt", tmp_path / "words", tmp_path / "cache"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peak, count = map(int, done.stdout.split())
        peaks.append(peak)
        tokens.append(count)
    sys.stdout.write(f"peak of {MEGABYTES} MB: {peaks[1]} MB held; of 20 MB: {peaks[0]} MB\n")
    assert tokens[1] > 0.9 * MEGABYTES / 20 * tokens[0]
    assert peaks[1] < peaks[0] + 300
