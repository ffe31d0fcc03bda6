"""Hypothesis strategies for Pods: odd ones that no client library makes, and valid ones that an API server takes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from admission import setting

ONE_TO_FOUR = ["1", 1, "2", 2, "3000m", "2e0", "1E0", "4", "0.004k", "+1", "1.0", "1000000u"]
ODD_QUANTITIES = ["0", 0, "0.5", "-1", "1k", "1Ki", "all", "", True, None, [], "9" * 40, 1.5, "33", "١"]
RESOURCES = ["nvidia.com/gpu", "deviceclass.resource.kubernetes.io/gpu.nvidia.com"]
OTHER_RESOURCES = ["cpu", "memory", "amd.com/gpu", "hugepages-2Mi", "example.com/nic", "nvidia.com/mig-1g.5gb"]
NODE_LABELS = ["disk", "pool.example/name", "kubernetes.io/os", "topology.kubernetes.io/zone", "nvidia.com/gpu.product"]
OWNERS = [
    {"kind": "ReplicaSet", "controller": True},
    {"kind": "DaemonSet", "controller": True},
    {"kind": "DaemonSet"},
    {"kind": "DaemonSet", "controller": False},
]
KEYS = st.text(st.sampled_from('ab~/.-_ 0é"\\'), min_size=1, max_size=8)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.text(max_size=5),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2), max_leaves=4
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The value, or a mark that `present` takes out: absent is not the same as null."""
    return st.one_of(st.just(_ABSENT), strategy)


_ABSENT = object()


def present(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not _ABSENT}


@st.composite
def resources(draw: st.DrawFn, *, valid: bool) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if draw(st.integers(0, 2)):
        name = draw(st.sampled_from(RESOURCES if not valid else RESOURCES[:1]))
        limits[name] = draw(st.sampled_from(ONE_TO_FOUR if valid else ONE_TO_FOUR + ODD_QUANTITIES))
    if not valid and draw(st.booleans()):
        limits[draw(st.sampled_from(OTHER_RESOURCES))] = draw(st.sampled_from(["1", "100m", "0"]))
    if valid and draw(st.booleans()):
        limits["cpu"] = "1"
    made: dict[str, Any] = {"limits": limits}
    if draw(st.booleans()):
        made["requests"] = dict(limits)
    if not valid:
        made = present({key: draw(maybe(st.just(value))) for key, value in made.items()})
        if draw(st.integers(0, 4)) == 0:
            made["requests"] = draw(maybe(st.sampled_from([None, {}, {"nvidia.com/gpu": "1"}])))
            made = present(made)
    return made


VARIABLES = [
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
    {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute"},
    {"name": "AMD_VISIBLE_DEVICES", "value": "$(X)"},
    {"name": "CUDA_VERSION", "value": "12.4"},
    {"name": "X", "value": "all"},
    {"name": "Y"},
]
PATH_PARTS = [
    *["", ".", "/", "/", "dev", "shm", "nvidia0", "proc", "sys", "var", "run", "lib", "kubelet", "plugins", "etc"],
    *["kubernetes", "manifests", "cdi", "containerd", "containerd.sock", "docker.sock", "log", "data", "devs", "\n"],
]
HOST_PATHS = st.one_of(
    st.lists(st.sampled_from(PATH_PARTS), min_size=1, max_size=5).map("/".join),
    st.lists(st.sampled_from(PATH_PARTS), min_size=1, max_size=5).map(lambda parts: "/" + "/".join(parts)),
    st.sampled_from(["/", "//dev", "/dev/./shm/x", "/dev/shm", "/data/../dev", "/data/..x", "dev", "/var/run/nri/"]),
)
ANNOTATIONS = {
    "cdi.k8s.io/x": "nvidia.com/gpu=gpu0",
    "cdi.k8s.io/nic": "vendor.example/nic=nic0",
    "nvidia.cdi.k8s.io/container.c0": "management.nvidia.com/gpu=all",
    "devices.gke.io/container.c0": "- path: /dev/nvidia0\n",
    "gpu-fraction": "0.5",
}


@st.composite
def around(draw: st.DrawFn, *, valid: bool) -> dict[str, Any]:
    """What a container says beside its resources by which it might reach devices. Seldom anything."""
    made: dict[str, Any] = {}
    if draw(st.integers(0, 7)) == 0:
        made["securityContext"] = present({"privileged": draw(maybe(st.booleans()))})
    if draw(st.integers(0, 2)) == 0:
        made["env"] = draw(st.lists(st.sampled_from(VARIABLES), max_size=3))
    if draw(st.integers(0, 2)) == 0:
        made["envFrom"] = draw(st.lists(st.just({"prefix": "NVIDIA_", "configMapRef": {"name": "m"}}), max_size=2))
    if draw(st.integers(0, 7)) == 0:
        path = draw(st.sampled_from(["/data", "/var/run/nvidia-container-devices/all"]))
        made["volumeMounts"] = [{"name": "v0", "mountPath": path}]
    if not valid and draw(st.integers(0, 7)) == 0:
        made[draw(st.sampled_from(["securityContext", "env", "envFrom", "volumeMounts"]))] = draw(ANYTHING)
    return made


@st.composite
def volumes(draw: st.DrawFn) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"name": "v0", "emptyDir": {"medium": "Memory"}}]
    if draw(st.booleans()):
        source = {"path": draw(HOST_PATHS), "type": draw(maybe(st.sampled_from(["", "Directory", "CharDevice"])))}
        made.append({"name": "v1", "hostPath": present(source)})
    return made


@st.composite
def containers(draw: st.DrawFn, kind: str, entries: list[str], *, valid: bool) -> list[dict[str, Any]]:
    made = []
    for number in range(draw(st.integers(0 if kind == "i" else 1, 3))):
        container: dict[str, Any] = {"name": f"{kind}{number}", "image": "registry.example/a:1"}
        if draw(st.integers(0, 3)):
            container["resources"] = draw(resources(valid=valid))
            seen = draw(st.lists(st.sampled_from(entries), unique=True, max_size=2)) if entries else []
            if seen:
                container["resources"]["claims"] = [{"name": name} for name in seen]
        container.update(draw(around(valid=valid)))
        if kind == "i" and draw(st.booleans()):
            container["restartPolicy"] = "Always"
        if not valid and draw(st.integers(0, 3)) == 0:
            container[draw(KEYS)] = draw(ANYTHING)
        made.append(container)
    return made


@st.composite
def pods(draw: st.DrawFn, *, valid: bool = False) -> dict[str, Any]:
    """A Pod as a webhook may get it. `valid` ones pass core validation and name only claims that exist or will."""
    sources = ["<fern: train@2 x1>", "<fern: train@2 x2>", "<fern: train@1 x1>", "<reed: train@1 x1>", "nics"]
    entries = [
        {"name": name, "resourceClaimTemplateName": draw(st.sampled_from(sources))}
        for name in draw(st.lists(st.sampled_from(["gate-0", "gate-1", "mine", "nic"]), unique=True, max_size=2))
    ]
    names = [entry["name"] for entry in entries]
    spec: dict[str, Any] = {
        "initContainers": draw(maybe(containers("i", names, valid=valid))),
        "containers": draw(containers("c", names, valid=valid)),
        "resourceClaims": entries or _ABSENT,
        "tolerations": draw(
            maybe(
                st.lists(
                    st.sampled_from(
                        [
                            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
                            {"key": "nvidia.com/gpu", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
                            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"},
                            {"key": "other", "operator": "Exists"},
                            {"operator": "Exists"},
                        ]
                    ),
                    max_size=2,
                )
            )
        ),
        "nodeSelector": draw(maybe(st.dictionaries(st.sampled_from(NODE_LABELS), st.just("render"), max_size=2))),
        "nodeName": draw(maybe(st.sampled_from(["", "n0", "elsewhere"]))) if draw(st.integers(0, 5)) == 0 else _ABSENT,
        "affinity": draw(maybe(affinities())),
        "schedulingGates": draw(maybe(st.lists(st.sampled_from(GATES), unique_by=lambda gate: gate["name"]))),
        "ephemeralContainers": draw(maybe(st.lists(ephemeral_containers(), max_size=2))),
        "volumes": draw(maybe(volumes())),
        "runtimeClassName": draw(st.sampled_from([_ABSENT, _ABSENT, _ABSENT, "nvidia", "gvisor"])),
    }
    metadata: dict[str, Any] = {"name": draw(maybe(st.just("p")))}
    if metadata["name"] is _ABSENT:
        metadata["generateName"] = "p-"
    metadata["ownerReferences"] = draw(maybe(st.lists(st.sampled_from(OWNERS), max_size=2)))
    keys = st.sampled_from(["team.example/owner", "plain", "dra-gate.io/devices", "dra-gate.io/other"])
    texts = st.text(max_size=4) if not valid else st.sampled_from(["", "a", "1"])
    metadata["annotations"] = draw(maybe(st.dictionaries(keys if valid else keys | KEYS, texts, max_size=3)))
    if metadata["annotations"] is not _ABSENT and draw(st.integers(0, 3)) == 0:
        key = draw(st.sampled_from(list(ANNOTATIONS)))
        metadata["annotations"][key] = ANNOTATIONS[key]
    if not valid:
        if draw(st.integers(0, 5)) == 0:
            metadata["annotations"] = None
        if draw(st.integers(0, 5)) == 0:
            spec["affinity"] = draw(st.sampled_from([None, {}, {"nodeAffinity": None}]))
        if draw(st.booleans()):
            spec[draw(KEYS)] = draw(ANYTHING)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": present(metadata), "spec": present(spec)}
    resolved: dict[str, Any] = setting.resolved(pod)
    return resolved


GATES = [{"name": name} for name in ("dra-gate.io/grant", "dra-gate.io/other", "kueue.x-k8s.io/admission")]


@st.composite
def ephemeral_containers(draw: st.DrawFn) -> dict[str, Any]:
    variables = st.sampled_from(
        [{"name": "A"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "NVIDIA_DRIVER_CAPABILITIES"}]
    )
    return present(
        {
            "name": draw(st.sampled_from(["debugger", "other"])),
            "securityContext": draw(maybe(st.sampled_from([{}, {"privileged": True}, {"privileged": False}]))),
            "env": draw(maybe(st.lists(variables, min_size=1, max_size=2))),
            "envFrom": draw(maybe(st.just([{"configMapRef": {"name": "m"}}]))),
            "volumeMounts": draw(maybe(st.just([{"name": "v", "mountPath": "/v"}]))),
        }
    )


@st.composite
def node_terms(draw: st.DrawFn) -> dict[str, Any]:
    expressions = st.fixed_dictionaries(
        {"key": st.sampled_from(NODE_LABELS), "operator": st.sampled_from(["Exists", "DoesNotExist"])}
    )
    names = st.just({"key": "metadata.name", "operator": "In", "values": ["n0"]})
    term = {
        "matchExpressions": draw(maybe(st.lists(expressions, max_size=2))),
        "matchFields": draw(maybe(st.lists(names, max_size=2))),
    }
    return present(term)


@st.composite
def affinities(draw: st.DrawFn) -> dict[str, Any]:
    term = {"weight": 7, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    node = {
        "preferredDuringSchedulingIgnoredDuringExecution": draw(maybe(st.just([term]))),
        "requiredDuringSchedulingIgnoredDuringExecution": draw(
            maybe(st.fixed_dictionaries({"nodeSelectorTerms": st.lists(node_terms(), min_size=1, max_size=2)}))
        ),
    }
    return present({"nodeAffinity": draw(maybe(st.just(present(node)))), "podAntiAffinity": draw(maybe(st.just({})))})
