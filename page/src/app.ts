// The page: tabs, ranks, what is shown of the time axis, and the address that says so.
import type { Blobs } from "./common/columns.ts";
import { fromHash, toHash, type Spot } from "./common/hash.ts";
import { seconds, unbroken } from "./common/numbers.ts";
import type { Theme } from "./common/colours.ts";
import type { Document, Place, Section } from "./document.ts";
import { ranksText } from "./figures/findings.ts";
import { Axis, Shared } from "./ui/axis.ts";
import { eachFrame, h } from "./ui/dom.ts";
import type { Figure, Page, Pin } from "./ui/figure.ts";
import { Frame } from "./ui/frame.ts";
import { help } from "./ui/help.ts";
import { Keys } from "./ui/keys.ts";
import { Panel } from "./ui/panel.ts";
import { Search } from "./ui/search.ts";
import { Themes } from "./ui/themes.ts";
import { Tip } from "./ui/tip.ts";

/** More ranks are not offered as buttons. */
const MOST_BUTTONS = 8;

export class App implements Page {
  place: Place;
  readonly search = new Search(this);
  readonly panel = new Panel(this);
  readonly help = help();
  readonly themes = new Themes(() => this.themed());
  private tipped = new Tip();
  private live = h("div.outside", { role: "status", "aria-live": "polite" });
  private main = h("main", { id: "main", tabindex: -1 });
  private header = h("header.top", {});
  private axes = new Map<string, Axis>();
  private shared = new Map<string, Shared>();
  private frames = new Map<string, Frame[]>();
  private shown: Frame[] = [];
  private tabLinks = new Map<string, HTMLElement>();
  private rankChoice?: HTMLSelectElement;
  /** Whether the address, a link or the user has chosen a rank. */
  private rankAsked = false;
  private watch = new IntersectionObserver((entries) => this.seen(entries), { rootMargin: "200px" });
  private sizes = new ResizeObserver((entries) => this.resized(entries));
  private hovered?: Frame;

  constructor(root: HTMLElement, public document: Document, public blobs: Blobs) {
    const asked = fromHash(location.hash);
    this.place = { tab: this.known(asked.tab) };
    root.replaceChildren(h("a.skip", { href: "#main", onclick: (event: Event) => { event.preventDefault(); this.main.focus(); } }, "To the content"),
      this.header, this.main, this.panel.element, this.tipped.element, this.live, this.search.element, this.help);
    this.drawHeader();
    this.visit(asked);
    new Keys(this);
    addEventListener("hashchange", () => this.visit(fromHash(location.hash)));
    addEventListener("beforeprint", () => void this.printed());
  }

  get theme(): Theme {
    return this.themes.now;
  }

  /** Shown beside the title. */
  status(element: HTMLElement): void {
    this.header.querySelector(".titles")?.append(element);
  }

  /** The document is another now: what is shown stays. */
  renew(document: Document, blobs: Blobs): void {
    const position = scrollY;
    this.document = document;
    this.blobs = blobs;
    this.search.forget();
    for (const frames of this.frames.values()) for (const frame of frames) frame.end();
    this.frames.clear();
    const open = [...this.main.querySelectorAll("details")].map((fold) => [fold.querySelector("h2")?.textContent, fold.open]);
    const focused = globalThis.document.activeElement?.closest("section")?.id;
    for (const axis of this.axes.values()) if (axis.shared.name === "run") axis.extend([0, document.duration]);
    this.drawHeader();
    this.drawTab();
    for (const fold of this.main.querySelectorAll("details")) {
      const was = open.find(([title]) => title === fold.querySelector("h2")?.textContent);
      if (was) fold.open = was[1] as boolean;
    }
    if (focused) globalThis.document.getElementById(focused)?.querySelector<HTMLElement>('[role="application"]')?.focus({ preventScroll: true });
    scrollTo({ top: position });
  }

  // Places

  /** The tab of that name, or the first. */
  private known(tab: string): string {
    const { tabs } = this.document;
    return (tabs.find((each) => each.id === tab) ?? tabs[0])?.id ?? "";
  }

  go(place: Place): void {
    history.pushState(null, "", toHash(place));
    this.visit(place);
  }

  private visit(spot: Spot): void {
    const tab = this.known(spot.tab);
    this.rankAsked ||= spot.rank !== undefined;
    const rank = spot.rank ?? this.usualRank(tab);
    this.place = { ...spot, tab, rank };
    if (spot.from !== undefined || spot.view) {
      const axis = this.axis(tab, "run");
      if (spot.from !== undefined) {
        const range: [number, number] = [spot.from, spot.to ?? spot.from];
        axis.select(range);
        if (!spot.view) this.showRoughly(axis, range);
      }
      if (spot.view) axis.show(...spot.view);
    }
    if (spot.marks) this.sharedOf("run").marks = [...spot.marks];
    this.drawTab();
    void this.reveal(spot);
  }

  /** Until a rank is chosen: one that the tab has sections of. */
  private usualRank(tab: string): number | undefined {
    const before = this.place.rank ?? this.document.chosen_ranks[0];
    const { sections = [] } = this.document.tabs.find((each) => each.id === tab) ?? {};
    const ranks = sections.map(({ rank }) => rank).filter((rank) => rank !== undefined);
    return this.rankAsked || !ranks.length || ranks.includes(before) ? before : ranks[0];
  }

  /** A moment is shown with what is around it, a range with some room. */
  private showRoughly(axis: Axis, [from, to]: [number, number]): void {
    const room = Math.max(0.5 * (to - from), to > from ? 0 : 0.02 * (axis.full[1] - axis.full[0]));
    axis.show(from - room, to + room);
  }

  private async reveal(spot: Spot): Promise<void> {
    const frames = this.shown.filter((frame) => spot.section === undefined || frame.section.id === spot.section);
    if (spot.section !== undefined && frames[0]) {
      frames[0].openUp();
      frames[0].element.scrollIntoView({ block: "start" });
    }
    const asks = spot.find !== undefined || spot.frame !== undefined || spot.step !== undefined;
    if (!asks && spot.from === undefined) return;
    const ofKind = frames.filter(({ section }) =>
      spot.section !== undefined || (spot.frame !== undefined ? section.kind === "flame" : section.kind !== "table"));
    for (const frame of ofKind) {
      await frame.make();
      if (asks) frame.figure?.show?.(spot);
    }
    if (spot.from !== undefined) this.selected(this.axis(this.place.tab, "run"));
  }

  /** The address says what is shown, without a new entry in the history. */
  readonly remember = eachFrame(() => {
    const { tab, rank, step, section, find, frame } = this.place;
    const axis = this.axes.get(`${tab}/run`);
    const spot: Spot = { tab, rank: this.hasRanks() ? rank : undefined, step, section, find, frame };
    if (axis) {
      const [low, high] = axis.view;
      if (low > axis.full[0] || high < axis.full[1]) spot.view = [low, high];
      const { selection, marks } = axis.shared;
      if (selection) [spot.from, spot.to] = selection;
      if (marks.length) spot.marks = marks;
    }
    const hash = toHash(spot);
    if (hash !== location.hash) history.replaceState(null, "", hash);
  });

  private hasRanks(): boolean {
    return this.document.chosen_ranks.length > 1;
  }

  chooseRank(by: number): void {
    const { chosen_ranks: ranks } = this.document;
    if (!ranks.length) return;
    const at = Math.max(0, ranks.indexOf(this.place.rank ?? ranks[0]));
    this.setRank(ranks[(at + by + ranks.length) % ranks.length]);
  }

  private setRank(rank: number): void {
    this.rankAsked = true;
    this.place.rank = rank;
    this.drawTab();
    this.remember();
    this.say(`rank ${rank}`);
  }

  chooseTab(index: number): void {
    const tab = this.document.tabs[index];
    if (tab) this.goTo(tab.id);
  }

  private goTo(tab: string): void {
    this.go({ tab, rank: this.rankAsked ? this.place.rank : undefined });
  }

  // Axes

  private sharedOf(name: string): Shared {
    let shared = this.shared.get(name);
    if (!shared) this.shared.set(name, (shared = new Shared(name)));
    return shared;
  }

  axis(tab: string, name: string): Axis {
    const key = `${tab}/${name}`;
    let axis = this.axes.get(key);
    if (!axis) {
      const ofRun = name === "run";
      const unit = ofRun || name.startsWith("time:") ? "s" : "";
      axis = new Axis(this.sharedOf(name), ofRun ? [0, this.document.duration || 1] : [Infinity, -Infinity], unit);
      this.axes.set(key, axis);
      axis.listen(this.remember);
      axis.listen(() => this.axisChanged(axis!));
    }
    return axis;
  }

  private selections = new WeakMap<Axis, unknown>();
  private axisChanged(axis: Axis): void {
    const { selection } = axis.shared;
    if (!selection && this.selections.get(axis)) this.panel.show();
    this.selections.set(axis, selection);
  }

  selected(axis: Axis): void {
    const { selection } = axis.shared;
    if (!selection) return;
    const rows = this.shown.flatMap((frame) =>
      (frame.figure?.axis?.shared === axis.shared && frame.element.getClientRects().length && frame.figure.statistics?.(...selection)) || []);
    this.panel.show(axis, rows);
  }

  mark(axis: Axis): void {
    if (axis.cursor === undefined) return;
    const { shared, view } = axis;
    const near = shared.marks.findIndex((mark) => Math.abs(mark - axis.cursor!) < 0.01 * (view[1] - view[0]));
    if (near >= 0) shared.marks.splice(near, 1);
    else shared.marks.push(axis.cursor);
    shared.changed();
    this.say(near >= 0 ? "mark removed" : `marked ${axis.unit === "s" ? seconds(axis.cursor) : axis.cursor}`);
  }

  /** Esc: ends one thing after the other. */
  escape(): void {
    const axis = this.active()?.figure?.axis;
    if (this.tipped.element.hidden === false) this.tip(null);
    if (!this.panel.empty) {
      this.panel.unpin();
      for (const each of this.axes.values()) if (each.shared.selection) each.select(undefined);
      this.panel.show();
    } else if (this.place.find !== undefined || this.place.frame !== undefined) {
      delete this.place.find;
      delete this.place.frame;
      for (const frame of this.shown) frame.figure?.show?.(this.place);
      this.remember();
    } else axis?.all();
  }

  // What is shown

  private drawHeader(): void {
    const { title, facts, tabs, before, made_by: by } = this.document;
    document.title = title;
    this.tabLinks = new Map(tabs.map((tab) => [tab.id, h("a", {
      href: toHash({ tab: tab.id }),
      onclick: (event: MouseEvent) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        this.goTo(tab.id);
      },
    }, tab.title)]));
    const ranks = this.document.chosen_ranks;
    this.rankChoice = h<HTMLSelectElement>("select", { "aria-label": "Rank", onchange: () => this.setRank(Number(this.rankChoice!.value)) },
      ...ranks.map((rank) => h("option", { value: rank }, `rank ${rank}`)));
    const button = (text: string, label: string, run: () => void): HTMLElement =>
      h("button.tool", { type: "button", "aria-label": label, title: label, onclick: run }, text);
    this.header.replaceChildren(
      h("div.titles", {},
        h("h1", {}, title),
        h("ul.runfacts", {}, ...facts.map((fact) => h("li", {}, fact))),
        before ? h("ul.runfacts", {}, h("li", {}, `compared with ${before.name}`), ...before.facts.map((fact) => h("li", {}, fact))) : null),
      h("div.bar", {},
        h("nav", { "aria-label": "Tabs" }, ...this.tabLinks.values()),
        h("div.tools", {},
          ranks.length > 1 ? this.rankChoice : null,
          button("Search /", "Search everything", () => this.search.open()),
          button("◐", "Light, dark, or as the system", () => this.say(this.themes.next())),
          button("?", "Keys", () => this.help.showModal()))));
    this.header.title = by;
  }

  private drawTab(): void {
    const tab = this.document.tabs.find((each) => each.id === this.place.tab);
    for (const [id, link] of this.tabLinks) {
      if (id === tab?.id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const link = tab && this.tabLinks.get(tab.id);
    if (link?.parentElement) link.parentElement.scrollLeft = link.offsetLeft - 40;
    if (this.rankChoice) this.rankChoice.value = String(this.place.rank);
    if (!tab) return;
    let frames = this.frames.get(tab.id);
    if (!frames) {
      frames = tab.sections.map((section) => new Frame(section, tab.id, this));
      this.frames.set(tab.id, frames);
      for (const frame of frames) this.attach(frame);
    }
    const shown = frames.filter(({ section }) => section.rank === undefined || section.rank === this.place.rank);
    if (shown.length === this.shown.length && shown.every((frame, i) => frame === this.shown[i]) && this.main.childElementCount) {
      this.redrawAll();
      return;
    }
    const sameTab = this.shown[0]?.tab === tab.id;
    this.watch.disconnect();
    this.sizes.disconnect();
    for (const frame of this.shown) frame.near = false;
    this.shown = shown;
    this.main.dataset.tab = tab.id;
    this.main.replaceChildren(...this.headline(tab.id), ...this.noOwn(frames, shown), ...grouped(shown));
    for (const frame of shown) {
      this.watch.observe(frame.element);
      this.sizes.observe(frame.body);
      frame.dirty = true;
    }
    if (!sameTab) {
      scrollTo({ top: 0 });
      this.panel.show();
      for (const axis of this.axes.values()) if (axis.shared.name !== "run") axis.shared.selection = undefined;
    }
  }

  /** Not every rank of many has sections of its own. */
  private noOwn(all: Frame[], shown: Frame[]): HTMLElement[] {
    const ofRanks = all.filter(({ section }) => section.rank !== undefined);
    if (!ofRanks.length || shown.some(({ section }) => section.rank !== undefined)) return [];
    const ranks = [...new Set(ofRanks.map(({ section }) => section.rank!))];
    const open = (rank: number): HTMLElement => h("button.tool", { type: "button", onclick: () => this.setRank(rank) }, `rank ${rank}`);
    return [h("p.empty", {}, `This file has no more of rank ${this.place.rank}; it has of ${ranksText(ranks)}. `,
      ...(ranks.length <= MOST_BUTTONS ? ranks.map(open) : []))];
  }

  private headline(tab: string): HTMLElement[] {
    const { headline, tabs } = this.document;
    return tab === tabs[0].id && headline.length ? [h("div.headline", {}, ...headline.map((line) => h("p", {}, unbroken(line))))] : [];
  }

  private attach(frame: Frame): void {
    frame.element.addEventListener("pointerenter", () => { this.hovered = frame; });
    frame.element.addEventListener("pointerleave", () => { if (this.hovered === frame) this.hovered = undefined; });
  }

  /** Whose keys are meant: the figure with the focus, under the pointer, or the first in sight. */
  active(): Frame | undefined {
    const focused = this.shown.find((frame) => frame.body.contains(document.activeElement));
    if (focused) return focused;
    if (this.hovered?.figure && this.shown.includes(this.hovered)) return this.hovered;
    return this.shown.find((frame) => frame.figure?.axis && frame.element.getBoundingClientRect().bottom > 120 && frame.element.getClientRects().length);
  }

  private seen(entries: IntersectionObserverEntry[]): void {
    for (const entry of entries) {
      const frame = this.shown.find((each) => each.element === entry.target);
      if (!frame) continue;
      frame.near = entry.isIntersecting;
      if (!frame.near) continue;
      if (frame.figure) this.frame();
      else void frame.make().then(() => {
        frame.dirty = true;
        this.frame();
      });
    }
  }

  private resized(entries: ResizeObserverEntry[]): void {
    for (const entry of entries) {
      const frame = this.shown.find((each) => each.body === entry.target);
      if (!frame) continue;
      const width = Math.round(entry.contentRect.width);
      if (!width || frame.width === width) continue;
      frame.width = width;
      frame.figure?.resized?.();
      frame.dirty = true;
    }
    this.frame();
  }

  redraw(figure: Figure): void {
    const frame = this.shown.find((each) => each.figure === figure);
    if (frame) frame.dirty = true;
    this.frame();
  }

  private redrawAll(): void {
    for (const frame of this.shown) frame.dirty = true;
    this.frame();
  }

  private readonly frame = eachFrame(() => {
    for (const frame of this.shown) {
      if (!frame.dirty || !frame.near || !frame.figure || !frame.body.clientWidth) continue;
      frame.dirty = false;
      frame.figure.draw();
    }
  });

  private themed(): void {
    for (const frames of this.frames.values()) for (const frame of frames) frame.figure?.themed?.();
    this.redrawAll();
  }

  /** On paper there is no scrolling: all figures of the tab are drawn. */
  private async printed(): Promise<void> {
    for (const frame of this.shown) {
      await frame.make();
      frame.near = true;
      frame.dirty = true;
    }
    this.frame();
  }

  // Saying

  pin(pin: Pin): void {
    this.panel.pin(pin);
  }

  tip(content: Node | null, x?: number, y?: number): void {
    this.tipped.show(content, x, y);
  }

  say(text: string): void {
    this.live.textContent = text;
  }
}

/** Sections of one group lie in one fold, open if one of them is. */
function grouped(frames: Frame[]): HTMLElement[] {
  const found: HTMLElement[] = [];
  const groups = new Map<string, HTMLElement>();
  for (const frame of frames) {
    const { group } = frame.section;
    if (group === undefined) {
      found.push(frame.element);
      continue;
    }
    let fold = groups.get(group);
    if (!fold) {
      const own = frames.filter((each) => each.section.group === group);
      const moving = own.filter((each) => opens(each.section)).length;
      const count = moving === own.length ? `${own.length}` : `${moving} of ${own.length} move`;
      fold = h("details.group", { open: moving > 0 }, h("summary", {}, h("h2", {}, group), h("span.muted", {}, count)), h("div.cells", {}), h("div.still", {}));
      groups.set(group, fold);
      found.push(fold);
    }
    fold.querySelector(opens(frame.section) ? ".cells" : ".still")!.append(frame.element);
  }
  return found;
}

const opens = (section: Section): boolean => section.open ?? (section.kind === "series" ? section.moves !== false && !section.empty : true);
