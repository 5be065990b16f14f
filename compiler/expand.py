"""Loops and nested graphs into a flat list of operations; each output is written where it is needed.

Knows: how a node becomes operations on views. Does not know: the layout's choice, devices, memory.

Collected outputs are written in place: iteration i of a repeat writes column i of the collected value, chunk
c writes its columns. So a collected output costs no copy, and an output can be collected only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from draftline.compiler.core import Loop, Op, show
from draftline.compiler.expansion import Expansion, Mark, Views, check_fed, dtype_of, narrow, output_shapes
from draftline.compiler.plan import Chunk, View
from draftline.graph.core import Dim, ForEach, Graph, Node, Port, Repeat, Signature
from draftline.graph.errors import PlanError
from draftline.graph.verify import topological


def expand_graph(
    ctx: Expansion,
    graph: Graph,
    path: str,
    inputs: Mapping[str, View | None],
    dest: Mapping[str, View],
    mark: Mark,
) -> Views:
    """Expand all nodes of ``graph`` in dependency order; return a view for each graph output.

    ``dest`` says where an output must be written; outputs that it does not name get a value of their own.
    Raises PlanError.
    """
    refs: Views = {port.name: inputs.get(port.name) for port in graph.inputs}
    wanted = _destinations(graph, path, dest)
    ctx = replace(ctx, dims={**ctx.dims, **_bind_inputs(ctx, graph, path, refs)})
    for node in topological(graph):
        here = f"{path}.{node.name}" if path else node.name
        fed = {port: refs[ref] for port, ref in node.inputs}
        into = {ref.partition(".")[2]: v for ref, v in wanted.items() if ref.partition(".")[0] == node.name}
        for output, view in expand_node(ctx, node, here, fed, into, mark).items():
            refs[f"{node.name}.{output}"] = view
    return {name: refs[ref] for name, ref in graph.outputs}


def expand_node(
    ctx: Expansion,
    node: Node,
    path: str,
    inputs: Mapping[str, View | None],
    dest: Mapping[str, View],
    mark: Mark,
) -> Views:
    """Expand one node, its repeats included; a chunk loop becomes a ``Loop``. Raises PlanError."""
    if node.loop is not None and dest:
        raise PlanError(f"{path}: outputs of a loop cannot be collected by a loop around it")
    if isinstance(node.loop, Repeat):
        return _repeat(ctx, node, node.loop, path, inputs, mark)
    if isinstance(node.loop, ForEach):
        return _chunk_loop(ctx, node, node.loop, path, inputs, mark)
    return expand_once(ctx, node, path, inputs, dest, mark)


def expand_once(
    ctx: Expansion,
    node: Node,
    path: str,
    inputs: Mapping[str, View | None],
    dest: Mapping[str, View],
    mark: Mark,
) -> Views:
    """Expand one run of a node's stage or nested graph, whatever its loop says. Raises PlanError."""
    if node.graph is not None:
        return expand_graph(ctx, node.graph, path, inputs, dest, mark)
    bound = ctx.stages[path]
    signature = bound.signature
    fed = {port.name: inputs.get(port.name) for port in signature.inputs}
    for port in signature.inputs:
        check_fed(ctx, port, fed[port.name], path + mark.suffix)
    shapes = output_shapes(ctx, signature, fed, path)
    op = path + mark.suffix
    outputs: dict[str, View] = {}
    for port in signature.outputs:
        view = dest.get(port.name) or ctx.add(f"{op}.{port.name}", shapes[port.name], dtype_of(ctx, port))
        if ctx.shape(view) != shapes[port.name]:
            raise PlanError(
                f"{op}.{port.name} has shape {show(shapes[port.name])}, but {show(ctx.shape(view))} of"
                f" {view.buffer} is what it is collected into",
                rule="ShapesAgree",
            )
        outputs[port.name] = view
    ctx.items.append(
        Op(
            name=op,
            node=path,
            stage=bound.stage,
            inputs=tuple(fed.items()),
            outputs=tuple(outputs.items()),
            iteration=mark.iteration,
            chunk=mark.chunk.index,
            start=mark.chunk.start,
            width=mark.chunk.width,
            per_wave=signature.per_wave,
        )
    )
    return dict(outputs)


def expand_chunks(ctx: Expansion, loop: Loop, chunks: tuple[Chunk, ...], rows: int) -> Views:
    """Expand a chunk loop, now that its chunks are known; return a view for each of its results.

    Collected results are written to the values that ``loop.results`` names. Raises PlanError.
    """
    assert isinstance(loop.node.loop, ForEach)
    spec, results = loop.node.loop, dict(loop.results)
    inputs: Views = dict(loop.inputs)
    last: Views = {}
    for chunk in chunks:
        fed = {
            port: narrow(view, chunk.start, rows) if view is not None and port in spec.each else view
            for port, view in inputs.items()
        }
        into = {port: View(results[name], 1, chunk.start, rows) for port, name in spec.collect}
        mark = Mark(f"{loop.suffix}.c{chunk.index}", loop.iteration, chunk)
        last = expand_once(ctx, loop.node, loop.path, fed, into, mark)
        inputs.update({port: last[output] for port, output in spec.carry})
    collected: Views = {name: View(results[name]) for _, name in spec.collect}
    return {**last, **collected}


def _repeat(
    ctx: Expansion,
    node: Node,
    loop: Repeat,
    path: str,
    inputs: Mapping[str, View | None],
    mark: Mark,
) -> Views:
    times = loop.times if isinstance(loop.times, int) else ctx.dims.get(loop.times)
    if not isinstance(times, int) or times < 0:
        raise PlanError(f"{path}: repeat wants a number of times that is known, not {loop.times!r}")
    dry = ctx.scratch()
    tried = expand_once(dry, node, path, inputs, {}, replace(mark, suffix=f"{mark.suffix}.try"))
    collected: dict[str, View] = {}
    for port, name in loop.collect:
        view = tried.get(port)
        if view is None:
            raise PlanError(f"{path}: output {port!r} cannot be collected, it has no value")
        shape = dry.shape(view)
        whole = (shape[0], times, *shape[1:])
        collected[name] = ctx.add(f"{path}{mark.suffix}.{name}", whole, dry.values[view.buffer].dtype)
    fed: Views = dict(inputs)
    # No iteration at all: what was carried in comes out, and the rest has no value.
    carried_in = {output: inputs.get(port) for port, output in loop.carry}
    last: Views = {output: carried_in.get(output) for output in tried}
    for i in range(times):
        into = {port: View(collected[name].buffer, 1, i, 1, squeeze=True) for port, name in loop.collect}
        last = expand_once(ctx, node, path, fed, into, replace(mark, suffix=f"{mark.suffix}.{i}", iteration=i))
        fed.update({port: last[output] for port, output in loop.carry})
    return {**last, **collected}


def _chunk_loop(
    ctx: Expansion, node: Node, loop: ForEach, path: str, inputs: Mapping[str, View | None], mark: Mark
) -> Views:
    if loop.over != "chunk":
        raise PlanError(f"{path}: for_each runs over 'chunk', not {loop.over!r}")
    if mark.chunk.width or ".cut" in mark.suffix:
        raise PlanError(f"{path}: a chunk loop cannot stand inside a chunk loop")
    window, rows = ctx.dims.get("W", "W"), ctx.dims.get("S", "S")
    dry = ctx.scratch()
    cut: Views = dict(inputs)
    for port in loop.each:
        view = inputs.get(port)
        if view is None:
            continue
        shape = ctx.shape(view)
        if len(shape) < 2 or shape[1] != window:
            raise PlanError(
                f"{path}.{port} is cut into chunks, so it must be [N, W, …], not {show(shape)}",
                rule="EachIsWindow",
            )
        name = f"{path}{mark.suffix}.{port}.cut"
        cut[port] = dry.add(name, (shape[0], rows, *shape[2:]), ctx.values[view.buffer].dtype)
    tried = expand_once(dry, node, path, cut, {}, replace(mark, suffix=f"{mark.suffix}.cut"))
    collected = {name: port for port, name in loop.collect}
    results: dict[str, View] = {}
    for name in {**tried, **collected}:
        view = tried[collected.get(name, name)]
        if view is None:
            continue
        shape = dry.shape(view)
        if name in collected:
            if len(shape) < 2 or shape[1] != rows:
                raise PlanError(
                    f"{path}: {collected[name]!r} is collected, so it must be [N, S, …], not {show(shape)}",
                    rule="EachIsWindow",
                )
            shape = (shape[0], window, *shape[2:])
        results[name] = ctx.add(f"{path}{mark.suffix}.{name}", shape, dry.values[view.buffer].dtype)
    ctx.items.append(
        Loop(
            name=path + mark.suffix,
            node=node,
            path=path,
            inputs=tuple(inputs.items()),
            results=tuple((name, view.buffer) for name, view in results.items()),
            suffix=mark.suffix,
            iteration=mark.iteration,
        )
    )
    return dict(results)


def _destinations(graph: Graph, path: str, dest: Mapping[str, View]) -> dict[str, View]:
    """Return where inner references must be written so that the graph's outputs land in ``dest``."""
    wanted: dict[str, View] = {}
    for name, ref in graph.outputs:
        if name not in dest:
            continue
        if "." not in ref or ref in wanted:
            raise PlanError(f"{path}: output {name!r} cannot be collected, {ref!r} would have to be copied")
        wanted[ref] = dest[name]
    return wanted


def _bind_inputs(ctx: Expansion, graph: Graph, path: str, refs: Views) -> dict[str, Dim]:
    """Return what the symbols of a nested graph's inputs stand for; check the inputs on the way."""
    for port in graph.inputs:
        check_fed(ctx, port, refs[port.name], path or graph.name)
    symbols = {dim for port in graph.inputs for dim in port.shape if isinstance(dim, str)}
    shown = tuple(Port(symbol, (symbol,), "int64") for symbol in sorted(symbols))
    shapes = output_shapes(ctx, Signature(graph.inputs, shown), refs, path or graph.name)
    return {symbol: shape[0] for symbol, shape in shapes.items()}
