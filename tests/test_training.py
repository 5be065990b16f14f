"""The training script: a run that was stopped goes on where its checkpoint is."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest
import torch

from benchmarks.training import train
from draftline.stages.models.deepseek_v4.config import parse_config


@pytest.fixture
def setting(tmp_path):
    raw = json.loads((train.HERE / "tiny-v4.json").read_text())
    small = {"vocab_size": 64, "hidden_size": 32, "head_dim": 16, "num_attention_heads": 2, "q_lora_rank": 8}
    small |= {"o_lora_rank": 8, "moe_intermediate_size": 8, "index_head_dim": 16, "compress_ratios": [0, 4, 128, 4]}
    args = argparse.Namespace(
        out=tmp_path, minutes=0.05, length=32, batch=2, seed=1, decay=0.5, save_every=0.0, compile=False, depth=2,
        sharpen=0.5, data=tmp_path,
    )  # fmt: skip
    return parse_config({**raw, **small}), args, np.arange(4000, dtype=np.uint16) % 50


def test_a_stopped_run_goes_on(setting):
    c, args, data = setting
    train.train_trunk(c, args, data)
    first = torch.load(args.out / "trunk.pt", weights_only=True)
    assert first["step"] > 0
    args.minutes = 0.09
    train.train_trunk(c, args, data)
    second = torch.load(args.out / "trunk.pt", weights_only=True)
    assert second["step"] > first["step"]
    assert second["seconds"] > first["seconds"]
    lines = [json.loads(line) for line in (args.out / "trunk.log").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps)), "a step was done twice"
    assert not list(args.out.glob("*.tmp"))


def test_the_mtp_phase_leaves_the_trunk_alone(setting):
    c, args, data = setting
    args.minutes = 0.03
    train.train_trunk(c, args, data)
    train.train_mtp(c, args, data)
    trunk = torch.load(args.out / "trunk.pt", weights_only=True)["weights"]
    mtp = torch.load(args.out / "mtp.pt", weights_only=True)["weights"]
    moved = {name for name in trunk if not torch.equal(trunk[name], mtp[name])}
    assert moved
    assert all(".mtp" in name for name in moved)
