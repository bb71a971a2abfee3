"""Codes about shards, tokenizers and image processors.

Decides: the explanations.
Relies on: nothing.
Leaves: finding the faults to `checks.shards`.
"""

from mimo_launch.diag.code import Code

SHARD_CODES = (
    Code(
        "shards-not-found",
        "A pattern in `shards` or `eval_shards` names no file, or files that are not there.",
        "Paths are relative to the folder in which you run the command. `{000..009}` names each "
        "of ten files, all of which must be there; `*` names those that are there, of which there "
        "must be one.",
        "data: {kind: webdataset, shards: 'data/{000..010}.tar', ...}",
        "data: {kind: webdataset, shards: 'data/*.tar', ...}",
    ),
    Code(
        "shards-compressed",
        "A shard is a compressed tar file.",
        "Samples are read in any order, each from its place in the file. A compressed file can "
        "only be read from its beginning. JPEG, PNG and FLAC are compressed already.",
        "data: {kind: webdataset, shards: 'data/*.tar.gz', ...}",
        "data: {kind: webdataset, shards: 'data/*.tar', ...}",
    ),
    Code(
        "shards-not-tar",
        "A file in `shards` or `eval_shards` is no tar file, or is cut off.",
        "The first header of each shard is looked at, and its size: a tar file is made of blocks "
        "of 512 bytes, so one of another size was not written or not copied to its end. The "
        "records themselves are read when the index is made.",
        "data: {kind: webdataset, shards: 'data/*', ...}   # data/ holds README.md, too",
        "data: {kind: webdataset, shards: 'data/*.tar', ...}",
    ),
    Code(
        "eval-without-shards",
        "There is an `eval` section, but no shards of held-out samples.",
        "Nothing is taken from the shards you train on: which of their samples resemble each other "
        "is not known here.",
        "data: {kind: webdataset, shards: 'train/*.tar', ...}\neval: {every: 100}",
        "data: {kind: webdataset, shards: 'train/*.tar', eval_shards: 'held/*.tar', ...}\n"
        "eval: {every: 100}",
    ),
    Code(
        "tokenizer-not-usable",
        "The folder in `tokenizer` has no tokenizer that can be used, or no chat template.",
        "A Hugging Face folder with tokenizer.json is needed. `template: chat` takes the chat "
        "template from chat_template.jinja or tokenizer_config.json. A tokenizer of another form "
        "is converted by `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW)` of "
        "transformers.",
        "data: {kind: webdataset, tokenizer: models/base, template: chat, ...}",
        "data: {kind: webdataset, tokenizer: models/instruct, template: chat, ...}",
    ),
    Code(
        "processor-not-supported",
        "How the images of an encoder are to be made is not understood, or does not fit it.",
        "The processors of SigLIP, CLIP, LLaVA and Qwen2-VL are carried out as transformers does, "
        "to the last pixel. Settings that would be passed over silently are refused.",
        "data: {kind: webdataset, processors: {vision: models/vit-mae}, ...}",
        "data: {kind: webdataset, processors: {vision: models/siglip}, ...}",
    ),
    Code(
        "encoder-without-members",
        "No sample at the beginning of the shards has what an encoder reads.",
        "Images are members such as KEY.jpg, KEY.1.png, KEY.webp; clips are KEY.wav, KEY.flac. An "
        "encoder that is never given any learns nothing, and its ranks wait for the others. Only "
        "the first members of the first shard are looked at, so this is a warning.",
        "modules: {sound: {model: {kind: audio, ...}}, ...}  # shards of images",
        "modules: {vision: {model: {kind: vit, ...}}, ...}",
        is_warning=True,
    ),
    Code(
        "placeholder-not-in-tokenizer",
        "The placeholder of an encoder is no token of the tokenizer.",
        "Training does without: the marker in the texts becomes a token by itself. But whoever "
        "uses the model needs a token with that id in the tokenizer, to say where an image goes. "
        "So use the id that the tokenizer has, or teach it the marker (docs/worked-example.md). "
        "Only tokens that were added to the vocabulary count, as all special ones are.",
        "modules: {vision: {placeholder: 322, ...}}  # <image> is 320",
        "modules: {vision: {placeholder: 320, ...}}",
        is_warning=True,
    ),
)
