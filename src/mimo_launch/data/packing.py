"""Which records share a sequence, so that little of it is padding.

Decides: the heuristic.
Relies on: nothing.
Leaves: which records are packed together, and the order of packs, to `sample_order`; arrays to
`packed_samples`.

Best fit decreasing: the longest record first, each into the fullest sequence that has room. In the
limit it needs at most 11/9 of the fewest sequences (Johnson et al., 1974, SIAM J. Comput. 3), and
nearly the fewest where many records are short. No record is cut.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence


def best_fit(lengths: Sequence[int], seq: int) -> list[list[int]]:
    """Return packs as indices of `lengths`, each in one pack of at most `seq`.

    A pure function: ties go to lower indices. Indices of a pack are in increasing order.

    Raises:
        ValueError: A length exceeds `seq`.
    """
    packs: list[list[int]] = []
    # Packs by the room they have, and the rooms that occur, in order.
    by_room: dict[int, list[int]] = {}
    rooms: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        if length > seq:
            raise ValueError(f"a record of {length} tokens does not fit in {seq}")
        at = bisect_left(rooms, length)
        if at == len(rooms):
            pack, room = len(packs), seq
            packs.append([])
        else:
            room = rooms[at]
            pack = by_room[room].pop()
            if not by_room[room]:
                del by_room[room], rooms[at]
        packs[pack].append(index)
        left = room - length
        if left:
            if left not in by_room:
                by_room[left] = []
                insort(rooms, left)
            by_room[left].append(pack)
    return [sorted(pack) for pack in packs]
