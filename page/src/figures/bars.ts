// Bars: one row for each category, its parts after or above each other.
import { amount } from "../common/numbers.ts";
import { lineColour, meaning } from "../common/colours.ts";
import type { Bars } from "../document.ts";
import { h, swatch } from "../ui/dom.ts";
import type { Figure, Made } from "../ui/figure.ts";
import { placeLink } from "./findings.ts";

export function bars({ section, page, body }: Made<Bars>): Figure {
  const { categories, parts, unit } = section;
  const colourOf = (k: number): string => {
    const asked = parts[k].colour ?? parts[k].name;
    const known = meaning(asked) ?? asked;
    return CSS.supports("color", known) ? known : lineColour(k, page.theme);
  };
  const totals = categories.map((_, row) => {
    const all = parts.map((part) => part.values[row] ?? 0);
    return section.stacked ? all.reduce((sum, value) => sum + value, 0) : Math.max(0, ...all);
  });
  const most = Math.max(1e-300, ...totals);

  function draw(): void {
    const legend = h("ul.legend", {}, ...parts.map((part, k) => h("li", {}, swatch(colourOf(k)), part.name)));
    const rows = categories.map((category, row) => {
      const track = h(`div.track${section.stacked ? ".stacked" : ""}`, {});
      parts.forEach((part, k) => {
        const value = part.values[row];
        if (value === null || value === undefined || !(value > 0)) return;
        const bar = h("span", { title: `${part.name}: ${amount(value, unit)}` });
        bar.style.width = `${(100 * value) / most}%`;
        bar.style.background = colourOf(k);
        track.append(bar);
      });
      const place = section.places?.[row];
      const said = parts.map((part) => `${part.name} ${amount(part.values[row], unit)}`).join(", ");
      return h("tr", {},
        h("th", { scope: "row" }, place ? placeLink(page, place, category) : category),
        h("td", {}, track, h("span.outside", {}, said)),
        h("td.number", {}, amount(totals[row], unit)));
    });
    body.replaceChildren(legend, h("div.scrolls", { tabindex: 0, role: "region", "aria-label": section.title }, h("table.bars", {}, h("tbody", {}, ...rows))));
  }

  draw();
  return {
    draw() {},
    themed: draw,
    rows: () => ({
      head: ["", ...parts.map((part) => `${part.name} (${unit})`)],
      rows: categories.map((category, row) => [category, ...parts.map((part) => part.values[row])]),
    }),
  };
}
