"""The bench itself: its plan, its measure of the truth, its score."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from faults import bench, drawn, healthy, record, score, truth
from faults.cases import KINDS, Case
from faults.programs.parts import settings

from haiprof import Analyzer

PROGRAMS = sorted(record.PROGRAMS.rglob("*.py"))
#: Words that would give a fault away; beside them, the names of all kinds.
TELLING = (
    "bubble", "crash", "died", "garbage", "leak", "neighbo", "plant", "preempt", "quota",
    "recompil", "regress", "slow", "stall", "starv", "straggl", "uneven",
)  # fmt: skip
SECOND = 1_000_000_000


def of(kind: str | None, **changes: Any) -> dict[str, Any]:
    """Return what is true of a run that lost two of its ten seconds."""
    known = {"lost_low_ns": 2 * SECOND, "lost_high_ns": 2 * SECOND, "measure": "tasks"}
    return {
        "label": "a run", "kind": kind, "also": [], "seed": 0, "ranks": [], "places": [],
        "time_ns": 10 * SECOND, "ready_ns": 0, "fetch_share": 0.0, "exit_code": 0,
        "blocked_share": 0.0,
        **known, **changes,
    }  # fmt: skip


def said(*kinds: str, **more: Any) -> list[dict[str, Any]]:
    return [{"kind": kind, "ranks": [0], "line": None, "lost_ns": None, **more} for kind in kinds]


class TestPlan:
    def test_every_kind_has_a_plant_or_a_reason(self) -> None:
        assert set(drawn.DRAWS) | set(drawn.NOT_PLANTED) == set(KINDS)
        assert not set(drawn.DRAWS) & set(drawn.NOT_PLANTED)

    @pytest.mark.parametrize("kind", drawn.DRAWS)
    def test_a_seed_draws_the_same_again_and_another_seed_something_else(self, kind: str) -> None:
        cases = [drawn.case(kind, seed) for seed in range(6)]
        assert drawn.case(kind, 3) == cases[3]
        drawn_of = [json.dumps({**vars(c), "seed": 0, "job": {**c.job, "seed": 0}}) for c in cases]
        assert len(set(drawn_of)) > 1
        assert len({case.name for case in cases}) == len(cases)

    @pytest.mark.parametrize("kind", drawn.DRAWS)
    def test_programs_know_what_they_are_asked_for(self, kind: str) -> None:
        for seed in range(6):
            case = drawn.case(kind, seed)
            for task in case.job["tasks"]:
                assert settings.Task(**task).do in tasks_of_programs()
            assert (record.PROGRAMS / f"{case.style}.py").is_file()
            assert case.measure in {"", "stopped", *truth.MEASURES}

    def test_both_halves_of_the_seeds_have_all_variants(self) -> None:
        for count in (2, 3, 4, 5):
            for half in (0, 1):
                seeds = range(half, half + 2 * count * count, 2)
                assert {drawn.way(seed, count) for seed in seeds} == set(range(count))

    def test_there_are_thirty_healthy_runs_that_differ(self) -> None:
        cases = healthy.cases()
        assert len({json.dumps([c.style, c.job, c.world, c.conditions]) for c in cases}) >= 30
        assert {case.kind for case in cases} == {None}
        assert len({case.name for case in cases}) == len(cases)


def tasks_of_programs() -> set[str]:
    """Return the names of tasks, without importing what needs torch."""
    tree = ast.parse((record.PROGRAMS / "parts" / "tasks.py").read_text("utf-8"))
    (found,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "KINDS"
    )
    assert isinstance(found, ast.Dict)
    return {str(ast.literal_eval(key)) for key in found.keys if key is not None}


def telling(name: str) -> bool:
    """Whether a name would give a fault away to whoever sees it in a stack."""
    name = name.lower().replace("default", "")
    return name in KINDS or "fault" in name or any(word in name for word in TELLING)


class TestNames:
    @pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
    def test_no_name_in_a_program_says_what_is_wrong(self, path: Path) -> None:
        names = {path.stem}
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
                names.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
        assert [name for name in sorted(names) if telling(name)] == []

    def test_such_a_name_would_be_seen(self) -> None:
        assert telling("slow_item")
        assert telling("Straggler")
        assert telling("gil")
        assert telling("faulty")
        assert not telling("prepare")
        assert not telling("default_collate")

    def test_a_folder_does_not_say_what_is_in_it(self) -> None:
        name = drawn.case("slow_loader", 0).name
        assert re.fullmatch("[0-9a-f]{10}", name)


class TestScore:
    def test_the_first_that_is_said_counts(self) -> None:
        row = score.judge(of("gil"), said("gil", "host_code"))
        assert (row.first, row.named) == (True, True)
        row = score.judge(of("gil"), said("host_code", "gil"))
        assert (row.first, row.named) == (False, True)
        row = score.judge(of("gil"), [])
        assert (row.first, row.named, row.lost) == (False, False, None)

    def test_how_often_a_kind_is_right_when_it_is_said(self) -> None:
        rows = [
            score.judge(of("gil"), said("gil", "host_code")),
            score.judge(of("gil"), said("gil")),
            score.judge(of("host_code", also=["slow_batch"]), said("slow_batch")),
            score.judge(of(None), said("gil")),
        ]
        assert "| `gil` | 2 of 3 (" in score.trust(rows)
        assert "| `host_code` | 0 of 1 (" in score.trust(rows)
        assert "| `slow_batch` | 1 of 1 (" in score.trust(rows)

    def test_another_name_of_the_same_cause_counts(self) -> None:
        assert score.judge(of("slow_link", also=["packet_loss"]), said("packet_loss")).first

    @pytest.mark.parametrize(
        ("lost", "right"),
        [(1.49, False), (1.51, True), (2.0, True), (2.49, True), (2.51, False), (None, False)],
    )
    def test_the_lost_time_may_be_off_by_a_quarter(self, lost: float | None, right: bool) -> None:
        ns = None if lost is None else int(lost * SECOND)
        assert score.judge(of("gil"), said("gil", lost_ns=ns)).lost is right

    def test_a_loss_that_is_not_known_is_not_judged(self) -> None:
        true = of("crash", measure="", lost_low_ns=None, lost_high_ns=None)
        assert score.judge(true, said("crash", lost_ns=5)).lost is None

    def test_cores_that_others_took_are_no_false_alarm(self) -> None:
        shared = {"ready_ns": 4 * SECOND}
        assert score.judge(of(None, **shared), said("cpu_neighbour")).alarm is False
        assert score.judge(of(None), said("cpu_neighbour")).alarm is True
        assert score.judge(of(None, **shared), said("straggler")).alarm is True
        late = said("straggler", phase="cpu_queue")
        assert score.judge(of(None, **shared), late).alarm is False
        assert score.judge(of(None), late).alarm is True
        assert score.judge(of("gil", **shared), said("cpu_neighbour", "gil")).first is True
        assert (
            score.judge(of("cpu_quota", **shared), said("cpu_neighbour", "cpu_quota")).first
            is False
        )

    def test_an_exchange_that_nothing_hides_is_no_false_alarm(self) -> None:
        shown = said("exposed_communication")
        assert score.judge(of(None, blocked_share=0.05), shown).alarm is False
        assert score.judge(of(None, blocked_share=0.01), shown).alarm is True
        true = of("slow_link", blocked_share=0.5)
        assert score.judge(true, said("exposed_communication", "slow_link")).first is False

    def test_a_plant_that_cost_nearly_nothing_is_not_counted(self) -> None:
        row = score.judge(of("gil", lost_high_ns=SECOND // 4), said("gil"))
        assert row.usable == "it cost 2.5% only"
        assert row.first is None

    def test_a_healthy_run_that_is_not_is_not_counted(self) -> None:
        assert score.judge(of(None, fetch_share=0.04), []).usable == "its loader costs 4.0%"
        assert score.judge(of(None, exit_code=1), []).usable == "it ended with 1"

    def test_ranks_and_line_are_looked_at(self) -> None:
        true = of("straggler", ranks=[2], places=["prepare"])
        right = said("straggler", ranks=[2], line="Rows.prepare (/a/train.py:3)")
        wrong = said("straggler", ranks=[1], line="main (/a/train.py:3)")
        assert (score.judge(true, right).ranks, score.judge(true, right).place) == (True, True)
        assert (score.judge(true, wrong).ranks, score.judge(true, wrong).place) == (False, False)

    @pytest.mark.parametrize(
        ("right", "of_all", "low", "high"),
        [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (0, 0, 0.0, 1.0)],
    )
    def test_intervals_are_wilsons(self, right: int, of_all: int, low: float, high: float) -> None:
        assert score.wilson(right, of_all) == pytest.approx((low, high), abs=5e-5)

    def test_the_table_has_a_row_for_each_kind_and_keeps_the_halves_apart(self) -> None:
        rows = [
            score.judge(of("gil", seed=0), said("gil", lost_ns=2 * SECOND)),
            score.judge(of("gil", seed=1), said("host_code")),
            score.judge(of(None, seed=2), said("crash")),
        ]
        lines = score.table(rows, {"crash": "not here"}).splitlines()
        for kind in KINDS:
            assert [line for line in lines if line.startswith(f"| `{kind}` |")]
        assert "| `gil` | 2 | 1 of 2 | 1 of 2 | 1 of 1 |  |  | host_code |" in lines
        assert "| `crash` | 0 | | | | | | not here |" in lines
        assert any(line.startswith("| **seeds for tuning** | 1 | 1 of 1, 100%") for line in lines)
        assert any(line.startswith("| **seeds for validation** | 1 | 0 of 1, 0%") for line in lines)
        assert any(line.startswith("| seeds for tuning | 1 of 1, 100%") for line in lines)
        assert "| seeds for validation | none were run |" in lines


def note(step: int, **parts: tuple[int, int, int]) -> dict[str, Any]:
    return {"step": step, "at": (step + 1) * 100, **parts}


def true_of(case: Case, folder: Path, *ranks: list[dict[str, Any]]) -> dict[str, Any]:
    for rank, lines in enumerate(ranks):
        first = {"pid": 1, "rank": rank, "at": 0}
        text = "".join(json.dumps(line) + "\n" for line in [first, *lines])
        (folder / f"notes-{rank}.jsonl").write_text(text)
    return truth.truth(case, folder, {}, 0)


class TestTruth:
    def test_it_is_well_formed(self, tmp_path: Path) -> None:
        case = drawn.case("host_code", 0)
        found = true_of(case, tmp_path, [note(0, forward=(9, 6, 2), tasks=(4, 3, 1))])
        assert (found["format"], found["version"]) == ("haiprof-planted", "1.0")
        assert (found["kind"], found["seed"], found["exit_code"]) == ("host_code", 0, 0)
        assert (found["lost_low_ns"], found["lost_high_ns"]) == (3, 4)
        assert (found["time_ns"], found["ready_ns"], found["steps"]) == (9, 2, 1)
        assert json.loads(json.dumps(found)) == found
        assert score.judge(found, said("host_code", lost_ns=4)).first

    def test_it_is_measured_again_from_what_the_program_wrote(self, tmp_path: Path) -> None:
        case = drawn.case("host_code", 0)
        (work := tmp_path / "work").mkdir()
        found = true_of(case, work, [note(0, tasks=(4, 3, 1))]) | {"wall_s": 1.0}
        (tmp_path / "truth.json").write_text(json.dumps(found | {"lost_high_ns": 0}))
        assert truth.read(tmp_path) == found

    def test_a_job_that_was_killed_has_what_it_wrote(self, tmp_path: Path) -> None:
        case = drawn.case("crash", 0)
        true_of(case, tmp_path, [note(0, forward=(9, 6, 2))])
        with (tmp_path / "notes-0.jsonl").open("a") as file:
            file.write('{"step": 1, "at"')
        found = truth.truth(case, tmp_path, {}, -9)
        assert (found["steps"], found["lost_high_ns"]) == (1, None)

    def test_one_rank_that_works_longer_costs_what_is_above_the_mean(self, tmp_path: Path) -> None:
        case = Case("", "uneven_exchange", 0, "experts", {}, 2, "spread")
        found = true_of(
            case, tmp_path, [note(0, forward=(50, 30, 15))], [note(0, forward=(50, 10, 0))]
        )
        assert (found["lost_low_ns"], found["lost_high_ns"]) == (10, 15)

    def test_a_thread_that_is_blocked_more_than_before(self, tmp_path: Path) -> None:
        job = {"tasks": [drawn.task("between", "aside", since=4, what="count")]}
        lines = [note(n, forward=(30, 20, 5) if n < 4 else (90, 20, 25)) for n in range(8)]
        found = true_of(Case("", "gil", 0, "train", job, 1, "blocked"), tmp_path, lines)
        assert (found["lost_low_ns"], found["lost_high_ns"]) == (160, 240)

    def test_what_all_ranks_wait_for_and_what_one_does_are_two_things(self, tmp_path: Path) -> None:
        case = Case("", None, 0, "parallel", {}, 2)
        one = [note(n, backward=(100, 60, 30)) for n in range(4)]
        other = [note(n, backward=(100, 20, 0)) for n in range(4)]
        assert true_of(case, tmp_path, one, other)["blocked_share"] == 0.1

    def test_a_limit_is_charged_for_what_it_took_and_not_for_its_neighbours(
        self, tmp_path: Path
    ) -> None:
        case = drawn.case("cpu_quota", 0)
        true_of(case, tmp_path, [note(0, forward=(90, 20, 70))])
        found = truth.truth(case, tmp_path, {"throttled_ns": 40.0}, 0)
        assert (found["lost_low_ns"], found["lost_high_ns"]) == (40, 40)

    def test_an_exchange_is_not_charged_for_who_comes_late(self, tmp_path: Path) -> None:
        case = Case("", "small_collectives", 0, "parallel", {}, 2, "exchanged")
        found = true_of(
            case, tmp_path,
            [note(0, backward=(40, 5, 0), exchange=(30, 1, 0))],
            [note(0, backward=(40, 5, 0), exchange=(12, 1, 0))],
        )  # fmt: skip
        assert found["lost_high_ns"] == 12


def test_the_score_goes_between_the_comments_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = bench.MARKS
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    bench.write_page(page, "new", bench.MARKS)
    bench.write_page(page, "newer", bench.MARKS)
    assert page.read_text() == f"before\n{begin}\n\nnewer\n{end}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(SystemExit):
        bench.write_page(page, "new", bench.MARKS)


def test_the_page_has_a_place_for_the_score() -> None:
    text = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text("utf-8")
    begin, end = bench.MARKS
    assert text.index(begin) < text.index(end)


@pytest.mark.jobs
class TestPlantedJobs:
    """What a plant costs is in the run that haiprof recorded, too."""

    def made(self, case: Case, keep: Path) -> tuple[dict[str, Any], Any]:
        found = record.record(case, keep)
        assert found["exit_code"] == 0
        return found, Analyzer(keep / case.name / "logs" / "run").phases()

    def test_a_loader_that_works_too_long(self, tmp_path: Path) -> None:
        found, phases = self.made(drawn.case("slow_loader", 0), tmp_path)
        spent = phases.filter(phases["name"] == "dataloader")["duration"].sum()
        assert found["lost_high_ns"] > score.SMALLEST * found["time_ns"]
        assert spent == pytest.approx(found["lost_high_ns"], rel=0.25)

    def test_work_of_the_host_in_the_forward_pass(self, tmp_path: Path) -> None:
        case = drawn.case("host_code", 0)
        assert case.job["tasks"][0]["at"] == "forward"
        found, phases = self.made(case, tmp_path)
        forward = phases.filter(phases["name"] == "forward")["duration"].sum()
        lines = truth.read_notes(tmp_path / case.name / "work", 1)[0]
        assert forward == pytest.approx(sum(truth.part(line, "forward") for line in lines), rel=0.1)
        assert score.SMALLEST * found["time_ns"] < found["lost_high_ns"] < forward
