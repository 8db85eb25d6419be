"""Long documents get their share within each source."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.data.mix.base import read_mix
from tests.cases import each
from tests.data.moments import check_refusal, proposals


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=4),
    st.integers(1, 29),
    st.sampled_from([0.2, 0.5, 0.9]),
)
def test_long_documents_get_their_share_within_each_source(documents, threshold, share):
    """Compared with a loop over the documents; each source keeps its share of the tokens."""
    mix = read_mix({"lengths": {"threshold": threshold, "share": share}})
    names, sizes, parents, expected = [], [], [], []
    total = sum(map(sum, documents))
    for number, lengths in enumerate(documents):
        assert mix.classify(np.array(lengths)).tolist() == [length > threshold for length in lengths]
        parts = {"short": 0, "long": 0}
        for length in lengths:
            parts["long" if length > threshold else "short"] += length
        if min(parts.values()):
            long = max(share, parts["long"] / sum(lengths))
        else:
            long = float(parts["long"] > 0)
        for name, weight in (("short", 1 - long), ("long", long)):
            if parts[name]:
                names.append(f"source {number} ({name})")
                sizes.append(float(parts[name]))
                parents.append(number)
                expected.append(sum(lengths) / total * weight)
    (found,) = proposals(mix, tuple(names), np.array(sizes), parents)
    np.testing.assert_allclose(found, expected)


@each(("mix", "message"), [("lengths threshold=0", "threshold"), ("lengths weights=long", "equal, size")])
def test_invalid_mixes_are_explained(mix, message):
    check_refusal(mix, message)
