// Which code: stacks as a flame graph, the callers at the top.
import { differenceColour, frameColour, meaning, textOn } from "../common/colours.ts";
import { amount, change } from "../common/numbers.ts";
import { Tree } from "../common/tree.ts";
import type { Flame } from "../document.ts";
import { h, styled } from "../ui/dom.ts";
import type { Figure, Made, Pin } from "../ui/figure.ts";
import { axisKey, handle } from "../ui/hands.ts";
import { fitted, RULER, Sheet } from "../ui/sheet.ts";

const FRAME = 18;
const LEAST_PIXELS = 0.5;

export async function flame({ section, tab, page, body }: Made<Flame>): Promise<Figure> {
  const { names, places, unit } = section;
  const trees = await Promise.all(section.trees.map(async (tree) => new Tree(
    await page.blobs.indices(tree.name_of),
    await page.blobs.indices(tree.parent),
    await page.blobs.values(tree.self),
    tree.before && (await page.blobs.values(tree.before)),
  )));
  let chosen = 0;
  let tree = trees[0];
  const axis = page.axis(tab, `flame:${section.id}`);
  axis.extend([0, tree.whole || 1]);
  const compared = trees.some((each) => each.before);
  let [hovered, focus] = [-1, -1];
  let searched = "";
  let named: Uint8Array | undefined;
  let version = 0;

  const choices = h("span.choice", { role: "group", "aria-label": "Phase" });
  const finder = h<HTMLInputElement>("input", {
    type: "search", placeholder: "find code", "aria-label": `Find in ${section.title}`, oninput: () => find(finder.value, false),
  });
  const count = h("span.muted", { role: "status" });
  const sheet = new Sheet(`${section.title}: ${tree.size} frames, ${amount(tree.whole, unit)}`, "flame graph", () => page.redraw(figure));
  body.append(h("div.figuretools", {}, trees.length > 1 ? choices : null, finder, count,
    compared ? h("span.muted", {}, "red: more than before; blue: less") : null), sheet.element);

  function drawChoices(): void {
    choices.replaceChildren(...section.trees.map(({ name }, k) =>
      h("button", { type: "button", "aria-pressed": String(k === chosen), onclick: () => choose(k) }, name)));
  }

  function choose(k: number): void {
    chosen = k;
    tree = trees[k];
    [hovered, focus] = [-1, -1];
    axis.full = [0, tree.whole || 1];
    axis.all();
    version++;
    drawChoices();
    find(searched, false);
  }

  const x = (value: number): number => ((value - axis.view[0]) / (axis.view[1] - axis.view[0])) * sheet.width;
  const nameOf = (i: number): string => names[tree.nameOf[i]] ?? "?";
  const placeOf = (i: number): string => places[tree.nameOf[i]] ?? "";
  /** Beside the name, unless it is in it. */
  const beside = (i: number): string => (nameOf(i).includes(placeOf(i)) ? "" : placeOf(i));
  /** By how much its share of the whole is another than before; −1 to 1. */
  const difference = (i: number): number => {
    const now = tree.total[i] / (tree.whole || 1);
    const before = (tree.totalBefore?.[i] ?? 0) / (tree.wholeBefore || 1);
    return (now - before) / Math.max(now, before, 1e-12);
  };

  function below(ctx: CanvasRenderingContext2D): void {
    const [low, high] = axis.view;
    const least = ((high - low) / sheet.width) * LEAST_PIXELS;
    const { theme } = page;
    tree.visible(low, high, least, (i) => {
      const y = tree.depth[i] * FRAME - sheet.top;
      if (y + FRAME < 0 || y > sheet.height) return;
      const begin = Math.max(-2, x(tree.begin[i]));
      const end = Math.min(sheet.width + 2, x(tree.begin[i] + tree.total[i]));
      const colour = tree.before ? differenceColour(difference(i), theme) : (tree.depth[i] === 0 && meaning(nameOf(i))) || frameColour(placeOf(i), nameOf(i), theme);
      ctx.globalAlpha = named && !named[tree.nameOf[i]] ? 0.28 : 1;
      ctx.fillStyle = colour;
      ctx.fillRect(begin, y, Math.max(0.6, end - begin - (end - begin > 3 ? 0.75 : 0)), FRAME - 1);
      if (end - begin > 26) {
        const room = end - begin - 8;
        const place = beside(i);
        const shown = fitted(ctx, nameOf(i), room);
        ctx.fillStyle = textOn(colour);
        ctx.fillText(shown, Math.max(0, begin) + 4, y + FRAME / 2);
        const used = shown ? ctx.measureText(shown).width + 10 : room;
        if (place && room - used > 60) {
          ctx.globalAlpha *= 0.65;
          ctx.fillText(fitted(ctx, place, room - used), Math.max(0, begin) + 4 + used, y + FRAME / 2);
        }
      }
    });
    ctx.globalAlpha = 1;
  }

  function above(ctx: CanvasRenderingContext2D): void {
    for (const i of [hovered, focus]) {
      if (i < 0) continue;
      const begin = Math.max(0, x(tree.begin[i]));
      const end = Math.min(sheet.width, x(tree.begin[i] + tree.total[i]));
      const y = tree.depth[i] * FRAME - sheet.top;
      if (end < 0 || begin > sheet.width) continue;
      ctx.strokeStyle = styled(i === focus ? "--accent" : "--text");
      ctx.lineWidth = i === focus ? 2 : 1;
      ctx.strokeRect(begin + 0.5, y + 0.5, Math.max(2, end - begin - 1.5), FRAME - 2);
    }
  }

  function facts(i: number): Pin["values"] {
    const share = (value: number, whole: number): string => `${amount(value, unit)}, ${amount(value / (whole || 1), "share")}`;
    const found: Pin["values"] = [
      { name: "place", value: placeOf(i) || "–" },
      { name: "total", value: tree.total[i], unit },
      { name: "of all", value: amount(tree.total[i] / (tree.whole || 1), "share") },
      { name: "itself", value: tree.self[i], unit },
    ];
    if (tree.totalBefore) {
      found.push({ name: "before", value: share(tree.totalBefore[i], tree.wholeBefore) }, { name: "change", value: change(tree.total[i], tree.totalBefore[i]) || "new" });
    }
    return found;
  }

  const described = (i: number): string => `${nameOf(i)} ${beside(i)}, ${amount(tree.total[i], unit)}, ${amount(tree.total[i] / (tree.whole || 1), "share")}`;

  function zoom(i: number): void {
    focus = i;
    axis.show(tree.begin[i], tree.begin[i] + tree.total[i]);
    page.say(described(i));
    page.redraw(figure);
  }

  const pinned = (i: number): void => page.pin({ title: nameOf(i), place: { tab, section: section.id, frame: nameOf(i) }, values: facts(i) });

  function find(text: string, whole: boolean): void {
    searched = text.trim();
    const wanted = searched.toLowerCase();
    named = undefined;
    if (wanted) {
      named = new Uint8Array(names.length);
      for (let k = 0; k < names.length; k++) {
        const found = whole ? names[k] === searched : `${names[k]} ${places[k] ?? ""}`.toLowerCase().includes(wanted);
        named[k] = found ? 1 : 0;
      }
      const within = tree.within((name) => named![name] === 1);
      count.textContent = `${amount(within, unit)}, ${amount(within / (tree.whole || 1), "share")} in what matches`;
    } else count.textContent = "";
    version++;
    page.redraw(figure);
  }

  function widest(): number {
    let best = -1;
    for (let i = 0; i < tree.size; i++) if (named?.[tree.nameOf[i]] && (best < 0 || tree.total[i] > tree.total[best])) best = i;
    return best;
  }

  function move(key: string): boolean {
    const roots = tree.children(tree.size);
    if (!key.startsWith("Arrow")) return false;
    let to = focus;
    if (focus < 0) to = roots[0] ?? -1;
    else if (key === "ArrowDown") to = tree.children(focus)[0] ?? focus;
    else if (key === "ArrowUp") to = tree.parent[focus] >= 0 ? tree.parent[focus] : focus;
    else {
      const siblings = tree.children(tree.parent[focus] < 0 ? tree.size : tree.parent[focus]);
      const at = siblings.indexOf(focus) + (key === "ArrowRight" ? 1 : -1);
      to = siblings[at] ?? focus;
    }
    if (to < 0) return true;
    focus = to;
    sheet.reveal(tree.depth[to] * FRAME - RULER, FRAME + RULER);
    page.say(described(to));
    page.redraw(figure);
    return true;
  }

  const at = (px: number, py: number): number => {
    const [low, high] = axis.view;
    return tree.at(low + (px / sheet.width) * (high - low), Math.floor((py + sheet.top) / FRAME));
  };

  const figure: Figure = {
    axis,
    draw() {
      sheet.fit((tree.deepest + 1) * FRAME + 2);
      sheet.draw(`${axis.view}|${version}|${page.theme}`, below, above);
    },
    key(event) {
      if (move(event.key)) return true;
      if (event.key === "Enter" && focus >= 0) zoom(focus);
      else if (event.key === " " && focus >= 0) pinned(focus);
      else if (event.key === "Backspace" && focus >= 0 && tree.parent[focus] >= 0) zoom(tree.parent[focus]);
      else return axisKey(axis, event.key);
      return true;
    },
    rows() {
      const all = [...tree.byName()].sort((a, b) => b[1].self - a[1].self);
      return {
        head: ["code", "place", `itself (${unit})`, `with what it calls (${unit})`, ...(tree.before ? [`itself before (${unit})`] : [])],
        rows: all.map(([name, { self, total, before }]) => [names[name], places[name], self, total, ...(tree.before ? [before] : [])]),
      };
    },
    canvases: () => [sheet.image()],
    show(place) {
      const text = place.frame ?? place.find ?? "";
      finder.value = text;
      find(text, place.frame !== undefined);
      if (!text) return;
      const found = widest();
      if (found >= 0) {
        sheet.fit((tree.deepest + 1) * FRAME + 2);
        zoom(found);
        sheet.reveal(tree.depth[found] * FRAME - RULER, 3 * FRAME);
      }
    },
  };
  handle(sheet.element, {
    axis,
    plot: () => ({ left: 0, width: sheet.width }),
    wheel: true,
    move(px, py) {
      const i = at(px, py);
      const box = sheet.element.getBoundingClientRect();
      page.tip(i < 0 ? null : h("div", {}, h("b", {}, nameOf(i)), h("dl", {}, ...facts(i).flatMap(({ name, value, unit: own }) =>
        [h("dt", {}, name), h("dd", {}, typeof value === "number" ? amount(value, own) : value)]))), box.left + px, box.top + py);
      if (i !== hovered) {
        hovered = i;
        page.redraw(figure);
      }
    },
    leave() {
      hovered = -1;
      page.tip(null);
      page.redraw(figure);
    },
    click(px, py, event) {
      const i = at(px, py);
      if (i < 0) return;
      if (event.altKey) pinned(i);
      else zoom(i);
    },
  });
  drawChoices();
  return figure;
}
