"""The catalogue of planted bugs: what each breaks, and who notices. `python -m tests.privacy.bugs` plants them all."""

from pathlib import Path

from tests.privacy.bugs.bug import Bug, read

BUGS: tuple[Bug, ...] = tuple(bug for file in sorted(Path(__file__).parent.glob("*.diff")) for bug in read(file))
