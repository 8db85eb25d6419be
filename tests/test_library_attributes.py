"""Private attributes of libraries that acclimate uses; a release that moves one fails here by its name."""

from __future__ import annotations

import importlib
import inspect
import re
from importlib.util import find_spec

import pytest

from acclimate.engine.sharding import ShardedTrainer
from tests.cases import SOURCES

USED = {
    "datasets.arrow_dataset:Dataset": "_data_files",
    "gensim.models.word2vec:Word2Vec": "min_alpha_yet_reached ns_exponent random",
    "gensim.models.fasttext:FastTextKeyedVectors": "bucket key_to_index max_n min_n vectors_ngrams",
    "gensim.models.fasttext_inner:": "compute_ngrams ft_hash_bytes",
    "peft.tuners.tuners_utils:BaseTunerLayer": "_disable_adapters",
    "py3langid.langid:": "MODEL_FILE",
    "torch:": "_dynamo _foreach_add_ _foreach_mul_ _foreach_sub _foreach_sub_ _softmax_backward_data",
    "torch._dynamo.eval_frame:": "remove_from_cache",
    "torch._dynamo.exc:": "TorchDynamoException",
    "torch._inductor:": "exc",
    "torch._ops:OpOverload": "_schema",
    "torch.cpu:": "_is_amx_tile_supported",
    "torch.distributed.tensor:DTensor": "_local_tensor",
    "torch.fx.experimental:": "_config",
    "torch.nn:Module": "_buffers _call_impl _compiled_call_impl _forward_hooks _forward_hooks_with_kwargs "
    "_forward_pre_hooks _forward_pre_hooks_with_kwargs _modules _parameters",
    "torch.ops:aten": "_efficient_attention_forward _flash_attention_forward",
    "torch:Tensor": "_post_accumulate_grad_hooks",
    "torch.utils._python_dispatch:": "TorchDispatchMode",
    "torchao.optim:": "_AdamW",
    "transformers:PretrainedConfig": "_attn_implementation _name_or_path",
    "transformers:PreTrainedModel": "_can_set_attn_implementation _hf_peft_config_loaded",
    "transformers:PreTrainedTokenizerFast": "_tokenizer",
    "transformers:Trainer": "_clip_grad_norm _get_grad_norm _issue_warnings_after_load _load_from_checkpoint "
    "_load_optimizer_and_scheduler _move_model_to_device _save _save_checkpoint _save_optimizer_and_scheduler",
    "transformers:TrainingArguments": "_n_gpu",
    "transformers.core_model_loading:": "_weight_conversions",
    "transformers.models.auto.auto_factory:_BaseAutoModelClass": "_model_mapping",
    "transformers.utils.hub:cached_files": "_raise_exceptions_for_connection_errors _raise_exceptions_for_gated_repo "
    "_raise_exceptions_for_missing_entries",
}
"""Names by ``module:object``. Next to private names, undocumented ones."""


@pytest.mark.parametrize("place", USED)
def test_the_library_still_has_the_attribute(place):
    module, _, name = place.partition(":")
    if find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"{module} is not installed")
    found = importlib.import_module("torch" if module == "torch.ops" else module)
    for part in ["ops", name] if module == "torch.ops" else [name] if name else []:
        found = getattr(found, part)
    missing = [used for used in USED[place].split() if not hasattr(found, used)]
    try:  # attributes of instances, entries and arguments
        source = inspect.getsource(found) if missing else ""
    except (OSError, TypeError):
        source = ""
    missing = [used for used in missing if not re.search(rf"\b{used}\b", source)]
    assert not missing, f"{place} has no {', '.join(missing)} in this release"


def test_every_private_attribute_is_in_the_list():
    """Names with an underscore that no statement of ours defines, and methods of Trainer that are replaced."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    own = {"_asdict", "_exit", "_fields", "_replace"}  # documented
    own |= set(
        re.findall(r"(?:\bdef |\bclass |^ *|\bself\.|\bcls\.)(_[A-Za-z]\w*)(?=\(| *=[^=]|: |, .* = )", text, re.M)
    )
    used = set(re.findall(r"[\w)\]]\.(_[A-Za-z]\w*)", text)) | set(
        re.findall(r"^ *from (?!acc).* import .*\b(_\w+)", text, re.M)
    )
    used |= {
        name for names in re.findall(r"^ *from [\w.]*\._[\w.]* import (.*)", text, re.M) for name in names.split(", ")
    }
    found = {name for name in used - own if not name.startswith("__")}
    found |= {name for name in dir(ShardedTrainer) if _replaces_private(name)}
    assert found - set(re.findall(r"\w+", " ".join([*USED, *USED.values()]))) == set()


def _replaces_private(name: str) -> bool:
    defining = [cls for cls in ShardedTrainer.__mro__ if name in vars(cls)]
    ours = defining[0].__module__.startswith("acclimate") and not defining[-1].__module__.startswith("acclimate")
    return ours and name.startswith("_") and not name.startswith("__")
