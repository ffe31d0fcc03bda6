"""Reading an AdmissionReview: all of it that anybody looks at, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from admission import pods
from dra_gate.admission.request import BadRequest, parse, read

MANAGED = [{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:containers": {}}}}]


def review(**request: Any) -> dict[str, Any]:
    asked = {"uid": "u-1", "operation": "CREATE", "resource": {"group": "", "resource": "pods"}, **request}
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked, "unknown": 1}


OBJECTS = st.one_of(
    pods.pods(),
    pods.pods(valid=True),
    pods.ANYTHING,
    st.fixed_dictionaries({"metadata": pods.ANYTHING, "spec": pods.ANYTHING}),
)


@hypothesis.settings(max_examples=200, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(obj=OBJECTS, old=OBJECTS, more=st.dictionaries(pods.KEYS, pods.ANYTHING))
def test_all_of_an_object_is_read(obj: Any, old: Any, more: Any) -> None:
    whole = review(object=obj, oldObject=old, userInfo={"username": "ada", "groups": ["g"]}, **more)
    assert parse(json.dumps(whole).encode()) == read(whole)


def test_but_who_manages_which_field_is_not() -> None:
    one = {"metadata": {"name": "p", "labels": {"managedFields": "x"}}, "spec": {"managedFields": [1]}}
    managed = {**one, "metadata": {**one["metadata"], "managedFields": MANAGED}}
    request = parse(json.dumps(review(object=managed, oldObject=managed)).encode())
    assert request.object == request.old_object == one


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"kind":1}', b'{"request":[]}', json.dumps(review(uid=7)).encode(), b"[" * 100_000],
)
def test_what_is_no_review_is_said(body: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(body)


def test_what_is_cut_off_inside_what_nobody_reads_is_no_review() -> None:
    body = json.dumps(review(object={"metadata": {"managedFields": MANAGED}, "spec": {}})).encode()
    for end in range(len(body)):
        with pytest.raises(BadRequest):
            parse(body[:end])
