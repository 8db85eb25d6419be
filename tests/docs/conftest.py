"""A folder with the models, texts and tasks that the pages name, all of them tiny."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas
import pytest
import yaml

from acclimate.base.files import read_json
from acclimate.models.saving import write_pooling
from tests.data.test_conversion import write_docx, write_pdf
from tests.data.transform import recipes
from tests.docs.blocks import DOMAIN, STUDY, Runner
from tests.servers import completion, serve
from tests.tiny import TEXTS, save_tiny

POSITIONS = 1100
ENCODERS_NAMED = ("roberta-base", "bert-base-uncased", "bert-base-cased")
DECODERS_NAMED = ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M-Instruct", "Qwen/Qwen3-0.6B")
TEXT_FILES = ("general", "heldout", "law", "notes", "sea", "source", "terms", "tweets", "wiki")
LINKS = {
    "bert-base-uncased": (
        "small",
        "fixed-run",
        "experts/law",
        "experts/news",
        "seeds/seed-0",
        "seeds/seed-1",
        "seeds/seed-2",
        "tuned",
        "adapted-and-tuned",
        "a",
        "adapted-law",
        "adapted-news",
        "adapted-reviews",
        "b",
        "one",
    ),
    "HuggingFaceTB/SmolLM2-135M": ("HuggingFaceTB/SmolLM2-1.7B",),
    "reviews": ("articles", "both", "domain", "law", "news", "phones", "pile", "pool", "restaurants", "target"),
    "tasks/restaurant": ("task", "general-task"),
    "reviews.csv": ("source.csv", "labelled.csv", "labelled/reviews.csv", "new.csv", "pseudo.csv", "task.csv"),
    "reviews/a.jsonl.gz": ("pool.jsonl.gz",),
}
"""Samples, and other names of them."""
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


def lines(name: str, count: int = 40) -> list[str]:
    """Return different texts for a file."""
    return [f"{TEXTS[number % len(TEXTS)]} {name} {number}" for number in range(count)]


def rows(first: str, second: str) -> list[dict]:
    """Return rows of a task with these columns, as many of each label."""
    return [{first: text, second: ("no", "yes")[number % 2]} for number, text in enumerate(lines(first, 20))]


def tags(text: str) -> list[str]:
    """Return a tag for each word of a text, with the dishes as entities."""
    return ["B-Dish" if word in ("soup", "wine", "pasta") else "O" for word in text.split()]


def write_lines(file: Path, records: list[dict]) -> None:
    """Write JSON lines, compressed if the name ends in ``.gz``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def write_models(folder: Path) -> None:
    """Write tiny models under the names of real ones."""
    for seed, name in enumerate(ENCODERS_NAMED):
        save_tiny("bert", folder / name, seed, max_position_embeddings=POSITIONS)
    encoder = folder / "sentence-transformers" / "all-MiniLM-L6-v2"
    save_tiny("bert", encoder, max_position_embeddings=POSITIONS)
    write_pooling(encoder, "mean", read_json(encoder / "config.json")["hidden_size"])
    for seed, name in enumerate(DECODERS_NAMED):
        save_tiny("llama", folder / name, seed, num_hidden_layers=4, max_position_embeddings=POSITIONS)
        (folder / name / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def write_texts(folder: Path) -> None:
    """Write unlabelled text in the forms that the pages name."""
    for name in TEXT_FILES:
        (folder / f"{name}.txt").write_text(
            "\n".join(lines(name, 400 if name == "wiki" else 40)) + "\n", encoding="utf-8"
        )
    for name in ("reviews.jsonl.gz", "reviews/a.jsonl.gz", "reviews/b.jsonl.gz", "papers/a.jsonl.gz"):
        write_lines(folder / name, [{"text": text} for text in lines(name)])
    long = "the restaurant at the end of the road served soup and wine to table"
    pages = [f"Today {long} {n}. {('However', 'Therefore')[n % 2]}, tomorrow {long} {n + 1}." for n in range(40)]
    for name in ("text", "pages"):
        write_lines(folder / name / "a.jsonl", [{"text": text} for text in pages])
    products = [{"brand": f"Brand {n}", "price": n, "description": text} for n, text in enumerate(lines("product"))]
    pandas.DataFrame(products).to_csv(folder / "products.csv", index=False)
    pandas.DataFrame({"title": "a", "body": lines("article")}).to_csv(folder / "articles.csv", index=False)
    write_data_page(folder)
    chats = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}]}
        for text in lines("chat")
    ]
    write_lines(folder / "dialogues.jsonl", chats)
    write_lines(folder / "papers.jsonl", [{"text": text} for text in lines("paper")])
    write_lines(
        folder / "cited-by.jsonl",
        [{"text": text, "code": f"c{place // 4}"} for place, text in enumerate(lines("paper"))],
    )
    for name, peak in (("short", 1e-4), ("longer", 2e-4)):  # logs of trainings
        steps = [{"step": n, "learning_rate": peak * (1 - n / 100), "loss": 2 + 1 / n} for n in range(1, 100)]
        write_lines(folder / name / "log.jsonl", steps)
    talks = ["\n".join(lines("call")[first : first + 4]) for first in range(0, 40, 2)]
    write_lines(folder / "calls.jsonl", [{"text": text} for text in talks])


def write_data_page(folder: Path) -> None:
    """Write the files of docs/data.md that need more than UTF-8: an old table and documents."""
    table = ["id;review", *(f"{number};größer, {text}" for number, text in enumerate(lines("legacy")))]
    (folder / "legacy.csv").write_bytes("\n".join(table).encode("cp1252"))
    documents = folder / "documents"
    documents.mkdir()
    write_docx(documents / "menu.docx", lines("menu"))
    write_pdf(documents / "thesis.pdf", lines("thesis"))
    (documents / "page.html").write_text("".join(f"<p>{text}</p>" for text in lines("page")), encoding="utf-8")
    for number, text in enumerate(lines("note")):
        (documents / f"note{number}.md").write_text(f"# Note\n\n{text}\n", encoding="utf-8")


def write_tasks(folder: Path) -> None:
    """Write labelled tasks: single files, folders of splits, and question answering."""
    pandas.DataFrame(rows("review", "sentiment")).to_csv(folder / "reviews.csv", index=False)
    for place, model in enumerate(("base", "candidate")):
        evaluated = {
            "item": range(60),
            "task": ["mmlu", "quiz"] * 30,
            "passage": [number // 4 for number in range(60)],
        }
        for seed in (0, 1, 2):
            right = [int((number + seed) % 3 < 1 + place) for number in range(60)]
            scored = pandas.DataFrame(evaluated).assign(score=right, seed=seed)
            (folder / f"evaluated/{model}").mkdir(parents=True, exist_ok=True)
            scored.to_csv(folder / f"evaluated/{model}/seed-{seed}.csv", index=False)
        scored.drop(columns="seed").to_csv(folder / f"{model}.csv", index=False)
    turns = [
        {**row, "dialogue_id": n // 4, "dialogue_act": "at"[n % 2]} for n, row in enumerate(rows("text", "label"))
    ]
    write_lines(folder / "turns.jsonl", turns)
    for source, name in (("triples.csv", "triples.csv"), ("entities.vec", "umls.vec")):
        shutil.copy(Path(__file__).parents[1] / "papers" / source, folder / name)
    (folder / "umls.csv").write_text("entity,name\nfood,food\nsoup,cold soup\n", encoding="utf-8")
    pandas.DataFrame(rows("description", "queue")).assign(other="food").to_csv(folder / "tickets.csv", index=False)
    notes = pandas.DataFrame(rows("text", "label"))
    notes.assign(patient=notes.index // 4).to_csv(folder / "notes.csv", index=False)
    for name, codes in (("esco", ("2511", "2512", "3411")), ("manuals", ("a/b", "a/c", "d/e"))):
        entries = [{"text": f"{text}. {text}", "code": codes[n % 3]} for n, text in enumerate(lines(name, 24))]
        write_lines(folder / f"{name}.jsonl", entries)
    write_lines(folder / "pairs.jsonl", [{**row, "other": "food"} for row in rows("one", "same")])
    scored = [
        {"text": text, "text_pair": text[::-1], "score": 0.25 + number} for number, text in enumerate(lines("pair"))
    ]
    pandas.DataFrame(scored).to_csv(folder / "pairs.csv", index=False)
    coded = [{"text": text, "code": f"c{number // 4}"} for number, text in enumerate(lines("code"))]
    pandas.DataFrame(coded).to_csv(folder / "codes.csv", index=False)
    answers = [{"question": f"what of {text}?", "answer": text} for text in lines("answer")]
    pandas.DataFrame(answers).to_csv(folder / "general-pairs.csv", index=False)
    sums = [{"question": f"{number} + 1?", "answer": f"So #### {number + 1}"} for number in range(40)]
    pandas.DataFrame(sums).to_csv(folder / "sums.csv", index=False)
    for name in ("faq", "mmlu"):
        write_lines(folder / f"{name}.jsonl", answers)
    write_lines(folder / "samples_gsm8k.jsonl", [{"doc": row} for row in answers])
    prompts = ["Question: {question}\nAnswer:", "{question}\n{choices}\nAnswer:"]
    (folder / "templates.yaml").write_text(yaml.safe_dump(prompts), encoding="utf-8")
    write_retrieval(folder / "retrieval")
    for split in ("train", "dev", "test"):
        write_lines(folder / "tasks" / "restaurant" / f"{split}.jsonl", rows("text", "label"))
        choices = {"choices": ["aspirin", "metoprolol", "insulin"], "answer": 1}
        write_lines(folder / "exam" / f"{split}.jsonl", [{"question": text, **choices} for text in lines("exam", 12)])
        write_lines(
            folder / "ner" / f"{split}.jsonl",
            [{"tokens": text.split(), "tags": tags(text)} for text in lines("ner", 20)],
        )
    for split in ("train", "test"):
        write_questions(folder / "squad" / f"{split}.json")


def write_exports(folder: Path) -> None:
    """Write files as other programs export them: a dirty table of tickets, or of mails, and a log of clicks."""
    tickets = [
        {"subject": f"Größe {n}", "body": f"<p>{text}</p>", "queue": ("billing", "login")[n % 2]}
        for n, text in enumerate(lines("ticket", 80))
    ]
    tickets[3]["body"] = tickets[4]["queue"] = tickets[9]["queue"] = ""
    tickets[7]["queue"] = "LOGIN"
    table = pandas.DataFrame(tickets)
    table.to_csv(folder / "mails.csv", index=False)
    table.to_csv(folder / "export.csv", index=False, sep=";", encoding="cp1252")
    table[["subject", "body"]].to_csv(folder / "today.csv", index=False, sep=";", encoding="cp1252")
    found = lines("found", 40)
    pandas.DataFrame({"id": range(40), "text": found}).to_csv(folder / "passages.csv", index=False)
    clicks = [{"query": f"find {text}", "passage_id": n, "clicks": 1 + n % 4} for n, text in enumerate(found)]
    pandas.DataFrame(clicks).to_csv(folder / "clicks.csv", index=False)
    pandas.DataFrame(clicks)[["query"]].to_csv(folder / "searches.csv", index=False)


def write_dated(folder: Path) -> None:
    """Write the files of docs/time.md: texts, labelled rows and questions with dates."""
    dated = [{"text": text, "date": f"{2022 + n % 2}-0{n % 9 + 1}-11"} for n, text in enumerate(lines("post", 160))]
    write_lines(folder / "posts.jsonl", dated)
    labelled = [{**row, "label": ("no", "yes")[n // 2 % 2]} for n, row in enumerate(dated)]
    pandas.DataFrame(labelled).to_csv(folder / "dated.csv", index=False)
    asked = [{"question": text, "choices": ["aspirin", "insulin"], "answer": 1} for text in lines("news", 160)]
    write_lines(folder / "news.jsonl", [one | {"date": row["date"]} for one, row in zip(asked, dated, strict=True)])


def write_links(folder: Path) -> None:
    """Write the other names of samples."""
    for sample, others in LINKS.items():
        for name in others:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).symlink_to(folder / sample)


def write_retrieval(folder: Path) -> None:
    """Write queries and documents in the layout of BEIR."""
    texts = lines("passage", 20)
    write_lines(folder / "corpus.jsonl", [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(texts)])
    write_lines(
        folder / "queries.jsonl", [{"_id": f"q{n}", "text": f"where is {text}"} for n, text in enumerate(texts)]
    )
    (folder / "qrels").mkdir()
    for split, numbers in (("train", range(12)), ("test", range(12, 20))):
        answers = [f"q{n}\td{n}\t1" for n in numbers]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *answers, ""]))


def write_questions(file: Path) -> None:
    """Write questions in the format of SQuAD."""
    file.parent.mkdir(exist_ok=True)
    questions = [
        {
            "context": f"the soup was cold and the wine was good {number}",
            "qas": [
                {
                    "id": f"{file.stem} {number}",
                    "question": "what was cold?",
                    "answers": [{"text": "soup", "answer_start": 4}],
                }
            ],
        }
        for number in range(8)
    ]
    file.write_text(json.dumps({"data": [{"paragraphs": questions}]}), encoding="utf-8")


@pytest.fixture(scope="session")
def samples(tmp_path_factory) -> Path:
    """The folder of samples, which no test changes."""
    folder = tmp_path_factory.mktemp("samples")
    for write in (write_models, write_texts, write_tasks, write_exports, write_dated, write_links):
        write(folder)
    study = {**STUDY, "domains": [{**DOMAIN, "tasks": ["reviews.csv"]}], "seeds": 2}
    (folder / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def writer() -> Iterator[str]:
    """The address of a server of language models that answers the prompts of recipes."""
    with serve(lambda prompt, _: completion(recipes.write(prompt))) as server:
        yield server.url


@pytest.fixture
def workspace(samples, writer, tmp_path, monkeypatch) -> Path:
    """A new current folder with links to the samples, also as models that a page or a study expects to be there."""
    monkeypatch.setattr(Runner, "server", writer)
    for sample in samples.iterdir():
        (tmp_path / sample.name).symlink_to(sample)
    for made in ("adapted", "scratch"):
        (tmp_path / made).symlink_to(samples / "bert-base-uncased")
    monkeypatch.chdir(tmp_path)
    return tmp_path
