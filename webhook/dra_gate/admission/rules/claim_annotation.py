"""The annotations by which the control plane tells its own claims are the control plane's."""

from __future__ import annotations

from collections.abc import Iterator

from dra_gate.admission.rules.handmade_claim import by_the_cluster
from dra_gate.admission.rules.rule import CLAIM_CREATE, Context, Rule
from dra_gate.admission.signs import IS_CLAIM
from dra_gate.admission.verdict import Finding
from dra_gate.kube.raw import at, mapping

# resource.k8s.io/v1, ExtendedResourceClaimAnnotation and PodResourceClaimAnnotation: on claims that the scheduler makes
# for extended resources (KEP-5004), and that the claim controller makes from templates.
_ANNOTATIONS = ("resource.kubernetes.io/extended-resource-claim", "resource.kubernetes.io/pod-claim-name")


def _check(context: Context) -> Iterator[Finding]:
    if by_the_cluster(context):
        return
    # A template's own annotations mean nothing; those inside it go on the claims that are made from it.
    inside = ("spec",) if context.request.resource == "resourceclaimtemplates" else ()
    annotations = mapping(at(context.object, *inside, "metadata", "annotations"))
    path = ".".join((*inside, "metadata", "annotations"))
    for key in _ANNOTATIONS:
        if key in annotations:
            yield RULE.finding(f"{path}[{key}]", "only the scheduler and the claim controller write it")


RULE = Rule(
    id="claim-annotation",
    title="The control plane's annotations on claims are its own",
    protects="what is counted: ResourceQuota can be dodged by a claim that seems to be the scheduler's "
    "(kubernetes/kubernetes#135404), and a claim that seems to be made for a Pod replaces the one from its template",
    code="FORGED_ANNOTATION",
    fields=("metadata.annotations", "spec.metadata.annotations"),
    remedy="Leave it out",
    on=CLAIM_CREATE,
    check=_check,
    signs=(IS_CLAIM,),
)
