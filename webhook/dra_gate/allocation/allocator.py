"""The allocator of kube-scheduler restated for one snapshot.

What it restates is `structured/internal/incubating` of k8s.io/dynamic-resource-allocation v0.37.2, which the scheduler
takes with the default feature gates of 1.36 and 1.37, and what the plugin DynamicResources does before it asks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dra_gate.allocation.asked import Claim, claims_of
from dra_gate.allocation.examine import examined
from dra_gate.allocation.held import Held
from dra_gate.allocation.outcome import Examination, Outcome
from dra_gate.allocation.pools import Pool, Slices, View
from dra_gate.allocation.problems import CannotEvaluate, Failed
from dra_gate.allocation.results import results_of, score_of
from dra_gate.allocation.search import MAX_STEPS, Search
from dra_gate.allocation.snapshot import Snapshot
from dra_gate.allocation.verdicts import Verdicts
from dra_gate.allocation.versions import Rules, refuse_what_changed, rules_of
from dra_gate.kube.raw import Object, at, text


class Allocator:
    """What kube-scheduler would allocate, for one snapshot.

    Claims whose UID is in `ignore` count as not allocated: the state as it was before. What is read of the snapshot is
    kept, so that one allocator should serve all nodes; it is not for several threads at once.
    """

    def __init__(self, snapshot: Snapshot, *, ignore: Collection[str] = ()) -> None:
        self._problem = ""
        try:
            self._rules: Rules = rules_of(snapshot.version, snapshot.gates)
            self._held = Held(snapshot.claims, ignore)
        except CannotEvaluate as error:
            self._problem = str(error)
            return
        self._nodes = {text(at(node, "metadata", "name")): node for node in snapshot.nodes}
        self._classes = {text(at(one, "metadata", "name")): one for one in snapshot.classes}
        self._slices = Slices(snapshot.slices, snapshot.taint_rules if self._rules.taint_rules else ())
        self._verdicts = Verdicts()
        self._views: dict[str, tuple[View, list[Pool]]] = {}
        self._outcomes: dict[str, Outcome] = {}  # of what was asked last
        self._asked: tuple[tuple[Object, ...], tuple[Claim, ...]] | None = None

    def hold(self, claim: Object) -> None:
        """From now on, what `claim` was given is held too."""
        if not self._problem:
            self._held.add(claim)
            self._outcomes = {}

    def allocate(self, node: str, claims: Sequence[Object]) -> Outcome:
        """The answer for the node of that name to all of `claims` together, as if none of them were allocated."""
        try:
            view, _ = self._view(node)
            asked = self._read(claims)
            if node not in self._outcomes:
                self._outcomes[node] = self._outcome(view, asked)
            return self._outcomes[node]
        except Failed as error:
            return Outcome("failed", str(error))
        except CannotEvaluate as error:
            return Outcome("cannot-evaluate", str(error))

    def examine(self, node: str, claims: Sequence[Object]) -> Examination:
        """The same, and why."""
        outcome = self.allocate(node, claims)
        try:
            view, passed = self._view(node)
        except CannotEvaluate:
            return Examination(outcome, (), ())
        try:
            asked = self._read(claims)
        except (Failed, CannotEvaluate):
            asked = ()
        return examined(outcome, view, passed, asked, self._held, self._search)

    def _view(self, name: str) -> tuple[View, list[Pool]]:
        if self._problem:
            raise CannotEvaluate(self._problem)
        found = self._views.get(name)
        if found is None:
            node = self._nodes.get(name)
            if node is None:
                raise CannotEvaluate(f"node {name} is not in the snapshot")
            pools, passed = self._slices.pools(node)
            found = self._views[name] = (View.of(node, pools), passed)
        return found

    def _read(self, raw: Sequence[Object]) -> tuple[Claim, ...]:
        """The claims, read once for all nodes."""
        kept = self._asked
        if kept is not None and len(kept[0]) == len(raw) and all(map(_is, kept[0], raw)):
            return kept[1]
        claims = claims_of(raw, self._classes)
        self._asked = (tuple(raw), claims)
        self._outcomes = {}
        return claims

    def _search(self, view: View, claims: Sequence[Claim], steps: int = MAX_STEPS) -> Search:
        return Search(view, claims, self._held, self._verdicts, self._rules, steps)

    def _outcome(self, view: View, claims: tuple[Claim, ...]) -> Outcome:
        if not self._rules.new:
            refuse_what_changed(view, claims, self._slices)
        search = self._search(view, claims)
        search.prepare()
        if search.run():
            return Outcome("allocated", "", results_of(view.node, claims, search.picked), score_of(search.picked))
        if any(pool.state == "invalid" for pool in view.pools):
            return Outcome("invalid-pools", "invalid resource pools were encountered")
        return Outcome("impossible")


def _is(one: Object, two: Object) -> bool:
    return one is two
