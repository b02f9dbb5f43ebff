import type { Text } from "../document.ts";
import { h } from "../ui/dom.ts";
import type { Figure, Made } from "../ui/figure.ts";

export function text({ section, body }: Made<Text>): Figure {
  body.append(h("ul.lines", {}, ...section.lines.map((line) => h("li", {}, line))));
  return { draw() {}, rows: () => ({ head: [section.title], rows: section.lines.map((line) => [line]) }) };
}
