"""Ways to blocks, written out: which container on them gets longer, and what is reported about it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten

import vramscope
from vramscope.analysis.findings import findings
from vramscope.analysis.leaks.causes import Facts, cause_of
from vramscope.analysis.leaks.edits import advice, as_written
from vramscope.analysis.leaks.holders import (
    Statement,
    _with_growing_containers,
    bound_of,
    container_of,
    kept_at,
    line_words,
    root_of,
)
from vramscope.model.holders import PREFIX, holding_of

LOCAL = ("local", "trainer", "main", "train.py", 9)


def seen(*ways, root=LOCAL):
    """For each (step of birth, words) the way, as it comes out of a recording."""
    said = {row: holding_of(PREFIX + json.dumps([root, *words])) for row, (_, words) in enumerate(ways)}
    found = _with_growing_containers(said, np.array([born for born, _ in ways]))
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


def test_what_is_made_a_step_later_for_a_key_of_every_step_shows_no_key_that_comes_again():
    rows = [(step + i, (attribute("memory"), key(str(step)), item(i))) for step in range(6) for i in (0, 1)]

    assert cause_of(facts(seen(*rows))) == "cache"


def test_lists_of_a_dict_whose_keys_come_again_grow_together():
    """Each key comes again after several steps; a search comes to each key's list in turn."""
    rows = [
        (7 * turn + node, (attribute("store"), key(str(node)), item(turn)))
        for node in range(7)
        for turn in (0, 1)
    ]
    found = seen(*rows)

    assert {root_of(each) for each in found} == {"trainer.store"}
    assert {container_of(each) for each in found} == {"list"}
    assert cause_of(facts(found)) == "kept_output"


def test_a_key_that_was_there_before_later_keys_is_no_new_one():
    """One tensor of several nodes is reached by the first of them alone, of keys that all were there."""
    rows = [
        (step, (attribute("store"), key(str(node)), item(1))) for node, step in enumerate((5, 3, 0, 2, 4, 1))
    ]

    assert cause_of(facts(seen(*rows))) != "cache"


def test_of_several_dicts_in_one_each_gets_keys_and_the_outer_one_gets_none():
    way = attribute("runs")
    found = seen(*((step, (way, key(f"'{'ab'[step % 2]}'"), key(str(step)))) for step in range(8)))

    assert cause_of(facts(found)) == "cache"
    assert as_written(found[0], found) == "trainer.runs[…]"


def test_a_variable_s_function_stands_behind_the_whole_name():
    """A generator's ``self.parts``, and lists of one dict in a function that a closure keeps."""
    first = ("frame", "self", "__iter__", "data.py", 9)
    parts = [holding_of(PREFIX + json.dumps([first, attribute("parts"), item(step)])) for step in range(4)]
    told = ("closure", "told", "run.<locals>.tell")
    lists = [holding_of(PREFIX + json.dumps([told, key(f"'{n % 2}'"), item(n)])) for n in range(4)]

    assert {as_written(each) for each in grown(parts)} == {"self.parts of __iter__"}
    assert as_written(grown(lists)[0], grown(lists)) == "told of run.tell"


def test_all_lists_of_a_metric_are_named():
    reset = ("reset", "trainer.score")
    ways = [(n, (attribute("score"), attribute(name), item(n), reset)) for n in range(4) for name in "ab"]
    found = seen(*ways)

    assert as_written(found[0], found) == "trainer.score.a (and trainer.score.b)"
    assert as_written(found[0], found[::2]) == "trainer.score.a"


def test_the_cause_is_that_of_the_most_bytes():
    """A row of a log has two numbers, one of them with the graph of what was never backpropagated."""
    ways = (key("'task'"),), (key("'aux'"),), (key("'aux'"), ("graph", "", 1))
    found = seen(*((step, (attribute("rows"), item(step), *way)) for step in range(4) for way in ways))
    sized = [replace(each, n_bytes=20480 if each.has("graph") else 512) for each in found]

    assert cause_of(facts(found)) == "kept_output"
    assert cause_of(facts(sized)) == "loss_with_graph"


@pytest.mark.parametrize(
    ("code", "edit"),
    [
        (
            'log["w"].append(copy.deepcopy(model.state_dict()))',
            'log["w"].append({name: each.cpu() for name, each in model.state_dict().items()})',
        ),
        (
            "best.append((epoch, dict(net.state_dict())))",
            "best.append((epoch, {name: each.cpu() for name, each in net.state_dict().items()}))",
        ),
    ],
)
def test_a_copy_of_the_weights_is_kept_on_the_cpu(code, edit):
    kept = ("kept_at", "train.py", 3, code, 1)
    found = seen(*((step, (item(step), key("'0.weight'"), kept)) for step in range(4)))

    assert f": {edit};" in advice("kept_output", "log", found[0], "simulated")


def test_keys_without_words_are_distinguished_by_their_identity():
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

    assert all(bound_of(each).n_items == 50 for each in bounded)
    assert not any(map(bound_of, within))


@pytest.mark.parametrize(("unheld", "cause"), [(0.4, "kept_output"), (0.6, "unknown")])
def test_a_list_of_small_tensors_is_not_the_cause_of_bytes_that_no_search_came_to(unheld, cause):
    """Losses in a list hold the graphs; a search that ended before those saw only the losses themselves."""
    found = seen(*((step, (attribute("losses"), item(step))) for step in range(4)))

    assert cause_of(facts(found, unheld_fraction=unheld)) == cause


def test_an_object_that_contains_a_tensor_is_not_detached_in_its_edit():
    """A Future has no ``detach``."""
    kept = ("kept_at", "train.py", 9, "waiting.append(pool.submit(evaluate))", 2)
    way = (attribute("waiting"), item(0), ("attribute", "_result", "Future"), kept)
    found = seen((0, way), *((step, (attribute("waiting"), item(step), *way[2:])) for step in range(1, 4)))

    assert "submit" not in advice("kept_output", "waiting", found[0], "simulated")


def test_an_attribute_of_an_optimizer_s_own_class_is_not_its_state():
    rows = [(step, (("optimizer", "closures", "Lookback"), item(step))) for step in range(4)]

    assert cause_of(facts(seen(*rows), parameter_fraction=0.5)) == "kept_output"


@pytest.mark.parametrize(("parameters", "cause"), [(0.3, "optimizer_state"), (0.0, "unknown")])
def test_state_that_grows_without_new_parameters_is_not_attributed_to_them(parameters, cause):
    """The history of L-BFGS grows too, until it is as long as was asked for."""
    way = (("optimizer", "state", "LBFGS"), ("key", "<Parameter>", "defaultdict", 7), key("'old_dirs'"))
    found = seen(*((step, (*way, item(step))) for step in range(4)))

    assert cause_of(facts(found, parameter_fraction=parameters, optimizer_fraction=0.9)) == cause


def test_an_optimizer_that_no_name_leads_to_gets_no_new_parameters():
    """A fold's scheduler and its optimizer hold each other: both are gone for the program, with the model."""
    way = (attribute("optimizer"), ("optimizer", "state", "Adam"), key("<Parameter>", "defaultdict"))
    found = seen(*((step, (*way, key("'step'"))) for step in range(4)), root=("unreachable", "Plateau"))

    assert cause_of(facts(found, is_replaced=True, parameter_fraction=0.1)) == "reference_cycle"


@pytest.mark.parametrize(("parameters", "cause"), [(0.3, "kept_model"), (0.0, "kept_optimizer")])
def test_a_list_of_schedulers_keeps_old_optimizers_with_their_models(parameters, cause):
    way = (("attribute", "optimizer", "StepLR"), ("optimizer", "state", "Adam"), key("<Parameter>"))
    found = seen(*((step, (attribute("finished"), item(step), *way)) for step in range(4)))

    assert cause_of(facts(found, is_replaced=True, parameter_fraction=parameters)) == cause


def test_the_statement_shown_is_that_of_the_container_that_grows():
    kept = (
        ("kept_at", "train.py", 3, "self.callbacks.append(it)", 2),
        ("kept_at", "train.py", 8, "seen.append(x)", 4),
    )
    rows = [
        (step, (attribute("callbacks"), item(0), attribute("seen"), item(step), *kept)) for step in range(4)
    ]

    assert {kept_at(each) for each in seen(*rows)} == {Statement("train.py", 8, "seen.append(x)")}


def test_a_statement_for_another_container_is_not_shown():
    kept = ("kept_at", "train.py", 3, "self.callbacks.append(it)", 2)
    rows = [
        (step, (attribute("callbacks"), item(0), attribute("seen"), item(step), kept)) for step in range(4)
    ]

    assert {kept_at(each) for each in seen(*rows)} == {None}


LIGHTNING = [
    ("global", "t", "train.py"),
    ("attribute", "_data_connector", "Trainer"),
    ("attribute", "model", "_DataConnector"),
    ("attribute", "cache", "Net"),
]


def way(first, *words):
    return [holding_of(PREFIX + json.dumps([*first, key(str(step)), *words])) for step in range(4)]


def grown(holdings):
    return [_with_growing_containers(dict(enumerate(holdings)), np.arange(4))[row] for row in range(4)]


def test_what_a_library_leads_to_is_named_as_the_statement_that_keeps_it_does():
    kept = ("kept_at", "train.py", 14, "self.cache[self.global_step] = h", 4)
    (found, *_) = grown(way(LIGHTNING, kept))

    assert as_written(found) == "self.cache"


def test_what_a_library_leads_to_is_named_by_its_owner_where_no_statement_is_known():
    (found, *_) = grown(way(LIGHTNING))

    assert as_written(found) == "self.cache of Net"


def test_a_way_without_a_library_s_insides_is_named_as_it_goes():
    (found, *_) = grown(way([("local", "trainer", "main", "train.py", 9), ("attribute", "cache", "Net")]))

    assert as_written(found) == "trainer.cache"


def test_a_fixture_is_named_as_the_test_names_it():
    named = [
        ("global", "hooks", "pytest"),
        ("closure", "item", "pytest_runtest_protocol.<locals>.callbinrepr"),
        ("attribute", "funcargs", "Function"),
        key("'setup'"),
        item(2, "tuple"),
    ]
    held = [holding_of(PREFIX + json.dumps([*named, item(step)])) for step in range(4)]

    assert {as_written(each) for each in grown(held)} == {"setup[2]"}


def test_a_state_in_the_fields_of_objects_is_cut_in_each_field():
    """The layers of a cache of keys and values have no detach()."""
    fields = [(item(0, "list"), ("attribute", field, "Layer"), ("graph", "", 640)) for field in ("k", "v")]
    found = seen(*((step, way) for step in range(7) for way in fields))

    edit = advice("undetached_state", "trainer", found[0], "simulated", found)

    assert edit.endswith("for each in trainer: each.k = each.k.detach(); each.v = each.v.detach()")


@pytest.mark.parametrize(
    ("ways", "state"),
    [
        (((item(0), item(1, "tuple")),), lambda new: [(new(), new()), (new(), new())]),
        (((key("'a'"), item(0)), (key("'b'"), item(1))), lambda new: {"a": [new()], "b": [new(), new()]}),
        (((item(0, "tuple"), key("'h'"), item(1)),), lambda new: ({"h": [new(), new()]}, {"h": [new()]})),
    ],
)
def test_the_edit_of_a_nested_state_cuts_the_graph_of_each_of_its_tensors(ways, state):
    """A cache of keys and values is a list of pairs, and a pair has no detach()."""
    trainer = state(lambda: torch.ones(2, requires_grad=True) * 2)
    found = seen(*((step, (*way, ("graph", "", 640))) for step in range(7) for way in ways))

    edit = advice("undetached_state", "trainer", found[0], "simulated", found)
    after = {"trainer": trainer}
    exec(edit.removeprefix("cut the graph between steps: "), after)

    tensors, spec = tree_flatten(after["trainer"])
    assert spec == tree_flatten(trainer)[1]
    assert [each.requires_grad for each in tensors] == [False] * len(tensors)


def test_the_edit_of_a_state_of_several_shapes_names_no_expression():
    """One comprehension does not fit both a tensor and a pair."""
    ways = [(item(0),), (item(1), item(0, "tuple"))]
    found = seen(*((step, (*way, ("graph", "", 640))) for step in range(7) for way in ways))

    edit = advice("undetached_state", "trainer", found[0], "simulated", found)

    assert edit == "cut the graph between steps: detach() every tensor in trainer"


def test_the_two_tensors_of_a_recurrent_state_are_no_list_that_gets_longer():
    """After seven steps: one leads to the blocks of all of them, the other to its own only."""
    ways = [(step, (item(0, "tuple"), ("graph", "", 640))) for step in range(7)]
    found = seen(*ways, (6, (item(1, "tuple"),)))

    assert {container_of(each) for each in found} == {""}
    assert cause_of(facts(found[:4], retains_graph=True)) == "undetached_state"
    assert advice("undetached_state", "trainer", found[0], "simulated") == (
        "cut the graph between steps: trainer = tuple(state.detach() for state in trainer)"
    )


@pytest.mark.parametrize(
    ("cause", "numel", "code", "edit"),
    [
        ("retain_graph", 1, "D_losses.append(errD)", "D_losses.append(errD.item())"),
        ("retain_graph", 9, "self.errors.append(e)", "self.errors.append(e.detach())"),
        ("loss_with_graph", 1, "total += loss / n", "total += (loss / n).item()"),
        ("loss_with_graph", 1, "total = total + loss  # all", "total = (total + loss).item()"),
        ("loss_with_graph", 1, "self.sum = self.sum + x * n", "self.sum = float(self.sum + x * n)"),
        ("loss_with_graph", 1, "meter.sum += x", "meter.sum += float(x)"),
    ],
)
def test_the_edit_is_of_the_statement_that_keeps_it(cause, numel, code, edit):
    kept = ("kept_at", "train.py", 3, code, -1)
    found = seen(*((step, (item(step), ("graph", "", numel), kept)) for step in range(4)))

    assert edit in advice(cause, "it", found[0], "simulated")


@pytest.mark.parametrize(
    "code", ["out.append((a, b))", "out.append(x.detach())", "seen[step] = {", "f(a, b)"]
)
def test_a_statement_that_keeps_something_else_is_not_edited(code):
    kept = ("kept_at", "train.py", 3, code, -1)
    found = seen(*((step, (item(step), kept)) for step in range(4)))

    assert code not in advice("kept_output", "out", found[0], "simulated")


def test_a_file_is_not_advised_to_ask_the_recorder():
    assert "explain_leaks" not in advice("unknown", None, None, "snapshot")
    assert "explain_leaks" in advice("unknown", None, None, "cuda")


def test_an_unknown_cause_has_advice_also_where_a_statement_keeps_it():
    kept = ("kept_at", "train.py", 3, "seen.append(x)", -1)
    found = seen(*((step, (item(step), kept)) for step in range(4)))

    assert "explain_leaks" in advice("unknown", "seen", found[0], "simulated")


def test_a_line_of_another_file_is_given_with_the_file():
    assert line_words("train.py", 8, ["train.py"]) == "line 8"
    assert line_words("/app/memory.py", 8, ["/app/train.py"]) == "memory.py:8"
    assert line_words("C:\\app\\memory.py", 8, []) == "memory.py:8"


def test_a_list_that_gets_an_item_every_few_steps_gets_longer():
    """Each call of an inference makes several steps, and its result leads into its graph."""
    ways = [(5 * call + step, (attribute("kept"), item(call), ("graph", "", 640))) for call in range(8)
            for step in range(6)]  # fmt: skip
    found = seen(*ways)

    assert {root_of(each) for each in found} == {"trainer.kept"}
    assert cause_of(facts(found)) == "kept_output"


def test_of_lists_in_the_items_of_a_list_that_gets_longer_the_outer_one_is_named():
    ways = [(6 * turn + step, (attribute("turns"), item(turn), attribute("scores"), item(step)))
            for turn in range(7) for step in range(6)]  # fmt: skip

    assert {root_of(each) for each in seen(*ways)} == {"trainer.turns"}


def test_the_states_of_many_layers_are_no_list_that_gets_longer():
    """Each leads to the blocks of all steps."""
    ways = [(step, (item(layer), ("graph", "", 640))) for layer in range(12) for step in range(40)]

    assert {cause_of(facts(seen(*ways)))} == {"undetached_state"}


def test_the_last_few_states_are_no_list_that_gets_longer():
    """The graph of the oldest one leads to all steps before."""
    oldest = [(step, (item(0), ("graph", "", 640))) for step in range(8)]
    found = seen(*oldest, *((7 + at, (item(at), ("graph", "", 640))) for at in (1, 2)))

    assert {cause_of(facts(found))} == {"undetached_state"}


@pytest.mark.usefixtures("own_tensors_only")
@pytest.mark.parametrize("apart", [False, True])
def test_a_line_that_makes_and_keeps_is_named_once(tmp_path, apart):
    """The place of a finding stands beside its claim."""
    kept, ones = [], []
    with vramscope.record(tmp_path, device="simulated", quiet=True):
        net = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(20):
            net(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if apart:
                made = torch.ones(1 << 16)
                kept.append(made)
            else:
                ones.append(torch.ones(1 << 16))
    (said,) = [each for each in findings(vramscope.load(tmp_path).recordings[0]) if each.kind == "leak"]

    assert said.file == __file__
    assert f"line {said.line}" not in said.claim
    assert (f"`kept.append(made)` in line {said.line + 1}" in said.claim) == apart
    assert "`ones.append(torch.ones(1 << 16))`)" in said.claim or apart
