"""Codes about widths and heads, and training settings.

Decides: the explanations of these codes.
Relies on: `code`.
Leaves: codes about ranks and samples to `codes_layout`, about data to `codes_data`.
"""

from mimo_launch.diag.code import Code

MODEL_CODES = (
    Code(
        "class-not-found",
        "A class that `kind` names is not there.",
        "`kind: package.module:Name` is looked for in the current folder, then where Python finds "
        "packages. Nothing of the package is run for that: its folders are looked through, and its "
        "source is searched for the name. Where they are made when it is imported, `train` and "
        "`verify` tell.",
        "model: {kind: 'my_encoders.mixr:Mixer', layers: 2, hidden: 64, input: {...}}",
        "model: {kind: 'my_encoders.mixer:Mixer', layers: 2, hidden: 64, input: {...}}",
    ),
    Code(
        "heads-over-tp",
        "The number of attention heads does not split over tp.",
        "Each tp rank computes whole heads, and equally many, so that all ranks finish together.",
        "model: {heads: 6}\ngrid: {tp: 4}",
        "model: {heads: 8}\ngrid: {tp: 4}",
    ),
    Code(
        "kv-heads-over-tp",
        "The numbers of key/value heads and of tp ranks do not divide each other.",
        "With fewer tp ranks than key/value heads, each holds whole ones; with more, equally "
        "many ranks share one and hold a copy. Anything else would give ranks different work.",
        "model: {heads: 12, kv_heads: 3}\ngrid: {tp: 2}",
        "model: {heads: 12, kv_heads: 2}\ngrid: {tp: 2}",
    ),
    Code(
        "heads-over-kv-heads",
        "The number of heads is not a multiple of `kv_heads`.",
        "In grouped-query attention each key/value head serves the same number of query heads.",
        "model: {heads: 8, kv_heads: 3}",
        "model: {heads: 8, kv_heads: 4}",
    ),
    Code(
        "hidden-over-heads",
        "The width does not split into the heads.",
        "A head is hidden / heads wide. For a decoder, `head_dim` sets the size of a head freely.",
        "model: {hidden: 100, heads: 8}",
        "model: {hidden: 128, heads: 8}",
    ),
    Code(
        "odd-head-size",
        "A head of the decoder has an odd width.",
        "Rotary position embeddings turn the numbers of a head in pairs, so their count is even.",
        "model: {kind: decoder, hidden: 120, heads: 8}",
        "model: {kind: decoder, hidden: 128, heads: 8}",
    ),
    Code(
        "mrope-over-head",
        "The sections of `mrope` do not add up to the pairs of a head.",
        "Rotary position embeddings turn the numbers of a head in pairs. `mrope` says how many "
        "pairs turn with time, with height and with width; together they are half of the head.",
        "model: {kind: decoder, head_dim: 128, mrope: [16, 16, 16]}",
        "model: {kind: decoder, head_dim: 128, mrope: [16, 24, 24]}",
    ),
    Code(
        "rope-scaling-order",
        "The two bounds of a scaled rotary embedding are in the wrong order.",
        "Wavelengths below original_max_position_embeddings / high_freq_factor stay as they are, "
        "those above original_max_position_embeddings / low_freq_factor turn `factor` times "
        "slower. The first bound lies below the second.",
        "rope_scaling: {factor: 8.0, low_freq_factor: 4.0, high_freq_factor: 1.0}",
        "rope_scaling: {factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0}",
    ),
    Code(
        "head-not-multiple-of-4",
        "The heads of a vision transformer with 2-D rotary positions do not split into four.",
        "`positions: rope2d` turns the numbers of a head in pairs, half of the pairs by the row "
        "of a patch and half by its column, so a head has a multiple of 4 numbers.",
        "model: {kind: vit, hidden: 60, heads: 6, positions: rope2d}",
        "model: {kind: vit, hidden: 72, heads: 6, positions: rope2d}",
    ),
    Code(
        "placeholder-outside-vocab",
        "The placeholder of an encoder is not in the vocabulary.",
        "A placeholder is the token that stands in a text where a row of the encoder goes, one for "
        "each row. Its id is below `vocab` of the language model.",
        "modules:\n  vision: {placeholder: 32000}\n  language: {model: {vocab: 32000}}",
        "modules:\n  vision: {placeholder: 32000}\n  language: {model: {vocab: 32001}}",
    ),
    Code(
        "placeholder-taken",
        "Two encoders have the same placeholder.",
        "A placeholder says which encoder's row goes there, so each encoder has its own. Encoders "
        "without a `placeholder` own the last ids of the vocabulary, in the order of the spec.",
        "modules:\n  vision: {placeholder: 32000}\n  audio: {placeholder: 32000}",
        "modules:\n  vision: {placeholder: 32000}\n  audio: {placeholder: 32001}",
    ),
    Code(
        "placeholder-is-word",
        "The placeholder of an encoder is a word of the data set.",
        "Wherever the token stands, a row of the encoder goes. Token 0 pads sequences, and texts "
        "of `kind: digits` are made of the first 24 tokens, so their placeholders come after them.",
        "modules: {vision: {placeholder: 7}}\ndata: {kind: digits}",
        "modules: {vision: {placeholder: 24}}\ndata: {kind: digits}",
    ),
    Code(
        "positions-without-grid",
        "A vision transformer learns positions, and nothing says how many.",
        "Learned positions are a table with one row per patch of an image of one size, `image`. "
        "Images of other sizes interpolate between its places.",
        "model: {kind: vit, positions: learned}",
        "model: {kind: vit, positions: learned, image: [24, 24]}",
    ),
    Code(
        "class-token-without-place",
        "A class token is asked for with positions that turn patches by their places.",
        "2-D rotary positions turn queries and keys by row and column of a patch. A class token "
        "has neither, and no published model says what would stand for them.",
        "model: {kind: vit, positions: rope2d, class_token: true}",
        "model: {kind: vit, positions: learned, image: [24, 24], class_token: true}",
    ),
    Code(
        "backend-cannot",
        "The backend of a module cannot do what the module asks for.",
        "Transformer Engine computes in 16 bits, its attention kernels take heads of 8, 16, ... "
        "256 numbers, and with cp it cannot keep packed documents apart. The backend `torch` does "
        "all of it.",
        "backend: transformer_engine     # in a module\ntrain: {precision: fp32}",
        "backend: transformer_engine     # in a module\ntrain: {precision: bf16}",
    ),
    Code(
        "fp8-cannot",
        "A module is to multiply in 8 bits, and something is in the way.",
        "Only Transformer Engine has such products here, and they take every size in steps of 16: "
        "widths of a tp rank, and tokens of a microbatch (of a cp rank and, under sequence "
        "parallelism, of a tp rank). Patches of images are padded, text is not.",
        "backend: transformer_engine     # in a module\nfp8: {}\n"
        "model: {kind: decoder, hidden: 200, heads: 5}",
        "backend: transformer_engine     # in a module\nfp8: {}\n"
        "model: {kind: decoder, hidden: 256, heads: 8}",
    ),
    Code(
        "mlp-over-tp",
        "The width inside the MLP does not split over tp.",
        "Each tp rank holds an equal part of it. When `mlp` is not given it follows from "
        "`hidden`: 4 x hidden for a ViT, 8/3 x hidden rounded up to a multiple of 64 for a "
        "decoder.",
        "model: {mlp: 700}\ngrid: {tp: 3}",
        "model: {mlp: 702}\ngrid: {tp: 3}",
    ),
    Code(
        "vocab-over-tp",
        "Language has more tp ranks than words.",
        "The embedding and the output layer are cut over tp by words, padding included. A rank "
        "without a word would have nothing to choose from.",
        "model: {vocab: digits, vocab_multiple: 1}\ngrid: {tp: 32}",
        "model: {vocab: digits, vocab_multiple: 32}\ngrid: {tp: 32}",
    ),
    Code(
        "layers-over-pp",
        "A module has fewer layers than pipeline stages.",
        "A stage without a layer would only pass activations on. Language has pp x "
        "`virtual_stages` stages, an encoder has pp. Layers need not divide evenly: earlier stages "
        "get one more.",
        "model: {layers: 2}\ngrid: {pp: 4}",
        "model: {layers: 4}\ngrid: {pp: 4}",
    ),
    Code(
        "hidden-not-multiple-of-4",
        "The width of an image encoder is not a multiple of 4.",
        "Patch positions are the sine and the cosine of height and of width: four equal parts "
        "of the width.",
        "model: {kind: vit, hidden: 126, heads: 3}",
        "model: {kind: vit, hidden: 132, heads: 3}",
    ),
    Code(
        "nothing-to-train",
        "Every module is frozen.",
        "A frozen module keeps its weights, its projector included, so the run would change "
        "nothing.",
        "language:\n  frozen: true",
        "language:\n  frozen: false",
    ),
    Code(
        "frozen-without-projector",
        "`frozen: except_projector` on the language model.",
        "An encoder ends with a projector, which may train while its layers are frozen: nothing "
        "is computed or sent backward for them. The language model has none.",
        "language:\n  frozen: except_projector",
        "vision:\n  frozen: except_projector",
    ),
    Code(
        "wsd-longer-than-run",
        "Warm-up and decay of a wsd schedule are together longer than the run.",
        "wsd is warm-up, stable, decay. The decay covers the last `decay` steps; when it "
        "began before the end of the warm-up, the learning rate would jump.",
        "optimizer: {schedule: {kind: wsd, warmup: 50, decay: 80}}\ntrain: {steps: 100}",
        "optimizer: {schedule: {kind: wsd, warmup: 20, decay: 20}}\ntrain: {steps: 100}",
    ),
    Code(
        "warmup-beyond-run",
        "The warm-up is longer than the run.",
        "The learning rate never reaches its peak. This happens when `train.steps` is "
        "shortened for a trial; the trial then says little about the real run.",
        "optimizer: {schedule: {warmup: 500}}\ntrain: {steps: 100}",
        "optimizer: {schedule: {warmup: 10}}\ntrain: {steps: 100}",
        is_warning=True,
    ),
    Code(
        "memory-too-small",
        "A rank needs more memory than a GPU has, by far.",
        "`plan` estimates what each rank holds at its worst moment: weights, gradients, moments, "
        "activations of the microbatches in flight, buffers. Where that is more than 10 % above "
        "`nodes.gpu_memory`, the run would end in its first step. The message shows the parts and "
        "what makes the largest smaller; the estimate is for nominal samples.",
        "language:\n  grid: {dp: 4}\nnodes: {gpus: 8, gpu_memory: 24GB}",
        "language:\n  grid: {dp: 4}\n  sharding: full\n  recompute: full\n"
        "nodes: {gpus: 8, gpu_memory: 24GB}",
    ),
    Code(
        "memory-tight",
        "A rank may need more memory than a GPU has.",
        "The estimate of `plan` lies within 10 % of `nodes.gpu_memory`, and it may be off by as "
        "much. Samples that are larger than nominal ones need more.",
        "batch: {global: 32, seq: 8192}\nnodes: {gpus: 8, gpu_memory: 80GB}",
        "batch: {global: 32, seq: 4096}\nnodes: {gpus: 8, gpu_memory: 80GB}",
        is_warning=True,
    ),
    Code(
        "setting-without-effect",
        "A setting is given that changes nothing in this spec.",
        "Another setting makes it meaningless, such as `sequence_parallel` at tp 1 or `decay` "
        "with a cosine schedule. Whoever wrote it expected something of it.",
        "grid: {tp: 1, dp: 4}\nsequence_parallel: true",
        "grid: {tp: 2, dp: 2}\nsequence_parallel: true",
        is_warning=True,
    ),
)
