"""The files in deploy/: every command and option in them exists, and all of them fit together."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from headwater.broker.security.exposure import check_exposure
from headwater.broker.settings import read_settings
from headwater.cli.broker.serve import app
from headwater.core.config import BrokerConfig
from headwater.core.options import options_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
UNIT = DEPLOY / "systemd" / "headwater-broker.service"
NAMES = {option.name for option in options_of(BrokerConfig)}


def configured(arguments: list[str]) -> BrokerConfig:
    """Return the configuration that `hw broker` makes of its arguments, without serving."""
    group: Any = typer.main.get_command(app)
    with group.commands["serve"].make_context("serve", arguments[arguments[0] == "serve" :]) as context:
        given = context.params
    file = given.get("config")
    flags = {name: None if value is None else str(value) for name, value in given.items() if name in NAMES}
    settings = read_settings(flags, {}, Path(file) if file else None)
    check_exposure(settings.config)
    return settings.config


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    return found


def brokers() -> list[BrokerConfig]:
    services = compose()["services"]
    return [configured(one["command"]) for name, one in services.items() if name.startswith("broker-")]


# The compose file.


def test_the_brokers_of_the_compose_file_start_and_form_one_cluster() -> None:
    found = brokers()
    assert [one.broker_id for one in found] == [1, 2, 3]
    assert len({one.listen for one in found}) == len({one.metrics for one in found}) == 3
    (endpoints,) = {one.etcd for one in found}
    assert f"--listen-client-urls=http://{endpoints}" in compose()["services"]["etcd"]["command"]


def test_every_service_keeps_its_files_in_a_volume_of_its_own() -> None:
    document = compose()
    volumes = [one["volumes"][-1].partition(":")[0] for one in document["services"].values()]
    assert sorted(volumes) == sorted(document["volumes"])
    for name, one in document["services"].items():
        assert one["network_mode"] == "host", name
        if name.startswith("broker-"):
            directory = one["volumes"][0].partition(":")[2]
            assert one["command"][0] == directory
            assert int(one["stop_grace_period"].removesuffix("s")) > BrokerConfig().drain_timeout
            assert (COMPOSE.parent / one["build"]["context"] / one["build"]["dockerfile"]).resolve().exists()


def test_no_etcd_is_named_that_brokers_refuse() -> None:
    image = compose()["services"]["etcd"]["image"]
    assert re.search(r":v3\.5\.([6-9]|\d\d)$", image)


def test_prometheus_scrapes_the_brokers_of_the_compose_file() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [one.metrics for one in brokers()]
    for file in scraped["rule_files"]:
        assert (DEPLOY / "prometheus" / file).exists()


# The container file.


def test_the_container_file_copies_what_there_is_and_runs_a_broker() -> None:
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", "").splitlines()
    steps = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    copied = [word for name, rest in steps if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]]
    assert copied
    assert all((ROOT / one).exists() for one in copied)
    by_name = {one[0]: one[1] for one in steps}
    command = json.loads(by_name["ENTRYPOINT"]) + json.loads(by_name["CMD"])
    assert command[:2] == ["hw", "broker"]
    assert configured(command[2:]).directory == by_name["VOLUME"]
    assert by_name["USER"] != "root"


# The unit of systemd.


def test_the_unit_starts_a_broker_with_the_configuration_beside_it(tmp_path: Path) -> None:
    (start,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    program, *arguments = shlex.split(start)
    assert program.endswith("/hw")
    assert arguments[0] == "broker"
    shutil.copy(DEPLOY / "systemd" / "broker.yaml", tmp_path)
    arguments[arguments.index("--config") + 1] = str(tmp_path / "broker.yaml")
    config = configured(arguments[1:])
    assert (config.broker_id, config.tls_client_ca) == (1, str(tmp_path / "ca.pem"))
    (patience,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert int(patience) > 10 + config.drain_timeout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    here = Path(sys.executable).parent / "hw"
    content = UNIT.read_text().replace("/opt/headwater/bin/hw", str(here))
    assert str(here) in content
    (tmp_path / UNIT.name).write_text(content)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
    )
    about_it = [line for line in checked.stderr.splitlines() if UNIT.name in line]
    assert not about_it
