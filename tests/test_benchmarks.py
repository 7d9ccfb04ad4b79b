"""Every benchmark runs, in its smallest form, and writes what it says; no time is looked at."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import run_process

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]


def run(module: str, folder: Path, *arguments: str) -> tuple[str, dict]:
    """Run a benchmark; give what it printed and the figures it wrote."""
    file = folder / "figures.json"
    done = run_process(
        [sys.executable, "-m", module, "--quick", "--json", str(file), *arguments], cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text(encoding="utf-8"))


def test_jpeg_onnx_measures_clients_and_lists(tmp_path):
    pytest.importorskip("onnx")
    options = ("--network", "light", "--clients", "2", "--list", "6")
    _, figures = run("benchmarks.jpeg_onnx", tmp_path, *options)
    cell, lists = figures["light"]["2"], figures["light"]["lists"]
    assert set(cell["loads"]) == set(lists["loads"]) - {"halves"}
    assert all(load["rps"] > 0 for loads in lists["loads"].values() for load in loads)
    assert not lists["by_hand"].startswith("headrace")
    assert set(lists["ratio"]) == {side for side in lists["loads"] if side.startswith("headrace")}


def test_observe_trace_measures_samples_beside_no_probe(tmp_path):
    pytest.importorskip("onnx")
    _, figures = run("benchmarks.observe_trace", tmp_path)
    assert figures["jpeg"]["ratio"]["no probe"] == 1.0
    assert list(figures["request"]) == ["Identity", "S[Identity,Identity]"]
    for one in figures["request"].values():
        assert set(one["more_us"]) == set(figures["jpeg"]["ratio"])
    assert 0 < figures["long"]["file_bytes"] <= figures["long"]["max_bytes"]
    assert len(figures["long"]["memory_bytes"]) == 10
    assert figures["long"]["errors"] == 0


def test_cv_words_measures_every_word_beside_opencv(tmp_path):
    pytest.importorskip("cv2")
    text, figures = run("benchmarks.cv_words", tmp_path)
    for words, found in figures["words"].items():
        assert words in text
        assert set(found) == {"whole_us", "bare_us", "own_us"}


def test_instances_measures_every_setting_beside_one_shared_session(tmp_path):
    pytest.importorskip("onnx")
    text, figures = run("benchmarks.instances", tmp_path, "--threads", "2", "--sizes", "0.02 ms")
    (loads,) = figures["loads"].values()
    assert "default settings" in text
    assert {"one shared session", "default settings", "alone, all cores"} <= set(loads)
    assert all(load["rps"] > 0 for found in loads.values() for load in found)


def test_alike_measures_every_policy_beside_greedy(tmp_path):
    pytest.importorskip("onnx")
    text, figures = run("benchmarks.alike", tmp_path, "--clients", "4")
    cell = figures["4"]
    assert cell["ratio"]["greedy"] == {"rps": 1.0, "p99": 1.0}
    for side, loads in cell["loads"].items():
        assert side in text
        assert all(load["rps"] > 0 for load in loads)


def test_spinning_measures_idle_threads_that_spin_and_that_sleep_beside_a_plain_loop(tmp_path):
    pytest.importorskip("onnx")
    text, figures = run("benchmarks.spinning", tmp_path, "--threads", "2", "--sizes", "0.02 ms")
    (loads,) = figures["loads"].values()
    assert set(loads) == {"plain loop", "spin = false", "spin = true"}
    assert all(name in text for name in loads)
    assert all(load["cpu_us"] > 0 for found in loads.values() for load in found)


def test_cores_measures_threads_beside_processes(tmp_path):
    pytest.importorskip("onnx")
    _, figures = run("benchmarks.cores", tmp_path, "--networks", "light", "--clients", "2")
    cpus = len(os.sched_getaffinity(0))
    ways = {f"threads, {cpus}", f"Process, p{cpus}"}
    sides = {*ways, "independent processes", "ProcessPoolExecutor"}
    if find_spec("litserve") and find_spec("psutil"):
        sides.add("LitServe")
    assert set(figures["light"]) == sides
    assert figures["recorded"]["lock_us"] > 0
    assert figures["recorded"]["releases"] >= 3  # decode, resize, run
    assert all(load["rps"] > 0 for loads in figures["light"].values() for load in loads)
    trip = figures["60 kB there and back"]
    assert all(load["p50_us"] > 0 for loads in trip.values() for load in loads)


def test_serve_identity_measures_both_protocols_beside_the_floor(tmp_path):
    pytest.importorskip("headrace_serve")
    _, figures = run("benchmarks.serve.identity", tmp_path, "--clients", "2")
    assert set(figures["cells"]) == {
        f"{protocol}{size}, 2" for protocol in ("binary", "gRPC") for size in ("", " 600 kB")
    }
    for cell in figures["cells"].values():
        assert all(load["rps"] > 0 for loads in cell["loads"].values() for load in loads)


def test_serve_identity_measures_every_case_of_another_checkout_beside_this_one(tmp_path):
    for name in ("headrace_serve", "headrace_cli", "headrace_triton"):
        pytest.importorskip(name)
    options = ("--before", str(ROOT), "--clients", "2")
    text, figures = run("benchmarks.serve.identity", tmp_path, *options)
    cases = ("binary", "JSON", "/run", "embeddings", "repository", "gRPC")
    assert set(figures["cells"]) == {f"{case}, 2" for case in (*cases, *LARGE_CASES)}
    for name, cell in figures["cells"].items():
        assert set(cell["loads"]) == {"before", "after"}
        assert all(load["rps"] > 0 for loads in cell["loads"].values() for load in loads)
        assert set(cell["ratios"]) == {"others_us", "rps", "p99_us"}
        assert name in text
    _, figures = run("benchmarks.serve.identity", tmp_path, *options, "--only", "/run")
    assert set(figures["cells"]) == {"/run, 2"}


LARGE_CASES = ("binary 600 kB", "gRPC 600 kB")


def test_serve_calls_measures_both_servers_of_grpc(tmp_path):
    pytest.importorskip("headrace_serve")
    _, figures = run("benchmarks.serve.calls", tmp_path, "--clients", "2")
    assert {*figures["cells"]} == {"gRPC, 2", "gRPC 600 kB, 2"}
    for cell in figures["cells"].values():
        assert {*cell["loads"]} == {"grpcio", "headrace-serve"}
        assert all(load["rps"] > 0 for loads in cell["loads"].values() for load in loads)


def test_serve_peers_measures_both_loops_without_any_peer(tmp_path):
    for name in ("headrace_serve", "onnx", "psutil"):
        pytest.importorskip(name)
    _, figures = run("benchmarks.serve.peers", tmp_path, "--clients", "2", "--peer")
    assert set(figures["cells"]["2"]["loads"]) == {"bare", "headrace_serve"}
    ((_, over),) = figures["over"]
    assert over["sent"] > 0
    assert over["failed"] == 0


def test_serve_cores_measures_every_process_model(tmp_path):
    for name in ("headrace_serve", "headrace_cli", "onnx", "psutil"):
        pytest.importorskip(name)
    _, figures = run(
        "benchmarks.serve.cores", tmp_path, "--clients", "2", "--client-processes", "1"
    )
    sides = figures["networks"]["light"]
    assert set(sides) == {"independent processes", "Process", "threads", "--workers"}
    assert all(load["rps"] > 0 for loads in sides.values() for load in loads)


@pytest.mark.parametrize(("text", "cores"), [("0,1", [0, 1]), ("2-4,7", [2, 3, 4, 7])])
def test_cores_are_read_from_numbers_and_ranges(text, cores):
    from benchmarks.servers.process import read_cores

    assert read_cores(text) == cores


def test_serve_live_page_measures_both_sides_of_two_pipelines(tmp_path):
    text, figures = run("benchmarks.serve.live_page", tmp_path)
    assert [one["unit"] for one in figures["kept"]] == ["requests/s", "us"] * 2
    for one in figures["kept"]:
        assert one["what"] in text
        assert one["value"] > 0
        assert one["other"] > 0
        assert one["rounds"] == 1


def test_serve_mutated_answers_every_body(tmp_path):
    pytest.importorskip("headrace_serve")
    _, figures = run("benchmarks.serve.mutated", tmp_path)
    for protocol in ("rest", "grpc"):
        assert sum(figures[protocol]["statuses"].values()) == 500


def test_overhead_runs(tmp_path):
    parts = ("graph", "long", "fair", "held")
    _, figures = run("benchmarks.scheduling.overhead", tmp_path, "--part", *parts)
    wanted = {"diamond x>(y,z)>w inst=2", "lines of nodes", "hold the lock 50 us inst=2 max=8"}
    assert {cell["cell"] for cell in figures["cells"]} >= wanted


@pytest.mark.parametrize("options", [(), ("--jpeg",)])
def test_queued_measures_both_shapes_beside_threads_by_hand(tmp_path, options):
    if options:
        pytest.importorskip("headrace_cv")
    arguments = ("--clients", "4", "--instances", "2", *options)
    _, figures = run("benchmarks.scheduling.queued", tmp_path, *arguments)
    assert figures["ratio"]["one, by hand"] == figures["ratio"]["two, by hand"] == 1.0
    assert set(figures["switches"]) == set(figures["ratio"]) == set(figures["loads"])
    assert all(load["rps"] > 0 for loads in figures["loads"].values() for load in loads)


def test_many_nodes_runs(tmp_path):
    _, figures = run("benchmarks.scheduling.many_nodes", tmp_path)
    assert set(figures["cases"]) == {"call", "submit", "queue"}


def test_import_time_runs(tmp_path):
    _, figures = run("benchmarks.import_time", tmp_path, "--runs", "1")
    assert figures.keys() > {"environment"}


@pytest.mark.parametrize("status", [b"200 OK", b"503 Service Unavailable"])
def test_the_client_of_servers_reads_an_answer_in_pieces(status, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.servers.process import Client

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as received:
                for _ in range(2):  # the second request comes on the same connection
                    length = 0
                    while line := received.readline().strip():
                        name, _, value = line.partition(b":")
                        length = int(value) if name == b"Content-Length" else length
                    assert received.read(length) == b"file"
                    head = b"HTTP/1.1 %b\r\nconTent-length: 12\r\nx: y\r\n\r\n" % status
                    for k in range(0, len(head), 7):
                        connection.sendall(head[k : k + 7])
                    connection.sendall(b'{"class"')
                    connection.sendall(b": 7}")

        thread = threading.Thread(target=answer)
        thread.start()
        client = Client(listener.getsockname()[1], "/predict")
        for _ in range(2):
            if status.startswith(b"200"):
                assert client(b"file") == 7
            else:
                with pytest.raises(RuntimeError, match="503"):
                    client(b"file")
        thread.join()
        client.close()


@pytest.mark.gpu
def test_gpu_trt_runs_every_part(tmp_path):
    from headrace_trt.libraries.cuda import load_cuda

    if not load_cuda().device_count():
        pytest.skip("no CUDA device")
    _, figures = run("benchmarks.gpu_trt", tmp_path)
    assert {"overhead", "resnet", "table"} <= set(figures)
    assert len(figures["kept"]) > 30


def test_gpu_certify_prints_a_table_of_engines(tmp_path):
    pytest.importorskip("onnx")
    chosen = ("--engines", "ort", "tensorrt", "--precisions", "fp32", "fp16")
    printed, figures = run("benchmarks.gpu_certify", tmp_path, "--device", "cpu", *chosen)
    for precision, error in (("fp32", 0), ("fp16", 1e-2)):
        one = figures["ort"][precision]
        assert one["sizes"] == [1, 2]
        assert one["outputs"]["result"]["reference"]["max_rel"] <= error
        assert f"| ort | {precision} | " in printed
    assert figures["ort"]["fp16"]["outputs"]["result"]["reference"]["max_rel"] > 0
    assert "| tensorrt | fp16 | left out: " in printed
    assert len(figures["kept"]) == 4


def test_remote_overhead_counts_every_request(tmp_path):
    pytest.importorskip("headrace_remote")
    _, figures = run("benchmarks.remote.overhead", tmp_path)
    assert set(figures["cost"]) == {"scores", "echo"}
    for one in figures["killed"].values():
        assert one["wrong"] == 0
        assert one["answered"] + sum(one["failed"].values()) == one["sent"]


def test_vision_gate_measures_both_scenes(tmp_path):
    for name in ("headrace_vision", "headrace_ort", "headrace_cv", "onnx"):
        pytest.importorskip(name)
    text, figures = run("benchmarks.vision.gate", tmp_path)
    assert "with the gate over without" in text
    assert set(figures["ratios"]) == {"still", "panning"}
    assert all(one > 0 for row in figures["ms"].values() for one in row)


def test_vision_outages_tells_every_crossing_once(tmp_path):
    pytest.importorskip("headrace_vision")
    pytest.importorskip("trackers")
    _, figures = run("benchmarks.vision.outages", tmp_path)
    found = figures["outages"]
    assert found["wrong"] == []
    assert found["happened"]["program killed"] == 2
    assert len(found["happened"]) > 10
    assert found["events"]["must"] > 1
    assert set(found["events"]["sinks"]) == {"Webhook", "SaveJSONL", "function"}
    assert all(one["came"] > 3 for one in found["events"]["sinks"].values())
    assert found["recordings"]["files"] > 4


def test_vision_files_runs_every_side(tmp_path):
    for needed in ("onnx", "trackers", "headrace_ort", "headrace_vision"):
        pytest.importorskip(needed)
    text, figures = run("benchmarks.vision.files", tmp_path)
    sides = {
        "loop",
        "threads",
        "lean",
        "lean live",
        "live",
        "detect",
        "process_video",
        "save",
        "runner",
        "boxes",
        "boxes by hand",
    }
    assert set(figures["sides"]) == sides
    assert all(one["fps"] > 0 for rows in figures["sides"].values() for one in rows)
    assert all(side in text for side in sides)


@pytest.mark.parametrize("step", [[], ["--network"]], ids=["device", "network"])
def test_iterate_measures_steps_beside_a_loop_and_beside_whole_batches(tmp_path, step):
    pytest.importorskip("onnx")
    pytest.importorskip("headrace_flow")
    _, figures = run("benchmarks.iterate", tmp_path, "--clients", "3", *step)
    cell = figures["3"]
    assert set(cell["median"]) == set(cell["ratio"]) == {"loop", "Iterate", "together"}
    assert cell["ratio"]["loop"] == 1.0
    assert all(0 < one["occupancy"] <= 1 for one in cell["median"].values())
