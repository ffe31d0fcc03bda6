"""`dra-gate webhooks`: what it prints is applicable as it is, and wrong calls are told before anything is printed."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from dra_gate.cli.certs import command as certs
from dra_gate.cli.webhooks import command


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    done = CliRunner().invoke(certs, ["--out", str(tmp_path / "certs"), "--ip", "127.0.0.1"])
    assert done.exit_code == 0, done.output
    return tmp_path / "certs" / "ca.crt"


def run(authority: Path, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["--ca-file", str(authority), *arguments])


def test_by_url(authority: Path) -> None:
    done = run(authority, "--url", "https://127.0.0.1:8443/")
    assert done.exit_code == 0, done.output
    assert "&id" not in done.stdout
    assert "*id" not in done.stdout
    mutating, validating = yaml.safe_load_all(done.stdout)
    assert (mutating["kind"], validating["kind"]) == ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    clients = [webhook["clientConfig"] for webhook in mutating["webhooks"] + validating["webhooks"]]
    assert [client["url"] for client in clients] == [
        "https://127.0.0.1:8443/mutate",
        *["https://127.0.0.1:8443/validate"] * len(validating["webhooks"]),
    ]
    for client in clients:
        assert base64.b64decode(client["caBundle"]) == authority.read_bytes()


def test_by_service_as_a_list_that_kubectl_takes(authority: Path) -> None:
    done = run(authority, "--service", "dra-gate/dra-gate-webhook", "-o", "json")
    made = json.loads(done.stdout)
    assert (made["apiVersion"], made["kind"]) == ("v1", "List")
    services = [webhook["clientConfig"]["service"] for item in made["items"] for webhook in item["webhooks"]]
    assert services[0] == {"namespace": "dra-gate", "name": "dra-gate-webhook", "port": 443, "path": "/mutate"}
    assert {service["path"] for service in services[1:]} == {"/validate"}
    other = json.loads(run(authority, "--service", "a/b:8443", "-o", "json").stdout)
    assert other["items"][0]["webhooks"][0]["clientConfig"]["service"]["port"] == 8443


def test_an_ipv6_address_keeps_its_brackets(authority: Path) -> None:
    assert "url: https://[::1]:8443/mutate\n" in run(authority, "--url", "https://[::1]:8443").stdout


def test_named_writers_are_exempt(authority: Path) -> None:
    done = run(authority, "--url", "https://a", "--writer", "system:serviceaccount:x:y")
    for configuration in yaml.safe_load_all(done.stdout):
        for webhook in configuration["webhooks"]:
            expressions = [condition["expression"] for condition in webhook["matchConditions"]]
            assert any("'system:serviceaccount:x:y'" in expression for expression in expressions)


def test_a_bundle_of_two_keeps_both_and_drops_what_is_no_certificate(authority: Path, tmp_path: Path) -> None:
    CliRunner().invoke(certs, ["--out", str(tmp_path / "next"), "--ip", "127.0.0.1"])
    both = tmp_path / "both.crt"
    both.write_bytes(b"# old\n" + authority.read_bytes() + b"# new\n" + (tmp_path / "next" / "ca.crt").read_bytes())
    made = json.loads(run(both, "--url", "https://a", "-o", "json").stdout)
    bundle = base64.b64decode(made["items"][0]["webhooks"][0]["clientConfig"]["caBundle"])
    assert bundle == authority.read_bytes() + (tmp_path / "next" / "ca.crt").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--url", "https://a", "--service", "b/c"],
        ["--url", "http://a:80"],
        ["--url", "a:8443"],
        ["--url", "https://"],
        ["--url", "https://user@a"],
        ["--url", "https://a/mutate"],
        ["--url", "https://a?x=y"],
        ["--url", "https://a:port"],
        ["--service", "name"],
        ["--service", "a/b/c"],
        ["--service", "a/b:0"],
        ["--service", "a/b:70000"],
        ["--service", "A/b"],
    ],
)
def test_wrong_targets_exit_2_and_print_nothing(authority: Path, arguments: list[str]) -> None:
    done = run(authority, *arguments)
    assert (done.exit_code, done.stdout) == (2, "")


@pytest.mark.parametrize("content", ["key", "text"])
def test_what_is_no_ca_file_exits_2(authority: Path, content: str) -> None:
    file = authority.with_name("ca.key")
    if content == "text":
        file.write_text("hello")
    done = run(file, "--url", "https://a")
    assert (done.exit_code, done.stdout) == (2, "")
    assert str(file) in done.stderr


def test_policies_that_do_not_load_print_no_configuration(authority: Path, tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "a.yaml").write_text("kind: Nonsense\n")
    done = run(authority, "--url", "https://a", "--policies", str(tmp_path / "policies"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "a.yaml:1" in done.stderr


def test_custom_kinds_of_the_settings_are_asked_about(authority: Path, tmp_path: Path) -> None:
    """Those that operators are told to write: the list in the page on troubleshooting."""
    page = Path(__file__).parents[2] / "docs" / "operations" / "troubleshooting.md"
    block = page.read_text().partition("    workloads:\n")[2].partition("\n\n")[0]
    kinds = yaml.safe_load(block)
    settings = {
        "apiVersion": "policy.dra-gate.io/v1alpha1",
        "kind": "ClusterSettings",
        "spec": {"workloads": kinds},
    }
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "settings.yaml").write_text(yaml.safe_dump(settings))
    world = Path(__file__).parents[1] / "admission" / "world" / "policies.yaml"
    (tmp_path / "policies" / "world.yaml").write_text(world.read_text())
    done = run(authority, "--url", "https://a", "--policies", str(tmp_path / "policies"))
    assert done.exit_code == 0, done.output
    (told,) = [hook for hook in list(yaml.safe_load_all(done.stdout))[1]["webhooks"] if "workloads" in hook["name"]]
    asked = {(rule["apiGroups"][0], name) for rule in told["rules"] for name in rule["resources"]}
    assert {(kind["group"], kind["resource"]) for kind in kinds} < asked
    assert {("apps", "deployments"), ("batch", "cronjobs")} < asked
