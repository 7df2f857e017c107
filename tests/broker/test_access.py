"""Access to a broker: users, rights, tokens, the audit log, and files that change under a running broker."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import headwater as hw
from headwater.broker.security.access import OPEN, Caller, TooManyAttempts
from headwater.broker.security.access_file import read_access
from headwater.broker.security.audit import Audit
from headwater.broker.security.guard import Guard
from headwater.broker.security.tokens import Token, Verifier, create_token, read_tokens, revoke_token, tokens_beside
from headwater.serving.sources import source_of_peer
from tests.support.patience import wait_until

FILE = """\
users:
  billing:
    topics:
      orders.*: read
      invoices: [read, write]
    groups:
      billing: [read, write]
  operator:
    topics:
      "*": [read, admin]
      __dead*: read
    groups:
      "*": admin
    broker: [read, admin]
"""
BILLING, OPERATOR, STRANGER = Caller("billing"), Caller("operator"), Caller("stranger")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "access.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def guard(file: Path) -> Iterator[Guard]:
    guard = Guard(file)
    yield guard
    guard.close()


def credentials(token: str) -> list[tuple[str, str | bytes]]:
    return [("user-agent", "test"), ("authorization", f"Bearer {token}")]


# Rights.


@pytest.mark.parametrize(
    ("caller", "right", "kind", "name"),
    [
        (BILLING, "read", "topic", "orders.eu"),
        (BILLING, "read", "topic", "orders."),
        (BILLING, "write", "topic", "invoices"),
        (BILLING, "write", "group", "billing"),
        (OPERATOR, "admin", "topic", "anything"),
        (OPERATOR, "admin", "group", "billing"),
        (OPERATOR, "read", "broker", ""),
        (OPERATOR, "read", "topic", "__dead-letters"),
    ],
)
def test_what_the_file_allows_is_allowed(guard: Guard, caller: Caller, right: str, kind: str, name: str) -> None:
    guard.check(caller, right, kind, name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("caller", "right", "kind", "name"),
    [
        (BILLING, "write", "topic", "orders.eu"),
        (BILLING, "admin", "topic", "invoices"),
        (BILLING, "admin", "topic", "orders"),
        (BILLING, "admin", "topic", "new"),
        (BILLING, "read", "group", "shipping"),
        (BILLING, "read", "broker", ""),
        (OPERATOR, "write", "topic", "orders.eu"),
        (OPERATOR, "admin", "topic", "__dead-letters"),
        (OPERATOR, "read", "group", "billing"),
        (STRANGER, "admin", "topic", "orders.eu"),
        (STRANGER, "read", "broker", ""),
    ],
)
def test_everything_else_is_denied_and_the_right_is_named(
    guard: Guard, caller: Caller, right: str, kind: str, name: str
) -> None:
    with pytest.raises(hw.PermissionDenied) as caught:
        guard.check(caller, right, kind, name)  # type: ignore[arg-type]
    assert (caught.value.right, caught.value.kind, caught.value.name) == (right, kind, name)
    subject = "broker" if kind == "broker" else f"{kind} '{name}'"
    assert f"'{caller.name}' lacks the right '{right}' on {subject}" in str(caught.value)


@pytest.mark.parametrize(
    ("caller", "name"),
    [(BILLING, "payroll"), (BILLING, "orders"), (BILLING, "ordersx"), (BILLING, "invoices2"), (STRANGER, "orders.eu")],
)
@pytest.mark.parametrize("right", ["read", "write"])
def test_a_topic_without_any_right_is_one_that_is_not_there(
    guard: Guard, caller: Caller, name: str, right: str
) -> None:
    assert not guard.sees(caller, name)
    with pytest.raises(hw.UnknownTopic) as denied:
        guard.check(caller, right, "topic", name)  # type: ignore[arg-type]
    with pytest.raises(hw.UnknownTopic) as unseen:
        guard.check_seen(caller, name)
    assert (str(denied.value), vars(denied.value)) == (str(unseen.value), vars(unseen.value))


@pytest.mark.parametrize("pattern", ["orders.*", "orders.e?", "orders.[!x]*"])
def test_a_pattern_is_allowed_where_all_that_it_matches_is(guard: Guard, pattern: str) -> None:
    guard.check(BILLING, "read", "topic", pattern)
    with pytest.raises(hw.PermissionDenied):
        guard.check(BILLING, "write", "topic", pattern)


@pytest.mark.parametrize("pattern", ["*", "order*", "orders?", "o*", "[o]rders.*", "invoices*", "*invoices", "__*"])
def test_a_pattern_that_matches_more_than_is_allowed_is_denied(guard: Guard, pattern: str) -> None:
    with pytest.raises(hw.PermissionDenied, match="lacks the right 'read' on topic"):
        guard.check(BILLING, "read", "topic", pattern)


def test_whoever_has_any_right_on_a_name_may_know_of_it(guard: Guard) -> None:
    assert guard.sees(BILLING, "orders.eu")
    assert guard.sees(OPERATOR, "payroll")
    assert not guard.sees(OPERATOR, "__groups"), "internal topics are not among *"
    assert guard.sees(BILLING, "billing", "group")
    assert not guard.sees(BILLING, "shipping", "group")


def test_without_a_file_everything_is_allowed() -> None:
    caller = OPEN.caller([], "ipv4:127.0.0.1:1", [])
    assert caller.name == "anonymous"
    OPEN.check(caller, "admin", "broker", "")
    assert OPEN.sees(caller, "__groups")


# The caller's identity.


def test_a_token_says_who_calls(guard: Guard, file: Path) -> None:
    token = create_token(tokens_beside(file), "billing")
    guard.reload()
    assert guard.caller(credentials(token), "peer", []) == Caller("billing", "peer")
    assert guard.caller([("authorization", f"bearer {token}")], "peer", [b"operator"]).name == "billing"


def test_a_certificate_says_who_calls(guard: Guard) -> None:
    assert guard.caller([], "peer", [b"billing.example", b"billing"]).name == "billing"
    assert guard.caller([], "peer", [b"unheard-of"]).name == "unheard-of"


def test_nobody_is_anonymous_unless_the_file_says_so(guard: Guard, file: Path) -> None:
    with pytest.raises(hw.Unauthenticated, match="give the client a token or a certificate"):
        guard.caller([], "peer", [])
    file.write_text(FILE + "  anonymous:\n    topics: {news: read}\n")
    guard.reload()
    caller = guard.caller([], "peer", [])
    guard.check(caller, "read", "topic", "news")
    with pytest.raises(hw.UnknownTopic):
        guard.check(caller, "read", "topic", "orders.eu")


def test_a_wrong_token_is_refused_even_where_anonymous_callers_are_not(guard: Guard, file: Path) -> None:
    file.write_text(FILE + "  anonymous:\n    topics: {news: read}\n")
    token = create_token(tokens_beside(file), "billing")
    guard.reload()
    flipped = token[:-1] + ("A" if token[-1] != "A" else "B")
    for wrong in (
        flipped,
        token[:-1],
        token + "A",
        token.upper(),
        "",
        "hw_",
        "\x00",
        "é" * 60,
        "hw_000000000000_" + "A" * 43,
    ):
        with pytest.raises(hw.Unauthenticated, match="mistyped, revoked or expired"):
            guard.caller(credentials(wrong), "peer", [])
    with pytest.raises(hw.Unauthenticated):
        guard.caller([("authorization", f"Basic {token}")], "peer", [])


# Tokens.


def test_the_file_of_tokens_has_hashes_and_only_its_owner_reads_it(file: Path) -> None:
    path = tokens_beside(file)
    tokens = [create_token(path, "billing") for _ in range(2)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_text()
    kept = list(read_tokens(path).values())
    assert len({token.salt for token in kept}) == 2
    for token, stored in zip(tokens, kept, strict=True):
        assert token.split("_", 2)[2] not in content
        assert stored.hash not in repr(stored)
    assert "hash" not in repr(Verifier(read_tokens(path)))


def test_a_revoked_token_is_refused_at_once(guard: Guard, file: Path) -> None:
    token = create_token(tokens_beside(file), "billing")
    guard.reload()
    guard.caller(credentials(token), "peer", [])
    revoke_token(tokens_beside(file), token.split("_")[1])
    guard.reload()
    with pytest.raises(hw.Unauthenticated):
        guard.caller(credentials(token), "peer", [])
    with pytest.raises(hw.StoreError, match=r"token .* does not exist"):
        revoke_token(tokens_beside(file), token.split("_")[1])


def test_a_token_expires(tmp_path: Path) -> None:
    path = tmp_path / "access.tokens"
    moment = time.time()
    token = create_token(path, "billing", expires=moment + 60)
    clock = [moment]
    verifier = Verifier(read_tokens(path), lambda: clock[0])
    assert verifier.user(token) == "billing"
    clock[0] += 60
    assert verifier.user(token) is None


def test_a_token_is_hashed_once_not_with_every_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "access.tokens"
    token = create_token(path, "billing")
    verifier = Verifier(read_tokens(path))
    hashed = count_hashes(monkeypatch)
    for _ in range(100):
        assert verifier.user(token) == "billing"
    assert len(hashed) == 1
    verifier.tokens = read_tokens(path)
    assert verifier.user(token) == "billing"
    assert len(hashed) == 1, "files that are read again change nothing about a token that is the same"
    identity = token.split("_")[1]
    verifier.tokens = {identity: verifier.tokens[identity]._replace(hash="00" * 32)}
    assert verifier.user(token) is None, "what is remembered is remembered of this hash only"


def test_wrong_secrets_do_not_make_the_broker_hash_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "access.tokens"
    token, other = create_token(path, "billing"), create_token(path, "operator")
    clock = [time.time()]
    verifier = Verifier(read_tokens(path), monotonic=lambda: clock[0])
    assert verifier.user(token) == "billing"
    hashed = count_hashes(monkeypatch)
    for number in range(1000):
        assert verifier.user(token[:-4] + f"{number:04}") is None
    assert hashed == [], "where the right one is known, every other one is wrong"
    assert verifier.user(token) == "billing", "whoever is known stays known"
    for number in range(1000):
        with suppress(TooManyAttempts):
            assert verifier.user(other[:-4] + f"{number:04}") is None
    assert len(hashed) == 10
    clock[0] += 1
    assert verifier.user(other[:-4] + "zzzz") is None
    assert verifier.user(other) == "operator"
    assert len(hashed) == 12


def test_wrong_secrets_of_a_token_do_not_keep_the_right_one_out(guard: Guard, file: Path) -> None:
    token = create_token(tokens_beside(file), "billing")
    guard._verifier = Verifier(read_tokens(tokens_beside(file)), monotonic=lambda: 1000.0)
    refused: Counter[type[Exception]] = Counter()
    for number in range(1000):
        try:
            guard.caller(credentials(token[:-4] + f"{number:04}"), f"ipv4:10.0.0.7:{number}", [])
        except (hw.Unauthenticated, TooManyAttempts) as error:
            refused[type(error)] += 1
    assert refused == {hw.Unauthenticated: 10, TooManyAttempts: 990}, "whoever guesses is told to slow down"
    assert guard.caller(credentials(token), "ipv4:10.0.0.8:1", []).name == "billing"
    assert guard.caller(credentials(token), "ipv4:10.0.0.7:1", []).name == "billing", (
        "and from there too, once it is known"
    )


def test_the_table_of_those_who_guess_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "access.tokens"
    token = create_token(path, "billing")
    verifier = Verifier(read_tokens(path))
    monkeypatch.setattr("headwater.broker.security.tokens._hashed", lambda *_: b"")
    for number in range(20_000):
        assert verifier.user(token, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}") is None
    assert len(verifier._failures) <= 4096


@pytest.mark.parametrize(
    ("peer", "other", "same"),
    [
        ("ipv4:10.0.0.7:1", "ipv4:10.0.0.7:2", True),
        ("ipv4:10.0.0.7:1", "ipv4:10.0.0.8:1", False),
        ("ipv4:10.0.0.7:1", "ipv6:%5B::ffff:10.0.0.7%5D:1", True),
        ("ipv6:%5B2001:db8::1%5D:1", "ipv6:%5B2001:db8::ffff:2%5D:2", True),
        ("ipv6:%5B2001:db8::1%5D:1", "ipv6:%5B2001:db8:0:1::1%5D:1", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "ipv6:%5Bfe80::2%25eth0%5D:1", True),
        ("unix:", "ipv4:127.0.0.1:1", False),
    ],
)
def test_a_source_is_an_address_or_the_network_of_one(peer: str, other: str, same: bool) -> None:
    assert (source_of_peer(peer) == source_of_peer(other)) is same


def count_hashes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from headwater.broker.security import tokens

    hashed: list[str] = []
    real = tokens._hashed

    def counting(token: str, salt: bytes) -> bytes:
        hashed.append(token)
        return real(token, salt)

    monkeypatch.setattr(tokens, "_hashed", counting)
    return hashed


def test_commands_at_the_same_time_lose_no_token(tmp_path: Path) -> None:
    path = tmp_path / "access.tokens"
    threads = [threading.Thread(target=create_token, args=(path, f"user{number}")) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.user for token in read_tokens(path).values()} == {f"user{number}" for number in range(16)}
    assert [path.name for path in tmp_path.iterdir()] == ["access.tokens"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"tokens": [{"id": 1}]}', '{"tokens": 3}', "\x00"])
def test_a_broken_file_of_tokens_is_refused_without_quoting_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "access.tokens"
    path.write_text(content)
    with pytest.raises(hw.InvalidFile, match="is not a file of tokens"):
        read_tokens(path)


# The access file.


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("user:\n  billing: {}\n", "1: user: there is no key 'user' here: did you mean users?"),
        (
            "users:\n  billing:\n    topic:\n      a: read\n",
            "3: users.billing.topic: there is no key 'topic' here: did",
        ),
        (
            "users:\n  b:\n    topics:\n      a: raed\n",
            "4: users.b.topics.a: there is no right 'raed': did you mean read?",
        ),
        (
            "users:\n  b:\n    topics:\n      a: [read, 3]\n",
            "4: users.b.topics.a: must be one or a list of read, write",
        ),
        ("users:\n  b:\n    topics:\n      a:\n", "4: users.b.topics.a: must be one or a list of read, write, admin"),
        ("users:\n  b:\n    topics:\n      a*b: read\n", "4: users.b.topics.a*b: '*' can only be at the end"),
        ("users:\n  b:\n    topics:\n      ../a: read\n", "4: users.b.topics.../a: '../a' cannot name a topic"),
        ("users:\n  b:\n    topics: [a]\n", "3: users.b.topics: must be a mapping, not ['a']"),
        ("users:\n  b: read\n", "2: users.b: must be a mapping, not 'read'"),
        ("users:\n  7: {}\n", "2: users.7: 7 cannot be a name here: put quotes around it"),
        ("users: [b]\n", "1: users: must be a mapping of names to their rights"),
        ("users:\n  b: {}\n  b: {}\n", "3: users.b: is there twice, first in line 2"),
        ("users: [\n", "is no YAML"),
        ("- users\n", "1: an access file is a mapping with the key users"),
        ("{}\n", "users is missing"),
    ],
)
def test_what_is_wrong_in_an_access_file_is_told_by_line_and_key(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "access.yaml"
    path.write_text(content)
    with pytest.raises(hw.InvalidFile) as caught:
        read_access(path)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


def test_an_access_file_can_be_toml(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text('[users.billing.topics]\n"orders.*" = "read"\ninvoices = ["read", "write"]\n')
    guard = Guard(path)
    guard.check(BILLING, "read", "topic", "orders.eu")
    guard.check(BILLING, "write", "topic", "invoices")
    path.write_text('[users.billing.topics]\n\n"orders.*" = "reed"\n')
    with pytest.raises(hw.InvalidFile, match=r":3: users\.billing\.topics\.orders\.\*: there is no right 'reed'"):
        read_access(path)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(
    guard: Guard, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard.watch()
    with pytest.raises(hw.PermissionDenied):
        guard.check(BILLING, "write", "topic", "orders.eu")
    with caplog.at_level(logging.INFO, "headwater.broker.security.access"):
        file.write_text(FILE.replace("orders.*: read", "orders.*: [read, writ]"))
        wait_until(lambda: any("refused" in record.getMessage() for record in caplog.records))
        guard.check(BILLING, "read", "topic", "orders.eu")
        refused = next(record for record in caplog.records if "refused" in record.getMessage())
        assert ":4: users.billing.topics.orders.*: there is no right 'writ'" in refused.facts["problems"][0]  # type: ignore[attr-defined]
        file.write_text(FILE.replace("orders.*: read", "orders.*: [read, write]"))
        wait_until(lambda: any("access file read" in record.getMessage() for record in caplog.records))
    guard.check(BILLING, "write", "topic", "orders.eu")


def test_a_signal_reads_files_again_that_look_unchanged(guard: Guard, file: Path) -> None:
    status = file.stat()
    guard.watch()
    file.write_text(FILE.replace("invoices", "receipts"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    guard.wake()
    wait_until(lambda: guard.sees(BILLING, "receipts"))
    assert not guard.sees(BILLING, "invoices")


# The audit log.


def test_denials_are_told_once_with_who_what_and_which_right(guard: Guard, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headwater.broker.security.audit"):
        for _ in range(100):
            with pytest.raises(hw.UnknownTopic):
                guard.check(Caller("billing", "ipv4:10.0.0.7:4711"), "write", "topic", "payroll")
    (record,) = caplog.records
    assert record.getMessage() == "denied"
    expected = {"who": "billing", "right": "write", "kind": "topic", "name": "payroll", "peer": "ipv4:10.0.0.7:4711"}
    assert record.facts == expected  # type: ignore[attr-defined]
    assert guard.denials == 100


def test_the_same_denial_is_told_again_after_a_minute_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = [1000.0]
    audit = Audit(lambda: clock[0])
    with caplog.at_level(logging.WARNING, "headwater.broker.security.audit"):
        for _ in range(5):
            audit.denied("a", "read", "topic", "t", "p")
        clock[0] += 60
        audit.denied("a", "read", "topic", "t", "p")
    assert [record.facts.get("repeated") for record in caplog.records] == [None, 4]  # type: ignore[attr-defined]


def test_a_flood_of_denials_is_a_trickle_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock = [1000.0]
    audit = Audit(lambda: clock[0])
    with caplog.at_level(logging.WARNING, "headwater.broker.security.audit"):
        for number in range(10_000):
            audit.denied("a", "read", "topic", f"t{number}", "p")
        assert len(caplog.records) == 20
        clock[0] += 1
        audit.denied("a", "read", "topic", "another", "p")
    assert caplog.records[-1].facts["left_out"] == 9980  # type: ignore[attr-defined]
    assert len(audit._seen) <= 1024


def test_names_cannot_break_a_line_or_speak_to_a_terminal() -> None:
    from headwater.broker.logs import JsonFormatter, TextFormatter

    record = logging.makeLogRecord({"name": "headwater.broker.security.audit", "levelname": "WARNING", "msg": "denied"})
    record.facts = {"who": "a\nb\x1b[31m\u202e", "name": 'x"} {"level": "info"'}
    for line in (JsonFormatter().format(record), TextFormatter().format(record)):
        assert line.isprintable()
    assert json.loads(JsonFormatter().format(record))["who"] == "a\nb\x1b[31m\u202e"


def test_facts_cannot_take_the_place_of_what_the_log_says_itself() -> None:
    from headwater.broker.logs import JsonFormatter

    record = logging.makeLogRecord({"name": "n", "levelname": "WARNING", "msg": "denied"})
    record.facts = {"level": "info", "message": "all is well"}
    document = json.loads(JsonFormatter().format(record))
    assert (document["level"], document["message"]) == ("warning", "denied")


def test_a_token_shows_nothing_of_its_hash() -> None:
    assert repr(Token("id", "user", "salt", "hash", 0.0)) == "Token(id='id', user='user')"
