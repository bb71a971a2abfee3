"""Conversations as token ids: equal to those of transformers, and only answers are learnt."""

import json
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.support.shards import (
    CHATML,
    GENERATION,
    LISTS,
    LLAMA2,
    PARTS,
    THOUGHTS,
    tokenizer_folder,
)
from tests.support.specs import box, spec
from tokenizers import Tokenizer, models

from mimo_launch.data.dataset import BadSample
from mimo_launch.data.samples import template_program
from mimo_launch.data.samples.media_rows import ShardInputs
from mimo_launch.data.samples.media_text import with_parts
from mimo_launch.data.samples.records import read_records
from mimo_launch.data.samples.sample_encoder import SampleEncoder
from mimo_launch.data.samples.template_program import TemplateRefused
from mimo_launch.data.samples.text_tokens import EncodedSample, LiteralMarkers, _near, runs_of
from mimo_launch.spec.spec import Spec

TEMPLATES = {
    "chatml": CHATML,
    "parts": PARTS,
    "llama2": LLAMA2,
    "generation": GENERATION,
    "thoughts": THOUGHTS,
}
CHAT = (
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": " What is in this image? "},
    {"role": "assistant", "content": "A small red house, \u00e9t\u00e9, \u6c34.\n"},
    {"role": "user", "content": "<|im_end|> And 2 + 2?"},
    {"role": "assistant", "content": "4"},
)


def made(folder: Path, **data: Any) -> Spec:
    """A spec with one encoder of images over a tokenizer folder."""
    return spec(
        {"vision": box(model={"channels": 3})},
        data={"kind": "webdataset", "shards": "x.tar", "tokenizer": str(folder), **data},
        seq=4096,
    )


def with_vocab(folder: Path, **data: Any) -> Spec:
    """The same, with the placeholder <|image_pad|>: the last id that the model knows."""
    found = made(folder, **data)
    language = found.modules["language"]
    pad = reference(folder).convert_tokens_to_ids("<|image_pad|>")
    model = language.model.model_copy(update={"vocab": pad + 1})
    modules = {**found.modules, "language": language.model_copy(update={"model": model})}
    return found.model_copy(update={"modules": modules})


def write(folder: Path, record: dict[str, Any], images: int = 0, **data: Any) -> EncodedSample:
    """Write one sample."""
    found = with_vocab(folder, **data)
    sample_encoder = SampleEncoder(found, found.data, ShardInputs(found, found.data))
    members = {"json": json.dumps(record).encode()}
    return sample_encoder.encode(read_records(found.data, members.get)[0], {"image": images})


def reference(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def text_in_loss(folder: Path, encoded: EncodedSample) -> list[str]:
    """The runs of tokens that are learnt, as text."""
    tokenizer = reference(folder)
    cuts = np.flatnonzero(np.diff(encoded.loss_mask, prepend=False, append=False))
    runs = zip(cuts[::2], cuts[1::2], strict=True)
    return [tokenizer.decode(encoded.tokens[a:b].tolist()) for a, b in runs]


@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_are_those_of_apply_chat_template(tmp_path: Path, name: str) -> None:
    folder = tokenizer_folder(tmp_path, TEMPLATES[name])
    encoded = write(folder, {"messages": CHAT}, template="chat")
    want = reference(folder).apply_chat_template(list(CHAT))
    assert encoded.tokens.tolist() == want["input_ids"]
    assert encoded.markers == ()


def test_a_template_that_changes_letters_gets_text_as_text(tmp_path: Path) -> None:
    """Not as parts, for which it may have another branch."""
    folder = tokenizer_folder(
        tmp_path, PARTS.replace("{{ message.content }}", "{{ message.content | upper }}")
    )
    encoded = write(folder, {"messages": CHAT}, template="chat")
    want = reference(folder).apply_chat_template(list(CHAT))
    assert encoded.tokens.tolist() == want["input_ids"]


def test_a_template_that_writes_parts_as_python_does_gets_none(tmp_path: Path) -> None:
    """In other letters, too."""
    folder = tokenizer_folder(tmp_path, CHATML.replace("}}", "| upper }}"))
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}, CHAT[-1]]
    tokens = write(folder, {"messages": parts}, template="chat").tokens.tolist()
    assert "TYPE" not in reference(folder).decode(tokens)


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("chatml", ["A small red house, \u00e9t\u00e9, \u6c34.\n<|im_end|>", "4<|im_end|>"]),
        ("parts", ["A small red house, \u00e9t\u00e9, \u6c34.\n<|im_end|>", "4<|im_end|>"]),
        ("llama2", [" A small red house, \u00e9t\u00e9, \u6c34. </s>", " 4 </s>"]),
        ("generation", ["A small red house, \u00e9t\u00e9, \u6c34.</s>", " 4</s>"]),
        ("thoughts", ["A small red house, \u00e9t\u00e9, \u6c34.\n<|im_end|>", "4<|im_end|>"]),
    ],
)
def test_answers_are_learnt_with_the_token_that_ends_them(
    tmp_path: Path, name: str, answers: list[str]
) -> None:
    folder = tokenizer_folder(tmp_path, TEMPLATES[name])
    assert text_in_loss(folder, write(folder, {"messages": CHAT}, template="chat")) == answers


def test_blocks_of_generation_are_learnt_as_transformers_masks_them(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, GENERATION)
    encoded = write(folder, {"messages": CHAT}, template="chat")
    want = reference(folder).apply_chat_template(list(CHAT), return_assistant_tokens_mask=True)
    assert encoded.loss_mask.tolist() == [bool(each) for each in want["assistant_masks"]]


@pytest.mark.parametrize("name", TEMPLATES)
def test_only_the_last_answer_may_be_learnt(tmp_path: Path, name: str) -> None:
    folder = tokenizer_folder(tmp_path, TEMPLATES[name])
    every = text_in_loss(folder, write(folder, {"messages": CHAT}, template="chat"))
    last = {"kind": "chat", "answers": "last"}
    assert len(every) == 2
    assert text_in_loss(folder, write(folder, {"messages": CHAT}, template=last)) == every[1:]


def test_the_last_answer_is_that_of_the_whole_conversation(tmp_path: Path) -> None:
    """One with `loss: false` leaves nothing to learn; an earlier answer does not take its place."""
    folder = tokenizer_folder(tmp_path, CHATML)
    record = {"messages": [*CHAT[:-1], {**CHAT[-1], "loss": False}]}
    with pytest.raises(BadSample, match="no token to learn from"):
        write(folder, record, template={"kind": "chat", "answers": "last"})


@pytest.mark.parametrize(
    ("rule", "learnt"),
    [
        ({"learn_not": r"small|\bis\b"}, ["A", " red house<|im_end|>", "4", "<|im_end|>"]),
        (
            {"learn_not": "(?s)<think>.*?</think>"},
            ["A small red house<|im_end|>", "4 is<|im_end|>"],
        ),
        ({"learn_only": "red.*"}, [" red house<|im_end|>"]),
        ({"learn_only": "r.*", "learn_not": "house"}, [" red", "<|im_end|>"]),
        ({"learn_only": "^4"}, ["4"]),
        ({"learn_only": "What"}, None),
    ],
)
def test_a_regex_chooses_parts_of_answers(
    tmp_path: Path, rule: dict[str, str], learnt: list[str] | None
) -> None:
    """It sees the text of an answer alone, with its end; a token is learnt as a whole or not."""
    folder = tokenizer_folder(tmp_path, CHATML)
    said = [CHAT[1], {"role": "assistant", "content": "A small red house"}, CHAT[3]]
    record = {"messages": [*said, {"role": "assistant", "content": "4 is"}]}
    template = {"kind": "chat", **rule}
    if learnt is None:
        with pytest.raises(BadSample, match="no token to learn from"):
            write(folder, record, template=template)
        return
    assert text_in_loss(folder, write(folder, record, template=template)) == learnt


def test_an_expression_that_takes_too_long_makes_a_sample_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_program, "SECONDS", 0.3)
    folder = tokenizer_folder(tmp_path, CHATML)
    said = [CHAT[1], {"role": "assistant", "content": "a" * 60}]
    with pytest.raises(BadSample, match=r"with `learn_not` takes more than 0\.3 s"):
        write(folder, {"messages": said}, template={"kind": "chat", "learn_not": "(a+)+c"})


def test_images_in_parts_stand_where_the_template_puts_them(tmp_path: Path) -> None:
    """The placeholder is the token of the template; ids are those of the reference but for it."""
    folder = tokenizer_folder(tmp_path, PARTS)
    image, audio = {"type": "image"}, {"type": "text", "text": "and"}
    chat = [
        {"role": "user", "content": [image, audio, image]},
        {"role": "assistant", "content": [{"type": "text", "text": "Two."}]},
    ]
    tokenizer = reference(folder)
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    found = with_vocab(folder, template="chat")
    sample_encoder = SampleEncoder(found, found.data, ShardInputs(found, found.data))
    assert sample_encoder.markers == {"image": "<|image_pad|>"}
    raw = json.dumps({"messages": chat}).encode()
    encoded = sample_encoder.encode(
        read_records(found.data, lambda suffix: raw if suffix == "json" else None)[0], {"image": 2}
    )
    want = tokenizer.apply_chat_template(chat)["input_ids"]
    assert encoded.tokens.tolist() == [token for token in want if token != pad]
    places = [i for i, token in enumerate(want) if token == pad]
    assert encoded.markers == ((places[0], "image"), (places[1] - 1, "image"))
    assert text_in_loss(folder, encoded) == ["Two.<|im_end|>"]


def test_an_answer_that_ends_with_an_image_ends_with_its_turn(tmp_path: Path) -> None:
    """A token that opens an image ends no turn, in the last answer or before it."""
    folder = tokenizer_folder(tmp_path, PARTS)
    shown = {"role": "assistant", "content": "Here: <image>"}
    asked = {"role": "user", "content": "Draw a cat."}
    messages = [asked, shown, asked, shown]
    encoded = write(folder, {"messages": messages}, images=2, template="chat")
    learnt = ["Here: <|vision_start|>", "<|vision_end|><|im_end|>"]
    assert text_in_loss(folder, encoded) == ["".join(learnt)] * 2


def test_a_template_that_takes_lists_only_gets_lists(tmp_path: Path) -> None:
    """As LLaVA's: `<image>` is no token of this tokenizer, and becomes one that stands for rows."""
    folder = tokenizer_folder(tmp_path, LISTS)
    turns = [
        {"from": "human", "value": "<image>What is it?"},
        {"from": "gpt", "value": "A hill."},
    ]
    found = made(folder, template="chat")
    raw = json.dumps({"conversations": turns}).encode()
    sample_encoder = SampleEncoder(found, found.data, ShardInputs(found, found.data))
    assert sample_encoder.markers == {"image": "<image>"}
    (record,) = read_records(found.data, {"json": raw}.get)
    encoded = sample_encoder.encode(record, {"image": 1})
    chat = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A hill."}]},
    ]
    tokenizer = reference(folder)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    image = tokenizer.convert_tokens_to_ids("<image>")
    want = tokenizer.apply_chat_template(chat)["input_ids"]
    assert encoded.tokens.tolist() == [token for token in want if token != image]
    assert encoded.markers == ((want.index(image), "image"),)
    assert text_in_loss(folder, encoded) == ["A hill. "]


def test_a_template_may_look_at_the_first_part_of_a_message(tmp_path: Path) -> None:
    """As that of SmolVLM does, for which a message without parts is an error."""
    template = (
        "{% for m in messages %}{{ m.role }}{% if m.content[0].type == 'image' %}:{% else %}: "
        "{% endif %}{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}"
        "{{ part.text }}{% endif %}{% endfor %}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    folder = tokenizer_folder(tmp_path, template, specials=("<image>",))
    found = made(folder, template="chat")
    parts = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    chat = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": [{"type": "text", "text": "A hill."}]},
    ]
    (record,) = read_records(found.data, {"json": json.dumps({"messages": chat}).encode()}.get)
    sample_encoder = SampleEncoder(found, found.data, ShardInputs(found, found.data))
    encoded = sample_encoder.encode(record, {"image": 1})
    image = reference(folder).convert_tokens_to_ids("<image>")
    want = reference(folder).apply_chat_template(chat)["input_ids"]
    assert encoded.tokens.tolist() == [token for token in want if token != image]
    assert encoded.markers == ((want.index(image), "image"),)
    assert text_in_loss(folder, encoded) == [" A hill.</s>"]


GEMMA = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{% for part in m.content %}"
    "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{{ eos_token }}\n{% endfor %}"
)


GEMMA4 = GEMMA.replace("<start_of_image>", "<|image|>")
TURNS = [
    {
        "role": "user",
        "content": [{"type": "image"}, {"type": "text", "text": "What?"}, {"type": "image"}],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "Two."}]},
]


def assert_as_its_processor(
    folder: Path, template: str, named: tuple[str, dict[str, str]], processor_of: Any
) -> None:
    """Compare the tokens around the rows of two images in a text, and the places of these.

    `named` are the class of the processor without `Processor`, and its special tokens;
    `processor_of` makes it from a tokenizer.
    """
    name, extra = named
    tokenizer_folder(folder, template, specials=tuple(extra.values()))
    file = folder / "tokenizer_config.json"
    more = {"extra_special_tokens": extra, "processor_class": f"{name}Processor"}
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    tokenizer = reference(folder)
    soft = tokenizer.convert_tokens_to_ids(extra["image_token"])
    found = made(folder, template="chat")
    vision = found.modules["vision"].model_copy(update={"placeholder": soft})
    found = found.model_copy(update={"modules": {**found.modules, "vision": vision}})
    sample_encoder = SampleEncoder(found, found.data, ShardInputs(found, found.data))
    raw = json.dumps({"messages": TURNS}).encode()
    (record,) = read_records(found.data, lambda suffix: raw if suffix == "json" else None)
    encoded = sample_encoder.encode(record, {"image": 2})
    processor = processor_of(tokenizer)
    images = [Image.new("RGB", (9, 7))] * 2
    text = processor.apply_chat_template(TURNS)
    [want] = processor(text=[text], images=[images], add_special_tokens=False)["input_ids"]
    rows = want.count(soft)
    assert rows > 2
    assert encoded.tokens.tolist() == [token for token in want if token != soft]
    first, second = (i for i, token in enumerate(want) if token == soft and want[i - 1] != soft)
    assert encoded.markers == ((first, "image"), (second - rows // 2, "image"))


def test_text_around_the_rows_of_an_image_is_that_of_its_processor(tmp_path: Path) -> None:
    """As in a Gemma 3, whose template writes another token than the one that rows replace."""
    from transformers import Gemma3ImageProcessorPil, Gemma3Processor

    extra = {
        "boi_token": "<start_of_image>", "image_token": "<soft>", "eoi_token": "<end_of_image>",
    }  # fmt: skip
    pixels = Gemma3ImageProcessorPil(size={"height": 8, "width": 8})
    settings = {"chat_template": GEMMA, "image_seq_length": 3}
    processor_of = partial(Gemma3Processor, pixels, **settings)
    assert_as_its_processor(tmp_path, GEMMA, ("Gemma3", extra), processor_of)


def test_rows_of_a_gemma_4_stand_between_two_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its template writes the token that rows replace."""
    from transformers import Gemma4ImageProcessorPil, Gemma4Processor

    # That of videos needs torchvision.
    monkeypatch.setattr(Gemma4Processor, "check_argument_for_proper_class", lambda *_: None)
    extra = {
        "boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>",
        "boa_token": "<|audio>", "audio_token": "<|audio|>", "eoa_token": "<audio|>",
    }  # fmt: skip
    pixels = Gemma4ImageProcessorPil(max_soft_tokens=70)
    settings = {"video_processor": None, "chat_template": GEMMA4}
    assert_as_its_processor(
        tmp_path,
        GEMMA4,
        ("Gemma4", extra),
        lambda tokenizer: Gemma4Processor(None, pixels, tokenizer, **settings),
    )


def test_several_tokens_for_an_image_are_refused_by_name(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, PARTS)
    found = made(folder, template="chat")
    with pytest.raises(TemplateRefused, match=r"<\|vision_start\|> <\|image_pad\|>.*placeholder"):
        SampleEncoder(found, found.data, ShardInputs(found, found.data))


def test_a_template_that_writes_nothing_for_a_video_is_named() -> None:
    """Too many tokens are the text's own."""
    with pytest.raises(
        BadSample, match="template writes 0 tokens for videos, and the sample has 1"
    ):
        with_parts("What?", [], "<|video_pad|>", ["x"], "video")
    with pytest.raises(BadSample, match="its text has a token that stands for a video"):
        with_parts("<|video_pad|><|video_pad|>", [], "<|video_pad|>", ["x"], "video")


def test_a_template_that_writes_nothing_for_an_image_is_named(tmp_path: Path) -> None:
    """As one that writes the key `text` of each part."""
    silent = (
        "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}</s>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    folder = tokenizer_folder(tmp_path, silent)
    turns = [{"role": "user", "content": "<image>What?"}, CHAT[4]]
    with pytest.raises(BadSample, match="template writes nothing for images and clips: it must"):
        write(folder, {"messages": turns}, 1, template="chat")


def test_markers_of_llava_files_are_images(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path)
    turns = [
        {"from": "human", "value": "<image>\nWhat is <image>?"},
        {"from": "gpt", "value": "A dog."},
    ]
    encoded = write(folder, {"conversations": turns}, 2, template="chat")
    text = "<|im_start|>user\n\nWhat is ?<|im_end|>\n<|im_start|>assistant\nA dog.<|im_end|>\n"
    assert reference(folder).decode(encoded.tokens.tolist()) == text
    # <|im_start|> and "user\n" before the first; "\nWhat is " as well before the second.
    first, second = (before for before, _ in encoded.markers)
    decode = reference(folder).decode
    assert decode(encoded.tokens[:first].tolist()) == "<|im_start|>user\n"
    assert decode(encoded.tokens[:second].tolist()) == "<|im_start|>user\n\nWhat is "
    assert text_in_loss(folder, encoded) == ["A dog.<|im_end|>"]


IMAGE_TOKENS = {"chatml": (CHATML, "<image>"), "parts": (PARTS, "<|image_pad|>")}


@pytest.mark.parametrize("name", IMAGE_TOKENS)
@pytest.mark.parametrize("is_prose", [False, True])
def test_a_marker_in_prose_is_text_after_a_backslash_or_in_a_sample_that_says_so(
    tmp_path: Path, name: str, is_prose: bool
) -> None:
    """The marker of the shards and the token of the model alike, wherever they are written."""
    template, token = IMAGE_TOKENS[name]
    folder = tokenizer_folder(tmp_path, template)
    prose = f"Write <image> or {token} here."
    escaped = prose if is_prose else prose.replace("<image>", "\\<image>").replace(" <|", " \\<|")
    shown = [{"type": "image"}, {"type": "text", "text": escaped}]
    turns = [{"role": "user", "content": shown}, {"role": "assistant", "content": escaped}]
    record = {"messages": turns, **({"markers": False} if is_prose else {})}
    encoded = write(folder, record, images=1, template="chat")
    assert [marker for _, marker in encoded.markers] == ["image"]
    decoded = reference(folder).decode(encoded.tokens.tolist())
    assert decoded.count(prose) == 2
    assert text_in_loss(folder, encoded) == [prose + "<|im_end|>"]
    pad = reference(folder).convert_tokens_to_ids("<|image_pad|>")
    assert pad not in encoded.tokens
    caption = {"text": f"{escaped} End", **({"markers": False} if is_prose else {})}
    encoded = write(folder, caption, images=1, template="caption")
    assert encoded.markers == ((0, "image"),)
    assert text_in_loss(folder, encoded) == [prose + " End</s>"]


def test_a_vocabulary_with_gaps_gives_no_id_to_two_tokens(tmp_path: Path) -> None:
    """The library would give the next token the id 3, which is that of `b`."""
    words = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1, "b": 3}, unk_token="<unk>"))
    words.save(str(tokenizer_folder(tmp_path) / "tokenizer.json"))
    found = made(tmp_path, template="caption")
    with pytest.raises(TemplateRefused, match="gaps, so a token for `<image>` would"):
        SampleEncoder(found, found.data, ShardInputs(found, found.data))
    literals = LiteralMarkers(words, ["<image>"])
    assert literals.sign("\\<image>", is_prose=False) == "\\<image>"
    assert literals.spell(words.encode("b").ids, np.ones(1, np.bool_))[0] == [3]


def test_two_backslashes_are_no_escape(tmp_path: Path) -> None:
    """They end the lines of formulas."""
    folder = tokenizer_folder(tmp_path)
    turns = [{"role": "user", "content": r"x \\<image>?"}, CHAT[4]]
    encoded = write(folder, {"messages": turns}, 1, template="chat")
    assert r"x \\?" in reference(folder).decode(encoded.tokens.tolist())
    assert len(encoded.markers) == 1
    folder = tokenizer_folder(tmp_path, PARTS)
    turns = [{"role": "user", "content": "x " + 2 * "\\" + "<|image_pad|>?"}, CHAT[4]]
    with pytest.raises(BadSample, match="has a token that stands for an image"):
        write(folder, {"messages": turns}, template="chat")


@pytest.mark.parametrize(
    ("record", "template", "why"),
    [
        (
            {"messages": [{"role": "user", "content": "<image>?"}, CHAT[4]]},
            "chat",
            "write a backsl",
        ),
        ({"text": "a <image> b"}, "caption", '0 images and 1 marker.*`"markers": false`'),
        ({"text": "a \ufdd0 b"}, "caption", "noncharacters"),
        ({"text": "a", "markers": 0}, "caption", "`markers` of its JSON is a number, not true"),
    ],
)
def test_what_looks_like_a_marker_is_said_with_the_escape(
    tmp_path: Path, record: Any, template: str, why: str
) -> None:
    with pytest.raises(BadSample, match=why):
        write(tokenizer_folder(tmp_path), record, template=template)


def test_a_document_with_images_between_its_text_is_learnt_from_the_first_token(
    tmp_path: Path,
) -> None:
    """Text, image, text, as one caption with markers."""
    folder = tokenizer_folder(tmp_path)
    encoded = write(folder, {"text": "A cat <image> a dog <image> end"}, 2, template="caption")
    assert text_in_loss(folder, encoded) == ["A cat  a dog  end</s>"]
    assert encoded.loss_mask.all()
    decode = reference(folder).decode
    assert [decode(encoded.tokens[:at].tolist()) for at, _ in encoded.markers] == [
        "A cat ",
        "A cat  a dog ",
    ]
    with pytest.raises(BadSample, match="3 images and 2 markers for them"):
        write(folder, {"text": "A cat <image> a dog <image> end"}, 3, template="caption")


def test_a_caption_stands_behind_its_images_and_ends(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path)
    template = {"kind": "caption", "prompt": "Shown: "}
    encoded = write(folder, {"caption": "two cats"}, 2, template=template)
    assert reference(folder).decode(encoded.tokens.tolist()) == "Shown: two cats</s>"
    assert text_in_loss(folder, encoded) == [" two cats</s>"]
    assert encoded.markers == ((0, "image"), (0, "image"))


@pytest.mark.parametrize(
    ("record", "images", "template", "why"),
    [
        ([1], 0, "chat", "its .json is a list, not an object"),
        ({}, 0, "chat", "no key `messages` or `conversations`"),
        ({"messages": []}, 0, "chat", "a list of nothing"),
        ({"messages": "hi"}, 0, "chat", "is text, not a list"),
        ({"messages": [{"content": "x"}]}, 0, "chat", "has no role"),
        ({"messages": [{"role": "user", "content": 3}]}, 0, "chat", "is a number"),
        ({"messages": CHAT[:2]}, 0, "chat", "no answer of the assistant"),
        (
            {"messages": [{"role": "user", "content": "<|image_pad|>"}, CHAT[4]]},
            1,
            "chat",
            r"1 image and 0 markers for them; write `<image>` \(not `<\|image_pad\|>`\) in its",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}, CHAT[4]]}, 0, "chat", "surrogate"),
        ({"text": " \n"}, 0, "caption", "`text` of its JSON is empty"),
        ({"text": "<image> "}, 1, "caption", "`text` of its JSON is empty"),
        ({"text": 5}, 0, "caption", "is a number, not text"),
        ({"caption": ["a", 5]}, 0, "caption", "text 2 of 2 in `caption` of its JSON is a number,"),
        ({"caption": [None, "a"]}, 0, "caption", "text 1 of 2 in `caption` of its JSON is null,"),
        ({"text": ["a", "b"]}, 0, "caption", "`text` of its JSON is a list: with `template:"),
        (
            {"caption": ["a", " ", "b"]},
            0,
            "caption",
            "text 2 of 3 in `caption` of its JSON is empty",
        ),
        ({"caption": [["a"]]}, 0, "caption", "text 1 of 1 in `caption` of its JSON is a list, not"),
        ({"captions": []}, 0, "caption", "`captions` of its JSON is a list of nothing, not text"),
        ({"captions": ["a"] * 65_537}, 0, "caption", "is a list of more than 65,536 texts"),
        (
            {"messages": [{"role": "user", "content": ["a", "b"]}, CHAT[4]]},
            0,
            "chat",
            'a part that is text, not an object such as {"type": "text"',
        ),
        ({"messages": ["a", "b"]}, 0, "chat", "one of its messages is text, not an object"),
        ({"texts": "x"}, 0, "caption", "no key `text` or `caption`"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(
    tmp_path: Path, record: Any, images: int, template: str, why: str
) -> None:
    folder = tokenizer_folder(tmp_path)
    with pytest.raises(BadSample, match=why):
        write(folder, record, images, template=template)


def test_a_text_with_too_many_characters_is_never_made_into_tokens(tmp_path: Path) -> None:
    """By default from four million on: tokens take some 300 bytes of memory a character."""
    folder = tokenizer_folder(tmp_path)
    long = "dog " * 1_000_001
    chat = [{"role": "user", "content": long}, CHAT[4]]
    for record, template in (({"messages": chat}, "chat"), ({"text": long}, "caption")):
        with pytest.raises(BadSample, match=r"4,000,\d+ characters.*`data.max_characters`.*4,000,"):
            write(folder, record, template=template)
        with pytest.raises(BadSample, match=r"`data.max_characters` allows 40"):
            write(folder, {**record, "text": "x" * 41}, template=template, max_characters=40)
    assert write(folder, {"text": "x" * 40}, template="caption", max_characters=40).loss_mask.any()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=12),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=4),
    st.booleans(),
)
def test_tokens_of_a_learnt_span_are_found_whether_or_not_they_are_in_order(
    tokens, spans, in_order
):
    offsets = [(start, start + size) for start, size in tokens]
    offsets = sorted(offsets) if in_order else offsets
    learn = [(first, first + size) for first, size in spans]
    for first, last, near in _near(offsets, learn):
        inside = [n for n, (a, b) in enumerate(offsets) if a < last and b > first]
        assert {*inside} <= {*range(len(offsets))[near]}


def test_what_is_learnt_stays_the_same_text_if_media_get_longer_or_shorter_ones() -> None:
    """A span may begin and end right before or behind a medium, with or without it."""
    parts = ["a", "<i>", "b", "<i>", "<i>", "c", "<i>"]
    written = ["<one><i>", "", "[<i>]", "."]
    ends, media = [0, *accumulate(map(len, parts))], iter(written)
    made = [next(media) if part == "<i>" else part for part in parts]
    cuts = [(start, end) for end in range(len(ends)) for start in range(end)]
    spans = [(ends[start], ends[end]) for start, end in cuts]
    text, moved = with_parts("".join(parts), spans, "<i>", written, "image")
    found = [text[first:last] for first, last in moved]
    assert found == ["".join(made[start:end]) for start, end in cuts]


@given(st.lists(st.booleans(), max_size=20))
def test_runs_cover_a_mask(mask):
    runs = runs_of(np.array(mask, dtype=np.bool_)).tolist()
    assert [n for first, end in runs for n in range(first, end)] == np.flatnonzero(mask).tolist()
    assert all(end < first for (_, end), (first, _) in pairwise(runs))
