"""The status page, as a browser and as an XML parser sees it; the metrics."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Server

from draftline.runtime.pipeline import prepare
from draftline.runtime.serve.charts import bars, line
from draftline.runtime.serve.picture import boxes, picture

PROMPT = "def read_lines(path):"
VOID = {"meta", "link", "br"}
BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


class Tags(HTMLParser):
    """Open tags, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_data(self, data):
        self.words += [data.strip()] if data.strip() and self.open[-1] not in ("style", "script") else []


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(server: Server):
    server.text(PROMPT, max_tokens=20)
    got = server.get("/")
    assert got.headers["content-type"].startswith("text/html")
    tags = Tags()
    tags.feed(got.text)
    assert not tags.open
    assert {"ready", "tiny alias", "running, of 4 slots", "waiting", "Acceptance", "Depth", "Throughput"} <= {
        *tags.words
    }
    svgs = re.findall(r"<svg.*?</svg>", got.text, re.S)
    assert len(svgs) == 4
    for svg in svgs:
        ET.fromstring(svg)
    assert not re.findall(r"(?:src|href)=\"(?!/)", got.text)
    assert "http" not in got.text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert "prefers-color-scheme" in got.text
    assert PROMPT not in got.text
    assert "default-src 'none'" in got.headers["content-security-policy"]


@pytest.mark.parametrize(("k", "titles"), [(0, "pad verify accept commit"), (3, "draft ×3 pad verify accept commit")])
def test_the_plan_is_drawn_in_the_order_of_a_step(k, titles):
    plan, _ = prepare("mtp.yaml", num_speculative_tokens=k, max_num_seqs=2).plan()
    assert " ".join(box.title for box in boxes(plan)) == titles
    words = " ".join(ET.fromstring(picture(plan)).itertext())
    assert f"K={k}" in words
    assert str(plan.layout.chosen) in words


def test_a_plan_of_two_chunks_on_two_devices():
    plan, _ = prepare("mtp-zmq.yaml", num_speculative_tokens=9, max_num_seqs=2).plan()
    found = boxes(plan)
    assert [b.title for b in found if b.waves] == ["verify", "verify"]
    assert {b.device for b in found} == {"cpu:0", "cpu:1"}
    ET.fromstring(picture(plan))


@pytest.mark.parametrize("values", [[], [0.0], [1.0, 0.5], [0.1] * 20])
def test_charts_are_svg(values):
    root = ET.fromstring(bars(values, "<&>"))
    assert len([e for e in root if e.get("class") == "bar"]) == len(values)
    ET.fromstring(line([(60.0 - i, v * 1234) for i, v in enumerate(values)], 60, "x"))


def test_the_page_in_a_browser(server: Server, tmp_path):
    browser = next((b for b in BROWSERS if shutil.which(b)), None)
    if browser is None:
        pytest.skip("no browser: none of " + ", ".join(BROWSERS))
    server.text([PROMPT, "import os\n", "class Stack:"], max_tokens=100)
    shot = tmp_path / "page.png"
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
    look = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--window-size=1280,1000")
    files = (f"--screenshot={shot}", f"--user-data-dir={tmp_path / 'profile'}")
    subprocess.run(
        [browser, *look, *quiet, *files, server.url + "/"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert shot.read_bytes().startswith(b"\x89PNG")
    assert shot.stat().st_size > 20_000, "an empty page"


def test_metrics(server: Server):
    before = {n: server.metric(f"vllm:{n}_total") for n in ("prompt_tokens", "generation_tokens")}
    served = server.metric("vllm:request_success_total", finished_reason="length")
    server.text([PROMPT] * 2, max_tokens=20)
    assert server.metric("vllm:prompt_tokens_total") == before["prompt_tokens"] + 12
    assert server.metric("vllm:generation_tokens_total") == before["generation_tokens"] + 40
    assert server.metric("vllm:request_success_total", finished_reason="length") == served + 2
    families = {f.name: f for f in text_string_to_metric_families(server.get("/metrics").text)}
    for name in (
        *("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"),
        *("spec_decode_num_accepted_tokens_per_pos", "num_requests_running", "num_requests_waiting"),
        *("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
        *("kv_cache_usage_perc", "num_preemptions", "prefix_cache_queries", "prefix_cache_hits"),
    ):
        assert all(s.labels["model_name"] == "tiny" for s in families[f"vllm:{name}"].samples), name
        assert families[f"vllm:{name}"].samples
    assert families["draftline_steps"].samples
    drafts, accepted = (server.metric(f"vllm:spec_decode_num_{n}_tokens_total") for n in ("draft", "accepted"))
    assert 0 < accepted < drafts
    assert server.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total") == accepted
    assert server.metric("vllm:time_to_first_token_seconds_count") >= served + 2
