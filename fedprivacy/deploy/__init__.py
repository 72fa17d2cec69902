"""Real deployments: keys for TLS and SuperNode authentication, and a rehearsal of one on the loopback interface."""

from fedprivacy.deploy.demo import DemoResult, run_demo
from fedprivacy.deploy.federation import DeploymentError, LoopbackFederation
from fedprivacy.deploy.keys import ClientKeys, DeploymentKeys, KeyFileError, write_client_key, write_keys
from fedprivacy.deploy.processes import ProcessError, Supervisor

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
