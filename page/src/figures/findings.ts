// What is wrong: each finding with what it costs, how to mend it and where to see it.
import { amount, seconds } from "../common/numbers.ts";
import type { Finding, Findings, Place } from "../document.ts";
import { toHash } from "../common/hash.ts";
import { h } from "../ui/dom.ts";
import type { Figure, Made, Page } from "../ui/figure.ts";

export function placeLink(page: Page, place: Place, text: string, className = ""): HTMLElement {
  return h(`a${className}`, {
    href: toHash(place),
    onclick: (event: MouseEvent) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      page.go(place);
    },
  }, text);
}

export function ranksText(ranks: number[]): string {
  const parts: string[] = [];
  for (let i = 0; i < ranks.length; ) {
    let j = i;
    while (j + 1 < ranks.length && ranks[j + 1] === ranks[j] + 1) j++;
    parts.push(j > i + 1 ? `${ranks[i]}–${ranks[j]}` : ranks.slice(i, j + 1).join(", "));
    i = j + 1;
  }
  const shown = parts.length > 12 ? [...parts.slice(0, 12), "…"] : parts;
  return `${ranks.length === 1 ? "rank" : "ranks"} ${shown.join(", ")}`;
}

function item(page: Page, finding: Finding, most: number): HTMLElement {
  const cost = h("div.cost", {});
  if (finding.lost !== undefined) {
    const bar = h("span.costbar", { "aria-hidden": "true" });
    bar.style.width = `${Math.max(2, (100 * finding.lost) / most)}%`;
    cost.append(h("strong", {}, seconds(finding.lost)), h("span", {}, "lost"));
    if (finding.share !== undefined) cost.append(h("span", {}, `${amount(finding.share, "share")} of the run`));
    cost.append(h("span.costtrack", { "aria-hidden": "true" }, bar));
  } else {
    cost.append(h("span.kind", {}, finding.severity === "problem" ? "problem" : "note"));
  }
  const facts = h("p.facts", {});
  if (finding.ranks?.length) facts.append(h("span", {}, ranksText(finding.ranks)));
  if (finding.line) facts.append(h("code", {}, finding.line));
  if (finding.confidence !== undefined) facts.append(h("span", {}, `confidence ${amount(finding.confidence, "share")}`));
  const title = finding.place ? placeLink(page, finding.place, finding.title) : document.createTextNode(finding.title);
  return h(`li.finding.${finding.severity === "problem" ? "problem" : "lesser"}`, {},
    cost,
    h("div.said", {},
      h("h3", {}, title),
      h("p", {}, finding.text),
      facts.childNodes.length ? facts : null,
      finding.fix ? h("p.fix", {}, h("b", {}, "Fix "), finding.fix) : null,
      finding.evidence.length
        ? h("ul.evidence", { "aria-label": "Evidence" },
            ...finding.evidence.map((evidence) => h("li", {}, evidence.place ? placeLink(page, evidence.place, evidence.text) : evidence.text)))
        : null));
}

export function findings({ section, page, body }: Made<Findings>): Figure {
  const most = Math.max(1e-12, ...section.items.map((finding) => finding.lost ?? 0));
  body.append(h("ol.findings", {}, ...section.items.map((finding) => item(page, finding, most))));
  return {
    draw() {},
    rows: () => ({
      head: ["finding", "severity", "text", "lost (s)", "share", "ranks", "line", "fix"],
      rows: section.items.map((found) => [
        found.title, found.severity, found.text, found.lost, found.share, found.ranks?.join(" "), found.line, found.fix,
      ]),
    }),
  };
}
