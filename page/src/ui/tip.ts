// What is under the pointer.
import { h } from "./dom.ts";

const GAP = 14;

export class Tip {
  readonly element = h("div.tip", { role: "tooltip", hidden: true });

  show(content: Node | null, x = 0, y = 0): void {
    const { element } = this;
    element.hidden = content === null;
    if (content === null) return;
    element.replaceChildren(content);
    const { width, height } = element.getBoundingClientRect();
    const left = x + GAP + width > innerWidth ? Math.max(4, x - GAP - width) : x + GAP;
    const top = y + GAP + height > innerHeight ? Math.max(4, y - GAP - height) : y + GAP;
    element.style.transform = `translate(${left}px, ${top}px)`;
  }
}
