"""Make what the two studies of this folder read, next to this file: texts, and a decoder that has read Wikipedia."""

import gzip
import json
from itertools import islice
from pathlib import Path

from acclimate import pretrain
from acclimate.models.generating import Decoding, write_texts
from acclimate.models.loading import load_language_model

HERE = Path(__file__).resolve().parent
SHARED = HERE.parents[3] / "shared"
TEXTS, MODEL = SHARED / "data" / "corpora", SHARED / "models" / "stories260k"
DOCUMENTS, STORIES, TOKENS = 1000, 60, 400
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 86,
}

if __name__ == "__main__":
    for name in ("biomed", "cs_papers"):
        with gzip.open(TEXTS / name / "train.jsonl.gz", "rt", encoding="utf-8") as file:
            (HERE / f"{name}.jsonl").write_text("".join(islice(file, DOCUMENTS)), encoding="utf-8")
    loaded = load_language_model(MODEL)
    start = loaded.tokenizer.bos_token_id
    stories = write_texts(loaded.model, loaded.tokenizer, [[start]] * STORIES, Decoding(TOKENS, (), 1.0, 1), times=8)
    rows = [json.dumps({"text": story.text}) for story in stories]
    (HERE / "stories.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")

    shape = json.loads((MODEL / "config.json").read_text(encoding="utf-8")) | SHAPE
    shape.pop("dtype", None)
    (HERE / "narrow.json").write_text(json.dumps(shape), encoding="utf-8")
    pretrain(
        TEXTS / "general_wikipedia" / "train.jsonl.gz",
        HERE / "narrow",
        architecture=HERE / "narrow.json",
        objective="causal",
        tokenizer=MODEL,
        tokens=800_000,
        max_length=256,
        batch_size=16,
        learning_rate=4e-3,
        warmup=0.05,
        precision="fp32",
    )
