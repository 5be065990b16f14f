"""``/tokenize`` and ``/detokenize``, in vLLM's shapes. Knows: text and ids. Does not know: engines."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .errors import bad
from .jobs import chat_ids, encoded
from .protocol import DetokenizeBody, TokenizeBody
from .read import read
from .state import State


async def tokenize(request: Request, state: State) -> Response:
    """``{"count", "max_model_len", "tokens", "token_strs"}``. Raises HttpError."""
    body = await read(request, TokenizeBody, state.options)
    state.check_model(body.model)
    serving = state.ready()
    if (body.prompt is None) == (body.messages is None):
        raise bad("prompt", "give either prompt or messages")
    if body.messages is not None:
        ids = await chat_ids(body, body.messages, bool(body.add_special_tokens), serving)
    else:
        ids = await encoded(serving.pipeline.text, body.prompt or "", body.add_special_tokens is not False)
    names = [serving.pipeline.text.token(i) for i in ids] if body.return_token_strs else None
    return JSONResponse({"count": len(ids), "max_model_len": serving.max_len, "tokens": list(ids), "token_strs": names})


async def detokenize(request: Request, state: State) -> Response:
    """``{"prompt"}``, special tokens included. Raises HttpError."""
    body = await read(request, DetokenizeBody, state.options)
    state.check_model(body.model)
    serving = state.ready()
    for i, token in enumerate(body.tokens):
        if not 0 <= token < serving.vocab_size:
            raise bad(f"tokens[{i}]", f"is out of range; the vocabulary has ids 0 … {serving.vocab_size - 1}")
    return JSONResponse({"prompt": serving.pipeline.text.decode(body.tokens, skip_special_tokens=False)})
