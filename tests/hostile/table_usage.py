"""Hostile studies, options, output directories and environments, and hostile input of every verb."""

from __future__ import annotations

import errno
import os
import sys

from accelerate import PartialState

from tests.hostile.checks import (
    ADVISE,
    ANNOTATE,
    AUTO,
    BARE,
    DISTILL,
    DONE,
    DRY,
    EMBEDDINGS,
    IMPORTANCE,
    INIT,
    LEAKAGE,
    MASKS,
    MERGE,
    PRETRAIN,
    TEXT,
    TRAIN,
    TUNE,
    TUNED,
    few_files,
    holds,
    hostile_names,
    in_a_deleted_folder,
    is_escaped,
    is_in_home,
    is_still_a_link,
    made,
    not_run,
    readable_by_all,
    still_has_its_text,
)
from tests.hostile.makers import (
    BOMB,
    SCORES,
    cut,
    fifo,
    folder_of,
    label_no,
    link,
    mode,
    put,
    remove,
    several,
    study,
    study_domain,
    study_text,
    task,
)
from tests.hostile.runner import Case, give_up_rights

STUDIES = [
    Case("no file", "compare nope.yaml --out out", 2, r"No study file at 'nope\.yaml'"),
    Case("a pipe as study", DRY, 2, r"study\.yaml", several(remove("study.yaml"), fifo("study.yaml"))),
    Case("binary", DRY, 2, r"Cannot parse study file 'study\.yaml'", put("study.yaml", b"\xff\xfe\x00")),
    Case("a list", DRY, 2, r"a study is a table of keys", put("study.yaml", "[1, 2]")),
    Case("an alias bomb", DRY, 2, r"^Error: .*study\.yaml", study_text(f"{BOMB}notes: [*a11]")),
    Case(
        "an alias bomb as parameter", DRY, 2, r"^Error: .*study\.yaml",
        study_text(f"{BOMB}methods: [{{name: mlm, x: *a11}}]", "methods"),
    ),
    Case("an alias to itself", DRY, 2, r"^Error: .*study\.yaml", study_text("methods: &a [*a]", "methods")),
    Case("deep nesting in a study", DRY, 2, r"^Error: .*study\.yaml", put("study.yaml", "[" * 5000)),
    Case(
        "code in YAML", DRY, 2, r"Cannot parse", study_text("notes: [!!python/object/apply:os.system ['touch ran']]"),
        check=not_run,
    ),
    Case("a duplicate key", DRY, 2, r"key 'seeds' is duplicated", study_text("seeds: 2")),
    Case("a misspelled key", DRY, 2, r"Did you mean 'methods'", study_text("methds: [mlm]", "methods")),
    Case("a misspelled option", DRY, 2, r"'?adapt", study(adapt={"stepps": 3}), also="Did you mean"),
    Case("a misspelled method", DRY, 2, r"Did you mean 'mlm'", study(methods=["none", "mln"])),
    Case(
        "a misspelled parameter", DRY, 2, r"Did you mean 'temperature'",
        study(methods=[{"name": "dga", "temprature": 1}]),
    ),
    Case("steps of 400 digits", DRY, 2, r"adapt.*steps", study_text(f"adapt: {{steps: 1{'0' * 400}}}", "adapt")),
    Case("epochs of 400 digits", DRY, 2, r"adapt.*epochs", study_text(f"adapt: {{epochs: 1{'0' * 400}}}", "adapt")),
    Case(
        "an infinite learning rate", DRY, 2, r"learning_rate",
        study_text("finetune: {learning_rate: .inf}", "finetune"),
    ),
    Case(
        "an infinite first learning rate", DRY, 2, r"first_learning_rate",
        study_domain(tasks=[{"path": "task", "first": "task", "first_learning_rate": float("inf")}]),
    ),
    Case("a seed of 23 digits", DRY, 2, r"seeds", study(seeds=[10**22])),
    Case("a seed in octal", DRY, 2, r"010|octal", study_text("seeds: 010", "seeds")),
    Case("a seed in minutes", DRY, 2, r"1:30|sexagesimal", study_text("seeds: 1:30", "seeds")),
    Case("a name with a NUL", DRY, 2, r"name", study_domain(name="a\0b")),
    Case("a name of 3,000 letters", DRY, 2, r"name", study_domain(name="a" * 3000)),
    Case("a label read as false", DRY, 2, r"quote", label_no),
    Case("an unknown baseline", DRY, 2, r"baseline", study(baseline="lm")),
    Case(
        "an unreadable study", DRY, 2, r"study\.yaml", mode("study.yaml", 0), inside=give_up_rights,
        never="free some space",
    ),
    Case("a shard of nothing", "compare study.yaml --out out --shard 3/2", 2, r"^Error: .*3/2"),
    Case("a report of nothing", "compare study.yaml --out out --report-only", 2, r"No job of this study is finished"),
    Case("a file as study folder", "compare study.yaml --out text.txt", 2, r"'text\.txt' is a file"),
    Case("a file as folder of a plan", DRY.replace("--out out", "--out text.txt"), 2, r"'text\.txt' is a file"),
    Case("a dangling link as folder of a plan", DRY, 2, r"'out' is a link to 'gone'", link("out", "gone")),
]  # fmt: skip

OPTIONS = [
    Case("steps of 23 digits", TEXT.replace("steps 1", f"steps {'9' * 23}"), 2, r"steps"),
    Case("too many steps", TEXT.replace("steps 1", "steps 1000000000000000"), 2, r"steps"),
    Case("too many tokens", TRAIN + " --tokens 1000000000000000000000", 2, r"tokens"),
    Case("too many texts per step", TEXT.replace("batch-size 4", "batch-size 1000000000000"), 2, r"batch-size"),
    Case("too many epochs", TRAIN + " --epochs 1e308", 2, r"epochs"),
    Case("too long texts", TEXT.replace("max-length 24", "max-length 1000000000000"), 2, r"^Error: "),
    Case("a learning rate that is not a number", f"{TEXT} --learning-rate nan", 2, r"learning-rate"),
    Case("a learning rate that breaks the weights", f"{TEXT} --learning-rate 1e299", 2, r"^Error: .*finite"),
    Case(
        "a weight decay that breaks the weights", f"{TEXT} --weight-decay 1e308", 2,
        r"^Error: .*(finite|weight-decay)",
    ),
    Case(
        "a learning rate that ruins the model", TRAIN + " --steps 6 --learning-rate 1000", 0,
        r"^Warning: The mlm loss ended at .* probably diverged. Lower the learning rate",
    ),
    Case("a negative seed", f"{TEXT} --seed -1", 2, r"seed"),
    Case("a mask rate above one", f"{TEXT} --mask-rate 1.5", 2, r"mask-rate"),
    Case("a dropout of one", f"{TEXT} --dropout 1", 2, r"dropout"),
    Case("two budgets", f"{TEXT} --epochs 1", 2, r"(?i)give one of"),
    Case("an unknown number format", TEXT.replace("fp32", "fp8"), 2, r"'fp8' is not one of"),
    Case("an unknown tracker", f"{TEXT} --report-to nowhere", 2, r"nowhere"),
    Case("an unknown masking", f"{TEXT} --masking whole-wrod", 2, r"Did you mean 'whole-word'"),
    Case("a lexicon that is missing", f"{TEXT} --masking 'lexicon-first lexicon=./no.txt'", 2, r"no\.txt"),
    Case("a parameter without a name", f"{TEXT} --method 'lm nonsense'", 2, r"parameter=value"),
    Case("a step after the end", f"{TEXT} --keep-steps 7", 2, r"7"),
    Case("a misspelled flag", f"{TEXT} --bach-size 4", 2, r"--batch-size"),
    Case(
        "an alias bomb as configuration", f"{TEXT} --config run.yaml", 2, r"^Error: .*run\.yaml",
        put("run.yaml", f"{BOMB}settings: {{x: *a11}}"),
    ),
    Case(
        "a number as configuration", f"{TEXT} --config run.yaml", 2, r"must consist of names with values",
        put("run.yaml", "3"),
    ),
]  # fmt: skip

OUTPUTS = [
    Case("a file", f"{BARE} --out text.txt", 2, r"'text\.txt' is a file"),
    Case(
        "a folder of the user", TEXT, 2, r"^Error: .*'out' is not empty", put("out/notes.txt", "mine"),
        check=holds("out/notes.txt", "mine"),
    ),
    Case("the folder of the model", f"{BARE} --out bert", 2, r"^Error: .*'bert'"),
    Case(
        "a link to an empty folder", TEXT, 0, DONE, several(folder_of("real"), link("out", "real")),
        also="real: lm, 1 step, ", check=is_still_a_link,
    ),
    Case("a dangling link as output", TEXT, 2, r"^Error: .*out", link("out", "nowhere/real"), never="documents from"),
    Case("a link to itself as output", TEXT, 2, r"^Error: .*out", link("out", "out"), never="documents from"),
    Case(
        "a closed folder", f"{BARE} --out closed/out", 2, r"^Error: .*closed/out", folder_of("closed", 0o555),
        inside=give_up_rights,
    ),
    *(
        Case(
            f"a closed folder of {' '.join(verb.split()[:2])}", verb.replace("--out out", "--out closed/out"), 2,
            r"Cannot write next to 'closed/out'", folder_of("closed", 0o555), inside=give_up_rights,
        )
        for verb in (ANNOTATE, IMPORTANCE, MASKS, EMBEDDINGS)
    ),
    Case("a device", f"{BARE} --out /dev/null/out", 2, r"^Error: .*/dev/null"),
    Case("a name that is too long as output", f"{BARE} --out {'x' * 300}", 2, r"^Error: .*more than 200 bytes"),
    Case("a home folder", f"{BARE} --out '~/out'", 0, DONE, also="home/out: lm, 1 step, ", check=is_in_home),
    Case("a name that is not UTF-8", f"{BARE} --out caf\udce9", 2, r"^Error: .*UTF-8"),
    Case("an empty lock", TEXT, 0, DONE, put(".out.lock", ""), check=made),
    Case("a lock of junk", TEXT, 0, DONE, put(".out.lock", b"\x00\xff\n\n"), check=made),
    Case("a cut record of unfinished work", TEXT, 0, DONE, put(".out.work/acclimate.json", '{"model": '), check=made),
    Case("a cut record of a result", TEXT, 2, r"^Error: .*out", put("out/acclimate.json", '{"model": ')),
    Case(
        "an unreadable record", TEXT, 2, r"'out/acclimate\.json' cannot be read: Permission denied",
        several(put("out/acclimate.json", "{}"), mode("out/acclimate.json", 0)), inside=give_up_rights,
    ),
    Case(
        "an unreadable record of a seed", TUNE, 2, r"out/seed-0/run\.json' cannot be read: Permission denied",
        several(put("out/seed-0/run.json", "{}"), mode("out/seed-0/run.json", 0)), inside=give_up_rights,
    ),
    Case("JSON of another form as record", TEXT, 2, r"^Error: .*out", put("out/acclimate.json", "[]")),
    Case(
        "a data file as report", f"{LEAKAGE} --task task --out text.txt", 2, r"^Error: .*text\.txt",
        check=still_has_its_text,
    ),
    Case("a folder as report", f"{LEAKAGE} --task task --out bert", 2, r"^Error: .*bert"),
    Case("files follow the umask", TEXT, 0, DONE, check=readable_by_all),
    Case(
        "notes next to a seed", TUNE, 2, r"^Error: .*out/seed-0",
        several(put("out/seed-0/predictions.jsonl", ""), put("out/seed-0/notes.txt", "mine")),
        check=holds("out/seed-0/notes.txt", "mine"),
    ),
]  # fmt: skip

ENVIRONMENT = [
    *(
        Case(f"{name} is no number", TEXT, 2, rf"^Error: .*{name}", env={name: "abc"})
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    ),
    Case(
        "a launcher without an address", TEXT, 2, r"^Error: .*cannot be connected.*MASTER_ADDR",
        env={"WORLD_SIZE": "2", "RANK": "0"}, inside=PartialState._reset_state,
    ),
    Case("a cache that is a file", TEXT, 0, DONE, put("cache", "no folder"), also="ACCLIMATE_CACHE"),
    Case(
        "a cache that cannot be written", TEXT, 0, DONE, folder_of("cache", 0o555), inside=give_up_rights,
        also="ACCLIMATE_CACHE",
    ),
    Case(
        "a home that cannot be written", TEXT, 0, DONE, mode("home", 0o555), inside=give_up_rights,
        env={"ACCLIMATE_CACHE": ""}, also="ACCLIMATE_CACHE",
    ),
    Case("memory that is no number", TEXT, 2, r"ACCLIMATE_MEMORY_GB", env={"ACCLIMATE_MEMORY_GB": "lots"}),
    Case("unknown kernels", TEXT, 2, r"ACCLIMATE_KERNELS", env={"ACCLIMATE_KERNELS": "fast"}),
    Case("a terminal of ASCII", TUNE.replace("seeds 1", "seeds 2"), 0, TUNED, env={"PYTHONIOENCODING": "ascii"}),
    Case("no standard input", TEXT, 0, DONE, inside=lambda: sys.stdin.close(), check=made),
    Case("too few file descriptors", TEXT, 2, rf"^Error: .*{os.strerror(errno.EMFILE)}", inside=few_files),
    Case("a working folder that is gone", TEXT, 2, r"^Error: ", inside=in_a_deleted_folder),
]  # fmt: skip

INDEX = put("bert/model.safetensors.index.json", '{"weight_map": {"a": "../text.txt"}}')
EXPERTS = "inspect experts --target text.txt"
SPECIFICITY = "inspect specificity --before bert --general text.txt --quiet"
SEQUENCE = "sequence --model bert --domain a=text.txt --set evaluate.max_length=16 --set adapt.max_length=16 --out out"
TASK_WORDS = "inspect task-words --before bert --after bert --quiet"
SENSITIVITY = "inspect sensitivity --before bert --corpus text.txt"
REVIEW = "inspect review --result bert --positive good"
VERBS = [
    Case("pretrain: too large", f"{PRETRAIN} --set num_hidden_layers=1000000000", 2, r"num_hidden_layers"),
    Case("pretrain: an unknown architecture", f"{PRETRAIN} --architecture brt", 2, r"Did you mean 'bert'"),
    Case("pretrain: a vocabulary of one", f"{PRETRAIN} --vocab-size 1", 2, r"vocab"),
    Case("pretrain: works", f"{PRETRAIN} --size tiny --vocab-size 150 --set hidden_size=32", 0, DONE, check=made),
    Case("distill: no teacher", DISTILL.replace("teacher bert", "teacher ./no"), 2, r"\./no"),
    Case("distill: nothing to distill", f"{DISTILL} --epochs 1 --distill-share 0.5", 2, r"distill.share"),
    Case(
        "distill: works", f"{DISTILL} --epochs 2 --teacher-epochs 1 --student-epochs 1 --distill-share 0.5", 0,
        r"^ece: teacher",
    ),
    Case("advise: empty text", f"{ADVISE} --pilot-steps 0", 2, r"^Error: ", put("none.txt", "")),
    Case("advise: a negative number", f"{ADVISE} --pilot-steps -1", 2, r"pilot", put("none.txt", "good\n")),
    Case("plan ratio: no points", "plan ratio", 2, r"^Error: Give measured points with --log"),
    Case("plan ratio: text instead of points", "plan ratio --log text.txt", 2, r"^Error: 'text\.txt' cannot be read"),
    Case("judge: text instead of evaluations", "judge text.txt text.txt", 2, r"^Error: 'text\.txt' .*lm-eval"),
    Case("annotate: an unknown parameter", f"{ANNOTATE} --set dleta=1", 2, r"Did you mean 'delta'"),
    Case(
        "annotate: scores as labels", ANNOTATE, 2, r"needs a task with one label per text", task(SCORES),
    ),
    Case(
        "doctor: an unknown kind of kernels", "doctor", 0, r".", env={"ACCLIMATE_KERNELS": "fst"},
        also=r"Problem: ACCLIMATE_KERNELS is 'fst'; set it to auto or torch",
    ),
    Case("skill: a misspelled option", "skill --outt x", 2, r"has no option --outt"),
    Case("bench: a misspelled option", "bench --methd lm", 2, r"has no option --methd"),
    Case("merge: works", MERGE, 0, r"^out: interpolation", check=made),
    Case("merge: onto itself", f"{MERGE} --out bert --overwrite", 2, r"'bert' is one of the models"),
    Case("merge: no base", MERGE.replace("base bert", "base ./no"), 2, r"\./no"),
    Case("merge: an alpha that is no number", MERGE.replace("0.5", "nan"), 2, r"'alpha': .*finite number"),
    Case("merge: a weight that is no number", f"{MERGE} --method 'ties weights=1,x'", 2, r"parameter 'weights"),
    Case("merge: an incomplete file", MERGE, 2, r"cannot be read", cut("bert/model.safetensors")),
    Case("merge: a file elsewhere", MERGE, 2, r"outside the folder", several(remove("bert/model.safetensors"), INDEX)),
    Case("inspect importance: no name", f"{IMPORTANCE} --corpus text.txt", 2, r"expects (?i:name)="),
    Case("inspect importance: an unknown part", f"{IMPORTANCE} --corpus b=text.txt --parts X", 2, r"X"),
    Case("inspect model: no such folder", "inspect model ./no", 2, r"\./no"),
    Case("inspect model: works", "inspect model bert --out found.json", 0, r"found\.json"),
    Case("inspect masks: an unknown masking", f"{MASKS} --masking wrod", 2, r"Unknown masking"),
    Case("inspect masks: a rate above one", f"{MASKS} --mask-rate 2", 2, r"(?i)mask.rate"),
    Case(
        "inspect embeddings: no model", EMBEDDINGS.replace("after bert", "after ./no"), 2, r"\./no",
    ),
    Case("inspect leakage: no task", f"{LEAKAGE} --task tsak", 2, r"Did you mean 'task'"),
    Case("inspect leakage: works", f"{LEAKAGE} --task task --corpus text.txt --out found.json", 0, r"found\.json"),
    Case("inspect cost: another folder", "inspect cost --adapted bert", 2, r"'bert' was not made by"),
    Case("methods: an unknown name", "methods mln", 2, r"Did you mean 'mlm'"),
    Case("demo: no seeds", "demo --out out --seeds 0 --quiet", 2, r"seed"),
    Case("demo: the included model only", "demo --out out --model bert --quiet", 2, r"--model"),
    Case("init: works", INIT, 0, r"new\.yaml"),
    Case("init: a misspelled method", f"{INIT} --methods mln", 2, r"Did you mean 'mlm'"),
    Case("init: a study of the user", INIT.replace("new.yaml", "study.yaml"), 2, r"'study\.yaml'"),
    Case("init: no seeds", f"{INIT} --seeds 0", 2, r"--seeds must be at least 1"),
    Case("auto: a limit without general text", f"{AUTO} --minutes 9 --forget-at-most 0.1", 2, r"give --general"),
    Case("auto: the flag of text", f"{AUTO} --minutes 9 --text a", 2, r"--corpus"),
    Case("inspect experts: one", f"{EXPERTS} --expert bert", 2, r"--expert needs at least 2 values"),
    Case("inspect specificity: no pilot", f"{SPECIFICITY} --task task", 2, r"--after.*--corpus"),
    Case(
        "inspect specificity: a task that does not exist", f"{SPECIFICITY} --task tsak --after bert", 2,
        r"Did you mean 'task'",
    ),
    Case("inspect task-words: scores as labels", f"{TASK_WORDS} --task task", 2, r"classification", task(SCORES)),
    Case("inspect sensitivity: no scale", f"{SENSITIVITY} --after bert --scale 0", 2, r"--scale"),
    Case("inspect sensitivity: no such model", f"{SENSITIVITY} --after ./no --quiet", 2, r"\./no"),
    Case("inspect review: no predictions", f"{REVIEW} --prevalence 0.1", 2, r"'bert' has no predictions"),
    Case("inspect review: a prevalence in percent", f"{REVIEW} --prevalence 5", 2, r"--prevalence"),
    Case("select: a misspelled selection", "select --corpus text.txt --by nearst --out s.jsonl", 2, r"'nearest'"),
    Case("select: everything is kept once", "select --corpus text.txt --by duplicates --out s.jsonl", 0, r"s\.jsonl"),
    Case("transform: a misspelled one", "transform --corpus text.txt --by nieghbors --out t.jsonl", 2, r"'neighbors'"),
    Case(
        "transform: works", "transform --corpus text.txt --target text.txt --by neighbors --out t.jsonl", 0,
        r"t\.jsonl",
    ),
    Case("sequence: a task of no domain", f"{SEQUENCE} --task b=task", 2, r"no domain 'b'.*--domain b=TEXT"),
    Case("sequence: more orders than there are", f"{SEQUENCE} --order 2 --quiet", 2, r"2 different orders.*have 1"),
    Case("sequence: a domain without a name", "sequence --model bert --domain text.txt --out out", 2, r"--domain"),
    Case("inspect experts: no such model", f"{EXPERTS} --expert a=./no --expert bert --quiet", 2, r"\./no"),
    Case(
        "generate-queries: no such function", "generate-queries --corpus text.txt --generator no.py:f --out out", 2,
        r"no\.py",
    ),
    Case("predict: a model without a head", "predict --model bert --data text.txt --out o.csv", 2, r"no head"),
    Case("periods split: no dates", "periods split --corpus text.txt --out years", 2, r"so without dates"),
    Case(
        "periods split: works", "periods split --corpus dated.jsonl --least 1 --out years", 0, r"such as 'soon'",
        put("dated.jsonl", '{"text": "good", "date": "2019-05"}\n{"text": "bad", "date": "soon"}\n'),
    ),
    Case("periods gap: no dates", "periods gap --model bert --task task --quiet", 2, r"no column of dates"),
    Case(
        "periods self-train: a misspelled period", "periods self-train --model bert --task task --by yaer --out o", 2,
        r"Did you mean 'year'",
    ),
    Case(
        "periods surprisal: no dates", "periods surprisal --model bert --corpus text.txt --out o --quiet", 2,
        r"so without dates",
    ),
    Case(
        "periods questions: no choices", "periods questions --model bert --questions dated.csv", 2,
        r"give questions with choices", put("dated.csv", "text,label,year\na,b,2019\nc,d,2019\n"),
    ),
    Case("push: no model", "push task me/name", 2, r"config\.json"),
    Case("push: an invalid name", "push bert 'a b/c/d'", 2, r"not a valid repository name"),
    Case(
        "compare: hostile names", "compare study.yaml --out out --quiet", 0, r"report\.html", hostile_names,
        check=is_escaped,
    ),
]  # fmt: skip

USAGE = {"studies": STUDIES, "options": OPTIONS, "outputs": OUTPUTS, "environment": ENVIRONMENT, "verbs": VERBS}
