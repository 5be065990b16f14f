"""The ``inductor`` backend: a model's calls, compiled by torch.compile for the shapes that the plans use.

Knows: torch.compile and its options, its errors, the compile cache's folder. Does not know: plans, what a model
computes.

What is compiled is a *call* of a model (the target's forward, the drafter's greedy, …) with one set of shapes, and
every plan shares it. So all waves of all plans run the same code on T rows, and a row has the same bits in each. The
stages around the calls stay as they are.
"""

from __future__ import annotations

import copy
import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftline.compiler.capture import Replay
from draftline.compiler.kept import kept
from draftline.graph.errors import CapacityError, PlanError, StageError
from draftline.stages.kernels.native.build import compiler, cpu_text
from draftline.stages.models.core import Loaded, Rows
from draftline.stages.models.places import cache_root

ROLES = ("target", "drafter", "draft_model")
METHODS = ("forward", "logits", "greedy")
"""What stages call of a target or a drafter."""
STATIC: dict[str, Any] = {"fullgraph": True, "dynamic": False, "isolate_recompiles": True}
"""No graph breaks, fixed shapes, and no call finds code that was compiled for another one."""
ADVICE = "--capture eager needs no compiler"
FOLDER_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"

Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


def compile_cache() -> Path:
    """Where compiled calls are kept: ``$XDG_CACHE_HOME/draftline/inductor``, a folder per torch and CPU."""
    here = "\0".join((torch.__version__, os.uname().machine, cpu_text()))
    return cache_root() / "inductor" / hashlib.sha256(here.encode()).hexdigest()[:16]


def working_compiler() -> str:
    """The C++ compiler. Raises CapacityError if there is none, or if it does not even tell its version."""
    cxx = compiler()
    if cxx is None:
        raise CapacityError(f"--capture inductor needs a C++ compiler (g++, clang++ or $CXX); {ADVICE}")
    try:
        done = subprocess.run([cxx, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise CapacityError(f"--capture inductor: {cxx} cannot be run: {error.strerror}; {ADVICE}") from None
    if done.returncode:
        said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        raise CapacityError(f"--capture inductor: {cxx} failed: {said[0]}; {ADVICE}")
    return cxx


class Inductor:
    """``captures`` counts segments and compiled calls."""

    name = "inductor"

    def __init__(self) -> None:
        """Raises CapacityError without a working C++ compiler."""
        self.captures, self.sealed = 0, False
        self.options: dict[str, Any] = {
            "cpp.cxx": (None, working_compiler()),
            # A call's shapes are looked up here and its model is fixed: there is nothing to guard.
            "guard_filter_fn": lambda guards: [False] * len(guards),
        }
        self._models: tuple[Loaded, Loaded] | None = None

    def models(self, loaded: Loaded) -> Loaded:
        """The same models, with calls that are compiled at their first use."""
        if self._models is None or self._models[0] is not loaded:
            twins = {role: self._compiled(role, getattr(loaded, role)) for role in ROLES}
            self._models = loaded, replace(loaded, **twins)
        return self._models[1]

    def _compiled(self, role: str, model: Any) -> Any:
        twin = copy.copy(model)
        for name in METHODS if model is not None else ():
            setattr(twin, name, StaticCall(f"{role}.{name}", getattr(model, name), self))
        return twin

    def capture(self, run: Replay, rehearse: Callable[[], None]) -> Replay:
        """Compile whatever the segment calls. Raises CapacityError and PlanError where that fails."""
        try:
            with torch.inference_mode():
                rehearse()
        except StageError as error:
            raise error.__cause__ if isinstance(error.__cause__, CapacityError | PlanError) else error from None
        self.captures += 1
        return run

    def seal(self) -> None:
        self.sealed = True


class StaticCall:
    """A method of a model that is compiled once for each set of shapes, and never after the backend is sealed."""

    def __init__(self, name: str, method: Callable[..., Tensor], backend: Inductor) -> None:
        self._name, self._method, self._backend = name, method, backend
        self._compiled: dict[Shapes, Callable[..., Tensor]] = {}

    def __call__(self, *args: Rows | Tensor) -> Tensor:
        """Raises PlanError for shapes that were not met before ``seal``."""
        # A view's strides depend on the plan; the compiled code is the same for all of them.
        tensors = [t.contiguous() for t in _tensors(args)]
        shapes = tuple((t.shape, t.dtype) for t in tensors)
        compiled = self._compiled.get(shapes)
        if compiled is None:
            compiled = self._compiled[shapes] = self._compile(isinstance(args[0], Rows), tensors)
        return compiled(*tensors)

    def _compile(self, rows: bool, tensors: Sequence[Tensor]) -> Callable[..., Tensor]:
        shapes = ", ".join(f"{t.dtype} {list(t.shape)}" for t in tensors).replace("torch.", "")
        if self._backend.sealed:
            raise PlanError(f"{self._name} of {shapes} was not captured at warm-up: no plan of this deployment uses it")
        method = self._method

        def on_rows(tokens: Tensor, positions: Tensor, slots: Tensor, pages: Tensor, *rest: Tensor) -> Tensor:
            return method(Rows(tokens, positions, slots, pages), *rest)

        compiled: Callable[..., Tensor] = torch.compile(
            on_rows if rows else method,
            **STATIC,
            options=dict(self._backend.options),  # torch.compile takes entries out of it
        )
        # Tensors of their own, so that nothing depends on which of the real ones share memory; pad rows, which write
        # nothing.
        examples = [torch.zeros_like(t) if t.is_floating_point() else torch.full_like(t, -1) for t in tensors]
        with kept(compile_cache(), FOLDER_VARIABLE):
            try:
                compiled(*examples)
            except Exception as error:
                raise _failure(error, f"--capture inductor: {self._name} of {shapes}") from error
        self._backend.captures += 1
        return compiled


def _tensors(args: Sequence[Rows | Tensor]) -> Iterator[Tensor]:
    for arg in args:
        if isinstance(arg, Rows):
            yield from (arg.tokens, arg.positions, arg.slots, arg.pages)
        else:
            yield arg


def _failure(error: BaseException, what: str) -> CapacityError | PlanError:
    """What a failed compilation is to the caller: the machine lacks something, or the model cannot be compiled."""
    from torch._dynamo.exc import Unsupported, UserError
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    cause: BaseException | None = error
    while cause is not None:
        said = (str(cause).strip() or type(cause).__name__).splitlines()
        if isinstance(cause, Unsupported | UserError):
            return PlanError(f"{what} cannot be traced: {said[0]}; use --capture eager")
        if isinstance(cause, CppCompileError | InvalidCxxCompiler | OSError):
            said = [line for line in said if "error" in line] or said
            return CapacityError(f"{what} cannot be compiled: {said[0]}; {ADVICE}")
        cause = getattr(cause, "inner_exception", None) or cause.__cause__ or cause.__context__
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return PlanError(f"{what} cannot be compiled: {type(error).__name__}: {first}; use --capture eager")
