"""A function that writes whatever a recipe asks for, so that the result is known."""

from __future__ import annotations

import json
import random
import re

DOCUMENTS = [
    "Alpha Corp bought Beta Ltd in 1999. The deal was large. Gamma Inc was against it, and Delta Bank paid.",
    "The river Delta flows to the sea. It is long, and the fish in it are many and small.",
    "Epsilon met Zeta in the harbour. They spoke of the storm for an hour.",
]
WORDS = (
    "lorem ipsum dolor sit amet consectetur adipiscing elit sed eiusmod tempor incididunt labore magna aliqua".split()
)


def say(prompt: str, words: int = 30) -> str:
    """Return sentences that depend on the prompt."""
    drawn = random.Random(prompt).choices([*WORDS, *(word[::-1] for word in WORDS)], k=words)
    return f"{' '.join(drawn).capitalize()}. {drawn[0].capitalize()} it is."


def names_in(prompt: str) -> list[str]:
    """Return the capitalized names of the document that ends a prompt; its first words if it has none."""
    document = prompt.rpartition("Document:")[2]
    return list(dict.fromkeys(re.findall(r"[A-Z]\w+(?: [A-Z]\w+)?", document) or document.split()[:4]))


def write(prompt: str) -> str:
    """Answer the prompts of all recipes."""
    if "List the entities" in prompt:
        return "```json\n" + json.dumps({"entities": names_in(prompt)}) + "\n```"
    if "different strategies" in prompt:
        return "Here they are:\n1. **Time line**: list the dates\n2. Quiz yourself\n3. Draw a map"
    if '"question"' in prompt:
        first = names_in(prompt)[0]
        pairs = [(f"Who comes first, {first[::-1]}?", first.upper()), (f"Who is absent, {first}?", "Omega")]
        return json.dumps([{"question": one, "answer": two} for one, two in pairs])
    if '"instruction"' in prompt:
        return "".join(f"Instruction: tell me of {name}\nResponse: {say(name)}\n\n" for name in names_in(prompt))
    if "The labels are:" in prompt:
        return re.findall(r"^- (.+)$", prompt, flags=re.MULTILINE)[len(prompt) % 2]
    return say(prompt)
