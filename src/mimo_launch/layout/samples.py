"""The replica of each module to which a sample of a step goes.

Decides: ownership of samples, as one formula for fan-in, one-to-one and fan-out.
Relies on: divisibility, proved by `checks`.
Leaves: moving samples among encoder replicas to `balance`, rows inside a sample to
`row_owners`.

Language replica d owns a contiguous share of the step's samples, cut into microbatches of `mbs`:
sample (d, j, i) has index (d * microbatches + j) * mbs + i. Encoders run on groups of k
consecutive microbatches; inside a group the samples of all replicas, in (d, j, i) order, are cut
evenly over the encoder's dp.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SampleMap:
    """Ownership of the samples of one step."""

    global_batch: int
    replicas: int
    microbatches: int

    @property
    def microbatch_size(self) -> int:
        """Samples in one microbatch of one language replica."""
        return self.global_batch // (self.replicas * self.microbatches)

    def language(self, replica: int, microbatch: int) -> range:
        """Return the samples of one microbatch of one language replica."""
        size = self.microbatch_size
        start = (replica * self.microbatches + microbatch) * size
        return range(start, start + size)

    def encoder(
        self, replica: int, num_replicas: int, group: int, group_size: int
    ) -> tuple[int, ...]:
        """Return the samples of one group that one encoder replica gets by the even cut."""
        per_language = group_size * self.microbatch_size
        share = self.replicas * per_language // num_replicas
        samples = []
        for position in range(replica * share, (replica + 1) * share):
            language, inside = divmod(position, per_language)
            microbatch, item = divmod(inside, self.microbatch_size)
            samples.append(
                (language * self.microbatches + group * group_size + microbatch)
                * self.microbatch_size
                + item
            )
        return tuple(samples)

    def locate(self, sample: int) -> tuple[int, int, int]:
        """Return (replica, microbatch, item) of a sample."""
        slot, item = divmod(sample, self.microbatch_size)
        replica, microbatch = divmod(slot, self.microbatches)
        return replica, microbatch, item
