"""A container's probe, without a shell: `python -m fedprivacy.deploy.probe URL [CA]` ends with 0 if a service answers.

`tcp://HOST:PORT` asks for a connection only; `http://` and `https://`, with the authority that signed the
certificate, for an answer with status 200.
"""

import http.client
import socket
import ssl
import sys
import urllib.request
from urllib.parse import urlsplit

PATIENCE = 5.0
"""Seconds that the answer may take."""


def answers(url: str, ca: str | None = None) -> bool:
    """Return True if a service answers; `ca` is the file of the authority of an https URL."""
    address = urlsplit(url)
    try:
        if address.scheme == "tcp":
            with socket.create_connection((address.hostname, address.port), timeout=PATIENCE):
                return True
        trust = ssl.create_default_context(cafile=ca) if ca else None
        with urllib.request.urlopen(url, timeout=PATIENCE, context=trust) as response:
            return bool(response.status == http.client.OK)
    except OSError:  # URLError and TimeoutError are
        return False


if __name__ == "__main__":
    sys.exit(not answers(*sys.argv[1:]))
