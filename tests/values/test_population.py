"""A reading of everybody never changes, says what a dictionary would say, and knows who has changed since another."""

import pickle
import random

import numpy as np

from fedprivacy.values.spent import ClientSpent, PopulationSpent


def client(number, epsilon=0.0, left=5):
    return ClientSpent(f"client-{number:03}", epsilon, 1e-5, 3.0, 0, 0, left, 0.1, 1.5)


def clients(numbers, **of_each):
    return {one.client_id: one for one in (client(number, **of_each) for number in numbers)}


def test_whoever_keeps_a_reading_keeps_what_it_said_whatever_comes_after():
    draw, plain = random.Random(1), clients(range(100))
    readings, dictionaries = [PopulationSpent(plain)], [plain]
    for _ in range(60):
        # mostly few of them, now and then most of them or somebody new
        some = draw.sample(range(100), draw.choice([0, 1, 5, 60])) + draw.choice([[], [], [draw.randrange(100, 130)]])
        changed = {one.client_id: one for one in (client(n, draw.random(), draw.choice([0, 0, 3])) for n in some)}
        readings.append(readings[-1].update(changed))
        dictionaries.append(dictionaries[-1] | changed)
        if draw.random() < 0.5:  # what is asked of it now must not differ from what is asked later
            _ = readings[-1].epsilons, readings[-1].exhausted
    for reading, expected in zip(readings, dictionaries, strict=True):
        assert reading == expected and list(reading) == sorted(expected) == [one for one, _ in reading.items()]
        ordered = [expected[client_id] for client_id in sorted(expected)]
        assert list(reading.values()) == ordered and [reading[one] for one in reading.places] == ordered
        np.testing.assert_array_equal(reading.epsilons, [one.epsilon for one in ordered])
        assert reading.exhausted == tuple(one.client_id for one in ordered if one.exhausted)
        for before, was in zip(readings[:: len(readings) // 4], dictionaries[:: len(readings) // 4], strict=True):
            changed = [one for one in sorted(expected) if was.get(one) != expected[one]]
            assert reading.changed_since(before) == changed


def test_a_second_reading_after_the_same_one_is_not_taken_for_the_first():
    before = PopulationSpent(clients(range(20)))
    one, other = before.update(clients([1], epsilon=1.0)), before.update(clients([2], epsilon=1.0))
    assert one.changed_since(before) == ["client-001"] and other.changed_since(before) == ["client-002"]
    assert other.changed_since(one) == ["client-001", "client-002"]
    assert PopulationSpent(dict(one)).changed_since(one) == [] and one.update({}) is one
    assert pickle.loads(pickle.dumps(one)) == one
