"""Random questions for the allocator: small clusters and the claims of one Pod, the same for the same seed.

Objects look as the API server stores them: defaults filled in, nothing that its validation refuses (list attributes
only while DRAListTypeAttributes is on). Devices are few and much alike, so that requests compete for them and the
search has to go back.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from allocation.oracle import Object, Question

NAMESPACE = "t"
API = "resource.k8s.io/v1"
GPU, AMD, NIC = "gpu.nvidia.com", "gpu.amd.com", "nic.example.com"
ROOT, NUMA = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
MODELS = (
    ("NVIDIA H100 80GB HBM3", "Hopper", "81559Mi"),
    ("NVIDIA A100-SXM4-80GB", "Ampere", "80Gi"),
    ("NVIDIA A100-SXM4-40GB", "Ampere", "40Gi"),
    ("NVIDIA L40S", "Ada Lovelace", "46068Mi"),
)
FRACTIONS = {"min": "500m", "max": "3", "step": "500m"}
KEYS = ("example.com/ecc", "example.com/hot", "maintenance")
VALUES = ("", "a", "b")


def question(seed: int) -> Question:
    """The question of a seed."""
    return _Generator(Random(seed)).question()


def more_claims(slices: list[Object], seed: int) -> list[Object]:
    """The claims of another Pod for a cluster that publishes `slices`, with little in them that is odd."""
    return _Generator(Random(seed), slices=slices, tidy=True).claims()


H100, A100, L40S = "NVIDIA H100", "NVIDIA A100", "NVIDIA L40S"


def product(name: str) -> str:
    """A model's selector, in the form of the policy compiler."""
    return f"has(device.attributes['{GPU}'].productName) && device.attributes['{GPU}'].productName.startsWith('{name}')"


FLOORS = (
    f"has(device.capacity['{GPU}'].memory) && device.capacity['{GPU}'].memory.compareTo(quantity('50Gi')) >= 0",
    f"has(device.capacity['{GPU}'].memory) && device.capacity['{GPU}'].memory.compareTo(quantity('40Gi')) >= 0",
    f"has(device.attributes['{GPU}'].driverVersion)"
    f" && device.attributes['{GPU}'].driverVersion.compareTo(semver('550.54.15')) >= 0",
    f"has(device.attributes['{GPU}'].architecture) && device.attributes['{GPU}'].architecture in ['Hopper', 'Ampere']",
    f"has(device.attributes['{GPU}'].type) && device.attributes['{GPU}'].type == 'gpu'"
    " && !device.allowMultipleAllocations",
)
FOREIGN = (
    f"device.driver == '{GPU}'",
    f"device.driver != '{NIC}'",
    f"device.attributes['{GPU}'].?index.orValue(0) >= 1",
    f"'index' in device.attributes['{GPU}']",
    f"has(device.attributes['{GPU}'].productName) && device.attributes['{GPU}'].productName.matches('^NVIDIA [AL]')",
    f"device.capacity['{GPU}'].?memory.orValue(quantity('0')).isGreaterThan(quantity('45Gi'))",
    f"has(device.attributes['{GPU}'].linked) && device.attributes['{GPU}'].linked",
    f"cel.bind(a, device.attributes['{GPU}'], has(a.index) && a.index % 2 == 0)",
    f"['{GPU}', '{AMD}'].exists(d, d == device.driver)",
    "has(device.attributes['resource.kubernetes.io'].numaNode)"
    " && device.attributes['resource.kubernetes.io'].numaNode == 0",
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
    "true",
)
UNGUARDED = (
    f"device.attributes['{GPU}'].index < 4",
    f"device.attributes['{GPU}'].productName.contains('A100')",
    f"device.capacity['{GPU}'].memory.compareTo(quantity('1Gi')) > 0",
    f"device.attributes['{GPU}'].driverVersion.isGreaterThan(semver('500.0.0'))",
    "device.attributes['resource.kubernetes.io'].pcieRoot != 'pci0'",
    f"device.attributes['{AMD}'].cu > 10",
    f"8 / device.attributes['{GPU}'].index > 1",
)
CLASSES: dict[str, tuple[str, ...]] = {
    "gpu.nvidia.com": (
        f"device.driver == '{GPU}' && has(device.attributes['{GPU}'].type) && device.attributes['{GPU}'].type == 'gpu'",
    ),
    "mig.nvidia.com": (f"device.driver == '{GPU}'", f"device.attributes['{GPU}'].?type.orValue('') == 'mig'"),
    "gpu.amd.com": (f"device.driver == '{AMD}'",),
    "nic.example.com": (f"device.driver == '{NIC}'",),
    "any": (),
    "unguarded": (f"device.attributes['{GPU}'].type == 'gpu'",),
}


@dataclass
class _Generator:
    rng: Random
    nodes: list[Object] = field(default_factory=list)
    slices: list[Object] = field(default_factory=list)
    large: bool = False  # there is a pool of more devices than a claim may hold
    tidy: bool = False  # holds little that is odd
    fractions: bool = False  # the gate DRAFractionalCapacityRange is on
    count: int = 0

    def question(self) -> Question:
        rng = self.rng
        self.tidy = rng.random() < 0.5
        self.fractions = self.maybe(0.08)
        self.nodes = [self._node(i) for i in range(rng.choice((1, 1, 2, 2, 2, 3, 4)))]
        for node in self.nodes:
            self._local_pools(node["metadata"]["name"])
        if self.maybe(0.2):
            self._shared_pool()
        classes = self._classes()
        claims = self.claims()
        holders = self._holders()
        rules = [self._rule(i) for i in range(rng.choice((1, 1, 2)))] if self.maybe(0.15) else []
        rng.shuffle(self.slices)
        objects = (*self.nodes, *self.slices, *classes, *rules, *claims, *holders)
        gates = {"DRAFractionalCapacityRange": True} if self.fractions else {}
        return Question(objects, tuple(f"{NAMESPACE}/{claim['metadata']['name']}" for claim in claims), gates)

    def claims(self) -> list[Object]:
        return [self._claim(f"c{i}") for i in range(self.rng.choice((1, 1, 1, 1, 1, 1, 2, 2, 3)))]

    def maybe(self, chance: float) -> bool:
        return self.rng.random() < chance

    def odd(self, chance: float) -> bool:
        """True with this chance on the average, seldom in a tidy cluster."""
        return self.rng.random() < (chance * 0.2 if self.tidy else chance * 1.8)

    # -- nodes and slices ---------------------------------------------------------------------------------------------

    def _node(self, number: int) -> Object:
        labels = {"kubernetes.io/hostname": f"n{number}", "zone": self.rng.choice("ab"), "rack": str(number)}
        if self.odd(0.1):
            labels["rack"] = self.rng.choice(("x", "", "99999999999999999999"))
        if self.maybe(0.3):
            labels["pool"] = "research"
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}", "labels": labels}}

    def _local_pools(self, node: str) -> None:
        rng = self.rng
        self.models = rng.sample(MODELS, rng.choice((1, 2, 2, 4)))
        target: Object = {"nodeName": node}
        if self.maybe(0.95):
            if self.maybe(0.15):
                self._partitioned_pool(node, target)
            else:
                self.large = self.odd(0.03)
                size = 40 if self.large else rng.choice((1, 2, 3, 4, 4, 6, 8, 8))
                self._pool(GPU, node, target, [self._gpu(i) for i in range(size)])
        if self.maybe(0.2):
            self._pool(GPU, f"a-{node}" if self.maybe(0.5) else "rack", target, self._some(self._gpu, (1, 2, 3)))
        if self.maybe(0.25):
            self._pool(AMD, node, target, self._some(self._amd, (1, 2, 4)))
        if self.maybe(0.25):
            self._pool(NIC, node, target, self._some(self._nic, (1, 2, 2)))

    def _some(self, make: Callable[[int], Object], sizes: tuple[int, ...]) -> list[Object]:
        return [make(i) for i in range(self.rng.choice(sizes))]

    def _shared_pool(self) -> None:
        """A pool that several nodes reach."""
        rng = self.rng
        devices = self._some(self._nic if self.maybe(0.5) else self._gpu, (2, 3, 4))
        for device in devices:
            if self.odd(0.1):
                device["bindsToNode"] = True
        driver = NIC if devices[0]["name"].startswith("nic") else GPU
        match rng.randrange(3):
            case 0:
                self._pool(driver, "fabric", {"allNodes": True}, devices)
            case 1:
                self._pool(driver, "fabric", {"nodeSelector": self._selector()}, devices)
            case _:
                for device in devices:
                    named = {"nodeName": rng.choice(self.nodes)["metadata"]["name"]}
                    device.update(rng.choice((named, {"allNodes": True}, {"nodeSelector": self._selector()})))
                self._pool(driver, "fabric", {"perDeviceNodeSelection": True}, devices)

    def _selector(self) -> Object:
        requirements: tuple[Object, ...] = (
            {"key": "zone", "operator": "In", "values": ["a"]},
            {"key": "zone", "operator": "NotIn", "values": ["b"]},
            {"key": "pool", "operator": "Exists"},
            {"key": "pool", "operator": "DoesNotExist"},
            {"key": "rack", "operator": "Gt", "values": ["0"]},
            {"key": "rack", "operator": "Lt", "values": ["2"]},
        )
        term: Object = {}
        if self.maybe(0.2):
            operator = self.rng.choice(("In", "NotIn"))
            term["matchFields"] = [{"key": "metadata.name", "operator": operator, "values": ["n0"]}]
        if not term or self.maybe(0.8):
            term["matchExpressions"] = self.rng.sample(requirements, self.rng.choice((1, 1, 2)))
        return {"nodeSelectorTerms": [term]}

    def _gpu(self, number: int) -> Object:
        rng = self.rng
        name, architecture, memory = rng.choice(self.models)
        attributes: Object = {
            "productName": {"string": name},
            "architecture": {"string": architecture},
            "driverVersion": {"version": rng.choice(("550.54.15", "535.0.0", "560.1.0"))},
            "type": {"string": "gpu"},
            "index": {"int": number},
            ROOT: {"string": f"pci{number // 2}"},
            NUMA: {"int": number // 4},
        }
        if self.maybe(0.3):
            attributes["linked"] = {"bool": self.maybe(0.5)}
        if self.odd(0.1):
            attributes.pop(rng.choice(tuple(attributes)))
        if self.odd(0.05):
            attributes[ROOT] = rng.choice(({"int": number // 2}, {"bool": True}, {"version": "1.0.0"}))
        if self.odd(0.01):
            attributes["uses"] = {"strings": ["train", "infer"]}  # stored while DRAListTypeAttributes was on
        if self.maybe(0.1):
            attributes = {(k if "/" in k else f"{GPU}/{k}"): v for k, v in attributes.items()} | {
                f"{GPU}/index": {"int": number}
            }
        device: Object = {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": memory}}}
        if self.odd(0.04):
            del device["capacity"]
        elif self.fractions or self.maybe(0.12):
            self._share(device, memory)
        if self.odd(0.15):
            device["taints"] = [self._taint() for _ in range(rng.choice((1, 1, 2)))]
        if self.odd(0.03):
            device["bindingConditions"] = ["example.com/attached"]
            device["bindingFailureConditions"] = ["example.com/failed"]
            if self.maybe(0.5):
                device["bindsToNode"] = True
        return device

    def _share(self, device: Object, memory: str) -> None:
        """Makes a device one that several claims may share."""
        rng = self.rng
        device["allowMultipleAllocations"] = True
        policy: tuple[Object, ...] = (
            {},
            {"requestPolicy": {"default": "10Gi"}},
            {"requestPolicy": {"default": "10Gi", "validValues": ["5Gi", "10Gi", "40Gi"]}},
            {"requestPolicy": {"default": "8Gi", "validRange": {"min": "4Gi", "max": "32Gi", "step": "4Gi"}}},
            {"requestPolicy": {"default": "8Gi", "validRange": {"min": "1Gi"}}},
        )
        device["capacity"]["memory"] = {"value": memory} | rng.choice(policy)
        if self.fractions or self.maybe(0.3):
            device["capacity"]["cores"] = {
                "value": "4",
                "requestPolicy": {"default": "1", "validRange": rng.choice(({"min": "1", "step": "1"}, FRACTIONS))},
            }

        if self.odd(0.1):
            del device["capacity"]  # shared without end

    def _amd(self, number: int) -> Object:
        attributes: Object = {
            "productName": {"string": "AMD Instinct MI300X"},
            "cu": {"int": 304},
            ROOT: {"string": f"pci{number // 2}"},
        }
        return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": "192Gi"}}}

    def _nic(self, number: int) -> Object:
        device: Object = {"name": f"nic-{number}", "attributes": {ROOT: {"string": f"pci{number}"}}}
        device["capacity"] = {"gbit": {"value": "400"}}
        if self.maybe(0.4):
            device["allowMultipleAllocations"] = True
            device["capacity"]["gbit"] = {
                "value": "400",
                "requestPolicy": {"default": "100", "validValues": ["50", "100", "200"]},
            }
        return device

    def _partitioned_pool(self, node: str, target: Object) -> None:
        """Whole devices beside parts of them, held apart by counters."""
        rng = self.rng
        sets, devices = [], []
        for number in range(rng.choice((1, 1, 2))):
            slots = rng.choice((2, 3, 4))
            sets.append(
                {
                    "name": f"gpu-{number}",
                    "counters": {"memory": {"value": "40Gi"}, "slots": {"value": str(slots)}},
                }
            )
            whole = self._gpu(number) | {"name": f"gpu-{number}"}
            whole["consumesCounters"] = [self._consumed(f"gpu-{number}", "40Gi", slots)]
            parts = []
            for part in range(rng.choice((2, 3, 4))):
                device = self._gpu(number) | {"name": f"gpu-{number}-mig-{part}"}
                kind = f"{GPU}/type" if f"{GPU}/index" in device["attributes"] else "type"  # never under both names
                device["attributes"] = device["attributes"] | {kind: {"string": "mig"}}
                if self.maybe(0.3) and "capacity" in device:
                    self._share(device, "40Gi")
                device["consumesCounters"] = [
                    self._consumed(f"gpu-{number}", rng.choice(("10Gi", "20Gi")), rng.choice((1, 1, 2)))
                ]
                parts.append(device)
            devices += [whole, *parts] if self.maybe(0.5) else [*parts, whole]
        if self.odd(0.05):
            devices[-1]["consumesCounters"][0]["counterSet"] = "gone"
        counters = [sets, sets[:1]] if self.odd(0.05) else [sets]  # one set in two slices makes the pool invalid
        self._pool(GPU, node, target, devices, counters)

    @staticmethod
    def _consumed(counter_set: str, memory: str, slots: int) -> Object:
        return {"counterSet": counter_set, "counters": {"memory": {"value": memory}, "slots": {"value": str(slots)}}}

    def _pool(
        self, driver: str, pool: str, target: Object, devices: list[Object], counters: Sequence[list[Object]] = ()
    ) -> None:
        """Publishes a pool, rightly most of the time."""
        rng = self.rng
        if self.maybe(0.2):
            rng.shuffle(devices)
        parts = [devices]
        if len(devices) > 1 and self.maybe(0.25):
            at = rng.randrange(1, len(devices))
            parts = [devices[:at], devices[at:]]
        contents: list[Object] = [{"devices": part} for part in parts]
        contents += [{"sharedCounters": sets} for sets in counters]
        if self.odd(0.04) and len(parts) > 1:
            parts[1][0] = parts[1][0] | {"name": parts[0][0]["name"]}  # one name in two slices
        generation, size = rng.choice((1, 1, 1, 3)), len(contents)
        if self.odd(0.05):
            size += rng.choice((1, -1)) if size > 1 else 1
        for content in contents:
            self._slice(driver, pool, generation, size, target, content)
        if self.odd(0.05):  # an older generation was left behind
            stale: Object = {"devices": [device | {"name": f"old-{device['name']}"} for device in devices[:2]]}
            self._slice(driver, pool, max(0, generation - 1), rng.choice((1, 2)), target, stale)
        if self.odd(0.05) and "perDeviceNodeSelection" not in target:  # a newer one is on another node
            other = {"nodeName": rng.choice(("n0", "n1", "n9"))}
            self._slice(driver, pool, generation + 1, 1, other, {"devices": [self._gpu(0) | {"name": "new-0"}]})

    def _slice(self, driver: str, pool: str, generation: int, size: int, target: Object, content: Object) -> None:
        self.count += 1
        name = f"{self.rng.choice('abc')}-{pool}-{self.count}"
        spec = {"driver": driver, "pool": {"name": pool, "generation": generation, "resourceSliceCount": size}}
        if "sharedCounters" in content and target == {"perDeviceNodeSelection": True}:
            target = {"allNodes": True}
        made = {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name}}
        self.slices.append(made | {"spec": spec | target | content})

    # -- taints, classes, what is taken -------------------------------------------------------------------------------

    def _taint(self) -> Object:
        rng = self.rng
        taint: Object = {
            "key": rng.choice(KEYS),
            "effect": rng.choice(("NoSchedule", "NoSchedule", "NoExecute", "None")),
        }
        value = rng.choice(VALUES)
        if value:
            taint["value"] = value
        return taint | {"timeAdded": "2026-11-30T08:00:00Z"}

    def _toleration(self) -> Object:
        rng = self.rng
        toleration: Object = {}
        if self.maybe(0.7):
            toleration |= {"key": rng.choice(KEYS), "operator": rng.choice(("Exists", "Equal"))}
            if toleration["operator"] == "Equal" and self.maybe(0.7):
                toleration["value"] = rng.choice(VALUES[1:])
        else:
            toleration["operator"] = "Exists"
        if self.maybe(0.7):
            toleration["effect"] = rng.choice(("NoSchedule", "NoSchedule", "NoExecute"))
            if toleration["effect"] == "NoExecute" and self.maybe(0.5):
                toleration["tolerationSeconds"] = 60
        return toleration

    def _rule(self, number: int) -> Object:
        rng = self.rng
        spec: Object = {"taint": self._taint()}
        if self.maybe(0.9):
            some = rng.choice(self.slices)["spec"] if self.slices else {"driver": GPU, "pool": {"name": "n0"}}
            selector = {"driver": some["driver"], "pool": some["pool"]["name"]}
            if some.get("devices"):
                selector["device"] = rng.choice(some["devices"])["name"]
            kept = rng.choice((("driver",), ("driver", "pool"), ("driver", "pool", "device"), ("pool",)))
            spec["deviceSelector"] = {key: value for key, value in selector.items() if key in kept}
        return {"apiVersion": API, "kind": "DeviceTaintRule", "metadata": {"name": f"rule-{number}"}, "spec": spec}

    def _classes(self) -> list[Object]:
        classes = []
        for name, selectors in CLASSES.items():
            if not self.odd(0.001):
                spec: Object = {"selectors": [{"cel": {"expression": text}} for text in selectors]} if selectors else {}
                classes.append({"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec})
        return classes

    def _holders(self) -> list[Object]:
        """Claims of others that hold some of the devices."""
        rng = self.rng
        published = [(one["spec"], device) for one in self.slices for device in one["spec"].get("devices", ())]
        share = rng.choice((0.0, 0.0, 0.0, 0.2, 0.2, 0.5))
        results = []
        for spec, device in published:
            if rng.random() >= share:
                continue
            result: Object = {
                "request": "gpu", "driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]
            }  # fmt: skip
            if self.maybe(0.08):
                result["adminAccess"] = True
            elif device.get("allowMultipleAllocations"):
                result["shareID"] = str(uuid.UUID(int=rng.getrandbits(128), version=4))
                consumed = {}
                for name, capacity in device.get("capacity", {}).items():
                    policy = capacity.get("requestPolicy", {})
                    consumed[name] = policy.get("default", capacity["value"])
                result |= {"consumedCapacity": consumed} if consumed else {}
            results.append(result)
        if results and self.odd(0.05):
            results.append(results[0] | {"device": "gone"})
        holders = []
        while results:
            size = rng.choice((1, 1, 2, 3))
            held, results = results[:size], results[size:]
            claim = self._claim_object(f"h{len(holders)}", {"requests": [self._exactly("gpu")]})
            holders.append(claim | {"status": {"allocation": {"devices": {"results": held}}}})
        return holders

    # -- the claims of the Pod ----------------------------------------------------------------------------------------

    def _claim_object(self, name: str, devices: Object) -> Object:
        self.count += 1
        metadata = {"namespace": NAMESPACE, "name": name, "uid": str(uuid.UUID(int=self.count))}
        return {"apiVersion": API, "kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}

    def _claim(self, name: str) -> Object:
        rng = self.rng
        names = ("gpu", "second", "third")[: rng.choice((1, 1, 1, 1, 1, 2, 2, 3))]
        requests = [self._exactly(one) if self.maybe(0.4) else self._prioritized(one) for one in names]
        devices: Object = {"requests": requests}
        constraints = [self._constraint(requests) for _ in range(rng.choice((1, 1, 2)))] if self.maybe(0.3) else []
        if constraints:
            devices["constraints"] = constraints
        return self._claim_object(name, devices)

    def _constraint(self, requests: list[Object]) -> Object:
        rng = self.rng
        attribute = rng.choice(
            (ROOT, ROOT, ROOT, NUMA, f"{GPU}/productName", f"{GPU}/driverVersion", f"{GPU}/linked", f"{GPU}/index")
        )
        kind = "matchAttribute" if self.maybe(0.75) else "distinctAttribute"
        if attribute.endswith("index"):
            kind = "distinctAttribute"
        constraint: Object = {kind: attribute}
        names = [one["name"] for one in requests]
        below = [f"{one['name']}/{sub['name']}" for one in requests for sub in one.get("firstAvailable", ())]
        if self.maybe(0.6):
            pool = names if not below or self.maybe(0.7) else below
            constraint["requests"] = rng.sample(pool, rng.randint(1, len(pool)))
        return constraint

    def _exactly(self, name: str) -> Object:
        body = self._body()
        if self.odd(0.05):
            body["adminAccess"] = True
        return {"name": name, "exactly": body}

    def _prioritized(self, name: str) -> Object:
        rng = self.rng
        subs: list[Object] = []
        if self.maybe(0.6):  # as our compiler writes it
            count = self._count()
            floors = rng.sample(FLOORS, rng.choice((0, 0, 0, 1, 2)))
            for sub, model in rng.sample((("h100", H100), ("a100", A100), ("l40s", L40S)), rng.choice((2, 3))):
                expressions = [product(model), *floors]
                subs.append(self._body("gpu.nvidia.com", expressions, count) | {"name": sub})
        else:
            subs = [self._body() | {"name": f"s{i}"} for i in range(rng.choice((1, 2, 2, 3, 4)))]
        return {"name": name, "firstAvailable": subs}

    def _count(self) -> int:
        rng = self.rng
        if self.odd(0.01) or (self.large and self.maybe(0.4)):
            return rng.choice((12, 17, 20, 33))
        return rng.choice((1, 1, 1, 1, 1, 2, 2, 3))

    def _body(self, class_name: str | None = None, expressions: list[str] | None = None, count: int = 0) -> Object:
        rng = self.rng
        if class_name is None:
            published = sorted({one["spec"]["driver"] for one in self.slices})
            parts = ("mig.nvidia.com",) if any("sharedCounters" in one["spec"] for one in self.slices) else ()
            class_name = rng.choice(("gpu.nvidia.com",) * 5 + ("any",) * 4 + (*published, *parts, *parts))
            if self.odd(0.01):
                class_name = rng.choice(("unguarded", "unguarded", "gone"))
        body: Object = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count or self._count()}
        if expressions is None and self.odd(0.08):
            body["allocationMode"] = "All"
            del body["count"]
        if expressions is None:
            expressions = [product(rng.choice((H100, A100, L40S)))] if self.maybe(0.3) else []
            expressions += rng.sample(FLOORS, rng.choice((0, 0, 0, 1, 2)))
            if self.maybe(0.2):
                expressions.append(rng.choice(FOREIGN))
            if self.odd(0.04):
                expressions.append(rng.choice(UNGUARDED))
        if expressions:
            body["selectors"] = [{"cel": {"expression": text}} for text in expressions]
        if self.odd(0.2):
            body["tolerations"] = [self._toleration() for _ in range(rng.choice((1, 1, 2)))]
        if self.fractions or self.odd(0.1):
            amounts: tuple[dict[str, Any], ...] = (
                {
                    "memory": rng.choice(("1Gi", "6Gi", "10Gi", "20Gi", "40Gi", "100Gi", "1500M"))
                    if not self.odd(0.05)
                    else "9E"
                },
                {"memory": "8Gi", "cores": rng.choice(("1", "2", "700m", "1500m", "2750m", "8"))},
                {"gbit": rng.choice(("40", "100", "150", "300"))},
            )
            of_gpus = amounts[1] if self.fractions else rng.choice((amounts[0], amounts[0], amounts[1]))
            fitting = amounts[2] if class_name == NIC else of_gpus
            body["capacity"] = {"requests": fitting if self.maybe(0.9) else rng.choice(amounts)}
        return body
