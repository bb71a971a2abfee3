"""Codes about data: what samples hold, and what models need of it.

Decides: the explanations of these codes.
Relies on: `code`.
Leaves: shards to `codes_shards`, clips to `codes_audio`.
"""

from mimo_launch.diag.code import Code

DATA_CODES = (
    Code(
        "empty-digit-range",
        "`min_digits` is above `max_digits`.",
        "The number of digits on each strip is drawn between the two, both included.",
        "data: {kind: digits, min_digits: 7}   # max_digits is 6",
        "data: {kind: digits, min_digits: 3}",
    ),
    Code(
        "patch-over-digit",
        "Patches do not tile the 8x8 images of the digits data.",
        "Images are cut into whole square patches; 8 is a multiple of 1, 2, 4 and 8.",
        "model: {kind: vit, patch: 3}\ndata: {kind: digits}",
        "model: {kind: vit, patch: 4}\ndata: {kind: digits}",
    ),
    Code(
        "empty-image-range",
        "The fewest images, or the smallest ones, of synthetic data are above the most.",
        "How many images a sample has, and how many patches an image has, is drawn between the "
        "two limits, both included.",
        "data: {kind: synthetic, min_images: 4}   # max_images is 1",
        "data: {kind: synthetic, min_images: 4, max_images: 4}",
    ),
    Code(
        "shuffle-over-image",
        "The squares of a pixel shuffle do not fit into the images.",
        "With `shuffle: s` each square of s x s neighbouring patches becomes one row. An image is "
        "cut into whole squares: of digits, every digit is; of synthetic images, the given size, "
        "or the largest image must hold one square.",
        "model: {kind: vit, patch: 4, shuffle: 4}\ndata: {kind: digits}",
        "model: {kind: vit, patch: 4, shuffle: 2}\ndata: {kind: digits}",
    ),
    Code(
        "channels-unlike-data",
        "An encoder reads another number of channels than the images have.",
        "The first layer of the encoder has one weight per pixel and channel. Digits are "
        "grey: one channel.",
        "model: {kind: vit, channels: 3}\ndata: {kind: digits}",
        "model: {kind: vit, channels: 1}\ndata: {kind: digits}",
    ),
    Code(
        "vocab-too-small",
        "The vocabulary has no room for the data's tokens and the placeholders.",
        "Each encoder owns one token id that stands for its rows in the text: the last ids of "
        "the vocabulary. The data's own tokens come first and must not meet them.",
        "model: {kind: decoder, vocab: 20}\ndata: {kind: digits}",
        "model: {kind: decoder, vocab: digits}\ndata: {kind: digits}",
    ),
)
