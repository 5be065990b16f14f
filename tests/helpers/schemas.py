"""Small JSON schemas of all that is served, for hypothesis. Helper for tests; no tests in here."""

from __future__ import annotations

from hypothesis import strategies as st

from draftline.stages.grammar import pieces

NAMES = st.sampled_from(["a", "b c", 'q"', "é", "x.y", "\\"])
LEAVES = st.one_of(
    st.just({"type": "null"}),
    st.just({"type": "boolean"}),
    st.just({"type": "number"}),
    st.just({"type": "number", "minimum": 0}),
    st.builds(
        lambda a, n: {"type": "integer", "minimum": a, "maximum": a + n}, st.integers(-120, 120), st.integers(0, 90)
    ),
    st.builds(
        lambda a, n: {"type": "string", "minLength": a, "maxLength": a + n}, st.integers(0, 3), st.integers(0, 4)
    ),
    st.sampled_from([{"type": "string", "pattern": p} for p in ("^[a-z]+$", "a|bc", "[0-9]{2}-x?", "^(?:é|\\.)*$")]),
    st.sampled_from([{"type": "string", "format": f} for f in pieces.FORMATS]),
    st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4)), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
    st.just({"type": ["string", "null"]}),
    st.builds(lambda v: {"const": v}, st.sampled_from([1.5, -0.0, 'a"b', [1, {"k": None}], "\x07", "\ud800"])),
)


def objects(inner: st.SearchStrategy) -> st.SearchStrategy:
    named = st.dictionaries(NAMES, inner, max_size=4)
    return named.flatmap(
        lambda p: st.builds(
            lambda r, more: {"type": "object", "properties": p, "required": r, "additionalProperties": more},
            st.lists(st.sampled_from(sorted(p)), unique=True) if p else st.just([]),
            st.sampled_from([False, {"type": "null"}]),
        )
    )


def lists(inner: st.SearchStrategy) -> st.SearchStrategy:
    def schema(items, prefix, least, more):
        limits = {"minItems": least, "maxItems": max(least, len(prefix)) + more}
        return {"type": "array", "items": items, **limits, **({"prefixItems": prefix} if prefix else {})}

    return st.builds(schema, inner, st.lists(inner, max_size=2), st.integers(0, 3), st.integers(0, 3))


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner), lists(inner), st.lists(inner, min_size=1, max_size=2).map(lambda s: {"anyOf": s})
    ),
    max_leaves=4,
)
