"""What Grafana does with a dashboard: it fills in variables, and asks Prometheus for each panel.

A stand-in: Grafana itself comes with neither Debian nor PyPI nor npm. It reads of a dashboard what
Grafana reads, and asks the same addresses of Prometheus; it draws nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from launched import free_port
from recording import wait_for

#: From one scrape to the next, s: the text is made every five seconds, and a rate needs two.
SCRAPE_S = 2
#: Points of a panel's line at most.
_POINTS = 100


class Answer(NamedTuple):
    """What Prometheus says of one query: series of labels and of points (time in s, value)."""

    panel: str
    legend: str
    series: list[tuple[dict[str, str], list[tuple[float, float]]]]

    @property
    def has_data(self) -> bool:
        """Whether there is anything to draw."""
        return any(math.isfinite(value) for _, points in self.series for _, value in points)


class Prometheus:
    """One that runs, with its clients' view of it."""

    def __init__(self, url: str) -> None:
        """Ask it here."""
        self._url = url

    def get(self, path: str, **words: str) -> Any:
        """Ask for data.

        Raises:
            AssertionError: it refuses: the query is wrong.
        """
        address = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{words}: {error.read().decode()}") from error

    def is_up(self) -> bool:
        """Whether it answers."""
        address = f"{self._url}/-/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):
            return True
        return False


@contextlib.contextmanager
def prometheus(folder: Path, *targets: str, rules: Path) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes these addresses as docs/metrics-export.md says."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    every = f"{SCRAPE_S}s"
    scrape = {
        "job_name": "haiprof",
        "scrape_interval": every,
        "scrape_timeout": every,
        "honor_labels": True,
        "static_configs": [{"targets": list(targets)}],
    }
    settings = {
        "global": {"evaluation_interval": every},
        "rule_files": [str(rules)],
        "scrape_configs": [scrape],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            one = Prometheus(f"http://{address}")
            wait_for(lambda: one.is_up() or process.poll() is not None, what="Prometheus")
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            yield one
        finally:
            process.kill()
            process.wait()


def variables(board: Mapping[str, Any], of: Prometheus) -> dict[str, str]:
    """Return what the variables of a dashboard stand for once it is opened: the first choice."""
    chosen: dict[str, str] = {}
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert asked is not None, variable
        match = _filled(asked[1], chosen)
        values = sorted(of.get(f"label/{asked[2]}/values", **{"match[]": match}))
        assert values, f"${variable['name']}: nothing to choose from"
        chosen[variable["name"]] = variable.get("allValue", "") or values[0]
    return chosen


def _filled(expression: str, chosen: Mapping[str, str]) -> str:
    for name, value in chosen.items():
        expression = re.sub(rf"\$(\{{{name}\}}|{name}\b)", lambda _, v=value: v, expression)  # type: ignore[misc]
    assert "$" not in expression, f"a variable that there is not: {expression}"
    return expression


def ask(board: Mapping[str, Any], of: Prometheus, last_s: float) -> list[Answer]:
    """Return what each query of each panel gets, of the last so many seconds."""
    now = time.time()
    step = max(1.0, last_s / _POINTS)
    rate = max(step + SCRAPE_S, 4 * SCRAPE_S)
    chosen = {
        **variables(board, of),
        "__rate_interval": f"{math.ceil(rate)}s",
        "__interval": f"{math.ceil(step)}s",
    }
    found = []
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = _filled(target["expr"], chosen)
            if target.get("instant"):
                rows = of.get("query", query=query, time=f"{now}")["result"]
                points = [[row["value"]] for row in rows]
            else:
                begin, every = f"{now - last_s}", f"{step}"
                rows = of.get("query_range", query=query, start=begin, end=f"{now}", step=every)
                rows = rows["result"]
                points = [row["values"] for row in rows]
            series = [
                (row["metric"], [(at, float(value)) for at, value in values])
                for row, values in zip(rows, points, strict=True)
            ]
            found.append(Answer(panel["title"], target.get("legendFormat", ""), series))
    return found
