"""Codes about modules, ranks, grids and the sharing out of samples.

Decides: the explanations of these codes.
Relies on: `code`.
Leaves: codes about widths, data and training settings to `codes_model`.
"""

from mimo_launch.diag.code import Code

LAYOUT_CODES = (
    Code(
        "no-language-module",
        "No module is called `language`.",
        "The module called `language` computes the loss, and every other module is an encoder "
        "that feeds it rows. A spec with `language` alone is legal and trains on text.",
        "modules:\n  llm: {model: {kind: decoder}}",
        "modules:\n  language: {model: {kind: decoder}}",
    ),
    Code(
        "wrong-kind-for-role",
        "An encoder has a decoder model, or `language` has an encoder model.",
        "The name of a module gives its role: `language` turns tokens and rows into a loss, "
        "all others turn inputs such as images into rows. A model can play one of the two "
        "roles.",
        "vision:\n  model: {kind: decoder}",
        "vision:\n  model: {kind: vit}",
    ),
    Code(
        "grid-size-mismatch",
        "tp * cp * pp * dp is not the number of ranks of the module.",
        "Each rank of a module stands at exactly one place of its grid, so the product of the "
        "sizes is the number of ranks. The message shows the product and changes of one value "
        "that fit.",
        "ranks: 0-3\ngrid: {tp: 2, dp: 4}",
        "ranks: 0-3\ngrid: {tp: 2, dp: 2}",
    ),
    Code(
        "order-not-permutation",
        "`order` does not name each of tp, cp, dp and pp exactly once.",
        "The order says which axis varies fastest as the rank goes up by one, then which "
        "comes next. All four take part, also those of size 1.",
        "order: [tp, dp, dp, pp]",
        "order: [tp, cp, dp, pp]",
    ),
    Code(
        "cp-after-dp",
        "`order` lets cp vary more slowly than dp.",
        "The context-parallel ranks of one replica stand side by side by convention of this "
        "field: they read the same samples and exchange keys and values in every layer, so "
        "they belong on one host, and other tools that read ranks or checkpoints count on it.",
        "order: [tp, dp, cp, pp]",
        "order: [tp, cp, dp, pp]",
    ),
    Code(
        "idle-rank-in-use",
        "`idle_ranks` names a rank that a module uses.",
        "Idle ranks are started and hold no module. A rank that has one is not idle, so "
        "either the module's range or `idle_ranks` is wrong.",
        "idle_ranks: 3-4   # language has ranks 4-7",
        "idle_ranks: 3",
    ),
    Code(
        "unlisted-idle-rank",
        "A rank below the highest one holds no module, and `idle_ranks` does not say so.",
        "A process would be started that does nothing. That is sometimes wanted, to keep a "
        "module inside one host, and more often the end of a range is off by one.",
        "vision:\n  ranks: 0-2\nlanguage:\n  ranks: 4-7",
        "idle_ranks: 3",
    ),
    Code(
        "group-crosses-nodes",
        "A tp or cp group has ranks on two hosts.",
        "Tensor and context parallelism exchange data inside every layer. Between hosts this "
        "is many times slower than inside one, and usually slower than not splitting at all. "
        "Hosts hold `nodes.gpus` consecutive ranks each.",
        "nodes: {gpus: 2}\nmodules:\n  language: {ranks: 1-2, grid: {tp: 2}}",
        "nodes: {gpus: 2}\nmodules:\n  language: {ranks: 2-3, grid: {tp: 2}}",
        is_warning=True,
    ),
    Code(
        "ranks-beyond-world",
        "A module names a rank that the job does not have.",
        "The job has nproc * nnodes ranks, counted from 0. A module on higher ranks would "
        "never run, and all others would wait for it.",
        "mimo-launch validate spec.yaml --nproc 4   # with ranks: 4-7",
        "mimo-launch validate spec.yaml --nproc 8",
    ),
    Code(
        "world-size-mismatch",
        "The job has more processes than the spec names ranks.",
        "Every process needs a module, or a mention under `idle_ranks`. A process without "
        "either usually means that the wrong number was typed.",
        "mimo-launch validate spec.yaml --nproc 16   # with ranks 0-7",
        "mimo-launch validate spec.yaml --nproc 8",
    ),
    Code(
        "batch-not-divisible",
        "The global batch does not split into equal microbatches.",
        "A step has `batch.global` samples. Each language replica takes an equal share, and "
        "cuts it into `schedule.microbatches` microbatches of equal size, so the global batch "
        "is a multiple of language dp * microbatches.",
        "batch: {global: 30, seq: 64}   # language dp 2, microbatches 4",
        "batch: {global: 32, seq: 64}",
    ),
    Code(
        "encoder-microbatches-uneven",
        "`encoder_microbatches` does not divide `microbatches`.",
        "Encoders that share ranks with language run in phases: they encode a group of k "
        "microbatches, language trains on it, then the next group follows. All groups have "
        "the same size.",
        "schedule: {microbatches: 4, encoder_microbatches: 3}",
        "schedule: {microbatches: 4, encoder_microbatches: 2}",
    ),
    Code(
        "encoder-share-uneven",
        "The samples that an encoder encodes at once do not split evenly over its replicas.",
        "With D language replicas, microbatches of mbs samples and groups of k microbatches, "
        "an encoder with E replicas receives D * mbs * k samples at once and cuts them "
        "evenly: this must be a multiple of E. k is 1 for an encoder on ranks of its own; for "
        "one that shares ranks with language it is `encoder_microbatches`, or all "
        "microbatches. Fan-in, fan-out and one-to-one all follow this rule.",
        "# language dp 1, microbatch size 2, vision on its own ranks\nvision:\n  grid: {dp: 4}",
        "batch: {global: 16}   # microbatch size 4",
    ),
    Code(
        "unrelated-dp-sizes",
        "The dp sizes of an encoder and of language do not divide each other.",
        "This is legal. But the shares of the replicas then overlap crosswise, so that a "
        "replica exchanges rows with several others, and messages become more and smaller.",
        "vision:\n  grid: {dp: 3}\nlanguage:\n  grid: {dp: 2}",
        "vision:\n  grid: {dp: 4}\nlanguage:\n  grid: {dp: 2}",
        is_warning=True,
    ),
    Code(
        "seq-too-short",
        "The longest sample of the data set does not fit into `batch.seq`.",
        "Samples are never cut: a row that loses its place would be computed and thrown away, "
        "and its gradient with it. Rows of all encoders count as tokens.",
        "batch: {global: 32, seq: 16}   # digits, six per strip, patch 4",
        "batch: {global: 32, seq: 40}",
    ),
    Code(
        "seq-over-tp",
        "Under sequence parallelism, `batch.seq` does not split over the tp of language.",
        "`sequence_parallel: true` splits the activations between tp layers along the "
        "sequence, so that each tp rank holds an equal share of the tokens.",
        "batch: {global: 32, seq: 63}   # language tp 2, sequence_parallel: true",
        "batch: {global: 32, seq: 64}",
    ),
    Code(
        "seq-over-cp",
        "`batch.seq` does not split into two chunks per cp rank.",
        "Context parallelism cuts each sample into 2 x cp chunks and gives every rank one from "
        "each end, so that causal attention costs all ranks the same. Under sequence parallelism "
        "each chunk is cut over tp as well. Samples are padded at the end, so a larger `seq` is "
        "always possible.",
        "batch: {global: 32, seq: 66}   # language cp 2",
        "batch: {global: 32, seq: 68}",
    ),
)
