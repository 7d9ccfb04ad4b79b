"""The manifests of examples/kubernetes: valid by the schemas, and naming only what there is."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path

import cv2
import httpx
import jsonschema
import numpy as np
import pytest
from pages import Page, run

pytest.importorskip("headrace_serve")
yaml = pytest.importorskip("yaml")
tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
kubernetes_validate = pytest.importorskip("kubernetes_validate")
from headrace_serve import Server  # noqa: E402

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "kubernetes"
PAGE = ROOT / "docs" / "kubernetes.md"
THUMBNAIL = ROOT / "examples" / "serve" / "models" / "thumbnail.toml"
SCHEMAS = Path(__file__).parent / "kubernetes_schemas"
OWN_SCHEMAS = {"ScaledObject": "scaledobject.json", "InferenceService": "inferenceservice.json"}
VERSIONS = ("1.27", kubernetes_validate.latest_version())
FILES = sorted(FOLDER.glob("*.yaml"))
DOCUMENTS = [
    (path.name, document)
    for path in FILES
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
BY_ID = [f"{name}-{document['kind']}-{document['metadata']['name']}" for name, document in DOCUMENTS]  # fmt: skip
of_each = pytest.mark.parametrize("document", [one for _, one in DOCUMENTS], ids=BY_ID)


def of_kind(kind, name=None):
    found = [one for _, one in DOCUMENTS if one["kind"] == kind]
    return [one for one in found if name is None or one["metadata"]["name"] == name]


def deployment(name, spec):
    """A Deployment with the fields of a pod."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
        },
    }


def parts(document):
    """What of a document has a schema of Kubernetes: itself, or what stands inline in one of others."""
    kind, spec = document["kind"], document["spec"]
    if kind == "InferenceService":
        own = json.loads((SCHEMAS / OWN_SCHEMAS[kind]).read_text(encoding="utf-8"))
        component = own["properties"]["spec"]["properties"]["predictor"]["properties"]
        pod = {key: value for key, value in spec["predictor"].items() if key not in component}
        return [deployment(document["metadata"]["name"], pod)]
    if kind == "ScaledObject":
        config = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
        scaler = {
            "scaleTargetRef": spec["scaleTargetRef"],
            "minReplicas": spec["minReplicaCount"],
            "maxReplicas": spec["maxReplicaCount"],
            **({"behavior": config["behavior"]} if "behavior" in config else {}),
        }
        return [
            {
                "apiVersion": "autoscaling/v2",
                "kind": "HorizontalPodAutoscaler",
                "metadata": document["metadata"],
                "spec": scaler,
            }
        ]
    return [document]


def check(document, versions=VERSIONS):
    """Raise an error unless the schemas, those of Kubernetes of all these versions, accept a document."""
    if document["kind"] in OWN_SCHEMAS:
        file = SCHEMAS / OWN_SCHEMAS[document["kind"]]
        jsonschema.validate(document, json.loads(file.read_text(encoding="utf-8")))
    for part in parts(document):
        for version in versions:
            kubernetes_validate.validate(part, version, strict=True)


@of_each
def test_a_manifest_is_what_the_schemas_accept(document):
    check(document)


def places(part, path=()):
    """The paths to all keys whose names a schema decides."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key in ("labels", "matchLabels", "annotations", "requests", "limits", "selector"):
                continue  # whoever writes them chooses the names
            yield (*path, key)
            yield from places(value, (*path, key))
    elif isinstance(part, list):
        for index, value in enumerate(part):
            yield from places(value, (*path, index))


@of_each
def test_a_key_that_is_misspelt_is_noticed_wherever_it_stands(document):
    unnoticed = []
    for path in places(document):
        changed = copy.deepcopy(document)
        inner = changed
        for step in path[:-1]:
            inner = inner[step]
        inner[f"{path[-1]}Z"] = inner.pop(path[-1])
        try:
            check(changed, VERSIONS[-1:])
        except (kubernetes_validate.ValidationError, jsonschema.ValidationError, KeyError):
            continue
        unnoticed.append(path)
    # The metadata of an object that is not Kubernetes' own are in none of the schemas.
    others = document["kind"] in OWN_SCHEMAS
    assert [path for path in unnoticed if not (others and path[0] == "metadata")] == []


@pytest.fixture(scope="module")
def server():
    """The server of the manifests, with the model that they serve."""
    with Server({"thumbnail": THUMBNAIL}, port=0, grpc_port=0) as running:
        yield f"http://127.0.0.1:{running.port}"


@pytest.fixture(scope="module")
def metrics(server):
    """The names of all metrics, each with the names of its labels."""
    found = {}
    for line in httpx.get(f"{server}/metrics").text.splitlines():
        series = re.match(r"(\w+)(?:\{(.*)\})? ", line)
        if series and not line.startswith("#"):
            found.setdefault(series[1], set()).update(re.findall(r"(\w+)=\"", series[2] or ""))
    return found


def unknown_names(text, metrics):
    """The names of metrics in a text that the server does not have."""
    named = set(re.findall(r"\bheadrace_[a-z_]+\b", text))
    modules = {"headrace_serve", "headrace_observe"}
    return named - set(metrics) - modules


@pytest.mark.parametrize("path", [*FILES, PAGE], ids=lambda path: path.name)
def test_every_metric_that_is_named_is_there(path, metrics):
    text = path.read_text(encoding="utf-8")
    assert unknown_names(text, metrics) == set()
    renamed = dict(metrics)
    renamed["headrace_waiting_requests"] = renamed.pop("headrace_requests_waiting")
    missing = {"headrace_requests_waiting"} if "headrace_requests_waiting" in text else set()
    assert unknown_names(text, renamed) == missing


def test_every_autoscaler_goes_by_the_requests_that_wait_and_by_nothing_else(metrics):
    thresholds = []
    for scaler in of_kind("HorizontalPodAutoscaler"):
        (metric,) = scaler["spec"]["metrics"]
        assert metric["type"] == "Pods"
        assert metric["pods"]["metric"]["name"] == "headrace_requests_waiting"
        thresholds.append(metric["pods"]["target"]["averageValue"])
    for scaler in of_kind("ScaledObject"):
        (trigger,) = scaler["spec"]["triggers"]
        metric, labels = re.fullmatch(
            r"sum\((\w+)\{(.*)\}\)", trigger["metadata"]["query"]
        ).groups()
        assert metric == "headrace_requests_waiting"
        matched = dict(re.findall(r"(\w+)=~?\"([^\"]*)\"", labels))
        assert set(matched) - {"pod"} <= metrics[metric]  # Prometheus adds that one
        assert matched["model"] == "thumbnail"
        target = scaler["spec"]["scaleTargetRef"]["name"]
        assert re.fullmatch(matched["pod"], f"{target}-5d9c7b-x2x4z")
        thresholds.append(trigger["metadata"]["threshold"])
    assert len(thresholds) == 3
    (threshold,) = set(map(int, thresholds))
    served = tomllib.loads(THUMBNAIL.read_text(encoding="utf-8"))
    assert served["instance_num"] == "auto"
    (pods,) = of_kind("Deployment", "thumbnail")
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    cores = {one["name"]: one["value"] for one in container["env"]}["PYTHON_CPU_COUNT"]
    assert cores == container["resources"]["requests"]["cpu"]
    assert served["max"] * int(cores) <= threshold <= served["queue_size"] / 4
    assert f"threshold of {threshold}" in PAGE.read_text(encoding="utf-8")


def containers():
    """Each container, with the fields of its pod."""
    pods = [one["spec"]["template"]["spec"] for one in of_kind("Deployment")]
    pods += [one["spec"]["predictor"] for one in of_kind("InferenceService")]
    return [(container, pod) for pod in pods for container in pod["containers"]]


def test_every_autoscaler_has_a_deployment():
    made = {one["metadata"]["name"] for one in of_kind("Deployment")}
    made |= {f"{one['metadata']['name']}-predictor" for one in of_kind("InferenceService")}
    scalers = of_kind("HorizontalPodAutoscaler") + of_kind("ScaledObject")
    targets = [one["spec"]["scaleTargetRef"] for one in scalers]
    assert {one["name"] for one in targets} <= made
    assert {(one["apiVersion"], one["kind"]) for one in targets} == {("apps/v1", "Deployment")}
    # What scales sets the number: a manifest that has one too would set it back.
    assert all("replicas" not in one["spec"] for one in of_kind("Deployment"))


def test_what_selects_pods_selects_those_of_a_deployment_by_ports_that_they_have():
    pods = {one["metadata"]["name"]: one["spec"]["template"] for one in of_kind("Deployment")}
    for one in of_kind("Deployment"):
        assert (
            one["spec"]["selector"]["matchLabels"] == one["spec"]["template"]["metadata"]["labels"]
        )
    ports = {port["name"] for port in pods["thumbnail"]["spec"]["containers"][0]["ports"]}
    labels = pods["thumbnail"]["metadata"]["labels"]
    for service in of_kind("Service"):
        assert service["spec"]["selector"] == labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    (budget,), (policy,) = of_kind("PodDisruptionBudget"), of_kind("NetworkPolicy")
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert {p["port"] for rule in policy["spec"]["ingress"] for p in rule["ports"]} == ports
    # Over gRPC, the name means all pods, and the client deals out.
    (grpc,) = of_kind("Service", "thumbnail-grpc")
    assert grpc["spec"]["clusterIP"] == "None"
    address = re.search(r"dns:///([\w-]+):(\d+)", PAGE.read_text(encoding="utf-8"))
    assert address.groups() == ("thumbnail-grpc", str(grpc["spec"]["ports"][0]["port"]))


def options_of(words):
    return {
        name: value for name, _, value in (w.partition("=") for w in words if w.startswith("--"))
    }


@pytest.fixture(scope="module")
def help_text():
    return run("headrace serve --help", ROOT, COLUMNS="200")


@pytest.mark.parametrize(("container", "pod"), containers())
def test_a_container_starts_a_server_with_options_that_there_are(container, pod, help_text, server):
    command, serve, file, *words = container["command"]
    assert (command, serve) == ("headrace", "serve")
    known = set(re.findall(r"(--[a-z-]+)", help_text))
    options = options_of(words)
    assert len(options) == len(words)
    assert set(options) <= known
    ports = {str(one["containerPort"]) for one in container["ports"]}
    assert {options[one] for one in ("--port", "--grpc-port") if one in options} == ports
    waits = float(options["--drain-delay"]) + float(options["--drain-timeout"])
    assert pod["terminationGracePeriodSeconds"] >= waits + 10
    assert "cpu" not in container["resources"]["limits"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container:
            assert httpx.get(server + container[probe]["httpGet"]["path"]).status_code == 200
    period = container["readinessProbe"]["periodSeconds"]
    assert (
        float(options["--drain-delay"])
        >= 2 * period * container["readinessProbe"]["failureThreshold"]
    )
    # The file is one of ours: the image has it where the command looks for it.
    assert list((ROOT / "examples").glob(f"*/{Path(file).name}"))


def test_the_scraper_is_told_where_the_metrics_are(server):
    for one in of_kind("Deployment"):
        told = one["spec"]["template"]["metadata"]["annotations"]
        assert httpx.get(server + told["prometheus.io/path"]).status_code == 200
        ports = one["spec"]["template"]["spec"]["containers"][0]["ports"]
        assert told["prometheus.io/port"] in {str(port["containerPort"]) for port in ports}


def test_the_image_has_what_the_manifests_start(help_text):
    image = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    used = {one["image"] for one, _ in containers() if "gpu" not in one["image"]}
    assert len(used) == 1
    assert f"-t {used.pop()} ." in image
    (installed,) = re.findall(r"pip install .*", image)
    assert {'"headrace-serve[metrics]"', "headrace-observe", "headrace-cv"} <= set(
        installed.split()
    )
    source, target = re.search(r"COPY (examples\S+) (\S+)", image).groups()
    assert ROOT / source == THUMBNAIL.parent
    assert {one["command"][2] for one, _ in containers() if "gpu" not in one["image"]} == {target}
    (started,) = re.findall(r"^CMD (.*)$", image, re.MULTILINE)
    assert set(options_of(json.loads(started))) <= set(re.findall(r"(--[a-z-]+)", help_text))
    (user,) = re.findall(r"^USER (\d+)$", image, re.MULTILINE)
    (pods,) = of_kind("Deployment", "thumbnail")
    assert pods["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(user)
    exposed = set(re.search(r"^EXPOSE (.*)$", image, re.MULTILINE)[1].split())
    ports = pods["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert {str(port["containerPort"]) for port in ports} == exposed


def test_the_balancer_asks_for_a_path_that_there_is(server):
    text = (FOLDER / "haproxy.cfg").read_text(encoding="utf-8")
    (path,) = re.findall(r"httpchk GET (\S+)", text)
    assert httpx.get(server + path).status_code == 200


def test_options_paths_and_times_of_the_page_are_those_of_the_manifests(help_text, server):
    text = PAGE.read_text(encoding="utf-8")
    (pods,) = of_kind("Deployment", "thumbnail")
    pod = pods["spec"]["template"]["spec"]
    started = options_of(pod["containers"][0]["command"])
    known = set(re.findall(r"(--[a-z-]+)", help_text))
    for option, value in re.findall(r"`(--[a-z-]+)(?:=(\w+))?`", text):
        assert option in known
        assert value in ("", started.get(option))
    assert f"terminationGracePeriodSeconds: {pod['terminationGracePeriodSeconds']}" in text
    named = set(re.findall(r"`(/[\w/]+)`", text))
    assert named == {"/metrics", "/v2/health/ready", "/v2/models/thumbnail/infer"}
    (infer,) = [path for path in named if path.endswith("/infer")]
    assert httpx.post(server + infer, json={}).status_code == 400  # 404 where there is none
    assert httpx.post(server + infer.replace("thumbnail", "other"), json={}).status_code == 404
    for block in Page("docs/kubernetes.md").blocks("yaml"):
        assert yaml.safe_load(block)


def test_the_threshold_is_measured_as_the_page_says(tmp_path):
    (tmp_path / "photos").mkdir()
    photo = cv2.imencode(".jpg", np.full((480, 640, 3), 90, np.uint8))[1].tobytes()
    (tmp_path / "photos" / "one.jpg").write_bytes(photo)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = Page("docs/kubernetes.md").command("headrace bench")
    printed = run(f"{command} --seconds 0.3 --warm-up 0.1", tmp_path)
    points = json.loads(printed)["configurations"][0]["points"]
    assert [one["load"]["clients"] for one in points] == [1, 8, 32]
    assert all(one["throughput_rps"] > 0 for one in points)


def test_the_page_of_the_folder_lists_every_file():
    listed = set(re.findall(r"\]\(([\w.]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in FOLDER.iterdir()} - {"README.md"}
