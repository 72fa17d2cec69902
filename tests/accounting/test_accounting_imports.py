import subprocess
import sys


def test_accounting_needs_numpy_and_scipy_only() -> None:
    heavy = "torch", "flwr", "sqlalchemy", "dp_accounting", "mpmath", "scipy.optimize", "scipy.stats"
    script = f"import sys, fedprivacy.accounting; print([name for name in {heavy!r} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
