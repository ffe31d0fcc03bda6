"""The best nodes, and what is left to chance."""

from __future__ import annotations

from dra_gate.allocation import Outcome, best_nodes


def allocated(score: int) -> Outcome:
    return Outcome("allocated", score=score)


def test_scores_are_normalised_by_the_highest() -> None:
    best = best_nodes({"c": allocated(6), "b": allocated(7), "a": allocated(8), "none": Outcome("impossible")})
    assert best.scores == {"a": 100, "b": 87, "c": 75}
    assert (best.nodes, best.score, best.certain) == (("a",), 100, False)
    assert [words.startswith("a node with a lower choice can win all the same") for words in best.chance] == [True]
    assert "points" not in best.chance[0]


def test_the_second_choice_is_best_where_there_is_no_first() -> None:
    assert best_nodes({"a": allocated(7), "b": allocated(7)}).scores == {"a": 100, "b": 100}


def test_equals_are_drawn_by_lot() -> None:
    best = best_nodes({"b": allocated(8), "a": allocated(8)})
    assert best.nodes == ("a", "b")
    assert best.chance == ("2 nodes are equally good for devices: among equals the scheduler draws lots",)


def test_claims_without_alternatives_score_nothing() -> None:
    assert best_nodes({"a": allocated(0), "b": allocated(0)}).scores == {"a": 0, "b": 0}


def test_claims_that_are_allocated_count_on_every_node() -> None:
    assert best_nodes({"a": allocated(8), "b": allocated(7)}, base=8).scores == {"a": 100, "b": 93}


def test_one_node_is_certain() -> None:
    best = best_nodes({"a": allocated(7), "b": Outcome("invalid-pools")})
    assert (best.nodes, best.certain, best.chance) == (("a",), True, ())


def test_a_failure_or_an_unknown_makes_it_uncertain() -> None:
    failed = best_nodes({"a": allocated(8), "b": Outcome("failed", "CEL")})
    assert (failed.nodes, failed.certain) == (("a",), False)
    assert failed.chance == (
        "the attempt ends for all nodes when it meets b, unless it has found enough others before",
    )
    unknown = best_nodes({"a": allocated(8), **{f"b{n}": Outcome("cannot-evaluate") for n in range(5)}})
    assert unknown.chance == ("what b0, b1, b2 and 2 more nodes would give is not known here",)


def test_many_nodes_are_sampled() -> None:
    outcomes = {f"n{number:03}": allocated(8 if number == 7 else 7) for number in range(101)}
    best = best_nodes(outcomes)
    assert best.nodes == ("n007",)
    assert best.chance[-1] == "with 101 nodes the scheduler looks at a sample only, and may not see the best"
    assert best_nodes({}).nodes == ()
