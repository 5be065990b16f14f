"""The accept rule against a plain loop, chunk by chunk."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftline.stages.accept import accept_prefix


def by_hand(window: list[int], predicted: list[int], depth: int) -> int:
    """Accepted drafts: the longest prefix that the target would have said."""
    n = 0
    while n < depth and window[n + 1] == predicted[n]:
        n += 1
    return n


@settings(max_examples=300, deadline=None)
@given(data=st.data(), s=st.integers(1, 8), k=st.integers(0, 20), n=st.integers(1, 5))
def test_equals_a_plain_loop_over_any_chunking(data, s, k, n):
    chunks = -(-(k + 1) // s)
    w = chunks * s
    token = st.integers(0, 2)  # few values, so that long matches happen
    window = torch.tensor(data.draw(st.lists(st.lists(token, min_size=w, max_size=w), min_size=n, max_size=n)))
    truth = torch.tensor(data.draw(st.lists(st.lists(token, min_size=w, max_size=w), min_size=n, max_size=n)))
    depth = torch.tensor(data.draw(st.lists(st.integers(-1, k), min_size=n, max_size=n)))
    live, accepted = depth >= 0, torch.zeros(n, dtype=torch.int64)
    for c in range(chunks):
        seen = truth[:, c * s : (c + 1) * s].clone()
        seen[~live] = 99  # a request that dropped out has stale predictions; they must not count
        before = live
        live, accepted = accept_prefix(window, seen, depth, live, accepted, c * s)
        assert not (live & ~before).any()
        # Whoever goes on has every row of this chunk accepted and an active row in the next.
        assert ((accepted == (c + 1) * s) | ~live).all()
        assert ((depth >= (c + 1) * s) | ~live).all()
    assert not live.any()
    for i in range(n):
        if depth[i] >= 0:
            assert int(accepted[i]) == by_hand(window[i].tolist(), truth[i].tolist(), int(depth[i]))


def test_a_draft_beyond_the_depth_never_counts():
    window, predicted = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[6, 7, 8, 9]])
    live, accepted = accept_prefix(window, predicted, torch.tensor([1]), torch.tensor([True]), torch.tensor([0]), 0)
    assert (int(accepted[0]), bool(live[0])) == (1, False)
