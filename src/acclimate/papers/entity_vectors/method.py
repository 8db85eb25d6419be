"""Entity vectors of a knowledge graph, added to the embeddings of their mentions (Sengupta et al., 2024)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from acclimate.api import (
    AdaptContext,
    EntityVectors,
    Method,
    SubwordTable,
    UserError,
    add_entities,
    encode_texts,
    fit_map,
    load_vectors,
    prompts_of,
    read_columns,
    register_method,
)

LONGEST = 16
"""Maximum tokens of a spelling; longer names are left out."""
ENTITIES_FILE = "entities.json"


@register_method(
    "entity-vectors",
    paper="Sengupta et al., 2024",
    summary="language modelling that trains only the map of entity vectors to the embeddings of their mentions",
)
@dataclass
class EntityInput(Method):
    """Add mapped vectors of a knowledge graph to the embeddings of mentions, and train only the map.

    Each token of a mention of an entity gets W v + b in addition to its own embedding. A ridge regression from the
    vectors of all entities to the mean embeddings of their names is the start, so the graph needs no vocabulary in
    common with the model; language modelling on the domain text goes on from there. The model has the vectors also in
    fine-tuning, which trains the map and all other weights but not the vectors, and in prediction. Plain
    ``transformers`` cannot run the result.

    Mentions are whole words: a name as it is written, in lower case, in capitals, and with one or all words in
    capitals. The paper links entities with MetaMap (UMLS), maps their vectors by a perceptron, trained by regression
    alone, and adds vectors of definitions; few ``steps`` are close to that.

    Attributes:
        vectors: Text file with an entity and its numbers per line (word2vec); an underscore in a name is a space.
        names: Table with the columns ``entity`` and ``name``, for vectors of ids, or several names of an entity. By
            default the entities are names.
    """

    purpose: ClassVar[str] = "Learn better representations"
    loads_without_acclimate: ClassVar[bool] = False
    without_adapter: ClassVar[str] = "it trains its own map"
    learning_rate: ClassVar[float] = 1e-3
    kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kinds_reason: ClassVar[str] = (
        "marks each token of a name by what follows, which would tell a causal model its text"
    )
    files: ClassVar[tuple[str, ...]] = ("vectors", "names")

    vectors: str | None = None
    names: str | None = None

    def __post_init__(self) -> None:
        """Make room for what :meth:`check` reads."""
        self._known: dict[str, torch.Tensor] = {}
        self._named: dict[str, list[str]] = defaultdict(list)

    def check(self, run: AdaptContext) -> None:
        """Read the vectors and the names."""
        if prompts_of(run.model.config):
            raise UserError("The model has prompts of its own; start from one without.")
        if self.vectors is None:
            raise UserError(
                "Method 'entity-vectors' needs vectors; give a text file with an entity and its numbers per line as "
                "'entity-vectors vectors=FILE'."
            )
        self._known = load_vectors(self.vectors)
        if self.names is None:
            self._named |= {entity: [entity] for entity in self._known}
        else:
            for entity, name in read_columns(self.names, ("entity", "name"), "names"):
                self._named[entity].append(name)
        super().check(run)

    def prepare(self, run: AdaptContext) -> None:
        """Find the spellings, fit the map, and freeze all other weights."""
        known = self._known
        listed = [(entity, form) for entity in known for name in self._named[entity] for form in list_forms(name)]
        special = set(run.tokenizer.all_special_ids)
        encoded = encode_texts(run.tokenizer, [form for _, form in listed]) if listed else []
        owner: dict[tuple[int, ...], str] = {}
        for (entity, _), ids in zip(listed, encoded, strict=True):
            if 0 < len(ids) <= LONGEST and special.isdisjoint(ids):
                owner.setdefault(tuple(ids), entity)
        if not owner:
            raise UserError(
                f"No name of an entity in '{self.vectors}' can be written with the model's tokens; give names of "
                "entities with 'names', a table of entity and name."
            )
        entities = list(dict.fromkeys(owner.values()))
        run.say(
            f"Entity vectors: {len(entities):,} of {len(known):,} entities with {len(owner):,} spellings; the others "
            f"have no name, a name of more than {LONGEST} tokens, or the name of another one."
        )
        run.preparation[ENTITIES_FILE] = {"entities": len(entities), "listed": len(known), "spellings": len(owner)}
        made = self._add(run, owner, torch.stack([known[entity] for entity in entities]), entities)
        run.model.requires_grad_(False)
        made.map.requires_grad_(True)

    def _add(
        self, run: AdaptContext, owner: dict[tuple[int, ...], str], vectors: torch.Tensor, entities: list[str]
    ) -> EntityVectors:
        """Add the vectors of entities (entities, dimension) and the spellings of each to the model."""
        table: Any = run.model.get_input_embeddings().weight
        subwords = SubwordTable.of(run.tokenizer)
        numbers = {entity: number for number, entity in enumerate(entities)}
        longest = max(map(len, owner))
        first: dict[str, list[int]] = {}
        for ids, entity in owner.items():
            first.setdefault(entity, list(ids))
        means = torch.stack([table[first[entity]].mean(0) for entity in entities])
        made = add_entities(
            run.model,
            entities=len(entities),
            dimension=vectors.shape[1],
            spellings=len(owner),
            longest=longest,
            vocabulary=len(table),
        )
        weight, bias = fit_map(vectors, means)
        special = torch.tensor(run.tokenizer.all_special_ids, dtype=torch.long)
        with torch.no_grad():
            made.map.weight.copy_(weight.T)
            made.map.bias.copy_(bias)
            made.vectors.copy_(vectors)
            made.spellings.copy_(torch.tensor([[*ids, *[-1] * (longest - len(ids))] for ids in owner]))
            made.owner.copy_(torch.tensor([numbers[entity] for entity in owner.values()]))
            for column, flags in enumerate((subwords.starts_word, subwords.ends_word)):
                made.bounds[: len(flags), column] = torch.as_tensor(flags, device=table.device)
            made.bounds[special] = True
        return made


def list_forms(name: str) -> list[str]:
    """Return the spellings of a name that are found, within a text and at its start."""
    name = " ".join(name.replace("_", " ").split())
    forms = dict.fromkeys((name, name.lower(), name.upper(), name.capitalize(), name.title()))
    return [f"{space}{form}" for form in forms for space in (" ", "")]
