"""Where clients run is checked before anything is started, and told to whoever goes on."""

import pytest

from fedprivacy.runs.placement import HERE, Placement
from fedprivacy.runs.settings.configuration import ConfigError


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (Placement(workers=0), "workers is 0; choose 1, .* as cores"),
        (Placement(workers="many"), "workers is many; choose 1, "),
        (Placement(ray_address="ray://head:10001"), "ray-address is 'ray://head:10001', for which Ray has a proxy"),
        (Placement(ray_address="head"), "ray-address is 'head'; give host:port"),
    ],
    ids=str,
)
def test_what_there_cannot_be_is_refused(placement, words):
    with pytest.raises(ConfigError, match=words):
        placement.check()


def test_everything_that_is_wrong_is_said_at_once_and_addresses_of_clusters_pass():
    with pytest.raises(ConfigError) as refused:
        Placement(workers=0, ray_address="head").check()
    assert len(refused.value.problems) == 2
    for address in ("auto", "10.0.0.1:6379", "head.cluster:6379", "[fd00::1]:6379"):
        Placement(ray_address=address).check()


def test_what_another_run_takes():
    for placement, *told in (
        (HERE, False, "", ""),
        (Placement(workers=8), True, "", ""),  # their number is left open: a run goes on with any
        (Placement(workers=1, ray_address="auto"), True, " --ray-address auto", ", ray_address='auto'"),
    ):
        assert [placement.elsewhere, placement.typed, placement.keywords] == told
