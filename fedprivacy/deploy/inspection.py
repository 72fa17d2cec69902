"""The inspection of a host: what its party's folder, its environment and the server's door look like, line by line.

Nothing is charged, and nothing is said of any record. What the two kinds of hosts have of their own is
in `fedprivacy.deploy.client_inspection` and `fedprivacy.deploy.server_inspection`.
"""

from __future__ import annotations

import enum
import http.client
import ipaddress
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from cryptography import x509

from fedprivacy._support.durable import free_bytes, size_text
from fedprivacy._support.native import attainable_bytes
from fedprivacy.deploy.description import PARTY_FILE, SOUND_SINCE, Party, flower_window, is_sound, works_with_flower
from fedprivacy.deploy.federation import program
from fedprivacy.deploy.keys import CLOCK_SKEW, fingerprint, has_signed

RENEWAL = 30
"""Days before its end from which on a certificate is warned of."""

_FEW_FILES = 16
"""Number of files that must still fit on a disk."""

_PATIENCE = 5.0
"""Seconds to wait for an answer."""

_FORWARDED = "/v1/fleet/pull-messages"
_FORBIDDEN = (("GET", "/health"), ("POST", "/v1/control/list-nodes"))
"""Services that the proxy lets through, and those that it must not: nobody has to log in there."""


class CheckResult(enum.StrEnum):
    """The result of a check. `WARNING`: it can be right, and often is not."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one check, and what to do about it.

    A finding with `local` lines, which count private records, is for the host's owner alone, its verdict too. All
    others may be sent to the operator.
    """

    check: str
    verdict: CheckResult
    words: str
    remedy: str = ""
    local: tuple[str, ...] = ()


_VALUES = {CheckResult.OK: 0, CheckResult.WARNING: 1, CheckResult.FAILED: 2}


def metrics_text(party: Party, found: Iterable[Finding], at: float) -> str:
    """Write findings in Prometheus' text format; those that tell of private records are left out.

    Args:
        party: whose host was checked.
        found: findings of the checks.
        at: time of the check, in seconds since 1970.
    """
    told = [f'{{party="{party.party}",check="{one.check}"}} {_VALUES[one.verdict]}' for one in found if not one.local]
    lines = [
        "# HELP fedprivacy_check Result of a line of `fedprivacy deploy check`: 0 ok, 1 warning, 2 failed.",
        "# TYPE fedprivacy_check gauge",
        *(f"fedprivacy_check{line}" for line in told),
        "# HELP fedprivacy_check_time_seconds Unix time of that check.",
        "# TYPE fedprivacy_check_time_seconds gauge",
        f'fedprivacy_check_time_seconds{{party="{party.party}"}} {at:.0f}',
    ]
    return "".join(f"{line}\n" for line in lines)


class Objection(Exception):
    """An objection of a check to a host; the remedy may be empty where the words give it."""

    def __init__(self, words: str, remedy: str = "", verdict: CheckResult = CheckResult.FAILED) -> None:
        self.words, self.remedy, self.verdict = words, remedy, verdict
        super().__init__(words)


def warning(words: str, remedy: str = "") -> Objection:
    """An objection that lets the check pass."""
    return Objection(words, remedy, CheckResult.WARNING)


Check = tuple[str, Callable[[], str]]
"""A check by its name: it returns what is well, or raises an Objection."""


def findings(checks: Iterable[Check]) -> Iterator[Finding]:
    """Do the checks, one after the other."""
    for name, check in checks:
        try:
            yield Finding(name, CheckResult.OK, check())
        except Objection as objection:
            yield Finding(name, objection.verdict, objection.words, objection.remedy)
        except OSError as error:
            yield Finding(
                name, CheckResult.FAILED, str(error), "let the service's account read it, and check as that one"
            )


def common_checks(party: Party, folder: Path, flower_program: str) -> list[Check]:
    """The first checks on every host."""
    return [
        ("account", lambda: _account(folder)),
        ("versions", lambda: _versions(party)),
        ("programs", lambda: _installed_program(flower_program)),
    ]


def door_findings(party: Party, host: str, ca: Path) -> Iterator[Finding]:
    """Checks of the server's one open port, from where this process is.

    Args:
        party: whose host it is.
        host: the server's name from here, which its certificate must hold.
        ca: certificate of the authority that is trusted.
    """
    door = _Door(host, party.port, ca)
    yield from findings([("server", lambda: _reachable(door))])
    with suppress(Objection):  # said by the line above
        answer = door.ask("GET", "/health")
        yield from findings([("interfaces", lambda: _interfaces(door, party))])
        if not party.is_server:
            yield from findings([("clock", lambda: _clock(answer))])


def check_owner_only(file: Path) -> None:
    """Object to a secret that is not there, or that others on the host can read."""
    if not file.is_file():
        raise Objection(f"{file} is not there")
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & 0o077:
        raise Objection(f"{file} has mode {mode:o}: others on this host can read it", f"chmod 600 {file}")


def check_validity(certificate: x509.Certificate, name: str) -> str:
    """The end of a certificate's validity; an objection where it is not valid, or not for long."""
    now, end = datetime.now(UTC), certificate.not_valid_after_utc
    if now < certificate.not_valid_before_utc:
        begin = certificate.not_valid_before_utc
        raise Objection(f"{name} is valid from {begin:%Y-%m-%d %H:%M} UTC on", "set this host's clock")
    if now > end:
        raise Objection(f"{name} ended on {end:%Y-%m-%d}", "renew it: docs/how-to/keys.md")
    if (end - now).days < RENEWAL:
        raise warning(f"{name} ends on {end:%Y-%m-%d}", "renew it: docs/how-to/keys.md")
    return f"{name} until {end:%Y-%m-%d}"


def certificate_in(file: Path) -> x509.Certificate:
    """The first certificate that a file holds; an objection if it holds none."""
    return certificates_in(file)[0]


def certificates_in(file: Path) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(file.read_bytes())
    except FileNotFoundError:
        raise Objection(f"{file} is not there") from None
    except ValueError:
        raise Objection(f"{file} holds no certificate", "take it from the folder that the operator sent") from None


def authorities(file: Path) -> str:
    """The authorities that a host trusts, each until when; an objection where none lasts."""
    trusted = certificates_in(file)
    last = max(trusted, key=lambda authority: authority.not_valid_after_utc)
    check_validity(last, f"{file.name}, authority {fingerprint_start(last)}")
    each = [f"{fingerprint_start(authority)} until {authority.not_valid_after_utc:%Y-%m-%d}" for authority in trusted]
    return f"{file.name} trusts {' and '.join(each)}"


def fingerprint_start(authority: x509.Certificate) -> str:
    """The beginning of an authority's fingerprint: what people compare."""
    return fingerprint(authority)[:11]


def check_port_free(port: int, owner: str) -> str:
    """Object where something else than its owner may have a port of this host."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise warning(f"port {port} is taken", f"well, if {owner} is running; else choose another in its service")
    return f"port {port} of this host is free"


def room_on(folder: Path, least: int, usual: int, purpose: str) -> str:
    """Compare the free bytes of a folder's disk with the least and the usual need; object where they are too few."""
    disk, free = os.statvfs(folder), free_bytes(folder)
    remedy = "make room there, before a run is charged and cannot go on"
    if disk.f_files and disk.f_favail < _FEW_FILES:  # some file systems do not count files
        raise Objection(f"the disk of {folder} can hold only {disk.f_favail} more files", remedy)
    words = f"{size_text(free)} free on the disk of {folder}; {purpose} needs {size_text(least)}"
    if free < least:
        raise Objection(words, remedy)
    if free < usual:
        raise warning(f"{words}, and in time {size_text(usual)}", remedy)
    return words


def memory_for(least: int, purpose: str) -> str:
    """Compare what this host has left of its memory with the least that is needed; object where it is too little."""
    attainable = attainable_bytes()
    if attainable is None:
        return f"{purpose} needs {size_text(least)}; what is available cannot be read here"
    words = f"{size_text(attainable)} available; {purpose} needs {size_text(least)}"
    if attainable < least:
        raise Objection(words, "give the host or its service more memory, or agree on a smaller model")
    return words


def _account(folder: Path) -> str:
    owner = folder.stat().st_uid
    if os.geteuid() != owner:
        raise warning(
            f"{folder} belongs to another account than yours",
            "check as the account of the service: what you can read, it may not",
        )
    return f"owns {folder}"


def _versions(party: Party) -> str:
    own = {"fedprivacy": version("fedprivacy"), "flwr": version("flwr"), "Python": python_version()}
    wanted = {"fedprivacy": party.fedprivacy, "flwr": party.flwr, "Python": party.python}
    for unsound in (release for release in (own["fedprivacy"], party.fedprivacy) if not is_sound(release)):
        since = ".".join(map(str, SOUND_SINCE))
        raise Objection(
            f"fedprivacy {unsound}, whose guarantee can be broken: see SECURITY.md",
            f"install {since} or later on every host, and write it in {PARTY_FILE}",
        )
    for foreign in (release for release in (own["flwr"], party.flwr) if not works_with_flower(release)):
        raise Objection(
            f"flwr {foreign}; fedprivacy {own['fedprivacy']} works with {flower_window()}",
            f"install one of these on every host, and write it in {PARTY_FILE}",
        )
    different = [name for name in own if own[name] != wanted[name]]
    words = ", ".join(f"{name} {own[name]}" for name in own)
    said = ", ".join(f"{name} {wanted[name]}" for name in different)
    told = f"install the same on every host; once all have another, write it in {PARTY_FILE}"
    if "fedprivacy" in different:
        raise Objection(f"{words}; the deployment has {said}", told)
    if any(name == "flwr" or own[name].split(".")[:2] != wanted[name].split(".")[:2] for name in different):
        raise warning(f"{words}; the deployment has {said}", told)
    return words


def _installed_program(name: str) -> str:
    try:
        return str(program(name))
    except FileNotFoundError as error:
        raise Objection(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    time: datetime | None
    certificate: x509.Certificate


@dataclass(frozen=True, slots=True)
class _Door:
    """A port that speaks HTTPS, with a certificate of one authority."""

    host: str
    port: int
    ca: Path

    def ask(self, method: str, path: str) -> _Answer:
        """The server's answer; an objection says why there is none."""
        certificate_in(self.ca)
        trust = ssl.create_default_context(cafile=str(self.ca))
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=_PATIENCE, context=trust)
        where = f"{self.host}:{self.port}"
        try:
            connection.request(method, path)
            shown = connection.sock.getpeercert(binary_form=True)
            assert shown is not None  # TLS does not go on without it
            response = connection.getresponse()
            time = _time_in(response.getheader("Date"))
            return _Answer(response.status, time, x509.load_der_x509_certificate(shown))
        except ssl.SSLCertVerificationError as error:
            raise Objection(
                f"{where} shows a certificate that {self.ca.name} does not vouch for ({error.verify_message})",
                "take the newest ca.crt of the operator, and compare its fingerprint; see that this is the right host",
            ) from error
        except ssl.SSLError as error:
            raise Objection(f"{where} does not speak TLS ({error.reason})", "see what listens there") from error
        except socket.gaierror as error:
            raise Objection(f"nobody here knows the name {self.host}", "see DNS, or write it in /etc/hosts") from error
        except (OSError, http.client.HTTPException) as error:
            raise Objection(
                f"{where} does not answer ({str(error) or type(error).__name__})",
                "see that the proxy is running, and that no firewall is in between",
            ) from error
        finally:
            connection.close()


def _time_in(date: str | None) -> datetime | None:
    """The time that a header tells; None if it tells none."""
    try:
        told = parsedate_to_datetime(date or "")
    except ValueError:
        return None
    return told if told.tzinfo else told.replace(tzinfo=UTC)


def _reachable(door: _Door) -> str:
    answer = door.ask("POST", _FORWARDED)
    signers = [each for each in certificates_in(door.ca) if has_signed(each, answer.certificate)]
    valid = check_validity(answer.certificate, f"its certificate of {' or '.join(map(fingerprint_start, signers))}")
    if answer.status in (404, 502, 503, 504):
        raise Objection(
            f"{door.host}:{door.port} answers {answer.status} where the SuperLink should",
            "on the server: see that the SuperLink is running, and that the proxy is its own",
        )
    return f"{door.host}:{door.port} leads to the SuperLink, {valid}"


def _interfaces(door: _Door, party: Party) -> str:
    open_ones = [path for method, path in _FORBIDDEN if door.ask(method, path).status != 404]
    if open_ones:
        raise Objection(
            f"{', '.join(open_ones)} can be reached without a login: whoever does can run code on the clients",
            "on the server: close the port, put the proxy in front (nginx.conf), and open it again",
        )
    if _listens(party.host, party.superlink_port):
        raise Objection(
            f"the SuperLink's own port {party.superlink_port} can be reached from outside",
            "on the server: start it with --host 127.0.0.1, and close the port",
        )
    return "nothing but the SuperNodes' interface is open"


def _listens(host: str, port: int) -> bool:
    """True if a port is open on a host that is not this one."""
    try:
        address = socket.gethostbyname(host) if ":" not in host else host
        if ipaddress.ip_address(address).is_loopback:
            return False
        socket.create_connection((address, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _clock(answer: _Answer) -> str:
    if answer.time is None:
        raise warning("the server does not tell its time", "see that this host's clock is set by NTP")
    apart = abs(datetime.now(UTC) - answer.time)
    if apart > CLOCK_SKEW:
        raise Objection(f"this host's clock is {apart.total_seconds():.0f} s from the server's", "set both by NTP")
    return "agrees with the server's"
