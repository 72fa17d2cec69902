"""Real deployments: keys for TLS and SuperNode authentication, and a rehearsal of one on the loopback interface."""

from typing import TYPE_CHECKING

from fedprivacy._support.lazy import when_asked

if TYPE_CHECKING:
    from fedprivacy.deploy.demo import DemoResult, run_demo
    from fedprivacy.deploy.federation import DeploymentError, LoopbackFederation
    from fedprivacy.deploy.keys import ClientKeys, DeploymentKeys, KeyFileError, write_client_key, write_keys
    from fedprivacy.deploy.processes import ProcessError, Supervisor
else:  # the command line imports this package, and most commands need no cryptography
    __getattr__ = when_asked(__name__, "keys", "processes", "federation", "demo")

__all__ = [
    "ClientKeys",
    "DemoResult",
    "DeploymentError",
    "DeploymentKeys",
    "KeyFileError",
    "LoopbackFederation",
    "ProcessError",
    "Supervisor",
    "run_demo",
    "write_client_key",
    "write_keys",
]
