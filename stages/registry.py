"""Stage names. Knows: the built-in names, and ``package.module:Class``. Nothing is ever eval'd."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from draftline.graph.core import Signature
from draftline.graph.errors import GraphError, nearest

from .accept import AcceptGreedy
from .commit import Commit
from .draft_model import DraftModel, PrefillDraftModel
from .draft_mtp import DraftMtp
from .draft_ngram import DraftNgram
from .draft_sampled import DraftMtpSampled
from .pad import Pad
from .prefill import PrefillDraft, PrefillTarget
from .verify import Verify, VerifyRejection

BUILTIN: Mapping[str, type[Any]] = MappingProxyType(
    {
        "draft.mtp": DraftMtp,
        "draft.mtp.sampled": DraftMtpSampled,
        "draft.model": DraftModel,
        "draft.ngram": DraftNgram,
        "pad": Pad,
        "verify": Verify,
        "verify.rejection": VerifyRejection,
        "accept.greedy": AcceptGreedy,
        "commit": Commit,
        "prefill.target": PrefillTarget,
        "prefill.draft": PrefillDraft,
        "prefill.draft_model": PrefillDraftModel,
    }
)

_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def lookup(name: str) -> type[Any]:
    """The stage class of a registry name or of ``package.module:Class``.

    Raises GraphError that names the stage and the nearest known ones, or what the module lacks.
    """
    if name in BUILTIN:
        return BUILTIN[name]
    if ":" not in name:
        raise GraphError(f"unknown stage {name!r}{nearest(name, BUILTIN)}", rule="unknown-stage")
    if not _PATH.fullmatch(name):
        raise GraphError(f"stage {name!r} is neither a registry name nor package.module:Class", rule="unknown-stage")
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise GraphError(f"stage {name!r}: cannot import {module_name}: {error}", rule="unknown-stage") from error
    found = getattr(module, class_name, None)
    if found is None:
        known = [k for k, v in vars(module).items() if isinstance(getattr(v, "signature", None), Signature)]
        raise GraphError(
            f"stage {name!r}: {module_name} has no {class_name}{nearest(class_name, known)}", rule="unknown-stage"
        )
    if not isinstance(getattr(found, "signature", None), Signature):
        raise GraphError(
            f"stage {name!r}: {class_name} has no class attribute 'signature' of type Signature", rule="unknown-stage"
        )
    return found


def extended(stages: Mapping[str, type[Any]]) -> Callable[[str], type[Any]]:
    """A lookup that knows ``stages`` by their names here, too. Raises GraphError for what is no stage class."""
    own = dict(stages)
    for name, found in own.items():
        if not isinstance(getattr(found, "signature", None), Signature):
            raise GraphError(
                f"stage {name!r}: {found!r} has no class attribute 'signature' of type Signature", rule="unknown-stage"
            )
    return lambda name: own[name] if name in own else lookup(name)


def signature(name: str) -> Signature:
    """The signature of a stage name. Raises GraphError as ``lookup`` does."""
    return lookup(name).signature
