"""Make the tables that `pairs` reads, next to this file: a random sentence of each passage, and the rest of it."""

import json
import random
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
TASKS = HERE.parents[3] / "shared" / "data"

if __name__ == "__main__":
    for name in ("restaurant", "covid"):
        drawn, rows = random.Random(0), list[dict[str, str]]()
        with (TASKS / f"retrieval_{name}" / "corpus.jsonl").open(encoding="utf-8") as file:
            passages = [json.loads(line) for line in file]
        for passage in passages:
            sentences = [one for one in re.split(r"(?<=[.!?])\s+", passage["text"]) if len(one.split()) > 3]
            if len(sentences) > 1:
                sentence = sentences.pop(drawn.randrange(len(sentences)))
                rows += [{"text": text, "code": passage["_id"]} for text in (sentence, " ".join(sentences))]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (HERE / f"{name}.jsonl").write_text(lines, encoding="utf-8")
