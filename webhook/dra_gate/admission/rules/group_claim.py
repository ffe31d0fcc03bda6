"""No PodGroup has claims of its own."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.rule import Context, Rule
from dra_gate.admission.signs import CLAIMS
from dra_gate.admission.verdict import Finding
from dra_gate.kube import pod as pods
from dra_gate.kube.raw import text

GROUP = "scheduling.k8s.io"
KIND = "podgroups"
VERSIONS = ("v1alpha2", "v1alpha3", "v1beta1")  # with claims, in Kubernetes 1.36 and 1.37; where they are served at all


def _check(context: Context) -> Iterator[Finding]:
    for index, entry in enumerate(pods.claim_entries(context.object)):
        yield RULE.finding(
            f"spec.resourceClaims[{index}]",
            f"claim {text(entry.get('name'))} would be the group's, and all of its Pods that name it would share it",
        )


RULE = Rule(
    id="group-claim",
    title="Claims belong to Pods",
    protects="one Pod's devices from another: a group's claim (KEP-5729) is shared by all Pods of the group, and "
    "outlives them",
    code="FOREIGN_CLAIM",
    fields=("spec.resourceClaims",),
    remedy="Leave resourceClaims out of the PodGroup and ask for devices in the Pods",
    on=((GROUP, KIND, "CREATE"),),
    check=_check,
    signs=(CLAIMS,),
)
