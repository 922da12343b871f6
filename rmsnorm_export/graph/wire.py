"""Put long fields into an encoded protobuf message without encoding it again.

The wire format (protobuf.dev/programming-guides/encoding): a message is a row of fields, each a tag
``number << 3 | type`` and a payload. Type 2 is a length and so many bytes: a text, data or another
message, so a longer payload makes every length in front of it larger, and may make it take more
bytes.
"""

from __future__ import annotations

from collections import deque
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
    view = memoryview(data)
    left = deque(marks)
    pieces: list[memoryview | int] = []

    def keep(start: int, end: int) -> int:
        if end > start:
            pieces.append(view[start:end])
        return end - start

    def message(start: int, end: int) -> int:
        """Add the pieces of the message between ``start`` and ``end``; its size with the data."""
        size = 0
        kept = position = start
        while left and left[0][0] < end:
            tag, after_tag = varint(view, position)
            kind = tag & 7
            if kind != 2:
                position = _payload_end(view, after_tag, kind)
                continue
            inside, payload = varint(view, after_tag)
            position = payload + inside
            mark, number = left[0]
            if mark >= position:
                continue
            size += keep(kept, after_tag)
            kept = position
            place = len(pieces)
            if mark == payload and inside == length:
                left.popleft()
                pieces.append(number)
                inner = sizes[number]
            else:
                inner = message(payload, position)
            prefix = _to_varint(inner)
            pieces.insert(place, memoryview(prefix))
            size += len(prefix) + inner
        return size + keep(kept, end)

    size = message(0, len(data))
    return pieces, size


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
