"""Conversations with tools, calls and reasoning: written as transformers does, and learnt."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.chat_templates import (
    GENERATION_TOOLS,
    HARMONY,
    LLAMA31,
    LLAVA,
    MISTRAL,
    QWEN2_VL,
    QWEN3,
    SPECIALS,
)
from tests.support.shards import tokenizer_folder
from tests.unit.test_chat_tokens import made, reference, text_in_loss, with_vocab, write

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.data.samples.sample_encoder import SampleEncoder
from mimo_launch.data.samples.template_program import TemplateRefused
from mimo_launch.data.samples.text_tokens import TextTokens

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Say what the <weather> is & \u00e9t\u00e9.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def call(city: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": {"city": city, "days": 2}}
    return {"type": "function", "id": "abcdefghi", "function": function}


ASKED = {"role": "user", "content": "Is it <cold> in Z\u00fcrich?"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [call("Z\u00fcrich")]}
RESULT = {"role": "tool", "content": '{"t": 4}', "name": "weather", "tool_call_id": "abcdefghi"}
ANSWER = {"role": "assistant", "content": "Yes, 4 degrees."}
THANKS = {"role": "user", "content": "Thanks"}
WELCOME = {"role": "assistant", "content": "4"}
THOUGHT = {**CALLED, "reasoning_content": "I should look."}
NULL = {"role": "assistant", "content": None, "tool_calls": [call("Bern")]}
LOOP = [ASKED, CALLED, RESULT, ANSWER, THANKS, WELCOME]
THOUGHTS = [ASKED, THOUGHT, RESULT, {**ANSWER, "reasoning": "Now\nI know."}]
LONG = [*THOUGHTS, THANKS, {**WELCOME, "thinking": "Done."}]
IN_TEXT = [ASKED, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes."}]
HERMES = [ASKED, CALLED, {"role": "user", "content": "<tool_response>4</tool_response>"}, ANSWER]
DAY = datetime(2024, 2, 29)
DATED = {"kind": "chat", "date": DAY.strftime("%Y-%m-%d")}
CHAT = {"kind": "chat"}
NO_THINKING = {"kind": "chat", "variables": {"enable_thinking": False}}

CALL_TEXT = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s", "days": 2}}\n</tool_call>'
ZURICH = CALL_TEXT % "Z\u00fcrich"
END = "<|im_end|>"
LLAMA_CALL = '{"name": "weather", "parameters": {"city": "Z\u00fcrich", "days": 2}}<|eot_id|>'
MISTRAL_CALL = (
    '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Z\u00fcrich", "days": 2}, '
    '"id": "abcdefghi"}]</s>'
)
NO_THOUGHTS = "<think>\n\n</think>\n\n"

CASES: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any], list[str]]] = {
    "qwen3 calls": (
        QWEN3,
        LOOP,
        CHAT,
        [ZURICH + END, "Yes, 4 degrees." + END, NO_THOUGHTS + "4" + END],
    ),
    "qwen3 without content": (
        QWEN3,
        [ASKED, NULL, RESULT, ANSWER],
        CHAT,
        [CALL_TEXT % "Bern" + END, NO_THOUGHTS + "Yes, 4 degrees." + END],
    ),
    "qwen3 thoughts": (
        QWEN3,
        THOUGHTS,
        CHAT,
        [
            f"<think>\nI should look.\n</think>\n\n{ZURICH}{END}",
            f"<think>\nNow\nI know.\n</think>\n\nYes, 4 degrees.{END}",
        ],
    ),
    "qwen3 thoughts that the template drops": (
        QWEN3,
        LONG,
        CHAT,
        [ZURICH + END, "Yes, 4 degrees." + END, f"<think>\nDone.\n</think>\n\n4{END}"],
    ),
    "qwen3 thoughts in the text": (
        QWEN3,
        IN_TEXT,
        CHAT,
        [f"<think>\nHm.\n</think>\n\nYes.{END}"],
    ),
    "qwen3 dropped thoughts in the text": (
        QWEN3,
        [*IN_TEXT, THANKS, WELCOME],
        CHAT,
        ["Yes." + END, NO_THOUGHTS + "4" + END],
    ),
    "qwen3 without thinking": (
        QWEN3,
        LOOP,
        NO_THINKING,
        [ZURICH + END, "Yes, 4 degrees." + END, "4" + END],
    ),
    "qwen3 results from a user": (
        QWEN3,
        HERMES,
        CHAT,
        [ZURICH + END, NO_THOUGHTS + "Yes, 4 degrees." + END],
    ),
    "llama 3.1": (
        LLAMA31,
        LOOP,
        CHAT,
        [LLAMA_CALL, "Yes, 4 degrees.<|eot_id|>", "4<|eot_id|>"],
    ),
    "llama 3.1 with a date": (
        LLAMA31,
        LOOP,
        DATED,
        [LLAMA_CALL, "Yes, 4 degrees.<|eot_id|>", "4<|eot_id|>"],
    ),
    "llama 3.1 with results that are objects": (
        LLAMA31,
        [ASKED, CALLED, {**RESULT, "content": {"t": [4, "\u00b0C"]}}, ANSWER],
        CHAT,
        [LLAMA_CALL, "Yes, 4 degrees.<|eot_id|>"],
    ),
    "mistral": (MISTRAL, LOOP, CHAT, [MISTRAL_CALL, " Yes, 4 degrees.</s>", " 4</s>"]),
    "harmony": (
        HARMONY,
        [ASKED, THOUGHT, {**RESULT, "role": "developer"}, ANSWER, THANKS, WELCOME],
        DATED,
        [
            "<|channel|>analysis<|message|>I should look.<|end|><|start|>assistant"
            " to=functions.weather<|channel|>commentary json<|message|>"
            '{"city": "Z\u00fcrich", "days": 2}<|call|>',
            "<|channel|>final<|message|>Yes, 4 degrees.<|end|>",
            "<|channel|>final<|message|>4<|return|>",
        ],
    ),
    "blocks": (
        GENERATION_TOOLS,
        LOOP,
        CHAT,
        [
            '<call>{"name": "weather", "arguments": {"city": "Z\u00fcrich", "days": 2}}</call>'
            + END,
            "Yes, 4 degrees." + END,
            "4" + END,
        ],
    ),
}
WITHOUT_TOOLS = ("harmony",)


@pytest.mark.parametrize("name", CASES)
def test_tools_calls_and_reasoning_are_those_of_transformers_and_are_learnt(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        now = staticmethod(lambda: DAY)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Clock)
    source, messages, template, answers = CASES[name]
    folder = tokenizer_folder(tmp_path, source, specials=SPECIALS, vocab=400)
    record: dict[str, Any] = {"messages": messages}
    if name not in WITHOUT_TOOLS:
        record["tools"] = TOOLS
    encoded = write(folder, record, template=template)
    variables = {
        # Without a date of ours, templates get none.
        **({} if "date" in template else {"date_string": "26 Jul 2024"}),
        **template.get("variables", {}),
    }
    want = reference(folder).apply_chat_template(messages, record.get("tools"), **variables)
    assert reference(folder).decode(encoded.tokens.tolist()) == reference(folder).decode(
        want["input_ids"]
    )
    assert encoded.tokens.tolist() == want["input_ids"]
    assert text_in_loss(folder, encoded) == answers


def test_blocks_are_learnt_as_transformers_masks_them_with_tools_and_documents(
    tmp_path: Path,
) -> None:
    folder = tokenizer_folder(tmp_path, GENERATION_TOOLS)
    documents = [{"title": "Alps", "text": "Snow."}]
    record = {"messages": LOOP, "tools": json.dumps(TOOLS), "documents": documents}
    encoded = write(folder, record, template="chat")
    want = reference(folder).apply_chat_template(
        LOOP, TOOLS, documents, return_assistant_tokens_mask=True
    )
    assert encoded.tokens.tolist() == want["input_ids"]
    assert encoded.loss_mask.tolist() == [bool(each) for each in want["assistant_masks"]]


def test_a_marker_is_text_after_a_backslash_in_tools_calls_and_reasoning(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, QWEN3, specials=SPECIALS, vocab=400)
    pad, escaped = "<|image_pad|>", r"\<|image_pad|>"
    tool = {"name": "weather", "description": escaped}
    thought = {**THOUGHT, "reasoning_content": escaped, "tool_calls": [call(escaped)]}
    encoded = write(folder, {"messages": [ASKED, thought], "tools": [tool]}, template="chat")
    assert reference(folder).decode(encoded.tokens.tolist()).count(pad) == 3
    assert encoded.markers == ()
    [answer] = text_in_loss(folder, encoded)
    assert answer.count(pad) == 2


TWO = {**CALLED, "tool_calls": [call("Bern"), call("Basel")]}
LATER = QWEN2_VL.replace("{{ message['content'] }}", "{{ message['content'] | center(40) }}")
FIRST_CALL = QWEN3.replace("in message.tool_calls or []", "in (message.tool_calls or [])[:1]")


@pytest.mark.parametrize(
    ("source", "record", "why"),
    [
        (QWEN2_VL, {"messages": LOOP}, r"does not write `tool_calls` of message 2 \(assistant\)"),
        (
            QWEN2_VL,
            {"messages": [ASKED, {**ANSWER, "reasoning": "Hm."}]},
            r"does not write `reasoning_content` of message 2 \(assistant\)",
        ),
        (QWEN2_VL, {"messages": [ASKED, ANSWER], "tools": TOOLS}, "does not write `tools`"),
        (QWEN3, {"messages": [ASKED, ANSWER], "documents": [{"text": "x"}]}, "`documents`"),
        (FIRST_CALL, {"messages": [ASKED, TWO]}, r"`tool_calls\[1\]` of message 2"),
        (
            QWEN3,
            {"messages": [ASKED, {"role": "critic", "content": "No!"}, ANSWER]},
            r"does not write `content` of message 2 \(critic\)",
        ),
        (LLAMA31, {"messages": [ASKED, TWO]}, "only supports single tool-calls"),
        (LATER, {"messages": [ASKED, ANSWER]}, r"chat_template.jinja.*`\{% generation %\}`"),
        (QWEN3, {"messages": LOOP, "tools": 3}, "`tools` of its JSON is a number, not a list"),
        (QWEN3, {"messages": LOOP, "tools": "{"}, "`tools` of its JSON is text, not a list"),
        (
            QWEN3,
            {"messages": [ASKED, {**ANSWER, "tool_calls": "x"}]},
            "`tool_calls` of a message is text, not a list",
        ),
        (
            QWEN3,
            {"messages": [ASKED, {**ANSWER, "tool_calls": [{"function": {"name": ""}}]}]},
            "a call of a tool has no name",
        ),
    ],
)
def test_a_template_that_loses_a_part_of_a_conversation_is_an_error_that_names_it(
    tmp_path: Path, source: str, record: dict[str, Any], why: str
) -> None:
    folder = tokenizer_folder(tmp_path, source, specials=SPECIALS, vocab=400)
    with pytest.raises(BadSample, match=why):
        write(folder, record, template="chat")


def test_a_template_that_needs_a_date_says_which_key_gives_one(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, HARMONY, specials=SPECIALS, vocab=400)
    with pytest.raises(TemplateRefused, match=r"template: \{kind: chat, date: \d{4}-\d\d-\d\d\}"):
        write(folder, {"messages": [ASKED, ANSWER]}, template="chat")


def test_of_several_templates_that_for_tools_is_taken(tmp_path: Path) -> None:
    """As transformers does, whether they stand in the settings or in files."""
    for number, as_files in enumerate((True, False)):
        folder = tokenizer_folder(tmp_path / str(number), QWEN2_VL, specials=SPECIALS, vocab=400)
        if as_files:
            (folder / "additional_chat_templates").mkdir()
            (folder / "additional_chat_templates" / "tool_use.jinja").write_text(QWEN3)
        else:
            (folder / "chat_template.jinja").unlink()
            settings = json.loads((folder / "tokenizer_config.json").read_text())
            settings["chat_template"] = [
                {"name": "default", "template": QWEN2_VL},
                {"name": "tool_use", "template": QWEN3},
            ]
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        for record in ({"messages": LOOP, "tools": TOOLS}, {"messages": [ASKED, ANSWER]}):
            want = reference(folder).apply_chat_template(record["messages"], record.get("tools"))
            assert write(folder, record, template="chat").tokens.tolist() == want["input_ids"]


def test_no_token_is_learnt_of_which_another_speaker_wrote_a_part(tmp_path: Path) -> None:
    """LLaVA's template ends an answer with a blank, which a tokenizer joins to the next "USER"."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tokenizer_folder(tmp_path, LLAVA)
    words = ["\u2581", "\u2581USER", "\u2581ASSISTANT", "USER", ":", "\u2581A", "\u2581hill", "."]
    words += ["\u2581What", "?", "<unk>", "<|image_pad|>"]
    tokenizer = Tokenizer(
        models.WordPiece(
            {w: i for i, w in enumerate(words)}, unk_token="<unk>", continuing_subword_prefix=""
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens(["<|image_pad|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    turns = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A hill."}]
    encoded = write(folder, {"messages": [*turns, *turns]}, template="chat")
    texts = [words[token] for token in encoded.tokens[encoded.loss_mask]]
    assert texts == ["\u2581A", "\u2581hill", ".", "\u2581A", "\u2581hill", ".", "\u2581"]


@pytest.mark.parametrize(
    ("text", "token", "in_loss"),
    [
        ("to=yes;", "=ye", False),
        ("to\n\nyes;", "\n\nyes", True),
        ("to=yes;", "es;", False),
        ("to=yes\n;", "es\n", True),
        ("to=yes\n;", "s\n;", False),
    ],
)
def test_a_token_over_an_edge_of_an_answer_is_learnt_if_the_part_outside_is_blank(
    tmp_path: Path, text: str, token: str, in_loss: bool
) -> None:
    """The same rule at both edges: what another wrote is not learnt, blanks beside it are."""
    from tokenizers import Tokenizer, models

    folder = tokenizer_folder(tmp_path, QWEN2_VL)
    words = {each: i for i, each in enumerate([token, *"toyes=;\n", "<unk>", "<|image_pad|>"])}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="<unk>", continuing_subword_prefix=""))
    tokenizer.add_special_tokens(["<|image_pad|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    start = text.index("yes")
    encoded = TextTokens(folder, "", len(text)).encode(text, [(start, start + 3)])
    learnt = encoded.tokens[encoded.loss_mask].tolist()
    assert words[token] in encoded.tokens
    assert (words[token] in learnt) is in_loss
    rest = [each for each in learnt if each != words[token]]
    assert "".join(list(words)[i] for i in rest) == "".join(c for c in "yes" if c not in token)


def test_a_template_whose_answers_end_with_no_token_is_said(tmp_path: Path) -> None:
    for source, said in ((LLAVA, 1), (QWEN2_VL, 0), (QWEN3, 0), (GENERATION_TOOLS, 0)):
        folder = tokenizer_folder(tmp_path / str(len(source)), source)
        spec = made(folder, template="chat")
        vision = spec.modules["vision"].model_copy(update={"placeholder": 381})
        spec = spec.model_copy(update={"modules": {**spec.modules, "vision": vision}})
        notes = SampleEncoder(spec, spec.data, ShardInputs(spec, spec.data)).notes
        assert len(notes) == said
        assert all("{{ eos_token }}" in note and "chat_template.jinja" in note for note in notes)


def test_the_advice_for_a_template_that_ends_answers_with_the_next_question_has_it_learnt(
    tmp_path: Path,
) -> None:
    """As those of GLM: `<|user|>` stands before each question, and ends the answer before it."""
    source = (
        "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    )
    turns, wanted = {"messages": [THANKS, WELCOME, THANKS, WELCOME]}, ["4<|user|>", "4"]
    tokens = ("<|user|>", "<|assistant|>")
    folder = tokenizer_folder(tmp_path / "as it is", source, specials=tokens)
    assert text_in_loss(folder, write(folder, turns, template="chat")) == wanted
    spec = with_vocab(folder, template="chat")
    [note] = SampleEncoder(spec, spec.data, ShardInputs(spec, spec.data)).notes
    assert "writes <|user|> after each answer but the last one" in note
    source += note.split("`")[1]
    folder = tokenizer_folder(tmp_path / "as advised", source, specials=tokens)
    assert text_in_loss(folder, write(folder, turns, template="chat")) == wanted[:1] * 2
    spec = with_vocab(folder, template="chat")
    assert SampleEncoder(spec, spec.data, ShardInputs(spec, spec.data)).notes == ()
