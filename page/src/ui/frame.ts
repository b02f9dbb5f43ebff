// The frame of a section: heading, tools, and its figure once it comes into sight.
import { csv } from "../common/csv.ts";
import { ownUnit, unitName } from "../common/numbers.ts";
import type { Section } from "../document.ts";
import { bars } from "../figures/bars.ts";
import { findings } from "../figures/findings.ts";
import { flame } from "../figures/flame.ts";
import { heat } from "../figures/heat.ts";
import { lanes } from "../figures/lanes.ts";
import { series } from "../figures/series.ts";
import { table } from "../figures/table.ts";
import { text } from "../figures/text.ts";
import { copied, download, h, styled } from "./dom.ts";
import type { Figure, Page } from "./figure.ts";

async function figureOf(section: Section, tab: string, page: Page, body: HTMLElement): Promise<Figure> {
  switch (section.kind) {
    case "text": return text({ section, tab, page, body });
    case "findings": return findings({ section, tab, page, body });
    case "table": return table({ section, tab, page, body });
    case "bars": return bars({ section, tab, page, body });
    case "series": return series({ section, tab, page, body });
    case "heat": return heat({ section, tab, page, body });
    case "lanes": return lanes({ section, tab, page, body });
    case "flame": return flame({ section, tab, page, body });
    default: throw new TypeError(`this page cannot show ${(section as { kind: string }).kind}`);
  }
}

const PLACEHOLDER: Partial<Record<Section["kind"], number>> = { series: 130, heat: 200, lanes: 300, flame: 300 };
/** As many rows of a figure are shown as text; all of them are copied. */
const ROWS_SHOWN = 500;

export class Frame {
  readonly element: HTMLElement;
  readonly body: HTMLElement;
  figure?: Figure;
  /** Close enough to be seen to be worth drawing. */
  near = false;
  dirty = true;
  /** In pixels, as it was last drawn. */
  width = 0;
  private making?: Promise<void>;
  /** Ends listening to the axis. */
  private deaf?: () => void;
  private details?: HTMLDetailsElement;

  constructor(readonly section: Section, readonly tab: string, readonly page: Page) {
    this.body = h("div.body", {});
    const tall = PLACEHOLDER[section.kind];
    if (tall && !section.empty) this.body.style.minHeight = `${tall}px`;
    const heading = h("h2", { id: `title-${tab}-${section.id}` }, section.title,
      section.kind === "series" && !ownUnit(section.unit) && unitName(section.unit) ? h("span.unit", {}, ` ${unitName(section.unit)}`) : null);
    const tools = h("div.tools", {});
    const content = [
      section.note ? h("p.note", {}, section.note) : null,
      section.empty ? h("p.empty", {}, section.empty) : this.body,
    ];
    if (!section.empty) tools.append(...this.tools());
    const closes = section.kind === "series" || section.open === false;
    const open = section.open ?? (section.kind === "series" ? section.moves !== false : true);
    if (closes) {
      this.details = h<HTMLDetailsElement>("details", { open }, h("summary", {}, heading), tools, ...content);
      this.details.addEventListener("toggle", () => this.figure && this.page.redraw(this.figure));
    }
    this.element = h("section.section", { id: `section-${tab}-${section.id}`, "aria-labelledby": heading.id, "data-kind": section.kind },
      ...(this.details ? [this.details] : [h("header", {}, heading, tools), ...content]));
  }

  /** The figure, made when first asked for. */
  make(): Promise<void> {
    if (this.section.empty) return Promise.resolve();
    return (this.making ??= figureOf(this.section, this.tab, this.page, this.body).then(
      (figure) => {
        this.figure = figure;
        this.body.style.minHeight = "";
        this.deaf = figure.axis?.listen(() => this.page.redraw(figure));
      },
      (error: unknown) => {
        this.body.style.minHeight = "";
        this.body.replaceChildren(h("p.empty", {}, `This cannot be shown: ${error instanceof Error ? error.message : String(error)}`));
      },
    ));
  }

  /** It is not shown any more. */
  end(): void {
    this.deaf?.();
    this.figure?.end?.();
  }

  openUp(): void {
    if (this.details) this.details.open = true;
  }

  private tools(): HTMLElement[] {
    const button = (label: string, title: string, run: () => void): HTMLElement =>
      h("button.tool", { type: "button", title, "aria-label": `${title}: ${this.section.title}`, onclick: run }, label);
    const found = [button("CSV", "Copy as CSV", () => void this.copyCsv())];
    if (this.section.kind in PLACEHOLDER) {
      found.push(button("PNG", "Save as PNG", () => void this.savePng()), button("Table", "Show as a table", () => void this.showRows()));
    }
    return found;
  }

  private async copyCsv(): Promise<void> {
    await this.make();
    const all = this.figure?.rows?.();
    if (!all) return;
    const text = csv([all.head, ...all.rows]);
    if (await copied(text)) this.page.say(`Copied ${all.rows.length} rows as CSV.`);
    else download(`${this.section.id}.csv`, new Blob([text], { type: "text/csv" }));
  }

  private async savePng(): Promise<void> {
    await this.make();
    const parts = this.figure?.canvases?.() ?? [];
    if (!parts.length) return;
    const title = 28 * devicePixelRatio;
    const whole = h<HTMLCanvasElement>("canvas", {});
    whole.width = Math.max(...parts.map((part) => part.width));
    whole.height = parts.reduce((sum, part) => sum + part.height, title);
    const ctx = whole.getContext("2d")!;
    ctx.fillStyle = styled("--page");
    ctx.fillRect(0, 0, whole.width, whole.height);
    ctx.fillStyle = styled("--text");
    ctx.font = `600 ${13 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.fillText(`${this.section.title} · ${this.page.document.name}`, 10 * devicePixelRatio, 18 * devicePixelRatio);
    let top = title;
    for (const part of parts) {
      ctx.drawImage(part, 0, top);
      top += part.height;
    }
    const image = await new Promise<Blob | null>((done) => whole.toBlob(done, "image/png"));
    if (image) download(`${this.section.id}.png`, image);
    this.page.say(`Saved ${this.section.id}.png.`);
  }

  private async showRows(): Promise<void> {
    await this.make();
    const old = this.element.querySelector(".asrows");
    if (old) {
      old.remove();
      return;
    }
    const all = this.figure?.rows?.();
    if (!all) return;
    const cell = (value: unknown): string => (value === null || value === undefined || value !== value ? "–" : typeof value === "number" ? String(Number(value.toPrecision(9))) : String(value));
    const rest = all.rows.length - ROWS_SHOWN;
    this.body.after(h("div.asrows", {}, h("div.scrolls", { tabindex: 0, role: "region", "aria-label": `${this.section.title} as a table` },
      h("table", {},
        h("thead", {}, h("tr", {}, ...all.head.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, ...all.rows.slice(0, ROWS_SHOWN).map((row) => h("tr", {}, ...row.map((value) => h("td", {}, cell(value)))))))),
      rest > 0 ? h("p.note", {}, `${rest} more rows: copy as CSV to get them all.`) : null));
  }
}
