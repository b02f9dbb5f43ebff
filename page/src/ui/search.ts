// Searches everything that has a name: findings, tabs, series, lanes, frames, tables.
import type { Document, Place, Section } from "../document.ts";
import { h } from "./dom.ts";
import type { Page } from "./figure.ts";

interface Entry {
  text: string;
  folded: string;
  kind: string;
  where: string;
  place: Place;
}

const MOST = 80;

function* ofSection(section: Section): Iterable<[string, string, Partial<Place>]> {
  yield ["section", section.title, {}];
  if (section.kind === "findings") {
    for (const finding of section.items) yield ["finding", `${finding.title}: ${finding.text}`, finding.place ?? {}];
  } else if (section.kind === "text") {
    for (const line of section.lines) yield ["text", line, {}];
  } else if (section.kind === "series") {
    for (const line of section.lines) yield ["series", line.name, {}];
    for (const mark of section.marks ?? []) yield ["event", `${mark.kind}: ${mark.text}`, { from: mark.at, to: mark.to ?? mark.at }];
  } else if (section.kind === "heat") {
    for (const row of section.rows) yield ["rank", row.label, row.rank === undefined ? {} : { rank: row.rank }];
  } else if (section.kind === "lanes") {
    const names = new Set<string>();
    for (const lane of section.lanes) {
      yield ["lane", `${lane.group} ${lane.name}`, { find: lane.name }];
      for (const name of lane.names) names.add(name);
    }
    for (const name of names) yield ["in a step", name, { find: name }];
  } else if (section.kind === "flame") {
    for (let i = 0; i < section.names.length; i++) {
      yield ["code", section.places[i] && !section.names[i].includes(section.places[i]) ? `${section.names[i]} (${section.places[i]})` : section.names[i], { frame: section.names[i] }];
    }
  } else if (section.kind === "table") {
    for (const column of section.columns) {
      if (!Array.isArray(column.values)) continue;
      const cells = new Set(column.values.filter((value): value is string => typeof value === "string"));
      for (const cell of cells) yield ["table", cell, { find: cell }];
    }
  } else if (section.kind === "bars") {
    for (let i = 0; i < section.categories.length; i++) yield ["bar", section.categories[i], section.places?.[i] ?? {}];
  }
}

export function entriesOf(document: Document): Entry[] {
  const entries: Entry[] = [];
  // The same name in the sections of several ranks is found once.
  const known = new Set<string>();
  for (const tab of document.tabs) {
    entries.push({ text: tab.title, folded: tab.title.toLowerCase(), kind: "tab", where: "", place: { tab: tab.id } });
    for (const section of tab.sections) {
      for (const [kind, text, place] of ofSection(section)) {
        const key = `${kind}\0${text}\0${tab.id}\0${section.title}`;
        if (section.rank !== undefined && known.has(key)) continue;
        known.add(key);
        const own: Place = { tab: tab.id, section: section.id, ...(section.rank === undefined ? {} : { rank: section.rank }), ...place };
        entries.push({ text, folded: text.toLowerCase(), kind, where: `${tab.title} › ${section.title}`, place: own });
      }
    }
  }
  return entries;
}

/** Those that have every word, the better ones first: short ones, and those that begin with the first word. */
export function matching(entries: Entry[], query: string, most = MOST): Entry[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return entries.filter((entry) => entry.kind === "tab" || entry.kind === "finding").slice(0, most);
  const found: [number, Entry][] = [];
  for (const entry of entries) {
    if (!words.every((word) => entry.folded.includes(word))) continue;
    const at = entry.folded.indexOf(words[0]);
    const starts = at === 0 ? 0 : /\W/.test(entry.folded[at - 1]) ? 1 : 2;
    found.push([starts * 1000 + Math.min(900, entry.text.length), entry]);
  }
  return found.sort((a, b) => a[0] - b[0]).slice(0, most).map(([, entry]) => entry);
}

export class Search {
  private entries?: Entry[];
  private found: Entry[] = [];
  private at = 0;
  private input = h<HTMLInputElement>("input", {
    type: "search", role: "combobox", "aria-expanded": "true", "aria-controls": "found", "aria-autocomplete": "list",
    "aria-label": "Search findings, series, lanes, frames and tables", placeholder: "Search findings, series, lanes, frames, tables",
    autocomplete: "off", spellcheck: "false",
  });
  private list = h("ul", { id: "found", role: "listbox", "aria-label": "Found" });
  private count = h("p.note", { role: "status" });
  readonly element = h<HTMLDialogElement>("dialog.search", { "aria-label": "Search" }, this.input, this.count, this.list);

  constructor(private page: Page) {
    this.input.addEventListener("input", () => this.look());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("click", (event) => event.target === this.element && this.element.close());
  }

  open(): void {
    if (this.element.open) return;
    this.element.showModal();
    this.input.select();
    this.look();
  }

  /** The document is another now. */
  forget(): void {
    this.entries = undefined;
  }

  private look(): void {
    this.entries ??= entriesOf(this.page.document);
    this.found = matching(this.entries, this.input.value);
    this.at = 0;
    this.count.textContent = this.found.length === MOST ? `The first ${MOST}` : `${this.found.length} found`;
    this.list.replaceChildren(...this.found.map((entry, i) =>
      h("li", { role: "option", id: `found-${i}`, onclick: () => this.choose(i), onpointermove: () => this.mark(i) },
        h("span.kind", {}, entry.kind), h("span.text", {}, entry.text), h("span.where", {}, entry.where))));
    this.mark(0);
  }

  private mark(i: number): void {
    this.list.children[this.at]?.setAttribute("aria-selected", "false");
    this.at = i;
    const chosen = this.list.children[i];
    chosen?.setAttribute("aria-selected", "true");
    chosen?.scrollIntoView({ block: "nearest" });
    if (chosen) this.input.setAttribute("aria-activedescendant", chosen.id);
    else this.input.removeAttribute("aria-activedescendant");
  }

  private key(event: KeyboardEvent): void {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (by) this.mark(Math.max(0, Math.min(this.found.length - 1, this.at + by)));
    else if (event.key === "Enter") this.choose(this.at);
    else return;
    event.preventDefault();
  }

  private choose(i: number): void {
    const entry = this.found[i];
    if (!entry) return;
    this.element.close();
    this.page.go(entry.place);
  }
}
