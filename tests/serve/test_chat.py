"""/v1/chat/completions: templates, roles, whole and streamed answers."""

from __future__ import annotations

import pytest
from serving import Server, streamed

from draftline.graph.errors import ModelError, RequestError
from draftline.runtime.chat import ChatTemplate

MESSAGES = [{"role": "system", "content": "Write Python."}, {"role": "user", "content": "def read_lines(path):"}]
RENDERED = "# system: Write Python.\n# user: def read_lines(path):\n# assistant:"


def test_the_openai_client(server: Server, greedy):
    client = server.client().chat.completions
    got = client.create(model="tiny", messages=MESSAGES, max_tokens=20, temperature=0)
    assert got.choices[0].message.content == greedy(RENDERED, 20)
    assert got.choices[0].message.role == "assistant"
    assert got.object == "chat.completion"
    chunks = list(client.create(model="tiny", messages=MESSAGES, max_completion_tokens=20, temperature=0, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == greedy(RENDERED, 20)
    assert [c.choices[0].finish_reason for c in chunks][-1] == "length"


def test_an_answer_may_be_sent_back(server: Server, greedy):
    client = server.client().chat.completions
    first = client.create(model="tiny", messages=MESSAGES, max_tokens=8, temperature=0).choices[0].message
    again = [*MESSAGES, first.model_dump(), {"role": "user", "content": [{"type": "text", "text": "go on"}]}]
    got = client.create(model="tiny", messages=again, max_tokens=8, temperature=0)  # type: ignore[arg-type]
    text = RENDERED.removesuffix("# assistant:") + f"# assistant: {first.content}\n# user: go on\n# assistant:"
    assert got.choices[0].message.content == greedy(text, 8)


def test_n_choices_stream_side_by_side(server: Server, greedy):
    chunks = streamed(server, {"messages": MESSAGES, "n": 3, "max_tokens": 9, "temperature": 0}, "/v1/chat/completions")
    texts = ["", "", ""]
    for c in chunks:
        texts[c["choices"][0]["index"]] += c["choices"][0]["delta"].get("content", "")
    assert texts == [greedy(RENDERED, 9)] * 3


def test_without_a_limit_the_answer_takes_what_the_context_leaves(server: Server, plain):
    words = next(n for n in range(1024) if len(plain.text.encode("x " * n)) > 980)
    body = {"messages": [{"role": "user", "content": "x " * words}], "temperature": 0, "ignore_eos": True}
    got = server.post("/v1/chat/completions", body).json()
    assert got["usage"]["total_tokens"] == 1024


def test_going_on_with_the_last_message(server: Server, greedy):
    messages = [*MESSAGES, {"role": "assistant", "content": "\n    with open"}]
    body = {"messages": messages, "continue_final_message": True, "temperature": 0, "max_tokens": 6}
    text = RENDERED + " \n    with open"
    assert server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"] == greedy(text, 6)


def test_what_the_template_refuses_is_a_400(server: Server):
    got = server.post("/v1/chat/completions", {"messages": [{"role": "robot", "content": "x"}]})
    assert (got.status_code, got.json()["error"]["param"]) == (400, "messages")
    assert "no robots" in got.json()["error"]["message"]


def test_a_template_is_rendered_as_transformers_does(tmp_path):
    from transformers.utils.chat_template_utils import render_jinja_template

    source = """{{ bos_token }}
{%- for m in messages %}
    {% if loop.index0 > 3 %}{% break %}{% endif %}
  <{{ m['role'] }}>{{ m.content | trim }}{{ {'a': "é<", 'b': [1]} | tojson }}
{% endfor %}
{% if add_generation_prompt %}
<assistant>
{% endif %}"""
    turns = [{"role": r, "content": f" {i} "} for i, r in enumerate(["system", "user", "assistant", "user", "user"])]
    for reply in (True, False):
        ours = ChatTemplate(source, {"bos_token": "<s>"}).render(turns, reply)
        theirs, _ = render_jinja_template(
            conversations=[turns], chat_template=source, add_generation_prompt=reply, bos_token="<s>"
        )
        assert ours == theirs[0]


def test_a_template_has_no_way_to_python():
    for source in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"):
        with pytest.raises(RequestError, match="does not take"):
            ChatTemplate(source + "{{ x.y.z }}", {}).render([{"role": "user", "content": "x"}])


def test_templates_of_a_folder(tmp_path):
    assert ChatTemplate.of(tmp_path) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]}')
    assert ChatTemplate.of(tmp_path).render([]) == "d"  # type: ignore[union-attr]
    config.write_text(
        '{"eos_token": {"content": "</s>"}, "chat_template": "{{ eos_token }}{{ strftime_now(\'%%\') }}"}'
    )
    assert ChatTemplate.of(tmp_path).render([]) == "</s>%"  # type: ignore[union-attr]
    (tmp_path / "chat_template.jinja").write_text("j")
    assert ChatTemplate.of(tmp_path).render([]) == "j"  # type: ignore[union-attr]
    (tmp_path / "own").write_text("{% if %}")
    with pytest.raises(ModelError, match="own"):
        ChatTemplate.of(tmp_path, tmp_path / "own")
    with pytest.raises(ModelError, match="missing"):
        ChatTemplate.of(tmp_path, tmp_path / "missing")
