"""HTTP/2 as clients see it: frames in any cut, windows, tables of headers, floods, random bytes."""

from __future__ import annotations

import dataclasses
import itertools
import random
import struct

import h2.config
import h2.connection
import h2.events
import hpack
import hyperframe.frame
import pytest
from http2_peer import BOUNDS, PREFACE, REQUEST, SETTINGS, Echo, Served, settings, window

from headrace_serve.http2.frames import frame

CALM, PROTOCOL, FLOW, CLOSED, COMPRESSION, REFUSED = 11, 1, 3, 5, 9, 7


def kinds(frames):
    return [type(one).__name__.removesuffix("Frame") for one in frames]


def test_a_request_is_answered_with_its_own_body():
    served = Served()
    served.send(served.request(1, b"one") + served.request(3, b"three"))
    frames = served.frames()
    assert served.answer(1, frames) == (b"200", b"one", b"3")
    assert served.answer(3, frames) == (b"200", b"three", b"5")


def test_bytes_may_come_one_at_a_time():
    served = Served(greet=False)
    for byte in PREFACE + SETTINGS + served.request(1, b"one") + served.request(3, b"two"):
        served.send(bytes([byte]))
    frames = served.frames()
    assert served.answer(1, frames)[1:] == (b"one", b"3")
    assert served.answer(3, frames)[1:] == (b"two", b"3")


@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_a_block_of_headers_may_come_in_pieces(size):
    served = Served()
    block = served.encoder.encode([*REQUEST, (b"x-long", b"v" * 300)])
    pieces = [block[i : i + size] for i in range(0, len(block), size)]
    sent = frame(1, 1, 1, pieces[0])
    for piece in pieces[1:-1]:
        sent += frame(9, 0, 1, piece)
    served.send(sent + frame(9, 4, 1, pieces[-1]))
    assert served.answer(1) == (b"200", b"", b"0")
    assert dict(served.streams[0].head.fields)[b"x-long"] == b"v" * 300


def test_padding_and_priorities_change_nothing():
    served = Served()
    block = served.encoder.encode(REQUEST)
    priority = struct.pack(">IB", 0, 15)
    served.send(frame(1, 4 | 8 | 32, 1, b"\5" + priority + block + bytes(5)))
    served.send(frame(0, 1 | 8, 1, b"\3one" + bytes(3)))
    assert served.answer(1) == (b"200", b"one", b"3")


def as_client():
    """Return a client of `h2`, an implementation of its own, that has said hello."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
    client.initiate_connection()
    client.increment_flow_control_window(1 << 20)
    return client


def exchange(served, client):
    """Let both read all that the other has written. Return the events of the client."""
    events = []
    while data := client.data_to_send():
        served.send(data)
        new = bytes(served.transport.written[served._read :])
        served._read += len(new)
        events += client.receive_data(new)
    return events


def test_another_implementation_sees_every_block_of_headers():
    """Tables that change, shrink and grow, fields that are never indexed, values that repeat: 300 requests of one client."""
    served, client, rng = Served(greet=False), as_client(), random.Random(7)
    names = [b"grpc-timeout", b"x-request-id", b"user-agent", b"x-any", b"authorization"]
    wanted, found, bodies = {}, {}, {}
    for turn in range(300):
        number = client.get_next_available_stream_id()
        more = [(n, rng.choice([b"a", b"bb" * 20, b"%d" % turn])) for n in rng.sample(names, 3)]
        client.send_headers(number, [*REQUEST, *more])
        body = rng.randbytes(rng.choice([0, 5, 300]))
        client.send_data(number, body, end_stream=True)
        wanted[number] = (more, body)
        if turn % 40 == 17:
            client.encoder.header_table_size = rng.choice([0, 100, 4096])
        for event in exchange(served, client):
            if isinstance(event, h2.events.DataReceived):
                bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
            if isinstance(event, h2.events.TrailersReceived):
                found[event.stream_id] = dict(event.headers)[b"x-size"]
    seen = {one.number: (one.head.fields, bodies.get(one.number, b"")) for one in served.streams}
    assert seen == wanted
    assert found == {number: b"%d" % len(body) for number, (_, body) in wanted.items()}


def test_a_block_means_what_the_table_says_now():
    """The bytes of two blocks are the same, and the table between them is another one."""
    served = Served()
    fields = [*REQUEST, (b"x-key", b"one")]
    served.send(frame(1, 5, 1, served.encoder.encode(fields)))
    same = served.encoder.encode(fields)  # only places in the table
    served.send(frame(1, 5, 3, same))
    served.send(frame(1, 5, 5, same))
    literals = b"\x40\5x-key\3two"  # is now where the field before was
    served.send(frame(1, 5, 7, b"\x83\x86\x84\x41\1a" + literals))
    served.send(frame(1, 5, 9, same))
    found = [one.head.fields for one in served.streams]
    oracle = hpack.Decoder()
    wanted = []
    for block in (
        hpack.Encoder().encode(fields),
        same,
        same,
        b"\x83\x86\x84\x41\1a" + literals,
        same,
    ):
        read = [tuple(one) for one in oracle.decode(block, raw=True)]
        wanted.append([one for one in read if not one[0].startswith(b":")])
    assert found == wanted[: len(found)]
    assert len({str(one) for one in found}) > 1


def test_an_answer_waits_for_the_windows_of_its_client():
    served = Served(greet=False)
    served.send(PREFACE + settings((4, 0)))
    served.send(served.request(1, b"abcdef") + served.request(3, b"123"))
    assert "Data" not in kinds(served.frames())
    for byte in (b"a", b"b"):
        served.send(window(1, 1))
        (data,) = [one for one in served.frames() if isinstance(one, hyperframe.frame.DataFrame)]
        assert (data.stream_id, data.data) == (1, byte)
    served.send(settings((4, 3)))  # both are three wider: one has taken two more than that
    found = served.frames()
    assert served.streams[1].is_answered
    assert (
        b"".join(one.data for one in found if hasattr(one, "data") and one.stream_id == 1) == b"cde"
    )
    served.send(window(1, 10))
    assert served.streams[0].is_answered
    assert served.ended_with() is None


def test_large_answers_take_turns():
    served = Served(greet=False)
    served.send(PREFACE + settings((4, 1 << 20)) + window(0, 1 << 20))
    large = bytes(200_000)
    for number in (1, 3):
        served.send(frame(1, 4, number, served.encoder.encode(REQUEST)))
        for place in range(0, len(large), 16384):
            served.send(frame(0, 0, number, large[place : place + 16384]))
    served.frames()
    served.send(frame(0, 1, 1, b"") + frame(0, 1, 3, b""))
    found = [one for one in served.frames() if isinstance(one, hyperframe.frame.DataFrame)]
    order = [number for number, _ in itertools.groupby(one.stream_id for one in found)]
    assert order[:4] == [1, 3, 1, 3]
    assert sum(len(one.data) for one in found) == 400_000


def test_who_takes_nothing_is_read_no_further_and_cut_off_in_time():
    served = Served(greet=False)
    served.send(PREFACE + settings((4, 1 << 20)) + window(0, 1 << 20))
    served.transport.is_full = True
    for number in range(1, 41, 2):
        served.send(served.request(number, bytes(16000)))
    assert not served.transport.is_reading
    assert 0 < served.buffered <= len(served.transport.buffer) <= 65536 + (192 << 10)
    served.loop.pass_time(60)
    assert not served.transport.is_closed
    served.transport.drain()
    assert served.transport.is_reading
    assert served.buffered == 0
    assert all(one.is_answered for one in served.streams)
    served.transport.is_full = True
    for number in range(41, 81, 2):
        served.send(served.request(number, bytes(16000)))
    served.loop.pass_time(len(served.transport.buffer) / 256 + 61)
    assert served.transport.is_closed


def test_streams_beyond_the_limit_are_refused_and_the_others_answered():
    served = Served(dataclasses.replace(BOUNDS, streams=2))
    block = served.encoder.encode(REQUEST)
    for number in (1, 3, 5):
        served.send(frame(1, 4, number, block))
        block = served.encoder.encode(REQUEST)
    (reset,) = [one for one in served.frames() if isinstance(one, hyperframe.frame.RstStreamFrame)]
    assert (reset.stream_id, reset.error_code) == (5, REFUSED)
    served.send(frame(0, 1, 1, b"one") + frame(0, 1, 3, b"two"))
    frames = served.frames()
    assert [served.answer(number, frames)[1] for number in (1, 3)] == [b"one", b"two"]


def flood_of(kind):
    """Return the frames of a flood, one after the other, without an end, for a connection that is greeted."""
    encoder, numbers = hpack.Encoder(), itertools.count(1, 2)
    for turn in itertools.count():
        if kind == "rapid reset":
            number = next(numbers)
            yield frame(1, 4, number, encoder.encode(REQUEST)) + frame(3, 0, number, bytes(4))
        elif kind == "continuation":
            yield frame(9, 0, 1, b"") if turn else frame(1, 1, 1, b"")
        elif kind == "bytes of continuation":
            yield frame(9, 0, 1, b"\0\1x\x7f\x80\x7f" + bytes(16000)) if turn else frame(1, 1, 1)
        elif kind == "settings":
            yield settings((4, turn % 65536))
        elif kind == "many settings":
            yield settings(*[(4, 1)] * 2700)
        elif kind == "ping":
            yield frame(6, 0, 0, struct.pack(">Q", turn))
        elif kind == "pongs":
            yield frame(6, 1, 0, bytes(8))
        elif kind == "empty data":
            yield frame(0, 0, 1, b"") if turn else frame(1, 4, 1, encoder.encode(REQUEST))
        elif kind == "padding":
            yield (
                frame(0, 8, 1, b"\xff" + bytes(255))
                if turn
                else frame(1, 4, 1, encoder.encode(REQUEST))
            )
        elif kind == "windows":
            yield window(0, 1)
        elif kind == "priorities":
            yield frame(2, 0, 1 + 2 * turn, bytes(5))
        elif kind == "unknown":
            yield frame(99, 0, 0, b"")
        elif kind == "wrong streams":
            yield frame(1, 5, next(numbers), b"\x82")
        elif kind == "after the end":
            yield frame(0, 0, 1, b"x" * 9) if turn else frame(1, 5, 1, encoder.encode(REQUEST))


FLOODS = (
    "rapid reset", "continuation", "bytes of continuation", "settings", "many settings", "ping",
    "pongs", "empty data", "padding", "windows", "priorities", "unknown", "wrong streams",
    "after the end",
)  # fmt: skip


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_is_bounded(kind):
    """It ends after some thousand frames, and what it makes the server write and remember is little."""
    served, sent = Served(dataclasses.replace(BOUNDS, least_ping_s=1e-9)), 0
    for sent, data in enumerate(flood_of(kind)):
        served.send(data)
        if kind == "ping":
            served.loop.now += 1e-6
        if served.transport.is_closed or sent > 20_000:
            break
    written = len(served.transport.written)
    code, text = served.ended_with()
    assert (code, b"too many" in text) == (CALM, True)
    assert sent <= 5000
    assert written < 400_000
    assert len(served.streams) <= 1100


def test_who_asks_and_takes_answers_may_go_on_for_ever():
    """Each request comes with a ping, a window and settings, and one of two is cancelled."""
    served = Served(dataclasses.replace(BOUNDS, least_ping_s=1e-9))
    for number in range(1, 8_001, 2):
        served.send(served.request(number, b"x"))
        served.loop.now += 0.001
        if number % 4 == 1:
            served.send(frame(6, 0, 0, bytes(8)) + window(0, 1) + window(number, 1))
    assert served.ended_with() is None
    assert all(one.is_answered for one in served.streams)
    assert len(served.streams) == 4_000


def test_pings_without_calls_are_bounded_by_their_time():
    served = Served(dataclasses.replace(BOUNDS, least_ping_s=10.0))
    for _ in range(5):
        served.loop.pass_time(10.0)
        served.send(frame(6, 0, 0, bytes(8)))
    assert served.ended_with() is None
    for _ in range(3):
        served.send(frame(6, 0, 0, bytes(8)))
    assert served.ended_with() == (CALM, b"too_many_pings")


def test_a_silent_client_is_asked_whether_it_is_there():
    served = Served(dataclasses.replace(BOUNDS, keepalive_s=10.0, keepalive_timeout_s=5.0))
    for _ in range(3):
        served.loop.pass_time(10.0)
        (ping,) = [one for one in served.frames() if isinstance(one, hyperframe.frame.PingFrame)]
        served.loop.now += 1.0
        served.send(frame(6, 1, 0, ping.opaque_data))
        served.loop.pass_time(4.0)
    assert not served.transport.is_closed
    served.loop.pass_time(10.0)
    served.loop.pass_time(5.0)
    assert served.transport.is_closed


def test_a_client_that_is_to_leave_gets_the_answers_of_what_it_has_asked():
    served = Served(dataclasses.replace(BOUNDS, age_s=30.0))
    block = served.encoder.encode(REQUEST)
    served.send(frame(1, 4, 1, block))
    served.frames()
    served.loop.pass_time(30.0)
    goaway, ping = served.frames()
    assert (goaway.last_stream_id, goaway.error_code) == ((1 << 31) - 1, 0)
    served.send(served.request(3, b"sent before it heard"))
    assert served.answer(3)[1] == b"sent before it heard"
    served.send(frame(6, 1, 0, ping.opaque_data))
    (goaway,) = served.frames()
    assert (goaway.last_stream_id, served.transport.is_closed) == (3, False)
    served.send(frame(0, 1, 1, b"the last"))
    assert served.answer(1)[1] == b"the last"
    assert served.transport.is_closed


def test_a_client_that_says_nothing_is_cut_off():
    for first in (b"", PREFACE[:5], PREFACE):
        served = Served(greet=False)
        served.send(first)
        served.loop.pass_time(59.9)
        assert not served.transport.is_closed
        served.loop.pass_time(0.2)
        assert served.transport.is_closed


def integers_without_end(_):
    return frame(1, 5, 1, b"\x7f" + b"\xff" * 5000)


def bomb(_):
    """One field of 4,000 bytes, and 16,000 times its place in the table."""
    return frame(1, 5, 1, b"\x40\1x\x7f\xa0\x1e" + b"y" * 3999) + frame(1, 5, 3, b"\xbe" * 16000)


def literals(_):
    return frame(1, 5, 1, b"\0\1x\0" * 4000)


@pytest.mark.parametrize(
    ("make", "codes"),
    [
        (integers_without_end, {COMPRESSION}),
        (bomb, {CALM, COMPRESSION}),
        (literals, {CALM}),
        (lambda s: frame(1, 5, 1, b"\x7f"), {COMPRESSION}),
        (lambda s: frame(0, 0, 1, b"x"), {PROTOCOL}),
        (lambda s: frame(1, 5, 2, b"\x82"), {PROTOCOL}),
        (lambda s: frame(9, 4, 1, b""), {PROTOCOL}),
        (lambda s: frame(1, 1, 1, b"") + frame(6, 0, 0, bytes(8)), {PROTOCOL}),
        (lambda s: frame(5, 4, 1, bytes(4)), {PROTOCOL}),
        (lambda s: window(0, (1 << 31) - 1), {FLOW}),
        (lambda s: settings((4, 1 << 31)), {FLOW}),
        (lambda s: s.request(1) + s.request(1), {CLOSED}),
        (lambda s: b"\xff\xff\xff" + bytes(20), {6}),
    ],
)
def test_what_breaks_the_rules_ends_the_connection(make, codes):
    served = Served()
    served.send(make(served))
    assert served.ended_with()[0] in codes


def random_frame(rng, served, numbers):
    """Return a frame that the grammar of HTTP/2 has, or one that is a little or wholly wrong."""
    number = rng.choice([0, *numbers, numbers[-1] + 2, rng.randrange(64)])
    kind = rng.choice([0, 0, 1, 1, 1, 2, 3, 4, 6, 8, 8, 9, rng.randrange(256)])
    flags = rng.choice([0, 1, 4, 5, 5, 5, 13, 37, rng.randrange(256)])
    if kind == 1 and rng.random() < 0.8:
        numbers.append(numbers[-1] + 2)
        return served.request(numbers[-1], rng.randbytes(rng.randrange(40)))
    body = rng.choice([
        b"", bytes(4), bytes(5), bytes(8), rng.randbytes(rng.randrange(64)),
        struct.pack(">HI", rng.randrange(8), rng.getrandbits(rng.choice([4, 16, 32]))),
        struct.pack(">I", rng.getrandbits(rng.choice([3, 16, 31]))),
    ])  # fmt: skip
    made = frame(kind, flags & 255, number, body)
    if rng.random() < 0.03:
        made = bytes([*made[:-1], rng.randrange(256)]) if body else made[:-1]
    return made


class Counted(Echo):
    """Notes how often it was answered or lost."""

    __slots__ = ()

    def end(self):
        self.events.append("answered")
        super().end()


def shake(seed, count):
    """Send random frames over many connections. Each stream ends once, each answer is that of its own request.

    Args:
        seed: Where chance begins.
        count: The number of frames.
    """
    rng, sent = random.Random(seed), 0
    while sent < count:
        served, numbers = Served(stream=Counted), [1]
        served.send(served.request(1, b"first"))
        for _ in range(rng.randrange(1, 60)):
            data, sent = random_frame(rng, served, numbers), sent + 1
            cut = rng.randrange(len(data) + 1) if data else 0
            served.send(data[:cut])
            served.send(data[cut:])
            if served.transport.is_closed:
                break
        frames = served.frames()  # each of them can be read
        if not served.transport.is_closed:
            served.connection.connection_lost(None)
        for stream in served.streams:
            assert stream.events.count("lost") <= 1
            assert stream.events.count("answered") <= 1
            assert stream.is_closed
            if stream.is_answered:
                assert served.answer(stream.number, frames)[1:] == (
                    stream.body, b"%d" % len(stream.body),
                )  # fmt: skip
        assert served.connection not in served.connections or served.transport.is_closed
        assert served.buffered == 0


def test_random_frames_break_nothing():
    shake(11, 10_000)


@pytest.mark.slow
def test_many_random_frames_break_nothing():
    shake(12, 50_000)


@pytest.mark.stress
@pytest.mark.parametrize("seed", range(20))
def test_a_million_random_frames_break_nothing(seed):
    shake(seed, 50_000)
