// What ran when: phases, ranges, kernels, communication, stacks, one below the other on one time axis.
import { lineColour, meaning, nameColour, textOn } from "../common/colours.ts";
import { rowsOf, type Row } from "../common/levels.ts";
import { amount, seconds } from "../common/numbers.ts";
import { firstNotBelow, ofIntervals, quantile } from "../common/statistics.ts";
import type { Lane, Lanes, Place } from "../document.ts";
import { h, styled } from "../ui/dom.ts";
import type { Figure, Made, StatisticsRow } from "../ui/figure.ts";
import { axisKey, handle } from "../ui/hands.ts";
import { fitted, gutterOf, overlay, ruler, RULER, Sheet } from "../ui/sheet.ts";

const [ITEM, GAP, HEAD, STEPS] = [17, 5, 22, 16];
const STEPS_LISTED = 1000;

interface Loaded {
  lane: Lane;
  from: Float64Array;
  length: Float64Array;
  nameOf: ArrayLike<number>;
  rows: Row[];
  details: { name: string; unit: string; values: Float64Array }[];
  colours: string[];
  /** Of each name: whether it is searched for. */
  found?: boolean[];
  top: number;
}

interface Item {
  lane: number;
  row: number;
  /** In its row. */
  k: number;
}

export async function lanes({ section, tab, page, body }: Made<Lanes>): Promise<Figure> {
  const { blobs } = page;
  const axis = page.axis(tab, section.axis);
  const all: Loaded[] = await Promise.all(section.lanes.map(async (lane) => {
    const [from, length, nameOf] = await Promise.all([blobs.values(lane.from), blobs.values(lane.length), blobs.indices(lane.name_of)]);
    const depth = lane.depth && (await blobs.indices(lane.depth));
    const details = await Promise.all((lane.detail ?? []).map(async ({ name, unit, values }) => ({ name, unit, values: await blobs.values(values) })));
    return { lane, from, length, nameOf, rows: rowsOf(from, length, depth), details, colours: [], top: 0 };
  }));
  const steps = section.steps && {
    number: await blobs.values(section.steps.number),
    from: await blobs.values(section.steps.from),
    to: await blobs.values(section.steps.to),
  };
  if (section.axis !== "run") {
    for (const { from, length } of all) if (from.length) axis.extend([from[0], from[from.length - 1] + length[length.length - 1]]);
    if (steps?.from.length) axis.extend([steps.from[0], steps.to[steps.to.length - 1]]);
  }
  const groups: { name: string; lanes: Loaded[]; open: boolean; top: number }[] = [];
  for (const loaded of all) {
    let group = groups.find((each) => each.name === loaded.lane.group);
    if (!group) groups.push((group = { name: loaded.lane.group, lanes: [], open: true, top: 0 }));
    group.lanes.push(loaded);
  }
  const head = steps ? RULER + STEPS : RULER;
  let [hovered, focus]: (Item | undefined)[] = [];
  let searched = "";
  let version = 0;

  const finder = h<HTMLInputElement>("input", {
    type: "search", placeholder: "find in these lanes", "aria-label": `Find in ${section.title}`,
    oninput: () => { find(finder.value); },
    onkeydown: (event: KeyboardEvent) => { if (event.key === "Enter") { next(event.shiftKey ? -1 : 1); event.preventDefault(); } },
  });
  const count = h("span.muted", { role: "status" });
  const sheet = new Sheet(`${section.title}: ${all.map(({ lane }) => `${lane.group} ${lane.name}`).join(", ")}`.slice(0, 300), "lanes", () => page.redraw(figure));
  const stepChoice = h<HTMLSelectElement>("select", { "aria-label": "Step", onchange: () => showStep(Number(stepChoice.value)) });
  const turn = (by: number, text: string, label: string): HTMLElement =>
    h("button.tool", { type: "button", "aria-label": label, title: label, onclick: () => turnStep(by) }, text);
  if (steps) {
    stepChoice.append(h("option", { value: -1 }, "all"), ...Array.from(steps.number.slice(0, STEPS_LISTED), (number, i) =>
      h("option", { value: i }, `step ${number} (${seconds(steps.to[i] - steps.from[i])})`)));
  }
  body.append(h("div.figuretools", {}, ...(steps ? [turn(-1, "‹", "Step before (,)"), stepChoice, turn(1, "›", "Next step (.)")] : []), finder, count), sheet.element);

  function showStep(i: number): void {
    if (!steps || i < 0 || i >= steps.from.length) {
      axis.all();
      return;
    }
    const room = 0.04 * (steps.to[i] - steps.from[i]);
    axis.show(steps.from[i] - room, steps.to[i] + room);
    page.place.step = steps.number[i];
    page.say(`step ${steps.number[i]}, ${seconds(steps.to[i] - steps.from[i])}`);
  }

  /** The step in the middle of what is visible; −1 if there is none, or far too much to see one. */
  function shownStep(): number {
    if (!steps || !steps.from.length) return -1;
    const [low, high] = axis.view;
    const i = Math.min(steps.from.length - 1, firstNotBelow(steps.to, (low + high) / 2));
    return high - low > 4 * (steps.to[i] - steps.from[i]) || steps.from[i] > high ? -1 : i;
  }

  function turnStep(by: number): void {
    if (!steps) return;
    const now = shownStep();
    const from = now >= 0 ? now + by : by > 0 ? firstNotBelow(steps.from, axis.view[0]) : firstNotBelow(steps.to, axis.view[1]) - 1;
    showStep(Math.max(0, Math.min(steps.from.length - 1, from)));
  }

  /** One that takes as long as most: what is shown of a run before anybody asks for more. */
  function typicalStep(): number {
    if (!steps?.from.length) return -1;
    const lengths = steps.to.map((to, i) => to - steps.from[i]);
    return lengths.indexOf(quantile(lengths, 0.5));
  }

  function coloured(): void {
    for (const loaded of all) {
      loaded.colours = loaded.lane.names.map((name, k) =>
        loaded.lane.colour === "phase" ? meaning(name) ?? lineColour(k, page.theme) : nameColour(name, page.theme));
    }
    version++;
  }

  function placed(): number {
    let top = 0;
    for (const group of groups) {
      group.top = top;
      top += HEAD;
      for (const loaded of group.lanes) {
        loaded.top = group.open ? top : NaN;
        if (group.open) top += loaded.rows.length * ITEM + GAP;
      }
    }
    return head + top + 2;
  }

  const labels = all.flatMap(({ lane }) => [`  ${lane.name}`, `  ${lane.group}`]);
  let [gutterWidth, gutterAt] = [0, -1];
  const gutter = (): number => {
    if (gutterAt !== sheet.width) [gutterWidth, gutterAt] = [gutterOf(sheet.width, labels), sheet.width];
    return gutterWidth;
  };
  const plotWidth = (): number => Math.max(1, sheet.width - gutter() - 4);
  const x = (time: number): number => gutter() + ((time - axis.view[0]) / (axis.view[1] - axis.view[0])) * plotWidth();

  function below(ctx: CanvasRenderingContext2D): void {
    const [low, high] = axis.view;
    const [left, wide] = [gutter(), plotWidth()];
    const [line, text, muted] = [styled("--line"), styled("--text"), styled("--muted")];
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, head, sheet.width, sheet.height - head);
    ctx.clip();
    const offset = head - sheet.top;
    for (const group of groups) {
      const at = group.top + offset;
      if (at > -HEAD && at < sheet.height) {
        ctx.fillStyle = line;
        ctx.fillRect(0, at, sheet.width, 1);
        ctx.fillStyle = text;
        ctx.font = `600 ${ctx.font.replace(/^600 /, "")}`;
        ctx.fillText(`${group.open ? "▾" : "▸"} ${fitted(ctx, group.name, left - 18)}`, 4, at + HEAD / 2 + 1);
        ctx.font = ctx.font.replace(/^600 /, "");
      }
      if (!group.open) continue;
      for (const loaded of group.lanes) {
        const tall = loaded.rows.length * ITEM;
        const y = loaded.top + offset;
        if (y + tall < head || y > sheet.height) continue;
        ctx.fillStyle = muted;
        ctx.fillText(fitted(ctx, loaded.lane.name, left - 18), 14, Math.max(y, head) + ITEM / 2);
        ctx.save();
        ctx.beginPath();
        ctx.rect(left, head, wide, sheet.height - head);
        ctx.clip();
        loaded.rows.forEach((row, depth) => {
          const at = y + depth * ITEM;
          if (at + ITEM < head || at > sheet.height) return;
          drawRow(ctx, loaded, row, at, low, high, wide);
        });
        ctx.restore();
      }
    }
    ctx.restore();
    ctx.fillStyle = styled("--page");
    ctx.fillRect(0, 0, sheet.width, head);
    drawSteps(ctx, left, wide);
    ruler(ctx, axis, left, wide, RULER);
  }

  function drawRow(ctx: CanvasRenderingContext2D, loaded: Loaded, row: Row, y: number, low: number, high: number, wide: number): void {
    const { nameOf, colours, found, lane } = loaded;
    const left = gutter();
    const scale = wide / (high - low);
    let last = "";
    row.visible(low, high, wide, (k, from, to, busy) => {
      const begin = Math.max(left - 2, left + (from - low) * scale);
      const end = Math.min(left + wide + 2, left + (to - low) * scale);
      const name = nameOf[row.item[k]];
      const colour = colours[name] ?? "#888888";
      const shade = (found && !found[name] ? 0.18 : 1) * (end - begin < 3 ? Math.max(0.35, busy) : 1);
      if (ctx.globalAlpha !== shade) ctx.globalAlpha = shade;
      if (colour !== last) ctx.fillStyle = last = colour;
      const width = Math.max(1, end - begin - (end - begin > 4 ? 0.75 : 0));
      ctx.fillRect(begin, y, width, ITEM - 2);
      if (width > 26) {
        const shown = fitted(ctx, lane.names[name] ?? "?", width - 6);
        if (shown) {
          ctx.fillStyle = last = textOn(colour);
          ctx.fillText(shown, begin + 3, y + ITEM / 2 - 0.5);
        }
      }
    });
    ctx.globalAlpha = 1;
  }

  function drawSteps(ctx: CanvasRenderingContext2D, left: number, wide: number): void {
    if (!steps) return;
    const [low, high] = axis.view;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, RULER, wide, STEPS);
    ctx.clip();
    let labelled = -Infinity;
    let drawn = -Infinity;
    for (let i = firstNotBelow(steps.to, low); i < steps.from.length && steps.from[i] <= high; i++) {
      const begin = x(steps.from[i]);
      const end = x(steps.to[i]);
      if (end - drawn < 1) continue;
      drawn = end;
      ctx.fillStyle = styled(i % 2 ? "--raised" : "--line");
      ctx.fillRect(begin, RULER, Math.max(1, end - begin), STEPS - 2);
      const text = end - begin > 70 ? `step ${steps.number[i]}` : String(steps.number[i]);
      const at = Math.max(begin, left) + 4;
      const room = Math.min(end, left + wide) - at;
      if (at - labelled > 12 && room > ctx.measureText(text).width) {
        ctx.fillStyle = styled("--muted");
        ctx.fillText(text, at, RULER + STEPS / 2 - 1);
        labelled = at + ctx.measureText(text).width;
      }
    }
    ctx.restore();
  }

  function above(ctx: CanvasRenderingContext2D): void {
    overlay(ctx, axis, gutter(), plotWidth(), sheet.height);
    for (const item of [hovered, focus]) {
      if (!item || all[item.lane].top !== all[item.lane].top) continue;
      const row = all[item.lane].rows[item.row];
      const y = all[item.lane].top + item.row * ITEM + head - sheet.top;
      if (y < head - ITEM || y > sheet.height) continue;
      const begin = Math.max(gutter(), x(row.from[item.k]));
      const end = Math.min(sheet.width, x(row.to[item.k]));
      if (end < gutter()) continue;
      ctx.strokeStyle = styled(item === focus ? "--accent" : "--text");
      ctx.lineWidth = item === focus ? 2 : 1;
      ctx.strokeRect(begin - 0.5, y - 0.5, Math.max(2, end - begin), ITEM - 1);
    }
  }

  function itemAt(px: number, py: number): Item | undefined {
    if (px < gutter() || py < head) return undefined;
    const y = py - head + sheet.top;
    const lane = all.findIndex((loaded) => y >= loaded.top && y < loaded.top + loaded.rows.length * ITEM);
    if (lane < 0) return undefined;
    const row = Math.floor((y - all[lane].top) / ITEM);
    const [low, high] = axis.view;
    const pixel = (high - low) / plotWidth();
    const k = all[lane].rows[row].at(low + (px - gutter()) * pixel, 2 * pixel);
    return k < 0 ? undefined : { lane, row, k };
  }

  const nameOf = ({ lane, row, k }: Item): string => all[lane].lane.names[all[lane].nameOf[all[lane].rows[row].item[k]]] ?? "?";
  const stepAt = (time: number): number | undefined => {
    if (!steps) return undefined;
    const i = firstNotBelow(steps.to, time);
    return i < steps.from.length && steps.from[i] <= time ? i : undefined;
  };

  function facts(item: Item): { name: string; value: number | string; unit?: string }[] {
    const loaded = all[item.lane];
    const row = loaded.rows[item.row];
    const index = row.item[item.k];
    const step = stepAt(row.from[item.k]);
    return [
      { name: "lane", value: `${loaded.lane.group} ${loaded.lane.name}` },
      { name: "duration", value: loaded.length[index], unit: "s" },
      { name: "begins", value: row.from[item.k], unit: "s" },
      ...(step === undefined ? [] : [
        { name: "step", value: String(steps!.number[step]) },
        { name: "after the step began", value: row.from[item.k] - steps!.from[step], unit: "s" }]),
      ...loaded.details.map(({ name, unit, values }) => ({ name, value: values[index], unit })),
    ];
  }

  function tipOf(item: Item): HTMLElement {
    return h("div", {}, h("b", {}, nameOf(item)), h("dl", {}, ...facts(item).flatMap(({ name, value, unit }) =>
      [h("dt", {}, name), h("dd", {}, typeof value === "number" ? amount(value, unit) : value)])));
  }

  function pinned(item: Item): void {
    const row = all[item.lane].rows[item.row];
    focus = item;
    page.tip(null);
    const place: Place = { tab, section: section.id, rank: section.rank, from: row.from[item.k], to: row.to[item.k] };
    page.pin({ title: nameOf(item), place, values: facts(item) });
    page.redraw(figure);
  }

  function find(text: string): void {
    searched = text.trim().toLowerCase();
    let items = 0;
    for (const loaded of all) {
      const inLane = searched !== "" && `${loaded.lane.group} ${loaded.lane.name}`.toLowerCase().includes(searched);
      loaded.found = searched ? loaded.lane.names.map((name) => inLane || name.toLowerCase().includes(searched)) : undefined;
      if (loaded.found) for (let i = 0; i < loaded.nameOf.length; i++) if (loaded.found[loaded.nameOf[i]]) items++;
    }
    count.textContent = searched ? `${items.toLocaleString("en-US").replaceAll(",", " ")} found${items ? ": Enter or n for the next" : ""}` : "";
    version++;
    page.redraw(figure);
  }

  /** The next item that is searched for, after the one in focus or what is visible. */
  function next(by: 1 | -1): void {
    let best: { item: Item; from: number } | undefined;
    const now = focus ? all[focus.lane].rows[focus.row].from[focus.k] : by > 0 ? axis.view[0] : axis.view[1];
    all.forEach((loaded, lane) => {
      if (!loaded.found || loaded.top !== loaded.top) return;
      loaded.rows.forEach((row, r) => {
        let k = firstNotBelow(row.from, now);
        if (by > 0) while (k < row.from.length && (row.from[k] <= now && focus !== undefined || !loaded.found![loaded.nameOf[row.item[k]]])) k++;
        else for (k--; k >= 0 && !loaded.found![loaded.nameOf[row.item[k]]]; ) k--;
        if (k < 0 || k >= row.from.length) return;
        if (!best || (by > 0 ? row.from[k] < best.from : row.from[k] > best.from)) best = { item: { lane, row: r, k }, from: row.from[k] };
      });
    });
    if (best) goTo(best.item);
    else page.say("no more");
  }

  function goTo(item: Item): void {
    focus = item;
    const loaded = all[item.lane];
    const row = loaded.rows[item.row];
    const [low, high] = axis.view;
    const [from, to] = [row.from[item.k], row.to[item.k]];
    if (from < low || to > high) {
      const width = Math.max(high - low, 1.5 * (to - from));
      axis.show(from - 0.3 * width, from + 0.7 * width);
    }
    axis.cursor = from;
    sheet.reveal(loaded.top + item.row * ITEM, ITEM);
    page.say(`${nameOf(item)}, ${seconds(to - from)}, ${loaded.lane.name}`);
    page.redraw(figure);
  }

  /** With the keyboard: along the row, or to the next row at the same time. */
  function move(key: string): boolean {
    const sideways = key === "ArrowRight" ? 1 : key === "ArrowLeft" ? -1 : 0;
    const down = key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0;
    if (!sideways && !down) return false;
    const rows = all.flatMap((loaded, lane) => (loaded.top === loaded.top ? loaded.rows.map((_, row) => ({ lane, row })) : []));
    if (!rows.length) return true;
    const time = focus ? all[focus.lane].rows[focus.row].from[focus.k] : axis.cursor ?? axis.view[0];
    if (sideways && focus) {
      const row = all[focus.lane].rows[focus.row];
      const k = focus.k + sideways;
      if (k >= 0 && k < row.from.length) goTo({ ...focus, k });
      return true;
    }
    const now = focus ? rows.findIndex(({ lane, row }) => lane === focus!.lane && row === focus!.row) : -1;
    for (let at = now + (down || 1); at >= 0 && at < rows.length; at += down || 1) {
      const row = all[rows[at].lane].rows[rows[at].row];
      if (!row.from.length) continue;
      goTo({ ...rows[at], k: Math.min(row.from.length - 1, firstNotBelow(row.to, time)) });
      break;
    }
    return true;
  }

  function statistics(low: number, high: number): StatisticsRow[] {
    return all.flatMap((loaded) => [...ofIntervals(loaded.from, loaded.length, loaded.nameOf, low, high)].map(([name, found]) => ({
      ...found, name: `${loaded.lane.name}: ${loaded.lane.names[name] ?? "?"}`, unit: "s", colour: loaded.colours[name],
    }))).sort((a, b) => b.sum - a.sum);
  }

  const figure: Figure = {
    axis,
    draw() {
      sheet.fit(placed());
      sheet.draw(`${axis.view}|${version}`, below, above);
      if (globalThis.document.activeElement !== stepChoice) stepChoice.value = String(shownStep());
    },
    themed: coloured,
    key(event) {
      if (move(event.key)) return true;
      if (event.key === "n" && searched) next(1);
      else if (event.key === "p" && searched) next(-1);
      else if (event.key === "." || event.key === ",") turnStep(event.key === "." ? 1 : -1);
      else if ((event.key === "Enter" || event.key === " ") && (focus || hovered)) pinned((focus ?? hovered)!);
      else return axisKey(axis, event.key);
      return true;
    },
    statistics,
    rows: () => ({
      head: ["group", "lane", "name", "depth", "begins (s)", "duration (s)"],
      rows: all.flatMap(({ lane, rows, nameOf, length }) => rows.flatMap((row, depth) => Array.from(row.item, (index, k) =>
        [lane.group, lane.name, lane.names[nameOf[index]], depth, row.from[k], length[index]]))),
    }),
    canvases: () => [sheet.image()],
    show(place) {
      finder.value = place.find ?? "";
      placed();
      find(finder.value);
      if (place.step !== undefined && steps) {
        const i = steps.number.indexOf(place.step);
        if (i >= 0) showStep(i);
        else if (section.axis === "run") page.say(`step ${place.step} is not recorded here`);
      } else if (searched && place.from === undefined) {
        focus = undefined;
        next(1);
      }
    },
  };
  handle(sheet.element, {
    axis,
    plot: () => ({ left: gutter(), width: plotWidth() }),
    wheel: true,
    selects: true,
    selected: () => page.selected(axis),
    move(px, py) {
      const item = itemAt(px, py);
      const same = item?.lane === hovered?.lane && item?.row === hovered?.row && item?.k === hovered?.k;
      hovered = item;
      const box = sheet.element.getBoundingClientRect();
      page.tip(item ? tipOf(item) : null, box.left + px, box.top + py);
      if (!same) page.redraw(figure);
    },
    leave() {
      hovered = undefined;
      page.tip(null);
      page.redraw(figure);
    },
    click(px, py) {
      const y = py - head + sheet.top;
      const group = groups.find(({ top }) => y >= top && y < top + HEAD);
      if (py > head && group) {
        group.open = !group.open;
        version++;
        page.redraw(figure);
        return;
      }
      const item = itemAt(px, py);
      if (item) pinned(item);
    },
    twice(px, py) {
      const item = itemAt(px, py);
      if (!item) return false;
      const row = all[item.lane].rows[item.row];
      const room = 0.1 * (row.to[item.k] - row.from[item.k]);
      axis.show(row.from[item.k] - room, row.to[item.k] + room);
      return true;
    },
  });
  coloured();
  const { place } = page;
  const untouched = axis.view[0] === axis.full[0] && axis.view[1] === axis.full[1];
  if (untouched && place.step === undefined && place.from === undefined) {
    const typical = typicalStep();
    if (typical >= 0) {
      showStep(typical);
      delete place.step;
    }
  }
  return figure;
}
