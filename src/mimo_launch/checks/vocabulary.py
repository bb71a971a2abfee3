"""Checks of tokens: the vocabulary of the data, placeholders of encoder rows, codes of talkers.

Decides: how large a vocabulary must be, and which ids a `placeholder` may be; which codes a talker
can tell apart, and which talkers can say digits.
Relies on: `kinds.vocabulary` for the default ids, `processors.tokenizer`.
Leaves: how words are cut over tp to `widths`, the graph around a talker to `graph`.
"""

from pathlib import Path

from mimo_launch.checks.rule import Findings, no_effect
from mimo_launch.diag.diagnostic import Diagnostic, Related, Severity
from mimo_launch.kinds.registry import kind_of
from mimo_launch.kinds.vocabulary import (
    DIGIT_SIDE,
    PAD,
    num_last_placeholders,
    num_words,
    placeholder_id,
    vocab_size,
)
from mimo_launch.layout.space import divisors
from mimo_launch.processors.files import ProcessorError, TokenizerError
from mimo_launch.processors.tokenizer import DEFAULT, chat_sources, num_tokens, token_id, token_text
from mimo_launch.spec.base import LANGUAGE
from mimo_launch.spec.spec import ChatTemplate, DigitsData, Spec, UserData

_VOCAB = ("modules", LANGUAGE, "model", "vocab")


def vocab_holds_tokens(spec: Spec) -> Findings:
    """The vocabulary has room for the data's tokens and one placeholder per encoder."""
    vocab = kind_of(spec.language.model).text.vocab
    if vocab == "digits":
        return
    if isinstance(spec.data, UserData):  # Its tokens come from the tokenizer.
        return
    num_encoders = len(spec.sources_of(LANGUAGE))
    is_digits = isinstance(spec.data, DigitsData)
    words = num_words(spec) if is_digits else 2
    if vocab >= words + num_encoders:
        return
    yield Diagnostic(
        code="vocab-too-small",
        headline=f"`vocab` {vocab} is less than {words} tokens of the data + "
        f"{num_encoders} placeholder{'s' * (num_encoders != 1)}",
        path=_VOCAB,
        why="the last ids of the vocabulary stand for the rows of the encoders, one id each",
        help=f"write `vocab: {'digits' if is_digits else words + num_encoders}`",
    )


def tokenizer_is_usable(spec: Spec, data: UserData) -> Findings:
    """The tokenizer is there, and has a chat template if one is asked for."""
    folder = Path(data.tokenizer)
    try:
        num_tokens(folder)
        why = ""
        if _has_chats(data) and DEFAULT not in chat_sources(folder):
            why = "it has no chat template, and `template: chat` needs one"
    except TokenizerError as error:
        why = str(error)
    if why:
        yield Diagnostic(
            code="tokenizer-not-usable",
            headline=f"the tokenizer in {folder} cannot be used",
            path=("data", "tokenizer"),
            is_absence=not folder.exists(),
            why=why,
            help="name a local Hugging Face folder; for `template: chat`, that of a chat model",
        )


def _has_chats(data: UserData) -> bool:
    return any(isinstance(each, ChatTemplate) for each in data.templates)


def template_shows_media(spec: Spec, data: UserData) -> Findings:
    """The chat template says where images and clips go, if no `placeholder` does."""
    if not _has_chats(data):
        return
    if all(spec.modules[name].placeholder is not None for name in spec.sources_of(LANGUAGE)):
        return
    # Imported here: they need the package of tokenizers, which other specs do not.
    from mimo_launch.data.samples.media_rows import ShardInputs
    from mimo_launch.data.samples.media_text import MarkerUnclear
    from mimo_launch.data.samples.sample_encoder import SampleEncoders
    from mimo_launch.data.samples.template_program import TemplateRefused

    path: tuple[str | int, ...] = ("data", "template")
    help_ = "name the folder of another chat model in `tokenizer`"
    related = Related(("data", "tokenizer"), "its template")
    try:
        SampleEncoders(spec, data, ShardInputs(spec, data))
        return
    except MarkerUnclear as error:
        why, path = str(error), ("modules", error.module)
        token, text = error.likely
        help_ = f"write `placeholder: {token}` in `{error.module}`, if `{text}` is the one"
    except TemplateRefused as error:
        why = str(error)
    except (TokenizerError, ProcessorError):
        return  # Other checks report it.
    yield Diagnostic(
        code="tokenizer-not-usable",
        headline=f"the chat template in {data.tokenizer} cannot be used",
        path=path,
        at_key=len(path) == 2 and path[0] == "modules",
        why=why,
        help=help_,
        related=(related,),
    )


def vocab_holds_tokenizer(spec: Spec) -> Findings:
    """The vocabulary has room for the tokens of the tokenizer and for placeholders."""
    data, kind = spec.data, kind_of(spec.language.model)
    if not isinstance(data, UserData) or not kind.reads_tokens:
        return
    tokens, placeholders = num_tokens(Path(data.tokenizer)), num_last_placeholders(spec)
    vocab = 0 if kind.text.vocab == "digits" else kind.text.vocab
    if vocab >= tokens + placeholders:
        return
    ends = f" + {placeholders} placeholder{'s' * (placeholders != 1)}" if placeholders else ""
    yield Diagnostic(
        code="vocab-too-small",
        headline=f"`vocab` {kind.text.vocab} is less than {tokens} tokens of the tokenizer{ends}",
        path=_VOCAB,
        why="an id beyond the vocabulary has no embedding"
        + ("; the last ids stand for rows of encoders without `placeholder`" if ends else ""),
        help=f"write `vocab: {tokens + placeholders}`",
        related=(Related(("data", "tokenizer"), f"{tokens} tokens"),),
    )


def placeholder_is_token(spec: Spec, name: str) -> Findings:
    """A given placeholder is a token of the tokenizer (a warning)."""
    data, given = spec.data, spec.modules[name].placeholder
    if not isinstance(data, UserData) or given is None:
        return
    if name not in spec.sources_of(LANGUAGE):
        return
    folder = Path(data.tokenizer)
    if token_text(folder, given) is not None:
        return
    sound = kind_of(spec.modules[name].model).clips is not None
    marker = data.audio_marker if sound else data.image_marker
    known = token_id(folder, marker)
    yield Diagnostic(
        code="placeholder-not-in-tokenizer",
        severity=Severity.WARNING,
        headline=f"`{name}`: the tokenizer in {folder} has no special token with id {given}",
        path=("modules", name, "placeholder"),
        why="users of the trained model could not mark the place of an image or a clip",
        help=f"add `{marker}` to the tokenizer, and write its id"
        if known is None
        else f"write `placeholder: {known}`, which is `{marker}`",
        related=(Related(("data", "tokenizer"), "this tokenizer"),),
    )


def placeholder_is_free(spec: Spec, name: str) -> Findings:
    """A given placeholder is in the vocabulary, and not another encoder's or a word."""
    given, path = spec.modules[name].placeholder, ("modules", name, "placeholder")
    if given is None:
        return
    others = list(spec.sources_of(LANGUAGE))
    if name not in others:
        yield no_effect(
            path,
            f"`placeholder` of `{name}` does nothing",
            "it is the token that stands for a row of an encoder"
            + (f", and `{LANGUAGE}` does not read `{name}` itself" if name != LANGUAGE else ""),
        )
        return
    size = vocab_size(spec)
    if given >= size:
        yield Diagnostic(
            code="placeholder-outside-vocab",
            headline=f"`{name}`: placeholder {given} is outside the vocabulary of {size} tokens",
            path=path,
            why="it marks the place of a row of the encoder in the text",
            help=f"write `placeholder: {size - 1}`, or a larger `vocab`",
            related=(Related(_VOCAB, f"{size} tokens, from 0 on"),),
        )
        return
    before = others[: others.index(name)]
    # If two encoders were given the same token, the second one gets the finding.
    taken = {
        placeholder_id(spec, other): other
        for other in others
        if other in before or spec.modules[other].placeholder is None
    }
    used = {*taken, given}
    free = next((x for x in reversed(range(size)) if x not in used and not _role(spec, x)), 0)
    if given in taken:
        by_default = spec.modules[taken[given]].placeholder is None
        yield Diagnostic(
            code="placeholder-taken",
            headline=f"`{name}`: placeholder {given} is also that of `{taken[given]}`",
            path=path,
            why="a placeholder stands for the rows of one encoder"
            + ("; those without a `placeholder` own the last ids" if by_default else ""),
            help=f"write `placeholder: {free}`, or merge both in a module with "
            f"`model: {{kind: connector, ...}}` and `reads: [{taken[given]}, {name}]`",
            related=(Related(("modules", taken[given]), "the other encoder"),),
        )
    elif role := _role(spec, given):
        yield Diagnostic(
            code="placeholder-is-word",
            headline=f"`{name}`: placeholder {given} {role}",
            path=path,
            why="a row of the encoder would replace every occurrence of that token",
            help=f"write `placeholder: {free}`, or delete the line",
            related=(Related(("data", "kind"), "these texts"),),
        )


def _role(spec: Spec, token: int) -> str:
    """Return the other use of a token, or "" if it is free."""
    if token == PAD:
        return "pads sequences"
    if isinstance(spec.data, DigitsData) and token < num_words(spec):
        return "is a token of the digits data"
    return ""


# A pixel of a digit has one of the values 0 to 16.
PIXEL_VALUES = 17


def ends_are_codes(spec: Spec, name: str) -> Findings:
    """`start` and `end` are two codes of the vocabulary, which has others to say."""
    model = kind_of(spec.modules[name].model).codes
    if model is None:
        return
    path, tp = ("modules", name, "model"), spec.modules[name].grid.tp
    if model.vocab < max(3, tp):
        yield Diagnostic(
            code="codes-outside-vocab",
            headline=f"`{name}`: a vocabulary of {model.vocab} codes is too small",
            path=(*path, "vocab"),
            why=f"every tp rank holds at least one of its codes, and there are {tp}"
            if model.vocab >= 3
            else "it holds `start`, `end`, and at least one code to say",
            help=f"write `vocab: {max(3, tp)}`, or what your codec has and 2 more",
        )
        return
    if model.later_vocab is not None and model.later_vocab < tp:
        yield Diagnostic(
            code="codes-outside-vocab",
            headline=f"`{name}`: {model.later_vocab} codes are too few for tp {tp}",
            path=(*path, "predictor", "vocab"),
            why="every tp rank holds at least one code of each codebook",
            help=f"write `vocab: {tp}`, or what your codec has",
        )
    for key, code in (("start", model.start_code), ("end", model.end_code)):
        if code >= model.vocab:
            yield Diagnostic(
                code="codes-outside-vocab",
                headline=f"`{name}`: `{key}` {code} is not among {model.vocab} codes",
                path=(*path, key),
                why="codes count from 0",
                help=f"write `vocab: {code + 1}`, or delete `{key}`",
                related=(Related((*path, "vocab"), f"0 to {model.vocab - 1}"),),
            )
    if model.start_code == model.end_code:
        key = "end" if model.end is not None else "start"
        other = "start" if key == "end" else "end"
        yield Diagnostic(
            code="codes-outside-vocab",
            headline=f"`{name}`: `start` and `end` are both the code {model.end_code}",
            path=(*path, key),
            why="the talker sees `start` in front of the first frame, and says `end` behind the "
            "last one",
            help=f"write another code, or delete `{key}`",
            related=(Related((*path, other), "the same"),) * (other in model.model_fields_set),
        )


def codes_fit_digits(spec: Spec, name: str) -> Findings:
    """Digits are said pixel by pixel: frames of whole pixels, and codes for their values."""
    model = kind_of(spec.modules[name].model).codes
    if model is None or not isinstance(spec.data, DigitsData):
        return
    path, pixels = ("modules", name, "model"), DIGIT_SIDE**2
    data = Related(("data", "kind"), f"digits of {pixels} pixels, values 0 to 16")
    if pixels % model.codebooks:
        sizes = ", ".join(f"`codebooks: {size}`" for size in divisors(pixels))
        yield Diagnostic(
            code="codes-unlike-data",
            headline=f"`{name}`: frames of {model.codebooks} codes do not hold the {pixels} pixels "
            "of a digit",
            path=(*path, "codebooks"),
            why="each code is a pixel, and a digit is cut into whole frames",
            help=f"these fit: {sizes}",
            related=(data,),
        )
    if model.later_vocab is not None and model.later_vocab < PIXEL_VALUES:
        yield Diagnostic(
            code="codes-unlike-data",
            headline=f"`{name}`: {model.later_vocab} codes leave none for some values of a pixel",
            path=(*path, "predictor", "vocab"),
            why=f"the codes 0 to {PIXEL_VALUES - 1} are the values of a pixel",
            help=f"write `vocab: {PIXEL_VALUES}`",
            related=(data,),
        )
    if min(model.start_code, model.end_code) >= PIXEL_VALUES:
        return
    yield Diagnostic(
        code="codes-unlike-data",
        headline=f"`{name}`: {model.vocab} codes leave none for some values of a pixel",
        path=(*path, "vocab"),
        why=f"the codes 0 to {PIXEL_VALUES - 1} are the values of a pixel, beside `start` and "
        "`end`",
        help=f"write `vocab: {PIXEL_VALUES + 2}`, without `start` and `end`",
        related=(data,),
    )
