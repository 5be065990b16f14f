"""The YAML form of a graph, as strict pydantic models. Knows: keys and their types. Does not know: files, lines.

``json_schema`` exports it for editors.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, StrictStr, WithJsonSchema
from pydantic_core import PydanticCustomError

AUTO = r"^auto(:[1-9][0-9]{0,3})?$"
NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"


def _dim(value: Any) -> Any:
    """One message instead of one per member of a union."""
    if isinstance(value, bool):
        raise PydanticCustomError("dim", "YAML reads this symbol as a boolean; a symbol in quotes is wanted")
    if (isinstance(value, int) and value >= 0) or (isinstance(value, str) and re.fullmatch(NAME, value)):
        return value
    raise PydanticCustomError("dim", "a size ≥ 0 or a symbol such as N is wanted")


def _option(value: Any) -> Any:
    """Values that hash, compare and survive JSON: graphs are values, and NaN is not equal to itself."""
    if isinstance(value, list):
        return [_option(v) for v in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise PydanticCustomError("option", "a boolean, finite number, string, null or list of these is wanted")


def _depth(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch(AUTO, value):
        return value
    raise PydanticCustomError("depth", "an integer ≥ 0 is wanted, or auto, or auto:N for at most N")


_SCALARS = ["boolean", "integer", "number", "string", "null"]
_ITEM = {"type": [*_SCALARS, "array"]}

Name = Annotated[str, Field(pattern=NAME, strict=True)]
DimText = Annotated[
    int | str,
    BeforeValidator(_dim),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": NAME}]}),
]
DtypeName = Literal["int64", "int32", "bool", "float32", "bfloat16", "float16", "model"]
Option = Annotated[Any, BeforeValidator(_option), WithJsonSchema({**_ITEM, "items": _ITEM})]
Depth = Annotated[
    int | str,
    BeforeValidator(_depth),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": AUTO}]}),
]
Positive = Annotated[StrictInt, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, lt=1e6, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PortModel(_Strict):
    """Shape (integers and symbols) and dtype of an input; an optional one may stay unconnected."""

    shape: list[DimText]
    dtype: DtypeName
    optional: StrictBool = False


class RepeatModel(_Strict):
    """``times`` iterations; ``carry`` maps an input port to the output port that feeds it next time."""

    times: DimText
    carry: dict[Name, Name] = {}
    collect: dict[Name, Name] = {}


class ForEachModel(_Strict):
    """One iteration per chunk of S window columns."""

    over: Literal["chunk"] = "chunk"
    each: list[Name]
    carry: dict[Name, Name] = {}
    collect: dict[Name, Name] = {}


class NodeModel(_Strict):
    """A stage (registry name or ``package.module:Class``) or a nested graph, with its connections."""

    stage: StrictStr | None = None
    graph: NestedModel | None = None
    options: dict[Name, Option] = {}
    repeat: RepeatModel | None = None
    for_each: ForEachModel | None = None
    inputs: dict[Name, StrictStr] = {}


class NestedModel(_Strict):
    """A graph inside a node."""

    name: Name
    doc: StrictStr = ""
    inputs: dict[Name, PortModel] = {}
    nodes: dict[Name, NodeModel] = {}
    outputs: dict[Name, StrictStr] = {}


class SettingsModel(_Strict):
    """Deployment settings; a command-line flag of the same name wins."""

    model: StrictStr | None = None
    mtp: StrictStr | None = None
    draft_model: StrictStr | None = None
    num_speculative_tokens: Depth | None = None
    tile: Positive | None = None
    max_num_seqs: Positive | None = None
    max_model_len: Positive | None = None
    dtype: Literal["fp32", "bf16"] | None = None
    kernels: Literal["auto", "reference", "native"] | None = None
    layouts: Literal["bxs", "packed", "any"] | None = None
    capture: Literal["eager", "inductor"] | None = None
    prefill_tile: Positive | None = None
    page_size: Positive | None = None
    max_num_batched_tokens: Positive | None = None
    num_pages: Annotated[StrictInt, Field(ge=0)] | None = None
    prefix_caching: StrictBool | None = None
    async_scheduling: StrictBool | None = None
    max_new_tokens: Positive | None = None
    runtime: Literal["inline", "zmq"] | None = None
    threads: Annotated[StrictInt, Field(ge=0)] | None = None
    replicas: Positive | None = None
    overlap: StrictBool | None = None
    max_waiting: Annotated[StrictInt, Field(ge=0)] | None = None
    max_restarts: Annotated[StrictInt, Field(ge=0)] | None = None
    stage_timeout: Seconds | None = None
    start_timeout: Seconds | None = None


class GraphModel(NestedModel):
    """A graph file."""

    version: Literal[1]
    prefill: StrictStr = ""
    settings: SettingsModel = SettingsModel()
    state: dict[Name, StrictStr] = {}
    placement: dict[StrictStr, StrictStr] = {}


NodeModel.model_rebuild()


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a graph file."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **GraphModel.model_json_schema()}
