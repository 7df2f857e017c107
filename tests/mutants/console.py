"""Mutants of the console and the command."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="other-hosts-answered",
        promise="a server answers only to its own names",
        file="headwater/serving/cross_site.py",
        old="    if names is not None and not _is_named(host, names):\n",
        new="    if names is not None and not host:\n",
        killers=("tests/console/test_security.py", "tests/monitoring/test_pages.py"),
    ),
    Mutant(
        name="other-origins-answered",
        promise="pages of other sites get nothing from the console",
        file="headwater/serving/cross_site.py",
        old='    if origin is not None and origin.lower().partition("://")[2] != host:\n',
        new="    if origin is not None and not origin:\n",
        killers=("tests/console/test_security.py",),
    ),
    Mutant(
        name="cross-site-fetches-answered",
        promise="the console refuses what a browser says comes from another site",
        file="headwater/serving/cross_site.py",
        old='    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not may_be_linked:\n',
        new='    if headers.get("sec-fetch-site", "none") == "nowhere" and not may_be_linked:\n',
        killers=("tests/console/test_security.py",),
    ),
    Mutant(
        name="filter-rounds-literals",
        promise="a filter compares whole numbers exactly with fractions",
        file="headwater/core/filter/kinds.py",
        old='    return sign, math.ceil(value) if sign in ("<", ">=") else math.floor(value)\n',
        new="    return sign, round(value)\n",
        killers=("tests/core/test_filter.py",),
    ),
    Mutant(
        name="forms-accepted",
        promise="what changes something is sent as JSON, which forms of other sites cannot",
        file="headwater/console/security.py",
        old=(
            '            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":\n'
        ),
        new='            if headers.get("content-type", "") == "nothing":\n',
        killers=("tests/console/test_security.py",),
    ),
    Mutant(
        name="bodies-unbounded",
        promise="a request to the console has a largest size, whatever it says of itself",
        file="headwater/console/server.py",
        old="        if len(content) > most:\n",
        new="        if len(content) < 0:\n",
        killers=("tests/console/test_security.py -k too_large",),
    ),
    Mutant(
        name="refused-sessions-go-on",
        promise="a session ends when the broker rejects its token",
        file="headwater/console/sessions.py",
        old="            if session is not None and session.watch.refused:\n",
        new="            if session is not None and not session:\n",
        killers=("tests/console/test_security.py -k users_of_a_broker",),
    ),
    Mutant(
        name="guessing-unlimited",
        promise="wrong tokens from one address are slowed down",
        file="headwater/console/sessions.py",
        old="        if self._failures.blocks(source):\n",
        new="        if self._failures is None:\n",
        killers=(
            "tests/console/test_abuse.py",
            "tests/console/test_security.py",
        ),
    ),
    Mutant(
        name="damage-in-a-backup-ignored",
        promise="a backup is finished only when every frame in it was verified",
        file="headwater/cli/storage/backup.py",
        old='                    if finding.kind == "damage":\n',
        new='                    if finding.kind == "nothing":\n',
        killers=("tests/cli/test_backup.py",),
    ),
    Mutant(
        name="another-log-in-a-backup",
        promise="a backup does not go on with a copy of something else",
        file="headwater/cli/storage/backup.py",
        old="    if ours and theirs and ours != theirs:\n",
        new="    if ours and theirs and not ours:\n",
        killers=("tests/cli/test_backup.py",),
    ),
)
