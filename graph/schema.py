"""The YAML form of a graph, as strict pydantic models. Knows: keys and their types. Does not know: files, lines.

``json_schema`` exports it for editors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", strict=True)]
DimText = Annotated[StrictInt, Field(ge=0)] | Name
DtypeName = Literal["int64", "int32", "bool", "float32", "bfloat16", "float16", "model"]
Option = StrictBool | StrictInt | StrictFloat | StrictStr | list[Any] | None
Positive = Annotated[StrictInt, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PortModel(_Strict):
    """Shape (integers and symbols) and dtype of an input."""

    shape: list[DimText]
    dtype: DtypeName


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
    num_speculative_tokens: Annotated[StrictInt, Field(ge=0)] | None = None
    tile: Positive | None = None
    max_num_seqs: Positive | None = None
    max_model_len: Positive | None = None
    dtype: Literal["fp32", "bf16"] | None = None
    prefill_tile: Positive | None = None
    page_size: Positive | None = None
    max_new_tokens: Positive | None = None


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
