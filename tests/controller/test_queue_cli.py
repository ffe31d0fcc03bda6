"""`dra-gate queue` from a saved state and from the arbiter's log: the same account that the controller would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from allocation import parts
from allocation.parts import gpu, node, resource_slice
from controller.held_pods import held_pod
from dra_gate.allocation.state import State, dumps, loads, state_of
from dra_gate.cli.main import root
from dra_gate.cli.queue import _held_back
from dra_gate.controller.standing import standing
from dra_gate.fairness.arbiter import Arbiter
from dra_gate.fairness.events import Capacity, Granted, Kind, Settled, TenantRules, Used
from dra_gate.fairness.ledger import Grant, GrantedClaim, KeptBack, LedgerSpec, Tag, written_spec
from dra_gate.fairness.log import Recorder
from dra_gate.policy.compile import compile_template
from dra_gate.policy.load import load_documents
from dra_gate.policy.model import PolicyRef
from fairness import scene

POLICIES = (
    parts.POLICIES.partition("apiVersion: policy.dra-gate.io/v1alpha1\nkind: Tenant")[0]
    + """
apiVersion: policy.dra-gate.io/v1alpha1
kind: DevicePolicy
metadata: {name: train, version: 1}
spec: {serves: [nvidia.com/gpu], candidates: [h100]}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {name: research}
spec: {namespaces: [research], policy: train@1, weight: 1, quota: {devices: 8}}
---
apiVersion: policy.dra-gate.io/v1alpha1
kind: Tenant
metadata: {name: lilac}
spec: {namespaces: [lilac], policy: train@1, weight: 1}
"""
)
SET = load_documents({"policies.yaml": POLICIES.encode()})
AT = 1_796_036_400_000  # 2026-11-30T11:00:00Z


def held(name: str, *counts: int, tenant: str = "research", **more: Any) -> dict[str, Any]:
    """A Pod as the API server shows it, which waits since ten."""
    pod = held_pod(name, SET, tenant, *counts, **more)
    created = "2026-11-30T10:00:00Z" if name != "thief" else "2026-11-30T10:01:00Z"
    pod["metadata"] |= {"namespace": tenant, "uid": f"uid-{name}", "creationTimestamp": created}
    return {**pod, "kind": "Pod", "status": {"phase": "Pending"}}


def using(name: str, device: str) -> list[Any]:
    """A running Pod of lilac and its claim."""
    made = compile_template(SET.tenants["lilac"], SET.policies[PolicyRef("train", 1)], SET.models, 1)
    entries = {"gate-0": {"resourceClaimTemplateName": made.name}}
    given = [("gpu/h100", "n1", device)]
    return [
        parts.pod(name, namespace="lilac", entries=entries, on="n1"),
        parts.claim(f"{name}-gate-0", made, namespace="lilac", owner=name, given=given),
    ]


def saved(*objects: Any) -> State:
    """Four H100: lilac has three, research was granted the fourth."""
    grant = Grant(
        uid="uid-granted", namespace="research", name="granted", generation=3, at=AT - 1000, queued=AT - 60_000,
        policy="train@1", policy_set=SET.digest, model="h100", candidates=("h100",),
        claims=(GrantedClaim("gate-0", "dra-gate-late-x", 1, "d"),),
    )  # fmt: skip
    ledger = LedgerSpec(generation=3, grants=(grant,), tags={"h100": Tag(0, 720_720_000)})
    return state_of(
        [
            parts.device_class(),
            node("n1"),
            resource_slice("n1", *(gpu(f"g{number}") for number in range(4))),
            *(one for number in range(3) for one in using(f"l{number}", f"g{number}")),
            {"kind": "TenantLedger", "metadata": {"name": "research"}, "spec": written_spec(ledger)},
            *objects,
        ],
        version="v1.37.2",
        policies={SET.digest: {"policies.yaml": POLICIES}},
        active=SET.digest,
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("queue") / "state.json"
    waits = held("waits", 1, 1, uid="r1")
    found.write_bytes(dumps(saved(held("granted"), waits, held("thief", 1, 1, uid="r1"))))
    return found


def run(*args: object) -> Result:
    return CliRunner().invoke(root, ["queue", *map(str, args)])


def test_ten_seconds_of_reading(file: Path) -> None:
    done = run("--snapshot", file)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1 Pod waits for 2 devices, the first for ")
    table = [line.split() for line in lines[2:4]]
    assert table[0] == ["model", "healthy", "free", "granted", "asked", "for", "oldest", "borrowed"]
    assert table[1][:5] == ["h100", "4", "1", "1", "2"]
    assert lines[3].endswith("lilac 1 from research (1 unused, 2 wanted)")
    assert "Tenant research (weight 1) holds 1 of 8 devices; 1 Pod waits" in lines
    assert "  h100 1 (share 2, 1 not yet allocated)" in lines
    assert any(line.startswith("    1. research/waits  2 of h100, waits ") for line in lines)
    assert "       NoDevices: h100: it asks for 2, 1 are free and 1 of them granted" in lines
    assert "  h100 3 (share 2, 1 borrowed)" in lines
    assert "Pod research/thief is held and can never be granted: NameTaken: another Pod was created" in done.stdout
    assert "note:" not in done.stdout


def test_one_tenant_alone_and_as_it_may_be_told(file: Path) -> None:
    done = run("research", "--snapshot", file)
    assert "Tenant lilac" not in done.stdout
    assert "no estimate: 0 devices ahead of it in the queue of h100 and 2 its own" in done.stdout
    done = run("--as-tenant", "research", "--snapshot", file, "-o", "json")
    told = json.loads(done.stdout)
    assert "lilac" not in done.stdout
    assert told["models"][0]["borrowers"] == [{"tenant": "other tenants", "devices": 1}]
    assert [one["name"] for one in told["tenants"]] == ["research"]
    for args in (("nobody",), ("lilac", "--as-tenant", "research")):
        done = run(*args, "--snapshot", file)
        assert (done.exit_code, done.stdout) == (1, "")


def test_what_could_go_is_said() -> None:
    """A held Pod that a pass would grant: the controller is away. The view is that of before."""
    found = standing(saved(held("granted"), held("second", tenant="lilac")), AT)
    assert (found.due, found.arbiter.account("research").devices) == (0, 1)
    found = standing(saved(held("second")), AT)  # the Pod that the ledger names is gone
    assert (found.due, found.arbiter.account("research").devices) == (1, 0)
    assert [held.uid for (held,) in found.arbiter.requests()["research"]] == ["uid-second"]


def test_what_a_pod_that_was_deleted_by_force_held_is_told() -> None:
    kept = [KeptBack(f"uid-f{n}", "lilac", f"f{n}", "n1", AT + 60_000 * n, (), n, {"h100": n}) for n in (1, 2)]
    ledger = {"kind": "TenantLedger", "metadata": {"name": "lilac"}}
    found = standing(saved({**ledger, "spec": written_spec(LedgerSpec(held_back=tuple(kept)))}), AT)
    assert list(_held_back(found.held_back, AT, "")) == [
        "3 devices of lilac that nobody gets for 2 min yet: lilac/f1, lilac/f2 went without having ended (kubectl "
        "delete --force, or a node that is away) and may still run"
    ]
    assert not list(_held_back(found.held_back, AT, "research"))


def test_a_grant_whose_claims_are_allocated_is_open_no_more() -> None:
    """The ledger is written a little later; until then the claim counts, and counts once."""
    made = compile_template(SET.tenants["research"], SET.policies[PolicyRef("train", 1)], SET.models, 1)
    pod = held("granted")
    pod["spec"]["schedulingGates"] = []
    pod["spec"]["resourceClaims"][0]["resourceClaimName"] = "dra-gate-late-x"
    claim = parts.claim("dra-gate-late-x", made, owner="granted", given=[("gpu/h100", "n1", "g3")])
    claim["metadata"]["ownerReferences"][0]["uid"] = "uid-granted"
    found = standing(saved(pod, claim), AT)
    assert found.arbiter.open_grants("research") == ()
    assert found.arbiter.account("research").models == {"h100": 1}


def test_groups_whose_size_another_object_says_are_taken_for_whole() -> None:
    """Labels and annotations that say so come through a saved state."""
    group = {"batch.kubernetes.io/job-completion-index": "0"}
    owner = {"kind": "Job", "name": "j", "uid": "job-1", "controller": True}
    pods = [held(name, annotations=group, metadata={"ownerReferences": [owner]}) for name in ("i0", "i1")]
    written = [held(f"w{n}", annotations={"dra-gate.io/group": "w", "dra-gate.io/group-size": "3"}) for n in range(2)]
    found = standing(loads(dumps(saved(*pods, *written))), AT)
    assert found.unsized == 2
    assert [tuple(one.uid for one in members) for members in found.arbiter.requests()["research"]] == [
        ("uid-i0", "uid-i1"),
        ("uid-w0", "uid-w1"),
    ]
    why = found.arbiter.why("uid-w0", AT)
    assert why is not None
    assert why.reason == "GroupIncomplete"


def test_a_state_without_policies_is_told(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(dumps(state_of([node("n1")], version="v1.37.2", policies={}, active="")))
    done = run("--snapshot", file)
    assert done.exit_code == 2
    assert "no policy set is active" in done.stderr


def test_the_log_tells_estimates(tmp_path: Path) -> None:
    lines: list[bytes] = []
    recorder = Recorder(Arbiter(), lines.append)
    recorder.state()
    recorder.take(scene.config({"t": TenantRules(wants=("h100",))}, {"p@1": scene.policy("h100")}, "h100"))
    recorder.take(scene.capacity(h100=[2]))
    for number in range(4):
        recorder.take(scene.pod(f"u{number}", "t", at=1_800_000, pod=f"n/u{number}"))
    assert len([one for one in recorder.decide(1_800_000) if isinstance(one, Granted)]) == 2
    for uid, used in (("u0", 1), ("u1", 2)):
        recorder.take(Settled(uid=uid, model="h100"))
        recorder.take(Used(tenant="t", devices=used, models={"h100": used}))
    recorder.take(Used(tenant="t", devices=1, models={"h100": 1}))
    recorder.take(Capacity(kinds=(Kind("h100", 0, 2, ((1, 1),), ((2, 1),)),)))
    assert len(recorder.decide(3_600_000)) == 1
    log = tmp_path / "arbiter-1.jsonl"
    log.write_bytes(b"".join(line + b"\n" for line in lines))
    done = run("t", "--log", tmp_path)
    assert done.exit_code == 0, done.output
    ahead = "about 30 min: 0 devices ahead of it in the queue of h100 and 1 its own"
    assert f"{ahead}; 1 of h100 came free in the 30 min that are known" in done.stdout
    assert "note: as of 1970-01-01 01:00:00 UTC, the last decision in the log" in done.stdout
    log.write_bytes(lines[0] + b"\n")
    assert "nothing was decided" in run("--log", tmp_path).stderr
    assert run("--log", tmp_path, "--snapshot", log).exit_code == 2
