// Below the page: what is in the selected range, and what is pinned.
import { csv, type Cell } from "../common/csv.ts";
import { amount, change, seconds } from "../common/numbers.ts";
import { copied, h, swatch } from "./dom.ts";
import type { Axis } from "./axis.ts";
import type { Page, Pin, StatisticsRow } from "./figure.ts";

const ROWS = 200;

export class Panel {
  readonly element = h("aside.panel", { "aria-label": "Selection and pins", hidden: true });
  private pins: Pin[] = [];
  private range?: HTMLElement;

  constructor(private page: Page) {}

  pin(pin: Pin): void {
    this.pins = [...this.pins, pin].slice(-2);
    this.page.say(this.pins.length === 2 ? `Compared: ${this.pins[0].title} with ${pin.title}` : `Pinned: ${pin.title}`);
    this.draw();
  }

  unpin(): void {
    this.pins = [];
    this.draw();
  }

  get empty(): boolean {
    return !this.pins.length && !this.range;
  }

  /** The statistics of a range of an axis; none: the range is gone. */
  show(axis?: Axis, rows: StatisticsRow[] = []): void {
    const selection = axis?.shared.selection;
    this.range = axis && selection && this.ofRange(axis, selection, rows);
    this.draw();
  }

  private ofRange(axis: Axis, [low, high]: [number, number], rows: StatisticsRow[]): HTMLElement {
    const inSeconds = axis.unit === "s";
    const found = rows.filter((row) => row.count > 0);
    const title = inSeconds
      ? `${seconds(high - low)} selected, from ${seconds(low)}`
      : `${axis.shared.name.replace(/^.*:/, "")} ${Math.round(low)} to ${Math.round(high)} selected`;
    const head = ["", "count", "sum", "mean", "least", "most"];
    const text = (): string => csv([["name", "unit", ...head.slice(1)],
      ...found.map((row): Cell[] => [row.name, row.unit, row.count, row.sum, row.mean, row.least, row.most])]);
    return h("section", { "aria-label": "Selected range" },
      h("header", {}, h("h2", {}, title),
        h("span.tools", {},
          this.button("Zoom to it (f)", () => axis.showSelection()),
          this.button("CSV", () => void copied(text())),
          this.button("Close (Esc)", () => axis.select(undefined)))),
      found.length
        ? h("div.scrolls", { tabindex: 0, role: "region", "aria-label": "Statistics of the selected range" }, h("table", {},
            h("thead", {}, h("tr", {}, ...head.map((name, k) => h(`th${k ? ".number" : ""}`, { scope: "col" }, name || h("span.outside", {}, "name"))))),
            h("tbody", {}, ...found.slice(0, ROWS).map((row) => h("tr", {},
              h("td", {}, row.colour ? swatch(row.colour) : null, row.name),
              ...[row.count.toLocaleString("en-US").replaceAll(",", " "), ...[row.sum, row.mean, row.least, row.most].map((value) => amount(value, row.unit))]
                .map((value) => h("td.number", {}, value)))))))
        : h("p.note", {}, "Nothing that is shown here lies in it."));
  }

  private button(text: string, run: () => void): HTMLElement {
    return h("button.tool", { type: "button", onclick: run }, text);
  }

  private ofPins(): HTMLElement {
    const [first, second] = this.pins;
    const names = [...new Set(this.pins.flatMap((pin) => pin.values.map((value) => value.name)))];
    const value = (pin: Pin | undefined, name: string): Pin["values"][number] | undefined => pin?.values.find((each) => each.name === name);
    const shown = (each: Pin["values"][number] | undefined): string =>
      each === undefined ? "–" : typeof each.value === "number" ? amount(each.value, each.unit) : each.value;
    const rows = names.map((name) => {
      const [one, other] = [value(first, name), value(second, name)];
      const numbers = typeof one?.value === "number" && typeof other?.value === "number";
      const difference = numbers ? `${amount((other!.value as number) - (one!.value as number), one!.unit)} ${change(other!.value as number, one!.value as number)}` : "";
      return h("tr", {}, h("th", { scope: "row" }, name), h("td.number", {}, shown(one)),
        second ? h("td.number", {}, shown(other)) : null, second ? h("td.number", {}, difference) : null);
    });
    const link = (pin: Pin): Node => (pin.place
      ? h("button.link", { type: "button", onclick: () => this.page.go(pin.place!) }, pin.title)
      : document.createTextNode(pin.title));
    const text = (): string => csv([["", ...this.pins.map((pin) => pin.title)],
      ...names.map((name): Cell[] => [name, ...this.pins.map((pin) => value(pin, name)?.value)])]);
    return h("section", { "aria-label": "Pinned" },
      h("header", {}, h("h2", {}, second ? "Compared" : "Pinned"),
        h("span.tools", {}, this.button("CSV", () => void copied(text())), this.button("Unpin (Esc)", () => this.unpin()))),
      h("div.scrolls", { tabindex: 0, role: "region", "aria-label": "Pinned values" }, h("table", {},
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span.outside", {}, "value")), h("th.number", { scope: "col" }, link(first)),
          second ? h("th.number", { scope: "col" }, link(second)) : null, second ? h("th.number", { scope: "col" }, "difference") : null)),
        h("tbody", {}, ...rows))),
      second ? null : h("p.note", {}, "Pin a second to compare."));
  }

  private draw(): void {
    this.element.replaceChildren(...[this.range, this.pins.length ? this.ofPins() : undefined].filter((part) => part !== undefined));
    this.element.hidden = this.empty;
    document.body.classList.toggle("withpanel", !this.empty);
  }
}
