"""Dashboards and alerts ask for what the endpoint exposes, and alerts fire on what they are for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import haiprof
from haiprof.findings.kinds import KINDS
from haiprof.recorder.metrics.families import FAMILIES
from haiprof.recorder.metrics.sample_families import EXPORTED

FOLDER = Path(haiprof.__file__).parent / "dashboards"
BOARDS = ("job", "node", "ranks", "runs")
ALERTS = FOLDER / "alerts.yml"
#: What a panel's variables stand for.
VARIABLES = {"$__rate_interval": "1m", "$run": "r", "$rank": "0", "$node": "n"}
#: Labels of each series.
EXPOSED = {
    name: {"run", "node", "le" if end == "_bucket" else "run", *family.labels}
    for family in (*FAMILIES, *(exported.family for exported in EXPORTED.values()))
    for end in (("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",))
    for name in [f"{family.name}{end}"]
}
NODE = '{run="r",node="n"}'
RANK = '{run="r",node="n",rank="0",local_rank="0"}'


def board(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return content


def rules() -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]
    return content


def expressions() -> Iterator[tuple[str, str]]:
    for name in BOARDS:
        for panel in board(name)["panels"]:
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", target["expr"]
        for variable in board(name)["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{name}: ${variable['name']}", variable["definition"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_only_what_is_exposed_is_asked_for(where: str, expression: str) -> None:
    names = re.findall(r"\b(haiprof_\w+)(?:\{([^}]*)\})?", expression)
    assert names or expression == "vector(0)"
    for name, chosen in names:
        assert name in EXPOSED, where
        labels = set(re.findall(r"(\w+)(?:=|!)", chosen))
        assert labels <= EXPOSED[name], where
    asked = {name for name, _ in names}
    common = set.union(*(EXPOSED[name] for name in asked))
    for by in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(filter(None, by.replace(" ", "").split(","))) <= common, where


def test_each_dashboard_asks_its_own_source_and_has_a_name_of_its_own() -> None:
    boards = [board(name) for name in BOARDS]
    assert {path.stem for path in FOLDER.glob("*.json")} == set(BOARDS)
    assert len({one["uid"] for one in boards}) == len({one["title"] for one in boards}) == 4
    for one in boards:
        assert one["templating"]["list"][0]["type"] == "datasource"
        assert all(panel["datasource"]["uid"] == "${datasource}" for panel in one["panels"])
        assert all(panel["title"] and panel["description"] for panel in one["panels"])
        places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in one["panels"]]
        cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
        assert len(cells) == len(set(cells)), "panels lie over each other"
        assert max(x for x, _ in cells) < 24


def test_each_alert_names_the_finding_that_it_stands_for() -> None:
    found = rules()
    assert len(found) == len({rule["alert"] for rule in found}) == 12
    for rule in found:
        finding = rule["labels"]["finding"]
        assert finding in KINDS or finding == "{{ $labels.kind }}", rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}


def healthy() -> dict[str, str]:
    """Return the series of a rank whose steps take half a second, by the minute."""

    def of(name: str, labels: str) -> str:
        return f"haiprof_{name}{RANK[:-1]}{labels}}}"

    return {
        of("step_duration_seconds_sum", ""): "0+60x180",
        of("step_duration_seconds_count", ""): "0+120x180",
        of("steps_total", ""): "0+120x180",
        of("last_step_timestamp_seconds", ""): "0+60x180",
        of("phase_seconds_total", ',phase="dataloader"'): "0+3x180",
        of("pause_seconds_total", ',kind="gc"'): "0+1x180",
        of("pause_seconds_total", ',kind="checkpoint"'): "0+2x180",
        of("pause_seconds_total", ',kind="compile"'): "20+0x180",
        of("gpu_observed_seconds_total", ""): "0+10x180",
        of("gpu_busy_seconds_total", ""): "0+9x180",
        of("comm_exposed_seconds_total", ""): "0+1x180",
        of("lag_seconds", ""): "0.01+0x180",
        of("state", ',state="running"'): "1+0x180",
        of("state", ',state="hung"'): "0+0x180",
        of("state", ',state="failed"'): "0+0x180",
    }


#: What differs from a healthy rank, by the alert that is to fire.
FAULTS = {
    "": ("", ""),
    "HaiprofRankHangs": ('state="hung"', "1+0x180"),
    "HaiprofNoSteps": ("last_step_timestamp", "3000+0x180"),
    "HaiprofRankFailed": ('state="failed"', "1+0x180"),
    "HaiprofStepsSlower": ("step_duration_seconds_sum", "0+60x90 5490+90x90"),
    "HaiprofSlowLoader": ('phase="dataloader"', "0+20x180"),
    "HaiprofStraggler": ("lag_seconds", "0.2+0x180"),
    "HaiprofExposedCommunication": ("comm_exposed", "0+5x180"),
    "HaiprofGpuIdle": ("gpu_busy", "0+5x180"),
    "HaiprofGarbageCollection": ('kind="gc"', "0+5x180"),
    "HaiprofCheckpoints": ('kind="checkpoint"', "0+10x180"),
    "HaiprofRecompilation": ('kind="compile"', "0+5x180"),
    "HaiprofFinding": ("haiprof_finding_info", "1+0x180"),
}


def promtool(*words: str | Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run([program, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_on_its_fault_and_on_no_other(tmp_path: Path) -> None:
    assert {name for name in FAULTS if name} == {rule["alert"] for rule in rules()}
    tests = []
    for alert, (part, values) in FAULTS.items():
        series = healthy()
        changed = [name for name in series if part and part in name]
        if alert == "HaiprofFinding":
            changed = [f'haiprof_finding_info{NODE[:-1]},kind="gil"}}']
        assert len(changed) == (1 if alert else 0)
        series.update((name, values) for name in changed)
        fires = [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else []
        tests.append(
            {
                "name": alert or "healthy",
                "interval": "1m",
                "input_series": [{"series": k, "values": v} for k, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": "105m",
                        "exp_samples": fires,
                    }
                ],
            }
        )
    document = {"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(document))
    promtool("test", "rules", tmp_path / "tests.yml")


def test_promtool_reads_alerts_and_panels(tmp_path: Path) -> None:
    promtool("check", "rules", ALERTS)
    asked = []
    for where, expression in expressions():
        if "label_values(" in expression:  # Grafana's own
            continue
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        assert "$" not in expression, where
        asked.append({"record": f"panel:{len(asked)}", "expr": expression})
    (tmp_path / "panels.yml").write_text(
        yaml.safe_dump({"groups": [{"name": "panels", "rules": asked}]})
    )
    promtool("check", "rules", tmp_path / "panels.yml")


def test_the_page_has_each_alert_and_what_it_stands_for() -> None:
    page = (Path(__file__).parents[1] / "docs" / "dashboards.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(Haiprof\w+)` \| ([^|]*) \|", page, re.MULTILINE))
    known = {rule["alert"]: rule["labels"]["finding"] for rule in rules()}
    assert rows == {
        alert: "as `kind` says" if finding.startswith("{{") else f"`{finding}`"
        for alert, finding in known.items()
    }
