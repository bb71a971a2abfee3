"""Keys that people write in records: each is honoured, makes the sample bad, or is counted."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.chat_templates import QWEN3, SPECIALS
from tests.support.shards import CHATML, GENERATION, image_bytes, tokenizer_folder, write_shard
from tests.unit.test_chat_tokens import made, reference, text_in_loss, write
from tests.unit.test_shard_samples import opened, shard_spec

from mimo_launch.cli.data_tables import as_text
from mimo_launch.data.dataset import BadSample
from mimo_launch.data.index.split_report import summary_of
from mimo_launch.data.samples.key_values import key_values
from mimo_launch.data.samples.records import read_records
from mimo_launch.data.sources.source_file import MemberPlace
from mimo_launch.survey.reading_speed import survey

ASKED = {"role": "user", "content": "What?"}
FIRST, SECOND = ({"role": "assistant", "content": text} for text in ("One.", "Two."))


def answers(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    turns = [ASKED, {**FIRST, **first}, ASKED, {**SECOND, **second}]
    return text_in_loss(folder, write(folder, {"messages": turns}, template="chat"))


SWITCHES = {
    "loss": (False, True), "weight": (0, 1), "train": (False, True), "training": (False, True),
    "loss_scale": (0.0, 1.0), "masked": (True, False),
}  # fmt: skip


@pytest.mark.parametrize("key", SWITCHES)
@pytest.mark.parametrize(("template", "end"), [(CHATML, "<|im_end|>"), (GENERATION, "</s>")])
def test_an_answer_that_says_so_is_not_learnt(
    tmp_path: Path, key: str, template: str, end: str
) -> None:
    """With blocks in the template and without, in the words of several other programs."""
    folder = tokenizer_folder(tmp_path, template)
    off, on = ({key: value} for value in SWITCHES[key])
    assert answers(folder, off, {}) == ["Two." + end]
    assert answers(folder, {}, off) == ["One." + end]
    assert answers(folder, on, on) == ["One." + end, "Two." + end]
    with pytest.raises(BadSample, match="no token to learn from"):
        answers(folder, off, off)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"weight": 0.5}, r"`weight` of message 2 \(assistant\) is 0.5.*write true or false"),
        ({"loss": "no"}, r'`loss` of message 2 \(assistant\) is "no"'),
        ({"loss": True, "weight": 0}, "`loss` and `weight` of message 2.*contradict"),
        ({"mask": 1}, "unclear what `mask` of message 2.*write `loss: true` or `loss: false`"),
        ({"lossMask": 1}, "unclear what `lossMask` of message 2"),
        ({"train_detail": []}, "`train_detail` of message 2.*cut it into messages"),
        ({"refusal": "I cannot."}, "`refusal` of message 2.*as `content`"),
        ({"thinking": "a", "reasoning": "b"}, "different reasoning under several keys"),
        ({"role": "user", "loss": True}, r"message 2 \(user\) is to be learnt, but only answers"),
        ({"role": "tool_call"}, r"message 2 \(tool_call\) is no call of a tool: write JSON"),
        ({"content": [{"type": "text", "text": "x", "loss": False}]}, "write that in the message"),
        ({"content": [{"type": "output_text", "text": "x"}]}, "known are `text`, `image`"),
    ],
)
def test_a_key_that_cannot_be_honoured_makes_the_sample_bad_with_what_to_write(
    tmp_path: Path, message: dict[str, Any], why: str
) -> None:
    turns = [ASKED, {**FIRST, **message}, ASKED, SECOND]
    with pytest.raises(BadSample, match=why):
        write(tokenizer_folder(tmp_path), {"messages": turns}, template="chat")


@pytest.mark.parametrize(
    ("record", "template", "why"),
    [
        (
            {"messages": [ASKED, SECOND], "weight": 0.5},
            "chat",
            "`weight: 0.5`, but samples have no weights",
        ),
        ({"text": "a cat", "train": False}, "caption", "`train: false`.*take it out of the shards"),
        ({"text": "a cat", "weight": 2}, "caption", "`weight: 2`.*in a shard that `data` names 2"),
        ({"text": "a cat", "weight": 1e400}, "caption", "`weight: Infinity`.*: leave the key out$"),
        (
            {"messages": [{"role": "system", "content": "x"}, SECOND], "system": "y"},
            "chat",
            "leave",
        ),
        ({"messages": [{"role": "user", "text": "x"}, SECOND]}, "chat", r"1 \(user\) has no `cont"),
    ],
)
def test_a_record_that_cannot_be_honoured_is_bad(
    tmp_path: Path, record: dict[str, Any], template: str, why: str
) -> None:
    with pytest.raises(BadSample, match=why):
        write(tokenizer_folder(tmp_path), record, template=template)


FUNCTION = {"name": "f", "arguments": {"a": 1}}
CALL = {"type": "function", "function": FUNCTION}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
RESULT = {"role": "tool", "content": "4"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
TEXT = json.dumps(FUNCTION)


@pytest.mark.parametrize(
    ("first", "call", "why"),
    [
        ({}, {"reasoning": "Hm."}, r"message 3 \(tool_call\) has `reasoning` after the answer"),
        ({}, {"tool_calls": [CALL]}, r"message 3 \(tool_call\) has calls as `content` and as `too"),
        ({"tool_calls": [{**CALL, "loss": False}]}, {}, "a call of message 2.*in the message"),
        ({}, {"content": [{**FUNCTION, "weight": 0}]}, "a call of message 3.*in the message"),
    ],
)
def test_no_key_of_a_call_is_lost(
    tmp_path: Path, first: dict[str, Any], call: dict[str, Any], why: str
) -> None:
    folder = tokenizer_folder(tmp_path, QWEN3, specials=SPECIALS, vocab=400)
    turns = [ASKED, {**FIRST, **first}, {"role": "tool_call", "content": TEXT, **call}, RESULT]
    with pytest.raises(BadSample, match=why):
        write(folder, {"messages": [*turns, SECOND]}, template="chat")


def test_a_key_of_a_call_that_joins_an_answer_is_counted_if_it_is_not_read(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, QWEN3, specials=SPECIALS, vocab=400)
    calls = [{"role": "tool_call", "content": TEXT, "note": note} for note in "xy"]
    turns = [ASKED, FIRST, *calls, RESULT, SECOND]
    (record,) = read_records(
        made(folder, template="chat").data, {"json": json.dumps({"messages": turns}).encode()}.get
    )
    assert record.ignored == ("`note` of calls",)
    found = write(folder, {"messages": turns}, template="chat")
    assert found.ignored == ("`note` of messages",)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (
            [{"from": "function_call", "value": TEXT}, {"from": "observation", "value": "4"}],
            [CALLED, RESULT],
        ),
        (
            [
                {**FIRST, "content": "Let me look."},
                {"role": "tool_call", "content": TEXT},
                {"role": "tool_call", "content": TEXT},
                {"role": "tool_response", "content": "4"},
            ],
            [{**CALLED, "content": "Let me look.", "tool_calls": [CALL, CALL]}, RESULT],
        ),
        (
            [
                {"role": "assistant", "content": "", "function_call": FUNCTION},
                {"role": "function", "content": "4"},
            ],
            [CALLED, RESULT],
        ),
    ],
    ids=["llama-factory", "ms-swift", "openai"],
)
def test_calls_in_other_words_are_calls_and_learnt(
    tmp_path: Path, written: list[dict[str, Any]], meant: list[dict[str, Any]]
) -> None:
    folder = tokenizer_folder(tmp_path, QWEN3, specials=SPECIALS, vocab=400)
    found, want = (
        write(folder, {"messages": [ASKED, *turns, SECOND], **tools}, template="chat")
        for turns, tools in (
            (written, {"functions": [TOOLS[0]["function"]]}), (meant, {"tools": TOOLS})
        )
    )  # fmt: skip
    assert found.tokens.tolist() == want.tokens.tolist()
    assert found.loss_mask.tolist() == want.loss_mask.tolist()
    assert "<tool_call>" in text_in_loss(folder, found)[0]


def test_a_result_keeps_a_role_that_the_template_names(tmp_path: Path) -> None:
    known = CHATML.replace("{% for", "{% set roles = ['observation'] %}{% for", 1)
    for template, role in ((known, "observation"), (CHATML, "tool")):
        folder = tokenizer_folder(tmp_path / role, template)
        turns = [ASKED, {**RESULT, "role": "observation"}, SECOND]
        written = write(folder, {"messages": turns}, template="chat")
        assert f"{role}\n4" in reference(folder).decode(written.tokens.tolist())


def test_a_call_for_which_the_template_has_no_words_is_bad(tmp_path: Path) -> None:
    turns = [ASKED, {"role": "function_call", "content": TEXT}, RESULT, SECOND]
    with pytest.raises(BadSample, match="does not write `tool_calls` of message 2"):
        write(tokenizer_folder(tmp_path), {"messages": turns}, template="chat")


def test_a_message_is_named_by_its_place_in_the_record(tmp_path: Path) -> None:
    """Also behind a system prompt that is put in front, and calls that become one message."""
    folder = tokenizer_folder(tmp_path, QWEN3, specials=SPECIALS, vocab=400)
    calls = [{"role": "tool_call", "content": TEXT}] * 2
    turns = [ASKED, *calls, RESULT, {"role": "critic", "content": "No!"}, SECOND]
    with pytest.raises(BadSample, match=r"`content` of message 5 \(critic\)"):
        write(folder, {"messages": turns, "system": "x", "tools": TOOLS}, template="chat")


@pytest.mark.parametrize(
    ("own", "usual", "prompt"),
    [
        ("Be short.", "Be long.", "Be short."),
        ("", "Be long.", "Be long."),
        (None, "Be long.", "Be long."),
        ("", None, ""),
    ],
)
def test_a_system_prompt_beside_the_messages_is_that_of_the_record_if_it_says_something(
    tmp_path: Path, own: str | None, usual: str | None, prompt: str
) -> None:
    """In a table without prompts the column is there, with an empty text in each row."""
    folder, turns = tokenizer_folder(tmp_path), [ASKED, SECOND]
    beside = {"messages": turns, "system": own}
    inside = {"messages": [{"role": "system", "content": prompt}, *turns] if prompt else turns}
    found = write(folder, beside, template={"kind": "chat", "system": usual})
    want = write(folder, inside, template="chat")
    assert found.tokens.tolist() == want.tokens.tolist()


def test_an_empty_prompt_beside_a_system_message_is_none(tmp_path: Path) -> None:
    record = {"messages": [{"role": "system", "content": "x"}, ASKED, SECOND]}
    folder = tokenizer_folder(tmp_path)
    found, want = (
        write(folder, {**record, **more}, template="chat") for more in ({"system": ""}, {})
    )
    assert found.tokens.tolist() == want.tokens.tolist()


def test_files_named_in_a_message_are_not_lost(tmp_path: Path) -> None:
    """A template may read them: then they are its own."""
    turns = [{**ASKED, "images": ["a.png"]}, SECOND]
    with pytest.raises(BadSample, match="`images` of a message is not read: name its files beside"):
        write(tokenizer_folder(tmp_path / "plain"), {"messages": turns}, template="chat")
    none = [{**ASKED, "images": []}, SECOND]  # As in tables of which other rows have some.
    found = write(tokenizer_folder(tmp_path / "none"), {"messages": none}, template="chat")
    assert found.ignored == ("`images` of messages",)
    source = CHATML.replace("message['content']", "(message.images or '') ~ message['content']")
    found = write(tokenizer_folder(tmp_path / "own", source), {"messages": turns}, template="chat")
    assert found.ignored == ()


def test_names_and_boxes_are_not_lost(tmp_path: Path) -> None:
    """ms-swift writes them into the text; a column of that name alone is only counted."""
    folder = tokenizer_folder(tmp_path)
    boxes = {"ref": ["dog"], "bbox": [[1, 2, 3, 4]]}
    shown = [{**ASKED, "content": "Find <ref-object>"}, {**SECOND, "content": "<bbox>"}]
    with pytest.raises(BadSample, match="`objects` of its JSON is not read: in place of <ref-obj"):
        write(folder, {"messages": shown, "objects": boxes}, template="chat")
    write(folder, {"messages": [ASKED, SECOND], "objects": boxes}, template="chat")


THOUGHT = {"role": "assistant", "content": "One.", "reasoning_content": "Hm."}
INSIDE = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nOne."}


@pytest.mark.parametrize("thought", [THOUGHT, INSIDE])
def test_reasoning_that_the_template_drops_is_counted(
    tmp_path: Path, thought: dict[str, Any]
) -> None:
    """As Qwen3's does in all turns but the last."""
    folder = tokenizer_folder(tmp_path, QWEN3, specials=SPECIALS, vocab=400)
    alone = write(folder, {"messages": [ASKED, thought]}, template="chat")
    assert alone.ignored == ()
    earlier = write(folder, {"messages": [ASKED, thought, ASKED, SECOND]}, template="chat")
    assert earlier.ignored == ("reasoning of earlier answers",)


def test_roles_of_a_conversation_without_an_answer_are_named(tmp_path: Path) -> None:
    turns = [{**ASKED, "role": "User"}, {**SECOND, "role": "Assistant"}]
    with pytest.raises(BadSample, match="the roles of its messages: `User`, `Assistant`"):
        write(tokenizer_folder(tmp_path), {"messages": turns}, template="chat")


PAIRS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "ms-swift": (
        {
            "system": "Be short.",
            "query": "What?",
            "response": "Two.",
            "history": [["What?", "One."]],
        },
        [{"role": "system", "content": "Be short."}, ASKED, FIRST, ASKED, SECOND],
    ),
    "Alpaca": (
        {"instruction": "Add.", "input": "1, 1", "output": "Two."},
        [{"role": "user", "content": "Add.\n1, 1"}, SECOND],
    ),
    "Alpaca, no input": (
        {"instruction": "What?", "input": "", "output": "Two.", "history": []},
        [ASKED, SECOND],
    ),
    "TRL": (
        {"prompt": [ASKED, FIRST, ASKED], "completion": [SECOND]},
        [ASKED, {**FIRST, "loss": False}, ASKED, SECOND],
    ),
    "TRL, roles of others": (
        {"prompt": [ASKED, {**FIRST, "role": "model"}, ASKED], "completion": [SECOND]},
        [ASKED, {**FIRST, "loss": False}, ASKED, SECOND],
    ),
    "TRL, text": ({"prompt": "What?", "completion": "Two."}, [ASKED, SECOND]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_question_and_its_answer_are_a_conversation(tmp_path: Path, name: str) -> None:
    record, messages = PAIRS[name]
    folder = tokenizer_folder(tmp_path)
    found = write(folder, record, template="chat")
    want = write(folder, {"messages": messages}, template="chat")
    assert found.tokens.tolist() == want.tokens.tolist()
    assert found.loss_mask.tolist() == want.loss_mask.tolist()
    chat = made(folder, template="chat").data
    (read,) = read_records(chat, {"json": json.dumps({**record, "n": 1}).encode()}.get)
    assert read.ignored == ("`n`",)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"instruction": "Add.", "input": 5, "output": "Two."}, "`input` of its JSON is a number"),
        (
            {"query": "What?", "response": "Two.", "history": [{"query": "What?"}]},
            "`history` of its JSON is a list, not a list of pairs",
        ),
        ({"prompt": [], "completion": []}, "`prompt` of its JSON is a list of nothing"),
        (
            {"prompt": "What?", "completion": "Two.", "label": False},
            "its JSON says `label: false` of its answer",
        ),
    ],
)
def test_no_part_of_a_question_is_lost_silently(
    tmp_path: Path, record: dict[str, Any], why: str
) -> None:
    chat = made(tokenizer_folder(tmp_path), template="chat").data
    with pytest.raises(BadSample, match=why):
        read_records(chat, {"json": json.dumps(record).encode()}.get)


def test_messages_beside_a_question_are_the_conversation(tmp_path: Path) -> None:
    chat = made(tokenizer_folder(tmp_path), template="chat").data
    record = {"messages": [ASKED, SECOND], "query": "x", "response": "y"}
    (read,) = read_records(chat, {"json": json.dumps(record).encode()}.get)
    assert (len(read.messages), read.ignored) == (2, ("`query`", "`response`"))


def test_values_are_shown_by_whether_their_key_is_read(tmp_path: Path) -> None:
    """Of a key that is not read, the first 40 letters, as it is counted."""
    long, folder = "a_key_of_more_than_forty_letters_" * 2, tokenizer_folder(tmp_path)
    turns = [ASKED, SECOND]
    text = json.dumps({"messages": turns, "system": "", long: 1, "source": "y" * 99}).encode()
    (record,) = read_records(made(folder, template="chat").data, {"json": text}.get)
    members = {"json": MemberPlace(0, 512), "png": MemberPlace(512, 1234)}
    found = key_values(record, text, members, {"reward": np.array([0.5, 1.0])})
    messages = json.dumps(turns)
    assert found.read == {
        "messages": f"{messages[:60]}...", "png": "1,234 bytes", "column reward": "[0.5, 1.0]",
    }  # fmt: skip
    assert found.ignored == {long[:40]: "1", "source": '"' + "y" * 59 + "..."}


NAMED = CHATML.replace("message['content']", "message.get('name', '') + message['content']")


def test_what_nobody_reads_is_counted_and_shown(tmp_path: Path) -> None:
    critic = {"role": "critic", "content": "No!"}
    part = {"type": "text", "text": "?", "cache_control": {"type": "x"}}
    records: list[tuple[str, dict[str, Any]]] = [
        ("a", {"json": {"messages": [ASKED, {**SECOND, "name": "Bo"}], "source": "web"}}),
        ("b", {"json": {"messages": [ASKED, critic, SECOND], "source": "web", "images": []}}),
        ("c", {"json": {"messages": [{**ASKED, "content": [part]}, SECOND]}, "svg": b"<svg/>"}),
        ("d", {"json": {"messages": [ASKED, SECOND], "conversations": [1]}, "txt": "text"}),
        ("e", {"json": {"messages": [ASKED, SECOND], "weight": "70 kg", "mask": "m.png"}}),
    ]
    want = {
        "`source`": 2, "`.svg`": 1, "`.txt`": 1, "`cache_control` of parts of messages": 1,
        "`conversations`": 1, "`weight`": 1, "`mask`": 1, "`name` of messages": 1,
        "the role `critic`, which is not learnt,": 1,
    }  # fmt: skip
    for template in (CHATML, NAMED):
        folder = tmp_path / str(len(template))
        tokenizer_folder(folder / "tokenizer", template)
        write_shard(folder / "0.tar", records[:2])
        write_shard(folder / "1.tar", records[2:])
        made = shard_spec(folder)
        found = opened(made)
        if template == NAMED:
            del want["`name` of messages"]
        assert found.splits["train"].index.ignored == want
        assert next(iter(want)) == "`source`"
    text = as_text(survey(made, found, records=9, steps=1, show=0), None)
    assert "ignored    `source` in 2 records, " in text
    assert "the role `critic`, which is not learnt, in 1 record" in text
    assert "ignored, which `mimo-launch data` counts" in summary_of(found.splits["train"])


def test_the_text_that_a_caption_is_not_taken_from_is_counted(tmp_path: Path) -> None:
    image = image_bytes(8, 8)
    write_shard(tmp_path / "0.tar", [("a", {"png": image, "txt": "a cat", "json": {"text": "b"}})])
    write_shard(tmp_path / "1.tar", [("b", {"png": image, "json": {"text": "b", "caption": "c"}})])
    found = opened(shard_spec(tmp_path, template="caption"))
    assert found.splits["train"].index.ignored == {"`.json`": 1, "`caption`": 1}


def test_counts_of_keys_that_differ_in_every_record_stay_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mimo_launch.data.index.columns._MOST_IGNORED", 3)
    records = [(f"{n}", {"json": {"messages": [ASKED, SECOND], f"key{n}": 1}}) for n in range(9)]
    write_shard(tmp_path / "0.tar", records)
    ignored = opened(shard_spec(tmp_path)).splits["train"].index.ignored
    assert sum(ignored.values()) == 9
    assert ignored["other keys"] == 6
