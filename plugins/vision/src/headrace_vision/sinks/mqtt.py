"""`MQTT`: tells a broker what was seen."""

from __future__ import annotations

import logging
import queue
import re
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headrace.errors import InputError
from headrace.plugins import library
from headrace_formats import write_json
from headrace_vision.network import login_of
from headrace_vision.sinks.event_sink import EventSink
from headrace_vision.sinks.home_assistant import device_of
from headrace_vision.sinks.names import mark_of

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["MQTT"]

_LOG = logging.getLogger("headrace.vision")

_PORTS = {"mqtt": 1883, "mqtts": 8883}

_REFUSED = (0x90, 0x95)
"""Reasons for which a broker ends the connection that are about the message: its topic, its size."""

_QUOTA = 0x97
"""The reason for which a broker takes a message later, perhaps."""


@dataclass(eq=False, repr=False, kw_only=True)
class MQTT(EventSink):
    """Publishes a frame as JSON with QoS 1 (MQTT 5): see `headrace_vision.frame_record`.

    It holds nobody up: frames wait in the spool until the broker has taken them, each at least once, in their order. Status, log
    and errors show scheme and host of the address alone.

    Args:
        url: ``mqtt://USER:PASSWORD@HOST:PORT/TOPIC``, or ``mqtts`` for TLS. ``{source}`` in the topic is the name of the source,
            with ``_`` in place of ``/``, ``+`` and ``#``.
        network: Hosts that may be called. That of ``url`` must be among them.
        only_events: Whether only frames with ``events`` (of CountLine and CountZone) are published.
        attempts: How often a frame that the broker refuses is tried, then it is lost, if the broker takes the next one.
        timeout_s: Seconds after which an attempt has failed.
        picture: Whether the JSON has ``picture``, a JPEG in base64 with boxes on it.
        status_topic: A topic that says ``online`` while the sink is connected, which it is from its beginning on, and ``offline``
            afterwards, by the last will: retained. Each program needs its own. None for none.
        discovery: The prefix under which Home Assistant looks for devices, ``"homeassistant"``. Each source is a device, with its last
            event, what is counted at its lines and zones, and whether somebody is in a zone. The counts are retained in
            ``TOPIC/counts``, and ``TOPIC/status`` says ``offline`` while the source is lost. It needs ``status_topic``, and ``{source}`` in the topic. None for none.
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.

    Raises:
        InputError: The address is not allowed, or has no topic to publish to.
        ValueError: ``discovery`` lacks what it needs.
        MissingDependencyError: paho-mqtt is not installed.

    Source:
        MQTT 5.0, sections 3.1.2.5 (will), 3.1.4 (a client of the same name takes over, so that no will comes late) and 3.14.2.1
        (leaving with the will). The device discovery of Home Assistant's MQTT integration.
    """

    status_topic: str | None = None
    discovery: str | None = None

    schemes = ("mqtt", "mqtts")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._client: Any = None
        self._retained: dict[str, str] = {}
        self._announced: set[tuple[str, ...]] = set()
        self._lost: set[str] = set()
        library("paho.mqtt.client", "headrace-vision[mqtt]")
        self._port = self._parts.port or _PORTS[self._parts.scheme]
        behind_host = self.url.partition("//")[2].partition("/")[2]
        self._topic = unquote(behind_host)
        if not self._topic or re.search(r"[+#\0{}]", self._topic.replace("{source}", "")):
            expected = "mqtt://HOST/TOPIC without + and #; {source} is the name of the source"
            raise InputError("there is no topic to publish to", expected=expected, got=behind_host)
        for name, topic in (("status_topic", self.status_topic), ("discovery", self.discovery)):
            if topic is not None and not re.fullmatch(r"[^+#\0{}]+", topic):
                raise ValueError(f"{name} is a topic without +, # and braces, not {topic!r}")
        if self.discovery and not (self.status_topic and "{source}" in self._topic):
            raise ValueError("discovery needs status_topic, and {source} in the topic of url")

    def open(self) -> None:
        """Connect, where a topic says so."""
        if self.status_topic:
            self._connect()

    def wants(self, frame: Frame) -> bool:
        """Return whether a frame is sent, or is the first one with what is counted in it."""
        if self.discovery is None:
            return super().wants(frame)
        counted = (frame.source, *frame.request.get("counts", ()))
        is_new = counted not in self._announced
        self._announced.add(counted)
        return is_new or super().wants(frame)

    def source_lost(self, source: str, error: str) -> None:
        """Let the device be shown as not available."""
        self._lost.add(source)
        self._retain_state(source)

    def source_found(self, source: str) -> None:
        """Let the device be shown as available."""
        self._lost.discard(source)
        self._retain_state(source)

    def source_ended(self, source: str) -> None:
        """Let the device be shown as not available, until another source of this name has frames."""
        self.source_lost(source, "")
        self._lost.discard(source)

    def _retain_state(self, source: str) -> None:
        topic = f"{self._topic_of(source)}/status"
        if topic in self._retained:  # else no device is known
            self._retain(topic, "offline" if source in self._lost else "online")

    def _topic_of(self, source: str) -> str:
        return self._topic.replace("{source}", re.sub(r"[/+#\0]", "_", source))

    def _send(self, frame: Frame) -> None:
        topic = self._topic_of(frame.source)
        try:
            if self._client is None or not self._client.is_connected():
                self._connect()
            while not self._said.empty():
                self._log(*self._said.get())
            if self.discovery is not None:
                counts = frame.request.get("counts", {})
                device = f"headrace_{mark_of(topic)}"
                info = device_of(device, frame.source, topic, counts, str(self.status_topic))
                self._retain(f"{self.discovery}/device/{device}/config", write_json(info))
                self._retain(f"{topic}/counts", write_json(counts))
                self._retained.setdefault(f"{topic}/status", "")
                self._retain_state(frame.source)
            if self._is_sent(frame):
                sent = self._client.publish(topic, self._body(frame), qos=1)
                self._wait_for("published", sent.mid)
        except BaseException:
            self._hang_up()  # what it might still send would come out of order
            raise

    def _retain(self, topic: str, text: str) -> None:
        """Publish what stays until it changes. What is not taken by the end of a connection comes again with the next one."""
        if self._retained.get(topic) != text:
            self._retained[topic] = text
            if self._client is not None:
                self._client.publish(topic, text, qos=1, retain=True)

    def _log(self, event: str, reason: Any, _: int = 0) -> None:
        if event == "published" and reason.is_failure:
            _LOG.warning("%s refuses a topic of status or discovery: %s", self._shown, reason)

    def _connect(self) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        self._hang_up()
        self._said = acks = queue.SimpleQueue[tuple[Any, ...]]()
        status, is_kept = self.status_topic, self.status_topic is not None
        client = Client(
            CallbackAPIVersion.VERSION2,
            f"headrace-{mark_of(status)}" if status else "",
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=is_kept,  # else the sink tries again, with the same frame
        )

        def connected(broker: Any, _: Any, __: Any, reason: Any, ___: Any) -> None:
            if status and not reason.is_failure:
                for topic, text in [*self._retained.items(), (status, "online")]:
                    broker.publish(topic, text, qos=1, retain=True)
            acks.put(("connected", reason))

        client.connect_timeout = self.timeout_s
        client.on_connect = connected
        client.on_publish = lambda _, __, mid, reason, ___: acks.put(("published", reason, mid))
        client.on_disconnect = lambda _, __, ___, reason, ____: acks.put(("disconnected", reason))
        if status:
            client.will_set(status, "offline", qos=1, retain=True)
        if (login := login_of(self.url)) is not None:
            client.username_pw_set(*login)
        if self._parts.scheme == "mqtts":
            client.tls_set_context(ssl.create_default_context())
        try:
            client.connect(str(self._parts.hostname), self._port)
        except OSError as error:
            text = f"{self._shown} cannot be called: {type(error).__name__}: {error}"
            raise OSError(text) from None
        self._client = client
        client.loop_start()
        self._wait_for("connected")

    def _wait_for(self, expected: str, mid: int | None = None) -> None:
        """Wait until the broker says so, of the message of that number.

        Raises:
            OSError: It says something else, or nothing.
            ValueError: It refuses the message.
        """
        try:
            event, reason, *of = self._said.get(timeout=self.timeout_s)
            while of and of != [mid]:
                self._log(event, reason)
                event, reason, *of = self._said.get(timeout=self.timeout_s)
        except queue.Empty:
            raise OSError(f"{self._shown} does not answer for {self.timeout_s:g} s") from None
        if event == expected and not reason.is_failure:
            return
        is_refused = event == "published" and reason.value != _QUOTA
        is_refused = is_refused or (expected == "published" and reason.value in _REFUSED)
        text = f"{self._shown}: {event}: {reason}"
        raise ValueError(text) if is_refused else OSError(text)

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()

    def close(self) -> None:
        """Take leave of the broker, which publishes the last will, if there is one."""
        client, self._client = self._client, None
        if client is not None:
            client.disconnect(_leave(with_will=self.status_topic is not None))
            client.loop_stop()


def _leave(*, with_will: bool) -> Any:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.reasoncodes import ReasonCode

    name = "Disconnect with will message" if with_will else "Normal disconnection"
    return ReasonCode(PacketTypes.DISCONNECT, name)
