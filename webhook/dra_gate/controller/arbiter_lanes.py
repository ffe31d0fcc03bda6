"""Which namespaces are back under device plugins, and what becomes of the Pods under DRA in them. No I/O.

With the lock of the view that it belongs to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra_gate.admission import stamp as stamps
from dra_gate.admission.held import Key, Waiting
from dra_gate.admission.plugin_pod import refused_in
from dra_gate.kube.times import milliseconds
from dra_gate.migration.returning import Fate, Phase, PodState, fate, phase_of
from dra_gate.policy.model import ON_ROLLBACK
from dra_gate.policy.switch import NO_SWITCH, PLUGIN, Switch

if TYPE_CHECKING:
    from dra_gate.controller.arbiter_view import ClaimSeen, View

_NO_GRANT = ("recreate", "withdraw", "keep")  # steps of a Pod that gets nothing under DRA any more


class Lanes:
    """The lanes of gated namespaces; what they make of Pods of `view`, which is told to look at them again."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._labels: dict[str, str] = {}  # gated namespace -> what its lane label says
        self._switch = NO_SWITCH
        self._back: set[str] = set()  # gated namespaces in lane device-plugin
        self._refused: dict[str, str] = {}  # those of them where each new Pod with devices is refused, and why
        self._marked: set[Key] = set()  # Pods that say that they are to be drained
        self._leaving: set[str] = set()  # UIDs of Pods that somebody is about to evict: they are granted nothing
        self._spared: dict[str, str] = {}  # UIDs of Pods that are not evicted, and why
        self._no_eviction = ""  # why nobody is

    # -- what is told -------------------------------------------------------------------------------------------------

    def set_label(self, namespace: str, label: str | None) -> bool:
        """What the namespace's lane label says; None: it has none. True where it is gated now and was not, or back."""
        gated = namespace in self._labels
        if label is None:
            self._labels.pop(namespace, None)
        else:
            self._labels[namespace] = label
        self.judge(namespace)
        return gated != (label is not None)

    def switch(self, switch: Switch) -> None:
        """The switch between lanes says this now."""
        if switch != self._switch:
            self._switch = switch
            self.judge()

    def judge(self, *namespaces: str) -> None:
        """See which namespaces are back under device plugins; all of them unless some are named."""
        changed = set[str]()
        for name in namespaces or {*self._labels, *self._back}:
            label = self._labels.get(name)
            back = label is not None and self._switch.lane_of(self._owner(name), label) == PLUGIN
            refused = refused_in(name, self._view.sets[0]) if back and self._view.sets else ""
            if (back, refused) != (name in self._back, self._refused.pop(name, "")):
                (self._back.add if back else self._back.discard)(name)
                changed.add(name)
            if refused:
                self._refused[name] = refused
        if changed:
            self._view.dirty.update(key for key in self._view.pods if key[0] in changed)

    def note(self, pod: Waiting) -> None:
        """The Pod was made or changed."""
        (self._marked.add if pod.draining else self._marked.discard)(pod.key)

    def forget(self, pod: Waiting) -> None:
        """It is gone."""
        self._marked.discard(pod.key)
        self._leaving.discard(pod.uid)
        self._spared.pop(pod.uid, None)

    def evict_nobody(self, why: str) -> None:
        """No Pod is evicted, since `why`; empty: those are whose policy says so."""
        if why != self._no_eviction:
            self._no_eviction = why
            self._view.dirty.update(key for key in self._view.pods if key[0] in self._back)

    def spare(self, uid: str, why: str) -> None:
        """The Pod is not evicted before it has devices, since `why`; empty: it may be."""
        if why != self._spared.pop(uid, "") and uid in self._view.by_uid:
            self._view.dirty.add(self._view.by_uid[uid])
        if why and uid in self._view.by_uid:
            self._spared[uid] = why

    def leave(self, uid: str, *, leaving: bool) -> None:
        """Somebody is about to evict the Pod, or has not done so after all."""
        (self._leaving.add if leaving else self._leaving.discard)(uid)
        if uid in self._view.by_uid:
            self._view.dirty.add(self._view.by_uid[uid])

    # -- what is asked ------------------------------------------------------------------------------------------------

    def is_gated(self, namespace: str) -> bool:
        """It has a lane label."""
        return namespace in self._labels

    def state(self, pod: Waiting) -> PodState:
        """The Pod as `migration.returning` judges it."""
        phase = self.phase(pod)
        return PodState(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            tenant=self._view.payer(pod.namespace, pod.tenant) or "",
            policy=pod.policy,
            lane=pod.lane,
            phase=phase,
            owner=pod.maker,
            allocated=any(claim.model is not None for claim in self._claims_of(pod)),
            harm=self._no_eviction or ("" if phase == "bound" else self._why_spared(pod)),
        )

    def phase(self, pod: Waiting) -> Phase:
        """How far the Pod has come."""
        return phase_of(
            ended=pod.finished,
            leaving=pod.deleting,
            bound=pod.bound,
            gated=stamps.GRANT_GATE in pod.gates,
            late=bool(pod.late),
            late_there=any(claim.late for claim in self._claims_of(pod)),
        )

    def fate(self, pod: Waiting, now: int = 0) -> Fate | None:
        """What becomes of the Pod at `now` (Unix seconds), if its namespace went back; else None."""
        if pod.namespace not in self._back:
            return None
        return fate(self.state(pod), self.on_rollback(pod), self.drain_by(pod.namespace), now)

    def drain_by(self, namespace: str) -> int | None:
        """When Pods of the namespace that hold devices under DRA are drained, in Unix seconds; None: never, also where
        that can't be read."""
        written = self._switch.drain_of(self._owner(namespace)) if namespace in self._back else ""
        return milliseconds(written) // 1000 or None

    def on_rollback(self, pod: Waiting) -> str:
        """What its policy says, as the set of its stamp has it; the default where no set that counts has it."""
        known = sorted(self._view.sets, key=lambda one: one.digest != pod.policy_set)
        found = (one.policies.get(pod.ref) for one in known) if pod.ref is not None else ()
        return next((policy.on_rollback for policy in found if policy is not None), ON_ROLLBACK[0])

    def gone_back(self, now: int) -> list[tuple[Waiting, Fate]]:
        """What becomes of each Pod under DRA in namespaces that went back, except of those that are going anyway."""
        if not self._back:
            return []
        pods = [pod for key, pod in self._view.pods.items() if key[0] in self._back]
        fates = ((pod, self.fate(pod, now)) for pod in pods if not pod.finished and not pod.deleting)
        return [(pod, found) for pod, found in fates if found is not None and found.step != "nothing"]

    def marked(self) -> list[Waiting]:
        """Pods that say that they are to be drained."""
        return [self._view.pods[key] for key in self._marked]

    def refusal(self, pod: Waiting) -> str:
        """Why the Pod gets no grant; empty where its lane is no reason."""
        found = self.fate(pod)
        if found is not None and found.step in _NO_GRANT:
            return found.why.removeprefix("it ")
        return "is about to be evicted" if pod.uid in self._leaving else ""

    def withdraws(self, pod: Waiting) -> bool:
        """A grant of the Pod is to be taken back: its lane went back, and nothing that it may get was allocated."""
        found = self.fate(pod)
        return found is not None and found.pod.phase in ("held", "granted") and found.step in _NO_GRANT

    def _why_spared(self, pod: Waiting) -> str:
        """Why the Pod is not evicted before it has devices: what would be lost by it."""
        return self._refused.get(pod.namespace, "") or self._spared.get(pod.uid, "")

    def _claims_of(self, pod: Waiting) -> list[ClaimSeen]:
        return [self._view.claims[key] for key in self._view.of_pod.get(pod.uid, ())]

    def _owner(self, namespace: str) -> str:
        return self._view.sets[0].tenant_by_namespace.get(namespace, "") if self._view.sets else ""
