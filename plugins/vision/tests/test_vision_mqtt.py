"""Events to a broker of MQTT: one that the test scripts by the standard, and Eclipse Mosquitto."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import headrace
import headrace_vision
from headrace.errors import ConfigError, InputError, MissingDependencyError
from headrace_vision import MQTT, Clock, VideoRunner

mqtt = pytest.importorskip("paho.mqtt.client")

MOSQUITTO = shutil.which("mosquitto") or shutil.which("/usr/sbin/mosquitto")
PATIENCE_S = 120
"""Seconds of the machine after which something that must happen has not."""


class Held(Clock):
    """Attempts wait until the test says so; then no time passes between them."""

    def __init__(self):
        super().__init__()
        self.failed, self.go = threading.Event(), threading.Event()

    def wait(self, stop, seconds):
        self.failed.set()
        while not (stop.is_set() or self.go.wait(0.01)):
            pass  # `stop` is set without a word to this clock
        return stop.is_set()


class MqttAlarms(headrace.Backend):
    """Writes an event for each fifth frame."""

    def forward(self, batch):
        for request in batch:
            request["result"] = 0
            number = request["context"]["frame"]
            if number % 5 == 0:
                request["events"] = [{"type": "line", "name": "door", "track_id": number}]


@pytest.fixture(scope="module", autouse=True)
def _alarms():
    headrace.register("MqttAlarms", MqttAlarms)


def pictures(count):
    return [np.zeros((16, 16, 3), np.uint8)] * count


def run(sink, frames, clock=None):
    pipe = {"backend": "MqttAlarms"}
    with VideoRunner(pipe, sinks=[sink], machine_clock=clock or Clock()) as runner:
        list(runner.run(frames))
    return next(iter(runner.status()["sinks"].values()))


class Broker:
    """Speaks as much of MQTT 5 as a publisher needs, by sections 1.5 and 3 of the standard.

    `answer` gets the number of a message in the order of their arrival, and returns the reason of its PUBACK, or None: the
    connection ends without one. `welcome` is the reason of each CONNACK.
    """

    def __init__(self, answer=lambda number: 0, welcome=0):
        self.answer, self.welcome = answer, welcome
        self.messages, self.logins, self.retained, self.goodbyes = [], [], [], []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listening.close()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as file:
                self._talk(connection, file)

    def _talk(self, connection, file):
        while head := file.read(1):
            size, shift = 0, 0
            while True:
                byte = file.read(1)[0]
                size, shift = size | (byte & 127) << shift, shift + 7
                if byte < 128:
                    break
            body = file.read(size)
            kind = head[0] >> 4
            if kind == 1:
                self.logins.append(body)
                connection.sendall(bytes((0x20, 3, 0, self.welcome, 0)))
            elif kind == 3:
                end = 2 + int.from_bytes(body[:2], "big")
                assert head[0] & 6 == 2  # QoS 1
                assert body[end + 2] == 0  # no properties
                number = len(self.messages)
                topic, text = body[2:end].decode(), body[end + 3 :].decode()
                self.messages.append((topic, json.loads(text) if text[:1] == "{" else text))
                self.retained += [topic] * (head[0] & 1)
                reason = self.answer(number)
                if reason is None:
                    return
                connection.sendall(bytes((0x40, 4, *body[end : end + 2], reason, 0)))
            elif kind == 14:
                self.goodbyes.append(body[:1])
                return


@pytest.fixture
def scripted():
    made = []

    def make(**script):
        made.append(Broker(**script))
        return made[-1], f"mqtt://127.0.0.1:{made[-1].port}"

    yield make
    for one in made:
        one.close()


def test_each_frame_with_events_is_published_under_its_source(scripted):
    broker, url = scripted()
    sink = MQTT(f"{url}/site/{{source}}/events", network=["127.0.0.1"])
    status = run(sink, {"cams/#1 +": pictures(11)})
    assert [topic for topic, _ in broker.messages] == ["site/cams__1 _/events"] * 3
    records = [record for _, record in broker.messages]
    assert [(one["source"], one["frame"]) for one in records] == [
        ("cams/#1 +", n) for n in (0, 5, 10)
    ]
    (event,) = records[1]["events"]
    assert event.pop("id").startswith("cams/#1 +:")
    assert event.pop("time") == records[1]["time"]
    assert event == {"type": "line", "name": "door", "track_id": 5}
    assert (status["posted"], status["lost"], len(broker.logins)) == (3, 0, 1)


def test_a_message_whose_answer_is_lost_comes_again_before_the_next(scripted):
    broker, url = scripted(answer=lambda number: None if number in (1, 2) else 0)
    clock = Held()
    clock.go.set()
    status = run(MQTT(f"{url}/t", network=["127.0.0.1"]), {"cam": pictures(20)}, clock)
    assert [record["frame"] for _, record in broker.messages] == [0, 5, 5, 5, 10, 15]
    assert (status["posted"], status["lost"], len(broker.logins)) == (4, 0, 3)


def test_a_message_that_the_broker_refuses_is_lost_alone_and_a_quota_is_not(scripted):
    frames = {"cam": pictures(20)}
    clock = Held()
    clock.go.set()
    broker, url = scripted(answer=lambda number: 0x87 * (broker.messages[number][1]["frame"] == 5))
    status = run(MQTT(f"{url}/t", network=["127.0.0.1"], attempts=2), frames, clock)
    taken = [record["frame"] for _, record in broker.messages if record["frame"] != 5]
    assert (taken, status["lost"]) == ([0, 10, 15], 1)
    broker, url = scripted(answer=lambda number: 0x97 * (number in range(1, 6)))
    status = run(MQTT(f"{url}/t", network=["127.0.0.1"], attempts=2), frames, clock)
    assert [r["frame"] for _, r in broker.messages] == [0, *[5] * 6, 10, 15]
    assert (status["posted"], status["lost"]) == (4, 0)


def test_a_broker_that_refuses_the_user_is_said_and_asked_again(scripted, caplog):
    broker, url = scripted(welcome=0x86)
    clock = Held()
    sink = MQTT(f"{url.replace('//', '//me:p%40ss@')}/SECRET", network=["127.0.0.1"])
    with VideoRunner({"backend": "MqttAlarms"}, sinks=[sink], machine_clock=clock) as runner:
        list(runner.run({"cam": pictures(1)}))
        assert clock.failed.wait(PATIENCE_S)
        (status,) = runner.status()["sinks"].values()
        assert status["error"] == f"OSError: {url}/...: connected: Bad user name or password"
        broker.welcome = 0
        clock.go.set()
    assert b"\0\x02me\0\x04p@ss" in broker.logins[-1]  # 3.1.3: user name and password
    assert len(broker.messages) == 1
    assert "p@ss" not in caplog.text + repr(sink)
    assert "SECRET" not in caplog.text + json.dumps(status)


# A topic of status, and Home Assistant.

STATUS = {"status_topic": "site/status", "discovery": "ha"}
DOOR = 'a "door" {{ 1 }} \U0001f6aa'


class MqttCounts(headrace.Backend):
    """Counts at a line and in a zone, and writes an event for each fifth frame."""

    def forward(self, batch):
        for request in batch:
            request["result"] = 0
            number = request["context"]["frame"]
            request["counts"] = {DOOR: {"in": number, "out": 1}, "yard": {"inside": number % 2}}
            if number % 5 == 0 and number:
                request["events"] = [{"type": "line", "name": DOOR, "track_id": number}]


def counting(sink, sources, clock=None):
    headrace.register("MqttCounts", MqttCounts, replace=True)
    with VideoRunner({"backend": "MqttCounts"}, sinks=[sink], machine_clock=clock) as runner:
        list(runner.run(sources))
    return next(iter(runner.status()["sinks"].values()))


def shown(config, messages):
    """What Home Assistant shows of a device, by the template of each entity."""
    jinja2 = pytest.importorskip("jinja2")
    environment = jinja2.Environment()
    environment.filters["as_datetime"] = str
    found = {}
    for key, one in config["components"].items():
        assert one["unique_id"] == f"{config['device']['identifiers'][0]}_{key}"
        value = messages[one.get("state_topic", config["state_topic"])]
        found[one["name"]] = environment.from_string(one["value_template"]).render(value_json=value)
        if "json_attributes_topic" in one:
            attributes = environment.from_string(one["json_attributes_template"])
            value = messages[one["json_attributes_topic"]]
            found["attributes"] = json.loads(attributes.render(value_json=value))
    return found


def test_home_assistant_finds_a_device_for_each_source_and_what_it_counts(scripted):
    broker, url = scripted()
    sink = MQTT(f"{url}/site/{{source}}", network=["127.0.0.1"], **STATUS)
    status = counting(sink, {"cam/1": pictures(8)})
    topics = [topic for topic, _ in broker.messages]
    (configured,) = [one for one in topics if one.startswith("ha/")]
    assert re.fullmatch(r"ha/device/[a-zA-Z0-9_-]+/config", configured)
    # The counts of the first frame are there before any event; then they come with each.
    assert topics == [
        *("site/status", configured, "site/cam_1/counts", "site/cam_1/status"),
        *("site/cam_1/counts", "site/cam_1", "site/cam_1/status"),
    ]
    assert broker.retained == [one for one in topics if one != "site/cam_1"]
    states = [text for topic, text in broker.messages if topic == "site/cam_1/status"]
    assert states == ["online", "offline"]  # it has ended
    messages = dict(broker.messages)
    config = messages[configured]
    assert messages["site/status"] == "online"
    assert config["availability"] == [{"topic": "site/status"}, {"topic": "site/cam_1/status"}]
    assert config["availability_mode"] == "all"
    assert config["device"]["name"] == "cam/1"
    assert {"name", "sw_version"} == set(config["origin"])
    found = shown(config, messages)
    assert found.pop("attributes")["track_id"] == 5
    assert float(found.pop("last event")) == messages["site/cam_1"]["time"]
    assert found == {
        f"{DOOR} in": "5",
        f"{DOOR} out": "1",
        "yard inside": "1",
        "yard occupied": "ON",
    }
    kinds = {one["name"]: one for one in config["components"].values()}
    assert kinds["yard occupied"]["platform"] == "binary_sensor"
    assert kinds[f"{DOOR} in"]["state_class"] == "total_increasing"
    assert all(re.fullmatch("[a-zA-Z0-9_]+", one) for one in config["components"])
    assert (status["posted"], status["lost"]) == (1, 0)
    # 3.1.2.5: a will of QoS 1 that is retained. 3.14.2.1: it is published when the sink leaves.
    (login,) = broker.logins
    assert login[7] == 0b00101110
    assert b"\0\x0bsite/status\0\x07offline" in login
    assert broker.goodbyes == [b"\x04"]


def test_what_is_retained_comes_again_with_each_connection_under_the_same_name(scripted):
    broker, url = scripted(answer=lambda number: None if number == 5 else 0)
    clock = Held()
    clock.go.set()
    sink = MQTT(f"{url}/{{source}}", network=["127.0.0.1"], **STATUS)
    status = counting(sink, {"cam": pictures(8)}, clock)
    topics = [topic for topic, _ in broker.messages]
    own = [topics[1], "cam/counts", "cam/status"]
    assert topics[:6] == ["site/status", *own, "cam/counts", "cam"]
    assert topics[6:] == [*own, "site/status", "cam", "cam/status"]
    assert broker.messages[6:8] == [broker.messages[1], broker.messages[4]]
    first, second = broker.logins
    assert first == second  # with its name, by which the broker knows that it is the same
    assert (status["posted"], status["lost"]) == (1, 0)


def test_a_topic_of_discovery_that_the_broker_refuses_is_logged_and_events_come(scripted, caplog):
    broker, url = scripted(answer=lambda number: 0x87 * broker.messages[number][0].startswith("ha"))
    sink = MQTT(f"{url}/{{source}}", network=["127.0.0.1"], **STATUS)
    assert counting(sink, {"cam": pictures(8)})["posted"] == 1
    assert "refuses a topic of status or discovery: Not authorized" in caplog.text


@pytest.mark.parametrize(
    ("topic", "options", "error"),
    [
        ("a", STATUS, "needs status_topic, and {source}"),
        ("{source}", {"discovery": "homeassistant"}, "needs status_topic"),
        ("a", {"status_topic": "a/#"}, "status_topic is a topic without"),
        ("a", {"status_topic": ""}, "status_topic is a topic without"),
    ],
)
def test_what_discovery_needs_is_said(topic, options, error):
    with pytest.raises(ValueError, match=error):
        MQTT(f"mqtt://h/{topic}", network=["h"], **options)


@pytest.mark.parametrize(
    "url",
    ["mqtt://h", "mqtt://h/", "mqtt://h/a/#", "mqtt://h/+/a", "mqtt://h/{name}/a", "http://h/a"],
)
def test_an_address_without_a_topic_is_refused(url):
    with pytest.raises(InputError):
        MQTT(url, network=["h"])
    with pytest.raises(InputError, match="not allowed"):
        MQTT("mqtt://h/a")


def test_without_paho_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "paho"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match="mqtt"):
        MQTT("mqtt://h/a", network=["h"])


def test_a_wrong_address_in_a_file_is_named_before_anything_is_built(tmp_path):
    (tmp_path / "vision.toml").write_text(
        'model = { backend = "Identity" }\n[sinks.alarms]\nkind = "MQTT"\nurl = "mqtt://other/a"\n'
    )
    with pytest.raises(ConfigError, match="the host 'other' is not allowed"):
        headrace_vision.open(tmp_path / "vision.toml")


# Eclipse Mosquitto.


class Mosquitto:
    """The broker with a file of configuration, on a port that stays its own over restarts."""

    def __init__(self, folder, *lines):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._file = folder / "mosquitto.conf"
        self._file.write_text("\n".join((f"listener {self.port} 127.0.0.1", *lines, "")))
        self.process = None

    def up(self):
        command = [MOSQUITTO, "-c", str(self._file), "-v"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if "running" in line:
                break
        else:
            raise AssertionError("mosquitto does not start")
        self._reader = threading.Thread(target=self.process.stderr.read)
        self._reader.start()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()


@pytest.fixture
def mosquitto(tmp_path):
    made = []

    def make(*lines):
        made.append(Mosquitto(tmp_path, *lines))
        made[-1].up()
        return made[-1]

    yield make
    for one in made:
        if one.process.returncode is None:
            one.kill()


class Subscriber:
    """Takes every message, on one connection after the other."""

    def __init__(self, port, configure=lambda client: None):
        self.frames, self._port, self._configure = [], port, configure
        self.texts = {}
        self.changed = threading.Condition()

    def subscribe(self):
        there = threading.Event()
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        client.on_connect = lambda one, *_: one.subscribe("#", qos=1)
        client.on_subscribe = lambda *_: there.set()
        client.on_message = lambda _, __, message: self._take(message)
        self._configure(client)
        client.connect("127.0.0.1", self._port)
        client.loop_start()
        assert there.wait(PATIENCE_S)
        self._client = client

    def _take(self, message):
        with self.changed:
            text = self.texts[message.topic] = message.payload.decode()
            if '"frame"' in text:
                self.frames.append((message.topic, json.loads(text)["frame"]))
            self.changed.notify_all()

    def until(self, topic, text):
        with self.changed:
            assert self.changed.wait_for(lambda: self.texts.get(topic) == text, PATIENCE_S)

    def leave(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.frames) >= count, PATIENCE_S)
        self._client.disconnect()
        self._client.loop_stop()


outside = [
    pytest.mark.slow,
    pytest.mark.skipif(not MOSQUITTO, reason="needs Mosquitto (apt-get install mosquitto)"),
]


def marked(function):
    for mark in outside:
        function = mark(function)
    return function


@marked
def test_every_event_reaches_mosquitto_after_it_was_killed(mosquitto):
    broker = mosquitto("allow_anonymous true")
    seen, clock = Subscriber(broker.port), Held()
    seen.subscribe()
    sink = MQTT(f"mqtt://127.0.0.1:{broker.port}/{{source}}", network=["127.0.0.1"])
    with VideoRunner({"backend": "MqttAlarms"}, sinks=[sink], machine_clock=clock) as runner:
        list(runner.run({"before": pictures(10)}))
        seen.leave(2)
        broker.kill()
        list(runner.run({"after": pictures(200)}))
        assert clock.failed.wait(PATIENCE_S)
        broker.up()
        seen.subscribe()
        clock.go.set()
    seen.leave(42)
    before, after = [("before", 0), ("before", 5)], [("after", n) for n in range(0, 200, 5)]
    assert seen.frames == before + after
    (status,) = runner.status()["sinks"].values()
    assert (status["posted"], status["lost"], status["dropped"]) == (42, 0, 0)


@marked
@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl")
@pytest.mark.filterwarnings(
    "ignore:unclosed <ssl"
)  # paho leaves it to Python, after a wrong certificate
def test_a_file_names_user_and_password_by_the_environment_and_tls_is_checked(
    mosquitto, tmp_path, monkeypatch
):
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "30"]
    files = ["-keyout", key, "-out", certificate]
    subprocess.run(["openssl", "req", "-x509", *curve, *names, *files], check=True, capture_output=True)  # fmt: skip
    # One may publish below site/ alone; the broker says so of each message.
    (tmp_path / "acl").write_text("user me\ntopic read #\ntopic write site/#\n")
    (tmp_path / "users").write_text("me:p@ss\n")
    subprocess.run(["mosquitto_passwd", "-U", tmp_path / "users"], check=True)
    broker = mosquitto(
        "allow_anonymous false",
        *("user root", f"cafile {certificate}", f"certfile {certificate}", f"keyfile {key}"),
        *(f"password_file {tmp_path / 'users'}", f"acl_file {tmp_path / 'acl'}"),
    )
    text = (
        'model = {{ backend = "MqttAlarms" }}\nnetwork = ["127.0.0.1"]\n[sinks.alarms]\nkind = "MQTT"\n'
        'url = "mqtts://${{BROKER_USER}}:${{BROKER_PASSWORD}}@127.0.0.1:{port}/{topic}"\nattempts = 1\nclose_s = {close_s}\n'
    )

    def run_file(topic, close_s):
        (tmp_path / "vision.toml").write_text(
            text.format(port=broker.port, topic=topic, close_s=close_s)
        )
        with headrace_vision.open(tmp_path / "vision.toml") as vision:
            for name, count in (("else", 5), ("site", 10)):
                list(vision.run({name: pictures(count)}))
        return vision.status()["sinks"]["alarms"]

    monkeypatch.setenv("BROKER_USER", "me")
    monkeypatch.setenv("BROKER_PASSWORD", "p%40ss")
    assert "CERTIFICATE_VERIFY_FAILED" in run_file("site/{source}", 0)["error"]
    monkeypatch.setenv("SSL_CERT_FILE", certificate)

    def configure(client):
        client.tls_set(certificate)
        client.username_pw_set("me", "p@ss")

    seen = Subscriber(broker.port, configure)
    seen.subscribe()
    status = run_file("{source}/door", PATIENCE_S)
    assert (status["posted"], status["lost"]) == (2, 1)
    seen.leave(2)
    assert seen.frames == [("site/door", 0), ("site/door", 5)]
    monkeypatch.setenv("BROKER_PASSWORD", "wrong")
    assert "Not authorized" in run_file("site/{source}", 0)["error"]


RUNNER = """
import sys
import numpy as np
from headrace_vision import MQTT, VideoRunner

sink = MQTT(sys.argv[1], network=["127.0.0.1"], status_topic="site/status", discovery="ha")
with VideoRunner({"backend": "Identity"}, sinks=[sink]) as runner:
    list(runner.run({"cam": [np.zeros((16, 16, 3), np.uint8)]}))
    print("ready", flush=True)
    sys.stdin.read()
"""


@marked
def test_mosquitto_says_whether_the_program_is_there(mosquitto):
    broker = mosquitto("allow_anonymous true")
    seen = Subscriber(broker.port)
    seen.subscribe()
    line = [sys.executable, "-c", RUNNER, f"mqtt://127.0.0.1:{broker.port}/{{source}}/events"]

    def begin():
        made = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert made.stdout.readline() == b"ready\n"
        seen.until("site/status", "online")
        return made

    with begin() as killed:
        killed.kill()
    seen.until("site/status", "offline")
    with begin() as running:
        broker.kill()  # it keeps nothing on a disk
        seen.leave(0)
        seen.texts.clear()
        broker.up()
        seen.subscribe()
        seen.until("site/status", "online")  # though nothing happens
        assert any(topic.startswith("ha/device/") for topic in seen.texts)
        running.stdin.close()
        assert running.wait(PATIENCE_S) == 0
    seen.until("site/status", "offline")
    late = Subscriber(broker.port)  # who comes later is told
    late.subscribe()
    late.until("site/status", "offline")
    for one in (seen, late):
        one.leave(0)
