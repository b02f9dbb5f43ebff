// Series over time or steps, by uPlot: linked cursors and ranges, events and marks.
import uPlot from "uplot";
import { lineColour, meaning } from "../common/colours.ts";
import { Extremes, joined, thinned, type Drawn } from "../common/levels.ts";
import { amount, ownUnit, tickLabel, ticks, unitTicks } from "../common/numbers.ts";
import { nearest, ofSamples } from "../common/statistics.ts";
import type { Line, Mark, Place, Series } from "../document.ts";
import { h, styled, swatch } from "../ui/dom.ts";
import type { Figure, Made } from "../ui/figure.ts";
import { axisKey, handle } from "../ui/hands.ts";

interface Loaded {
  line: Line;
  x: Float64Array;
  y: Float64Array;
  extremes: Extremes;
  low?: Extremes;
  high?: Extremes;
  before?: { x: Float64Array; extremes: Extremes };
  shown: boolean;
}

const LEFT = 64;
const NEAR_PIXELS = 6;

export async function series({ section, tab, page, body }: Made<Series>): Promise<Figure> {
  const { blobs } = page;
  const lines: Loaded[] = await Promise.all(section.lines.map(async (line) => {
    const [x, y] = await Promise.all([blobs.values(line.x), blobs.values(line.y)]);
    const loaded: Loaded = { line, x, y, extremes: new Extremes(y), shown: true };
    if (line.low && line.high) {
      loaded.low = new Extremes(await blobs.values(line.low));
      loaded.high = new Extremes(await blobs.values(line.high));
    }
    if (line.before) {
      loaded.before = { x: await blobs.values(line.before.x), extremes: new Extremes(await blobs.values(line.before.y)) };
    }
    return loaded;
  }));
  const axis = page.axis(tab, section.axis);
  if (section.axis !== "run") {
    for (const { x } of lines) if (x.length) axis.extend([x[0], x[x.length - 1]]);
  }
  if (section.stacked) stack(lines);

  const height = section.marks?.length || section.stacked ? 150 : 104;
  const plot = h("div.plot", { tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": described() });
  const legend = h("ul.legend", {});
  body.append(legend, plot);
  const values: HTMLElement[] = [];
  const colourOf = (k: number): string => {
    const { colour, name } = lines[k].line;
    const known = meaning(colour ?? name) ?? colour;
    return known && CSS.supports("color", known) ? known : lineColour(k, page.theme);
  };

  function described(): string {
    const parts = lines.slice(0, 6).map(({ line, x, y }) => {
      const all = ofSamples(x, y, -Infinity, Infinity);
      return `${line.name}: ${amount(all.least, section.unit)} to ${amount(all.most, section.unit)}, mean ${amount(all.mean, section.unit)}`;
    });
    return `${section.title}. ${parts.join(". ")}`;
  }

  function drawLegend(): void {
    values.length = 0;
    const single = lines.length === 1;
    const plain = single && lines[0].line.name === section.title;
    legend.replaceChildren(...lines.map((loaded, k) => {
      const value = h("span.value", {});
      values.push(value);
      const toggle = h("button", {
        type: "button",
        "aria-pressed": String(loaded.shown),
        title: "Hide or show; with Alt: only this",
        onclick: (event: MouseEvent) => {
          if (event.altKey) lines.forEach((other) => { other.shown = other === loaded; });
          else loaded.shown = !loaded.shown;
          drawLegend();
          shape();
        },
      }, swatch(colourOf(k)), loaded.line.name);
      if (plain) return h("li", {}, value);
      return h("li", {}, single ? h("span", {}, swatch(colourOf(k)), loaded.line.name) : toggle, value);
    }));
    if (section.lines.some((line) => line.before)) legend.append(h("li.muted", {}, "dashed: before"));
    readOut();
  }

  /** Which series of the chart belongs to which line. */
  let sources: { loaded: Loaded; part: "y" | "low" | "high" | "before" }[] = [];
  let chart: uPlot | undefined;
  /** What of the axis was drawn last. */
  let [drawn, decorated] = ["", ""];

  function data(): uPlot.AlignedData {
    const [low, high] = axis.view;
    const pixels = Math.max(50, Math.round(width() - LEFT - 12));
    const thin = sources.map(({ loaded, part }): Drawn => {
      if (part === "before") return thinned(loaded.before!.x, loaded.before!.extremes, low, high, pixels);
      return thinned(loaded.x, part === "y" ? loaded.extremes : loaded[part]!, low, high, pixels);
    });
    return joined(thin) as uPlot.AlignedData;
  }

  const width = (): number => Math.max(200, plot.clientWidth);

  /** Makes the chart anew: other lines, other colours. */
  function shape(): void {
    chart?.destroy();
    sources = [];
    const bands: uPlot.Band[] = [];
    const styles: uPlot.Series[] = [{}];
    const add = (loaded: Loaded, part: "y" | "low" | "high" | "before", style: uPlot.Series): number => {
      sources.push({ loaded, part });
      styles.push({ points: { show: false }, width: 1.25, ...style });
      return styles.length - 1;
    };
    lines.forEach((loaded, k) => {
      if (!loaded.shown) return;
      const stroke = colourOf(k);
      if (loaded.high && loaded.low) {
        const band: [number, number] = [add(loaded, "high", { width: 0 }), add(loaded, "low", { width: 0 })];
        bands.push({ series: band, fill: `${hex(stroke)}33` });
      }
      if (loaded.before) add(loaded, "before", { stroke, dash: [4, 3], width: 1 });
      const few = loaded.x.length < 60;
      const paths = loaded.line.stepped ? uPlot.paths.stepped!({ align: 1 }) : undefined;
      const at = add(loaded, "y", { stroke, paths, points: { show: few ? undefined : false, size: 4, fill: stroke } });
      if (section.stacked) {
        styles[at].fill = stroke;
        styles[at].width = 0.5;
      }
    });
    // Stacked from the top: each covers what is above the next.
    if (section.stacked) {
      sources.reverse();
      styles.splice(1, styles.length - 1, ...styles.slice(1).reverse());
    }
    const [text, grid] = [styled("--muted"), styled("--line")];
    const font = "11px system-ui, sans-serif";
    chart = new uPlot({
      width: width(),
      height,
      legend: { show: false },
      cursor: { drag: { x: false, y: false, setScale: false }, y: false, points: { size: 5 } },
      scales: { x: { time: false, range: () => axis.view }, y: { range: (_, least, most) => yRange(least, most) } },
      padding: [6, 12, 0, 0],
      axes: [
        {
          stroke: text, font, size: 22, gap: 3, grid: { stroke: grid, width: 1 }, ticks: { show: false },
          splits: (_, __, from, to) => ticks(from, to, Math.max(2, Math.floor((width() - LEFT) / 110))),
          values: (_, splits) => splits.map((at) => tickLabel(at, (splits[1] ?? at + 1) - splits[0], axis.unit)),
        },
        {
          stroke: text, font, size: LEFT, gap: 6, grid: { stroke: grid, width: 1 }, ticks: { show: false },
          splits: (_, __, from, to) => unitTicks(from, to, 3, section.unit),
          values: (_, splits) => splits.map((at) => amount(Number(at.toPrecision(10)), ownUnit(section.unit) ? section.unit : "")),
        },
      ],
      series: styles,
      bands,
      hooks: { draw: [decorate] },
    }, data(), plot);
    [drawn, decorated] = ["", ""];
  }

  function yRange(least: number | null, most: number | null): [number, number] {
    if (least === null || most === null || least !== least) return [0, 1];
    if (least === most) return least === 0 ? [0, 1] : least > 0 ? [0, least * 1.2] : [least * 1.2, 0];
    const room = 0.06 * (most - least);
    return [least >= 0 && (section.stacked || least < 0.75 * most) ? 0 : least - room, most + room];
  }

  /** Selection, events and marks, below the cursor and above the lines. */
  function decorate(u: uPlot): void {
    const { ctx } = u;
    const { left, top, width: wide, height: high } = u.bbox;
    const x = (value: number): number => u.valToPos(value, "x", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, wide, high);
    ctx.clip();
    const chosen = axis.shared.selection;
    if (chosen) {
      ctx.fillStyle = styled("--selection");
      ctx.fillRect(x(chosen[0]), top, Math.max(1, x(chosen[1]) - x(chosen[0])), high);
    }
    const ratio = devicePixelRatio;
    for (const mark of section.marks ?? []) {
      ctx.fillStyle = styled("--event");
      const at = x(mark.at);
      if (mark.to !== undefined) {
        ctx.globalAlpha = 0.16;
        ctx.fillRect(at, top, Math.max(ratio, x(mark.to) - at), high);
        ctx.globalAlpha = 1;
      }
      ctx.fillRect(Math.round(at), top, ratio, high);
      ctx.beginPath();
      ctx.moveTo(at - 4 * ratio, top);
      ctx.lineTo(at + 5 * ratio, top);
      ctx.lineTo(at + 0.5 * ratio, top + 6 * ratio);
      ctx.fill();
    }
    ctx.strokeStyle = styled("--accent");
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.lineWidth = ratio;
    for (const mark of axis.shared.marks) {
      ctx.beginPath();
      ctx.moveTo(x(mark), top);
      ctx.lineTo(x(mark), top + high);
      ctx.stroke();
    }
    ctx.restore();
  }

  function readOut(): void {
    lines.forEach((loaded, k) => {
      const at = axis.cursor === undefined ? -1 : nearest(loaded.x, axis.cursor);
      const value = at >= 0 ? amount(raw(loaded, at), section.unit) : "";
      if (values[k] && values[k].textContent !== value) values[k].textContent = value;
    });
  }

  const raw = (loaded: Loaded, at: number): number => unstacked.get(loaded)?.[at] ?? loaded.y[at];
  const marksNear = (x: number): Mark[] => {
    const [low, high] = axis.view;
    const slack = (NEAR_PIXELS / (width() - LEFT)) * (high - low);
    return (section.marks ?? []).filter((mark) => Math.abs(mark.at - x) <= slack || (mark.to !== undefined && x >= mark.at && x <= mark.to));
  };
  const at = (value: number): string => (axis.unit === "s" ? amount(value, "s") : `step ${Math.round(value)}`);

  function pinned(value: number): void {
    const place: Place = { tab, section: section.id, from: value, to: value };
    page.pin({
      title: `${section.title} at ${at(value)}`,
      place,
      values: lines.filter((loaded) => loaded.shown).map((loaded) => {
        const found = nearest(loaded.x, value);
        return { name: loaded.line.name, value: found < 0 ? NaN : raw(loaded, found), unit: section.unit };
      }),
    });
  }

  const figure: Figure = {
    axis,
    draw() {
      if (!chart) {
        shape();
      }
      const u = chart!;
      const state = `${axis.view}|${width()}`;
      if (state !== drawn) {
        drawn = state;
        u.batch(() => {
          u.setData(data(), false);
          u.setScale("x", { min: axis.view[0], max: axis.view[1] });
        });
      }
      const above = `${axis.shared.selection}|${axis.shared.marks}`;
      if (above !== decorated) {
        decorated = above;
        u.redraw(false);
      }
      const [low, high] = axis.view;
      const seen = axis.cursor !== undefined && axis.cursor >= low && axis.cursor <= high;
      u.setCursor({ left: seen ? u.valToPos(axis.cursor!, "x") : -10, top: 0 }, false);
      readOut();
    },
    themed() {
      drawLegend();
      if (chart) shape();
    },
    resized() {
      // uPlot keeps the padding only of a chart that is made anew.
      chart?.destroy();
      chart = undefined;
    },
    key(event) {
      const [low, high] = axis.view;
      if (event.key === "Enter" || event.key === " ") {
        pinned(axis.cursor ?? (low + high) / 2);
        return true;
      }
      const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (!by) return axisKey(axis, event.key);
      const samples = lines.find((loaded) => loaded.shown)?.x ?? new Float64Array();
      const from = axis.cursor ?? (by > 0 ? low : high);
      const least = ((high - low) / (width() - LEFT)) * (event.shiftKey ? 40 : 4);
      let next = nearest(samples, from + by * least);
      if (samples[next] === from) next = Math.min(samples.length - 1, Math.max(0, next + by));
      const to = next >= 0 && Math.abs(samples[next] - from) > 0 ? samples[next] : from + by * least;
      axis.point(Math.min(high, Math.max(low, to)));
      const said = lines.filter((loaded) => loaded.shown).slice(0, 4).map((loaded) => {
        const found = nearest(loaded.x, to);
        return `${loaded.line.name} ${amount(found < 0 ? NaN : raw(loaded, found), section.unit)}`;
      });
      page.say(`${at(to)}: ${said.join(", ")}`);
      return true;
    },
    statistics: (low, high) => lines.filter((loaded) => loaded.shown).map((loaded, k) => ({
      ...ofSamples(loaded.x, unstacked.get(loaded) ?? loaded.y, low, high),
      name: lines.length > 1 || loaded.line.name !== section.title ? `${section.title}: ${loaded.line.name}` : section.title,
      unit: section.unit,
      colour: colourOf(lines.indexOf(loaded) >= 0 ? lines.indexOf(loaded) : k),
    })),
    rows: () => ({
      head: ["line", axis.unit === "s" ? "time (s)" : section.axis, section.unit || "value"],
      rows: lines.flatMap((loaded) => Array.from(loaded.x, (x, i) => [loaded.line.name, x, raw(loaded, i)])),
    }),
    canvases: () => (chart ? [chart.ctx.canvas] : []),
    end: () => chart?.destroy(),
  };

  handle(plot, {
    axis,
    plot: () => (chart ? { left: chart.over.offsetLeft, width: chart.over.clientWidth } : { left: LEFT, width: width() - LEFT }),
    selects: true,
    wheel: section.axis === "run" && tab === "run",
    click: () => axis.cursor !== undefined && pinned(axis.cursor),
    selected: () => page.selected(axis),
    move(x, y) {
      const near = axis.cursor === undefined ? [] : marksNear(axis.cursor);
      const box = plot.getBoundingClientRect();
      if (!near.length) page.tip(null);
      else {
        page.tip(h("div", {}, ...near.slice(0, 8).map((mark) =>
          h("p", {}, h("b", {}, mark.kind), ` at ${at(mark.at)}${mark.rank === undefined ? "" : `, rank ${mark.rank}`}: ${mark.text}`))), box.left + x, box.top + y);
      }
    },
    leave: () => page.tip(null),
  });
  drawLegend();
  return figure;
}

/** What the values were before they were put on top of each other. */
const unstacked = new WeakMap<Loaded, Float64Array>();

function stack(lines: Loaded[]): void {
  let below: Loaded | undefined;
  for (const loaded of lines) {
    unstacked.set(loaded, loaded.y);
    const under = below;
    const sums = loaded.y.map((value, i) => (value || 0) + (under ? under.y[nearest(under.x, loaded.x[i])] || 0 : 0));
    loaded.y = sums;
    loaded.extremes = new Extremes(sums);
    below = loaded;
  }
}

/** #rrggbb of any colour, so that an alpha can be put behind it. */
function hex(colour: string): string {
  if (/^#[0-9a-f]{6}$/i.test(colour)) return colour;
  const ctx = document.createElement("canvas").getContext("2d")!;
  ctx.fillStyle = colour;
  return ctx.fillStyle.startsWith("#") ? ctx.fillStyle : "#888888";
}
