// Rank × step: one cell a value, the greatest of a pixel where there are more cells than pixels.
import { ramp } from "../common/colours.ts";
import { amount } from "../common/numbers.ts";
import { ofSamples, quantile } from "../common/statistics.ts";
import type { Heat, Place } from "../document.ts";
import { h, styled } from "../ui/dom.ts";
import type { Figure, Made } from "../ui/figure.ts";
import { axisKey, handle } from "../ui/hands.ts";
import { fitted, gutterOf, overlay, ruler, RULER, Sheet } from "../ui/sheet.ts";

const COLOURS = ramp();
const SAMPLED = 20_000;

/** The greatest of pairs, of pairs of those, … of each row. */
export class Greatest {
  private levels: { values: Float64Array; columns: number }[];

  constructor(values: Float64Array, readonly rows: number, readonly columns: number) {
    this.levels = [{ values, columns }];
    while (this.levels[this.levels.length - 1].columns > 256) {
      const finer = this.levels[this.levels.length - 1];
      const n = Math.ceil(finer.columns / 2);
      const next = new Float64Array(rows * n);
      for (let row = 0; row < rows; row++) {
        for (let k = 0; k < n; k++) {
          const a = finer.values[row * finer.columns + 2 * k];
          const b = 2 * k + 1 < finer.columns ? finer.values[row * finer.columns + 2 * k + 1] : NaN;
          next[row * n + k] = a >= b || b !== b ? a : b;
        }
      }
      this.levels.push({ values: next, columns: n });
    }
  }

  /** Of the cells from ≤ k < to of a row; at least one. */
  between(row: number, from: number, to: number): number {
    const size = Math.max(1, to - from);
    const level = Math.min(this.levels.length - 1, Math.floor(Math.log2(size)));
    const { values, columns } = this.levels[level];
    const shift = 2 ** level;
    let most = NaN;
    for (let k = Math.floor(from / shift); k * shift < Math.max(to, from + 1) && k < columns; k++) {
      const value = values[row * columns + k];
      if (!(most >= value) && value === value) most = value;
    }
    return most;
  }
}

export async function heat({ section, tab, page, body }: Made<Heat>): Promise<Figure> {
  const [steps, values] = await Promise.all([page.blobs.values(section.steps), page.blobs.values(section.values)]);
  const [n, rows] = [steps.length, section.rows.length];
  if (values.length !== n * rows) throw new RangeError("values and rows × steps differ in number");
  const greatest = new Greatest(values, rows, n);
  const axis = page.axis(tab, `step:${section.id}`);
  axis.extend([0, n]);
  const means = Array.from({ length: rows }, (_, row) => ofSamples(steps, values.subarray(row * n, (row + 1) * n), -Infinity, Infinity).mean);
  const sample = values.length > SAMPLED ? values.filter((_, i) => i % Math.ceil(values.length / SAMPLED) === 0) : values;
  const [cold, hot] = [quantile(sample, 0.01), quantile(sample, 0.99)];
  let order = section.rows.map((_, row) => row);
  let byMean = false;
  let focus: { row: number; step: number } | undefined;

  const sheet = new Sheet(`${section.title}: ${rows} rows, ${n} steps`, "heat map", () => page.redraw(figure));
  const scale = h<HTMLCanvasElement>("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  scale.style.cssText = "width:120px;height:9px;border-radius:2px";
  const drawn = new ImageData(256, 1);
  for (let i = 0; i < 256; i++) drawn.data.set([COLOURS[3 * i], COLOURS[3 * i + 1], COLOURS[3 * i + 2], 255], 4 * i);
  scale.getContext("2d")!.putImageData(drawn, 0, 0);
  const sorter = h("button.tool", { type: "button", "aria-pressed": "false", onclick: () => {
    byMean = !byMean;
    sorter.setAttribute("aria-pressed", String(byMean));
    order = section.rows.map((_, row) => row);
    if (byMean) order.sort((a, b) => (means[b] || 0) - (means[a] || 0));
    page.redraw(figure);
  } }, "Slowest first");
  body.append(
    h("div.figuretools", {}, h("span.scale", {}, amount(cold, section.unit), scale, amount(hot, section.unit)), rows > 1 ? sorter : null),
    sheet.element,
    ...(section.more ? [h("p.note", {}, section.more)] : []));

  const rowHeight = (): number => Math.max(1, Math.min(20, Math.floor((innerHeight * 0.62) / rows)));
  const labels = section.rows.map((row) => row.label);
  let [gutterWidth, gutterAt] = [0, -1];
  const gutter = (): number => {
    if (gutterAt !== sheet.width) [gutterWidth, gutterAt] = [gutterOf(sheet.width, labels), sheet.width];
    return gutterWidth;
  };
  const plotWidth = (): number => Math.max(1, sheet.width - gutter() - 8);
  const image = document.createElement("canvas");

  function below(ctx: CanvasRenderingContext2D): void {
    const [low, high] = axis.view;
    const tall = rowHeight();
    const first = Math.floor(sheet.top / tall);
    const last = Math.min(rows, Math.ceil((sheet.top + sheet.height - RULER) / tall));
    const wide = plotWidth();
    // One pixel of the image is a cell, or several cells where they are narrower than a pixel.
    const cells = Math.min(n, Math.ceil(high)) - Math.floor(low);
    const columns = Math.max(1, Math.min(cells, wide));
    const from = columns === cells ? Math.floor(low) : low;
    const each = columns === cells ? 1 : (high - low) / columns;
    const pixels = new ImageData(columns, Math.max(1, last - first));
    for (let y = first; y < last; y++) {
      const row = order[y];
      for (let x = 0; x < columns; x++) {
        const begin = each === 1 ? from + x : Math.floor(from + x * each);
        const value = greatest.between(row, begin, each === 1 ? begin + 1 : Math.ceil(from + (x + 1) * each));
        if (value !== value) continue;
        const c = 3 * Math.max(0, Math.min(255, Math.round((255 * (value - cold)) / (hot - cold || 1))));
        const at = 4 * ((y - first) * columns + x);
        pixels.data[at] = COLOURS[c];
        pixels.data[at + 1] = COLOURS[c + 1];
        pixels.data[at + 2] = COLOURS[c + 2];
        pixels.data[at + 3] = 255;
      }
    }
    image.width = pixels.width;
    image.height = pixels.height;
    image.getContext("2d")!.putImageData(pixels, 0, 0);
    const left = gutter();
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, RULER, wide, sheet.height - RULER);
    ctx.clip();
    ctx.imageSmoothingEnabled = false;
    const perCell = wide / (high - low);
    ctx.drawImage(image, left + (from - low) * perCell, RULER + first * tall - sheet.top, columns * each * perCell, (last - first) * tall);
    ctx.restore();
    ctx.fillStyle = styled("--muted");
    const every = Math.ceil(13 / tall);
    for (let y = first - (first % every); y < last; y += every) {
      const at = RULER + y * tall - sheet.top + Math.min(tall, 13) / 2;
      if (at > RULER) ctx.fillText(fitted(ctx, section.rows[order[y]].label, left - 10), 2, at);
    }
    ruler(ctx, axis, left, wide, RULER, (at) => (Number.isInteger(at) && at < n ? String(steps[at]) : ""));
  }

  function above(ctx: CanvasRenderingContext2D): void {
    overlay(ctx, axis, gutter(), plotWidth(), sheet.height);
    if (!focus) return;
    const [low, high] = axis.view;
    const perCell = plotWidth() / (high - low);
    const tall = rowHeight();
    ctx.strokeStyle = styled("--text");
    ctx.lineWidth = 1.5;
    ctx.strokeRect(gutter() + (focus.step - low) * perCell - 0.5, RULER + focus.row * tall - sheet.top - 0.5, Math.max(3, perCell) + 1, Math.max(3, tall) + 1);
  }

  const cellAt = (x: number, y: number): typeof focus => {
    const [low, high] = axis.view;
    const step = Math.floor(low + ((x - gutter()) / plotWidth()) * (high - low));
    const row = Math.floor((y - RULER + sheet.top) / rowHeight());
    return step >= 0 && step < n && row >= 0 && row < rows && y > RULER && x > gutter() ? { row, step } : undefined;
  };
  const valueOf = (cell: { row: number; step: number }): number => values[order[cell.row] * n + cell.step];
  const described = (cell: { row: number; step: number }): string =>
    `${section.rows[order[cell.row]].label}, step ${steps[cell.step]}: ${amount(valueOf(cell), section.unit)}`;
  const hasSteps = page.document.tabs.some((each) => each.id === "step");

  function open(cell: { row: number; step: number }): void {
    const { rank } = section.rows[order[cell.row]];
    if (rank !== undefined && hasSteps) page.go({ tab: "step", rank, step: steps[cell.step] });
    else pinned(cell);
  }

  function pinned(cell: { row: number; step: number }): void {
    const row = section.rows[order[cell.row]];
    const place: Place | undefined = row.rank === undefined ? undefined : { tab: "step", rank: row.rank, step: steps[cell.step] };
    page.pin({
      title: `${row.label}, step ${steps[cell.step]}`,
      place,
      values: [
        { name: section.title, value: valueOf(cell), unit: section.unit },
        { name: "mean of its row", value: means[order[cell.row]], unit: section.unit },
      ],
    });
  }

  const figure: Figure = {
    axis,
    draw() {
      sheet.fit(RULER + rows * rowHeight() + 2);
      sheet.draw(`${axis.view}|${page.theme}|${byMean}`, below, above);
    },
    key(event) {
      const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (by) {
        const far = event.shiftKey ? 10 : 1;
        focus ??= { row: 0, step: Math.max(0, Math.floor(axis.view[0])) - by[1] };
        focus = {
          row: Math.max(0, Math.min(rows - 1, focus.row + far * by[0])),
          step: Math.max(0, Math.min(n - 1, focus.step + far * by[1])),
        };
        axis.cursor = focus.step + 0.5;
        if (focus.step < axis.view[0] || focus.step > axis.view[1]) axis.pan(by[1] * 0.5);
        sheet.reveal(focus.row * rowHeight(), rowHeight());
        page.say(described(focus));
        page.redraw(figure);
        return true;
      }
      if (event.key === "Enter" && focus) open(focus);
      else if (event.key === " " && focus) pinned(focus);
      else return axisKey(axis, event.key);
      return true;
    },
    statistics(low, high) {
      const [from, to] = [Math.max(0, Math.floor(low)), Math.min(n, Math.ceil(high))];
      const positions = Float64Array.from({ length: to - from }, (_, k) => k);
      return order.map((row) => ({
        ...ofSamples(positions, values.subarray(row * n + from, row * n + to), 0, n),
        name: section.rows[row].label,
        unit: section.unit,
      })).sort((a, b) => b.mean - a.mean);
    },
    rows: () => ({
      head: ["row", ...Array.from(steps, (step) => `step ${step}`)],
      rows: order.map((row) => [section.rows[row].label, ...values.subarray(row * n, (row + 1) * n)]),
    }),
    canvases: () => [sheet.image()],
    show(place) {
      const row = place.rank === undefined ? -1 : order.findIndex((each) => section.rows[each].rank === place.rank);
      const step = place.step === undefined ? -1 : steps.indexOf(place.step);
      if (row >= 0 || step >= 0) focus = { row: Math.max(0, row), step: Math.max(0, step) };
      page.redraw(figure);
    },
  };
  handle(sheet.element, {
    axis,
    plot: () => ({ left: gutter(), width: plotWidth() }),
    wheel: true,
    selects: true,
    selected: () => page.selected(axis),
    move(x, y) {
      const cell = cellAt(x, y);
      const box = sheet.element.getBoundingClientRect();
      page.tip(cell ? h("p", {}, described(cell)) : null, box.left + x, box.top + y);
    },
    leave: () => page.tip(null),
    click(x, y, event) {
      const cell = cellAt(x, y);
      if (!cell) return;
      focus = cell;
      if (event.altKey) pinned(cell);
      else open(cell);
    },
  });
  return figure;
}
