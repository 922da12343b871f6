"""Put long fields into an encoded protobuf message without encoding it again.

The wire format (protobuf.dev/programming-guides/encoding): a message is a row of fields, each a tag
``number << 3 | type`` and a payload. Type 2 is a length and so many bytes: a text, data or another
message, so a longer payload makes every length in front of it larger, and may make it take more
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence


def splice(
    data: bytes, marks: Sequence[tuple[int, int]], length: int, sizes: Sequence[int]
) -> tuple[list[memoryview | int], int]:
    """Take an encoded message apart at marks that stand for payloads, and correct the lengths.

    Args:
        data: the message; each mark in it is the whole payload of a field.
        marks: position and number of each, in the order of the data.
        length: of a mark, bytes.
        sizes: of the payloads that belong there, by number.

    Returns:
        Bytes and numbers of payloads, to be written one after the other; and the size of it all.
    """
    work = _Splice(memoryview(data), marks, length, sizes)
    size = work.message(0, len(data))
    return work.pieces, size


class _Splice:
    """The work of `splice`: where it is in the marks, and what it has made."""

    def __init__(
        self,
        data: memoryview,
        marks: Sequence[tuple[int, int]],
        length: int,
        sizes: Sequence[int],
    ) -> None:
        self.pieces: list[memoryview | int] = []
        self._data = data
        self._marks = marks
        self._next = 0
        self._length = length
        self._sizes = sizes

    def message(self, start: int, end: int) -> int:
        """Add the pieces of the message between ``start`` and ``end``; its size with the data."""
        data = self._data
        size = 0
        kept = position = start
        while self._next < len(self._marks) and self._marks[self._next][0] < end:
            tag, after_tag = varint(data, position)
            kind = tag & 7
            if kind != 2:
                position = _payload_end(data, after_tag, kind)
                continue
            length, payload = varint(data, after_tag)
            position = payload + length
            mark, number = self._marks[self._next]
            if mark >= position:
                continue
            size += self._keep(kept, after_tag)
            kept = position
            place = len(self.pieces)
            if mark == payload and length == self._length:
                self._next += 1
                self.pieces.append(number)
                inner = self._sizes[number]
            else:
                inner = self.message(payload, position)
            prefix = _to_varint(inner)
            self.pieces.insert(place, memoryview(prefix))
            size += len(prefix) + inner
        return size + self._keep(kept, end)

    def _keep(self, start: int, end: int) -> int:
        if end > start:
            self.pieces.append(self._data[start:end])
        return end - start


def varint(data: memoryview | bytes, position: int) -> tuple[int, int]:
    """The number at ``position`` and where it ends: seven bits a byte, the lowest first.

    Raises:
        IndexError: it is cut off, or takes more bytes than any number does.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError("a number of more than ten bytes")


def _to_varint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _payload_end(data: memoryview, position: int, kind: int) -> int:
    """The end of a payload without a length; groups (3 and 4) are only their fields in between."""
    if kind == 0:
        return varint(data, position)[1]
    return position + {1: 8, 3: 0, 4: 0, 5: 4}[kind]
