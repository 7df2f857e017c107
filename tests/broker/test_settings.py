"""A broker's configuration: flags go over the environment, over the file, over defaults; and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import headwater as hw
from headwater.broker.security.exposure import check_exposure
from headwater.broker.settings import Settings, flag, read_settings
from headwater.core.config import BrokerConfig
from headwater.core.options import Option, options_of


def read(
    tmp_path: Path,
    flags: dict[str, str | None] | None = None,
    file: str = "",
    name: str = "broker.yaml",
    **variables: str,
) -> Settings:
    path = tmp_path / name
    path.write_text(file)
    environment = {f"HEADWATER_BROKER_{key.upper()}": value for key, value in variables.items()}
    return read_settings(flags or {}, environment, path if file else None)


def test_flags_go_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = "broker_id: 1\nmax_wait: 1min\nlog_level: error\n"
    settings = read(tmp_path, {"broker_id": "3", "threads": None}, file, broker_id="2", max_wait="2s")
    config = settings.config
    assert (config.broker_id, config.max_wait, config.log_level, config.threads) == (3, 2.0, "error", 16)
    path = str(tmp_path / "broker.yaml")
    assert settings.sources == {"broker_id": "flag", "max_wait": "environment", "log_level": path}


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text('listen = "127.0.0.1:7000"\nsteward = false\n')
    config = read_settings({}, {"HEADWATER_BROKER_CONFIG": str(path)}, None).config
    assert (config.listen, config.steward) == ("127.0.0.1:7000", False)


@pytest.mark.parametrize("option", options_of(BrokerConfig), ids=lambda option: option.name)
def test_every_option_is_a_flag_a_variable_and_a_key(tmp_path: Path, option: Option) -> None:
    value = next(
        (word for word in option.words if word is not None and word != option.default),
        option.range.most if option.range is not None else "other" if option.name == "cluster" else "10.0.0.1:99",
    )
    text = option.written(value)
    for settings in (
        read(tmp_path, {option.name: text}),
        read(tmp_path, None, **{option.name: text}),
        read(tmp_path, file=f"{option.name}: {text}\n"),
        read(tmp_path, file=f"{option.name} = '{text}'\n", name="broker.toml"),
    ):
        actual = getattr(settings.config, option.name)
        assert actual in (value, str(tmp_path / str(value)))
        assert type(actual) is type(value)


def test_paths_in_a_file_begin_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    path = tmp_path / "etc" / "broker.yaml"
    path.write_text("access: access.yaml\ntls_key: /secrets/key.pem\ndirectory: none\n")
    config = read_settings({}, {}, path).config
    assert (config.access, config.tls_key) == (str(tmp_path / "etc" / "access.yaml"), "/secrets/key.pem")
    assert config.directory is None


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("listn: 127.0.0.1:1\n", ":1: listn: there is no key 'listn' here: did you mean listen?"),
        ("broker_id: 1\nmax_wait: soon\n", ":2: max_wait: must be a number of seconds from 0 to 1h"),
        ("listen: a b\n", ":1: listen: must be host:port, not 'a b'"),
        ("listen: 127.0.0.1:99999\n", ":1: listen: must be host:port"),
        ("steward: [yes]\n", ":1: steward: must be True or False, not [True]"),
        ("log_level: loud\n", ':1: log_level: must be "debug", "info", "warning" or "error", not'),
        ("broker_id: -1\n", ":1: broker_id: must be a whole number from 0"),
        ("3\n", ":1: a configuration of a broker is a mapping"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_by_line_and_key(tmp_path: Path, file: str, problem: str) -> None:
    with pytest.raises(hw.InvalidFile) as caught:
        read(tmp_path, file=file)
    assert problem in str(caught.value)


def test_what_is_wrong_elsewhere_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(hw.InvalidConfiguration, match=r"--max-wait 'soon': must be a number of seconds"):
        read(tmp_path, {"max_wait": "soon"})
    with pytest.raises(hw.InvalidConfiguration, match="HEADWATER_BROKER_MAX_WAIT='soon': must be a number"):
        read(tmp_path, max_wait="soon")
    with pytest.raises(hw.InvalidConfiguration, match="the nearest variable is HEADWATER_BROKER_LISTEN"):
        read(tmp_path, listn="127.0.0.1")
    with pytest.raises(hw.InvalidConfiguration, match=r"nowhere\.yaml: No such file"):
        read_settings({}, {}, tmp_path / "nowhere.yaml")
    with pytest.raises(hw.InvalidFile, match=r"a configuration of a broker is a file that ends in \.yaml"):
        read(tmp_path, file="x: 1\n", name="broker.ini")


def test_programs_that_open_stores_do_not_mind_the_brokers_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_BROKER_FETCH_BYTES", "whatever")
    monkeypatch.setenv("HEADWATER_CLIENT_LINGER", "whatever")
    hw.open(tmp_path / "store").close()


# Exposure.


def exposed(**options: object) -> None:
    check_exposure(BrokerConfig(**options))  # type: ignore[arg-type]


TLS = {"tls_certificate": "c.pem", "tls_key": "k.pem"}


@pytest.mark.parametrize("listen", ["127.0.0.1:6174", "localhost:6174", "[::1]:6174", "127.8.8.8"])
def test_this_machine_needs_no_authentication(listen: str) -> None:
    exposed(listen=listen, metrics=listen)
    exposed(listen=listen, metrics=listen, access="access.yaml")


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:6174", "[::]:6174", "10.0.0.1:6174", "broker.example:6174", "127.evil.example"]
)
@pytest.mark.parametrize("option", ["listen", "metrics"])
def test_beyond_it_authentication_and_tls_are_needed(option: str, listen: str) -> None:
    with pytest.raises(hw.InvalidConfiguration, match="--insecure-no-authentication"):
        exposed(**{option: listen})
    with pytest.raises(hw.InvalidConfiguration, match="--insecure-no-authentication"):
        exposed(**{option: listen}, **TLS)
    with pytest.raises(hw.InvalidConfiguration, match="tokens would cross the network"):
        exposed(**{option: listen}, access="access.yaml")
    with pytest.raises(hw.InvalidConfiguration, match="tokens would cross the network"):
        exposed(**{option: listen}, access="access.yaml", insecure_no_authentication=True)
    exposed(**{option: listen}, access="access.yaml", **TLS)
    exposed(**{option: listen}, insecure_no_authentication=True)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(hw.InvalidConfiguration, match="belong together"):
        exposed(tls_key="k.pem")
    with pytest.raises(hw.InvalidConfiguration, match="needs tls_certificate"):
        exposed(tls_client_ca="ca.pem", access="access.yaml")
    with pytest.raises(hw.InvalidConfiguration, match="says what they may do"):
        exposed(tls_client_ca="ca.pem", **TLS)


def test_flags_are_named_after_options() -> None:
    assert flag("tls_client_ca") == "--tls-client-ca"
