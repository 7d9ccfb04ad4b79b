"""`MQTT`: tells a broker what was seen."""

from __future__ import annotations

import queue
import re
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from headrace.errors import InputError, MissingDependencyError
from headrace_vision.events import EventSink

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["MQTT"]

_PORTS = {"mqtt": 1883, "mqtts": 8883}

_REFUSED = (0x90, 0x95)
"""Reasons for which a broker ends the connection that are about the message: its topic, its size."""

_QUOTA = 0x97
"""The reason for which a broker takes a message later, perhaps."""


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
        spool_bytes, spool, close_s: What is kept while the sink fails. See `headrace_vision.Sink`.

    Raises:
        InputError: The address is not allowed, or has no topic to publish to.
        MissingDependencyError: paho-mqtt is not installed.
    """

    schemes = ("mqtt", "mqtts")

    _client: Any = None

    def _prepare(self) -> None:
        try:
            import paho.mqtt.client  # noqa: F401 - it is needed later
        except ImportError as error:
            raise MissingDependencyError(
                f"paho-mqtt cannot be imported: {error}",
                distribution="headrace-vision",
                hint='Type `pip install "headrace-vision[mqtt]"`.',
            ) from error
        self._port = self._parts.port or _PORTS[self._parts.scheme]
        behind_host = self._url.partition("//")[2].partition("/")[2]
        self._topic = unquote(behind_host)
        if not self._topic or re.search(r"[+#\0{}]", self._topic.replace("{source}", "")):
            raise InputError(
                "there is no topic to publish to",
                expected="mqtt://HOST/TOPIC without + and #; {source} is the name of the source",
                got=behind_host,
            )

    def _send(self, frame: Frame) -> None:
        topic = self._topic.replace("{source}", re.sub(r"[/+#\0]", "_", frame.source))
        try:
            if self._client is None or not self._client.is_connected():
                self._connect()
            self._client.publish(topic, self._body(frame), qos=1)
            self._wait_for("published")
        except BaseException:
            self._hang_up()  # what it might still send would come out of order
            raise

    def _connect(self) -> None:
        from paho.mqtt.client import Client
        from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

        self._hang_up()
        self._said: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        said = self._said
        client = Client(
            CallbackAPIVersion.VERSION2,
            protocol=MQTTProtocolVersion.MQTTv5,
            reconnect_on_failure=False,  # the sink tries again, with the same frame
        )
        client.connect_timeout = self._timeout_s
        client.on_connect = lambda _, __, ___, reason, ____: said.put(("connected", reason))
        client.on_publish = lambda _, __, ___, reason, ____: said.put(("published", reason))
        client.on_disconnect = lambda _, __, ___, reason, ____: said.put(("disconnected", reason))
        if (login := self._login()) is not None:
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

    def _wait_for(self, wanted: str) -> None:
        """Wait until the broker says so.

        Raises:
            OSError: It says something else, or nothing.
            ValueError: It refuses the message.
        """
        try:
            what, reason = self._said.get(timeout=self._timeout_s)
        except queue.Empty:
            raise OSError(f"{self._shown} does not answer for {self._timeout_s:g} s") from None
        if what == wanted and not reason.is_failure:
            return
        is_refused = what == "published" and reason.value != _QUOTA
        is_refused = is_refused or (wanted == "published" and reason.value in _REFUSED)
        text = f"{self._shown}: {what}: {reason}"
        raise ValueError(text) if is_refused else OSError(text)

    def _hang_up(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()

    def close(self) -> None:
        """Take leave of the broker."""
        client = self._client
        self._hang_up()
        if client is not None:
            client.loop_stop()
