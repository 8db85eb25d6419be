"""Hostile decoders, adapters, replayed text and conversations, and what is measured on decoders."""

from __future__ import annotations

from tests.hostile.checks import BENCHMARKS, CAUSAL, DECODE, DONE, DRY, INSTRUCTIONS, MERGE, TEXT, made
from tests.hostile.makers import (
    broken_decoder,
    cut,
    decoder,
    fifo,
    folder_of,
    lines,
    peft_folder,
    put,
    several,
    study,
    study_domain,
)
from tests.hostile.runner import Case, Maker

ASK = put("prompts.jsonl", lines([{"prompt": "Say it.", "checks": [{"check": "uppercase"}]}]))
T5 = put("bert/config.json", {"model_type": "t5", "architectures": ["T5Model"]})
MULTIMODAL = put("bert/config.json", {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]})
INSPECT = "inspect model llama"

MODELS = [
    Case("a decoder", DECODE, 0, DONE, decoder(), check=made),
    *(
        Case(
            f"an encoder-decoder without its head: {command.split(' --')[0]}", command, 2,
            r"'bert' is a T5Model, an encoder-decoder without",
            several(T5, ASK),
        )
        for command in (TEXT, "inspect model bert", INSTRUCTIONS.replace("llama", "bert"))
    ),
    Case("an encoder-decoder without its head in a study", DRY, 2, r"T5Model, an encoder-decoder without", T5),
    Case("a multimodal model", TEXT, 2, r"a multimodal model \(vision\)", MULTIMODAL),
    Case(
        "a decoder without its head", DECODE, 2, r"LlamaModel without the language-model head",
        decoder(architectures=["LlamaModel"]), never="AutoModel",
    ),
    Case("a decoder without heads", DECODE, 2, r"num_attention_heads is 0", decoder(num_attention_heads=0)),
    Case("a decoder without key heads", DECODE, 2, r"num_key_value_heads is 0", decoder(num_key_value_heads=0)),
    Case("a decoder without width of heads", DECODE, 2, r"head_dim is 0", decoder(head_dim=0)),
    Case("an adapter without its model", TEXT.replace("bert", "bert-adapter"), 2, r"an adapter of peft", peft_folder),
    Case("a method of masked models", f"{DECODE} --method mlm", 2, r"'mlm' is for masked .* such as lm", decoder()),
    Case("masking in a decoder", f"{DECODE} --masking span", 2, r"remove the option 'masking'", decoder()),
    Case("a mask rate in a decoder", f"{DECODE} --mask-rate 0.3", 2, r"remove the option 'mask_rate'", decoder()),
    Case("more than all positions", f"{DECODE} --max-length 500", 2, r"128 positions", decoder()),
    Case("joined documents in an encoder", f"{TEXT} --documents joined", 2, r"remove documents=joined"),
    Case("a misspelled way of joining", f"{DECODE} --documents join", 2, r"'join' is not one of"),
]  # fmt: skip

MEMORY = [
    Case("no memory", f"{TEXT} --max-memory 0", 2, r"--max-memory must be more than 0"),
    Case("memory with a unit", f"{TEXT} --max-memory 4GB", 2, r"--max-memory must be a number, not '4GB'"),
    Case("too little memory for a token", f"{DECODE} --max-memory 1e-9", 0, DONE, decoder(), check=made),
    Case("a misspelled optimizer", f"{TEXT} --optimizer adam", 2, r"'adam' is not one of"),
    Case("a type of weights that does not exist", f"{TEXT} --weights fp16", 2, r"'fp16' is not one of"),
]

ADAPTERS = [
    Case("a misspelled adapter", f"{TEXT} --adapter lorra", 2, r"Did you mean 'lora'"),
    Case("settings without an adapter", f"{TEXT} --adapter-set r=4", 2, r"Give it as --adapter 'lora r=8'"),
    Case("quantization without an adapter", f"{TEXT} --quantize 4bit", 2, r"--adapter 'lora quantize=4bit'"),
    Case("an adapter of bf16 weights", f"{TEXT} --adapter lora --weights bf16", 2, r"remove 'weights'"),
    Case("an adapter of a method that trains nothing", f"{TEXT} --adapter lora --method none", 2, r"Remove 'adapter'"),
    *(
        Case(f"an adapter with {setting}", f"{TEXT} --adapter 'lora {setting}'", 2, message)
        for setting, message in {
            "rank=4": r"'rank'\. Available: alpha, dropout, quantize, r, targets",
            "r=0": r"r must be more than zero",
            "r=1.5": r"'r'.*1\.5",
            "r=1000000000000": r"is more than 32, the rank of the weights",
            "alpha=nan": r"'alpha'.*finite",
            "dropout=1": r"dropout",
            "targets=q_porj": r"named 'q_porj'; there are .*query",
        }.items()
    ),
    Case("an alpha that breaks the weights", f"{TEXT} --adapter 'lora alpha=1e308'", 2, r"not finite"),
    Case("an odd rank of orthogonal factors", f"{TEXT} --adapter 'orthogonal r=3'", 2, r"even rank"),
]

WIKI = put("wiki.txt", "the price of the wine\n" * 5)
CHAT = put("chat.jsonl", lines([{"prompt": "good?", "response": "good food"}] * 3))
REPLAYED = [
    Case("replay of a misspelled file", f"{TEXT} --replay wki.txt", 2, r"Did you mean 'wiki\.txt'", WIKI),
    Case("replay of nothing", f"{TEXT} --replay wiki.txt", 2, r"no usable document", put("wiki.txt", "")),
    Case("replay of a pipe", f"{TEXT} --replay pipe.txt", 2, r"is a pipe", fifo("pipe.txt")),
    *(
        Case(f"a share of {share}", f"{TEXT} --replay wiki.txt={share}", 2, r"less than 1, not", WIKI)
        for share in ("1", "-0.1", "nan", "9" * 5000)
    ),
    Case("a share of a millionth", f"{TEXT} --replay wiki.txt=1e-6", 0, DONE, WIKI, check=made),
    Case("a common share that is all", f"{TEXT} --replay wiki.txt=1", 2, r"less than 1", WIKI),
    Case("shares above one", f"{TEXT} --replay wiki.txt=0.6 --replay text.txt=0.6", 2, r"leave nothing", WIKI),
    Case("a share for one of two", f"{TEXT} --replay wiki.txt=0.1 --replay text.txt", 2, r"text\.txt' has none", WIKI),
    Case("two shares of one text", f"{TEXT} --replay wiki.txt=0.1 --replay wiki.txt=0.2", 2, r"twice", WIKI),
    Case("a share of no text", f"{TEXT} --replay-share 0.2", 2, r"Give it as --replay 'wiki.txt=0.1'"),
    Case("text that an encoder writes", f"{TEXT} --replay self", 2, r"does not write text.*--replay wiki\.txt"),
    Case("an option of what is written", f"{TEXT} --replay 'self top=1'", 2, r"'top'.*top_p"),
    Case("conversations in an encoder", f"{TEXT} --replay chat:chat.jsonl", 2, r"for causal language models", CHAT),
    Case("text as conversations", f"{TEXT} --replay chat:text.txt", 2, r"holds no conversations.*'messages'"),
    Case(
        "no chat template", f"{DECODE} --replay chat:chat.jsonl", 2, r"has no chat template",
        several(CHAT, decoder(None)),
    ),
    Case(
        "a chat template that is cut", f"{DECODE} --replay chat:chat.jsonl", 2, r"template does not accept it",
        several(CHAT, decoder("{% for turn in")),
    ),
    Case(
        "a chat template that hides answers", f"{DECODE} --replay chat:chat.jsonl", 2, r"answers cannot be located",
        several(CHAT, decoder("{{ messages | length }}")),
    ),
    Case(
        "nothing but broken conversations", f"{DECODE} --replay chat:chat.jsonl", 2,
        r"left out: 5 broken; first problem",
        several(decoder(), put("chat.jsonl", lines([1, [], {"text": "a"}, {"messages": 3}, {"prompt": "a"}]))),
    ),
    Case(
        "answers beyond the end", f"{DECODE} --replay chat:chat.jsonl", 2, r"no answer in its first 24 tokens",
        several(decoder(), put("chat.jsonl", lines([{"prompt": "good " * 99, "response": "good"}]))),
    ),
    Case("conversations", f"{DECODE} --replay chat:chat.jsonl", 0, DONE, several(CHAT, decoder()), check=made),
]  # fmt: skip

SCRATCH = [
    Case("an unknown objective", CAUSAL.replace("causal", "clm"), 2, r"'clm' is not one of"),
    Case("causal: a masked architecture", f"{CAUSAL} --architecture bert", 2, r"choose one of gpt2"),
    Case("causal: a sequence-to-sequence architecture", f"{CAUSAL} --architecture t5", 2, r"architecture 't5'"),
    Case("causal: masking", f"{CAUSAL} --masking span", 2, r"remove the option 'masking'"),
    Case("causal: a tokenizer without spaces", f"{CAUSAL} --tokenizer wordpiece", 2, r"tokenizer=byte-bpe"),
    Case("causal: three key heads", f"{CAUSAL} --set num_key_value_heads=3", 2, r"3 key heads cannot serve 2 heads"),
    Case("causal: works", CAUSAL, 0, DONE),
]


def asked(check: dict[str, object]) -> Maker:
    """Write a decoder, and instructions with one check."""
    return several(decoder(), put("prompts.jsonl", lines([{"prompt": "Say it.", "checks": [check]}])))


MEASURED = [
    Case("inspect model: a folder of nothing", INSPECT, 2, r"no config\.json", folder_of("llama")),
    Case(
        "inspect model: cut weights", INSPECT, 2, r"^Error: .*'llama'",
        several(decoder(), cut("llama/model.safetensors")),
    ),
    Case("inspect model: no finite weights", INSPECT, 2, r"weights of 'llama' are not finite", broken_decoder),
    Case("inspect model: rows of nothing", f"{INSPECT} --max-length 0", 2, r"--max-length must be at least 1"),
    Case("inspect model: a text as report", f"{INSPECT} --out text.txt", 2, r"is not a report", decoder()),
    Case("instructions: works", INSTRUCTIONS, 0, r"found\.json", several(decoder(), ASK)),
    Case("instructions: no model", INSTRUCTIONS.replace("llama", "./no"), 2, r"\./no", ASK),
    Case("instructions: no base model", f"{INSTRUCTIONS} --base ./no", 2, r"\./no", several(decoder(), ASK)),
    Case("instructions: an encoder", INSTRUCTIONS.replace("llama", "bert"), 2, r"'bert' is a masked", ASK),
    Case("instructions: no template", INSTRUCTIONS, 2, r"has no chat template", several(decoder(None), ASK)),
    Case(
        "instructions: a template that raises", INSTRUCTIONS, 2, r"does not accept a question \(no\)",
        several(decoder("{{ raise_exception('no') }}"), ASK),
    ),
    Case("instructions: an empty template", INSTRUCTIONS, 2, r"leaves out the question", several(decoder("-"), ASK)),
    Case("instructions: too long", f"{INSTRUCTIONS} --max-tokens 500", 2, r"128 positions", several(decoder(), ASK)),
    Case("instructions: no prompts", INSTRUCTIONS, 2, r"prompts\.jsonl' cannot be read: No such file"),
    Case("instructions: empty", INSTRUCTIONS, 2, r"no instruction", put("prompts.jsonl", "\n")),
    Case("instructions: a pipe", INSTRUCTIONS, 2, r"is a pipe", fifo("prompts.jsonl")),
    Case("instructions: deep nesting", INSTRUCTIONS, 2, r"prompts\.jsonl:1", put("prompts.jsonl", "[" * 100_000)),
    Case("instructions: not UTF-8", INSTRUCTIONS, 2, r"prompts\.jsonl' are not UTF-8", put("prompts.jsonl", b"\xff")),
    Case(
        "instructions: half a character", INSTRUCTIONS, 2, r"prompts\.jsonl:1: .*half",
        put("prompts.jsonl", '{"prompt": "\\ud83d", "checks": [{"check": "uppercase"}]}'),
    ),
    Case("instructions: a misspelled check", INSTRUCTIONS, 2, r"Did you mean 'words'", asked({"check": "wrods"})),
    Case(
        "instructions: a misspelled argument", INSTRUCTIONS, 2, r"prompts\.jsonl:1: .*'words'.*'lest'",
        asked({"check": "words", "lest": 3}),
    ),
    Case(
        "instructions: a text as number", INSTRUCTIONS, 2, r"'count' must be an integer",
        asked({"check": "sentences", "count": "2"}),
    ),
    Case("benchmarks: no task", BENCHMARKS, 2, r"--task is required"),
    Case("benchmarks: no items", f"{BENCHMARKS} --task arc --limit 0", 2, r"--limit must be at least 1"),
    Case("benchmarks: an unknown task or no package", f"{BENCHMARKS} --task nonsense", 2, r"lm-eval", decoder()),
    Case("merge: models of two kinds", MERGE.replace("base bert", "base llama"), 2, r"of the type llama", decoder()),
    Case(
        "a misspelled adapter in a study", DRY, 2, r"'methods\.lm\.adapt\.adapter'.*'lorra'",
        study(methods=["none", {"name": "lm", "adapt": {"adapter": "lorra"}}]),
    ),
    Case(
        "likelihood without a decoder", DRY, 2, r"'likelihood' .* needs a causal language model",
        study_domain(tasks=[{"path": "task", "likelihood": True}]),
    ),
]  # fmt: skip

DECODERS = {
    "decoders": MODELS,
    "memory": MEMORY,
    "adapters": ADAPTERS,
    "replay": REPLAYED,
    "pretraining": SCRATCH,
    "measurements": MEASURED,
}
