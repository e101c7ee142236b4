"""Ways to blocks, written out: which container on them gets longer, and what is said of it."""

import json

import numpy as np
import pytest

from vramscope.analysis._leak_causes import Facts, cause_of
from vramscope.analysis._leak_holders import _with_what_grows, container_of, is_bounded, kept_at, root_of
from vramscope.model.holders import PREFIX, holding_of

LOCAL = ("local", "trainer", "main", "train.py", 9)


def seen(*ways):
    """Of each (step of birth, words): the way, as it comes out of a recording."""
    said = {row: holding_of(PREFIX + json.dumps([LOCAL, *words])) for row, (_, words) in enumerate(ways)}
    found = _with_what_grows(said, np.array([born for born, _ in ways]))
    return [found[row] for row in range(len(ways))]


def item(number, kind="list"):
    return ("item", number, kind)


def key(name, kind="dict"):
    return ("key", name, kind)


def attribute(name):
    return ("attribute", name, "Thing")


def facts(holdings, **other):
    known = {
        "is_replaced": False,
        "retains_graph": False,
        "creates_graph": False,
        "optimizer_fraction": 0.0,
        "parameter_fraction": 0.0,
        "gradient_fraction": 0.0,
        "backward_grows": False,
    }
    return Facts(holdings=holdings, **(known | other))


def test_of_a_list_of_dicts_the_list_gets_longer():
    states = [
        (step, (attribute("states"), item(step), key(name))) for step in range(4) for name in ("'w'", "'b'")
    ]
    found = seen(*states)

    assert {root_of(each) for each in found} == {"trainer.states"}
    assert {container_of(each) for each in found} == {"list"}
    assert cause_of(facts(found)) == "kept_output"


def test_of_a_dict_of_lists_the_lists_get_longer():
    rows = [(step, (attribute("log"), key(name), item(step))) for step in range(4) for name in ("'w'", "'b'")]
    found = seen(*rows)

    assert {root_of(each) for each in found} == {"trainer.log['w']", "trainer.log['b']"}
    assert cause_of(facts(found)) == "kept_output"


def test_a_list_that_only_leads_to_the_one_that_grows_is_part_of_its_name():
    found = seen(
        *((step, (attribute("callbacks"), item(0), attribute("seen"), item(step))) for step in range(4))
    )

    assert {root_of(each) for each in found} == {"trainer.callbacks[0].seen"}


def test_a_dict_with_a_key_for_every_step_is_a_cache_whatever_its_values_are():
    found = seen(*((step, (attribute("memory"), key(str(step)), item(0))) for step in range(4)))

    assert {root_of(each) for each in found} == {"trainer.memory"}
    assert cause_of(facts(found)) == "cache"


def test_keys_without_words_are_told_apart_by_their_identity():
    rows = [(step, (attribute("memory"), ("key", "<Batch>", "dict", 1000 + step))) for step in range(4)]

    assert cause_of(facts(seen(*rows))) == "cache"


def test_a_state_in_a_dict_of_fixed_keys_is_no_cache():
    """Each step's graph hangs on the one before, all on one key."""
    way = (attribute("state"), key("'hidden'"), ("graph", "", 512))
    found = seen(*((step, way) for step in range(4)))

    assert {container_of(each) for each in found} == {""}
    assert cause_of(facts(found)) == "undetached_state"


def test_a_deque_with_a_bound_is_bounded_only_where_it_is_what_grows():
    bounded = seen(*((step, (attribute("recent"), item(step, "deque of 50"))) for step in range(4)))
    within = seen(*((step, (attribute("two"), item(0, "deque of 2"), item(step))) for step in range(4)))

    assert all(map(is_bounded, bounded))
    assert not any(map(is_bounded, within))


def test_an_attribute_of_an_optimizer_s_own_class_is_not_its_state():
    rows = [(step, (("optimizer", "closures", "Lookback"), item(step))) for step in range(4)]

    assert cause_of(facts(seen(*rows), parameter_fraction=0.5)) == "kept_output"


@pytest.mark.parametrize(("parameters", "cause"), [(0.3, "optimizer_state"), (0.0, "unknown")])
def test_state_that_grows_without_new_parameters_is_not_said_to_come_of_them(parameters, cause):
    """The history of L-BFGS grows too, until it is as long as was asked for."""
    way = (("optimizer", "state", "LBFGS"), ("key", "<Parameter>", "defaultdict", 7), key("'old_dirs'"))
    found = seen(*((step, (*way, item(step))) for step in range(4)))

    assert cause_of(facts(found, parameter_fraction=parameters, optimizer_fraction=0.9)) == cause


def test_the_statement_told_is_that_of_the_container_that_grows():
    kept = (
        ("kept_at", "train.py", 3, "self.callbacks.append(it)", 2),
        ("kept_at", "train.py", 8, "seen.append(x)", 4),
    )
    rows = [
        (step, (attribute("callbacks"), item(0), attribute("seen"), item(step), *kept)) for step in range(4)
    ]

    assert {kept_at(each) for each in seen(*rows)} == {("train.py", 8, "seen.append(x)")}


def test_a_statement_for_another_container_is_not_told():
    kept = ("kept_at", "train.py", 3, "self.callbacks.append(it)", 2)
    rows = [
        (step, (attribute("callbacks"), item(0), attribute("seen"), item(step), kept)) for step in range(4)
    ]

    assert {kept_at(each) for each in seen(*rows)} == {None}
