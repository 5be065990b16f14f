"""The MTP head: against transformers' layer, reference = native, and training sees exactly what drafting sees."""

from __future__ import annotations

import llamas
import pytest
import torch
from heads import WINDOW, drafter, head
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from draftline.graph.errors import ConfigError
from draftline.runtime.training.head import unroll
from draftline.runtime.training.loop import initial
from draftline.runtime.training.write import write_head
from draftline.stages.models.core import Rows
from draftline.stages.models.mtp_head.config import check_fits, load_head_config

LENGTH = 40
PAGES = torch.full((2, 1), -1)


TOKENS = torch.randint(0, 300, (LENGTH + 1,), generator=torch.Generator().manual_seed(1))
HIDDEN = torch.randn(LENGTH, 72, generator=torch.Generator().manual_seed(2))


def rows(first: int, n: int, size: int) -> Rows:
    at, slots, ids = (torch.full((size,), -1) for _ in range(3))
    at[:n], slots[:n], ids[:n] = torch.arange(first, first + n), 1, TOKENS[first + 1 : first + n + 1]
    return Rows(ids.clamp(min=0), at, slots, PAGES)


def fill(model, upto: int) -> Tensor:
    """Rows 0 … upto-1 with the target's hidden states, eight a call; streams [upto, 1, D]."""
    got = []
    for start in range(0, upto, 8):
        n = min(8, upto - start)
        hidden = torch.zeros(8, 1, 72)
        hidden[:n, 0] = HIDDEN[start : start + n]
        got.append(model.forward(rows(start, n, 8), hidden)[:n])
    return torch.cat(got)


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_it_equals_a_composition_of_transformers_parts(kernels):
    """eh_proj([enorm(embedding of the next token); hnorm(hidden)]) into a decoder layer (DeepSeek V3, §2.2)."""
    config, w, embed, out = head()
    hf = llamas.oracle("llama")[0].config
    layer, norms = LlamaDecoderLayer(hf, 0).eval(), {}
    own = w.layer
    q, kv, i = config.layer.q_size, config.layer.kv_size, config.layer.intermediate_size
    state = {
        "self_attn.q_proj.weight": own.qkv[:q],
        "self_attn.k_proj.weight": own.qkv[q : q + kv],
        "self_attn.v_proj.weight": own.qkv[q + kv :],
        "self_attn.o_proj.weight": own.o,
        "mlp.gate_proj.weight": own.gate_up[:i],
        "mlp.up_proj.weight": own.gate_up[i:],
        "mlp.down_proj.weight": own.down,
        "input_layernorm.weight": own.attn_norm,
        "post_attention_layernorm.weight": own.ffn_norm,
    }
    layer.load_state_dict(state)
    for name in ("enorm", "hnorm", "norm"):
        norms[name] = LlamaRMSNorm(72, eps=config.layer.rms_norm_eps)
        norms[name].load_state_dict({"weight": getattr(w, name)})
    with torch.no_grad():
        both = torch.cat((norms["enorm"](embed[TOKENS[1:]]), norms["hnorm"](HIDDEN)), -1)[None]
        at = torch.arange(LENGTH)[None]
        x = both @ w.eh_proj.T
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
        truth = layer(x, attention_mask=mask, position_ids=at, position_embeddings=LlamaRotaryEmbedding(hf)(x, at))
        truth = truth[0] if isinstance(truth, tuple) else truth
        model = drafter(kernels)
        streams = fill(model, LENGTH)
        assert (streams[:, 0] - truth[0]).abs().max() <= 1e-4
        logits = norms["norm"](truth[0]) @ out.T
        assert (model.logits(streams) - logits).abs().max() <= 1e-4
        assert torch.equal(model.greedy(streams), logits.argmax(-1))


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("window", [WINDOW, 7])
def test_training_sees_what_drafting_sees(kernels, window):
    """Pass k of the unrolled head, row by row, equals k calls of the drafter on its own output."""
    config, w, embed, _ = head(window)
    depth = 4
    with torch.no_grad():
        passes = unroll(config, w, embed[TOKENS[1:]][None], HIDDEN[None], depth)
        for start in (4, 12, 30):
            model = drafter(kernels, window)
            last = fill(model, start + 1)[-1:]
            for k in range(depth):
                assert (last[0, 0] - passes[k][0, start + k]).abs().max() <= 1e-4, (start, k)
                last = model.forward(rows(start + k + 1, 1, 1), last)


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_a_draft_vocabulary_drafts_the_best_of_its_tokens(kernels):
    model, whole = drafter(kernels, vocab=50), drafter(kernels)
    vocab = head(WINDOW, 50)[1].vocab
    # The two heads are random in the same way but for the vocabulary: same streams.
    streams, logits = fill(model, LENGTH), whole.logits(fill(whole, LENGTH))
    assert vocab is not None
    assert torch.equal(model.greedy(streams), vocab[logits[:, vocab].argmax(-1)])
    assert (model.logits(streams) - logits[:, vocab]).abs().max() <= 1e-4


def test_native_rows_do_not_feel_their_number():
    one, many = drafter("native", 7), drafter("native", 7)
    a = torch.cat([one.forward(rows(p, 1, 1), HIDDEN[p : p + 1, None]) for p in range(LENGTH)])
    assert torch.equal(a, fill(many, LENGTH))


def test_a_head_is_written_and_read_back(tmp_path):
    config, w, *_ = head(WINDOW, 50)
    c = config.layer
    layer = {k: getattr(c, k) for k in ("model_type", "vocab_size", "hidden_size", "intermediate_size", "head_dim")}
    layer |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6}
    parameters = initial(config, llamas.ours("llama"), 0)
    write_head(tmp_path / "head", config, layer, parameters, w.vocab)
    read = load_head_config(tmp_path / "head" / "config.json")
    assert (read.target, read.window, read.draft_vocab_size) == ("llama", WINDOW, 50)
    assert read.layer.hidden_size == c.hidden_size
    assert list(tmp_path.iterdir()) == [tmp_path / "head"]


def test_a_head_of_another_width_is_refused():
    config = head()[0]
    shape = llamas.shape_of(llamas.ours("qwen2")[0])
    with pytest.raises(ConfigError, match=r"vocab_size=300, the target 301 \(it was trained for 'llama'\)"):
        check_fits(config, shape, "some/head")
